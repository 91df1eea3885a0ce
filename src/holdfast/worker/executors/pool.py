"""`ProcessPool`: starts, reads, interrupts, kills and replaces the executor children of a worker."""

import logging
import random
import selectors
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias, assert_never

from holdfast.units import counted, format_duration
from holdfast.values import ExecutionResult, Progress
from holdfast.worker.executors import guarded_program
from holdfast.worker.executors.frames import (
    Broken,
    Done,
    Finished,
    Printed,
    Progressed,
    Ready,
    Refused,
    Returned,
    Started,
)
from holdfast.worker.executors.process import ExecutorProcess, Flight, KillReason, Program
from holdfast.worker.options import WorkerOptions
from holdfast.worker.sessions import SessionFile

log = logging.getLogger("holdfast.executors")

# A child with many unstarted jobs lingers: it is read at intervals, not after each result, because waking up for one
# would cost more than a short job.
LINGER_S: Final = 0.002
_LINGERS_FROM: Final = 16
_LINGERS_TO: Final = 4
_QUIET_TURNS: Final = 5
DEAF_AFTER_S: Final = 10.0
START_WITHIN_S: Final = 120.0
STRAYS_CHECK_S: Final = 0.05
_FIRST_BACKOFF_S: Final = 0.25
_MAX_BACKOFF_S: Final = 30.0

_Other: TypeAlias = Ready | Broken | Started | Finished | Refused | Returned | Progressed | Printed
_NEVER_READY: Final = (KillReason.DEAF, frozenset[int]())


class PoolListener(Protocol):
    """Receives the results of the jobs that the children run."""

    def on_done(self, flights: Sequence[Flight], frames: Sequence[Done]) -> None:
        """These jobs succeeded."""
        ...

    def on_ended(self, flight: Flight, result: ExecutionResult) -> None:
        """An attempt ended with this result."""
        ...

    def on_refused(self, flight: Flight, error: str, message: str) -> None:
        """The child may not or cannot run this job."""
        ...

    def on_returned(self, flights: Sequence[Flight]) -> None:
        """The child returned these jobs unstarted."""
        ...

    def on_died(
        self, flights: Sequence[Flight], how: str, killed_for: tuple[KillReason, frozenset[int]] | None
    ) -> None:
        """A child and all its descendants are gone while it was running these jobs."""
        ...

    def on_progress(self, flight: Flight, progress: Progress) -> None:
        """A running job reported its progress."""
        ...


