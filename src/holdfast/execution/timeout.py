"""Interrupting an attempt: when its time is up, or when another thread asks.

On the main thread a signal (SIGALRM) raises inside whatever Python code is running there. Off the main thread, and
where there is no such signal, nothing can be raised: the attempt is told through a flag and judged when it ends.
Code that stays inside C for long is not reached either; killing the process is left to the worker.
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
# A signal that comes just before a blocking call begins does not end that call: send it again until it is heard.
_NUDGE_S: Final = 0.05
_SOON_S: Final = 0.000_001  # the shortest a timer can be set to; 0 would switch it off
_IDLE_S: Final = 3600.0
_HAS_ALARM: Final = hasattr(signal, "setitimer") and hasattr(signal, "pthread_kill")

# Between the end of a call and an interrupt from another thread. Reentrant, since a signal handler of the worker may
# interrupt() while this very thread holds it; one for all calls, since it is held for a moment only.
_lock = threading.RLock()


class JobInterrupted(BaseException):
    """The attempt shall stop, since the worker does. No Exception, so that `except Exception` lets it pass."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class JobTimeout(JobInterrupted):
    """The attempt has run longer than its timeout."""


class JobCancelRequested(JobInterrupted):
    """Somebody has cancelled the job."""


class CallResult(Struct, frozen=True, kw_only=True):
    """How a guarded call ended. `stopped_by` was asked before it did and decides, whatever the call made of it.

    `was_raised` says that an interrupt was really thrown into the code, which may have left things half done.
    """

    value: Any = None
    raised: BaseException | None = None
    stopped_by: JobInterrupted | None = None
    was_raised: bool = False


_WENT_WELL: Final = CallResult()


