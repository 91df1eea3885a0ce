"""`JobBuilder`: the fluent, throw-away way to write a `JobDefinition` down."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol, Unpack

from holdfast.codec import encode_payload
from holdfast.definition.backoff import BackoffLike
from holdfast.definition.definition import JobDefinition, JobOptions, check_id, refuse_id


class Enqueuer(Protocol):
    """Whoever can enqueue what a builder has built."""

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str: ...


class JobBuilder:
    """Collects options; `definition()` makes the immutable value, `dispatch()` enqueues it."""

    def __init__(self, handler: str, payload: object = None, *, enqueuer: Enqueuer | None = None) -> None:
        self._definition = JobDefinition(handler=handler, payload=encode_payload(payload))
        self._enqueuer = enqueuer
        self._id: str | None = None

    def named(self, name: str) -> "JobBuilder":
        """The name people see in lists and logs."""
        return self._set(name=name)

    def queue(self, queue: str) -> "JobBuilder":
        return self._set(queue=queue)

    def priority(self, priority: int) -> "JobBuilder":
        """0 to 9, higher first."""
        return self._set(priority=priority)

    def max_retries(self, max_retries: int) -> "JobBuilder":
        """Retries after the first run: N + 1 runs in all."""
        return self._set(max_retries=max_retries)

    def backoff(self, backoff: BackoffLike) -> "JobBuilder":
        """A `Backoff`, a text such as `fixed:10s`, or a list of delays in seconds."""
        return self._set(backoff=backoff)

    def timeout(self, timeout: float | timedelta) -> "JobBuilder":
        """The longest one attempt may take; 0 for no limit."""
        return self._set(timeout=timeout)

    def delay(self, delay: float | timedelta) -> "JobBuilder":
        """Not before that much time has passed."""
        return self._set(delay=delay)

    def run_at(self, run_at: datetime) -> "JobBuilder":
        """Not before that instant; one in the past means now."""
        return self._set(run_at=run_at)

    def expires(self, expires: float | timedelta | datetime) -> "JobBuilder":
        """Not started after that span or instant: it is cancelled instead."""
        return self._set(expires=expires)

    def tags(self, *tags: str) -> "JobBuilder":
        return self._set(tags=tags)

    def meta(self, meta: Mapping[str, object]) -> "JobBuilder":
        """Your own notes, signed and handed to the handler."""
        return self._set(meta=meta)

    def trace_id(self, trace_id: str) -> "JobBuilder":
        return self._set(trace_id=trace_id)

    def fence(self) -> "JobBuilder":
        """Never run by a worker that cannot prove its lease: such a run is killed before the job can pass on."""
        return self._set(fence=True)

    def id(self, job_id: str) -> "JobBuilder":
        """The id to enqueue under: the same id with the same content is one job, however often it is enqueued."""
        self._id = check_id(job_id)
        return self

    def definition(self) -> JobDefinition:
        """What was built, without an id: one that was given is an error here."""
        refuse_id(self._id)
        return self._definition

    def definition_and_id(self) -> tuple[JobDefinition, str | None]:
        """What was built, and the id to enqueue it under, if one was given."""
        return self._definition, self._id

    def dispatch(self, *, tx: object | None = None) -> str:
        """Enqueue the job and return its id; with `tx`, in that transaction of yours."""
        if self._enqueuer is None:
            raise RuntimeError("this builder belongs to no application; pass definition() to Holdfast.enqueue()")
        return self._enqueuer.enqueue(self._definition, id=self._id, tx=tx)

    def _set(self, **options: Unpack[JobOptions]) -> "JobBuilder":
        self._definition = self._definition.with_options(**options)
        return self
