"""Interrupting an attempt: when its time is up, or when another thread asks.

On the main thread a signal (SIGALRM) raises inside whatever Python code is running there. Off the main thread, and
where there is no such signal, nothing can be raised: the attempt is told through a flag and judged when it ends.
Code that stays inside C for long is not reached either; killing the process is left to the worker.
"""

import math
import signal
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
_HAS_ALARM: Final = hasattr(signal, "setitimer") and hasattr(signal, "pthread_kill")


class JobInterrupted(BaseException):
    """The attempt shall stop, since the worker does. No Exception, so that `except Exception` lets it pass."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class JobTimeout(JobInterrupted):
    """The attempt has run longer than its timeout."""


class JobCancelRequested(JobInterrupted):
    """Somebody has cancelled the job."""


class Ended(Struct, frozen=True, kw_only=True):
    """How a guarded call ended. `stopped_by` was asked before it did and decides, whatever the call made of it.

    `was_raised` says that an interrupt was really thrown into the code, which may have left things half done.
    """

    value: Any = None
    raised: BaseException | None = None
    stopped_by: JobInterrupted | None = None
    was_raised: bool = False


class Timeout:
    """Guards one call. `limit_s` 0 is no limit; `grace_s` is how much later the signal comes, where something gentler
    (cancelling a coroutine) is to have the first try.

    Code that swallows an interrupt is interrupted again every `repeat_s`.
    """

    def __init__(self, limit_s: float = 0.0, *, grace_s: float = 0.0, repeat_s: float = REPEAT_S) -> None:
        self.limit_s = limit_s
        self.gently: Callable[[], object] | None = None
        """How another thread asks first, if there is a gentler way than a signal."""
        self._grace_s = grace_s
        self._repeat_s = repeat_s
        self._started = math.inf
        self._armed = False
        self._over = False
        self._on_main = False
        self._stopped_by: JobInterrupted | None = None
        self._was_raised = False
        self._ctrl_c = False
        self._held = 0
        self._due = False
        # Reentrant, since a signal handler of the worker may interrupt() while this very thread holds it.
        self._lock = threading.RLock()

    def run(self, function: Callable[[], object]) -> Ended:
        """Call it and say how it ended. Only a real Ctrl-C is raised from here, also if the function swallowed it."""
        if self._stopped_by is not None:
            return Ended(stopped_by=self._stopped_by)
        value: object = None
        raised: BaseException | None = None
        signals = _Signals(self)
        self._on_main = signals.taken
        self._started = time.monotonic()
        try:
            try:
                self._armed = True
                self.wind()
                value = function()
            finally:
                # From this assignment on a signal raises nothing. One that comes before it is still caught below.
                self._armed = False
        except BaseException as problem:
            raised = problem
        with self._lock:  # an interrupt() in another thread has sent its signal, or finds that it is too late
            self._over = True
            signals.give_back()
        if self._ctrl_c:
            signals.pass_ctrl_c_on()
            raise KeyboardInterrupt
        if self._stopped_by is None and self.is_overdue():
            self._stopped_by = self._timed_out()
        try:
            return Ended(value=value, raised=raised, stopped_by=self._stopped_by, was_raised=self._was_raised)
        finally:
            del raised  # its traceback holds this frame: kept here, it would live until the next garbage collection

    def interrupt(self, why: JobInterrupted) -> bool:
        """Ask the call to stop, from any thread; False if it has ended already. The first reason given counts.

        One that has not begun is not begun any more.
        """
        with self._lock:
            if self._over:
                return False
            if self._stopped_by is not None:
                return True
            self._stopped_by = why
            if not self._armed:
                return True
            gently = self.gently
            if gently is not None:
                gently()
            if self._on_main:
                signal.setitimer(signal.ITIMER_REAL, _NUDGE_S if gently is None else self._repeat_s, _NUDGE_S)
                if gently is None:
                    signal.pthread_kill(_main_ident(), signal.SIGALRM)
            return True

    def expire(self) -> None:
        """Note that the time is up, for whoever has noticed it before the signal."""
        if self._stopped_by is None:
            self._stopped_by = self._timed_out()

    def is_overdue(self) -> bool:
        return 0 < self.limit_s <= time.monotonic() - self._started

    def stop_asked(self) -> bool:
        """Whether the call shall stop; all there is to see where no signal can be raised."""
        return self._stopped_by is not None or self.is_overdue()

    @contextmanager
    def held_back(self) -> Generator[None]:
        """Raise nothing inside the block, but right after it."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._held == 0 and self._due:
                self._due = False
                if self._ctrl_c:
                    raise KeyboardInterrupt
                self.ring()

    def wind(self) -> None:
        """Set the timer for what is due next; without anything, stop it."""
        if not self._on_main:
            return
        if self._stopped_by is not None:
            signal.setitimer(signal.ITIMER_REAL, _SOON_S, _NUDGE_S)
        elif self.limit_s > 0:
            left = self._started + self.limit_s + self._grace_s - time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, max(left, _SOON_S), _NUDGE_S)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def ring(self) -> None:
        """The signal has come: raise what is due, if anything is. Alarms of others are not ours to obey."""
        if not self._armed:
            return
        if self._stopped_by is None:
            if not self.is_overdue():
                return
            self._stopped_by = self._timed_out()
        if self._held:
            self._due = True
            return
        self._was_raised = True
        signal.setitimer(signal.ITIMER_REAL, self._repeat_s, self._repeat_s)
        # A new object each time: one raised twice would drag its first traceback along.
        raise type(self._stopped_by)(*self._stopped_by.args)

    def ctrl_c(self) -> None:
        """A real Ctrl-C: raised like Python's own, and remembered, so that it gets through in the end."""
        self._ctrl_c = True
        if self._held:
            self._due = True
        elif self._armed:
            self._was_raised = True
            raise KeyboardInterrupt

    def ctrl_c_passed(self) -> None:
        """A Ctrl-C that a call inside this one has met is on its way up."""
        self._ctrl_c = True

    def _timed_out(self) -> JobTimeout:
        return JobTimeout(f"ran longer than its timeout of {self.limit_s:g} s")


