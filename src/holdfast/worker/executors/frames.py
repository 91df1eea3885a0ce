"""What a worker and its executor children say to each other: length-prefixed frames over a socket pair."""

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
    """One verified job for a child: the number the worker knows it by, its bytes, its failed attempts so far, and how
    often it was delivered, which no other run of it will say.
    """

    number: int
    wire: bytes
    attempts: int
    delivery: int


class Work(Struct, frozen=True, array_like=True, tag=1):
    """Run these, in this order."""

    deliveries: tuple[Delivery, ...]


class Recall(Struct, frozen=True, array_like=True, tag=2):
    """Give back what you have not started."""


class Stop(Struct, frozen=True, array_like=True, tag=3):
    """Interrupt this job: an operator has cancelled it, or the worker has to leave."""

    number: int
    cancelled: bool


class Leave(Struct, frozen=True, array_like=True, tag=4):
    """Give back what you have not started, finish what you have, and end."""


class Ready(Struct, frozen=True, array_like=True, tag=1):
    """The child has imported the application and waits for work."""

    handlers: tuple[str, ...]


class Broken(Struct, frozen=True, array_like=True, tag=2):
    """The child cannot import the application."""

    problem: str


class Started(Struct, frozen=True, array_like=True, tag=3):
    """An idle slot begins with this job. A busy one says so with the verdict on the job before."""

    number: int


class Done(Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A job succeeded, returned nothing and printed nothing: a shorter `Finished`, which most jobs need."""

    number: int
    next: int
    started_us: int
    ended_us: int


class Finished(Struct, frozen=True, array_like=True, tag=4):
    """The verdict on a job, written before the next one (0: none) is started."""

    number: int
    next: int
    result: ExecutionResult


class Refused(Struct, frozen=True, array_like=True, tag=5):
    """A job that was not started, since its handler must not or cannot run it: which error says so."""

    number: int
    next: int
    error: str
    message: str


class Returned(Struct, frozen=True, array_like=True, tag=6):
    """What was recalled, or came too late to be started; `leaving` if this child ends after what it is running."""

    numbers: tuple[int, ...]
    leaving: bool = False


class Progressed(Struct, frozen=True, array_like=True, tag=7):
    """How far a running job is."""

    number: int
    progress: Progress


class Printed(Struct, frozen=True, array_like=True, tag=9):
    """What a running job has printed or logged, as it comes; of a job that ends well, its verdict says it again.

    Of one that prints very much, some bytes before that are `skipped`.
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
    """A frame as it travels."""
    body = encoder.encode(frame)
    return len(body).to_bytes(_SIZE, "little") + body


def widen(connection: socket.socket) -> None:
    """Make room for a whole batch on its way: a sender that has to wait for its reader is woken for every few bytes.

    Results need most: the kernel counts some 750 bytes for the smallest frame. It gives as much as it allows.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)


class FrameBuffer:
    """Bytes as they come, frames as they are complete. Reads never wait for the rest of a frame."""

    garbled = ""
    """Why what has come last is no frame, if it is none."""

    def __init__(self) -> None:
        self._bytes = b""

    def to_child(self, chunk: bytes) -> Iterator[ToChild]:
        """The frames from a worker that this chunk completes."""
        return map(_to_child.decode, self._bodies(chunk))

    def from_child(self, chunk: bytes) -> list[FromChild]:
        """The frames from a child that this chunk completes, up to what is none: its jobs may write anything there."""
        frames: list[FromChild] = []
        try:
            for body in self._bodies(chunk):
                frames.append(_from_child.decode(body))  # noqa: PERF401 - those before what is garbled count
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
