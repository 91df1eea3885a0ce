"""Dependencies of a job: made once for each run, taken down in reverse, whatever becomes of the run."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Cancel, Depends, Handler, Holdfast, Job, JobContext, JobState, Snooze
from holdfast.config import Settings
from holdfast.errors import DefinitionError, JobFailed
from holdfast.execution.timeout import JobTimeout
from holdfast.values import WorkerStatus

# Long enough that the work has started before the limit is reached, even on a busy machine.
SHORT_S = 0.4
events: list[str] = []


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    events.clear()


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast("memory://", settings=Settings(max_retries=0), directory=tmp_path) as app:
        yield app


def work(hf: Holdfast) -> WorkerStatus:
    with hf.worker() as worker:
        return worker.process_once("default").status


def ran(hf: Holdfast, job: "Job[..., Any, Any]", *args: object) -> Any:
    """What came of one run: the result, or the last error."""
    handle = job.enqueue(*args)
    work(hf)
    return handle.result() if handle.status() is JobState.COMPLETED else handle.view().last_error


class Session:
    """Stands for a connection: what is done to it is noted."""

    def __init__(self, name: str = "session") -> None:
        self.name = name


def open_session() -> Generator[Session]:
    events.append("begin")
    try:
        yield Session()
        events.append("commit")
    except BaseException as problem:
        events.append(f"rollback {type(problem).__name__}")
        raise
    finally:
        events.append("close")


async def open_session_async() -> AsyncGenerator[Session]:
    await asyncio.sleep(0)
    events.append("begin")
    try:
        yield Session()
        await asyncio.sleep(0)
        events.append("commit")
    except BaseException as problem:
        events.append(f"rollback {type(problem).__name__}")
        raise
    finally:
        events.append("close")


def setting() -> str:
    events.append("setting")
    return "blue"


async def setting_async() -> str:
    await asyncio.sleep(0)
    return "blue"


def test_a_session_commits_with_the_run(hf: Holdfast) -> None:
    @hf.job
    def pay(order: int, session: Session = Depends(open_session)) -> str:
        events.append("pay")
        return f"{order} in {session.name}"

    assert ran(hf, pay, 7) == "7 in session"
    assert events == ["begin", "pay", "commit", "close"]


def test_a_session_of_a_coroutine_commits_with_the_run(hf: Holdfast) -> None:
    @hf.job
    async def pay(
        order: int,
        session: Session = Depends(open_session_async),
        colour: str = Depends(setting_async),
        plain: Session = Depends(open_session),
    ) -> str:
        await asyncio.sleep(0)
        return f"{order} in {session.name}, {colour}, {plain.name}"

    assert ran(hf, pay, 7) == "7 in session, blue, session"
    assert events == ["begin", "begin", "commit", "close", "commit", "close"]


def test_the_annotation_may_name_the_factory(hf: Holdfast) -> None:
    @hf.job
    def bare(session: Annotated[Session, Depends(open_session)], order: int) -> list[object]:
        return [order, session.name]

    @hf.job
    def optional(order: int, session: Annotated[Session, "other", Depends(open_session)] = Depends()) -> list[object]:
        return [order, session.name]

    assert ran(hf, bare, 7) == ran(hf, optional, 7) == [7, "session"]


def fail(order: int, session: Session = Depends(open_session)) -> None:
    raise ValueError("no")


async def fail_async(order: int, session: Session = Depends(open_session_async)) -> None:
    await asyncio.sleep(0)
    raise ValueError("no")


@pytest.mark.parametrize("function", [fail, fail_async])
def test_a_session_sees_the_exception_of_the_run(hf: Holdfast, function: Callable[..., object]) -> None:
    assert ran(hf, hf.job(function), 7) == "ValueError: no"
    assert events == ["begin", "rollback ValueError", "close"]


def hang(session: Session = Depends(open_session)) -> None:
    threading.Event().wait(30)


async def hang_async(session: Session = Depends(open_session_async)) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("function", [hang, hang_async])
def test_a_session_is_rolled_back_when_the_time_is_up(hf: Holdfast, function: Callable[..., object]) -> None:
    error = ran(hf, hf.job(timeout=SHORT_S)(function))
    assert "JobTimeout" in error
    assert events[0] == "begin"
    assert events[1] in ("rollback JobTimeout", "rollback CancelledError")
    assert events[2:] == ["close"]


@pytest.mark.parametrize("function", [hang, hang_async])
def test_a_session_is_rolled_back_when_the_worker_leaves(hf: Holdfast, function: Callable[..., object]) -> None:
    hf.job(timeout=30)(function).enqueue()
    with hf.worker() as worker:

        def leave() -> None:
            while events[:1] != ["begin"]:
                threading.Event().wait(0.001)
            worker.interrupt()

        leaving = threading.Thread(target=leave)
        leaving.start()
        assert worker.process_once("default").status is WorkerStatus.RELEASED
        leaving.join()
    assert events[1] in ("rollback JobInterrupted", "rollback CancelledError")
    assert events[2:] == ["close"]


def test_a_late_return_where_nothing_can_be_raised_is_rolled_back(hf: Holdfast) -> None:
    @hf.job(timeout=SHORT_S)
    def late(context: JobContext, session: Session = Depends(open_session)) -> None:
        while not context.is_cancelled():
            threading.Event().wait(0.01)

    hf.define("late").timeout(SHORT_S).dispatch()
    thread = threading.Thread(target=work, args=[hf])
    thread.start()
    thread.join()
    assert events == ["begin", f"rollback {JobTimeout.__name__}", "close"]


@pytest.mark.parametrize("verdict", [Snooze(60), Cancel("not today")])
@pytest.mark.parametrize("is_raised", [False, True])
def test_a_run_that_is_not_done_is_rolled_back(hf: Holdfast, verdict: BaseException, is_raised: bool) -> None:
    @hf.job
    def later(session: Session = Depends(open_session)) -> object:
        if is_raised:
            raise verdict
        return verdict

    later.enqueue()
    assert work(hf) in (WorkerStatus.RELEASED, WorkerStatus.CANCELLED)
    assert events == ["begin", f"rollback {type(verdict).__name__}", "close"]


def test_a_teardown_that_swallows_the_error_hides_nothing(hf: Holdfast) -> None:
    def swallowing() -> Generator[int]:
        try:
            yield 1
        except ValueError:
            events.append("swallowed")

    @hf.job
    def pay(outer: Session = Depends(open_session), inner: int = Depends(swallowing)) -> None:
        raise ValueError("no")

    assert ran(hf, pay) == "ValueError: no"
    assert events == ["begin", "swallowed", "rollback ValueError", "close"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_teardown_that_fails_fails_the_run_and_the_others_are_still_taken_down(hf: Holdfast, is_async: bool) -> None:
    def failing() -> Generator[int]:
        yield 1
        raise OSError("the disk is full")

    async def failing_async() -> AsyncGenerator[int]:
        yield 1
        raise OSError("the disk is full")

    if is_async:

        async def pay_async(
            outer: Session = Depends(open_session_async), inner: int = Depends(failing_async)
        ) -> None: ...

        job: Job[..., Any, Any] = hf.job(pay_async)
    else:

        def pay(outer: Session = Depends(open_session), inner: int = Depends(failing)) -> None: ...

        job = hf.job(pay)
    assert ran(hf, job) == "OSError: the disk is full"
    assert events == ["begin", "rollback OSError", "close"]


def test_a_factory_that_fails_fails_the_run_and_what_was_made_is_taken_down(hf: Holdfast) -> None:
    def broken() -> int:
        raise ConnectionError("no server")

    @hf.job
    def pay(session: Session = Depends(open_session), other: int = Depends(broken)) -> None:
        events.append("never")

    assert ran(hf, pay) == "ConnectionError: no server"
    assert events == ["begin", "rollback ConnectionError", "close"]


def test_a_stop_iteration_of_the_run_is_no_end_of_the_generator(hf: Holdfast) -> None:
    @hf.job
    def pay(session: Session = Depends(open_session)) -> None:
        raise StopIteration

    assert "StopIteration" in ran(hf, pay)
    assert events == ["begin", "rollback StopIteration", "close"]


def test_a_generator_yields_exactly_once(hf: Holdfast) -> None:
    def none() -> Generator[int]:
        yield from ()

    def two() -> Generator[int]:
        yield 1
        yield 2

    def with_none(value: int = Depends(none)) -> None: ...
    def with_two(value: int = Depends(two)) -> None: ...

    assert "none' yielded nothing" in ran(hf, hf.job(with_none))
    assert "two' yielded twice; it must yield one value for each run" in ran(hf, hf.job(with_two))


def test_dependencies_have_dependencies_and_each_is_made_once_for_a_run(hf: Holdfast) -> None:
    def named(context: JobContext, colour: str = Depends(setting), greeting: str = "hello") -> Iterator[str]:
        events.append("open")
        yield f"{greeting} {colour} {context.id}"
        events.append("shut")

    class Repository:
        def __init__(self, colour: Annotated[str, Depends(setting)], name: str = Depends(named)) -> None:
            self.words = [colour, name]

    @hf.job
    def pay(
        repository: Repository = Depends(Repository), name: str = Depends(named), colour: str = Depends(setting)
    ) -> list[str]:
        return [*repository.words, name, colour]

    assert ran(hf, pay.options(id="one")) == ["blue", "hello blue one", "hello blue one", "blue"]
    assert events == ["setting", "open", "shut"]
    ran(hf, pay.options(id="two"))
    assert events == ["setting", "open", "shut"] * 2


def test_a_factory_may_be_any_callable(hf: Holdfast) -> None:
    def scaled(by: int, base: int = 10) -> int:
        return by * base

    class Counter:
        async def __call__(self) -> int:
            return 5

    @hf.job
    async def add(a: int = Depends(partial(scaled, by=2)), b: int = Depends(Counter())) -> int:
        return a + b

    assert ran(hf, add) == 25


def test_dependencies_are_no_part_of_what_is_enqueued(hf: Holdfast) -> None:
    @hf.job
    def pay(order: int, session: Session = Depends(open_session), note: str = "") -> str:
        return f"{order}{note} {session.name}"

    assert bytes(pay.define(7, note="!").payload) == b'{"order":7,"note":"!"}'
    with pytest.raises(DefinitionError, match=r"parameter 'session' is a dependency, which the worker provides; leave"):
        pay.enqueue(7, session=Session())
    with pytest.raises(DefinitionError, match=r"call it as pay\(order: int, note: str = ''\)"):
        pay.enqueue(7, Session(), "!")


def test_a_plain_call_is_a_plain_call_with_everything_passed(hf: Holdfast) -> None:
    @hf.job
    def pay(order: int, session: Session = Depends(open_session)) -> str:
        return f"{order} {session.name}"

    assert pay(7, session=Session("mine")) == pay(7, Session("mine")) == "7 mine"
    assert events == []
    with pytest.raises(TypeError, match=r"pay\(\) is called without 'session', which only a worker provides; pass it"):
        pay(7)


def test_a_test_puts_something_else_in_the_place_of_a_factory(hf: Holdfast) -> None:
    def fake(colour: str = Depends(setting)) -> Generator[Session]:
        events.append("fake")
        yield Session(f"fake {colour}")
        events.append("gone")

    @hf.job
    def pay(session: Session = Depends(open_session)) -> str:
        return session.name

    with hf.override(open_session, fake):
        assert ran(hf, pay) == "fake blue"
        with hf.override(open_session, lambda: Session("inner")):
            assert ran(hf, pay) == "inner"
        with hf.override(setting, lambda: "red"):
            assert ran(hf, pay) == "fake red"
        assert ran(hf, pay) == "fake blue"
    assert ran(hf, pay) == "session"
    assert events[:3] == ["setting", "fake", "gone"]


def test_an_override_ends_also_when_the_test_fails(hf: Holdfast) -> None:
    with pytest.raises(RuntimeError, match="the test failed"), hf.override(setting, lambda: "red"):
        raise RuntimeError("the test failed")
    assert hf.registry.overrides == {}


def test_overrides_reach_dependencies_of_dependencies_and_inline_jobs(tmp_path: Path) -> None:
    def name(colour: str = Depends(setting)) -> str:
        return f"Mr {colour}"

    with Holdfast("sync://", settings=Settings(), directory=tmp_path) as hf:

        @hf.job
        def greet(who: str = Depends(name)) -> str:
            return who

        with hf.override(setting, lambda: "pink"):
            assert greet.enqueue().result() == "Mr pink"


def test_an_override_that_cannot_work_is_refused(hf: Holdfast, tmp_path: Path) -> None:
    def circular(value: str = Depends(setting)) -> str:
        return value

    with pytest.raises(DefinitionError, match=r"override with a factory, such as  lambda: value"):
        hf.override(setting, "red").__enter__()  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match=r"circular dependencies: .*circular → .*circular"):
        hf.override(setting, circular).__enter__()
    with Holdfast("sync://", settings=Settings(max_retries=0), directory=tmp_path) as inline:

        @inline.job
        def greet(colour: str = Depends(setting)) -> str:
            return colour

        with (
            inline.override(setting, setting_async),
            pytest.raises(JobFailed, match="cannot await the async dependency 'setting_async'"),
        ):
            greet.enqueue()


def test_a_job_whose_dependencies_cannot_be_made_is_refused_where_it_is_defined(hf: Holdfast) -> None:
    def refused(function: Callable[..., object]) -> str:
        with pytest.raises(DefinitionError) as caught:
            hf.job(function)
        return str(caught.value)

    def needy(url: str) -> int:
        return len(url)

    @contextmanager
    def managed() -> Generator[int]:
        yield 1

    class Unhashable:
        __hash__ = None  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]

        def __call__(self) -> int:
            return 1

    def plain_awaits(colour: str = Depends(setting_async)) -> None: ...
    def plain_iterates(session: Session = Depends(open_session_async)) -> None: ...
    def asks_needy(value: int = Depends(needy)) -> None: ...
    def asks_managed(value: Any = Depends(managed)) -> None: ...
    def asks_nothing(value: int = Depends()) -> None: ...

    assert "'plain_awaits' is a plain function, which cannot await the async dependency" in refused(plain_awaits)
    assert "the async generator dependency 'open_session_async'" in refused(plain_iterates)
    assert "parameter 'url: str' has no value and no default; make it a dependency" in refused(asks_needy)
    assert "depend on the undecorated generator function" in refused(asks_managed)
    assert "Depends() for 'value' has no factory; write  value: T = Depends(factory)" in refused(asks_nothing)
    with pytest.raises(DefinitionError, match="must be hashable: "):
        Depends(Unhashable())
    with pytest.raises(DefinitionError, match=r"Depends\(3\): pass the function that creates the value"):
        Depends(3)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


# Handler classes


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_class_is_given_what_its_handle_declares(is_async: bool) -> None:
    seen: list[str] = []

    def open_log() -> Generator[list[str]]:
        seen.append("open")
        yield seen
        seen.append("closed")

    class Plain(Handler):
        def handle(self, context: JobContext, log: list[str] = Depends(open_log), times: int = 2) -> int:
            log.append(context.name or "unnamed")
            return times

    class Awaited(Handler):
        async def handle(self, context: JobContext, log: list[str] = Depends(open_log)) -> int:
            log.append(context.name or "unnamed")
            return 2

    with Holdfast("memory://") as hf:
        hf.handler("work")(Awaited if is_async else Plain)
        with hf.worker() as worker:
            job_id = hf.define("work").named("first").dispatch()
            worker.process_once("default")
            assert hf.handle(job_id).result(0) == 2
        assert seen == ["open", "first", "closed"]
        with hf.override(open_log, lambda: ["nobody"]), hf.worker() as worker:
            hf.define("work").dispatch()
            worker.process_once("default")
        assert seen == ["open", "first", "closed"]


def test_a_handle_behind_a_decorator_is_called_with_the_context_alone() -> None:
    def counted(handle: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object, **kwargs: object) -> object:
            return handle(*args, **kwargs)

        return count

    class Decorated(Handler):
        @counted
        def handle(self, context: JobContext) -> str:
            return context.id

    class Silent(Handler):
        def handle(self) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]

    with Holdfast("memory://") as hf, hf.worker() as worker:
        hf.handler("decorated")(Decorated)
        job_id = hf.define("decorated").dispatch()
        worker.process_once("default")
        assert hf.handle(job_id).result(0) == job_id
        with pytest.raises(DefinitionError, match=r"takes no context; write  def handle\(self, context: JobContext\)"):
            hf.handler("silent")(Silent)


def test_a_handle_that_nobody_could_call_is_refused() -> None:
    class Needy(Handler):
        def handle(self, context: JobContext, session: Session) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]

    async def open_later() -> int:
        return 1

    class Waiting(Handler):
        def handle(self, context: JobContext, number: int = Depends(open_later)) -> None: ...

    with Holdfast("memory://") as hf:
        with pytest.raises(DefinitionError, match="handler 'needy': parameter 'session"):
            hf.handler("needy")(Needy)
        with pytest.raises(DefinitionError, match="handler 'waiting' is a plain function, which cannot await"):
            hf.handler("waiting")(Waiting)
