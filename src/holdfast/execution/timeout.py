"""Interrupts an attempt when its timeout expires, or when another thread asks for it.

On the main thread, a signal (SIGALRM) raises an exception in the Python code that is running. On other threads, and
on systems without that signal, nothing can be raised: a flag is set, and the outcome is determined when the attempt
ends. Code that stays inside C for long is not interrupted either; the worker kills its process.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from msgspec import Struct

REPEAT_S: Final = 1.0
# A signal that arrives just before a blocking call begins does not end that call, so it is sent again until it does.
_NUDGE_S: Final = 0.05
_SOON_S: Final = 0.000_001  # the shortest a timer can be set to; 0 would switch it off
_IDLE_S: Final = 3600.0
_HAS_ALARM: Final = hasattr(signal, "setitimer") and hasattr(signal, "pthread_kill")

# Serializes the end of a call with an interrupt from another thread. Reentrant, because a signal handler may call
# `interrupt` while this very thread holds it; one for all calls, because it is held only for a moment.
_lock = threading.RLock()


class JobInterrupted(BaseException):
    """The attempt must stop, because the worker does. A BaseException, so that `except Exception` does not catch it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class JobTimeout(JobInterrupted):
    """The attempt has run longer than its timeout."""


class JobCancelRequested(JobInterrupted):
    """The job was cancelled."""


class CallResult(Struct, frozen=True, kw_only=True):
    """The end of a guarded call. If `stopped_by` is set, it decides, whatever the call returned or raised.

    `was_raised` means that an interrupt was raised inside the code, which may have left things half done.
    """

    value: Any = None
    raised: BaseException | None = None
    stopped_by: JobInterrupted | None = None
    was_raised: bool = False


_RETURNED_NONE: Final = CallResult()


