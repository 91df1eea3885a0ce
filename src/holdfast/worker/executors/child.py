"""The executor child: receives jobs from its worker, runs them in its slots, and sends each result at once.

One thread always reads from the worker, whatever the jobs do, so that unstarted jobs can be recalled and running ones
interrupted. With one slot, jobs run on the main thread. With more, coroutine functions run on an event loop there and
plain functions on threads.
"""

import asyncio
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias, assert_never

from holdfast.clock import SYSTEM_CLOCK
from holdfast.codec import JobMessage, decode_verified
from holdfast.errors import HoldfastError
from holdfast.execution.failure import describe_error
from holdfast.execution.output import Output
from holdfast.execution.runtime import JobRuntime, Transactions
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted
from holdfast.handlers import HandlerRegistry
from holdfast.handlers.results import ReadJob
from holdfast.middleware import Middleware
from holdfast.values import OUTPUT_LIMIT, ExecutionResult, Outcome, Progress
from holdfast.worker.executors.frames import (
    Delivery,
    Done,
    Finished,
    FrameBuffer,
    FromChild,
    Leave,
    Printed,
    Progressed,
    Recall,
    Refused,
    Returned,
    Started,
    Stop,
    Work,
    packed,
    widen,
)
from holdfast.worker.executors.resident_memory import resident_bytes
from holdfast.worker.wake_pipe import WakePipe

NEWS_EVERY_S: Final = 0.2
FORKED_COPY: Final = 70
MEMORY_CHECK_S: Final = 0.05
_CHUNK: Final = 64 * 1024

RunResult: TypeAlias = ExecutionResult | HoldfastError


class Limits:
    """When a child exits: after so many jobs, or once it uses more than so many bytes. 0 = no limit."""

    def __init__(self, max_jobs: int = 0, max_memory_bytes: int = 0) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory_bytes
        self._jobs = 0
        self._check_at = 0.0

    def are_reached(self) -> bool:
        """Call it once after each job."""
        self._jobs += 1
        if self._max_jobs and self._jobs >= self._max_jobs:
            return True
        if not self._max_memory:
            return False
        # Not after every short job: a check costs as much as running one.
        now = time.monotonic()
        if now < self._check_at:
            return False
        self._check_at = now + MEMORY_CHECK_S
        return resident_bytes() > self._max_memory


