"""Many coroutine handlers at once, on the caller's loop: each ends as it would alone."""

import asyncio
import contextvars
import gc
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import UnknownHandler
from holdfast.execution.coroutines import run_here
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted, Timeout
from holdfast.handlers import Cancel, Handler, JobContext, Snooze
from holdfast.values import ExecutionResult, Outcome

if TYPE_CHECKING:
    from tests.unit.execution.conftest import Bench

# Long enough that the work has started before the limit is reached, even on a busy machine.
SHORT_S = 0.4


def run(bench: "Bench", *payloads: object, **members: Any) -> list[ExecutionResult]:
    """Run a job for each payload, all at once: job0, job1 …"""

    async def program() -> list[ExecutionResult]:
        messages = [bench.message(payload, identifier=f"job{n}", **members) for n, payload in enumerate(payloads)]
        return await asyncio.gather(*(bench.runtime.run_async(message, bench.lease()) for message in messages))

    return asyncio.run(program())


def run_one(bench: "Bench", work: Callable[..., Awaitable[object]] | type[Handler], **members: Any) -> ExecutionResult:
    bench.registry.register("work", work)
    (result,) = run(bench, None, **members)
    assert result.duration_s < 10
    return result


def test_many_run_at_once_and_keep_their_results_and_outputs_apart(bench: "Bench") -> None:
    together = asyncio.Barrier(50)

    async def work(n: int) -> int:
        print(f"job {n}")
        await together.wait()
        logging.getLogger("shop").warning("still %d", n)
        await asyncio.to_thread(print, "elsewhere")
        return n * n

    bench.registry.register("work", work)
    with bench.runtime:
        results = run(bench, *({"n": n} for n in range(50)))
    for n, result in enumerate(results):
        assert result.result == b"%d" % (n * n)
        assert result.output == f"job {n}\nWARNING shop: still {n}\nelsewhere\n"


def test_a_context_variable_set_by_one_job_is_not_seen_by_the_next(bench: "Bench") -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def work() -> str:
        before = variable.get()
        variable.set("left behind")
        return before

    bench.registry.register("work", work)

    async def program() -> list[bytes | None]:
        return [(await bench.runtime.run_async(bench.message(), bench.lease())).result for _ in range(2)]

    assert asyncio.run(program()) == [b'"unset"', b'"unset"']


def test_one_out_of_time_is_cancelled_and_its_neighbours_are_not(bench: "Bench") -> None:
    cleaned: list[float] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            cleaned.append(seconds)
        return "in time"

    bench.registry.register("work", work)
    late, in_time = run(bench, {"seconds": 30}, {"seconds": 0.01}, timeout=SHORT_S)
    assert (late.outcome, in_time.outcome) == (Outcome.TIMEOUT, Outcome.SUCCEEDED)
    assert late.error is not None
    assert (late.error.type, late.error.message) == (
        "holdfast.JobTimeout",
        f"ran longer than its timeout of {SHORT_S} s",
    )
    assert "in work" in late.error.traceback
    assert cleaned == [0.01, 30]


def test_one_that_blocked_the_loop_past_its_limit_has_timed_out(bench: "Bench") -> None:
    async def work(context: JobContext) -> bool:
        while not context.is_cancelled():
            time.sleep(0.001)  # noqa: ASYNC251 - the mistake under test
        return True

    assert run_one(bench, work, timeout=SHORT_S).outcome is Outcome.TIMEOUT


def test_one_deaf_to_its_cancellation_is_cancelled_again(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.REPEAT_S", 0.02)
    swallowed: list[str] = []

    async def work() -> str:
        while len(swallowed) < 3:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            swallowed.append("one")
        return "fine"

    assert run_one(bench, work, timeout=SHORT_S).outcome is Outcome.TIMEOUT


def test_a_timeout_error_of_the_coroutines_own_is_a_failure(bench: "Bench") -> None:
    async def work() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)

    result = run_one(bench, work)
    assert result.error is not None
    assert (result.outcome, result.error.type) == (Outcome.FAILED, "TimeoutError")


