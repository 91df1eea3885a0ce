"""The operations whose work is counted, each on batches of several sizes."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct

from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.contract import Engine
from holdfast.values import Ack, AttemptRecord, ErrorInfo, JobLease, Nack, Outcome

# The last two leave the same remainder in chunks of 100, so that they differ only in the work for each job.
SIZES = (1, 10, 110)
BULK_SIZES = (*SIZES, 1010)
ONCE = (1,)
# Not a multiple of any pause: the last one is then cut off, whichever way the sums of the pauses are rounded.
WAIT_S = 9.998
RETRY_AFTER_S = 30.0

Act = Callable[[], object]


class Operation(Struct, frozen=True):
    """One call of an engine. `prepare` does what comes before it, and returns the call that is counted."""

    name: str
    sizes: Sequence[int]
    prepare: Callable[[Engine, str, int], Act]


def _wait(engine: Engine, queue: str, _: int) -> Act:
    return lambda: engine.wait_for_work([queue], WAIT_S)


def _claim_nothing(engine: Engine, queue: str, _: int) -> Act:
    return lambda: engine.claim(queue, SIZES[1], owner_token=_token(queue, "idle"))


def _enqueue(engine: Engine, queue: str, size: int) -> Act:
    definitions = _definitions(queue, size)
    return lambda: engine.accept(engine.envelopes.make_many(definitions))


def _exchange(engine: Engine, queue: str, size: int) -> Act:
    return _exchange_of(engine, queue, size, _record(engine))


def _exchange_results(engine: Engine, queue: str, size: int) -> Act:
    return _exchange_of(engine, queue, size, _record(engine, result=b'{"sent":true}'))


def _exchange_of(engine: Engine, queue: str, size: int, record: AttemptRecord) -> Act:
    """Acknowledge a batch and claim another one of the same size."""
    acks = [Ack(lease=lease, record=record) for lease in _leases(engine, queue, size, waiting=size)]
    return lambda: engine.exchange(acks, queue, size, owner_token=_token(queue, "next"))


def _settle_failures(engine: Engine, queue: str, size: int) -> Act:
    error = ErrorInfo(type="ValueError", message="no such recipient", traceback="Traceback (most recent call last):")
    record = _record(engine, outcome=Outcome.FAILED, error=error)
    nacks = [Nack(lease=lease, delay=RETRY_AFTER_S, record=record) for lease in _leases(engine, queue, size)]
    return lambda: engine.settle(nacks)


def _renew(engine: Engine, queue: str, size: int) -> Act:
    leases = _leases(engine, queue, size)
    return lambda: engine.renew_many(leases)


def _lease_states(engine: Engine, queue: str, size: int) -> Act:
    leases = _leases(engine, queue, size)
    return lambda: engine.lease_states(leases)


def enqueue(engine: Engine, queue: str, size: int) -> None:
    """Fill a queue."""
    answers = engine.accept(engine.envelopes.make_many(_definitions(queue, size)))
    assert all(answer.created for answer in answers)


def _leases(engine: Engine, queue: str, size: int, *, waiting: int = 0) -> list[JobLease]:
    """A claimed batch, with `waiting` more jobs in the queue."""
    enqueue(engine, queue, size + waiting)
    leases = engine.claim(queue, size, owner_token=_token(queue, "first"))
    assert len(leases) == size
    return leases


def _definitions(queue: str, size: int) -> list[JobDefinition]:
    payload = encode_payload({"to": "ada@example.org"})
    return [JobDefinition(handler="mail.send", payload=payload, queue=queue)] * size


def _record(engine: Engine, outcome: Outcome = Outcome.SUCCEEDED, **rest: Any) -> AttemptRecord:
    now_us = engine.clock.now_us()
    return AttemptRecord(outcome=outcome, started_us=now_us, ended_us=now_us, **rest)


def _token(queue: str, purpose: str) -> str:
    """A token that is the same in every run: its bytes can change the length of a statement."""
    return sha256(f"{queue} {purpose}".encode()).hexdigest()[:32]


# Waiting comes first: later, a connection that listens for work would read announcements from other operations.
OPERATIONS = (
    Operation("wait", ONCE, _wait),
    Operation("claim_nothing", ONCE, _claim_nothing),
    Operation("enqueue", BULK_SIZES, _enqueue),
    Operation("exchange", SIZES, _exchange),
    Operation("exchange_results", SIZES, _exchange_results),
    Operation("settle_failures", SIZES, _settle_failures),
    Operation("renew", SIZES, _renew),
    Operation("lease_states", SIZES, _lease_states),
)
