"""`Server`: a server process that belongs to the tests."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

import pytest

from holdfast.worker.executors import guardian

from ..faults.processes import lives, stands_still, until
from .clock import ServerClock

START_WITHIN_S = 60.0
LEAVE_WITHIN_S = 20.0
LOOK_EVERY_S = 0.01
LOWEST_PORT = 10_000
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Hypothesis seeds the shared generators: with one of them, two processes would try the same ports.
_dice = random.SystemRandom()


class Missing(Exception):
    """There is no such server on this machine, with the reason."""


S = TypeVar("S", bound="Server")
T = TypeVar("T")
_of_session: list["Server"] = []


def started(make: Callable[[], S]) -> S:
    """The running server, if it is available."""
    return unless_missing(lambda: make().start())


def started_for_session(make: Callable[[], S]) -> S:
    """The running server, which stops at the end of the test session.

    Not at exit: pytest-xdist kills processes that take long to exit, and their servers would live on.
    """
    server = started(make)
    _of_session.append(server)
    return server


def close_servers_of_session() -> None:
    """Stop the servers of this session."""
    while _of_session:
        _of_session.pop().close()


def unless_missing(make: Callable[[], T]) -> T:
    """The result of `make`. Without the server, the test is skipped with a prominent reason, or fails in CI."""
    try:
        return make()
    except Missing as problem:
        reason = f"NO SERVER: {problem}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def chosen(engine: str) -> Path | None:
    """The server program selected by a variable, such as HOLDFAST_TEST_MYSQL_SERVER=/opt/mysql/bin/mysqld"""
    variable = f"HOLDFAST_TEST_{engine.upper()}_SERVER"
    path = os.environ.get(variable)
    if path is None:
        return None
    if not os.access(path, os.X_OK):
        pytest.fail(f"{variable}={path} is no program")
    return Path(path)


def free_port() -> int:
    """A free loopback port, reserved until this process exits.

    Not an ephemeral port: while a killed server is down, the system could give its port to another client, or connect
    a client that calls the port to itself.
    """
    highest = int(_GIVEN_OUT.read_text().split()[0]) if _GIVEN_OUT.exists() else 2**15
    while True:
        port = _dice.randrange(LOWEST_PORT, max(highest, LOWEST_PORT + 1000))
        with suppress(OSError), socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as reservation:
            probe.bind(("127.0.0.1", port))
            # The server binds the port later, and again after it was killed. UDP has its own ports: as long as ours
            # is bound, no other test process chooses this number.
            reservation.bind(("127.0.0.1", port))
            reservation.detach()
            return port


class Server(ABC):
    """One server with its directory and its port. It can be stopped, killed and started again on the same data."""

    name: str

    def __init__(self, *, clock: bool = False) -> None:
        # A short path, because the system limits the length of a socket's path.
        self.directory = Path(tempfile.mkdtemp(prefix="hf-"))
        self.clock = ServerClock(self.directory) if clock else None
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the server."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that starts the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it accepts connections."""

    def prepare(self) -> None:  # noqa: B027 - most servers create their files themselves
        """Prepare the first start."""

    def start(self) -> Self:
        """Start the server and wait until it accepts connections."""
        try:
            if self._process is None:
                self.prepare()
            self._run()
        except BaseException:
            self.close()
            raise
        return self

    def kill(self) -> None:
        """Kill the server with all its processes; it can be started again immediately."""
        assert self._process is not None
        family = self._family()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        until(lambda: not any(map(lives, family)), f"every process of {self.name} to be gone")

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Stop the server from responding during the block; its connections stay open."""
        family = self._family()
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: all(map(stands_still, family)), f"{self.name} to stand still")
            yield
        finally:
            for pid in family:
                os.kill(pid, signal.SIGCONT)

    def _family(self) -> list[int]:
        """Its processes, starting with the one that would notice the exit of the others."""
        return [self.pid, *guardian.descendants(self.pid, guardian.processes())]

    def close(self) -> None:
        """Stop the server and delete its files."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(self.leave_signal)
            try:
                process.wait(LEAVE_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    leave_signal = signal.SIGTERM

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _run(self) -> None:
        environment = {**os.environ, **(self.clock.environment() if self.clock else {})}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        give_up_at = time.monotonic() + START_WITHIN_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"{self.name} does not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(LOOK_EVERY_S)

    @property
    def log(self) -> Path:
        return self.directory / "log"
