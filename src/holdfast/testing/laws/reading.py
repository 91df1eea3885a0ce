"""Reading: counts, lists, one job with its history, and facts about the installation."""

from datetime import timedelta

from holdfast.state.facts import Facts
from holdfast.testing.lab import Lab
from holdfast.values import DEFAULT_QUEUE, DeadReason, JobFilter, JobState


class ReadingLaws:
    """The guarantees of `counts`, `oldest_waits`, `find`, `get` and facts: a job has exactly one state, the same in
    every view.
    """

    def test_an_empty_engine_shows_nothing(self, lab: Lab) -> None:
        assert lab.engine.counts() == {}
        assert lab.engine.find(JobFilter()).jobs == ()
        assert lab.engine.find(JobFilter()).next is None
        assert lab.engine.get("nobody") is None
        assert lab.engine.dead_letters().jobs == ()

    def test_every_job_is_counted_in_one_state(self, lab: Lab) -> None:
        self._fill(lab)
        assert lab.engine.counts() == {
            "mail": {
                JobState.COMPLETED: 1,
                JobState.DEAD: 2,
                JobState.FAILED: 1,
                JobState.PROCESSING: 1,
                JobState.CANCELLED: 1,
            },
            "slow": {JobState.PENDING: 2, JobState.SCHEDULED: 1},
        }
        assert lab.engine.counts("slow") == {"slow": {JobState.PENDING: 2, JobState.SCHEDULED: 1}}
        assert not lab.engine.counts("third").get("third")

    def test_a_scheduled_job_is_counted_as_pending_once_it_is_due(self, lab: Lab) -> None:
        lab.put("a", delay=30)
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.SCHEDULED: 1}}
        lab.advance(60)
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.PENDING: 1}}
        assert lab.ids(JobFilter(states=(JobState.PENDING,))) == ["a"]
        assert lab.ids(JobFilter(states=(JobState.SCHEDULED,))) == []

    def test_the_longest_wait_of_each_queue_is_known(self, lab: Lab) -> None:
        assert lab.engine.oldest_waits() == {}
        lab.put("first", queue="mail", priority=2)
        lab.put("leased", queue="busy")
        lab.take("leased", queue="busy")
        lab.put("failed", queue="slow")
        assert lab.engine.nack(lab.take("failed", queue="slow"), delay=60)
        lab.advance(30)
        lab.put("second", queue="mail", priority=2)
        lab.put("urgent", queue="mail", priority=9)
        lab.put("scheduled", queue="timed", delay=60)
        self._check_waits(lab, {"mail": "first"})
        lab.advance(90)
        self._check_waits(lab, {"mail": "first", "slow": "failed", "timed": "scheduled"})
        lab.take("urgent", queue="mail")
        lab.engine.cancel("first")
        lab.engine.pause("slow")
        self._check_waits(lab, {"mail": "second", "slow": "failed", "timed": "scheduled"})

    def _check_waits(self, lab: Lab, expected: dict[str, str]) -> None:
        """In each of these queues, this job has waited longest; in no other one, a job is due."""
        earliest = lab.now()
        waits = lab.engine.oldest_waits()
        latest = lab.now()
        assert waits.keys() == expected.keys()
        for queue, id in expected.items():
            since, grain = lab.view(id).due_at, timedelta(seconds=lab.grain_s)
            assert waits[queue].since == since, queue
            assert earliest - since - grain <= timedelta(seconds=waits[queue].seconds) <= latest - since + grain, queue

    def test_jobs_can_be_searched_by_one_state(self, lab: Lab) -> None:
        expected = self._fill(lab)
        for state in JobState:
            found = lab.ids(JobFilter(states=(state,)))
            assert sorted(found) == sorted(id for id, its in expected.items() if its is state), state
            assert all(lab.view(id).state is state for id in found)

    def test_a_history_contains_the_message_as_it_was_accepted(self, lab: Lab) -> None:
        """In every state, so that its signature can be verified: a copy of a dead letter depends on it."""
        accepted = {id: lab.envelope(id) for id in ("waiting", "held", "done", "dead", "cancelled")}
        lab.engine.accept([accepted[id] for id in ("held", "done", "dead")])
        for lease in lab.claim():
            if lease.id == "done":
                assert lab.engine.ack(lease)
            if lease.id == "dead":
                assert lab.engine.abandon(lease, DeadReason.FAILED)
        lab.engine.accept([accepted["waiting"], accepted["cancelled"]])
        lab.engine.cancel("cancelled")
        assert {id: lab.history(id).wire for id in accepted} == {id: one.wire for id, one in accepted.items()}

    def test_each_condition_of_a_search_must_hold(self, lab: Lab) -> None:
        expected = self._fill(lab)

        def found(where: JobFilter) -> list[str]:
            return sorted(lab.ids(where))

        assert found(JobFilter()) == sorted(expected)
        assert found(JobFilter(states=(JobState.DEAD, JobState.PENDING))) == ["dead", "ousted", "pending", "report"]
        assert found(JobFilter(queue="slow")) == ["pending", "report", "scheduled"]
        assert found(JobFilter(job="report.make")) == ["report"]
        assert found(JobFilter(ids=("dead", "report", "nobody"))) == ["dead", "report"]
        assert found(JobFilter(dead_reason=DeadReason.NO_RETRY)) == ["ousted"]
        assert found(JobFilter(queue="mail", states=(JobState.PENDING,))) == []
        assert found(JobFilter(queue="slow", ids=("dead", "report"))) == ["report"]
        assert found(JobFilter(states=(JobState.DEAD,), dead_reason=DeadReason.FAILED)) == ["dead"]

    def test_a_search_by_when_jobs_finished_finds_only_finished_ones(self, lab: Lab) -> None:
        lab.put("first", "second", "third")
        for id in ("first", "second"):
            assert lab.engine.ack(lab.take(id))
            lab.advance(10)
        middle = lab.now() - timedelta(seconds=15)
        assert lab.ids(JobFilter(finished_before=middle)) == ["first"]
        assert lab.ids(JobFilter(finished_before=lab.now())) == ["second", "first"]
        assert lab.ids(JobFilter(finished_before=lab.now() - timedelta(days=1))) == []

    def test_a_search_can_start_from_when_jobs_finished(self, lab: Lab) -> None:
        lab.put("first", "second", "third")
        for id in ("first", "second"):
            assert lab.engine.ack(lab.take(id))
            lab.advance(10)
        finished = lab.view("second").finished_at
        assert finished is not None
        assert lab.ids(JobFilter(finished_from=finished)) == ["second"]
        assert lab.ids(JobFilter(finished_from=finished, finished_before=finished)) == []
        assert lab.ids(JobFilter(finished_from=finished - timedelta(seconds=15))) == ["second", "first"]
        assert lab.ids(JobFilter(states=(JobState.COMPLETED,), finished_from=finished)) == ["second"]

    def test_jobs_can_be_searched_by_when_they_were_accepted(self, lab: Lab) -> None:
        for id in ("first", "second", "third"):
            lab.put(id)
            lab.advance(10)
        assert lab.engine.ack(lab.take("first"))
        accepted = lab.view("second").accepted_at
        assert lab.ids(JobFilter(accepted_from=accepted)) == ["third", "second"]
        assert lab.ids(JobFilter(accepted_before=accepted)) == ["first"]
        just_then = JobFilter(accepted_from=accepted, accepted_before=accepted + timedelta(microseconds=1))
        assert lab.ids(just_then) == ["second"]
        assert lab.ids(JobFilter(accepted_from=accepted, states=(JobState.COMPLETED,))) == []
        assert lab.ids(JobFilter(accepted_from=lab.now() + timedelta(days=1))) == []

    def test_every_job_of_a_page_has_a_cursor_to_the_rest(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        for lease in lab.claim():
            assert lab.engine.abandon(lease, DeadReason.FAILED)
        lab.put("e", "f", "g")
        for where in (JobFilter(), JobFilter(states=(JobState.DEAD,)), JobFilter(states=(JobState.PENDING,))):
            page = lab.engine.find(where, limit=100)
            ids = [job.id for job in page.jobs]
            assert len(page.cursors) == len(ids) > 1
            for place, cursor in enumerate(page.cursors, start=1):
                behind = lab.engine.find(where, limit=100, after=cursor)
                assert [job.id for job in behind.jobs] == ids[place:], place

    def test_the_newest_jobs_come_first(self, lab: Lab) -> None:
        for id in ("a", "c", "b"):
            lab.put(id)
            lab.advance(1)
        assert lab.ids() == ["b", "c", "a"]

    def test_finished_jobs_are_ordered_by_when_they_finished(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        a, b, c = lab.claim()
        for lease in (b, c, a):
            assert lab.engine.abandon(lease, DeadReason.FAILED)
            lab.advance(1)
        assert [view.id for view in lab.engine.dead_letters().jobs] == ["a", "c", "b"]
        assert lab.ids(JobFilter(states=(JobState.DEAD, JobState.COMPLETED)), page=1) == ["a", "c", "b"]

    def test_pages_show_every_job_exactly_once(self, lab: Lab) -> None:
        ids = [f"job{number}" for number in range(7)]
        lab.engine.accept([lab.envelope(id) for id in ids[:4]])
        lab.put(*ids[4:])
        for size in (1, 2, 3, 6, 7, 8):
            found = lab.ids(page=size)
            assert sorted(found) == ids, size
        assert lab.engine.find(JobFilter(), limit=7).next is None
        assert lab.engine.find(JobFilter(), limit=6).next is not None

    def test_pages_of_finished_jobs_show_every_job_exactly_once(self, lab: Lab) -> None:
        ids = [f"job{number}" for number in range(7)]
        lab.put(*ids)
        for lease in lab.claim():
            assert lab.engine.ack(lease)
        for size in (1, 3, 7, 8):
            assert sorted(lab.ids(JobFilter(states=(JobState.COMPLETED,)), page=size)) == ids, size

    def test_new_jobs_do_not_change_the_pages_that_follow(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        first = lab.engine.find(JobFilter(), limit=2)
        lab.advance(1)
        lab.put("late")
        second = lab.engine.find(JobFilter(), limit=2, after=first.next)
        assert sorted(job.id for job in (*first.jobs, *second.jobs)) == ["a", "b", "c", "d"]
        assert second.next is None

    def test_dead_letters_can_be_read_by_queue_and_page(self, lab: Lab) -> None:
        self._fill(lab)
        first = lab.engine.dead_letters(queue="mail", limit=1)
        second = lab.engine.dead_letters(queue="mail", limit=1, after=first.next)
        assert len(first.jobs) == len(second.jobs) == 1
        assert {job.id for job in first.jobs + second.jobs} == {"dead", "ousted"}
        assert second.next is None
        assert lab.engine.dead_letters(queue="slow").jobs == ()

    def test_find_and_get_show_the_same(self, lab: Lab) -> None:
        expected = self._fill(lab)
        listed = lab.engine.find(JobFilter()).jobs
        assert len(listed) == len(expected)
        for view in listed:
            assert view == lab.view(view.id)

    def test_facts_are_stored_by_kind(self, lab: Lab) -> None:
        assert Facts(lab.engine.state).of("keys") == frozenset()
        Facts(lab.engine.state).add("keys", ["one", "two"])
        Facts(lab.engine.state).add("keys", iter(["two", "drei-ß"]))
        Facts(lab.engine.state).add("hosts", ["elsewhere"])
        Facts(lab.engine.state).add("keys", [])
        assert Facts(lab.open().state).of("keys") == {"one", "two", "drei-ß"}
        assert Facts(lab.engine.state).of("hosts") == {"elsewhere"}

    def _fill(self, lab: Lab) -> dict[str, JobState]:
        """Create jobs in every state that an engine can produce."""
        engine = lab.engine
        lab.put("completed", "dead", "failed", "ousted", "processing", queue="mail")
        lab.put("cancelled", queue="mail", priority=0)
        lab.put("pending", queue="slow")
        lab.put("scheduled", queue="slow", delay=999)
        lab.put("report", queue="slow", job="report.make")
        assert engine.ack(lab.take("completed", queue="mail"))
        assert engine.abandon(lab.take("dead", queue="mail"), DeadReason.FAILED)
        assert engine.nack(lab.take("failed", queue="mail"), delay=999)
        assert engine.abandon(lab.take("ousted", queue="mail"), DeadReason.NO_RETRY)
        lab.take("processing", queue="mail")
        engine.cancel("cancelled")
        return {
            "completed": JobState.COMPLETED,
            "dead": JobState.DEAD,
            "failed": JobState.FAILED,
            "ousted": JobState.DEAD,
            "processing": JobState.PROCESSING,
            "cancelled": JobState.CANCELLED,
            "pending": JobState.PENDING,
            "scheduled": JobState.SCHEDULED,
            "report": JobState.PENDING,
        }
