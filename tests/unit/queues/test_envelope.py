"""One definition becomes one job: an id, the defaults, the signature, once."""

import threading
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, strategies as st

from holdfast.clock import ManualClock, from_us
from holdfast.codec import MAX_WIRE_BYTES, encode_payload
from holdfast.definition import JobDefinition
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.queues.envelope import EnvelopeFactory, JobDefaults, JobIds
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Backoff

RING = Keyring([SigningKey(b"the key of these tests, 32 bytes", "k1")])
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
MAIL = JobDefinition(handler="mail.send", payload=encode_payload({"to": "ada"}))


def millisecond_of(job_id: str) -> int:
    return UUID(job_id).int >> 80


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NEW_YEAR)


@pytest.fixture
def factory(clock: ManualClock) -> EnvelopeFactory:
    return EnvelopeFactory(RING, clock=clock, defaults=JobDefaults(max_retries=4, timeout_s=77.0))


# Ids


def test_an_id_is_a_uuid_of_version_seven_with_its_millisecond(clock: ManualClock) -> None:
    ids = JobIds(clock)
    for _ in range(200):
        made = UUID(ids())
        assert (made.version, made.variant) == (7, RFC_4122)
        assert str(made) == str(made).lower()
        assert made.int >> 80 == clock.now_us() // 1000
        clock.advance(0.0007)


def test_ids_keep_the_order_in_which_they_were_made(clock: ManualClock) -> None:
    ids, made = JobIds(clock), list[str]()
    for number in range(3000):
        made.append(ids())
        if number % 100 == 0:
            clock.advance(0.001)
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_clock_set_back_neither_repeats_nor_reorders_ids(clock: ManualClock) -> None:
    ids = JobIds(clock)
    before = [ids() for _ in range(10)]
    clock.set_back(3600)
    after = [ids() for _ in range(10)]
    assert before + after == sorted({*before, *after})


