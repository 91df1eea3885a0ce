"""One attempt: whatever the handler does becomes a result."""

import asyncio
import contextvars
import gc
import os
import re
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.clock import ManualClock
from holdfast.errors import CommandForbidden, HandlerForbidden, UnknownHandler
from holdfast.execution.runtime import JobRuntime
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted, JobTimeout
from holdfast.handlers import Cancel, CommandHandler, FunctionHandler, Handler, JobContext, Snooze
from holdfast.values import OUTPUT_LIMIT, ExecutionResult, Outcome, Progress

if TYPE_CHECKING:
    from tests.unit.execution.conftest import Bench

# Long enough that the work has started before the limit is reached, even on a busy machine.
SHORT_S = 0.4


class Boom(Exception):
    pass


def explode() -> None:
    raise Boom("it went wrong")


async def explode_async() -> None:
    await asyncio.sleep(0)
    raise Boom("it went wrong")


def test_a_handler_that_returns_has_succeeded(bench: "Bench") -> None:
    result = bench.run(lambda: {"rows": 7})
    assert result.success
    assert result.outcome is Outcome.SUCCEEDED
    assert result.result == b'{"rows":7}'
    assert (result.error, result.note, result.handler) == (None, "", "work")


def test_a_coroutine_is_run_to_its_end(bench: "Bench") -> None:
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    assert bench.run(work, {"n": 1}).result == b"2"


def test_the_event_loop_is_kept_from_job_to_job(bench: "Bench") -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    bench.run(work)
    bench.run(work)
    assert loops[0] is loops[1]


def test_a_handler_sees_its_job_and_nothing_of_the_queue(bench: "Bench") -> None:
    seen: list[JobContext] = []
    before = datetime.now(UTC)
    bench.run(
        Looker(seen),
        {"to": "ada"},
        attempts=2,
        name="monthly",
        meta=msgspec.Raw(b'{"team":"blue"}'),
        tags=("a", "b"),
        trace_id="t1",
        timeout=60.0,
    )
    (context,) = seen
    assert (context.id, context.job, context.name, context.queue) == ("job1", "work", "monthly", "default")
    assert (context.attempt, context.payload, context.tags, context.trace_id) == (3, {"to": "ada"}, ("a", "b"), "t1")
    assert context.meta == {"team": "blue"}
    assert context.deadline is not None
    assert before + timedelta(seconds=60) <= context.deadline <= datetime.now(UTC) + timedelta(seconds=60)


class Looker(Handler):
    def __init__(self, seen: list[JobContext]) -> None:
        self.seen = seen

    def handle(self, context: JobContext) -> object:
        self.seen.append(context)
        with pytest.raises(TypeError):
            context.meta["team"] = "red"  # type: ignore[index] # pyright: ignore[reportIndexIssue]
        return None


def test_times_are_the_clocks_and_no_run_takes_less_than_no_time(bench: "Bench") -> None:
    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))

    def work() -> None:
        clock.advance(2.5)
        clock.set_back(100)

    bench.runtime = JobRuntime(bench.registry, clock=clock)
    result = bench.run(work)
    assert result.started_at == datetime(2026, 5, 1, tzinfo=UTC)
    assert result.duration_s == 2.5


@pytest.mark.parametrize("function", [explode, explode_async])
def test_what_a_handler_raises_becomes_text(bench: "Bench", function: Callable[[], object]) -> None:
    result = bench.run(function)
    assert (result.outcome, result.success, result.no_retry) == (Outcome.FAILED, False, False)
    assert result.error is not None
    assert result.error.type.endswith("test_runtime.Boom")
    assert result.error.message == "it went wrong"
    frames = [line for line in result.error.traceback.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1
    assert f"in {function.__name__}" in frames[0]


@pytest.mark.parametrize("problem", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("x")])
@pytest.mark.parametrize("is_async", [False, True])
def test_nothing_a_handler_raises_gets_out(bench: "Bench", problem: BaseException, is_async: bool) -> None:
    def work() -> None:
        raise problem

    async def work_async() -> None:
        raise problem

    result = bench.run(work_async if is_async else work)
    assert result.outcome is Outcome.FAILED
    assert result.error is not None
    assert result.error.type == type(problem).__name__


