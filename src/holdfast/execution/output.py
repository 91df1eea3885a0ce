"""Captures what an attempt prints, up to a limit; if there is more, a mark in the text shows where it was cut."""

import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

from holdfast.values import OUTPUT_LIMIT, LiveOutput, cut_mark

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from holdfast.codec import JobMessage
    from holdfast.execution.runtime import Claimed

Tee: TypeAlias = Callable[[str], object]
MIN_LIMIT: Final = 256
_MARK_ROOM: Final = 64
_log = logging.getLogger("holdfast.execution")


class Output:
    """Stores up to `limit` bytes of UTF-8. If there is more, it stores the first and the last half of the limit, with
    the size of the cut between them.

    `tee` receives everything as it is written. Any thread may write.
    """

    # Most jobs write nothing, so the buffers are created by the first write.
    _head: bytearray
    _tail: bytearray
    _total = 0
    _read = 0
    about: "tuple[JobMessage, Claimed] | None" = None
    """The job and the delivery that this is the output of."""

    def __init__(self, *, limit: int = OUTPUT_LIMIT, tee: Tee | None = None) -> None:
        if limit < MIN_LIMIT:
            raise ValueError(
                f"an output limit of {limit} bytes leaves no room for the truncation marker; use {MIN_LIMIT} or more"
            )
        self._limit = limit
        self.tee = tee
        self._lock = threading.Lock()

    def write(self, text: str, *, skipped: int = 0) -> None:
        """Add text. `skipped` bytes before it are missing."""
        self._store(text, skipped)
        if self.tee is not None:
            self._tee(text)

    def _store(self, text: str, skipped: int) -> None:
        # NUL and lone surrogates are legal in a str, but not in every engine's text column.
        data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
        with self._lock:
            if not self._total:
                self._head, self._tail = bytearray(), bytearray()
            if skipped:
                self._total += skipped
                self._tail.clear()
            room = self._limit // 2 - len(self._head) if self._is_whole else 0
            self._total += len(data)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            if data:
                tail_size = self._tail_size
                if len(data) > tail_size:
                    data = data[-tail_size:]
                    self._tail.clear()
                self._tail += data
                if len(self._tail) > 2 * tail_size:
                    del self._tail[:-tail_size]

    @property
    def total(self) -> int:
        """The number of bytes written."""
        return self._total

    def text(self) -> str:
        """The stored text; never more than the limit, including the mark."""
        if not self._total:
            return ""
        with self._lock:
            if self._total <= self._limit and self._is_whole:
                return (self._head + self._tail).decode()
            head = _whole_characters(self._head)
            tail = _whole_characters(self._tail[-(self._tail_size - _MARK_ROOM) :])
            cut = self._total - len(head) - len(tail)
        return f"{head.decode()}\n{cut_mark(cut)}\n{tail.decode()}"

    def latest(self, size: int) -> LiveOutput:
        """The last part of the output, of at most `size` bytes."""
        if not self._total:
            return LiveOutput(text="")
        with self._lock:
            stored = self._head + self._tail if self._is_whole else self._tail
            data = _whole_characters(stored[-size:])
            return LiveOutput(text=data.decode(), start=self._total - len(data))

    def news(self) -> list[tuple[int, str]]:
        """The parts written since the last call, each with the number of bytes before it that are not stored."""
        with self._lock:
            start, self._read = self._read, self._total
            if start == self._total:
                return []
            tail_start = self._total - len(self._tail)
            if start >= tail_start:
                return [(0, self._tail[start - tail_start :].decode())]
            if self._is_whole:
                return [(0, (self._head[start:] + self._tail).decode())]
            head, tail = _whole_characters(self._head[start:]), _whole_characters(self._tail)
            skipped = self._total - len(tail) - start - len(head)
        return [(0, head.decode()), (skipped, tail.decode())]

    @property
    def _is_whole(self) -> bool:
        return self._total == len(self._head) + len(self._tail)

    @property
    def _tail_size(self) -> int:
        return self._limit - self._limit // 2

    def catch(self) -> "Token[Output | _Unset | None]":
        """Start to capture what is printed. Pass the token to `let_go` to end it."""
        token = _receiver.set(self)
        _streams.open(self)
        return token

    def let_go(self, token: "Token[Output | _Unset | None]") -> None:
        _streams.close(self)
        _receiver.reset(token)

    def _tee(self, text: str) -> None:
        """Pass text to the tee, whose own prints go to the real streams. A tee that fails is not called again."""
        try:
            if self.tee is not None:
                with outside_the_job():
                    self.tee(text)
        except Exception:
            self.tee = None
            with outside_the_job():
                _log.warning("live output stopped because its receiver failed; the job continues", exc_info=True)


