"""What an attempt prints: caught, capped, and cut where everybody can see it."""

import io
import logging
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from holdfast.values import OUTPUT_LIMIT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Tee: TypeAlias = Callable[[str], object]
MIN_LIMIT: Final = 256
_MARK_ROOM: Final = 64
_log = logging.getLogger("holdfast.execution")


class Output:
    """Keeps text up to `limit` bytes of UTF-8; of more, its first and its last half, with the size of the cut between.

    `tee` is handed everything as it comes. Any thread may write.
    """

    def __init__(self, *, limit: int = OUTPUT_LIMIT, tee: Tee | None = None) -> None:
        if limit < MIN_LIMIT:
            raise ValueError(f"an output limit of {limit} bytes leaves no room to mark a cut; use {MIN_LIMIT} or more")
        self._limit = limit
        self._head_size = limit // 2
        self._tail_size = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._lock = threading.Lock()
        self._tee = tee

    def write(self, text: str) -> None:
        if self._tee is not None:
            self._pass_on(text)
        # NUL and lone surrogates are legal in a str, but not in every engine's text column.
        data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
        with self._lock:
            self._total += len(data)
            room = self._head_size - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            if data:
                self._tail += data[-self._tail_size :]
                if len(self._tail) > 2 * self._tail_size:
                    del self._tail[: -self._tail_size]

    def text(self) -> str:
        """What is kept; never more than the limit, the mark included."""
        if not self._total:
            return ""
        with self._lock:
            if self._total <= self._limit:
                return (self._head + self._tail).decode()
            head = _whole_characters(self._head)
            tail = _whole_characters(self._tail[-(self._tail_size - _MARK_ROOM) :])
            cut = self._total - len(head) - len(tail)
        return f"{head.decode()}\n… {cut:,} bytes cut …\n{tail.decode()}"

    @contextmanager
    def redirected(self) -> Generator[None]:
        """Catch what is printed meanwhile, by this context and by threads it starts."""
        token = _receiver.set(self)
        _streams.open(self)
        try:
            yield
        finally:
            _streams.close(self)
            _receiver.reset(token)

    def _pass_on(self, text: str) -> None:
        """Hand text to the tee, whose own prints go to the real stream; a tee that fails is not asked again."""
        token = _receiver.set(None)
        try:
            if self._tee is not None:
                self._tee(text)
        except Exception:
            self._tee = None
            _log.warning("live output stopped: its receiver failed; the job goes on", exc_info=True)
        finally:
            _receiver.reset(token)


def cut(text: str, limit: int) -> str:
    """The text in at most that many bytes, its middle cut if need be."""
    output = Output(limit=limit)
    output.write(text)
    return output.text()


def _whole_characters(data: bytearray) -> bytes:
    """The bytes without a character that the cut has left only a part of."""
    return data.decode(errors="ignore").encode()


class _Nobody:
    """Stands for "no receiver was chosen here", where None is the choice of the real stream."""


_NOBODY: Final = _Nobody()
_receiver: ContextVar[Output | _Nobody | None] = ContextVar("holdfast_output", default=_NOBODY)


class _Stream(io.TextIOWrapper):
    """Stands in for `sys.stdout` or `sys.stderr`; one object for all jobs, so closing it must not stick."""

    def close(self) -> None:
        self.flush()

    @property
    def is_whole(self) -> bool:
        """Whether no job has taken its buffer away or changed how it writes."""
        try:
            return self.writable() and (self.encoding, self.errors) == ("utf-8", "replace")
        except ValueError:
            return False


class _Sink(io.BufferedIOBase):
    """The binary end of a stream: each write goes to the output of whoever makes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.original: TextIO | None = None

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """A job may wrap the buffer in a stream of its own, which closes it when it is gone: others still need it."""

    def fileno(self) -> int:
        # So that a subprocess can be given sys.stdout; what it prints is not caught.
        if self.original is None:
            raise io.UnsupportedOperation("fileno")
        return self.original.fileno()

    def write(self, data: "ReadableBuffer", /) -> int:
        raw = bytes(data)
        text = raw.decode(errors="replace")
        output = _streams.receiver()
        if output is not None:
            output.write(text)
        elif self.original is not None:
            self.original.write(text)
        return len(raw)

    def flush(self) -> None:
        if self.original is not None and not self.original.closed:
            self.original.flush()


class _Streams:
    """Puts the stand-ins in place while at least one output is open.

    Outputs may be open on several threads at once; each swapping the streams for itself would restore them in the
    wrong order. So they are swapped once, and a write finds its output by the context it is made in. A thread that a
    handler has started has no context of ours: it belongs to the only open output, if there is only one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Output] = []
        self._make_stand_ins()

    def _make_stand_ins(self) -> None:
        self._sinks = (_Sink("<stdout>"), _Sink("<stderr>"))
        self._stand_ins = tuple(
            _Stream(sink, encoding="utf-8", errors="replace", newline="", write_through=True) for sink in self._sinks
        )

    def open(self, output: Output) -> None:
        with self._lock:
            self._open.append(output)
            if len(self._open) == 1:
                # A thread left over from an earlier job may have put our own stand-in back.
                if sys.stdout not in self._stand_ins:
                    self._sinks[0].original = sys.stdout
                if sys.stderr not in self._stand_ins:
                    self._sinks[1].original = sys.stderr
                if not all(stream.is_whole for stream in self._stand_ins):
                    originals = [sink.original for sink in self._sinks]
                    self._make_stand_ins()
                    for sink, original in zip(self._sinks, originals, strict=True):
                        sink.original = original
                sys.stdout, sys.stderr = self._stand_ins

    def close(self, output: Output) -> None:
        with self._lock:
            self._open.remove(output)
            if not self._open:
                # Also if the job has put a stream of its own there and left it behind.
                sys.stdout, sys.stderr = self._sinks[0].original, self._sinks[1].original

    def receiver(self) -> Output | None:
        chosen = _receiver.get()
        is_open = self._open
        if isinstance(chosen, _Nobody):
            return is_open[0] if len(is_open) == 1 else None
        return chosen if chosen in is_open else None


_streams = _Streams()
