"""`memory`, drained inline: enqueueing runs the job before it returns, retries and delays included.

Time is virtual, so a retry in five minutes does not take five minutes. Ids begin with `sync-`. If a job is dead or
cancelled in the end, enqueueing it raises.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from holdfast.clock import ManualClock
from holdfast.errors import BackendError, JobCancelled, JobFailed
from holdfast.queues.contract import DEFAULT_POLICY, LeasePolicy
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.envelope import USUAL_DEFAULTS, EnvelopeFactory, JobDefaults, JobIds
from holdfast.queues.signing import Signer
from holdfast.values import Accepted, CellWrite, JobEnvelope, JobState, WorkerResult, WorkerStatus

MAX_TURNS: Final = 10_000


class SyncEngine(MemoryEngine):
    """Jobs that run where they are enqueued, by the worker passed to `attach`."""

    def __init__(
        self,
        signer: Signer,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        defaults: JobDefaults = USUAL_DEFAULTS,
    ) -> None:
        clock = ManualClock(datetime.now(UTC))
        ids = JobIds(clock, prefix="sync-")
        envelopes = EnvelopeFactory(signer, clock=clock, ids=ids, defaults=defaults)
        super().__init__(envelopes, policy=policy, clock=clock)
        self.clock: ManualClock = clock
        self._process_once: Callable[[str], WorkerResult] | None = None
        self._is_draining = False

    def attach(self, process_once: Callable[[str], WorkerResult]) -> None:
        """Set the worker's `process_once`, which runs one job of a queue."""
        self._process_once = process_once

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        accepted = super().accept(envelopes, tx, writes=writes)
        # A handler that enqueues is already inside a drain: the outer loop runs its jobs.
        if self._process_once is not None and not self._is_draining:
            self._is_draining = True
            try:
                self._drain(self._process_once)
            finally:
                self._is_draining = False
            for one in accepted:
                self._report(one.id)
        return accepted

    def _drain(self, process_once: Callable[[str], WorkerResult]) -> None:
        """Run due jobs and advance the time to the next one, until none is waiting."""
        for _ in range(MAX_TURNS):
            waiting = [record for record in self.store.records.values() if record.is_claimable]
            waiting = [record for record in waiting if record.envelope.queue not in self.store.pauses]
            if not waiting:
                return
            soonest = min(waiting, key=lambda record: record.due_us)
            self.clock.advance(max(0, soonest.due_us - self.clock.now_us()) / 1e6)
            result = process_once(soonest.envelope.queue)
            if result.status is WorkerStatus.EMPTY:
                return
            if result.job_id is None:  # the queue has reached its rate limit
                self.clock.advance(result.retry_in or 0.0)
            if result.status is WorkerStatus.RELEASED and result.error is not None:
                # Elsewhere it would wait for a deployment; here nothing can change before the caller continues.
                self.cancel(str(result.job_id), result.error.message)
                raise JobFailed(f"job '{result.job_id}' cannot run here: {result.error.message}")
        raise BackendError(f"jobs are still waiting after {MAX_TURNS:,} turns: does a job enqueue itself forever?")

    def _report(self, job_id: str) -> None:
        found = self.get(job_id)
        if found is None:
            return
        job = found.job
        if job.state is JobState.DEAD:
            raise JobFailed(f"job '{job_id}' is dead ({job.dead_reason}): {job.last_error or 'no error was recorded'}")
        if job.state is JobState.CANCELLED:
            raise JobCancelled(f"job '{job_id}' was cancelled: {job.cancel_reason or 'no reason was given'}")