def cut(text: str, limit: int) -> str:
    """The text in at most `limit` bytes; if necessary, its middle is cut."""
    output = Output(limit=limit)
    output.write(text)
    return output.text()


_MARK: Final = re.compile("(?:^|\n)… ([\\d,]+) bytes cut …\n".encode())


def rest_of(text: str, start: int, *, of_crash: bool = False) -> str:
    """The part of a stored output after its first `start` bytes.

    Its middle may have been cut, and also its beginning, if it was reported before a crash.
    """
    data = text.encode()
    mark = _MARK.match(data) if of_crash else None
    if mark is None and len(data) > OUTPUT_LIMIT - 2 * _MARK_ROOM:
        mark = _MARK.search(data, OUTPUT_LIMIT // 2 - 3, OUTPUT_LIMIT // 2 + _MARK_ROOM)
    if mark is None or start <= mark.start():
        return data[start:].decode(errors="ignore")
    missing = mark.start() + int(mark[1].replace(b",", b"")) - start
    if missing > 0:
        return f"\n{cut_mark(missing)}\n{data[mark.end() :].decode()}"
    return data[mark.end() - missing :].decode(errors="ignore")


def _whole_characters(data: bytearray) -> bytes:
    """The bytes without the characters that a cut has split."""
    return data.decode(errors="ignore").encode()


class _Unset:
    """Means that the context has no receiver; None means that its receiver is the real stream."""


_UNSET: Final = _Unset()
_receiver: ContextVar[Output | _Unset | None] = ContextVar("holdfast_output", default=_UNSET)


class _Stream(io.TextIOWrapper):
    """The replacement of `sys.stdout` or `sys.stderr`. All jobs share it, so a job must not be able to close it."""

    is_whole = True
    """Whether no job has detached its buffer or reconfigured it."""

    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        self._spoil()
        return super().detach()

    def reconfigure(self, **options: Any) -> None:
        self._spoil()
        super().reconfigure(**options)

    def _spoil(self) -> None:
        self.is_whole = False
        _streams.distrust()


class _Sink(io.BufferedIOBase):
    """The binary end of a stream: each write goes to the output of the job that makes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.original: TextIO | None = None

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: a job may wrap the buffer in its own stream, which closes it, but other jobs still need it."""

    def isatty(self) -> bool:
        return _streams.receiver() is None and self.original is not None and self.original.isatty()

    def fileno(self) -> int:
        # So that a job can pass sys.stdout to a subprocess; what that prints is not captured.
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


class _StandIn:
    """The stand-in for one of the two streams, and the stream that it replaces.

    `displaced` is a stream that was in place when an output was opened although the stand-ins stay between jobs: the
    program has redirected the stream, so it is restored when the output is closed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.base: TextIO | None = None
        self.displaced: TextIO | None = None
        self._make()

    def _make(self) -> None:
        self.sink = _Sink(f"<{self.name}>")
        self.stream = _Stream(self.sink, encoding="utf-8", errors="replace", newline="", write_through=True)

    def put(self, *, stays: bool) -> None:
        now = getattr(sys, self.name)
        # A thread of an earlier job may have put our own stand-in back.
        if now is not self.stream:
            self.sink.original = now
            self.displaced = now if stays else None
        self._place()

    def put_back(self) -> None:
        """Restore the state between jobs, in which the stand-in stays."""
        displaced, self.displaced = self.displaced, None
        self.sink.original = self.base
        if displaced is None:
            self._place()
        else:
            setattr(sys, self.name, displaced)

    def take_away(self) -> None:
        self.displaced = None
        setattr(sys, self.name, self.sink.original)

    def _place(self) -> None:
        if not self.stream.is_whole:
            original = self.sink.original
            self._make()
            self.sink.original = original
        setattr(sys, self.name, self.stream)


class _Streams:
    """Puts the stand-ins in place while at least one output is open, or while they are to stay between outputs.

    Outputs may be open on several threads at once. If each swapped the streams itself, they would be restored in the
    wrong order, so they are swapped once, and a write finds its output by its context. A thread that a handler has
    started has no such context: it belongs to the only open output, if there is exactly one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Output] = set()
        self._installs = 0
        self._both = (_StandIn("stdout"), _StandIn("stderr"))
        self.distrust()

    def distrust(self) -> None:
        """Make the next output check the streams that are in place."""
        self._trusted_out: object = _UNSET
        self._trusted_err: object = _UNSET

    def _trust(self) -> None:
        """Remember the stand-ins that stay between jobs: an output that finds them in place has nothing to do."""
        if all(stand_in.stream.is_whole for stand_in in self._both):
            self._trusted_out, self._trusted_err = (stand_in.stream for stand_in in self._both)

    def install(self) -> None:
        with self._lock:
            self._installs += 1
            if self._installs == 1:
                for stand_in in self._both:
                    if not self._open:
                        stand_in.put(stays=False)
                    stand_in.base = stand_in.sink.original
                self._trust()

    def uninstall(self) -> None:
        with self._lock:
            self._installs -= 1
            if not self._installs:
                self.distrust()
            if not self._installs and not self._open:
                for stand_in in self._both:
                    if getattr(sys, stand_in.name) is stand_in.stream:
                        stand_in.take_away()

    def open(self, output: Output) -> None:
        # Add first, then check: `uninstall` does it the other way round, so that one of them sees the other.
        self._open.add(output)
        if sys.stdout is self._trusted_out and sys.stderr is self._trusted_err:
            return
        with self._lock:
            if len(self._open) == 1:
                self.distrust()
                for stand_in in self._both:
                    stand_in.put(stays=self._installs > 0)

    def close(self, output: Output) -> None:
        self._open.discard(output)
        if self._open or (sys.stdout is self._trusted_out and sys.stderr is self._trusted_err):
            return
        with self._lock:
            if self._open:
                return
            for stand_in in self._both:
                if self._installs:
                    stand_in.put_back()
                else:
                    # Even if the job has put its own stream there and left it.
                    stand_in.take_away()
            if self._installs:
                self._trust()

    def receiver(self) -> Output | None:
        chosen = _receiver.get()
        if isinstance(chosen, _Unset):
            is_open = tuple(self._open)
            return is_open[0] if len(is_open) == 1 else None
        return chosen if chosen in self._open else None

    def have(self, stream: object) -> bool:
        return any(stream is stand_in.stream for stand_in in self._both)


_streams = _Streams()


@contextmanager
def streams_installed() -> Generator[None]:
    """Leave the stand-ins in place between jobs: swapping the streams costs more than the rest of an output."""
    _streams.install()
    try:
        yield
    finally:
        _streams.uninstall()


def output_here(*, even_unclaimed: bool) -> Output | None:
    """The output of the job whose code is running; with `even_unclaimed`, also for a thread without a context."""
    return _streams.receiver() if even_unclaimed or not isinstance(_receiver.get(), _Unset) else None


def is_stand_in(stream: object) -> bool:
    """Whether a job's writes to this stream are captured."""
    return _streams.have(stream)


@contextmanager
def outside_the_job() -> Generator[None]:
    """Let what this context prints inside the block go to the real streams."""
    token = _receiver.set(None)
    try:
        yield
    finally:
        _receiver.reset(token)