class Timeout:
    """Guards one call. `limit_s` 0 is no limit; `grace_s` is how much later the signal comes, where something gentler
    (cancelling a coroutine) is to have the first try.

    Code that swallows an interrupt is interrupted again every `repeat_s`.
    """

    gently: Callable[[], object] | None = None
    """How another thread asks first, if there is a gentler way than a signal."""
    is_on_main = False
    """Whether the call is made where a signal can raise."""
    thread = -1
    """Where the guarded code runs."""
    stopped_by: JobInterrupted | None = None
    """What was asked of the call; the first reason counts."""

    # Most calls never touch these, and every job makes a Timeout: what is on the class need not be set.
    _started = math.inf
    _rings_at = math.inf
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
        """Call it and say how it ended. Only a real Ctrl-C is raised from here, also if the function swallowed it."""
        if self.stopped_by is not None:
            return CallResult(stopped_by=self.stopped_by)
        value: object = None
        raised: BaseException | None = None
        self.thread = thread = threading.get_ident()
        self.is_on_main = on_main = _HAS_ALARM and thread == _main_ident
        self._started = started = time.monotonic()
        if self.limit_s > 0:
            self._rings_at = started + self.limit_s + self._grace_s
        lent = _lend_signals(self) if on_main else None
        try:
            try:
                self._armed = True
                if on_main:
                    self._wind_first(lent)
                value = function(*args)
            finally:
                # From this assignment on a signal raises nothing. One that comes before it is still caught below.
                self._armed = False
        except BaseException as problem:
            raised = problem
        with _lock:  # an interrupt() in another thread has sent its signal, or finds that it is too late
            self._over = True
            if on_main:
                _take_back_signals(self, lent)
        if self._ctrl_c:
            if lent is not None and lent.outer is not None:
                lent.outer.ctrl_c_passed()
            raise KeyboardInterrupt
        try:
            return self._ended(value, raised)
        finally:
            del raised  # its traceback holds this frame: kept here, it would live until the next garbage collection

    def begin(self) -> None:
        """A call begins that is not made by `run`: a coroutine among others. It heeds `gently` and the limit itself."""
        self.thread = threading.get_ident()
        self._started = time.monotonic()
        self._armed = True

    def end(self, value: object = None, raised: BaseException | None = None) -> CallResult:
        """That call is over: how it ended."""
        with _lock:
            self._armed = False
            self._over = True
        return self._ended(value, raised)

    def _ended(self, value: object, raised: BaseException | None) -> CallResult:
        if self.stopped_by is None and self.is_overdue():
            self.stopped_by = self._timed_out()
        if value is None and raised is None and self.stopped_by is None and not self._was_raised:
            return _WENT_WELL
        return CallResult(value=value, raised=raised, stopped_by=self.stopped_by, was_raised=self._was_raised)

    def soften(self, gently: Callable[[], object] | None) -> None:
        """Set how to ask first; if somebody has asked already, that is done now."""
        with _lock:
            self.gently = gently
            if gently is not None and self.stopped_by is not None:
                gently()

    def interrupt(self, why: JobInterrupted) -> bool:
        """Ask the call to stop, from any thread; False if it has ended already. The first reason given counts.

        One that has not begun is not begun any more.
        """
        with _lock:
            if self._over:
                return False
            if self.stopped_by is not None:
                return True
            gently = self.gently
            # Before the reason: a signal that comes in between must find both, and obey neither too early.
            self._rings_at = -math.inf if gently is None else time.monotonic() + self.repeat_s
            self.stopped_by = why
            if not self._armed:
                return True
            if gently is not None:
                gently()
            if self.is_on_main:
                signal.setitimer(signal.ITIMER_REAL, _NUDGE_S if gently is None else self.repeat_s, _NUDGE_S)
                if gently is None:
                    signal.pthread_kill(_main_ident, signal.SIGALRM)
            return True

    def expire(self) -> None:
        """Note that the time is up, for whoever has noticed it before the signal."""
        if self.stopped_by is None:
            self.stopped_by = self._timed_out()

    def is_overdue(self) -> bool:
        return 0 < self.limit_s <= time.monotonic() - self._started

    def reason(self) -> JobInterrupted | None:
        """Why the call ends as stopped, whatever it still returns; from now on that is why, if its time is up."""
        if self.is_overdue():
            self.expire()
        return self.stopped_by

    def stop_asked(self) -> bool:
        """Whether the call shall stop; all there is to see where no signal can be raised."""
        return self.stopped_by is not None or self.is_overdue()

    @contextmanager
    def held_back(self) -> Generator[None]:
        """Raise nothing inside the block, but right after it. Nothing is raised into other threads of a job anyway."""
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

    def put_off(self) -> bool:
        """Whether a block holds interrupts back just now; if so, its end raises what is due."""
        if self._held:
            self._due = True
        return self._held > 0

    def wind(self) -> None:
        """Set the timer for what is due next; without anything, stop it."""
        if not self.is_on_main:
            return
        if self._rings_at == math.inf:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            signal.setitimer(signal.ITIMER_REAL, max(self._rings_at - time.monotonic(), _SOON_S), _NUDGE_S)

    def _wind_first(self, lent: "_Lent | None") -> None:
        """Wind the timer for a call that begins. One that rings too early will do: it is then wound again."""
        if self.stopped_by is not None:  # by another thread, which did not find the call begun
            self._rings_at = -math.inf
            self.wind()
        elif lent is not None:
            self.wind()
        elif self._rings_at < math.inf:
            left_s = self._rings_at - self._started
            # Asked, not remembered: a job may have set the timer, or stopped it.
            if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= left_s:
                signal.setitimer(signal.ITIMER_REAL, left_s, _NUDGE_S)

    def ring(self) -> None:
        """The signal has come: raise what is due, if anything is. Alarms of others are not ours to obey."""
        if not self._armed:
            return
        if time.monotonic() < self._rings_at:
            self.wind()
            return
        if self.stopped_by is None:
            self.stopped_by = self._timed_out()
        if not self.put_off():
            self._raise()

    def _raise(self) -> None:
        if not self._armed or self.stopped_by is None:
            return
        self._was_raised = True
        if self.is_on_main:
            signal.setitimer(signal.ITIMER_REAL, self.repeat_s, self.repeat_s)
        # A new object each time: one raised twice would drag its first traceback along.
        raise type(self.stopped_by)(*self.stopped_by.args)

    def ctrl_c(self) -> None:
        """A real Ctrl-C: raised like Python's own, and remembered, so that it gets through in the end."""
        self._ctrl_c = True
        if not self.put_off() and self._armed:
            self._was_raised = True
            raise KeyboardInterrupt

    def ctrl_c_passed(self) -> None:
        """A Ctrl-C that a call inside this one has met is on its way up."""
        self._ctrl_c = True

    def _timed_out(self) -> JobTimeout:
        return JobTimeout(f"ran longer than its timeout of {self.limit_s:g} s")


