"""Ownership: the slots that a job enters before it runs, and the mark that its work is done. Pure functions.

Both are derived from the signed message, so no worker has to look them up. A slot's name starts with its kind:
`idempotency:`, `instance:`, `key:` or `breaker:`.
"""

from typing import Protocol

import msgspec
from msgspec import Struct

from holdfast.codec import JobMessage
from holdfast.definition.definition import MAX_CONCURRENCY
from holdfast.errors import EnvelopeRejected
from holdfast.queues.envelope import DEFAULT_IDEMPOTENCY_TTL_S, scoped_key
from holdfast.values import MAX_SLOT_SIZE, AttemptRecord, Cell, Put, Slot

IDEMPOTENCY = "idempotency"


class FirstRun(Struct, frozen=True, kw_only=True):
    """The run that completed the work of an idempotency key: its job, and its result as JSON."""

    job_id: str
    result: bytes | None = None


class Keyed(Protocol):
    """The members of a job's message or view that its slots depend on."""

    @property
    def job(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def idempotency_key(self) -> str | None: ...
    @property
    def single_instance(self) -> bool: ...
    @property
    def concurrency_key(self) -> str | None: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def breaker(self) -> str | None: ...


def is_owned(message: Keyed) -> bool:
    """Whether the job has to enter slots. Most jobs do not."""
    return (
        message.single_instance
        or message.concurrency_key is not None
        or message.idempotency_key is not None
        or message.breaker is not None
    )


def check_owned(message: JobMessage) -> None:
    """Refuse keys and limits outside the range that a definition allows. Another program may have signed them."""
    try:
        slots_of(message)
        done_marks(message, None)
    except ValueError as problem:
        raise EnvelopeRejected(f"not a valid message: {problem}") from None
    if not 1 <= message.concurrency <= MAX_CONCURRENCY:
        raise EnvelopeRejected(f"not a valid message: a concurrency of {message.concurrency} is out of range")


def slots_of(message: Keyed) -> tuple[Slot, ...]:
    """The slots that the job enters before it runs."""
    slots: list[Slot] = []
    if message.idempotency_key is not None:
        key = _idempotency_key(message)
        slots.append(Slot(name=f"{IDEMPOTENCY}:{key}", unless=(IDEMPOTENCY, key)))
    if message.single_instance:
        slots.append(Slot(name=f"instance:{message.name or message.job}"))
    if message.concurrency_key is not None:
        slots.append(Slot(name=f"key:{message.concurrency_key}", size=message.concurrency))
    if message.breaker is not None:
        # There is no limit, unless the circuit opens and sets one.
        slots.append(Slot(name=breaker_slot(message.breaker), size=MAX_SLOT_SIZE))
    return tuple(slots)


def breaker_slot(name: str) -> str:
    """The slot of the jobs that wait while this circuit is open."""
    return f"breaker:{name}"


def slot_names_of(message: Keyed) -> tuple[str, ...]:
    """The names of the slots that the job leaves when it is settled."""
    return tuple(slot.name for slot in slots_of(message))


def done_marks(message: JobMessage, record: AttemptRecord | None) -> tuple[Put, ...]:
    """The write that marks the job's idempotency key as done, if it has one."""
    if message.idempotency_key is None:
        return ()
    first = FirstRun(job_id=message.identifier, result=None if record is None else record.result)
    ttl = DEFAULT_IDEMPOTENCY_TTL_S if message.idempotency_ttl is None else message.idempotency_ttl
    value = msgspec.msgpack.encode(first)
    return (Put(kind=IDEMPOTENCY, key=_idempotency_key(message), value=value, ttl=ttl),)


def first_run(cell: Cell) -> FirstRun:
    """The run that a mark records. A mark that cannot be read only proves that the work is done."""
    try:
        return msgspec.msgpack.decode(cell.value, type=FirstRun)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return FirstRun(job_id="")


def _idempotency_key(message: Keyed) -> str:
    """The key, qualified by its handler: another handler may use the same key for other work."""
    return scoped_key(message.job, message.idempotency_key or "")
