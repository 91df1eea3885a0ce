"""`JobBuilder`: builds a `JobDefinition` in a chain of calls."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, Protocol, Unpack

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

    def named(self, name: str) -> "JobBuilder":
        """Name shown in lists and logs."""
        return self._set(name=name)

    def queue(self, queue: str) -> "JobBuilder":
        return self._set(queue=queue)

    def priority(self, priority: int) -> "JobBuilder":
        """0 to 9, higher first."""
        return self._set(priority=priority)

    def max_retries(self, max_retries: int) -> "JobBuilder":
        """Retries after the first run, so N + 1 runs in all."""
        return self._set(max_retries=max_retries)

    def backoff(self, backoff: BackoffLike) -> "JobBuilder":
        """A delay, a list of delays, a string such as `exponential:2s,max=10m`, or a `Backoff`."""
        return self._set(backoff=backoff)

    def timeout(self, timeout: Duration) -> "JobBuilder":
        """Time limit for one attempt; 0 = no limit."""
        return self._set(timeout=timeout)

    def delay(self, delay: Duration) -> "JobBuilder":
        """Wait at least this long before the first run."""
        return self._set(delay=delay)

    def run_at(self, run_at: datetime) -> "JobBuilder":
        """Run no earlier than this; a time in the past means now."""
        return self._set(run_at=run_at)

    def expires(self, expires: Duration | datetime) -> "JobBuilder":
        """Do not start the job after this time or duration; it is cancelled instead."""
        return self._set(expires=expires)

    def tags(self, *tags: str) -> "JobBuilder":
        return self._set(tags=tags)

    def meta(self, meta: Mapping[str, object]) -> "JobBuilder":
        """Notes for the handler, signed with the job."""
        return self._set(meta=meta)

    def trace_id(self, trace_id: str) -> "JobBuilder":
        return self._set(trace_id=trace_id)

    def fence(self) -> "JobBuilder":
        """Kill the run if its worker cannot prove that it still holds the lease, before another worker can claim it."""
        return self._set(fence=True)

    def idempotency_key(self, key: str, *, ttl: Duration | None = None) -> "JobBuilder":
        """Run the job only if no job with this handler and key has completed within the TTL."""
        return self._set(idempotency_key=key) if ttl is None else self._set(idempotency_key=key, idempotency_ttl=ttl)

    def single_instance(self) -> "JobBuilder":
        """Run at most one job with this name (without a name: of this handler) at a time; the others wait."""
        return self._set(single_instance=True)

    def concurrency_key(self, key: str, concurrency: int = 1) -> "JobBuilder":
        """Run at most `concurrency` jobs with this key at a time; the others wait."""
        return self._set(concurrency_key=key, concurrency=concurrency)

    def rate_limit(self, rate: str | float, *, key: str | None = None) -> "JobBuilder":
        """Start jobs of this handler, or those with this key, at most this often: `10/s`, `60/min`, `100/h`."""
        return self._set(rate_limit=rate) if key is None else self._set(rate_limit=rate, rate_key=key)

    def breaker(self, name: str) -> "JobBuilder":
        """Wait while the circuit with this name is open, without using up an attempt."""
        return self._set(breaker=name)

    def unique(
        self,
        key: str | None = None,
        *,
        unique_for: Duration = UniqueScope.OPEN,
        on_conflict: Literal["ignore", "reject", "replace"] = "ignore",
    ) -> "JobBuilder":
        """Enqueue the job only if no other job has this key; without a key, the same handler and payload."""
        return self._set(unique=True if key is None else key, unique_for=unique_for, on_conflict=on_conflict)

    def after(
        self, *parents: str | Identified, on_parent_failure: Literal["cancel", "run", "wait"] = "cancel"
    ) -> "JobBuilder":
        """Run the job once all of these jobs, given as handles or ids, have completed."""
        return self._set(after=parents, on_parent_failure=on_parent_failure)

    def dead_letter_to(self, queue: str) -> "JobBuilder":
        """Queue that receives a copy of the job if it dies, for the handler `dead-letter`."""
        return self._set(dead_letter_to=queue)

    def id(self, job_id: str) -> "JobBuilder":
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

    def _set(self, **options: Unpack[JobOptions]) -> "JobBuilder":
        self._definition = self._definition.with_options(**options)
        return self