class ProcessPool:
    """Runs `options.processes` children, each with `options.concurrency` slots, and replaces those that exit."""

    def __init__(
        self,
        program: Program,
        options: WorkerOptions,
        *,
        listener: PoolListener,
        selector: selectors.BaseSelector,
    ) -> None:
        self.slots = options.concurrency
        self.children: list[ExecutorProcess] = []
        self._program = program
        self._processes = options.processes
        self._kill_after_s = options.kill_after_s
        self._listener = listener
        self._selector = selector
        self.session: SessionFile | None = None
        """Held open by every child that is started from now on."""
        self._is_leaving = False
        self._failed_starts = 0
        self._start_at = 0.0
        self.problem = ""
        """Why no child can be started, if none can."""
        self._not_ours = guarded_program.children()  # started by the application, not by us
        self._has_strays = False
        self._dead_guardians: set[int] = set()
        self._check_strays_at = 0.0

    @property
    def ready(self) -> list[ExecutorProcess]:
        """The children that accept jobs."""
        return [child for child in self.children if child.takes_work]

    @property
    def lingers(self) -> bool:
        """Whether any child is read at intervals instead of as soon as it sends something."""
        return any(child.is_lingering for child in self.children)

    @property
    def running(self) -> int:
        """The number of running jobs, including those whose start has not been reported yet."""
        # Counts the jobs that a child has, not those that it has reported as started: a child starts a job as soon as
        # it has a free slot, and the loop may read the report much later if the CPU is busy.
        return sum(min(len(child.held), self.slots) for child in tuple(self.children))

    def flights(self) -> list[Flight]:
        """The jobs that the children have reported as started."""
        # Each copied in one step: other threads call this while the loop's thread changes them.
        return [flight for child in tuple(self.children) for flight in list(child.running.values())]

    def tend(self, now: float, *, listens: bool) -> None:
        """Start missing children, read lingering ones (only if `listens`), and enforce every deadline."""
        if not self._is_leaving:
            self._replace(now)
        for child in list(self.children):
            if child.is_lingering and listens:
                self._listen(child)
            elif child.is_lingering:
                child.pull()
            self._enforce(child, now)
            self._watch(child)
        guarded_program.reap()
        if self._has_strays and now >= self._check_strays_at:
            self._check_strays_at = now + STRAYS_CHECK_S
            self._dead_guardians = guarded_program.unreaped(self._dead_guardians)
            self._has_strays = guarded_program.kill_strays(self._not_ours) > 0 or bool(self._dead_guardians)

    def give(self, child: ExecutorProcess, flights: Sequence[Flight]) -> None:
        child.give(flights)
        self._watch(child)

    def leave(self) -> None:
        """Start no more jobs: the children return their unstarted jobs, finish the others and exit."""
        self._is_leaving = True
        for child in self.children:
            if child.is_ready:
                child.leave()
            else:
                child.kill(KillReason.LEAVING)

    def hurry(self, now: float, kill_after_s: float) -> None:
        """Interrupt the running jobs, and kill those that do not stop within `kill_after_s`."""
        self._kill_after_s = min(self._kill_after_s, kill_after_s)
        for flight in self.flights():
            if flight.child is not None and not flight.stop_sent_at:
                flight.child.stop(flight, cancelled=False, now=now)

    def kill(self, flights: Iterable[Flight], why: KillReason) -> None:
        """Kill the children that run these jobs."""
        for flight in flights:
            if flight.child is not None:
                flight.child.kill(why, [flight.number])

    def close(self) -> None:
        """Let go of every child; their guardians kill what is still running."""
        for child in self.children:
            self._unregister(child)
            child.let_go()
        self.children.clear()
        guarded_program.reap(waits=True)  # also the guardians of children that died before
        if self._has_strays:
            guarded_program.kill_strays(self._not_ours)

    def _replace(self, now: float) -> None:
        staying = sum(not child.is_leaving for child in self.children)
        while staying < self._processes and now >= self._start_at:
            try:
                child = ExecutorProcess(self._program, self.slots, self.session)
            except OSError as problem:
                self._could_not_start(f"cannot start a process: {problem}")
                return
            self.children.append(child)
            self._selector.register(child.guarded, selectors.EVENT_READ, partial(self._on_guardian, child))
            self._register(child)
            staying += 1

    def _could_not_start(self, problem: str) -> None:
        self._failed_starts += 1
        pause = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(self._failed_starts, 10)) * random.uniform(0.7, 1.0)
        self._start_at = time.monotonic() + pause
        self.problem = problem
        log.error("executor process could not start, retrying in %s: %s", format_duration(pause), problem)

    def _on_guardian(self, child: ExecutorProcess, _events: int) -> None:
        ended = child.end()
        if ended is None:
            return
        while self._listen(child):  # every result that it has written counts
            pass
        self._remove(child, ended)

    def _remove(self, child: ExecutorProcess, ended: guarded_program.ExitStatus) -> None:
        how = guarded_program.describe(ended)
        self.children.remove(child)
        self._unregister(child)
        child.let_go()
        started = list(child.running.values())
        unstarted = child.returned([number for number in child.held if number not in child.running])
        child.returned(list(child.running))
        has_crashed = not child.is_leaving and child.killed_for is None
        if (has_crashed and not child.has_worked) or child.killed_for == _NEVER_READY:
            self._could_not_start(how)
        elif has_crashed:
            log.error("executor process died (%s) while running %s", how, counted(len(started), "job"))
        # The processes below a killed guardian become children of this process.
        if ended.problem == guarded_program.GUARDIAN_DIED:
            self._has_strays = True
            self._dead_guardians.add(child.guarded.guardian_pid)
        self._listener.on_returned(unstarted)
        self._listener.on_died(started, how, child.killed_for)

    def _on_socket(self, child: ExecutorProcess, events: int) -> None:
        if child not in self.children:
            return  # it was removed in this very turn
        if events & selectors.EVENT_WRITE:
            child.write()
        if events & selectors.EVENT_READ:
            self._listen(child)
        self._watch(child)

    def _listen(self, child: ExecutorProcess) -> bool:
        """Process the frames that the child has sent. Returns whether there were any."""
        frames = child.read()
        child.quiet_turns = 0 if frames else child.quiet_turns + 1
        now = time.monotonic()
        done: list[Done] = []
        flights: list[Flight] = []
        for frame in frames:
            # Nearly all frames are of this kind, and they are settled together.
            if isinstance(frame, Done):
                flight = child.ended(frame.number, frame.next, now)
                if flight is not None:
                    flights.append(flight)
                    done.append(frame)
            else:
                self._on_frame(child, frame, now)
        if done:
            self._listener.on_done(flights, done)
        if not child.held:
            child.is_alone = False
        if child.garbled and not child.heard_eof:
            log.error("killing executor process: invalid data on its control socket (%s)", child.garbled)
            child.distrust()
        return bool(frames)

    def _on_frame(self, child: ExecutorProcess, frame: _Other, now: float) -> None:
        match frame:
            case Ready():
                child.is_ready = True
                self._failed_starts, self.problem = 0, ""
            case Broken(problem=problem):
                child.is_leaving = True
                self._could_not_start(problem)
            case Started(number=number):
                child.started(number, now)
            case Finished(number=number, next=following, result=result):
                flight = child.ended(number, following, now)
                if flight is not None:
                    self._listener.on_ended(flight, result)
            case Refused(number=number, next=following, error=error, message=message):
                flight = child.ended(number, following, now)
                if flight is not None:
                    self._listener.on_refused(flight, error, message)
            case Returned(numbers=numbers, leaving=leaving):
                child.is_recalling = False
                child.is_leaving |= leaving
                self._listener.on_returned(child.returned(numbers))
            case Progressed(number=number, progress=progress):
                if number in child.running:
                    self._listener.on_progress(child.running[number], progress)
            case Printed(number=number, text=text, skipped=skipped):
                if number in child.running:
                    child.running[number].has_printed(text, skipped)
            case _:
                assert_never(frame)

    def _enforce(self, child: ExecutorProcess, now: float) -> None:
        if child.killed_for is not None:
            return
        overdue = self._overdue(child, now)
        if overdue and child.is_lingering:
            # Its frames are not read yet: the jobs may have finished long ago.
            self._listen(child)
            overdue = self._overdue(child, now)
        if overdue:
            why = next(iter(overdue.values()))
            numbers = [number for number, reason in overdue.items() if reason is why]
            ids = ", ".join(child.running[number].lease.id for number in numbers)
            log.warning("killing executor process: %s %s %s", "job" if len(numbers) == 1 else "jobs", ids, why.value)
            child.kill(why, numbers)
        elif child.unstarted and not child.is_recalling and not child.is_lingering and child.is_blocked(now):
            child.recall()
        elif not child.is_ready and now > child.began_at + START_WITHIN_S:
            child.kill(*_NEVER_READY)
        elif child.is_leaving and not child.held:
            child.leave_by = child.leave_by or now + DEAF_AFTER_S
            if now > child.leave_by:
                child.kill(KillReason.DEAF)

    def _overdue(self, child: ExecutorProcess, now: float) -> dict[int, KillReason]:
        return {flight.number: _why(flight) for flight in child.running.values() if now > self._kill_at(flight)}

    def _kill_at(self, flight: Flight) -> float:
        """When to kill the job: `kill_after_s` after its timeout, or after it was asked to stop."""
        limit = flight.message.timeout
        kill_at = flight.started_at + limit + self._kill_after_s if limit else float("inf")
        return min(kill_at, flight.stop_sent_at + self._kill_after_s) if flight.stop_sent_at else kill_at

    def _watch(self, child: ExecutorProcess) -> None:
        """Decide whether the child lingers, and register its socket for what is to be read and written."""
        if child not in self.children:
            return
        lingers = child.unstarted >= (_LINGERS_TO if child.is_lingering else _LINGERS_FROM)
        lingers = lingers and not child.heard_eof and child.quiet_turns < _QUIET_TURNS
        if lingers != child.is_lingering or child.wants_to_write or child.heard_eof:
            child.is_lingering = lingers
            self._register(child)

    def _register(self, child: ExecutorProcess) -> None:
        events = 0 if child.is_lingering or child.heard_eof else selectors.EVENT_READ
        events |= selectors.EVENT_WRITE if child.wants_to_write else 0
        known = self._selector.get_map().get(child)
        if known is not None and known.events == events:
            return
        if known is not None:
            self._selector.unregister(child)
        if events:
            self._selector.register(child, events, partial(self._on_socket, child))

    def _unregister(self, child: ExecutorProcess) -> None:
        for of in (child, child.guarded):
            if of in self._selector.get_map():
                self._selector.unregister(of)


def _why(flight: Flight) -> KillReason:
    if not flight.stop_sent_at:
        return KillReason.TIMEOUT
    return KillReason.CANCELLED if flight.is_cancelled else KillReason.LEAVING