def test_the_exception_and_what_it_held_are_let_go_at_once(bench: "Bench") -> None:
    class Large:
        pass

    kept: list[weakref.ref[Large]] = []

    def work() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise Boom

    gc.disable()
    try:
        bench.run(work)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_listed_exception_is_not_retried(bench: "Bench") -> None:
    class Child(Boom):
        pass

    def work() -> None:
        raise Child

    assert bench.run(FunctionHandler(work, no_retry=[Boom, OSError])).no_retry


def test_a_payload_that_does_not_fit_is_a_failed_run_that_is_not_retried(bench: "Bench") -> None:
    def work(n: int) -> None:
        pytest.fail("it was run")

    result = bench.run(work, {"n": "seven"})
    assert (result.outcome, result.no_retry) == (Outcome.FAILED, True)
    assert result.error is not None
    assert result.error.type == "holdfast.PayloadRejected"
    assert result.error.message == "the payload does not fit handler 'work': Expected `int`, got `str` - at `$.n`"


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_snooze_is_returned_or_raised(bench: "Bench", is_raised: bool) -> None:
    def work() -> object:
        if is_raised:
            raise Snooze(timedelta(minutes=1))
        return Snooze(60)

    result = bench.run(work)
    assert (result.outcome, result.snooze_s, result.error) == (Outcome.SNOOZED, 60.0, None)


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_cancel_is_returned_or_raised(bench: "Bench", is_raised: bool) -> None:
    async def work() -> object:
        if is_raised:
            raise Cancel("no longer wanted")
        return Cancel("no longer wanted")

    result = bench.run(work)
    assert (result.outcome, result.cancel_reason) == (Outcome.CANCELLED, "no longer wanted")


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (object(), "the result was not stored: it is not JSON (builtins.object is not a JSON type)"),
        (float("nan"), "the result was not stored: it is not JSON (it contains nan, which JSON cannot represent)"),
        ("x" * 79_998, "the result was not stored: it has 80,000 bytes, and the limit is 65,536"),
        (b"x" * 3_000_000, "the result was not stored: it has 4,000,002 bytes, and the limit is 65,536"),
    ],
)
def test_a_result_that_cannot_be_kept_is_a_success_with_a_note(bench: "Bench", value: object, note: str) -> None:
    result = bench.run(lambda: value)
    assert (result.outcome, result.result, result.note) == (Outcome.SUCCEEDED, None, note)


def test_a_handler_that_returns_what_nobody_runs_has_failed(bench: "Bench") -> None:
    async def coroutine() -> None:
        pytest.fail("it was run")

    result = bench.run(lambda: coroutine())
    assert result.outcome is Outcome.FAILED
    assert result.error is not None
    assert "returned a coroutine, which would never run" in result.error.message


def test_prints_and_writes_are_the_output(bench: "Bench") -> None:
    def work(context: JobContext) -> None:
        print("printed")
        context.write("written\n")
        print("complained", file=sys.stderr)

    heard: list[str] = []
    bench.runtime = JobRuntime(bench.registry, tee=heard.append)
    assert bench.run(work).output == "printed\nwritten\ncomplained\n"
    assert "".join(heard) == "printed\nwritten\ncomplained\n"


def test_a_coroutines_output_is_kept_too(bench: "Bench") -> None:
    async def work() -> None:
        print("printed")
        await asyncio.create_task(asyncio.to_thread(print, "elsewhere"))

    assert bench.run(work).output == "printed\nelsewhere\n"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_context_variable_set_by_one_job_is_not_seen_by_the_next(bench: "Bench", is_async: bool) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def work() -> str:
        before = variable.get()
        variable.set("left behind")
        return before

    async def work_async() -> str:
        return work()

    handler = FunctionHandler(work_async if is_async else work)
    bench.run(handler)
    assert bench.run(handler).result == b'"unset"'


