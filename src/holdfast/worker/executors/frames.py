"""The protocol between a worker and its executor children: length-prefixed frames over a socket pair."""

import socket
import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from holdfast.values import ExecutionResult, Progress

_SIZE: Final = 4
_LARGEST: Final = 64 * 1024 * 1024
_ROOM: Final = 1024 * 1024
_size_at: Final = struct.Struct("<I").unpack_from


class Delivery(Struct, frozen=True, array_like=True):
    """One verified job for a child: the worker's number for it, its wire, the number of its failed attempts, the number
    of its deliveries, which no other run of the job shares, and the fence number of its slots, if it has any.
    """

    number: int
    wire: bytes
    attempts: int
    delivery: int
    fence: int = 0


class Work(Struct, frozen=True, array_like=True, tag=1):
    """Run these jobs, in this order."""

    deliveries: tuple[Delivery, ...]


class Recall(Struct, frozen=True, array_like=True, tag=2):
    """Return the jobs that you have not started."""


class Stop(Struct, frozen=True, array_like=True, tag=3):
    """Interrupt this job: it was cancelled, or the worker is shutting down."""

    number: int
    cancelled: bool


class Leave(Struct, frozen=True, array_like=True, tag=4):
    """Return the jobs that you have not started, finish the others, and exit."""


class Ready(Struct, frozen=True, array_like=True, tag=1):
    """The child has imported the application and waits for jobs."""


class Broken(Struct, frozen=True, array_like=True, tag=2):
    """The child cannot import the application."""

    problem: str


class Started(Struct, frozen=True, array_like=True, tag=3):
    """An idle slot has started this job. A busy slot reports its next job together with the result of the last one."""

    number: int


class Done(Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A job succeeded, returned nothing and printed nothing: a shorter `Finished`, which fits most jobs."""

    number: int
    next: int
    started_us: int
    ended_us: int


class Finished(Struct, frozen=True, array_like=True, tag=4):
    """The result of a job, written before the next one (0: none) is started."""

    number: int
    next: int
    result: ExecutionResult


class Refused(Struct, frozen=True, array_like=True, tag=5):
    """A job that the child may not or cannot run, with the error that says why."""

    number: int
    next: int
    error: str
    message: str


class Returned(Struct, frozen=True, array_like=True, tag=6):
    """Jobs that were recalled, or arrived too late. If `leaving`, the child exits after its running jobs."""

    numbers: tuple[int, ...]
    leaving: bool = False


class Progressed(Struct, frozen=True, array_like=True, tag=7):
    """The progress of a running job."""

    number: int
    progress: Progress


class Printed(Struct, frozen=True, array_like=True, tag=9):
    """Output of a running job since the last such frame; its result contains the output again.

    If the job prints very much, `skipped` is the number of bytes before this text that were left out.
    """

    number: int
    text: str
    skipped: int = 0


ToChild: TypeAlias = Work | Recall | Stop | Leave
FromChild: TypeAlias = Ready | Broken | Started | Done | Finished | Refused | Returned | Progressed | Printed

encoder: Final = msgspec.msgpack.Encoder()
_to_child: Final = msgspec.msgpack.Decoder(ToChild)
_from_child: Final = msgspec.msgpack.Decoder(FromChild)


def packed(frame: ToChild | FromChild) -> bytes:
    """The frame as bytes, with its length in front."""
    body = encoder.encode(frame)
    return len(body).to_bytes(_SIZE, "little") + body


def widen(connection: socket.socket) -> None:
    """Make the send buffer large enough for a whole batch: a sender that blocks is woken for every few bytes.

    The kernel counts about 750 bytes for the smallest frame, and caps the buffer at its own limit.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)


class FrameBuffer:
    """Collects received bytes and returns frames as they become complete."""

    garbled = ""
    """Why the bytes received last are not a valid frame, if they are not."""

    def __init__(self) -> None:
        self._bytes = b""

    def to_child(self, chunk: bytes) -> Iterator[ToChild]:
        """The frames from a worker that this chunk completes."""
        return map(_to_child.decode, self._bodies(chunk))

    def from_child(self, chunk: bytes) -> list[FromChild]:
        """The valid frames from a child that this chunk completes. Its jobs can write anything to the socket."""
        frames: list[FromChild] = []
        try:
            for body in self._bodies(chunk):
                frames.append(_from_child.decode(body))  # noqa: PERF401 - frames before an invalid one count
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            self.garbled = str(problem)
        return frames

    def _bodies(self, chunk: bytes) -> list[bytes]:
        data = self._bytes + chunk if self._bytes else chunk
        bodies: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= _SIZE:
            size = _size_at(data, start)[0]
            if size > _LARGEST:
                self.garbled = f"a frame of {size:,} bytes"
                break
            following = start + _SIZE + size
            if following > end:
                break
            bodies.append(data[start + _SIZE : following])
            start = following
        self._bytes = data[start:]
        return bodies
