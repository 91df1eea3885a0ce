"""Interrupting a call: in time, again if necessary, and never after it has ended."""

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import pytest

from holdfast.execution import timeout as timeout_module
from holdfast.execution.timeout import (
    CallResult,
    JobCancelRequested,
    JobInterrupted,
    JobTimeout,
    Timeout,
    handlers_installed,
)

# Long enough that the work has started before the limit is reached, even on a busy machine.
SHORT_S = 0.4


@pytest.fixture
def default_ctrl_c() -> Generator[None]:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


class Counter:
    """A signal handler that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1


def on_a_thread(call: Callable[[], CallResult]) -> CallResult:
    ended: list[CallResult] = []
    thread = threading.Thread(target=lambda: ended.append(call()))
    thread.start()
    thread.join()
    return ended[0]


def spin_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, "nobody interrupted"


def test_a_call_in_time_gives_its_value() -> None:
    assert Timeout(30).run(lambda: 5) == CallResult(value=5)


def test_what_a_call_raises_is_said_and_not_raised() -> None:
    problem = SystemExit(3)

    def call() -> None:
        raise problem

    assert Timeout(30).run(call).raised is problem


@pytest.mark.parametrize("limit_s", [0.05, 0.000_000_1])
def test_a_call_is_interrupted_when_its_time_is_up_however_short(limit_s: float) -> None:
    started = time.monotonic()
    ended = Timeout(limit_s).run(lambda: time.sleep(30))
    assert time.monotonic() - started < 10
    assert isinstance(ended.raised, JobTimeout)
    assert isinstance(ended.stopped_by, JobTimeout)
    assert ended.was_raised


def test_a_busy_loop_is_interrupted_too() -> None:
    assert isinstance(Timeout(0.05).run(lambda: spin_until(lambda: False)).raised, JobTimeout)


def test_the_reason_says_the_limit() -> None:
    ended = Timeout(0.05).run(lambda: time.sleep(30))
    assert str(ended.raised) == "ran longer than its timeout of 0.05 s"


def test_no_limit_sets_no_timer() -> None:
    assert Timeout(0).run(lambda: signal.getitimer(signal.ITIMER_REAL)).value == (0.0, 0.0)


def test_except_exception_does_not_swallow_an_interrupt() -> None:
    def stubborn() -> str:
        with suppress(Exception):
            time.sleep(30)
        return "swallowed"

    assert isinstance(Timeout(0.05).run(stubborn).raised, JobTimeout)


def test_a_call_that_swallows_the_interrupt_is_interrupted_again() -> None:
    swallowed: list[BaseException] = []

    def deaf() -> None:
        while len(swallowed) < 3:
            try:
                time.sleep(30)
            except BaseException as interrupt:
                swallowed.append(interrupt)
        time.sleep(30)

    ended = Timeout(SHORT_S, repeat_s=SHORT_S).run(deaf)
    assert isinstance(ended.raised, JobTimeout)
    assert [type(interrupt) for interrupt in swallowed] == [JobTimeout] * 3
    assert len({id(interrupt) for interrupt in [*swallowed, ended.raised]}) == 4


def test_a_call_that_swallowed_the_interrupt_and_returned_was_stopped_all_the_same() -> None:
    def deaf() -> str:
        try:
            time.sleep(30)
        except BaseException:
            return "done after all"
        return "never"

    ended = Timeout(SHORT_S).run(deaf)
    assert (ended.value, ended.raised) == ("done after all", None)
    assert isinstance(ended.stopped_by, JobTimeout)


def test_another_thread_can_interrupt_with_its_reason() -> None:
    timeout = Timeout(0)
    begun = threading.Event()
    answers: list[bool] = []

    def interrupt() -> None:
        begun.wait(10)
        answers.append(timeout.interrupt(JobCancelRequested("no longer wanted")))
        answers.append(timeout.interrupt(JobInterrupted("too late to be the reason")))

    def call() -> None:
        begun.set()
        time.sleep(30)

    thread = threading.Thread(target=interrupt)
    thread.start()
    ended = timeout.run(call)
    thread.join()
    assert isinstance(ended.raised, JobCancelRequested)
    assert isinstance(ended.stopped_by, JobCancelRequested)
    assert ended.stopped_by.reason == "no longer wanted"
    assert answers[0]


def test_an_interrupt_from_another_thread_is_repeated_too() -> None:
    timeout = Timeout(0, repeat_s=SHORT_S)
    begun = threading.Event()
    swallowed: list[BaseException] = []

    def call() -> None:
        begun.set()
        while len(swallowed) < 2:
            try:
                time.sleep(30)
            except BaseException as interrupt:
                swallowed.append(interrupt)
        time.sleep(30)

    thread = threading.Thread(target=lambda: begun.wait(10) and timeout.interrupt(JobCancelRequested()))
    thread.start()
    ended = timeout.run(call)
    thread.join()
    assert isinstance(ended.raised, JobCancelRequested)


def test_an_interrupt_after_the_end_changes_nothing() -> None:
    timeout = Timeout(30)
    ended = timeout.run(lambda: 5)
    assert not timeout.interrupt(JobCancelRequested())
    assert ended == CallResult(value=5)


def test_a_call_interrupted_before_it_began_is_not_begun() -> None:
    timeout = Timeout(30)
    assert timeout.interrupt(JobCancelRequested("early"))
    ended = timeout.run(lambda: pytest.fail("it was begun"))
    assert isinstance(ended.stopped_by, JobCancelRequested)


@pytest.mark.parametrize("keeping", [handlers_installed, nullcontext])
def test_a_call_interrupted_just_as_it_begins_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, keeping: Callable[[], AbstractContextManager[None]]
) -> None:
    lend = timeout_module._take_signals  # pyright: ignore[reportPrivateUsage]

    def interrupted_meanwhile(timeout: Timeout) -> object:
        assert timeout.interrupt(JobCancelRequested("just now"))
        return lend(timeout)

    with keeping():
        monkeypatch.setattr(timeout_module, "_take_signals", interrupted_meanwhile)
        ended = Timeout(20).run(lambda: time.sleep(20))
    assert isinstance(ended.raised, JobCancelRequested)


def test_a_signal_handler_of_the_same_thread_can_interrupt() -> None:
    timeout = Timeout(0)

    def on_signal(*_: object) -> None:
        timeout.interrupt(JobInterrupted("stopping"))

    def call() -> None:
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(30)

    previous = signal.signal(signal.SIGUSR1, on_signal)
    try:
        ended = timeout.run(call)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert isinstance(ended.raised, JobInterrupted)


def test_a_gentler_way_is_tried_before_the_signal() -> None:
    timeout = Timeout(0, repeat_s=SHORT_S)
    asked = threading.Event()
    timeout.gentle_stop = asked.set
    seen: list[bool] = []

    def call() -> None:
        timeout.interrupt(JobCancelRequested())
        seen.append(asked.is_set())
        time.sleep(30)

    ended = timeout.run(call)
    assert seen == [True]
    assert isinstance(ended.raised, JobCancelRequested)


def test_a_gentler_way_that_comes_after_the_interrupt_is_taken_at_once() -> None:
    timeout = Timeout(0)
    asked = threading.Event()

    def call() -> bool:
        timeout.interrupt(JobCancelRequested())
        timeout.set_gentle_stop(asked.set)
        return asked.is_set()

    assert on_a_thread(lambda: timeout.run(call)).value is True


def test_an_alarm_that_is_not_due_is_not_obeyed() -> None:
    def call() -> str:
        signal.raise_signal(signal.SIGALRM)
        return "undisturbed"

    assert Timeout(30).run(call) == CallResult(value="undisturbed")


def test_the_handler_and_the_timer_of_others_come_back() -> None:
    def theirs(*_: object) -> None: ...

    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.signal(signal.SIGALRM, theirs)
    signal.setitimer(signal.ITIMER_REAL, 1000, 7)
    try:
        Timeout(0.02).run(lambda: time.sleep(30))
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert signal.getsignal(signal.SIGALRM) is theirs
        assert 900 < left < 999.99
        assert interval == 7
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def test_a_timer_of_others_that_came_due_meanwhile_fires_afterwards() -> None:
    rung = Counter()
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.signal(signal.SIGALRM, rung)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        Timeout(0.05).run(lambda: time.sleep(30))
        spin_until(lambda: rung.count > 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@pytest.fixture
def no_collection() -> Generator[None]:
    """An interrupt raised inside the garbage collector is reported and lost; with thousands of them, one would be."""
    gc.disable()
    yield
    gc.enable()


def calls_about_as_long_as_their_limit(turns: int, *, each: Callable[[Timeout], object]) -> set[type[JobInterrupted]]:
    randomness = random.Random(7)

    def work(until: float) -> str:
        while time.perf_counter() < until:
            pass
        return "done"

    reasons: set[type[JobInterrupted]] = set()
    for _ in range(turns):
        timeout = Timeout(randomness.uniform(0.000_05, 0.000_3), repeat_s=0.000_05)
        each(timeout)
        until = time.perf_counter() + randomness.uniform(0.000_05, 0.000_3)
        ended = timeout.run(partial(work, until))
        assert ended.value == "done" or ended.stopped_by is not None
        if ended.stopped_by is not None:
            reasons.add(type(ended.stopped_by))
    return reasons


@pytest.mark.usefixtures("no_collection")
def test_an_alarm_just_at_the_end_never_escapes() -> None:
    strays = Counter()
    previous = signal.signal(signal.SIGALRM, strays)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        assert calls_about_as_long_as_their_limit(1000, each=lambda timeout: None) == {JobTimeout}
    finally:
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert strays.count == 0


@pytest.mark.usefixtures("no_collection")
def test_an_interrupt_from_another_thread_just_at_the_end_never_escapes() -> None:
    running: list[Timeout] = []
    stop = threading.Event()

    def pester() -> None:
        while not stop.is_set():
            for timeout in running[-1:]:
                timeout.interrupt(JobCancelRequested())

    thread = threading.Thread(target=pester)
    thread.start()
    try:
        with handlers_installed():
            reasons = calls_about_as_long_as_their_limit(1000, each=running.append)
    finally:
        stop.set()
        thread.join()
    assert JobCancelRequested in reasons


def test_an_interrupt_waits_for_the_end_of_a_block_that_holds_it_back() -> None:
    timeout = Timeout(SHORT_S)
    steps: list[str] = []

    def call() -> None:
        with timeout.held_back():
            long_after = time.monotonic() + 2 * SHORT_S
            spin_until(lambda: time.monotonic() > long_after)
            steps.append("whole")
        steps.append("never")

    assert isinstance(timeout.run(call).raised, JobTimeout)
    assert steps == ["whole"]


def test_off_the_main_thread_nothing_is_raised_and_an_overrun_is_judged_at_the_end() -> None:
    timeout = Timeout(0.02)
    ended = on_a_thread(lambda: timeout.run(lambda: spin_until(timeout.stop_asked)))
    assert ended.raised is None
    assert isinstance(ended.stopped_by, JobTimeout)
    assert not ended.was_raised


def test_off_the_main_thread_an_interrupt_is_a_flag() -> None:
    timeout = Timeout(0)
    begun = threading.Event()

    def call() -> str:
        begun.set()
        spin_until(timeout.stop_asked)
        return "saw it"

    threading.Thread(target=lambda: begun.wait(10) and timeout.interrupt(JobCancelRequested("stop"))).start()
    ended = on_a_thread(lambda: timeout.run(call))
    assert ended.value == "saw it"
    assert isinstance(ended.stopped_by, JobCancelRequested)


def test_a_call_inside_a_call_leaves_the_outer_limit_in_force() -> None:
    inner: list[CallResult] = []

    def outer() -> None:
        inner.append(Timeout(30).run(lambda: time.sleep(0.01)))
        inner.append(Timeout(0.01).run(lambda: time.sleep(30)))
        time.sleep(30)

    ended = Timeout(SHORT_S).run(outer)
    assert [type(one.raised) for one in inner] == [type(None), JobTimeout]
    assert isinstance(ended.raised, JobTimeout)
    assert str(ended.raised).endswith(f"{SHORT_S} s")


@pytest.mark.usefixtures("default_ctrl_c")
def test_a_real_ctrl_c_gets_through_even_if_the_call_swallows_it() -> None:
    def deaf() -> str:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            return "swallowed"
        return "not interrupted"

    with pytest.raises(KeyboardInterrupt):
        Timeout(30).run(deaf)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("default_ctrl_c")
def test_a_ctrl_c_in_a_held_block_waits_for_its_end() -> None:
    timeout = Timeout(30)
    steps: list[str] = []

    def call() -> None:
        with timeout.held_back():
            signal.raise_signal(signal.SIGINT)
            steps.append("whole")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        timeout.run(call)
    assert steps == ["whole"]


@pytest.mark.usefixtures("default_ctrl_c")
def test_a_ctrl_c_gets_through_a_call_inside_a_call() -> None:
    def outer() -> str:
        with suppress(BaseException):
            Timeout(30).run(lambda: signal.raise_signal(signal.SIGINT))
        return "swallowed"

    with pytest.raises(KeyboardInterrupt):
        Timeout(30).run(outer)


def test_a_keyboard_interrupt_raised_by_the_call_itself_is_only_what_it_raised() -> None:
    def call() -> None:
        raise KeyboardInterrupt

    assert isinstance(Timeout(30).run(call).raised, KeyboardInterrupt)


def test_somebody_elses_ctrl_c_handler_is_left_alone() -> None:
    pressed = Counter()
    previous = signal.signal(signal.SIGINT, pressed)
    try:
        ended = Timeout(30).run(lambda: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert pressed.count == 1
    assert ended == CallResult()


def test_kept_handlers_end_with_their_block() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with handlers_installed():
        kept = signal.getsignal(signal.SIGALRM)
        assert kept is not before
        assert isinstance(Timeout(0.01).run(lambda: time.sleep(30)).raised, JobTimeout)
        assert signal.getsignal(signal.SIGALRM) is kept
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_handler_that_a_job_left_behind_is_replaced_again() -> None:
    with handlers_installed():
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        assert isinstance(Timeout(0.01).run(lambda: time.sleep(30)).raised, JobTimeout)


def test_kept_handlers_of_an_inner_block_leave_the_limit_around_it_in_force() -> None:
    def outer() -> None:
        with handlers_installed():
            Timeout(30).run(lambda: None)
        time.sleep(30)

    assert isinstance(Timeout(0.05).run(outer).raised, JobTimeout)


@pytest.mark.parametrize("shorter_first", [False, True])
def test_with_kept_handlers_each_call_has_its_own_limit(shorter_first: bool) -> None:
    limits = [SHORT_S, 2 * SHORT_S] if shorter_first else [30, 0.03]
    with handlers_installed():
        for limit_s in limits[:-1]:
            assert Timeout(limit_s).run(lambda: 5) == CallResult(value=5)
        started = time.monotonic()
        ended = Timeout(limits[-1]).run(lambda: time.sleep(30))
        took = time.monotonic() - started
    assert isinstance(ended.raised, JobTimeout)
    assert limits[-1] <= took < 10


def test_with_kept_handlers_a_timer_wound_for_an_earlier_call_does_not_end_a_later_one() -> None:
    def work() -> str:
        until = time.monotonic() + 2 * SHORT_S
        spin_until(lambda: time.monotonic() > until)
        return "done"

    with handlers_installed():
        assert Timeout(SHORT_S).run(lambda: 5).value == 5
        assert Timeout(30).run(work) == CallResult(value="done")
        assert Timeout(SHORT_S).run(lambda: 5).value == 5
        assert Timeout(0).run(work) == CallResult(value="done")


def leave_a_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, 3600, 3600)


def leave_a_timer_that_rings_once() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.02)


def stop_the_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)


def swallow_an_interrupt() -> None:
    with suppress(JobTimeout):
        Timeout(0.01).run(lambda: time.sleep(30))


@pytest.mark.parametrize("fiddle", [leave_a_timer, leave_a_timer_that_rings_once, stop_the_timer, swallow_an_interrupt])
def test_with_kept_handlers_a_timer_that_a_job_left_behind_is_replaced(fiddle: Callable[[], None]) -> None:
    """If the old timer stayed in force, it would ring in an hour, long after the second call has returned."""
    with handlers_installed():
        Timeout(3600).run(fiddle)
        assert isinstance(Timeout(0.1).run(lambda: time.sleep(30)).raised, JobTimeout)
        assert Timeout(30).run(lambda: 5) == CallResult(value=5)


def use_an_alarm() -> None:
    """The usual recipe."""
    was = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.alarm(5)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, was)


def leave_the_default_handler() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def leave_the_signal_ignored() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


@pytest.mark.parametrize("fiddle", [stop_the_timer, use_an_alarm, leave_the_default_handler, leave_the_signal_ignored])
def test_with_kept_handlers_a_job_that_used_the_alarm_costs_the_next_one_nothing(fiddle: Callable[[], None]) -> None:
    """Though both have the same limit, so that the timer of the first would have served the second."""
    with handlers_installed():
        Timeout(0.3).run(lambda: None)
        Timeout(0.3).run(fiddle)
        assert isinstance(Timeout(0.3).run(lambda: time.sleep(30)).raised, JobTimeout)


def test_with_kept_handlers_a_forked_process_has_its_timeouts() -> None:
    """Timers are not inherited."""
    with handlers_installed():
        Timeout(0.3).run(lambda: None)
        copy = os.fork()
        if copy == 0:
            is_raised = False
            with suppress(BaseException):
                is_raised = isinstance(Timeout(0.3).run(lambda: time.sleep(30)).raised, JobTimeout)
            os._exit(0 if is_raised else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0


def test_with_kept_handlers_an_idle_timer_neither_raises_nor_goes_on_ringing() -> None:
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    with handlers_installed():
        assert isinstance(Timeout(0.01).run(lambda: time.sleep(30)).raised, JobTimeout)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1000
        Timeout(0.02).run(lambda: None)
        until = time.monotonic() + 0.2
        spin_until(lambda: time.monotonic() > until)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1000
    assert signal.getitimer(signal.ITIMER_REAL)[0] <= before


def test_an_alarm_of_others_does_not_bring_the_signal_forward_where_something_gentler_comes_first() -> None:
    timeout = Timeout(0.02, grace_s=30)

    def call() -> str:
        spin_until(timeout.is_overdue)
        timeout.expire()
        signal.raise_signal(signal.SIGALRM)
        return "cleaned up"

    ended = timeout.run(call)
    assert ended.value == "cleaned up"
    assert isinstance(ended.stopped_by, JobTimeout)


def test_only_the_thread_of_the_call_holds_interrupts_back() -> None:
    timeout = Timeout(SHORT_S)
    entered, leave = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with timeout.held_back():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=elsewhere)

    def call() -> None:
        thread.start()
        entered.wait(10)
        time.sleep(30)

    try:
        assert isinstance(timeout.run(call).raised, JobTimeout)
    finally:
        leave.set()
        thread.join()


@pytest.mark.usefixtures("no_collection")
def test_with_kept_handlers_an_alarm_just_at_the_end_never_escapes() -> None:
    with handlers_installed():
        assert calls_about_as_long_as_their_limit(1000, each=lambda timeout: None) == {JobTimeout}
