"""`ExecutorProcess`: the worker's view of one executor child: the jobs it has, and the socket to it."""

import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct

from holdfast.codec import JobMessage
from holdfast.execution.output import Output
from holdfast.values import JobLease
from holdfast.worker.executors.frames import (
    Delivery,
    FrameBuffer,
    FromChild,
    Leave,
    Recall,
    Stop,
    ToChild,
    Work,
    packed,
    widen,
)
from holdfast.worker.executors.guarded_program import ExitStatus, GuardedProgram
from holdfast.worker.sessions import SessionFile

# If a job takes longer than this, the unstarted jobs behind it are recalled.
BLOCKED_AFTER_S: Final = 0.03
_ROOM: Final = 128 * 1024


class Program(Struct, frozen=True, kw_only=True):
    """The command line of a child, to which the numbers of its socket and of the worker's session file are added, and
    its environment.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]


class KillReason(Enum):
    """Why the worker killed a child. It decides the verdict on the job that was the reason."""

    TIMEOUT = "exceeded its timeout and did not stop"
    CANCELLED = "was cancelled and did not stop"
    LEAVING = "did not stop before the worker had to exit"
    FENCED = "could not prove that it still held its lease"
    DEAF = "did not exit when asked"


class Flight(Struct, eq=False):
    """One job that this worker holds, from its admission to its verdict."""

    number: int
    lease: JobLease
    message: JobMessage
    waits_since: float
    fence: int = 0
    child: "ExecutorProcess | None" = None
    started_at: float = 0.0
    is_cancelled: bool = False
    is_lost: bool = False
    stop_sent_at: float = 0.0
    printed: Output | None = None

    @property
    def is_suspect(self) -> bool:
        return self.lease.crashes > 0

    @property
    def is_fenced(self) -> bool:
        """Whether the run must be killed before its lease can pass to another worker."""
        return self.fence > 0 or self.message.fence

    def has_printed(self, text: str, skipped: int) -> None:
        """Add what the job has printed; `skipped` bytes before it are missing."""
        if self.printed is None:
            self.printed = Output()
        self.printed.write(text, skipped=skipped)


class ExecutorProcess:
    """One child and its guardian. Nothing here blocks: frames that cannot be sent yet are buffered."""

    def __init__(self, program: Program, slots: int, session: SessionFile | None = None) -> None:
        ours, theirs = socket.socketpair()
        try:
            shared = () if session is None else (session.fileno(),)
            argv = (*program.argv, *map(str, (theirs.fileno(), *shared)))
            self.guarded = GuardedProgram(argv, environment=program.environment, inherited=[theirs], shared=shared)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        ours.setblocking(False)
        widen(ours)
        self._socket = ours
        self._frames = FrameBuffer()
        # Reused: allocating it for each read would cost more than the read.
        self._room = memoryview(bytearray(_ROOM))
        self._unread: list[bytes] = []
        self._outbox = b""
        self._slots = slots
        self.held: dict[int, Flight] = {}
        self.fenced: dict[int, Flight] = {}
        self.running: dict[int, Flight] = {}
        self.began_at = time.monotonic()
        self.is_ready = False
        self.has_worked = False
        self.is_leaving = False
        self.leave_by = 0.0
        self.is_recalling = False
        self.is_alone = False
        self.is_lingering = False
        self.quiet_turns = 0
        self.heard_eof = False
        self.killed_for: tuple[KillReason, frozenset[int]] | None = None
        self._fenced_until: float | None = None

    @property
    def takes_work(self) -> bool:
        return self.is_ready and not self.is_leaving and self.killed_for is None and not self.heard_eof

    @property
    def unstarted(self) -> int:
        return len(self.held) - len(self.running)

    def is_blocked(self, now: float) -> bool:
        """Whether every slot has been running its job for so long that no other job should wait for it."""
        blocked_since = now - BLOCKED_AFTER_S
        return len(self.running) >= self._slots and all(
            flight.started_at < blocked_since for flight in self.running.values()
        )

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outbox)

    def fileno(self) -> int:
        return self._socket.fileno()

    def give(self, flights: Sequence[Flight]) -> None:
        """Hand over jobs, several in one frame."""
        for flight in flights:
            flight.child = self
            self.held[flight.number] = flight
            if flight.is_fenced:
                self.fenced[flight.number] = flight
        deliveries = [(one.number, one.lease, one.fence) for one in flights]
        self._send(
            Work(
                tuple(
                    Delivery(number, lease.wire, lease.attempts, lease.delivery, fence)
                    for number, lease, fence in deliveries
                )
            )
        )

    def started(self, number: int, now: float) -> None:
        flight = self.held.get(number)
        if flight is not None:
            flight.started_at = now
            self.has_worked = True
            self.running[number] = flight
            if flight.is_cancelled:  # it started just before the recall arrived
                self.stop(flight, cancelled=True, now=now)

    def ended(self, number: int, following: int, now: float) -> Flight | None:
        """Remove a job that has finished; its slot has started the `following` one (0: none).

        Returns None if the job was removed before.
        """
        self.running.pop(number, None)
        flight = self.held.pop(number, None)
        if flight is not None:
            flight.child = None
        if self.fenced:
            self.fenced.pop(number, None)
        if following:
            self.started(following, now)
        return flight

    def returned(self, numbers: Iterable[int]) -> list[Flight]:
        return [flight for number in numbers if (flight := self.ended(number, 0, 0.0)) is not None]

    def recall(self) -> None:
        """Ask for the unstarted jobs; the child answers with a `Returned` frame."""
        if not self.is_recalling:
            self.is_recalling = True
            self._send(Recall())

    def stop(self, flight: Flight, *, cancelled: bool, now: float) -> None:
        """Interrupt a job."""
        flight.stop_sent_at = now
        self._send(Stop(flight.number, cancelled))

    def leave(self) -> None:
        """Ask the child to exit after its running jobs."""
        if not self.is_leaving:
            self.is_leaving = True
            self._send(Leave())

    def kill(self, why: KillReason, numbers: Iterable[int] = ()) -> None:
        """Kill the child and all its descendants. The first reason given counts."""
        if self.killed_for is None:
            self.killed_for = (why, frozenset(numbers))
            self.guarded.kill()

    def pull(self) -> None:
        """Receive what the child has sent, so that it is not blocked while writing; `read` decodes it."""
        while not self.heard_eof:
            try:
                size = self._socket.recv_into(self._room)
            except BlockingIOError:
                return
            except ConnectionError:
                size = 0
            if not size:
                self.heard_eof = True
                return
            self._unread.append(bytes(self._room[:size]))
            if size < _ROOM:
                return

    def read(self) -> list[FromChild]:
        """Receive and decode frames."""
        self.pull()
        chunks, self._unread = self._unread, []
        return self._frames.from_child(b"".join(chunks)) if chunks else []

    @property
    def garbled(self) -> str:
        """Why the data from the child is invalid, if it is."""
        return self._frames.garbled

    def distrust(self) -> None:
        """Stop reading from a child that sends invalid data, and kill it. It counts as crashed."""
        self.heard_eof = True
        self.guarded.kill()

    def fence(self, until: float | None) -> None:
        """Have the guardian kill the child at that time of the monotonic clock, unless it is set again before."""
        if until != self._fenced_until:
            self._fenced_until = until
            self.guarded.fence(until)

    def write(self) -> None:
        """Send as much as fits into the socket."""
        while self._outbox:
            try:
                sent = self._socket.send(self._outbox)
            except BlockingIOError:
                return
            except OSError:  # the child is gone; its guardian will report it
                self._outbox = b""
                return
            self._outbox = self._outbox[sent:]

    def end(self) -> ExitStatus | None:
        """The exit status, once none of its processes is left."""
        ended = self.guarded.receive()
        if ended is not None and self.guarded.was_fenced and self.killed_for is None:
            self.killed_for = (KillReason.FENCED, frozenset(self.fenced))
        return ended

    def let_go(self) -> None:
        """Close the socket. The guardian kills what is still running; this does not wait for it."""
        self._socket.close()
        self.guarded.let_go()

    def _send(self, frame: ToChild) -> None:
        self._outbox += packed(frame)
        self.write()


def python_program(module: str, arguments: Iterable[str], environment: Mapping[str, str] | None = None) -> Program:
    """One of our modules as the program of a child, run by the same interpreter.

    `-P` keeps the current directory off the import path: its files may belong to another user.
    """
    return Program(
        argv=(sys.executable, "-P", "-m", module, *arguments),
        environment=dict(os.environ if environment is None else environment),
    )