def test_a_handler_out_of_time_is_interrupted(bench: "Bench") -> None:
    def work() -> None:
        print("begun")
        time.sleep(30)

    result = bench.run(work, timeout=SHORT_S)
    assert (result.outcome, result.no_retry, result.output) == (Outcome.TIMEOUT, False, "begun\n")
    assert result.duration_s < 10
    assert result.error is not None
    assert result.error.type == "holdfast.JobTimeout"
    assert result.error.message == f"ran longer than its timeout of {SHORT_S} s"
    assert "time.sleep(30)" in result.error.traceback
    assert "timeout.py" not in result.error.traceback


def test_a_timeout_can_be_listed_as_not_to_be_retried(bench: "Bench") -> None:
    assert bench.run(FunctionHandler(lambda: time.sleep(30), key="k", no_retry=[JobTimeout]), timeout=SHORT_S).no_retry


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_a_timeout_of_zero_is_none(bench: "Bench", timeout: float) -> None:
    def work(context: JobContext) -> object:
        return context.deadline

    assert bench.run(work, timeout=timeout).success


def test_a_timeout_longer_than_any_clock_is_no_trouble(bench: "Bench") -> None:
    assert bench.run(lambda: None, timeout=1e300).success


def test_a_handler_that_turned_its_timeout_into_a_success_has_timed_out(bench: "Bench") -> None:
    def work() -> str:
        try:
            time.sleep(30)
        except BaseException:
            return "fine"
        return "never"

    assert bench.run(work, timeout=SHORT_S).outcome is Outcome.TIMEOUT


def test_an_error_while_cleaning_up_after_the_timeout_is_still_the_timeout(bench: "Bench") -> None:
    def work() -> None:
        try:
            time.sleep(30)
        finally:
            raise Boom("while cleaning up")

    result = bench.run(work, timeout=SHORT_S)
    assert result.outcome is Outcome.TIMEOUT
    assert result.error is not None
    assert result.error.type == "holdfast.JobTimeout"
    assert "Boom: while cleaning up" in result.error.traceback


def test_a_coroutine_out_of_time_is_cancelled_and_the_loop_is_kept(bench: "Bench") -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    cleaned: list[str] = []

    async def work(seconds: float) -> None:
        loops.append(asyncio.get_running_loop())
        try:
            await asyncio.sleep(seconds)
        finally:
            cleaned.append("up")

    result = bench.run(work, {"seconds": 30}, timeout=SHORT_S)
    assert result.outcome is Outcome.TIMEOUT
    assert result.error is not None
    assert result.error.type == "holdfast.JobTimeout"
    assert "in work" in result.error.traceback
    assert bench.run(work, {"seconds": 0}).success
    assert cleaned == ["up", "up"]
    assert loops[0] is loops[1]


def test_a_timeout_error_of_the_coroutines_own_is_a_failure(bench: "Bench") -> None:
    async def work() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)

    result = bench.run(work)
    assert result.outcome is Outcome.FAILED
    assert result.error is not None
    assert result.error.type == "TimeoutError"


