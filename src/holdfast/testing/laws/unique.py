"""Unique jobs: at most one job per key while it is in scope. Also, rescheduling jobs that have not started."""

from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from holdfast.errors import IdConflict, StateConflict, UniqueConflict
from holdfast.queues.contract import TOMBSTONE_S, Engine
from holdfast.testing.lab import Lab
from holdfast.testing.laws.racing import at_once
from holdfast.testing.laws.slots import KEY, block, hold
from holdfast.values import (
    DEFAULT_QUEUE,
    Accepted,
    Ack,
    Entry,
    JobEnvelope,
    JobFilter,
    JobState,
    OnConflict,
    Put,
    Unique,
    UniqueScope,
)

CROWD = 4
REJECT = OnConflict.REJECT


def unique(
    lab: Lab,
    id: str,
    *,
    key: str = "k",
    scope: UniqueScope = UniqueScope.OPEN,
    period: float = 0.0,
    on_conflict: OnConflict = OnConflict.IGNORE,
    payload: object = None,
    delay: float = 0.0,
) -> JobEnvelope:
    """A signed job with a unique key."""
    envelope = lab.envelope(id, payload=payload, delay=delay)
    return replace(envelope, unique=Unique(key=key, scope=scope, period=period, on_conflict=on_conflict))


def accept(lab: Lab, *envelopes: JobEnvelope) -> list[tuple[str, bool]]:
    """The answers, as pairs of an id and whether the job was created."""
    return [(answer.id, answer.created) for answer in lab.engine.accept(envelopes)]


