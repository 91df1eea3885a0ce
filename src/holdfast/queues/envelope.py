"""`EnvelopeFactory`: a definition becomes one job: it gets its id, its defaults and its signature, once."""

import os
import secrets
import threading
from datetime import timedelta

from holdfast.clock import SYSTEM_CLOCK, Clock, from_us
from holdfast.codec import MAX_WIRE_BYTES, WIRE_VERSION, JobMessage, encode_message
from holdfast.definition.definition import JobDefinition, check_id
from holdfast.errors import PayloadRejected
from holdfast.queues.signing import Signer
from holdfast.values import JobEnvelope

DEFAULT_MAX_RETRIES = 3
DEFAULT_TIMEOUT_S = 300.0


class JobIds:
    """Makes ids: UUIDs of version 7 that keep the order in which they were made, also within a millisecond."""

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
        # A forked child would count on from its parent's number, and may have inherited a lock nobody will open.
        if self._pid != os.getpid():
            self._start()
        # A random start for each millisecond, then counting: as unique as drawing each, ordered, and much cheaper.
        # The start leaves the top bit of the 74 free, so that counting never carries into the time.
        millisecond = self._clock.now_us() // 1000
        with self._lock:
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                self._number = secrets.randbits(73)
            else:
                self._number += 1
            millisecond, number = self._millisecond, self._number
        bits = millisecond << 80 | 0x7 << 76 | number >> 62 << 64 | 0b10 << 62 | number & (1 << 62) - 1
        text = f"{bits:032x}"
        return f"{self._prefix}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class EnvelopeFactory:
    """Builds and signs. Retrying an enqueue repeats the same envelope, so one factory call is one job."""

    def __init__(
        self,
        signer: Signer,
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: JobIds | None = None,
        max_retries: int = DEFAULT_MAX_RETRIES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_bytes: int = MAX_WIRE_BYTES,
    ) -> None:
        self._signer = signer
        self._clock = clock
        self._ids = ids or JobIds(clock)
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def make(self, definition: JobDefinition, *, id: str | None = None) -> JobEnvelope:
        """One job of this definition, under the caller's id or a new one."""
        created_at = from_us(self._clock.now_us())
        job_id = check_id(id) if id is not None else self._ids()
        expires_at = definition.expires_at
        if definition.expires_in is not None:
            expires_at = created_at + timedelta(seconds=definition.expires_in)
        message = JobMessage(
            v=WIRE_VERSION,
            job=definition.handler,
            payload=definition.payload,
            queue=definition.queue,
            priority=definition.priority,
            max_retries=self._max_retries if definition.max_retries is None else definition.max_retries,
            name=definition.name,
            identifier=job_id,
            timeout=self._timeout_s if definition.timeout is None else definition.timeout,
            backoff=definition.backoff,
            created_at=created_at,
            expires_at=expires_at,
            trace_id=definition.trace_id,
            tags=definition.tags,
            meta=definition.meta,
            kid=self._signer.kid,
        )
        wire = self._signer.sign(encode_message(message))
        if len(wire) > self._max_bytes:
            raise PayloadRejected(
                f"job '{job_id}' is {len(wire):,} bytes on the wire, the limit is {self._max_bytes:,}: "
                "store the data elsewhere and send a reference to it"
            )
        return JobEnvelope(
            id=job_id,
            queue=definition.queue,
            job=definition.handler,
            priority=definition.priority,
            wire=wire,
            name=definition.name,
            trace_id=definition.trace_id,
            delay=definition.delay or 0.0,
            run_at=definition.run_at,
        )