class WorkerLink:
    """The child's end of the socket pair, and the jobs that it has received and not started."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        widen(connection)
        self._frames = FrameBuffer()
        self._waiting: deque[Delivery] = deque()
        self._sending = threading.Lock()
        self._progress: dict[int, Progress] = {}
        self._printed: dict[int, Output] = {}
        self._sending_output = threading.Lock()
        self._pipe = WakePipe()
        self.is_leaving = False
        self.on_work: Callable[[], object] = lambda: None
        self.on_stop: Callable[[Stop], None] = lambda frame: None

    def send(self, frame: FromChild) -> None:
        """Write a frame. Once this returns, the frame survives the end of this process."""
        with self._sending:
            self._socket.sendall(packed(frame))

    def take(self) -> Delivery | None:
        """The next job to start, if there is one. It can no longer be recalled."""
        try:
            return None if self.is_leaving else self._waiting.popleft()
        except IndexError:
            return None

    def leave(self) -> None:
        """Start no more jobs, and return the unstarted ones."""
        self.is_leaving = True
        self.send(Returned(self._unstarted(), leaving=True))
        self.on_work()

    def progressed(self, number: int, progress: Progress) -> None:
        """Send a job's progress soon; only the latest counts. An interrupt may be raised anywhere in here."""
        self._progress[number] = progress
        self._pipe.wake()

    def printed(self, number: int, output: Output) -> None:
        """Send what a job has printed, at once: its process may die in the next moment.

        If the job prints more than is stored, or this thread is already sending output (this call may interrupt it),
        the listening thread sends it soon.
        """
        if output.total <= OUTPUT_LIMIT and self._sending_output.acquire(blocking=False):
            try:
                self._send_output(number, output)
            finally:
                self._sending_output.release()
        elif number not in self._printed:
            self._printed[number] = output
            self._pipe.wake()

    def listen(self) -> None:
        """Read frames until the worker closes the link. Runs on its own thread."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._pipe, selectors.EVENT_READ)
            quiet_until = 0.0
            while True:
                left = quiet_until - time.monotonic()
                has_news = self._progress or self._printed
                ready = {key.fd for key, _ in selector.select(max(0.0, left) if has_news else None)}
                if self._pipe.fileno() in ready:
                    self._pipe.drain()
                if (self._progress or self._printed) and time.monotonic() >= quiet_until:
                    self._send_news()
                    quiet_until = time.monotonic() + NEWS_EVERY_S
                if self._socket.fileno() in ready and not self._read():
                    return

    def _read(self) -> bool:
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError:
            return False
        for frame in self._frames.to_child(chunk):
            self._on_frame(frame)
        return bool(chunk)

    def _on_frame(self, frame: Work | Recall | Stop | Leave) -> None:
        match frame:
            case Work(deliveries=deliveries):
                self._waiting.extend(deliveries)
                if self.is_leaving:
                    self.send(Returned(self._unstarted(), leaving=True))
                else:
                    self.on_work()
            case Recall():
                self.send(Returned(self._unstarted()))
            case Stop():
                self.on_stop(frame)
            case Leave():
                self.leave()
            case _:
                assert_never(frame)

    def _unstarted(self) -> tuple[int, ...]:
        numbers: list[int] = []
        while True:
            # One by one: a slot may take the next job at the same time, and each job must go to one of us.
            try:
                numbers.append(self._waiting.popleft().number)
            except IndexError:
                return tuple(numbers)

    def _send_news(self) -> None:
        for number in list(self._progress):
            self.send(Progressed(number, self._progress.pop(number)))
        for number in list(self._printed):
            with self._sending_output:
                self._send_output(number, self._printed.pop(number))

    def _send_output(self, number: int, output: Output) -> None:
        """Only one thread at a time may call this, so that the parts of an output are sent in order."""
        for skipped, text in output.news():
            self.send(Printed(number, text, skipped))


class SlotRunner:
    """Runs jobs for all slots, which share the link, the runtime and the limits."""

    def __init__(
        self,
        link: WorkerLink,
        registry: HandlerRegistry,
        limits: Limits,
        transactions: Transactions | None = None,
        read: ReadJob | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        self.link = link
        self.runtime = JobRuntime(
            registry,
            on_output=self._on_output,
            on_progress=self._on_progress,
            transactions=transactions,
            read=read,
            middleware=middleware,
        )
        self.limits = limits
        self._registry = registry
        self._ids: dict[int, str] = {}
        self._is_copy = False
        os.register_at_fork(after_in_child=self._on_fork)
        link.on_stop = self._on_stop

    def begin(self, delivery: Delivery) -> JobMessage:
        message = decode_verified(delivery.wire)
        self._ids[delivery.number] = message.identifier
        return message

    def run(self, message: JobMessage, delivery: Delivery) -> RunResult:
        try:
            return self.runtime.run(message, delivery)
        except HoldfastError as problem:
            return problem
        except KeyboardInterrupt as problem:
            return _interrupted(message, problem)
        finally:
            self._end_if_forked()

    async def run_async(self, message: JobMessage, delivery: Delivery) -> RunResult:
        try:
            return await self.runtime.run_async(message, delivery)
        except HoldfastError as problem:
            return problem
        finally:
            self._end_if_forked()

    def _on_fork(self) -> None:
        self._is_copy = True

    def _end_if_forked(self) -> None:
        """Exit in a copy of this process that a job has forked and not ended: it would run our jobs a second time."""
        if self._is_copy:
            os._exit(FORKED_COPY)

    def is_async(self, message: JobMessage) -> bool:
        try:
            return self._registry.resolve_for(message.job, message.queue).is_async
        except HoldfastError:
            return False  # `run` raises the same error and reports it

    def end(self, delivery: Delivery, result: RunResult) -> Delivery | None:
        """Send the result and, in the same frame, the number of the next job of this slot, which is returned."""
        self._ids.pop(delivery.number, None)
        is_enough = self.limits.are_reached()
        following = None if is_enough else self.link.take()
        number, next_number = delivery.number, 0 if following is None else following.number
        if not isinstance(result, ExecutionResult):
            self.link.send(Refused(number, next_number, type(result).__name__, str(result)))
        elif result.is_plain_success:
            self.link.send(Done(number, next_number, result.started_us, result.ended_us))
        else:
            self.link.send(Finished(number, next_number, result))
        if is_enough and not self.link.is_leaving:
            self.link.leave()
        return following

    def _on_progress(self, job_id: str, progress: Progress) -> None:
        number = self._number_of(job_id)
        if number:
            self.link.progressed(number, progress)

    def _on_output(self, job_id: str, output: Output) -> None:
        # By the delivery, not by the id: the job may have been delivered here twice.
        _, delivery = output.about or (None, None)
        if isinstance(delivery, Delivery) and not self._is_copy:
            self.link.printed(delivery.number, output)

    def _number_of(self, job_id: str) -> int:
        # The latest number, if the job was delivered here twice.
        return next((number for number, known in reversed(tuple(self._ids.items())) if known == job_id), 0)

    def _on_stop(self, frame: Stop) -> None:
        why = JobCancelRequested() if frame.cancelled else JobInterrupted("the worker was shutting down")
        for _ in range(200):  # the attempt may be just starting or just finishing
            job_id = self._ids.get(frame.number)
            if job_id is None or self.runtime.interrupt(job_id, why):
                return
            time.sleep(0.005)


class OneSlot:
    """Runs jobs one after the other on the main thread, where a timeout can interrupt them."""

    def __init__(self, runner: SlotRunner) -> None:
        self._runner = runner
        self._has_work = threading.Event()
        runner.link.on_work = self._has_work.set

    def serve(self) -> None:
        """Run jobs until the child leaves."""
        runner, link = self._runner, self._runner.link
        with runner.runtime:
            while not link.is_leaving:
                delivery = link.take()
                if delivery is None:
                    self._has_work.wait()
                    self._has_work.clear()
                    continue
                link.send(Started(delivery.number))
                while delivery is not None:
                    delivery = runner.end(delivery, runner.run(runner.begin(delivery), delivery))


class ManySlots:
    """Runs several jobs at once: coroutine functions on the main thread's event loop, plain functions on threads."""

    def __init__(self, runner: SlotRunner, slots: int) -> None:
        self._runner = runner
        self._free = slots
        self._slots = slots
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="holdfast-slot")
        self._tasks: set[asyncio.Future[RunResult]] = set()
        self._idle = asyncio.Event()

    def serve(self) -> None:
        """Run jobs until the child leaves."""
        with self._runner.runtime:
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._runner.link.on_work = lambda: loop.call_soon_threadsafe(self._fill)
        self._fill()  # with jobs that arrived before the loop was running
        await self._idle.wait()
        self._pool.shutdown()

    def _fill(self) -> None:
        link = self._runner.link
        while self._free and (delivery := link.take()) is not None:
            link.send(Started(delivery.number))
            self._free -= 1
            self._start(delivery)
        if link.is_leaving and self._free == self._slots:
            self._idle.set()

    def _start(self, delivery: Delivery) -> None:
        runner = self._runner
        message = runner.begin(delivery)
        if runner.is_async(message):
            future: asyncio.Future[RunResult] = asyncio.ensure_future(runner.run_async(message, delivery))
        else:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, runner.run, message, delivery)
        self._tasks.add(future)
        future.add_done_callback(lambda ended: self._ended(message, delivery, ended))

    def _ended(self, message: JobMessage, delivery: Delivery, future: "asyncio.Future[RunResult]") -> None:
        self._tasks.discard(future)
        problem = asyncio.CancelledError() if future.cancelled() else future.exception()
        result = future.result() if problem is None else _interrupted(message, problem)
        following = self._runner.end(delivery, result)
        if following is not None:
            self._start(following)
        else:
            self._free += 1
            self._fill()


