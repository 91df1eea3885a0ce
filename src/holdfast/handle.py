"""`JobHandle` and `AsyncJobHandle`: the state and the result of a job, by its id."""

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

from holdfast.clock import Clock
from holdfast.errors import ResultGone, UnknownJob
from holdfast.handlers.results import result_of
from holdfast.queues.contract import Engine
from holdfast.values import CancelAnswer, EnqueueOutcome, JobHistory, JobState, JobView, Progress

R_co = TypeVar("R_co", covariant=True)

FIRST_POLL_S: Final = 0.005
SLOWEST_POLL_S: Final = 0.1


class JobHandle(Generic[R_co]):
    """One job, by its id. Every call asks the engine; nothing is cached."""

    def __init__(
        self,
        job_id: str,
        engine: Engine,
        clock: Clock,
        *,
        returns: Any = Any,
        outcome: EnqueueOutcome | None = None,
    ) -> None:
        self.id = job_id
        self.outcome = outcome
        """The result of enqueueing the job; None if the handle was created from an id."""
        self.returns = returns
        """The type that the result is decoded into."""
        self._engine = engine
        self._clock = clock

    def view(self) -> JobView:
        """The job in its current state, with all its data."""
        history = self._engine.get(self.id)
        if history is None:
            raise UnknownJob(self.id)
        return history.job

    def status(self) -> JobState:
        """The current state of the job."""
        return self.view().state

    def progress(self) -> Progress | None:
        """The latest progress report of the job, if it has made one."""
        return self.view().progress

    def wait(self, timeout: float | None = None) -> JobView:
        """Wait until the job is in a final state and return it; `TimeoutError` after `timeout` seconds."""
        return self._ended(timeout).job

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job and return its result; `TimeoutError` after `timeout` seconds."""
        return self.value(self._ended(timeout))

    def cancel(self, reason: str = "") -> CancelAnswer:
        """Cancel a waiting job; ask the worker of a running job to cancel it."""
        return self._engine.cancel(self.id, reason)

    def _ended(self, timeout: float | None) -> JobHistory:
        poll = self.poll(timeout)
        for pause in poll:
            self._clock.sleep(pause)
        return poll.ended

    def poll(self, timeout: float | None) -> "_Poll":
        """Polls until the job is final. The caller sleeps between two polls."""
        return _Poll(self.id, self._engine, self._clock, timeout)

    def value(self, history: JobHistory) -> R_co:
        """The result in the history of a job that is final."""
        value: R_co = result_of(history, self.returns)
        return value

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"


class AsyncJobHandle(Generic[R_co]):
    """A `JobHandle` for async code: it does not block the event loop."""

    def __init__(self, handle: JobHandle[R_co]) -> None:
        self.id = handle.id
        self.outcome = handle.outcome
        self.returns = handle.returns
        self._handle = handle

    async def view(self) -> JobView:
        """The job in its current state, with all its data."""
        import asyncio  # not at the top: programs without an event loop need not load it

        return await asyncio.to_thread(self._handle.view)

    async def status(self) -> JobState:
        """The current state of the job."""
        return (await self.view()).state

    async def progress(self) -> Progress | None:
        """The latest progress report of the job, if it has made one."""
        return (await self.view()).progress

    async def wait(self, timeout: float | None = None) -> JobView:  # noqa: ASYNC109 - the same as in `JobHandle`
        """Wait until the job is in a final state and return it; `TimeoutError` after `timeout` seconds."""
        return (await self._ended(timeout)).job

    async def result(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109
        """Wait for the job and return its result; `TimeoutError` after `timeout` seconds."""
        return self._handle.value(await self._ended(timeout))

    async def cancel(self, reason: str = "") -> CancelAnswer:
        """Cancel a waiting job; ask the worker of a running job to cancel it."""
        import asyncio

        return await asyncio.to_thread(self._handle.cancel, reason)

    async def _ended(self, timeout: float | None) -> JobHistory:  # noqa: ASYNC109
        import asyncio

        poll = self._handle.poll(timeout)
        # There is no event to wait for: the job runs in another process.
        while (pause := await asyncio.to_thread(next, poll, None)) is not None:  # noqa: ASYNC110
            await asyncio.sleep(pause)
        return poll.ended

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"


class _Poll:
    """Reads a job until it is final, and yields how long to sleep before each further read."""

    def __init__(self, job_id: str, engine: Engine, clock: Clock, timeout: float | None) -> None:
        self._pauses = self._read(job_id, engine, clock, timeout)
        self._ended: JobHistory | None = None

    def __iter__(self) -> Generator[float]:
        return self._pauses

    def __next__(self) -> float:
        return next(self._pauses)

    @property
    def ended(self) -> JobHistory:
        assert self._ended is not None  # noqa: S101 - for type checkers: the iteration sets it or raises
        return self._ended

    def _read(self, job_id: str, engine: Engine, clock: Clock, timeout: float | None) -> Generator[float]:
        give_up_at = None if timeout is None else clock.monotonic() + timeout
        pause = FIRST_POLL_S
        while True:
            history = engine.get(job_id)
            if history is None:
                raise ResultGone(f"job '{job_id}' has no record; it was never accepted, or it was pruned")
            if history.job.state.is_final:
                self._ended = history
                return
            if give_up_at is not None and clock.monotonic() >= give_up_at:
                raise TimeoutError(f"job '{job_id}' is still {history.job.state} after {timeout:g} s")
            yield pause
            pause = min(pause * 1.5, SLOWEST_POLL_S)
