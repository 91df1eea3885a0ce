"""A child that runs no jobs and sends the frames that a test wants: `python -m tests.worker.scripted MANNER SOCKET`."""

import os
import socket
import sys
import time
from collections.abc import Callable
from itertools import pairwise

from holdfast.values import ExecutionResult, Outcome
from holdfast.worker.executors.frames import (
    Done,
    Finished,
    FrameBuffer,
    Leave,
    Ready,
    Recall,
    Returned,
    Started,
    Stop,
    ToChild,
    Work,
    packed,
)


class Script:
    """Takes jobs and never starts one by itself."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._held: list[int] = []

    def play(self, manner: Callable[["Script", ToChild], None]) -> None:
        frames = FrameBuffer()
        self._say(Ready())
        while chunk := self._socket.recv(65536):
            for frame in frames.to_child(chunk):
                if isinstance(frame, Work):
                    self._held += [delivery.number for delivery in frame.deliveries]
                manner(self, frame)

    def idle(self, frame: ToChild) -> None:
        """Give everything back when asked."""
        if isinstance(frame, Recall | Leave):
            self._say(Returned(tuple(self._held), leaving=isinstance(frame, Leave)))
            self._held.clear()
        if isinstance(frame, Leave):
            sys.exit()

    def busy(self, frame: ToChild) -> None:
        """Start the first job, and never finish it."""
        if isinstance(frame, Work):
            self._say(Started(self._held[0]))

    def late(self, frame: ToChild) -> None:
        """Start the first job just before it is recalled, and stop it when asked to."""
        if isinstance(frame, Recall):
            self._say(Started(self._held.pop(0)))
        if isinstance(frame, Stop):
            now = time.time_ns() // 1000
            outcome = Outcome.CANCELLED if frame.cancelled else Outcome.INTERRUPTED
            result = ExecutionResult(handler="", outcome=outcome, started_us=now, ended_us=now)
            self._say(Finished(frame.number, 0, result))
        self.idle(frame)

    def dying(self, frame: ToChild) -> None:
        """Run all but the last job, and die of that one."""
        if isinstance(frame, Work):
            self._say(Started(self._held[0]))
            for number, following in pairwise(self._held):
                self._say(Done(number, following, 0, 1))
            os._exit(9)

    def _say(self, frame: Ready | Returned | Started | Done | Finished) -> None:
        self._socket.sendall(packed(frame))


if __name__ == "__main__":
    manners = {"idle": Script.idle, "busy": Script.busy, "late": Script.late, "dying": Script.dying}
    Script(socket.socket(fileno=int(sys.argv[2]))).play(manners[sys.argv[1]])
