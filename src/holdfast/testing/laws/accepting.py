"""Accepting jobs: one job per id, all of a batch or nothing, every message stored byte for byte."""

from datetime import timedelta

import msgspec
import pytest

from holdfast.codec import MAX_WIRE_BYTES
from holdfast.definition import JobDefinition
from holdfast.errors import IdConflict
from holdfast.queues.contract import TOMBSTONE_S, LeasePolicy
from holdfast.testing.lab import Lab
from holdfast.values import (
    DEFAULT_PRIORITY,
    Accepted,
    CancelAnswer,
    DeadReason,
    JobEnvelope,
    JobState,
    LiveOutput,
    Outcome,
    Progress,
    ReplayAnswer,
)


class AcceptingLaws:
    """The guarantees of `accept` and `enqueue`."""

    def test_an_accepted_job_is_pending_with_all_its_fields(self, lab: Lab) -> None:
        lab.put("a", queue="mail", job="mail.send", name="Greeting", trace_id="t-1", priority=7, payload={"n": 1})
        view = lab.view("a")
        assert view.state is JobState.PENDING
        assert (view.id, view.queue, view.job, view.name) == ("a", "mail", "mail.send", "Greeting")
        assert (view.trace_id, view.priority) == ("t-1", 7)
        assert msgspec.json.decode(view.payload) == {"n": 1}
        assert (view.attempts, view.crashes, view.deliveries) == (0, 0, 0)
        assert abs(view.accepted_at - lab.now()) <= timedelta(seconds=lab.grain_s)
        assert view.due_at <= lab.now()
        assert [view.finished_at, view.lease_until, view.dead_reason, view.cancel_reason, view.last_error] == [None] * 5
        assert not view.cancel_requested
        assert lab.history("a").attempts == ()

    def test_accepting_nothing_changes_nothing(self, lab: Lab) -> None:
        lab.put("a")
        with lab.unchanged():
            assert lab.engine.accept([]) == []

    def test_answers_are_in_the_order_of_the_batch(self, lab: Lab) -> None:
        lab.put("b")
        answers = lab.engine.accept([lab.envelope(id) for id in ("c", "b", "a")])
        assert answers == [
            Accepted(id="c", created=True),
            Accepted(id="b", created=False),
            Accepted(id="a", created=True),
        ]

    def test_enqueue_stores_a_definition_under_a_new_id_each_time(self, lab: Lab) -> None:
        definition = JobDefinition(handler="mail.send")
        first, second = lab.engine.enqueue(definition), lab.engine.enqueue(definition)
        assert first != second
        assert sorted(lab.ids()) == sorted([first, second])

    def test_enqueue_stores_a_definition_under_the_callers_id(self, lab: Lab) -> None:
        assert lab.engine.enqueue(JobDefinition(handler="mail.send"), id="mine") == "mine"
        assert lab.view("mine").job == "mail.send"

    def test_the_same_id_with_the_same_content_is_one_job(self, lab: Lab) -> None:
        envelope = lab.envelope("a")
        assert lab.engine.accept([envelope]) == [Accepted(id="a", created=True)]
        with lab.unchanged():
            assert lab.engine.accept([envelope]) == [Accepted(id="a", created=False)]
        assert [lease.id for lease in lab.claim()] == ["a"]

    def test_the_same_content_created_again_is_the_same_job(self, lab: Lab) -> None:
        lab.put("a", trace_id="first")
        lab.advance(10)
        with lab.unchanged():
            assert lab.engine.accept([lab.envelope("a", trace_id="second", delay=99)]) == [
                Accepted(id="a", created=False)
            ]

    def test_the_same_id_with_other_content_is_refused(self, lab: Lab) -> None:
        lab.put("a", payload=1)
        with lab.unchanged(), pytest.raises(IdConflict) as refusal:
            lab.engine.accept([lab.envelope("a", payload=2)])
        assert refusal.value.job_id == "a"

    def test_an_id_belongs_to_one_queue(self, lab: Lab) -> None:
        lab.put("a", queue="mail")
        with lab.unchanged(), pytest.raises(IdConflict):
            lab.engine.accept([lab.envelope("a", queue="slow")])

    def test_a_refused_job_refuses_its_whole_batch(self, lab: Lab) -> None:
        lab.put("a", payload=1)
        for place in range(3):
            batch = [lab.envelope("b"), lab.envelope("c")]
            batch.insert(place, lab.envelope("a", payload=2))
            with lab.unchanged(), pytest.raises(IdConflict):
                lab.engine.accept(batch)
        assert [answer.created for answer in lab.engine.accept([lab.envelope("b"), lab.envelope("c")])] == [True, True]

    def test_the_same_id_twice_in_one_batch_is_one_job(self, lab: Lab) -> None:
        answers = lab.engine.accept([lab.envelope("a"), lab.envelope("b"), lab.envelope("a")])
        assert [answer.created for answer in answers] == [True, True, False]
        assert sorted(lab.ids()) == ["a", "b"]
        assert sorted(lease.id for lease in lab.claim()) == ["a", "b"]

    def test_one_id_with_two_contents_in_one_batch_is_refused(self, lab: Lab) -> None:
        with lab.unchanged(), pytest.raises(IdConflict):
            lab.engine.accept([lab.envelope("b"), lab.envelope("a", payload=1), lab.envelope("a", payload=2)])
        assert lab.engine.get("a") is None
        assert lab.engine.get("b") is None

    def test_ids_that_differ_only_in_case_are_different_jobs(self, lab: Lab) -> None:
        lab.put("job", payload=1)
        lab.put("Job", payload=2)
        assert sorted(lab.ids()) == ["Job", "job"]

    def test_the_same_id_is_one_job_in_every_state(self, lab: Lab) -> None:
        engine = lab.engine
        lab.put("completed", "dead", "failed", "processing")
        lab.put("cancelled", "scheduled", delay=999)
        assert engine.ack(lab.take("completed"))
        assert engine.abandon(lab.take("dead"), DeadReason.FAILED)
        assert engine.nack(lab.take("failed"), delay=999)
        lab.take("processing")
        assert engine.cancel("cancelled") is CancelAnswer.CANCELLED
        for state in ("completed", "dead", "failed", "processing", "cancelled", "scheduled"):
            assert lab.view(state).state == state
            with lab.unchanged():
                assert engine.accept([lab.envelope(state)]) == [Accepted(id=state, created=False)]
            with lab.unchanged(), pytest.raises(IdConflict):
                engine.accept([lab.envelope(state, payload="other")])

    def test_a_repeated_enqueue_does_not_revive_a_finished_job(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.ack(lab.take("a"))
        lab.engine.accept([lab.envelope("a")])
        assert lab.claim() == []

    def test_a_discarded_id_is_known_for_an_hour_and_then_free(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.abandon(lab.take("a"), DeadReason.FAILED)
        lab.advance(10 * TOMBSTONE_S)
        assert lab.engine.discard("a")
        self._is_known_for_an_hour_and_then_free(lab, "a")

    def test_a_purged_id_is_known_for_an_hour_and_then_free(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.ack(lab.take("a"))
        lab.advance(10 * TOMBSTONE_S)
        assert lab.engine.purge([JobState.COMPLETED]) == 1
        self._is_known_for_an_hour_and_then_free(lab, "a")

    def test_a_pruned_id_is_known_for_an_hour_after_its_job_finished_and_then_free(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.ack(lab.take("a"))
        assert lab.open(LeasePolicy(retain_completed_s=0)).prune() == 1
        self._is_known_for_an_hour_and_then_free(lab, "a")

    def _is_known_for_an_hour_and_then_free(self, lab: Lab, id: str) -> None:
        engine = lab.engine
        lab.advance(TOMBSTONE_S - lab.grain_s)
        engine.prune()
        assert engine.get(id) is None
        assert engine.accept([lab.envelope(id)]) == [Accepted(id=id, created=False)]
        with pytest.raises(IdConflict):
            engine.accept([lab.envelope("innocent"), lab.envelope(id, payload="other")])
        assert lab.ids() == []
        assert lab.claim() == []
        assert engine.counts() == {}
        assert engine.cancel(id) is CancelAnswer.UNKNOWN
        assert engine.replay(id) is ReplayAnswer.UNKNOWN
        assert not engine.discard(id)
        lab.advance(2 * lab.grain_s)
        engine.prune()
        assert engine.accept([lab.envelope(id, payload="other")]) == [Accepted(id=id, created=True)]
        assert lab.view(id).state is JobState.PENDING
        assert lab.history(id).attempts == ()
        assert lab.take(id).delivery == 1

    def test_an_id_becomes_free_without_pruning(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.abandon(lab.take("a"), DeadReason.FAILED)
        assert lab.engine.discard("a")
        lab.advance(TOMBSTONE_S + lab.grain_s)
        assert lab.engine.accept([lab.envelope("a", payload="other")]) == [Accepted(id="a", created=True)]
        assert msgspec.json.decode(lab.view("a").payload) == "other"

    def test_a_new_job_under_a_freed_id_inherits_nothing(self, lab: Lab) -> None:
        lab.put("a")
        former = lab.take("a")
        assert lab.engine.report_progress([(former, Progress(done=1, total=2, message="half"))]) == [True]
        record = lab.record(Outcome.FAILED, output="out of the former")
        assert lab.engine.abandon(former, DeadReason.FAILED, record)
        assert lab.engine.discard("a")
        lab.advance(TOMBSTONE_S + lab.grain_s)
        lab.put("a", payload="other")
        lease = lab.take("a")
        assert lab.view("a").progress is None
        record = lab.record()
        assert lab.engine.ack(lease, record)
        assert [past.record for past in lab.history("a").attempts] == [record]

    def test_a_job_accepted_after_a_purge_inherits_nothing(self, lab: Lab) -> None:
        """An engine may reuse the number of a deleted job."""
        lab.put("a")
        former = lab.take("a")
        assert lab.engine.report_progress([(former, Progress(done=1, total=2, message="half"))]) == [True]
        assert lab.engine.report_output([(former, LiveOutput(text="halfway"))]) == [True]
        assert lab.engine.abandon(former, DeadReason.FAILED, lab.record(Outcome.FAILED))
        assert lab.engine.purge([JobState.DEAD]) == 1
        lab.advance(TOMBSTONE_S + lab.grain_s)
        lab.engine.prune()
        lab.put("b")
        lab.take("b")
        history = lab.history("b")
        assert (history.attempts, history.live_output, history.job.progress) == ((), None, None)

    def test_a_delay_makes_a_job_scheduled_until_then(self, lab: Lab) -> None:
        lab.put("a", delay=30)
        assert lab.view("a").state is JobState.SCHEDULED
        self._is_due_in(lab, "a", 30)
        lab.advance(30 - lab.grain_s)
        assert lab.view("a").state is JobState.SCHEDULED
        lab.advance(lab.grain_s)
        self._let_a_coarse_engine_catch_up(lab)
        assert lab.view("a").state is JobState.PENDING

    def test_a_run_at_makes_a_job_scheduled_until_then(self, lab: Lab) -> None:
        lab.put("a", run_at=lab.now() + timedelta(seconds=30))
        assert lab.view("a").state is JobState.SCHEDULED
        self._is_due_in(lab, "a", 30)
        lab.advance(30)
        self._let_a_coarse_engine_catch_up(lab)
        assert lab.view("a").state is JobState.PENDING

    def _is_due_in(self, lab: Lab, id: str, seconds: float) -> None:
        late_s = (lab.view(id).due_at - lab.now()).total_seconds() - seconds
        assert -lab.grain_s <= late_s <= lab.engine.capabilities.delay_resolution_s

    def _let_a_coarse_engine_catch_up(self, lab: Lab) -> None:
        if lab.engine.capabilities.delay_resolution_s > lab.grain_s:
            lab.advance(lab.engine.capabilities.delay_resolution_s)

    def test_the_message_is_delivered_byte_for_byte(self, lab: Lab) -> None:
        payload = {"text": "Zoë 漢字 🧷 \u2028 \x00 \" \\ ' ; -- $1 %s {}", "n": 0.1, "big": 2**53 + 1, "none": None}
        envelope = lab.envelope("a", payload=payload, name="Grüße 🧷", trace_id="spur-ß")
        lab.engine.accept([envelope])
        lease = lab.take("a")
        assert lease.wire == envelope.wire
        assert (lab.view("a").name, lab.view("a").trace_id) == ("Grüße 🧷", "spur-ß")
        assert msgspec.json.decode(lab.view("a").payload) == payload

    def test_the_message_is_the_same_on_every_delivery_and_in_every_handle(self, lab: Lab) -> None:
        envelope = lab.envelope("a")
        lab.engine.accept([envelope])
        lease = lab.take("a")
        assert lab.engine.nack(lease)
        again = lab.open().fetch(envelope.queue)
        assert again is not None
        assert again.wire == lease.wire == envelope.wire

    def test_an_unreadable_message_is_stored_and_delivered(self, lab: Lab) -> None:
        wire = bytes(range(256))
        unreadable = JobEnvelope(id="a", queue="default", job="who.knows", priority=DEFAULT_PRIORITY, wire=wire)
        lab.engine.accept([unreadable])
        assert lab.engine.accept([unreadable]) == [Accepted(id="a", created=False)]
        with pytest.raises(IdConflict):
            lab.engine.accept([msgspec.structs.replace(unreadable, wire=wire + b"x")])
        assert lab.view("a").job == "who.knows"
        lease = lab.take("a")
        assert lease.wire == wire
        assert lab.engine.abandon(lease, DeadReason.UNDECODABLE)
        assert lab.ids() == ["a"]

    def test_a_message_of_the_maximum_size_is_delivered_unchanged(self, lab: Lab) -> None:
        room = min(lab.engine.capabilities.max_wire_bytes, MAX_WIRE_BYTES) - len(lab.envelope("a", payload="").wire)
        envelope = lab.envelope("a", payload="x" * room)
        lab.engine.accept([envelope])
        assert lab.take("a").wire == envelope.wire

    def test_every_handle_sees_what_another_accepted(self, lab: Lab) -> None:
        other = lab.open()
        lab.put("a")
        assert other.get("a") == lab.engine.get("a")
        lease = other.fetch("default")
        assert lease is not None
        assert lab.view("a").state is JobState.PROCESSING
        assert lab.engine.ack(lease)
        history = other.get("a")
        assert history is not None
        assert history.job.state is JobState.COMPLETED

    def test_closing_a_handle_leaves_jobs_and_leases_as_they_are(self, lab: Lab) -> None:
        other = lab.open()
        lab.put("a", "b")
        lease = other.fetch("default")
        assert lease is not None
        with lab.unchanged():
            other.close()
        assert lab.engine.ack(lease)

    def test_creating_the_schema_again_changes_nothing(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.take("a")
        with lab.unchanged():
            lab.engine.create_schema()
            lab.open()
