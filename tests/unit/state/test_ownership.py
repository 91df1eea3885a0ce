"""Which slots a job enters, and the mark that its work is done."""

import msgspec
import pytest

from holdfast.codec import JobMessage
from holdfast.definition import JobBuilder
from holdfast.queues.envelope import EnvelopeFactory, JobDefaults
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.state.ownership import FirstRun, done_marks, first_run, is_owned, slot_names_of, slots_of
from holdfast.values import Ack, AttemptRecord, Cell, JobLease, Nack, Outcome, Settlement, Slot
from holdfast.worker.verdict import carrying

RING = Keyring([SigningKey(b"a key for the tests of ownership")])
RECORD = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2, result=b'{"paid": true}')


def message(builder: JobBuilder, **defaults: float) -> JobMessage:
    """The message of a job, as a worker reads it."""
    factory = EnvelopeFactory(RING, defaults=JobDefaults(**defaults))  # type: ignore[arg-type]
    return RING.open(factory.make(builder.definition(), id="j1").wire)


def lease() -> JobLease:
    return msgspec.convert(
        {
            "id": "j1",
            "queue": "default",
            "wire": b"",
            "token": 1,
            "owner_token": "ff",
            "ttl_s": 60.0,
            "claimed_at": "2026-11-16T12:00:00Z",
            "fence_at": 0.0,
            "delivery": 1,
        },
        JobLease,
    )


def test_a_plain_job_has_no_slots() -> None:
    plain = message(JobBuilder("send").fence())
    assert not is_owned(plain)
    assert slots_of(plain) == ()
    assert done_marks(plain, RECORD) == ()


@pytest.mark.parametrize(
    ("builder", "slot"),
    [
        (JobBuilder("send").single_instance(), Slot(name="instance:send")),
        (JobBuilder("send").named("nightly").single_instance(), Slot(name="instance:nightly")),
        (JobBuilder("send").concurrency_key("customer-7"), Slot(name="key:customer-7")),
        (JobBuilder("send").breaker("stripe"), Slot(name="breaker:stripe", size=2**31 - 2)),
        (JobBuilder("send").concurrency_key("customer-7", 3), Slot(name="key:customer-7", size=3)),
        (
            JobBuilder("send").idempotency_key("order-7"),
            Slot(name="idempotency:send/order-7", unless=("idempotency", "send/order-7")),
        ),
    ],
)
def test_each_option_is_one_slot(builder: JobBuilder, slot: Slot) -> None:
    assert is_owned(message(builder))
    assert slots_of(message(builder)) == (slot,)


def test_a_job_can_have_all_of_them() -> None:
    builder = JobBuilder("send").single_instance().concurrency_key("c").idempotency_key("i")
    assert slot_names_of(message(builder)) == ("idempotency:send/i", "instance:send", "key:c")


def test_a_mark_has_the_result_and_its_own_lifetime_or_that_of_the_settings() -> None:
    keyed = JobBuilder("send").idempotency_key("order-7")
    [mark] = done_marks(message(keyed, idempotency_ttl_s=77.0), RECORD)
    assert (mark.kind, mark.key, mark.ttl) == ("idempotency", "send/order-7", 77.0)
    cell = Cell(kind=mark.kind, key=mark.key, value=mark.value, version=1)
    assert first_run(cell) == FirstRun(job_id="j1", result=RECORD.result)
    [mark] = done_marks(message(keyed.idempotency_key("order-7", ttl=5)), RECORD)
    assert mark.ttl == 5.0


def test_a_mark_that_cannot_be_read_still_says_that_the_work_is_done() -> None:
    assert first_run(Cell(kind="idempotency", key="k", value=b"\xff", version=1)) == FirstRun(job_id="")


def test_every_settlement_leaves_and_only_a_success_marks_the_key() -> None:
    keyed = message(JobBuilder("send").idempotency_key("k").single_instance())
    names = ("idempotency:send/k", "instance:send")
    done, failed = carrying(Ack(lease=lease(), record=RECORD), keyed), carrying(Nack(lease=lease()), keyed)
    assert (done.leaves, [write.key for write in done.writes]) == (names, ["send/k"])
    assert (failed.leaves, failed.writes) == (names, ())


def test_a_plain_or_a_skipped_job_carries_nothing() -> None:
    plain: Settlement = Ack(lease=lease(), record=RECORD)
    assert carrying(plain, message(JobBuilder("send"))) is plain
    assert carrying(plain, None) is plain
    skipped = Ack(lease=lease(), record=msgspec.structs.replace(RECORD, outcome=Outcome.SKIPPED))
    assert carrying(skipped, message(JobBuilder("send").idempotency_key("k"))) is skipped


def test_the_keys_of_two_handlers_are_never_the_same() -> None:
    one, other = JobBuilder("order").idempotency_key("refund:7"), JobBuilder("order:refund").idempotency_key("7")
    assert slot_names_of(message(one)) != slot_names_of(message(other))
