"""Middleware: in order on the way in, in reverse on the way out, and each error with its meaning."""

import asyncio
import contextvars
import logging
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import (
    Cancel,
    Holdfast,
    HoldfastError,
    Job,
    JobContext,
    JobDefinition,
    JobState,
    Middleware,
    Snooze,
    plugins,
)
from holdfast.config import Settings
from holdfast.errors import CommandForbidden, ConfigError, DefinitionError, IdConflict, JobFailed
from holdfast.execution.timeout import JobTimeout
from holdfast.middleware import around_enqueue, around_run
from holdfast.testing import JobKit
from holdfast.values import WorkerStatus

# Long enough that the work has started before the limit is reached, even on a busy machine.
SHORT_S = 0.4


class Boom(Exception):
    pass


class Spy(Middleware):
    """Records every call of its hooks, and raises in those that the test chooses."""

    def __init__(self, name: str, seen: list[str], *raising: str, error: BaseException | None = None) -> None:
        self.name = name
        self.seen = seen
        self.raising = raising
        self.error = error or Boom(name)

    def note(self, hook: str, about: object = "") -> None:
        self.seen.append(f"{self.name} {hook} {about}".strip())
        if hook in self.raising:
            raise self.error

    def before_enqueue(self, definition: JobDefinition) -> None:
        self.note("before_enqueue", definition.handler)

    def after_enqueue(self, definition: JobDefinition, job_id: str) -> None:
        self.note("after_enqueue", job_id)

    def on_enqueue_error(self, definition: JobDefinition, error: BaseException) -> None:
        self.note("on_enqueue_error", type(error).__name__)

    def before_run(self, context: JobContext) -> None:
        self.note("before_run", context.job)

    def after_run(self, context: JobContext, value: object) -> None:
        self.note("after_run", value if isinstance(value, int | None) else type(value).__name__)

    def on_run_error(self, context: JobContext, error: BaseException) -> None:
        self.note("on_run_error", type(error).__name__)


class Shop:
    """An application whose jobs wait for a worker, with some middleware."""

    def __init__(self, *middleware: Middleware, directory: Path) -> None:
        self.hf = Holdfast("memory://", settings=Settings(), directory=directory, middleware=middleware)

        @self.hf.job(max_retries=0)
        def add(a: int, b: int = 1) -> int:
            return a + b

        @self.hf.job(key="add_async", max_retries=0)
        async def add_async(a: int, b: int = 1) -> int:
            await asyncio.sleep(0)
            return a + b

        self.jobs: dict[str, Job[..., Any, Any]] = {"add": add, "add_async": add_async}

    def work(self) -> WorkerStatus:
        with self.hf.worker() as worker:
            return worker.process_once("default").status

    def waiting(self) -> int:
        return sum(self.hf.backend().counts().get("default", {}).values())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(*middleware: Middleware) -> Shop:
        made.append(Shop(*middleware, directory=tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.hf.close()


@pytest.mark.parametrize("job", ["add", "add_async"])
def test_hooks_are_called_in_order_and_back_in_reverse(shop: Callable[..., Shop], job: str) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen))
    handle = site.jobs[job].options(id="one").enqueue(2)
    assert seen == [
        f"outer before_enqueue {job}",
        f"inner before_enqueue {job}",
        "inner after_enqueue one",
        "outer after_enqueue one",
    ]
    seen.clear()
    assert site.work() is WorkerStatus.ACKED
    assert handle.result() == 3
    assert seen == [f"outer before_run {job}", f"inner before_run {job}", "inner after_run 3", "outer after_run 3"]


class Tenancy(Middleware):
    """A tenant that travels with every job."""

    def __init__(self) -> None:
        self.tenant = contextvars.ContextVar("tenant", default="nobody")

    def before_enqueue(self, definition: JobDefinition) -> JobDefinition:
        return definition.with_added_meta({"tenant": self.tenant.get()})

    def before_run(self, context: JobContext) -> None:
        self.tenant.set(context.meta["tenant"])