@given(st.integers(0, 3) | st.integers(0, 2**80), st.booleans())
def test_the_random_part_never_reaches_into_time_version_or_variant(number: int, from_the_top: bool) -> None:
    # The generator draws its start; here it is given one, to see both ends of what it can draw.
    def drawn(size: int) -> bytes:
        start = number % (1 << 8 * size)
        return ((1 << 8 * size) - 1 - start if from_the_top else start).to_bytes(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.urandom", drawn)
        clock = ManualClock(NEW_YEAR)
        ids = JobIds(clock)
        made = [ids() for _ in range(9)]
    assert made == sorted(set(made))
    for one in made:
        assert (UUID(one).version, UUID(one).variant) == (7, RFC_4122)
        assert millisecond_of(one) == clock.now_us() // 1000


@given(st.sampled_from([0, 1 << 48, 1 << 62, 5 << 62, (1 << 73) - 1]), st.integers(0, 9), st.integers(0, 9))
def test_many_ids_are_those_that_would_be_made_one_by_one(edge: int, before: int, number: int) -> None:
    def drawn(size: int) -> bytes:
        return (max(0, edge - before) << 7).to_bytes(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.urandom", drawn)
        singly, at_once = JobIds(ManualClock(NEW_YEAR), prefix="p-"), JobIds(ManualClock(NEW_YEAR), prefix="p-")
        expected = [singly() for _ in range(number + 2)]
        assert [at_once(), *at_once.many(number), at_once()] == expected


def test_each_millisecond_starts_at_random(clock: ManualClock) -> None:
    randoms: set[int] = set()
    for _ in range(100):
        randoms.add(UUID(JobIds(clock)()).int & ((1 << 62) - 1))
    assert len(randoms) == 100


def test_threads_never_make_the_same_id() -> None:
    ids, made = JobIds(), list[str]()
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        made.extend([ids() for _ in range(500)])
        made.extend([id for _ in range(50) for id in ids.many(10)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 8000


def test_a_prefix_stands_before_the_id(clock: ManualClock) -> None:
    made = JobIds(clock, prefix="sync-")()
    assert made.startswith("sync-")
    assert UUID(made.removeprefix("sync-")).version == 7


# Envelopes


def test_the_message_has_every_field_of_the_definition(factory: EnvelopeFactory) -> None:
    definition = JobDefinition(
        handler="mail.send",
        payload=encode_payload({"to": "ada"}),
        name="welcome",
        queue="mail",
        priority=8,
        max_retries=1,
        backoff=Backoff(delays=(1.0,)),
        timeout=5.0,
        delay=60.0,
        expires_at=NEW_YEAR + timedelta(days=1),
        tags=("a", "b"),
        meta=encode_payload({"k": "v"}),
        trace_id="t-1",
        fence=True,
    )
    envelope = factory.make(definition, id="job1")
    message = RING.open(envelope.wire)
    assert message.job == envelope.job == "mail.send"
    assert message.queue == envelope.queue == "mail"
    assert message.priority == envelope.priority == 8
    assert message.name == envelope.name == "welcome"
    assert message.trace_id == envelope.trace_id == "t-1"
    assert message.identifier == envelope.id == "job1"
    assert message.fence
    assert (message.max_retries, message.timeout, message.backoff) == (1, 5.0, Backoff(delays=(1.0,)))
    assert (message.expires_at, message.tags) == (NEW_YEAR + timedelta(days=1), ("a", "b"))
    assert (bytes(message.payload), bytes(message.meta)) == (b'{"to":"ada"}', b'{"k":"v"}')
    assert (message.v, message.kid, message.created_at) == (1, "k1", NEW_YEAR)
    assert (envelope.delay, envelope.run_at) == (60.0, None)


def test_making_many_at_once_makes_of_each_what_making_it_alone_would(factory: EnvelopeFactory) -> None:
    definitions = [
        MAIL,
        MAIL.with_options(meta={"k": "v"}),
        MAIL.with_options(fence=True),
        MAIL.with_options(meta={"k": "v"}, fence=True, tags=["a"], trace_id="t-1"),
        MAIL.with_options(expires=5, delay=3, priority=9, timeout=0),
        MAIL.with_options(run_at=NEW_YEAR, queue="mail", name="welcome", max_retries=0),
    ]
    made = factory.make_many(definitions)
    assert [envelope.id for envelope in made] == sorted({envelope.id for envelope in made})
    assert made == [
        factory.make(definition, id=envelope.id) for definition, envelope in zip(definitions, made, strict=True)
    ]
    assert factory.make_many([]) == []


def test_what_the_definition_leaves_open_is_fixed_at_enqueue(factory: EnvelopeFactory) -> None:
    message = RING.open(factory.make(MAIL).wire)
    assert (message.max_retries, message.timeout) == (4, 77.0)
    message = RING.open(factory.make(MAIL.with_options(max_retries=0, timeout=0)).wire)
    assert (message.max_retries, message.timeout) == (0, 0.0)


def test_the_defaults_are_three_retries_and_five_minutes() -> None:
    message = RING.open(EnvelopeFactory(RING).make(MAIL).wire)
    assert (message.max_retries, message.timeout) == (3, 300.0)


def test_a_span_until_expiry_counts_from_the_moment_of_enqueueing(factory: EnvelopeFactory, clock: ManualClock) -> None:
    clock.advance(10)
    message = RING.open(factory.make(MAIL.with_options(expires=5)).wire)
    assert message.created_at == from_us(clock.now_us())
    assert message.expires_at == NEW_YEAR + timedelta(seconds=15)


def test_a_run_at_stays_an_instant(factory: EnvelopeFactory) -> None:
    later = NEW_YEAR + timedelta(hours=1)
    envelope = factory.make(MAIL.with_options(run_at=later))
    assert (envelope.run_at, envelope.delay) == (later, 0.0)


def test_every_call_is_another_job_unless_the_caller_names_it(factory: EnvelopeFactory) -> None:
    assert factory.make(MAIL).id != factory.make(MAIL).id
    assert factory.make(MAIL, id="mine").wire == factory.make(MAIL, id="mine").wire


def test_a_given_id_is_checked(factory: EnvelopeFactory) -> None:
    with pytest.raises(DefinitionError, match="is not a valid job id"):
        factory.make(MAIL, id="not good")
    with pytest.raises(DefinitionError, match="is not a valid job id"):
        factory.make(MAIL, id="")


def test_the_whole_message_counts_towards_the_limit(clock: ManualClock) -> None:
    factory = EnvelopeFactory(RING, clock=clock)
    around = len(factory.make(MAIL.with_payload(""), id="big").wire)
    fits = MAIL.with_payload("x" * (MAX_WIRE_BYTES - around))
    assert len(factory.make(fits, id="big").wire) == MAX_WIRE_BYTES
    with pytest.raises(PayloadRejected, match="job 'big' is 1,048,577 bytes on the wire; the limit is 1,048,576"):
        factory.make(MAIL.with_payload("x" * (MAX_WIRE_BYTES - around + 1)), id="big")


def test_an_engine_with_a_smaller_limit_refuses_earlier(clock: ManualClock) -> None:
    factory = EnvelopeFactory(RING, clock=clock, max_bytes=65_536)
    with pytest.raises(PayloadRejected, match="the limit is 65,536"):
        factory.make(MAIL.with_payload("x" * 65_536))
