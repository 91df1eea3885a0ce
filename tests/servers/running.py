"""`Server`: a server process that belongs to the tests."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

import pytest

from .clock import ServerClock

START_WITHIN_S = 60.0
LEAVE_WITHIN_S = 20.0
LOOK_EVERY_S = 0.01


class Missing(Exception):
    """This machine has no such server, and why."""


S = TypeVar("S", bound="Server")


def started(make: Callable[[], S]) -> S:
    """The running server; a test that needs one that cannot be had is skipped, loudly, and fails in CI."""
    try:
        return make().start()
    except Missing as problem:
        reason = f"NO SERVER: {problem}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server(ABC):
    """One server with its directory and its port. It can be stopped, killed and started again on the same data."""

    name: str

    def __init__(self, *, clock: bool = False) -> None:
        # A short path: that of a socket in it must not exceed what the system allows.
        self.directory = Path(tempfile.mkdtemp(prefix="hf-"))
        self.clock = ServerClock(self.directory) if clock else None
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """How the server is started, in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes connections."""

    def prepare(self) -> None:  # noqa: B027 - most servers make their files themselves
        """What comes before the first start."""

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        try:
            if self._process is None:
                self.prepare()
            self._run()
        except BaseException:
            self.close()
            raise
        return self

    def kill(self) -> None:
        """End it without a warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and remove its files."""
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
