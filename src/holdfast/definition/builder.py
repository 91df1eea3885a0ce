"""`JobBuilder`: builds a `JobDefinition` in a chain of calls."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, Protocol, Self, Unpack

from holdfast.codec import encode_payload
from holdfast.definition.backoff import BackoffLike
from holdfast.definition.definition import Identified, JobDefinition, JobOptions, check_id, refuse_id
from holdfast.definition.durations import Duration
from holdfast.values import UniqueScope


class Enqueuer(Protocol):
    """An application that enqueues the jobs of a builder."""

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str: ...


class JobBuilder:
    """Collects the options of a job. `definition()` returns the immutable value, `dispatch()` enqueues the job."""

    def __init__(self, handler: str, payload: object = None, *, enqueuer: Enqueuer | None = None) -> None:
        self._definition = JobDefinition(handler=handler, payload=encode_payload(payload))
        self._enqueuer = enqueuer
        self._id: str | None = None

    def named(self, name: str) -> Self:
        """Name shown in lists and logs."""
        return self._with(name=name)

    def queue(self, queue: str) -> Self:
        return self._with(queue=queue)

    def priority(self, priority: int) -> Self:
        """0 to 9, higher first."""
        return self._with(priority=priority)

    def max_retries(self, max_retries: int) -> Self:
        """Retries after the first run, so N + 1 runs in all."""
        return self._with(max_retries=max_retries)

    def backoff(self, backoff: BackoffLike) -> Self:
        """A delay, a list of delays, a string such as `exponential:2s,max=10m`, or a `Backoff`."""
        return self._with(backoff=backoff)

    def timeout(self, timeout: Duration) -> Self:
        """Time limit for one attempt; 0 = no limit."""
        return self._with(timeout=timeout)

    def delay(self, delay: Duration) -> Self:
        """Wait at least this long before the first run."""
        return self._with(delay=delay)

    def run_at(self, run_at: datetime) -> Self:
        """Run no earlier than this; a time in the past means now."""
        return self._with(run_at=run_at)

    def expires(self, expires: Duration | datetime) -> Self:
        """Do not start the job after this time or duration; it is cancelled instead."""
        return self._with(expires=expires)

    def tags(self, *tags: str) -> Self:
        return self._with(tags=tags)

    def meta(self, meta: Mapping[str, object]) -> Self:
        """Notes for the handler, signed with the job."""
        return self._with(meta=meta)

    def trace_id(self, trace_id: str) -> Self:
        return self._with(trace_id=trace_id)

    def fence(self) -> Self:
        """Kill the run if its worker cannot prove that it still holds the lease, before another worker can claim it."""
        return self._with(fence=True)

    def idempotency_key(self, key: str, *, ttl: Duration | None = None) -> Self:
        """Run the job only if no job with this handler and key has completed within the TTL."""
        return self._with(idempotency_key=key) if ttl is None else self._with(idempotency_key=key, idempotency_ttl=ttl)

    def single_instance(self) -> Self:
        """Run at most one job with this name (without a name: of this handler) at a time; the others wait."""
        return self._with(single_instance=True)

    def concurrency_key(self, key: str, concurrency: int = 1) -> Self:
        """Run at most `concurrency` jobs with this key at a time; the others wait."""
        return self._with(concurrency_key=key, concurrency=concurrency)

    def rate_limit(self, rate: str | float, *, key: str | None = None) -> Self:
        """Start jobs of this handler, or those with this key, at most this often: `10/s`, `60/min`, `100/h`."""
        return self._with(rate_limit=rate) if key is None else self._with(rate_limit=rate, rate_key=key)

    def breaker(self, name: str) -> Self:
        """Wait while the circuit with this name is open, without using up an attempt."""
        return self._with(breaker=name)

    def unique(
        self,
        key: str | None = None,
        *,
        unique_for: Duration = UniqueScope.OPEN,
        on_conflict: Literal["ignore", "reject", "replace"] = "ignore",
    ) -> Self:
        """Enqueue the job only if no other job has this key; without a key, the same handler and payload."""
        return self._with(unique=True if key is None else key, unique_for=unique_for, on_conflict=on_conflict)

    def after(self, *parents: str | Identified, on_parent_failure: Literal["cancel", "run", "wait"] = "cancel") -> Self:
        """Run the job once all of these jobs, given as handles or ids, have completed."""
        return self._with(after=parents, on_parent_failure=on_parent_failure)

    def dead_letter_to(self, queue: str) -> Self:
        """Queue that receives a copy of the job if it dies, for the handler `dead-letter`."""
        return self._with(dead_letter_to=queue)

    def id(self, job_id: str) -> Self:
        """Job id. Enqueueing the same id and content again adds nothing."""
        self._id = check_id(job_id)
        return self

    def definition(self) -> JobDefinition:
        """The definition. A definition has no id, so it is an error if one was set."""
        refuse_id(self._id)
        return self._definition

    def definition_and_id(self) -> tuple[JobDefinition, str | None]:
        """The definition, and the id if one was set."""
        return self._definition, self._id

    def dispatch(self, *, tx: object | None = None) -> str:
        """Enqueue the job and return its id; with `tx`, in your own transaction."""
        if self._enqueuer is None:
            raise RuntimeError("this builder has no application; pass definition() to Holdfast.enqueue()")
        return self._enqueuer.enqueue(self._definition, id=self._id, tx=tx)

    def _with(self, **options: Unpack[JobOptions]) -> Self:
        self._definition = self._definition.with_options(**options)
        return self