@pytest.mark.parametrize("way", ["job", "enqueue", "dispatch", "many"])
def test_what_a_hook_adds_to_meta_is_signed_and_read_at_the_run(shop: Callable[..., Shop], way: str) -> None:
    tenancy = Tenancy()
    site = shop(tenancy)
    hf = site.hf

    @hf.job(meta={"kept": 1})
    def whose(context: JobContext) -> list[object]:
        return [tenancy.tenant.get(), context.meta["kept"]]

    @hf.job(key="whose_async", meta={"kept": 1})
    async def whose_async(context: JobContext) -> list[object]:
        return [tenancy.tenant.get(), context.meta["kept"]]

    for job in (whose, whose_async):
        tenancy.tenant.set("ada")
        definition = cast("Any", job).define()
        match way:
            case "job":
                job_id = cast("Any", job).enqueue().id
            case "enqueue":
                job_id = hf.enqueue(definition)
            case "dispatch":
                job_id = hf.define(job.key).meta({"kept": 1}).dispatch()
            case _:
                [job_id] = hf.enqueue_many([definition])
        tenancy.tenant.set("somebody else")
        assert site.work() is WorkerStatus.ACKED
        assert hf.handle(job_id).result() == ["ada", 1]
        assert tenancy.tenant.get() == "somebody else"  # the run had a context of its own


def test_a_job_is_kept_in_the_callers_transaction_with_what_the_hooks_added(tmp_path: Path) -> None:
    seen: list[str] = []
    hf = Holdfast(f"sqlite:///{tmp_path}/jobs.db", settings=Settings(), middleware=[Tenancy(), Spy("spy", seen)])
    with hf, sqlite3.connect(tmp_path / "jobs.db") as connection:
        hf.create_schema()
        connection.execute("BEGIN IMMEDIATE")
        kept = hf.define("work").id("one").dispatch(tx=connection)
        connection.commit()
        assert seen == ["spy before_enqueue work", "spy after_enqueue one"]
        assert bytes(hf.handle(kept).view().meta) == b'{"tenant":"nobody"}'
    connection.close()


def test_an_error_before_enqueueing_is_the_callers_and_nothing_is_kept(shop: Callable[..., Shop]) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen, "before_enqueue"), Spy("never", seen))
    with pytest.raises(Boom, match="inner"):
        site.jobs["add"].enqueue(1)
    assert seen == ["outer before_enqueue add", "inner before_enqueue add", "outer on_enqueue_error Boom"]
    assert site.waiting() == 0


def test_an_error_before_the_second_of_many_keeps_none_and_tells_about_the_first(shop: Callable[..., Shop]) -> None:
    class Picky(Spy):
        def before_enqueue(self, definition: JobDefinition) -> None:
            super().before_enqueue(definition)
            if definition.priority == 9:
                raise Boom("too important")

    seen: list[str] = []
    site = shop(Picky("picky", seen))
    add = site.jobs["add"]
    with pytest.raises(Boom, match="too important"):
        site.hf.enqueue_many([add.define(1), add.options(priority=9).define(2), add.define(3)])
    assert seen == ["picky before_enqueue add", "picky before_enqueue add", "picky on_enqueue_error Boom"]
    assert site.waiting() == 0


def test_an_engine_that_refuses_the_job_is_told_to_every_hook_and_the_caller(shop: Callable[..., Shop]) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen, "on_enqueue_error"))
    site.jobs["add"].options(id="one").enqueue(1)
    seen.clear()
    with pytest.raises(IdConflict):
        site.jobs["add"].options(id="one").enqueue(2)
    assert seen[2:] == ["inner on_enqueue_error IdConflict", "outer on_enqueue_error IdConflict"]


def test_an_error_after_enqueueing_is_logged_since_the_job_is_kept(
    shop: Callable[..., Shop], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen, "after_enqueue"))
    handle = site.jobs["add"].options(id="one").enqueue(1)
    assert handle.status() is JobState.PENDING
    assert seen[-1] == "outer after_enqueue one"
    assert "Spy failed; job 'one' is stored" in caplog.text


def test_a_command_that_a_hook_makes_is_checked_like_any_other(shop: Callable[..., Shop]) -> None:
    class Shell(Middleware):
        def before_enqueue(self, definition: JobDefinition) -> JobDefinition:
            return JobDefinition(handler="command").with_payload({"argv": ["rm", "-r", "/"]})

    site = shop(Shell())
    with pytest.raises(CommandForbidden):
        site.jobs["add"].enqueue(1)
    with pytest.raises(CommandForbidden):
        site.hf.enqueue_many([site.jobs["add"].define(1)])