def test_a_coroutine_that_blocks_its_loop_meets_the_alarm(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.REPEAT_S", 0.05)
    loops: list[asyncio.AbstractEventLoop] = []

    async def work(seconds: float) -> None:
        loops.append(asyncio.get_running_loop())
        time.sleep(seconds)  # noqa: ASYNC251 - the mistake under test

    result = bench.run(work, {"seconds": 30}, timeout=SHORT_S)
    assert (result.outcome, result.duration_s < 10) == (Outcome.TIMEOUT, True)
    assert bench.run(work, {"seconds": 0}).success
    assert loops[0] is not loops[1]
    assert loops[0].is_closed()


def test_a_coroutine_deaf_to_its_cancellation_meets_the_alarm(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.REPEAT_S", 0.05)
    monkeypatch.setattr("holdfast.execution.coroutines._DISCARD_S", 0.05)

    async def work() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)

    result = bench.run(work, timeout=SHORT_S)
    assert (result.outcome, result.duration_s < 10) == (Outcome.TIMEOUT, True)
    assert bench.run(work, timeout=SHORT_S).outcome is Outcome.TIMEOUT
    gc.collect()  # asyncio complains about the tasks that were given up when they are collected: let it do so here


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("why", "outcome"),
    [
        (JobCancelRequested("by ada"), Outcome.CANCELLED),
        (JobInterrupted("the worker is stopping"), Outcome.INTERRUPTED),
    ],
)
def test_another_thread_can_interrupt_a_running_job(
    bench: "Bench", why: JobInterrupted, outcome: Outcome, is_async: bool
) -> None:
    begun = threading.Event()
    answers: list[bool] = []

    def work() -> None:
        begun.set()
        time.sleep(30)

    async def work_async() -> None:
        begun.set()
        await asyncio.sleep(30)

    def interrupt() -> None:
        begun.wait(10)
        answers.append(bench.runtime.interrupt("another", why))
        answers.append(bench.runtime.interrupt("job1", why))

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = bench.run(work_async if is_async else work)
    thread.join()
    assert result.outcome is outcome
    assert result.duration_s < 10
    assert (result.cancel_reason or result.note) == why.reason
    assert result.error is None
    assert answers == [False, True]
    assert not bench.runtime.interrupt("job1", why)


def test_a_coroutine_that_is_interrupted_is_cancelled_and_the_loop_is_kept(bench: "Bench") -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    begun = threading.Event()

    async def work(seconds: float) -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()
        await asyncio.sleep(seconds)

    why = JobCancelRequested()
    thread = threading.Thread(target=lambda: begun.wait(10) and bench.runtime.interrupt("job1", why))
    thread.start()
    assert bench.run(work, {"seconds": 30}).outcome is Outcome.CANCELLED
    thread.join()
    assert bench.run(work, {"seconds": 0}).success
    assert loops[0] is loops[1]


def test_a_handler_can_ask_whether_it_shall_stop(bench: "Bench") -> None:
    answers: list[bool] = []

    def work(context: JobContext) -> None:
        answers.append(context.is_cancelled())
        with context.uninterrupted():
            bench.runtime.interrupt(context.id, JobCancelRequested())
            answers.append(context.is_cancelled())

    assert bench.run(work).outcome is Outcome.CANCELLED
    assert answers == [False, True]


def test_off_the_main_thread_a_handler_is_told_and_judged_at_its_end(bench: "Bench") -> None:
    def work(context: JobContext) -> str:
        until = time.monotonic() + 30
        while not context.is_cancelled():
            assert time.monotonic() < until
        return "stopped by itself"

    results: list[ExecutionResult] = []
    thread = threading.Thread(target=lambda: results.append(bench.run(work, timeout=SHORT_S)))
    thread.start()
    thread.join()
    assert results[0].outcome is Outcome.TIMEOUT


def test_off_the_main_thread_a_coroutine_is_cancelled_in_time(bench: "Bench") -> None:
    results: list[ExecutionResult] = []

    def run() -> None:
        runtime = bench.runtime = JobRuntime(bench.registry)
        results.append(bench.run(work, timeout=SHORT_S))
        runtime.close()

    async def work() -> None:
        await asyncio.sleep(30)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (results[0].outcome, results[0].duration_s < 10) == (Outcome.TIMEOUT, True)


def test_a_coroutine_can_be_run_from_inside_a_loop(bench: "Bench") -> None:
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        print("inside")
        return n

    async def program() -> ExecutionResult:
        return bench.run(work, {"n": 5})

    result = asyncio.run(program())
    assert (result.result, result.output) == (b"5", "inside\n")