def serve(
    connection: socket.socket,
    registry: HandlerRegistry,
    *,
    slots: int,
    limits: Limits,
    transactions: Transactions | None = None,
    read: ReadJob | None = None,
    middleware: Iterable[Middleware] = (),
) -> None:
    """Run jobs in this process until the worker stops it, or is gone."""
    link = WorkerLink(connection)
    runner = SlotRunner(link, registry, limits, transactions, read, middleware)
    all_slots = ManySlots(runner, slots) if slots > 1 else OneSlot(runner)

    def listen() -> None:
        try:
            link.listen()
        finally:
            # No worker is left to receive results, and running jobs would overlap with their next delivery.
            os._exit(0 if link.is_leaving else 1)

    def leave_soon(_number: int, _frame: object) -> None:
        # This interrupts the main thread anywhere, maybe while it holds a lock: another thread has to send the frame.
        threading.Thread(target=link.leave, daemon=True).start()

    signal.signal(signal.SIGTERM, leave_soon)
    threading.Thread(target=listen, name="holdfast-link", daemon=True).start()
    all_slots.serve()


def _interrupted(message: JobMessage, problem: BaseException) -> ExecutionResult:
    """The result of a run that was ended by something other than its handler."""
    now_us = SYSTEM_CLOCK.now_us()
    return ExecutionResult(
        handler=message.job, outcome=Outcome.FAILED, started_us=now_us, ended_us=now_us, error=describe_error(problem)
    )