class _Ringing:
    """Which timeout the next signal belongs to, and whether our handlers stay; touched by the main thread only."""

    timeout: Timeout | None = None
    kept = False
    look_again_at = 0.0


_ringing = _Ringing()


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    if _ringing.timeout is not None:
        _ringing.timeout.ring()


def _on_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    if _ringing.timeout is None:
        raise KeyboardInterrupt
    _ringing.timeout.ctrl_c()


class _Signals:
    """SIGALRM, its timer and SIGINT, lent to one timeout on the main thread and given back as they were."""

    def __init__(self, timeout: Timeout) -> None:
        self.taken = _is_main_thread()
        self._outer: Timeout | None = None
        self._handlers: _Handlers | None = None
        if not self.taken:
            return
        self._outer = _ringing.timeout
        if self._outer is None and not _ringing.kept:
            self._handlers = _Handlers()
        elif self._outer is None and time.monotonic() >= _ringing.look_again_at:
            # A job may have put a handler of its own there and left it. Looking costs more than all the rest of
            # guarding a call, so it is done once a second.
            _Handlers()
            _ringing.look_again_at = time.monotonic() + 1.0
        _ringing.timeout = timeout

    def pass_ctrl_c_on(self) -> None:
        """Let it get through the call around this one as well."""
        if self._outer is not None:
            self._outer.ctrl_c_passed()

    def give_back(self) -> None:
        if not self.taken:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        _ringing.timeout = self._outer
        if self._handlers is not None:
            self._handlers.restore()
        elif self._outer is not None:
            self._outer.wind()


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
    if _ringing.kept or not _is_main_thread():
        yield
        return
    handlers = _Handlers()
    _ringing.kept = True
    _ringing.look_again_at = time.monotonic() + 1.0
    try:
        yield
    finally:
        _ringing.kept = False
        handlers.restore()


def _is_main_thread() -> bool:
    return _HAS_ALARM and threading.get_ident() == _main_ident()


def _main_ident() -> int:
    # Asked each time: after a fork the thread that forked is the main one.
    ident = threading.main_thread().ident
    return ident if ident is not None else -1