def test_a_hook_that_returns_something_else_is_told_what_to_return(shop: Callable[..., Shop]) -> None:
    class Wrong(Middleware):
        def before_enqueue(self, definition: JobDefinition) -> JobDefinition:
            return cast("JobDefinition", definition.queue)

    with pytest.raises(DefinitionError, match=r"Wrong returned 'default'; return a JobDefinition, such as"):
        shop(Wrong()).jobs["add"].enqueue(1)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_of_the_handler_is_told_to_every_hook(shop: Callable[..., Shop], is_async: bool) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen, "on_run_error"))

    def fail() -> None:
        raise ValueError("no")

    async def fail_async() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    handle = site.hf.job(max_retries=0, key="fail")(fail_async if is_async else fail).enqueue()
    seen.clear()
    assert site.work() is WorkerStatus.DEAD_LETTERED
    assert handle.view().last_error == "ValueError: no"
    assert seen[2:] == ["inner on_run_error ValueError", "outer on_run_error ValueError"]


def test_an_error_in_on_run_error_is_logged_and_hides_nothing(
    shop: Callable[..., Shop], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    site = shop(Spy("spy", seen, "on_run_error"))

    @site.hf.job(max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    handle = fail.options(id="one").enqueue()
    site.work()
    assert handle.view().last_error == "ValueError: no"
    assert "on_run_error of" in caplog.text
    assert "failed for job 'one'" in caplog.text


@pytest.mark.parametrize("job", ["add", "add_async"])
def test_an_error_before_the_run_fails_it_and_the_handler_is_not_called(shop: Callable[..., Shop], job: str) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen, "before_run"), Spy("never", seen))
    handle = site.jobs[job].enqueue(1)
    seen.clear()
    assert site.work() is WorkerStatus.DEAD_LETTERED
    assert "Boom: inner" in (handle.view().last_error or "")
    assert seen == [f"outer before_run {job}", f"inner before_run {job}", "outer on_run_error Boom"]


@pytest.mark.parametrize("job", ["add", "add_async"])
def test_an_error_after_the_run_fails_it_and_is_told_to_the_outer_hooks(shop: Callable[..., Shop], job: str) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("middle", seen, "after_run"), Spy("inner", seen))
    handle = site.jobs[job].enqueue(1)
    seen.clear()
    assert site.work() is WorkerStatus.DEAD_LETTERED
    assert "Boom: middle" in (handle.view().last_error or "")
    assert seen[3:] == ["inner after_run 2", "middle after_run 2", "outer on_run_error Boom"]


@pytest.mark.parametrize(("verdict", "status"), [(Snooze(60), "released"), (Cancel("closed"), "cancelled")])
def test_a_verdict_of_a_hook_counts_and_is_no_error(
    shop: Callable[..., Shop], verdict: BaseException, status: str
) -> None:
    seen: list[str] = []
    site = shop(Spy("outer", seen), Spy("inner", seen, "before_run", error=verdict))
    site.jobs["add"].enqueue(1)
    assert site.work() == status
    assert seen[-1] == f"outer after_run {type(verdict).__name__}"


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_verdict_of_the_handler_is_what_it_ended_with(shop: Callable[..., Shop], is_raised: bool) -> None:
    seen: list[str] = []
    site = shop(Spy("spy", seen))

    @site.hf.job
    def later() -> Snooze:
        if is_raised:
            raise Snooze(60)
        return Snooze(60)

    later.enqueue()
    assert site.work() is WorkerStatus.RELEASED
    assert seen[-1] == "spy after_run Snooze"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_timeout_is_told_as_what_it_is(shop: Callable[..., Shop], is_async: bool) -> None:
    seen: list[str] = []
    site = shop(Spy("spy", seen))

    def hang() -> None:
        threading.Event().wait(30)

    async def hang_async() -> None:
        await asyncio.Event().wait()

    job = site.hf.job(key="hang", max_retries=0, timeout=SHORT_S)(hang_async if is_async else hang)
    job.enqueue()
    assert site.work() is WorkerStatus.DEAD_LETTERED
    assert seen[-1] == f"spy on_run_error {JobTimeout.__name__}"


def test_a_late_return_where_nothing_can_be_raised_is_told_as_a_timeout(shop: Callable[..., Shop]) -> None:
    seen: list[str] = []
    site = shop(Spy("spy", seen))

    @site.hf.job(max_retries=0, timeout=SHORT_S)
    def late(context: JobContext) -> None:
        while not context.is_cancelled():
            threading.Event().wait(0.01)

    cast("Any", late).enqueue()
    thread = threading.Thread(target=site.work)
    thread.start()
    thread.join()
    assert seen[-1] == f"spy on_run_error {JobTimeout.__name__}"