@pytest.fixture
def default_ctrl_c() -> Generator[None]:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("default_ctrl_c")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_real_ctrl_c_gets_out(bench: "Bench", is_async: bool) -> None:
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        except KeyboardInterrupt:
            pass

    async def work_async() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    before = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        bench.run(work_async if is_async else work)
    assert sys.stdout is before


class Hooked(Handler):
    """Records its calls, and does at each step what the test wants."""

    def __init__(self, **steps: Callable[[], object]) -> None:
        self.steps = steps
        self.called: list[str] = []
        self.told: list[ExecutionResult] = []

    def step(self, name: str) -> object:
        self.called.append(name)
        return self.steps.get(name, lambda: None)()

    def before_run(self, context: JobContext) -> object:
        return self.step("before_run")

    def handle(self, context: JobContext) -> object:
        return self.step("handle")

    def after_run(self, context: JobContext, result: ExecutionResult) -> object:
        self.told.append(result)
        return self.step("after_run")


def test_the_hooks_surround_the_run(bench: "Bench") -> None:
    handler = Hooked(handle=lambda: 5, after_run=lambda: print("cleaned up"))
    result = bench.run(handler)
    assert handler.called == ["before_run", "handle", "after_run"]
    assert handler.told[0].result == b"5"
    assert result.output == "cleaned up\n"


@pytest.mark.parametrize("step", [explode, lambda: time.sleep(30), lambda: Snooze(5)])
def test_after_run_follows_however_the_run_ended(bench: "Bench", step: Callable[[], object]) -> None:
    handler = Hooked(handle=step)
    result = bench.run(handler, timeout=SHORT_S)
    assert handler.called == ["before_run", "handle", "after_run"]
    assert handler.told == [result]


def test_an_error_in_before_run_fails_the_run_and_nothing_follows(bench: "Bench") -> None:
    handler = Hooked(before_run=explode)
    result = bench.run(handler)
    assert result.outcome is Outcome.FAILED
    assert handler.called == ["before_run"]


def test_before_run_is_within_the_timeout(bench: "Bench") -> None:
    handler = Hooked(before_run=lambda: time.sleep(30))
    assert bench.run(handler, timeout=SHORT_S).outcome is Outcome.TIMEOUT
    assert handler.called == ["before_run"]


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", [explode, raise_keyboard_interrupt])
def test_an_error_in_after_run_is_logged_and_changes_nothing(
    bench: "Bench", caplog: pytest.LogCaptureFixture, step: Callable[[], object]
) -> None:
    result = bench.run(Hooked(handle=lambda: 5, after_run=step))
    assert (result.outcome, result.result) == (Outcome.SUCCEEDED, b"5")
    assert "after_run of handler 'work' failed for job 'job1'; its outcome is still succeeded" in caplog.text