class _Ringing:
    """Which timeout the next signal belongs to, and whether our handlers stay; touched by the main thread only.

    While they stay, the timer always runs: an hour, or less if a job needs less. Jobs that are over before it rings,
    which is nearly all of them, need not touch it.
    """

    timeout: Timeout | None = None
    kept = False


_ringing = _Ringing()
# What `signal.getsignal` asks, before it tries to make an enum of the answer: that costs more than running a short job.
_handler_of: Final[Callable[[int], object]] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    if _ringing.timeout is not None:
        _ringing.timeout.ring()
    elif _ringing.kept:
        signal.setitimer(signal.ITIMER_REAL, _IDLE_S)


def _on_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    if _ringing.timeout is None:
        raise KeyboardInterrupt
    _ringing.timeout.ctrl_c()


class _Lent(Struct, frozen=True):
    """Whom a call has displaced: the call around it, or other people's handlers."""

    outer: Timeout | None
    handlers: "_Handlers | None"


def _lend_signals(timeout: Timeout) -> _Lent | None:
    """Let SIGALRM, its timer and SIGINT belong to the timeout. None if nobody has to get them back: they are kept."""
    lent: _Lent | None = None
    if _ringing.timeout is not None or not _ringing.kept:
        lent = _Lent(_ringing.timeout, _Handlers() if _ringing.timeout is None else None)
    elif _handler_of(signal.SIGALRM) is not _on_alarm or _handler_of(signal.SIGINT) is signal.default_int_handler:
        _Handlers()  # a job has put a handler of its own there and left it
    _ringing.timeout = timeout
    return lent


def _take_back_signals(timeout: Timeout, lent: _Lent | None) -> None:
    if lent is None:
        _ringing.timeout = None
        if timeout.stopped_by is not None:  # the timer may be set to ring again and again
            signal.setitimer(signal.ITIMER_REAL, _IDLE_S)
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    _ringing.timeout = lent.outer
    if lent.handlers is not None:
        lent.handlers.restore()
    elif lent.outer is not None:
        lent.outer.wind()


class _Handlers:
    """Our handlers, put in the place of others, with the timer that was running for those.

    SIGINT is taken only from Python's own handler: whoever has installed another wants something else to happen.
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
    """Give SIGALRM back, after taking in what our timer still has under way.

    That signal is the process's, and another thread may be the one woken up for it. Left pending, it would meet the
    restored handler; and the default one ends the process.
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
def handlers_kept() -> Generator[None]:
    """Keep our signal handlers between calls: installing them is most of what guarding a call costs."""
    # Inside a guarded call they are in place already, and the timer is that call's.
    if _ringing.kept or _ringing.timeout is not None or not (_HAS_ALARM and threading.get_ident() == _main_ident):
        yield
        return
    handlers = _Handlers()
    _ringing.kept = True
    signal.setitimer(signal.ITIMER_REAL, _IDLE_S)
    try:
        yield
    finally:
        _ringing.kept = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        handlers.restore()


def _after_fork() -> None:
    """The thread that forked is the main one now, and none of the others exists."""
    global _main_ident, _lock
    _main_ident = threading.get_ident()
    _lock = threading.RLock()


_main_ident: int = threading.main_thread().ident or -1
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