def test_a_cancellation_of_the_coroutines_own_is_a_failure(bench: "Bench") -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    assert run_one(bench, work).outcome is Outcome.FAILED


@pytest.mark.parametrize("is_deaf", [False, True])
@pytest.mark.parametrize(
    ("why", "outcome"),
    [(JobCancelRequested("by ada"), Outcome.CANCELLED), (JobInterrupted("leaving"), Outcome.INTERRUPTED)],
)
def test_another_thread_can_interrupt_one_of_them(
    bench: "Bench", why: JobInterrupted, outcome: Outcome, is_deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.REPEAT_S", 0.02)
    begun = threading.Barrier(3, timeout=10)
    interrupted = asyncio.Event()

    async def work(n: int) -> str:
        if n == 1:
            await asyncio.to_thread(begun.wait)
            await asyncio.wait_for(interrupted.wait(), 20)
            return "undisturbed"
        try:
            with suppress(asyncio.CancelledError) if is_deaf else nullcontext():
                await asyncio.to_thread(begun.wait)
                await asyncio.sleep(30)
            await asyncio.sleep(30)
        finally:
            interrupted.set()
        return "never"

    def interrupt() -> None:
        begun.wait()
        answers.append(bench.runtime.interrupt("job0", why))

    bench.registry.register("work", work)
    answers: list[bool] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    first, second = run(bench, {"n": 0}, {"n": 1})
    thread.join()
    assert (first.outcome, second.outcome) == (outcome, Outcome.SUCCEEDED)
    assert (first.cancel_reason or first.note) == why.reason
    assert first.duration_s < 10
    assert answers == [True]
    assert not bench.runtime.interrupt("job0", why)


def test_one_interrupted_before_its_first_step_is_not_begun(bench: "Bench") -> None:
    begun: list[str] = []

    async def work() -> None:
        begun.append("work")

    bench.registry.register("work", work)

    async def program() -> ExecutionResult:
        task = asyncio.create_task(bench.runtime.run_async(bench.message(), bench.lease()))
        await asyncio.sleep(0)  # the runtime has taken it, but the coroutine has not had its turn
        assert bench.runtime.interrupt("job1", JobCancelRequested("early"))
        return await task

    assert asyncio.run(program()).outcome is Outcome.CANCELLED
    assert begun == []


def test_one_interrupted_before_the_loop_knows_of_it_is_not_begun() -> None:
    begun: list[str] = []

    async def body() -> None:
        begun.append("body")

    guard = Timeout()
    assert guard.interrupt(JobCancelRequested("early"))
    ended = asyncio.run(run_here(body, guard))
    assert isinstance(ended.stopped_by, JobCancelRequested)
    assert begun == []


def test_one_that_holds_cancellations_back_is_interrupted_when_its_block_ends(bench: "Bench") -> None:
    steps: list[str] = []

    async def work(context: JobContext) -> None:
        with context.uninterrupted():
            await asyncio.sleep(2 * SHORT_S)
            steps.append("whole")
        steps.append("never")

    assert run_one(bench, work, timeout=SHORT_S).outcome is Outcome.TIMEOUT
    assert steps == ["whole"]


@pytest.mark.parametrize("is_raised", [False, True])
@pytest.mark.parametrize(
    ("verdict", "outcome"), [(Snooze(timedelta(minutes=1)), Outcome.SNOOZED), (Cancel("unwanted"), Outcome.CANCELLED)]
)
def test_a_verdict_is_returned_or_raised(
    bench: "Bench", verdict: BaseException, outcome: Outcome, is_raised: bool
) -> None:
    async def work() -> object:
        if is_raised:
            raise verdict
        return verdict

    assert run_one(bench, work).outcome is outcome


@pytest.mark.parametrize(
    "problem", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("x"), ValueError("x")]
)
def test_nothing_a_handler_raises_gets_out_or_stops_the_loop(bench: "Bench", problem: BaseException) -> None:
    failed = asyncio.Event()

    async def work(fails: bool) -> str:
        if fails:
            failed.set()
            raise problem
        await failed.wait()
        await asyncio.sleep(0.01)
        return "undisturbed"

    bench.registry.register("work", work)
    first, second = run(bench, {"fails": True}, {"fails": False})
    assert first.error is not None
    assert (first.outcome, first.error.type) == (Outcome.FAILED, type(problem).__name__)
    assert second.success


