"""`EnvelopeFactory`: turns a definition into one job with an id, defaults and a signature."""

import os
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from holdfast.clock import SYSTEM_CLOCK, Clock, from_us
from holdfast.codec import MAX_WIRE_BYTES, WIRE_VERSION, JobMessage, encode_message
from holdfast.errors import PayloadRejected
from holdfast.queues.signing import Signer
from holdfast.values import DEFAULT_QUEUE, JobEnvelope, Unique, UniqueScope, traits_of

if TYPE_CHECKING:
    from holdfast.definition import JobDefinition

DEFAULT_IDEMPOTENCY_TTL_S: Final = 86_400.0
_TWELVE_DIGITS: Final = (1 << 48) - 1


class JobIds:
    """Generates ids: UUIDs of version 7 that sort in the order of their creation, even within a millisecond."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, prefix: str = "") -> None:
        self._clock = clock
        self._prefix = prefix
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._millisecond = 0
        self._number = 0

    def __call__(self) -> str:
        return self._id(*self._take(1))

    def many(self, count: int) -> list[str]:
        """This many consecutive ids."""
        millisecond, number = self._take(count)
        ids: list[str] = []
        while len(ids) < count:
            # Only the last twelve digits change, until they are used up.
            head = self._id(millisecond, number)[:-12]
            low = number & _TWELVE_DIGITS
            end = min(low + count - len(ids), _TWELVE_DIGITS + 1)
            ids += [f"{head}{last:012x}" for last in range(low, end)]
            number += end - low
        return ids

    def _take(self, count: int) -> tuple[int, int]:
        """The millisecond, and the first of this many numbers that only this call gets."""
        # A forked child would continue at its parent's number, and may have inherited a lock that is never released.
        if self._pid != os.getpid():
            self._start()
        # A random start for each millisecond, then counting: as unique as random numbers, ordered, and much cheaper.
        # The start leaves the top bit of the 74 free, so that counting never carries into the time.
        millisecond = self._clock.now_us() // 1000
        with self._lock:
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                number = int.from_bytes(os.urandom(10)) >> 7
            else:
                number = self._number + 1
            self._number = number + count - 1
            return self._millisecond, number

    def _id(self, millisecond: int, number: int) -> str:
        bits = millisecond << 80 | 0x7 << 76 | number >> 62 << 64 | 0b10 << 62 | number & (1 << 62) - 1
        text = f"{bits:032x}"
        return f"{self._prefix}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class JobDefaults(Struct, frozen=True, kw_only=True):
    """The settings that are fixed when a job is enqueued, for definitions that leave them out."""

    max_retries: int = 3
    timeout_s: float = 300.0
    idempotency_ttl_s: float = DEFAULT_IDEMPOTENCY_TTL_S
    queue: str = DEFAULT_QUEUE


USUAL_DEFAULTS: Final = JobDefaults()


class EnvelopeFactory:
    """Builds and signs envelopes. Retrying an enqueue repeats the same envelope, so one call is one job."""

    def __init__(
        self,
        signer: Signer,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: JobIds | None = None,
        defaults: JobDefaults = USUAL_DEFAULTS,
        max_bytes: int = MAX_WIRE_BYTES,
    ) -> None:
        self._signer = signer
        self._clock = clock
        self._ids = ids or JobIds(clock)
        self._defaults = defaults
        self._max_bytes = max_bytes

    def make(self, definition: "JobDefinition", *, id: str | None = None) -> JobEnvelope:
        """One job of this definition, with the caller's id or a new one."""
        job_id = _checked(id) if id is not None else self._ids()
        return self._make(definition, job_id, from_us(self._clock.now_us()))

    def make_many(self, definitions: "Sequence[JobDefinition]") -> list[JobEnvelope]:
        """One job of each definition, all created at the same time, with ids in the given order."""
        created_at = from_us(self._clock.now_us())
        ids = self._ids.many(len(definitions))
        return [self._make(one, job_id, created_at) for one, job_id in zip(definitions, ids, strict=True)]

    def _make(self, definition: "JobDefinition", job_id: str, created_at: datetime) -> JobEnvelope:
        defaults, expires_at = self._defaults, definition.expires_at
        if definition.expires_in is not None:
            expires_at = created_at + timedelta(seconds=definition.expires_in)
        queue = definition.queue or defaults.queue
        message = JobMessage(
            v=WIRE_VERSION,
            job=definition.handler,
            payload=definition.payload,
            queue=queue,
            max_retries=defaults.max_retries if definition.max_retries is None else definition.max_retries,
            identifier=job_id,
            timeout=defaults.timeout_s if definition.timeout is None else definition.timeout,
            created_at=created_at,
            backoff=definition.backoff,
            expires_at=expires_at,
            kid=self._signer.kid,
        )
        # Most jobs set none of these, and copying them costs more than all of the above.
        if definition.has_traits:
            message = msgspec.structs.replace(message, **traits_of(definition))
            if message.idempotency_key is not None and message.idempotency_ttl is None:
                message = msgspec.structs.replace(message, idempotency_ttl=defaults.idempotency_ttl_s)
            if definition.ledger_ttl is not None:
                message = msgspec.structs.replace(message, ledger_ttl=definition.ledger_ttl)
        unique = None
        if definition.unique is not False:
            unique = _unique(definition)
            message = msgspec.structs.replace(message, unique=unique.key)
        wire = self._signer.sign(encode_message(message))
        if len(wire) > self._max_bytes:
            raise PayloadRejected(
                f"job '{job_id}' is {len(wire):,} bytes on the wire; the limit is {self._max_bytes:,}: "
                "store the data elsewhere and send a reference to it"
            )
        return JobEnvelope(
            id=job_id,
            queue=queue,
            job=definition.handler,
            priority=definition.priority,
            wire=wire,
            name=definition.name,
            trace_id=definition.trace_id,
            delay=definition.delay or 0.0,
            run_at=definition.run_at,
            unique=unique,
            after=definition.after,
            on_parent_failure=definition.on_parent_failure,
        )


def _checked(job_id: str) -> str:
    from holdfast.definition.definition import check_id  # imported here: engines that only read need no definition

    return check_id(job_id)


def scoped_key(handler: str, key: str) -> str:
    """A key that belongs to a handler. The name of a handler has no slash, so keys of two handlers never coincide."""
    return f"{handler}/{key}"


def _unique(definition: "JobDefinition") -> Unique:
    """The unique key of a job, which belongs to its handler, and its scope."""
    key, scope = definition.unique, definition.unique_for
    if isinstance(key, bool):
        import hashlib  # imported here: few jobs need it

        # Members are sorted, because the same arguments can be written in any order.
        arguments = msgspec.json.encode(msgspec.json.decode(definition.payload), order="sorted")
        key = hashlib.blake2b(arguments, digest_size=16).hexdigest()
    return Unique(
        key=scoped_key(definition.handler, key),
        scope=scope if isinstance(scope, UniqueScope) else UniqueScope.PERIOD,
        period=0.0 if isinstance(scope, UniqueScope) else scope,
        on_conflict=definition.on_conflict,
    )