class Timeout:
    """Guards one call. A `limit_s` of 0 means no limit. `grace_s` delays the signal, so that something gentler
    (cancelling a coroutine) is tried first.

    Code that catches an interrupt and continues is interrupted again every `repeat_s`.
    """

    gentle_stop: Callable[[], object] | None = None
    """Asks the call to stop, if there is a gentler way than a signal."""
    is_on_main = False
    """Whether the call runs on the main thread, where a signal can raise."""
    thread = -1
    """The thread that runs the guarded code."""
    stopped_by: JobInterrupted | None = None
    """Why the call must stop; the first reason counts."""

    # Every job creates a Timeout, and most of them never change these: as class attributes they cost nothing.
    _started = math.inf
    _interrupt_at = math.inf
    _armed = False
    _over = False
    _was_raised = False
    _ctrl_c = False
    _held = 0
    _due = False

    def __init__(self, limit_s: float = 0.0, *, grace_s: float = 0.0, repeat_s: float = REPEAT_S) -> None:
        self.limit_s = limit_s
        self._grace_s = grace_s
        self.repeat_s = repeat_s

    def run(self, function: Callable[..., object], *args: object) -> CallResult:
        """Call the function and return how it ended. Only a real Ctrl-C is raised, even if the function caught it."""
        if self.stopped_by is not None:
            return CallResult(stopped_by=self.stopped_by)
        value: object = None
        raised: BaseException | None = None
        self.thread = thread = threading.get_ident()
        self.is_on_main = on_main = _HAS_ALARM and thread == _main_ident
        self._started = started = time.monotonic()
        if self.limit_s > 0:
            self._interrupt_at = started + self.limit_s + self._grace_s
        replaced = _take_signals(self) if on_main else None
        try:
            try:
                self._armed = True
                if on_main:
                    self._set_first_timer(replaced)
                value = function(*args)
            finally:
                # From this assignment on, a signal raises nothing. What an earlier one raises is caught below.
                self._armed = False
        except BaseException as problem:
            raised = problem
        with _lock:  # an `interrupt` in another thread has either sent its signal or comes too late
            self._over = True
            if on_main:
                _restore_signals(self, replaced)
        if self._ctrl_c:
            if replaced is not None and replaced.outer is not None:
                replaced.outer.ctrl_c_passed()
            raise KeyboardInterrupt
        try:
            return self._ended(value, raised)
        finally:
            del raised  # its traceback refers to this frame: the cycle would live until the next garbage collection

    def begin(self) -> None:
        """Begin a call that is not made by `run`: a coroutine, which obeys `gentle_stop` and the limit itself."""
        self.thread = threading.get_ident()
        self._started = time.monotonic()
        self._armed = True

    def end(self, value: object = None, raised: BaseException | None = None) -> CallResult:
        """End that call and return how it ended."""
        with _lock:
            self._armed = False
            self._over = True
        return self._ended(value, raised)

    def _ended(self, value: object, raised: BaseException | None) -> CallResult:
        if self.stopped_by is None and self.is_overdue():
            self.stopped_by = self._timed_out()
        if value is None and raised is None and self.stopped_by is None and not self._was_raised:
            return _RETURNED_NONE
        return CallResult(value=value, raised=raised, stopped_by=self.stopped_by, was_raised=self._was_raised)

    def set_gentle_stop(self, gentle_stop: Callable[[], object] | None) -> None:
        """Set `gentle_stop`, and call it now if the call was already interrupted."""
        with _lock:
            self.gentle_stop = gentle_stop
            if gentle_stop is not None and self.stopped_by is not None:
                gentle_stop()

    def interrupt(self, why: JobInterrupted) -> bool:
        """Ask the call to stop, from any thread. Returns False if it has already ended. The first reason counts.

        A call that has not begun will not begin.
        """
        with _lock:
            if self._over:
                return False
            if self.stopped_by is not None:
                return True
            gentle_stop = self.gentle_stop
            # Set before the reason: a signal in between must not act on the reason too early.
            self._interrupt_at = -math.inf if gentle_stop is None else time.monotonic() + self.repeat_s
            self.stopped_by = why
            if not self._armed:
                return True
            if gentle_stop is not None:
                gentle_stop()
            if self.is_on_main:
                signal.setitimer(signal.ITIMER_REAL, _NUDGE_S if gentle_stop is None else self.repeat_s, _NUDGE_S)
                if gentle_stop is None:
                    signal.pthread_kill(_main_ident, signal.SIGALRM)
            return True

    def expire(self) -> None:
        """Record that the timeout has expired, for code that notices it before the signal."""
        if self.stopped_by is None:
            self.stopped_by = self._timed_out()

    def is_overdue(self) -> bool:
        return 0 < self.limit_s <= time.monotonic() - self._started

    def reason(self) -> JobInterrupted | None:
        """Why the call is stopped, whatever it still returns. An expired timeout is recorded as the reason."""
        if self.is_overdue():
            self.expire()
        return self.stopped_by

    def stop_asked(self) -> bool:
        """Whether the call must stop; the only notice where no signal can be raised."""
        return self.stopped_by is not None or self.is_overdue()

    @contextmanager
    def held_back(self) -> Generator[None]:
        """Raise interrupts only after the block. In other threads of a job, nothing is ever raised."""
        if threading.get_ident() != self.thread:
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._held == 0 and self._due:
                self._due = False
                if self._ctrl_c:
                    raise KeyboardInterrupt
                self._raise()

    def defer(self) -> bool:
        """Whether a `held_back` block is active; if so, its end raises the interrupt."""
        if self._held:
            self._due = True
        return self._held > 0

    def set_timer(self) -> None:
        """Set the timer for the next interrupt, or stop it if there is none."""
        if not self.is_on_main:
            return
        if self._interrupt_at == math.inf:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            signal.setitimer(signal.ITIMER_REAL, max(self._interrupt_at - time.monotonic(), _SOON_S), _NUDGE_S)

    def _set_first_timer(self, replaced: "_Replaced | None") -> None:
        """Set the timer for a call that begins. A timer that rings too early is good enough: it is then set again."""
        if self.stopped_by is not None:  # by another thread, before the call began
            self._interrupt_at = -math.inf
            self.set_timer()
        elif replaced is not None:
            self.set_timer()
        elif self._interrupt_at < math.inf:
            left_s = self._interrupt_at - self._started
            # Read from the system each time: a job may have set or stopped the timer.
            if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= left_s:
                signal.setitimer(signal.ITIMER_REAL, left_s, _NUDGE_S)

    def on_signal(self) -> None:
        """Handle the signal: raise the interrupt if one is due. The alarm may also be someone else's."""
        if not self._armed:
            return
        if time.monotonic() < self._interrupt_at:
            self.set_timer()
            return
        if self.stopped_by is None:
            self.stopped_by = self._timed_out()
        if not self.defer():
            self._raise()

    def _raise(self) -> None:
        if not self._armed or self.stopped_by is None:
            return
        self._was_raised = True
        if self.is_on_main:
            signal.setitimer(signal.ITIMER_REAL, self.repeat_s, self.repeat_s)
        # A new object each time: an exception that is raised twice keeps its first traceback.
        raise type(self.stopped_by)(*self.stopped_by.args)

    def ctrl_c(self) -> None:
        """Handle a real Ctrl-C: raise it like Python does, and remember it, in case the code catches it."""
        self._ctrl_c = True
        if not self.defer() and self._armed:
            self._was_raised = True
            raise KeyboardInterrupt

    def ctrl_c_passed(self) -> None:
        """Record a Ctrl-C that a call inside this one is passing on."""
        self._ctrl_c = True

    def _timed_out(self) -> JobTimeout:
        return JobTimeout(f"ran longer than its timeout of {self.limit_s:g} s")