def test_an_after_run_that_never_ends_is_interrupted(
    bench: "Bench", caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.AFTER_RUN_S", SHORT_S)
    started = time.monotonic()
    result = bench.run(Hooked(handle=lambda: 5, after_run=lambda: time.sleep(30)), timeout=SHORT_S)
    assert time.monotonic() - started < 10
    assert result.success
    assert "its outcome is still succeeded" in caplog.text


def test_an_async_handler_has_async_hooks(bench: "Bench") -> None:
    called: list[str] = []

    class Async(Handler):
        async def before_run(self, context: JobContext) -> object:
            await asyncio.sleep(0)
            called.append("before_run")
            return None

        async def handle(self, context: JobContext) -> object:
            await asyncio.sleep(0)
            called.append("handle")
            return 5

        async def after_run(self, context: JobContext, result: ExecutionResult) -> object:
            await asyncio.sleep(0)
            called.append("after_run")
            return None

    assert bench.run(Async).result == b"5"
    assert called == ["before_run", "handle", "after_run"]


def test_an_unknown_handler_is_the_workers_to_settle(bench: "Bench") -> None:
    with pytest.raises(UnknownHandler):
        bench.run(lambda: None, job="other")


def test_a_forbidden_handler_is_the_workers_to_settle(bench: "Bench") -> None:
    with pytest.raises(HandlerForbidden):
        bench.run(lambda: pytest.fail("it was run"), queue="closed")


def test_a_forbidden_command_is_the_workers_to_settle(bench: "Bench") -> None:
    with pytest.raises(CommandForbidden):
        bench.run(CommandHandler(["echo"]), {"argv": ["sh", "-c", "exit 0"]})


def test_a_check_that_fails_otherwise_is_a_failed_run(bench: "Bench") -> None:
    class Checked(Handler):
        def check(self, payload: Any) -> None:
            explode()

        def handle(self, context: JobContext) -> object:
            pytest.fail("it was run")

    result = bench.run(Checked)
    assert (result.outcome, result.no_retry) == (Outcome.FAILED, False)


def test_a_command_without_words_is_a_failed_run_that_is_not_retried(bench: "Bench") -> None:
    result = bench.run(CommandHandler(["echo"]), {"argv": []})
    assert (result.outcome, result.no_retry) == (Outcome.FAILED, True)


def test_a_command_runs_like_any_other_handler(bench: "Bench") -> None:
    result = bench.run(CommandHandler(["sh"]), {"argv": ["sh", "-c", "echo hello; exit 3"]})
    assert (result.outcome, result.output) == (Outcome.FAILED, "hello\n")
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("holdfast.CommandFailed", "exit code 3")
    assert result.error.traceback == "holdfast.handlers.command.CommandFailed: exit code 3\n"


def test_a_command_out_of_time_is_killed_with_all_it_started(bench: "Bench") -> None:
    result = bench.run(
        CommandHandler(["sh"]), {"argv": ["sh", "-c", "sleep 60 & echo $$ $!; wait"]}, timeout=5 * SHORT_S
    )
    assert (result.outcome, result.duration_s < 10) == (Outcome.TIMEOUT, True)
    pids = [int(pid) for pid in result.output.split()]
    assert len(pids) == 2
    for pid in pids:
        wait_for_death(pid)


def wait_for_death(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 10)[0], f"process {pid} is still alive"
    finally:
        os.close(process)


def signals() -> object:
    timer = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    return signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT), timer


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def work_for(seconds: float) -> None:
    time.sleep(seconds)


def test_without_being_entered_the_runtime_leaves_no_handler_behind(bench: "Bench") -> None:
    before = signals()
    assert bench.run(work_for, {"seconds": 30}, timeout=0.02).outcome is Outcome.TIMEOUT
    assert signals() == before


