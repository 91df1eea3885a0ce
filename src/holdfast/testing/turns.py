"""`Turns`: processes one job at a time on the thread or event loop of the test, as a worker would."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Struct, structs

from holdfast.app import Holdfast
from holdfast.codec import JobMessage
from holdfast.errors import HoldfastError, JobFailed
from holdfast.execution.timeout import CallResult
from holdfast.metrics import End
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Signer
from holdfast.values import ExecutionResult, JobEnvelope, JobLease, Settlement, WorkerResult
from holdfast.worker.admission import Admission, refused
from holdfast.worker.reporting import Reporter, result_of
from holdfast.worker.verdict import carrying, end_of, policy_of, verdict_on

_is_running: Final[ContextVar[bool]] = ContextVar("holdfast_kit_is_running", default=False)


class Claim(Struct, frozen=True):
    """The fields of a lease that a run needs, for `perform`, which has no lease."""

    attempts: int
    delivery: int
    fence: int = 0


class Turn(Struct, frozen=True):
    """The result of one run, and the exception that it raised."""

    result: WorkerResult
    raised: BaseException | None


class Turns:
    """Claims, verifies, runs and settles jobs with the application's own handlers and policies."""

    def __init__(self, app: Holdfast, engine: Engine, signer: Signer) -> None:
        self._registry = app.registry
        self._engine = engine
        self._signer = signer
        self._retry = app.extensions.retry_policy
        self._runtime = app.workers.runtime(engine, tee=_print, on_ended=self._note)
        self._admission = Admission(signer, app.registry, engine.clock)
        self._reporter = Reporter(app.extensions.metrics, app.registry)
        self._ended: dict[str, CallResult] = {}

    def take(self, queue: str) -> Turn | None:
        """Run the next due job of a queue; None if there is none."""
        fetched = self._fetched(queue)
        if not isinstance(fetched, tuple):
            return fetched
        lease, message = fetched
        try:
            with running():
                result = self._runtime.run(message, lease)
        except HoldfastError as problem:  # raised before the handler ran; its own exceptions are part of the result
            return self._refused(lease, message, problem)
        return self._judged(lease, message, result)

    async def take_async(self, queue: str) -> Turn | None:
        """The same; a coroutine handler runs on the event loop of the test."""
        fetched = self._fetched(queue)
        if not isinstance(fetched, tuple):
            return fetched
        lease, message = fetched
        try:
            with running():
                result = await self._run_async(message, lease)
        except HoldfastError as problem:
            return self._refused(lease, message, problem)
        return self._judged(lease, message, result)

    def perform(self, envelope: JobEnvelope, attempt: int) -> Any:
        """Run a job once, and return its result or raise its exception."""
        message = self._signer.open(envelope.wire)
        with running():
            result = self._runtime.run(message, Claim(attempts=attempt - 1, delivery=attempt))
        return self._value(message, result)

    async def perform_async(self, envelope: JobEnvelope, attempt: int) -> Any:
        """The same; a coroutine handler runs on the event loop of the test."""
        message = self._signer.open(envelope.wire)
        with running():
            result = await self._run_async(message, Claim(attempts=attempt - 1, delivery=attempt))
        return self._value(message, result)

    def close(self) -> None:
        self._runtime.close()

    def _note(self, job_id: str, ended: CallResult) -> None:
        self._ended[job_id] = ended

    def _fetched(self, queue: str) -> tuple[JobLease, JobMessage] | Turn | None:
        lease = self._engine.fetch(queue)
        if lease is None:
            return None
        self._reporter.fetched(queue, 1)
        admitted = self._admission.admit([lease], self._engine.enter)
        for refusal in admitted.refusals:
            return self._settled(refusal.message, refusal.settlement)
        if not admitted.messages:
            end = End.BLOCKED if admitted.blocked else End.LOST_LEASE
            self._reporter.ended(end, [lease])
            return Turn(WorkerResult(status=end.status, job_id=lease.id, queue=lease.queue), None)
        return structs.replace(lease, fence=admitted.fences.get(lease.id, 0)), admitted.messages[0]

    async def _run_async(self, message: JobMessage, claim: Claim | JobLease) -> ExecutionResult:
        if self._registry.resolve_for(message.job, message.queue).is_async:
            return await self._runtime.run_async(message, claim)
        return self._runtime.run(message, claim)

    def _refused(self, lease: JobLease, message: JobMessage, problem: HoldfastError) -> Turn:
        return self._settled(message, refused(lease, problem, self._engine.clock.now_us()))

    def _judged(self, lease: JobLease, message: JobMessage, result: ExecutionResult) -> Turn:
        return self._settled(message, verdict_on(result, message, lease, policy_of(message, self._retry)))

    def _settled(self, message: JobMessage | None, settlement: Settlement) -> Turn:
        settlement = carrying(settlement, message)
        is_held = self._engine.settle([settlement])[0]
        self._reporter.settled([(settlement, message)], [is_held])
        end = end_of(settlement) if is_held else End.LOST_LEASE
        ended = self._ended.pop(settlement.lease.id, None)
        return Turn(result_of(settlement, message, end.status), ended.raised if ended is not None else None)

    def _value(self, message: JobMessage, result: ExecutionResult) -> Any:
        ended = self._ended.pop(message.identifier)
        if ended.stopped_by is not None:
            raise TimeoutError(f"job '{message.job}' was stopped: {ended.stopped_by}") from ended.stopped_by
        if ended.raised is not None:
            raise ended.raised
        if result.error is not None:
            raise JobFailed(f"job '{message.job}' failed: {result.error.line}")
        return ended.value


@contextmanager
def running() -> Generator[None]:
    """Mark the code of a job: the jobs that it enqueues wait until it has finished."""
    token = _is_running.set(True)
    try:
        yield
    finally:
        _is_running.reset(token)


def is_running() -> bool:
    """Whether the caller is the code of a job, on any thread or event loop."""
    return _is_running.get()


def _print(text: str) -> None:
    """Print the output of a job, so that `capsys` and pytest's report of a failure include it."""
    sys.stdout.write(text)