def test_hooks_that_nobody_overrides_are_not_called_at_all() -> None:
    class Quiet(Middleware):
        pass

    class Runs(Middleware):
        def after_run(self, context: JobContext, value: object) -> None: ...

    quiet, tenancy, runs = Quiet(), Tenancy(), Runs()
    assert around_enqueue([quiet, tenancy, runs]) == (tenancy,)
    assert around_run([quiet, tenancy, runs]) == (tenancy, runs)


def test_what_is_no_middleware_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    class Waits(Middleware):
        async def before_run(self, context: JobContext) -> None: ...

    def refused(middleware: object) -> str:
        with pytest.raises(ConfigError) as caught:
            Holdfast("memory://", directory=tmp_path, middleware=[cast("Middleware", middleware)])
        return str(caught.value)

    assert "pass an instance, Tenancy()" in refused(Tenancy)
    assert "derive its class from holdfast.Middleware" in refused("otel")
    assert "before_run of the middleware" in refused(Waits())
    assert "use a dependency of the job to await things" in refused(Waits())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with its own middleware module."""
    (tmp_path / "holdfast.toml").touch()
    (tmp_path / "shop_hooks.py").write_text(
        "from holdfast import Middleware\n"
        "class Shouting(Middleware):\n"
        "    def before_enqueue(self, definition):\n"
        "        return definition.with_options(name='CONFIGURED')\n"
        "ready = Shouting()\n"
        "class Needy(Middleware):\n"
        "    def __init__(self, url): ...\n"
        "def no_middleware(): ...\n"
    )
    return tmp_path


@pytest.mark.parametrize("name", ["Shouting", "ready"])
def test_the_configuration_names_middleware_which_comes_first(project: Path, name: str) -> None:
    (project / "holdfast.toml").write_text(f'middleware = ["shop_hooks:{name}"]\n')
    given = Tenancy()
    with Holdfast("memory://", directory=project, middleware=[given]) as hf:
        job_id = hf.define("work").dispatch()
        assert hf.handle(job_id).view().name == "CONFIGURED"
        assert [type(one).__name__ for one in hf.extensions.middleware] == ["Shouting", "Tenancy"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop_hooks:Needy", "cannot create the middleware 'shop_hooks:Needy' without arguments"),
        ("shop_hooks:Missing", "cannot load the middleware 'shop_hooks:Missing': AttributeError"),
        ("shop_hooks:no_middleware", "derive its class from holdfast.Middleware"),
        ("no_such_module:X", "cannot load the middleware 'no_such_module:X': ModuleNotFoundError"),
        ("telemetry", "there is no middleware 'telemetry'; write MODULE:NAME or one of the installed ones: otel"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_clear_error(project: Path, name: str, why: str) -> None:
    with Holdfast("memory://", directory=project, settings=Settings(middleware=(name,))) as hf:
        with pytest.raises(ConfigError) as caught:
            hf.define("work").dispatch()
        assert why in str(caught.value)


def test_an_installed_package_offers_middleware_as_an_entry_point(project: Path) -> None:
    package = project / "their_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{plugins.MIDDLEWARE.group}]\nshouting = shop_hooks:Shouting\n")
    sys.path.append(str(project))
    with Holdfast("memory://", directory=project, settings=Settings(middleware=("shouting",))) as hf:
        assert hf.handle(hf.define("work").dispatch()).view().name == "CONFIGURED"


def test_inline_jobs_meet_both_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    caplog.set_level(logging.CRITICAL)
    with Holdfast("sync://", directory=tmp_path, settings=Settings(), middleware=[Spy("spy", seen)]) as hf:

        @hf.job(max_retries=0)
        def fail() -> None:
            raise Boom("inside")

        with pytest.raises(JobFailed):
            fail.enqueue()
    assert seen == [
        "spy before_enqueue fail",
        "spy before_run fail",
        "spy on_run_error Boom",
        "spy on_enqueue_error JobFailed",
    ]
    assert issubclass(JobFailed, HoldfastError)


def test_a_job_that_a_test_performs_meets_both_ends(tmp_path: Path) -> None:
    tenancy = Tenancy()
    with Holdfast("memory://", directory=tmp_path, settings=Settings(), middleware=[tenancy]) as hf:

        @hf.job
        def bill(order: int) -> str:
            return f"{order} of {tenancy.tenant.get()}"

        with JobKit(hf) as kit:
            tenancy.tenant.set("acme")
            assert kit.perform(bill, 7) == "7 of acme"
            kit.refute_enqueued(bill)
