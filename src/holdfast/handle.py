"""`JobHandle` and `AsyncJobHandle`: what a producer keeps of a job it has enqueued."""

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import JobCancelled, JobFailed, ResultGone, UnknownJob
from holdfast.handlers.payload import decoder_of
from holdfast.queues.contract import Engine
from holdfast.values import CancelAnswer, JobHistory, JobState, JobView, Outcome, Progress

R_co = TypeVar("R_co", covariant=True)

FIRST_LOOK_S: Final = 0.005
SLOWEST_LOOK_S: Final = 0.1


class JobHandle(Generic[R_co]):
    """One job, by its id. Every question goes to the engine; nothing is remembered here."""

    def __init__(self, job_id: str, engine: Engine, clock: Clock, *, returns: Any = Any) -> None:
        self.id = job_id
        self._engine = engine
        self._clock = clock
        self._returns = returns

    def view(self) -> JobView:
        """The job as it is now."""
        history = self._engine.get(self.id)
        if history is None:
            raise UnknownJob(self.id)
        return history.job

    def status(self) -> JobState:
        """The state it is in now."""
        return self.view().state

    def progress(self) -> Progress | None:
        """How far it says it is, if it has said so."""
        return self.view().progress

    def wait(self, timeout: float | None = None) -> JobView:
        """The job once it is final, however it ended; `TimeoutError` if that takes longer than `timeout` seconds."""
        return self._ended(timeout).job

    def result(self, timeout: float | None = None) -> R_co:
        """What the handler returned, once it has; `TimeoutError` if that takes longer than `timeout` seconds."""
        return self.value(self._ended(timeout))

    def cancel(self, reason: str = "") -> CancelAnswer:
        """Cancel it if it waits; ask its worker to if it runs."""
        return self._engine.cancel(self.id, reason)

    def _ended(self, timeout: float | None) -> JobHistory:
        looking = self.looking(timeout)
        for pause in looking:
            self._clock.sleep(pause)
        return looking.ended

    def looking(self, timeout: float | None) -> "_Looking":
        """How to wait for the end of it, whoever sleeps."""
        return _Looking(self.id, self._engine, self._clock, timeout)

    def value(self, history: JobHistory) -> R_co:
        """What the handler returned, of the job's history."""
        value: R_co = _value(history, self._returns)
        return value

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"


class AsyncJobHandle(Generic[R_co]):
    """The same for an event loop, which goes on while the engine is asked and the job is waited for."""

    def __init__(self, handle: JobHandle[R_co]) -> None:
        self.id = handle.id
        self._handle = handle

    async def view(self) -> JobView:
        """The job as it is now."""
        import asyncio  # here, and so not loaded by programs that have no event loop

        return await asyncio.to_thread(self._handle.view)

    async def status(self) -> JobState:
        """The state it is in now."""
        return (await self.view()).state

    async def progress(self) -> Progress | None:
        """How far it says it is, if it has said so."""
        return (await self.view()).progress

    async def wait(self, timeout: float | None = None) -> JobView:  # noqa: ASYNC109 - as its twin has it
        """The job once it is final, however it ended; `TimeoutError` if that takes longer than `timeout` seconds."""
        return (await self._ended(timeout)).job

    async def result(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109
        """What the handler returned, once it has; `TimeoutError` if that takes longer than `timeout` seconds."""
        return self._handle.value(await self._ended(timeout))

    async def cancel(self, reason: str = "") -> CancelAnswer:
        """Cancel it if it waits; ask its worker to if it runs."""
        import asyncio

        return await asyncio.to_thread(self._handle.cancel, reason)

    async def _ended(self, timeout: float | None) -> JobHistory:  # noqa: ASYNC109
        import asyncio

        looking = self._handle.looking(timeout)
        # No event tells of it: the job ends in another process.
        while (pause := await asyncio.to_thread(next, looking, None)) is not None:  # noqa: ASYNC110
            await asyncio.sleep(pause)
        return looking.ended

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"


class _Looking:
    """Looks at a job again and again: yields how long to pause before the next look, until `ended` is known."""

    def __init__(self, job_id: str, engine: Engine, clock: Clock, timeout: float | None) -> None:
        self._looks = self._look(job_id, engine, clock, timeout)
        self._ended: JobHistory | None = None

    def __iter__(self) -> Generator[float]:
        return self._looks

    def __next__(self) -> float:
        return next(self._looks)

    @property
    def ended(self) -> JobHistory:
        assert self._ended is not None  # noqa: S101 - for the type checkers: looking ends with it or raises
        return self._ended

    def _look(self, job_id: str, engine: Engine, clock: Clock, timeout: float | None) -> Generator[float]:
        give_up_at = None if timeout is None else clock.monotonic() + timeout
        pause = FIRST_LOOK_S
        while True:
            history = engine.get(job_id)
            if history is None:
                raise ResultGone(f"no record of job '{job_id}' is kept: it was never accepted here, or it was pruned")
            if history.job.state.is_final:
                self._ended = history
                return
            if give_up_at is not None and clock.monotonic() >= give_up_at:
                raise TimeoutError(f"job '{job_id}' is still {history.job.state} after {timeout:g} s")
            yield pause
            pause = min(pause * 1.5, SLOWEST_LOOK_S)


def _value(history: JobHistory, returns: Any) -> Any:
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
    try:
        return decoder_of(returns).decode(last.result)
    except msgspec.ValidationError as problem:
        raise ResultGone(
            f"job '{job.id}' completed, but what it returned is not what the function declares here ({problem}); "
            f"hf.handle('{job.id}').result() gives it as it stands"
        ) from None
    except (msgspec.DecodeError, RecursionError) as problem:
        raise ResultGone(f"job '{job.id}' completed, but its stored result is not readable: {problem}") from None