def test_what_cannot_be_kept_or_was_never_awaited_is_judged_as_ever(bench: "Bench") -> None:
    async def later() -> None:
        pytest.fail("it was run")

    async def work(forgot: bool) -> object:
        return later() if forgot else object()

    bench.registry.register("work", work)
    unkept, unrun = run(bench, {"forgot": False}, {"forgot": True})
    assert (unkept.outcome, unkept.note[:25]) == (Outcome.SUCCEEDED, "the result was not stored")
    assert unrun.outcome is Outcome.FAILED


def test_a_payload_that_does_not_fit_and_an_unknown_handler_end_as_ever(bench: "Bench") -> None:
    async def work(n: int) -> None:
        pytest.fail("it was run")

    bench.registry.register("work", work)
    (result,) = run(bench, {"n": "seven"})
    assert (result.outcome, result.no_retry) == (Outcome.FAILED, True)
    with pytest.raises(UnknownHandler):
        run(bench, None, job="other")


def test_a_plain_handler_is_not_let_block_the_loop(bench: "Bench") -> None:
    bench.registry.register("work", lambda: None)
    with pytest.raises(TypeError, match="handler 'work' is not a coroutine function"):
        run(bench, None)


class Hooked(Handler):
    """Three steps, awaited; `after_run` outlasts its time."""

    called: list[str]

    async def before_run(self, context: JobContext) -> object:
        await asyncio.sleep(0)
        type(self).called.append("before_run")
        return None

    async def handle(self, context: JobContext) -> object:
        await asyncio.sleep(0)
        type(self).called.append("handle")
        return 5

    async def after_run(self, context: JobContext, result: ExecutionResult) -> object:
        type(self).called.append(f"after_run {result.outcome}")
        print("cleaning up")
        await asyncio.sleep(30)
        return None


def test_the_hooks_are_awaited_and_one_that_never_ends_is_cancelled(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.execution.runtime.AFTER_RUN_S", SHORT_S)
    monkeypatch.setattr(Hooked, "called", [], raising=False)
    started = time.monotonic()
    result = run_one(bench, Hooked, timeout=SHORT_S)
    assert time.monotonic() - started < 10
    assert (result.outcome, result.result) == (Outcome.SUCCEEDED, b"5")
    assert Hooked.called == ["before_run", "handle", "after_run succeeded"]
    assert result.output.startswith("cleaning up\n")
    assert "its outcome is still succeeded" in caplog.text


def test_a_caller_that_is_cancelled_takes_the_handler_along(bench: "Bench") -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            cleaned.append("up")

    bench.registry.register("work", work)

    async def cancelled_after(steps: int) -> None:
        task = asyncio.create_task(bench.runtime.run_async(bench.message(), bench.lease()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for steps in (1, 5):
        asyncio.run(cancelled_after(steps))
        assert not bench.runtime.interrupt("job1", JobCancelRequested())
    assert cleaned == ["up"]


def test_the_exception_and_what_it_held_are_let_go_at_once(bench: "Bench") -> None:
    class Large:
        pass

    kept: list[weakref.ref[Large]] = []

    async def work() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise ValueError

    async def program() -> bool:
        await bench.runtime.run_async(bench.message(), bench.lease())
        return kept[0]() is None

    bench.registry.register("work", work)
    gc.disable()
    try:
        assert asyncio.run(program())
    finally:
        gc.enable()


def on_a_thread(coroutine: Callable[[], Coroutine[Any, Any, object]]) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(coroutine()))
    thread.start()
    thread.join()


def test_a_loop_off_the_main_thread_does_as_well(bench: "Bench") -> None:
    async def work() -> None:
        await asyncio.sleep(30)

    results: list[ExecutionResult] = []

    async def program() -> None:
        results.append(await bench.runtime.run_async(bench.message(timeout=SHORT_S), bench.lease()))

    bench.registry.register("work", work)
    on_a_thread(program)
    assert results[0].outcome is Outcome.TIMEOUT
