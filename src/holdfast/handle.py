"""`JobHandle`: what a producer keeps of a job it has enqueued."""

from typing import Any, Final

import msgspec

from holdfast.clock import Clock
from holdfast.errors import JobCancelled, JobFailed, ResultGone, UnknownJob
from holdfast.queues.contract import QueueInspector
from holdfast.values import CancelAnswer, JobHistory, JobState, JobView, Outcome

FIRST_LOOK_S: Final = 0.005
SLOWEST_LOOK_S: Final = 0.1


class JobHandle:
    """One job, by its id. Every question goes to the engine; nothing is remembered here."""

    def __init__(self, job_id: str, engine: QueueInspector, clock: Clock) -> None:
        self.id = job_id
        self._engine = engine
        self._clock = clock

    def view(self) -> JobView:
        """The job as it is now."""
        history = self._engine.get(self.id)
        if history is None:
            raise UnknownJob(self.id)
        return history.job

    def status(self) -> JobState:
        """The state it is in now."""
        return self.view().state

    def result(self, timeout: float | None = None) -> Any:
        """What the handler returned, once it has; `TimeoutError` if that takes longer than `timeout` seconds."""
        give_up_at = None if timeout is None else self._clock.monotonic() + timeout
        pause = FIRST_LOOK_S
        while True:
            history = self._engine.get(self.id)
            if history is None:
                raise ResultGone(f"no record of job '{self.id}' is kept: it was never accepted here, or it was pruned")
            if history.job.state.is_final:
                return _value(history)
            if give_up_at is not None and self._clock.monotonic() >= give_up_at:
                raise TimeoutError(f"job '{self.id}' is still {history.job.state} after {timeout:g} s")
            self._clock.sleep(pause)
            pause = min(pause * 1.5, SLOWEST_LOOK_S)

    def cancel(self, reason: str = "") -> CancelAnswer:
        """Cancel it if it waits; ask its worker to if it runs."""
        return self._engine.cancel(self.id, reason)

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"


def _value(history: JobHistory) -> Any:
    job = history.job
    match job.state:
        case JobState.DEAD:
            raise JobFailed(f"job '{job.id}' is dead ({job.dead_reason}): {job.last_error or 'no error was recorded'}")
        case JobState.CANCELLED:
            raise JobCancelled(f"job '{job.id}' was cancelled: {job.cancel_reason or 'no reason was given'}")
        case _:
            pass
    last = next((past.record for past in reversed(history.attempts) if past.record.outcome is Outcome.SUCCEEDED), None)
    if last is None or last.result is None:
        if last is not None and last.note:
            raise ResultGone(f"job '{job.id}' completed, but {last.note}")
        return None
    return msgspec.json.decode(last.result)