class UniqueLaws:
    """The guarantees of unique keys and `reschedule`."""

    def test_a_second_job_with_the_key_is_not_stored(self, lab: Lab) -> None:
        assert accept(lab, unique(lab, "a")) == [("a", True)]
        with lab.unchanged():
            assert accept(lab, unique(lab, "b", payload={"other": 1})) == [("a", False)]
        assert accept(lab, unique(lab, "c", key="other"), lab.envelope("d")) == [("c", True), ("d", True)]

    def test_of_jobs_in_one_call_the_first_is_stored(self, lab: Lab) -> None:
        answers = accept(lab, unique(lab, "a"), lab.envelope("plain"), unique(lab, "b"), unique(lab, "c", key="z"))
        assert answers == [("a", True), ("plain", True), ("a", False), ("c", True)]
        assert sorted(lab.ids()) == ["a", "c", "plain"]

    def test_a_rejected_job_refuses_the_whole_call(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a"))
        free, again = (unique(lab, id, key="z", scope=UniqueScope.PERIOD, period=600) for id in ("free", "again"))
        with lab.unchanged(), pytest.raises(UniqueConflict) as caught:
            accept(lab, lab.envelope("plain"), free, unique(lab, "b", on_conflict=REJECT))
        assert (caught.value.key, caught.value.job_id) == ("k", "a")
        assert accept(lab, again) == [("again", True)]

    def test_while_it_waits_ends_with_the_start_of_the_job(self, lab: Lab) -> None:
        waiting = UniqueScope.WAITING
        accept(lab, unique(lab, "a", scope=waiting))
        assert accept(lab, unique(lab, "b", scope=waiting)) == [("a", False)]
        lease = lab.take("a")
        assert accept(lab, unique(lab, "c", scope=waiting)) == [("c", True)]
        lab.engine.nack(lease, 60)
        assert accept(lab, unique(lab, "d", scope=waiting)) == [("c", False)]

    def test_until_done_ends_with_the_job(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a"))
        lease = lab.take("a")
        assert accept(lab, unique(lab, "b")) == [("a", False)]
        lab.engine.nack(lease, 60)
        assert accept(lab, unique(lab, "c")) == [("a", False)]
        lab.advance(60)
        assert lab.engine.ack(lab.take("a"))
        assert accept(lab, unique(lab, "d")) == [("d", True)]
        lab.engine.cancel("d")
        assert accept(lab, unique(lab, "e")) == [("e", True)]

    def test_a_blocked_job_is_waiting(self, lab: Lab) -> None:
        hold(lab, "holder")
        accept(lab, unique(lab, "a", scope=UniqueScope.WAITING))
        lease = lab.take("a")
        lab.engine.enter([Entry(lease=lease, slots=(KEY,))])
        assert lab.view("a").state is JobState.BLOCKED
        assert accept(lab, unique(lab, "b", scope=UniqueScope.WAITING)) == [("a", False)]

    def test_a_period_ends_by_the_clock_alone(self, lab: Lab) -> None:
        scope = UniqueScope.PERIOD
        accept(lab, unique(lab, "a", scope=scope, period=600))
        assert lab.engine.ack(lab.take("a"))
        lab.engine.discard("a", states=[JobState.COMPLETED])
        lab.engine.prune()
        assert accept(lab, unique(lab, "b", scope=scope, period=600)) == [("a", False)]
        lab.advance(600)
        assert accept(lab, unique(lab, "c", scope=scope, period=600)) == [("c", True)]

    def test_repeating_a_call_answers_for_its_own_job(self, lab: Lab) -> None:
        first = unique(lab, "a")
        accept(lab, first)
        with lab.unchanged():
            assert accept(lab, first, first) == [("a", False), ("a", False)]
        assert lab.engine.ack(lab.take("a"))
        accept(lab, unique(lab, "b"))
        assert accept(lab, first) == [("a", False)]

    def test_an_id_conflict_takes_no_key(self, lab: Lab) -> None:
        lab.put("taken", payload=1)
        scope = UniqueScope.PERIOD
        with lab.unchanged(), pytest.raises(IdConflict):
            accept(lab, unique(lab, "a", scope=scope, period=600), unique(lab, "taken", key="z", payload=2))
        assert accept(lab, unique(lab, "b", scope=scope, period=600)) == [("b", True)]

    def test_a_failed_condition_takes_no_key(self, lab: Lab) -> None:
        first, second = (unique(lab, id, scope=UniqueScope.PERIOD, period=600) for id in ("a", "b"))
        with lab.unchanged(), pytest.raises(StateConflict):
            lab.engine.accept([first], writes=[Put(kind="mark", key="a", if_version=1)])
        assert accept(lab, second) == [("b", True)]

    def test_a_job_enqueued_by_a_settlement_can_be_unique(self, lab: Lab) -> None:
        lab.put("x", "y")
        ends = [Ack(lease=lease, enqueues=(unique(lab, f"after-{lease.id}"),)) for lease in lab.claim()]
        assert lab.engine.settle(ends) == [True, True]
        assert lab.ids(JobFilter(states=(JobState.PENDING,))) == ["after-x"]
        assert accept(lab, unique(lab, "b")) == [("after-x", False)]

    def test_a_finished_job_can_enqueue_the_next_one_with_its_own_key(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a", on_conflict=REJECT))
        end = Ack(lease=lab.take("a"), enqueues=(unique(lab, "b", on_conflict=REJECT),))
        assert lab.engine.settle([end]) == [True]
        assert lab.ids(JobFilter(states=(JobState.PENDING,))) == ["b"]
        assert accept(lab, unique(lab, "c")) == [("b", False)]

    def test_a_settlement_whose_unique_job_is_rejected_changes_nothing(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a", delay=60))
        lease = hold(lab, "x")
        block(lab, "y")
        end = Ack(lease=lease, leaves=(KEY.name,), enqueues=(unique(lab, "b", on_conflict=REJECT),))
        with lab.unchanged(), pytest.raises(UniqueConflict):
            lab.engine.settle([end])

    def test_an_id_that_is_free_again_takes_its_key(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a"))
        lab.engine.cancel("a")
        lab.engine.purge([JobState.CANCELLED])
        lab.advance(TOMBSTONE_S)
        assert accept(lab, unique(lab, "a", key="z")) == [("a", True)]
        assert accept(lab, unique(lab, "b", key="z")) == [("a", False)]

    def test_a_key_never_stops_a_retry_or_a_replay(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a", scope=UniqueScope.WAITING))
        lease = lab.take("a")
        accept(lab, unique(lab, "b", scope=UniqueScope.WAITING))
        assert lab.engine.nack(lease)
        assert sorted(one.id for one in lab.claim()) == ["a", "b"]
        lab.put("c")
        lab.engine.cancel("c")
        assert lab.engine.replay("c") == "replayed"

    def test_unused_keys_are_deleted(self, lab: Lab) -> None:
        accept(lab, unique(lab, "a"), unique(lab, "open", key="open"))
        lab.engine.ack(lab.take("a"))
        assert lab.engine.records.delete_unused() == 1
        assert accept(lab, unique(lab, "b"), unique(lab, "c", key="open")) == [("b", True), ("open", False)]

    def test_of_racing_callers_one_stores_its_job(self, lab: Lab) -> None:
        for game in range(5):
            flat = [answer for mine in at_once(lab, CROWD, partial(self._race, lab, game)) for answer in mine]
            assert sum(answer.created for answer in flat) == 2
            assert sorted(Counter(answer.id for answer in flat).values()) == [CROWD, CROWD]
            assert all(lab.engine.ack(lease) for lease in lab.claim())  # from now on, the keys exist

    def _race(self, lab: Lab, game: int, engine: Engine, number: int) -> list[Accepted]:
        """Every other caller asks for the two keys in the opposite order."""
        envelopes = [unique(lab, f"{key}{game}-{number}", key=key) for key in ("x", "y")]
        return engine.accept(envelopes[::-1] if number % 2 else envelopes)

    def test_a_rescheduled_job_gets_its_new_message_and_time(self, lab: Lab) -> None:
        lab.put("a", "other")
        new = lab.envelope("a", payload={"new": 1}, delay=60, priority=9, queue="mail")
        assert lab.engine.reschedule([new]) == [True]
        view = lab.view("a")
        assert (view.state, view.queue, view.priority) == (JobState.SCHEDULED, "mail", 9)
        assert [one.id for one in lab.claim()] == ["other"]
        lab.advance(60)
        assert lab.take("a", queue="mail").wire == new.wire

    def test_a_failed_job_can_be_rescheduled_and_keeps_its_attempts(self, lab: Lab) -> None:
        lab.put("a")
        lab.engine.nack(lab.take("a"), 600, lab.record())
        assert lab.engine.reschedule([lab.envelope("a", payload=2)]) == [True]
        lease = lab.take("a")
        assert (lease.attempts, len(lab.history("a").attempts)) == (1, 1)

    def test_a_blocked_job_can_be_rescheduled(self, lab: Lab) -> None:
        hold(lab, "holder")
        block(lab, "a")
        assert lab.engine.reschedule([lab.envelope("a", payload=2, delay=5)]) == [True]
        assert (lab.view("a").state, lab.view("a").blocked_on) == (JobState.SCHEDULED, None)
        assert lab.engine.slots()[0].waiting == 0

    def test_a_job_that_has_started_is_not_rescheduled(self, lab: Lab) -> None:
        lab.put("running", "done")
        leases = {lease.id: lease for lease in lab.claim()}
        lab.engine.ack(leases["done"])
        with lab.unchanged():
            new = [lab.envelope(id, payload=2) for id in ("running", "done", "unknown")]
            assert lab.engine.reschedule(new) == [False, False, False]
        assert lab.engine.ack(leases["running"])

    def test_the_id_of_a_rescheduled_job_belongs_to_its_new_content(self, lab: Lab) -> None:
        lab.put("a", payload=1)
        lab.engine.reschedule([lab.envelope("a", payload=2)])
        with pytest.raises(IdConflict):
            lab.engine.accept([lab.envelope("a", payload=1)])
        assert not lab.engine.accept([lab.envelope("a", payload=2)])[0].created

    def test_a_rescheduled_job_is_counted_once(self, lab: Lab) -> None:
        lab.put("a")
        lab.engine.reschedule([lab.envelope("a", queue="mail")])
        assert lab.engine.counts() == {"mail": {JobState.PENDING: 1}}
        assert lab.claim(queue=DEFAULT_QUEUE) == []