@pytest.mark.usefixtures("default_ctrl_c")
def test_entered_it_keeps_its_handlers_and_gives_them_back_in_the_end(bench: "Bench") -> None:
    before = signals()
    with bench.runtime:
        kept = signals()
        assert kept != before
        assert bench.run(work_for, {"seconds": 30}, timeout=0.02).outcome is Outcome.TIMEOUT
        assert bench.run(work_for, {"seconds": 0}).success
        assert signals() == kept
        bench.registry.register("press", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            bench.runtime.run(bench.message(job="press"), bench.lease())
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signals() == before


def test_a_command_that_prints_without_end_takes_little_room(bench: "Bench") -> None:
    script = "yes | head -c 20000000; echo the end"
    result = bench.run(CommandHandler(["sh"]), {"argv": ["sh", "-c", script]})
    assert result.success
    assert len(result.output.encode()) <= OUTPUT_LIMIT
    assert re.search(r"… 19,\d{3},\d{3} bytes cut …", result.output)
    assert result.output.endswith("y\nthe end\n")


def test_a_job_run_inside_a_job_keeps_its_own_output_and_limit(bench: "Bench") -> None:
    inner: list[ExecutionResult] = []

    def outer() -> None:
        print("outer")
        message = bench.message({"seconds": 30}, job="inner", timeout=SHORT_S, identifier="job2")
        inner.append(bench.runtime.run(message, bench.lease()))
        print("outer again")

    def work(seconds: float) -> None:
        print("inner")
        time.sleep(seconds)

    bench.registry.register("inner", work)
    result = bench.run(outer)
    assert (result.outcome, result.output) == (Outcome.SUCCEEDED, "outer\nouter again\n")
    assert (inner[0].outcome, inner[0].output) == (Outcome.TIMEOUT, "inner\n")


def test_a_result_knows_the_record_that_is_kept_of_it(bench: "Bench") -> None:
    result = bench.run(lambda: print("hi"))
    record = result.record()
    assert (record.outcome, record.output, record.started_at) == (Outcome.SUCCEEDED, "hi\n", result.started_at)
    assert record.duration_s == result.duration_s


def test_progress_is_passed_on_with_the_jobs_id_and_not_printed(
    bench: "Bench", capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[tuple[str, Progress]] = []

    def hear(job_id: str, progress: Progress) -> None:
        heard.append((job_id, progress))
        print("told")

    def work(context: JobContext) -> None:
        context.progress(1, 4)
        thread = threading.Thread(target=context.progress, args=(2, 4, "from a thread"))
        thread.start()
        thread.join()

    bench.runtime = JobRuntime(bench.registry, on_progress=hear)
    result = bench.run(work)
    assert (result.outcome, result.output) == (Outcome.SUCCEEDED, "")
    assert heard == [
        ("job1", Progress(done=1, total=4)),
        ("job1", Progress(done=2, total=4, message="from a thread")),
    ]
    assert capsys.readouterr().out.startswith("told\n")


def test_progress_that_nobody_hears_fails_no_job(bench: "Bench", caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def broken(job_id: str, progress: Progress) -> None:
        asked.append(job_id)
        raise BrokenPipeError

    def work(context: JobContext) -> str:
        context.progress(1)
        context.progress(2)
        return "done"

    bench.runtime = JobRuntime(bench.registry, on_progress=broken)
    assert bench.run(work).success
    assert asked == ["job1", "job1"]  # it may work again the next time
    assert caplog.text.count("progress of job 'job1' could not be reported") == 1


def test_progress_in_impossible_numbers_fails_the_job_that_says_so(bench: "Bench") -> None:
    def work(context: JobContext) -> None:
        context.progress(-1)

    result = bench.run(work)
    assert result.error is not None
    assert result.error.type == "ValueError"


def test_the_receiver_of_progress_is_not_interrupted_in_its_middle(bench: "Bench") -> None:
    sent: list[str] = []

    def slow(job_id: str, progress: Progress) -> None:
        sent.append("begun")
        until = time.monotonic() + 2 * SHORT_S
        while time.monotonic() < until:
            pass
        sent.append("whole")

    def work(context: JobContext) -> None:
        context.progress(1)
        sent.append("never")

    bench.runtime = JobRuntime(bench.registry, on_progress=slow)
    assert bench.run(work, timeout=SHORT_S).outcome is Outcome.TIMEOUT
    assert sent == ["begun", "whole"]


def test_a_job_that_says_how_far_it_is_leaves_nothing_for_the_garbage_collector(bench: "Bench") -> None:
    bench.runtime = JobRuntime(bench.registry, on_progress=lambda job_id, progress: None)

    def work(context: JobContext) -> None:
        context.progress(1)

    bench.registry.register("work", work)
    bench.run(work)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            bench.run(work)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_plain_handlers_on_several_threads_are_stopped_each_for_its_own_reason(bench: "Bench") -> None:
    begun = threading.Barrier(4, timeout=10)
    results: dict[str, ExecutionResult] = {}

    def work(context: JobContext) -> str:
        begun.wait()
        until = time.monotonic() + 30
        while not context.is_cancelled():
            assert time.monotonic() < until
        return "stopped by itself"

    def job(name: str, timeout: float) -> None:
        results[name] = bench.run(work, identifier=name, timeout=timeout)

    bench.registry.register("work", work)
    with bench.runtime:
        jobs = [("late", 0.2), ("unwanted", 30.0), ("leaving", 30.0)]
        threads = [threading.Thread(target=job, args=each) for each in jobs]
        for thread in threads:
            thread.start()
        begun.wait()
        assert bench.runtime.interrupt("unwanted", JobCancelRequested("by ada"))
        assert bench.runtime.interrupt("leaving", JobInterrupted("the worker is leaving"))
        for thread in threads:
            thread.join()
        assert not bench.runtime.interrupt("unwanted", JobCancelRequested())
    assert {name: result.outcome for name, result in results.items()} == {
        "late": Outcome.TIMEOUT,
        "unwanted": Outcome.CANCELLED,
        "leaving": Outcome.INTERRUPTED,
    }
    assert (results["unwanted"].cancel_reason, results["leaving"].note) == ("by ada", "the worker is leaving")


def test_off_the_main_thread_a_coroutine_deaf_to_its_cancellation_is_cancelled_again(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.REPEAT_S", 0.02)
    results: list[ExecutionResult] = []

    async def work() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)

    def run() -> None:
        runtime = bench.runtime = JobRuntime(bench.registry)
        results.append(bench.run(work, timeout=SHORT_S))
        runtime.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (results[0].outcome, results[0].duration_s < 10) == (Outcome.TIMEOUT, True)


def test_entered_it_runs_jobs_of_every_kind_one_after_another(bench: "Bench") -> None:
    """What stays in place between jobs does not affect the next job."""

    async def coroutine(seconds: float) -> str:
        await asyncio.sleep(seconds)
        print("awaited")
        return "in time"

    def function(seconds: float) -> str:
        time.sleep(seconds)
        print("called")
        return "in time"

    bench.registry.register("function", function)
    bench.registry.register("coroutine", coroutine)
    bench.registry.register("command", CommandHandler(["sh"]))
    script = {"argv": ["sh", "-c", "echo ran"]}
    before = sys.stdout, sys.stderr, signals()
    ended: list[tuple[Outcome, str]] = []
    with bench.runtime:
        for _ in range(2):
            for job, payload, timeout in [
                ("function", {"seconds": 0}, 0.0),
                ("function", {"seconds": 30}, 0.03),
                ("command", script, 300.0),
                ("coroutine", {"seconds": 30}, 0.03),
                ("function", {"seconds": 0.05}, 10.0),
                ("coroutine", {"seconds": 0.05}, 10.0),
            ]:
                result = bench.runtime.run(bench.message(payload, job=job, timeout=timeout), bench.lease())
                ended.append((result.outcome, result.output))
    assert ended == 2 * [
        (Outcome.SUCCEEDED, "called\n"),
        (Outcome.TIMEOUT, ""),
        (Outcome.SUCCEEDED, "ran\n"),
        (Outcome.TIMEOUT, ""),
        (Outcome.SUCCEEDED, "called\n"),
        (Outcome.SUCCEEDED, "awaited\n"),
    ]
    assert (sys.stdout, sys.stderr, signals()) == before


def test_a_command_says_how_far_it_is(bench: "Bench") -> None:
    heard: list[Progress] = []
    bench.runtime = JobRuntime(bench.registry, on_progress=lambda job_id, progress: heard.append(progress))
    script = "echo '3 4 nearly' > /dev/fd/$HOLDFAST_PROGRESS_FD"
    assert bench.run(CommandHandler(["sh"]), {"argv": ["sh", "-c", script]}).success
    assert heard == [Progress(done=3, total=4, message="nearly")]


def test_a_runtime_that_cannot_read_has_no_results(bench: "Bench") -> None:
    def reads(context: JobContext) -> object:
        return context.results["a"] if context.results else None

    assert bench.run(reads).success
    error = bench.run(reads, after=("a",)).error
    assert error is not None
    assert error.line == "holdfast.NotSupported: context.results is available only when a worker runs the job"