class _SignalOwner:
    """The timeout that the next signal belongs to, and whether our handlers stay installed; main thread only.

    While they stay, the timer always runs, for an hour or less. Jobs that finish before it rings, which is nearly all
    of them, do not have to set it.
    """

    timeout: Timeout | None = None
    stays = False


_owner = _SignalOwner()
# What `signal.getsignal` calls before it converts the answer to an enum, which costs more than running a short job.
_handler_of: Final[Callable[[int], object]] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    if _owner.timeout is not None:
        _owner.timeout.on_signal()
    elif _owner.stays:
        signal.setitimer(signal.ITIMER_REAL, _IDLE_S)


def _on_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    if _owner.timeout is None:
        raise KeyboardInterrupt
    _owner.timeout.ctrl_c()


class _Replaced(Struct, frozen=True):
    """The call around a call, or the foreign signal handlers, to be restored after it."""

    outer: Timeout | None
    handlers: "_Handlers | None"


def _take_signals(timeout: Timeout) -> _Replaced | None:
    """Assign SIGALRM, its timer and SIGINT to the timeout. Returns None if there is nothing to restore afterwards."""
    replaced: _Replaced | None = None
    if _owner.timeout is not None or not _owner.stays:
        replaced = _Replaced(_owner.timeout, _Handlers() if _owner.timeout is None else None)
    elif _handler_of(signal.SIGALRM) is not _on_alarm or _handler_of(signal.SIGINT) is signal.default_int_handler:
        _Handlers()  # a job has installed its own handler and left it
    _owner.timeout = timeout
    return replaced


def _restore_signals(timeout: Timeout, replaced: _Replaced | None) -> None:
    if replaced is None:
        _owner.timeout = None
        if timeout.stopped_by is not None:  # the timer may be set to repeat
            signal.setitimer(signal.ITIMER_REAL, _IDLE_S)
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    _owner.timeout = replaced.outer
    if replaced.handlers is not None:
        replaced.handlers.restore()
    elif replaced.outer is not None:
        replaced.outer.set_timer()


class _Handlers:
    """Installs our handlers, and remembers the previous ones and their running timer.

    SIGINT is replaced only if it has Python's own handler: a program that has installed another one wants that one.
    """

    def __init__(self) -> None:
        self._timer = (0.0, 0.0)
        self._stopped_at = time.monotonic()
        self._alarm: Any = None
        self._ctrl_c: Any = None
        if signal.getsignal(signal.SIGALRM) is not _on_alarm:
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
            self._alarm = signal.signal(signal.SIGALRM, _on_alarm)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._ctrl_c = signal.signal(signal.SIGINT, _on_ctrl_c)

    def restore(self) -> None:
        if self._alarm is not None:
            _restore_alarm(self._alarm)
        if self._ctrl_c is not None and signal.getsignal(signal.SIGINT) is _on_ctrl_c:
            signal.signal(signal.SIGINT, self._ctrl_c)
        if self._timer[0] > 0:
            left = self._timer[0] - (time.monotonic() - self._stopped_at)
            signal.setitimer(signal.ITIMER_REAL, max(left, _SOON_S), self._timer[1])


def _restore_alarm(handler: Any) -> None:
    """Restore the handler of SIGALRM, after consuming signals of our timer that are still pending.

    A pending signal would reach the restored handler, and the default one terminates the process. The kernel may
    deliver the signal to any thread of the process.
    """
    alarm = {signal.SIGALRM}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, alarm)
    try:
        while hasattr(signal, "sigtimedwait") and signal.sigtimedwait(alarm, 0) is not None:
            pass
        signal.signal(signal.SIGALRM, handler)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def handlers_installed() -> Generator[None]:
    """Leave our signal handlers installed between calls: installing them is most of the cost of guarding a call."""
    # Inside a guarded call they are already installed, and the timer belongs to that call.
    if _owner.stays or _owner.timeout is not None or not (_HAS_ALARM and threading.get_ident() == _main_ident):
        yield
        return
    handlers = _Handlers()
    _owner.stays = True
    signal.setitimer(signal.ITIMER_REAL, _IDLE_S)
    try:
        yield
    finally:
        _owner.stays = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        handlers.restore()


def _after_fork() -> None:
    """In the child, the thread that forked is the main thread, and no other thread exists."""
    global _main_ident, _lock
    _main_ident = threading.get_ident()
    _lock = threading.RLock()


_main_ident: int = threading.main_thread().ident or -1
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
