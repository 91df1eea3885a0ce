"""OpenTelemetry: one trace from where a job is enqueued to where it runs."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Cancel, Holdfast, JobContext, JobDefinition, Middleware, Snooze
from holdfast.config import Settings
from holdfast.errors import IdConflict
from holdfast.tracing import OpenTelemetry
from holdfast.values import WorkerStatus


class Boom(Exception):
    pass


class Site:
    """An application whose spans are recorded."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.middleware = OpenTelemetry(provider, **options)
        self.hf = Holdfast(
            "memory://", settings=Settings(max_retries=0), directory=directory, middleware=[self.middleware]
        )

    def work(self) -> WorkerStatus:
        with self.hf.worker() as worker:
            return worker.process_once("default").status

    def spans(self) -> list[ReadableSpan]:
        """Those that have ended since the last call, in that order."""
        ended = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return ended


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(tmp_path, **getattr(request, "param", {}))
    yield site
    site.hf.close()


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def plain(a: int) -> int:
    return a


async def coroutine(a: int) -> int:
    await asyncio.sleep(0)
    return a


@pytest.mark.parametrize("function", [plain, coroutine])
def test_a_run_links_to_where_it_was_enqueued(site: Site, function: Callable[..., object]) -> None:
    job = site.hf.job(key="add")(function)
    with site.tracer.start_as_current_span("request"):
        handle = job.options(id="one").enqueue(1)
    send, request = site.spans()
    assert send.name == "send default"
    assert send.kind is SpanKind.PRODUCER
    assert ids(send)[0] == ids(request)[0]
    assert attributes(send) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": "one",
        "holdfast.job": "add",
    }
    view = handle.view()
    assert view.trace_id == trace.format_trace_id(ids(send)[0])

    assert site.work() is WorkerStatus.ACKED
    [process] = site.spans()
    assert process.name == "process default"
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is None
    assert [(link.context.trace_id, link.context.span_id) for link in process.links] == [ids(send)]
    assert attributes(process) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": "one",
        "holdfast.job": "add",
        "holdfast.attempt": 1,
        "holdfast.delivery": 1,
    }
    assert process.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("site", [{"continue_trace": True}], indirect=True)
def test_a_run_may_be_part_of_the_trace_that_enqueued_it(site: Site) -> None:
    @site.hf.job
    def outer() -> None:
        inner.enqueue()

    @site.hf.job
    def inner() -> None: ...

    outer.enqueue()
    site.work()
    site.work()
    send_outer, send_inner, process_outer, process_inner = site.spans()
    assert len({ids(span)[0] for span in (send_outer, send_inner, process_outer, process_inner)}) == 1
    parents = [span.parent.span_id for span in (process_outer, send_inner, process_inner) if span.parent]
    assert parents == [ids(send_outer)[1], ids(process_outer)[1], ids(send_inner)[1]]


def test_the_span_of_a_run_is_current_in_it_and_in_nothing_around_it(tmp_path: Path) -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    class Around(Middleware):
        def before_run(self, context: JobContext) -> None:
            look()

        def after_run(self, context: JobContext, value: object) -> None:
            look()

    site = Site(tmp_path)
    with Holdfast("sync://", settings=Settings(), middleware=[Around(), site.middleware, Around()]) as hf:
        hf.job(look).enqueue()
    process, _ = site.spans()
    assert seen == [0, ids(process)[1], ids(process)[1], ids(process)[1], 0]
    assert not trace.get_current_span().get_span_context().is_valid
    site.hf.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_is_recorded(site: Site, is_async: bool) -> None:
    def fail() -> None:
        raise Boom("no")

    async def fail_async() -> None:
        raise Boom("no")

    site.hf.job(key="fail")(fail_async if is_async else fail).enqueue()
    site.work()
    process = site.spans()[-1]
    assert process.status.status_code is StatusCode.ERROR
    assert process.status.description == "Boom: no"
    assert attributes(process)["error.type"] == f"{__name__}.Boom"
    assert [event.name for event in process.events] == ["exception"]


def test_a_timeout_is_recorded_as_one(site: Site) -> None:
    @site.hf.job(timeout=0.05)
    async def hang() -> None:
        await asyncio.Event().wait()

    hang.enqueue()
    site.work()
    assert attributes(site.spans()[-1])["error.type"] == "holdfast.execution.timeout.JobTimeout"


@pytest.mark.parametrize(("verdict", "outcome"), [(Snooze(5), "snoozed"), (Cancel("no"), "cancelled")])
def test_a_verdict_is_no_error(site: Site, verdict: object, outcome: str) -> None:
    site.hf.job(key="later")(lambda: verdict).enqueue()
    site.work()
    process = site.spans()[-1]
    assert attributes(process)["holdfast.outcome"] == outcome
    assert process.status.status_code is StatusCode.UNSET


def test_a_job_that_was_not_kept_is_an_error_of_its_span(site: Site) -> None:
    site.hf.define("add", 1).id("one").dispatch()
    site.spans()
    with pytest.raises(IdConflict):
        site.hf.define("add", 2).id("one").dispatch()
    [send] = site.spans()
    assert send.status.status_code is StatusCode.ERROR
    assert attributes(send)["error.type"] == "holdfast.errors.IdConflict"


def test_the_same_job_enqueued_from_two_traces_is_one_job(site: Site) -> None:
    for _ in range(2):
        with site.tracer.start_as_current_span("request"):
            assert site.hf.define("add", 1).id("one").meta({"mine": 1}).dispatch() == "one"
    assert sum(site.hf.backend().counts()["default"].values()) == 1


def test_every_one_of_many_has_a_span(site: Site) -> None:
    definition = site.hf.define("add", 1).definition()
    kept = site.hf.enqueue_many([definition] * 3)
    assert [attributes(span)["messaging.message.id"] for span in site.spans()] == kept


def test_another_middleware_that_changes_everything_loses_no_span(tmp_path: Path) -> None:
    class Forgetful(Middleware):
        def before_enqueue(self, definition: JobDefinition) -> JobDefinition:
            return JobDefinition(handler=definition.handler)

    site = Site(tmp_path)
    with Holdfast("memory://", settings=Settings(), middleware=[site.middleware, Forgetful()]) as hf:
        hf.define("add").dispatch()
    assert len(site.spans()) == 1
    site.hf.close()


def test_notes_of_the_users_under_these_names_break_nothing(site: Site) -> None:
    @site.hf.job
    def add() -> None: ...

    site.hf.backend().enqueue(add.define().with_options(meta={"traceparent": 7, "tracestate": ["x"]}))
    assert site.work() is WorkerStatus.ACKED
    assert site.spans()[-1].links == ()


ONLY_THE_API = """
import sys
sys.modules["opentelemetry.sdk"] = None  # as if it were not installed
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from holdfast import Holdfast, JobContext
from holdfast.tracing import OpenTelemetry

hf = Holdfast("sync://", middleware=[OpenTelemetry()])

@hf.job
def look(context: JobContext) -> list[object]:
    return [context.meta.get("traceparent"), trace.get_current_span().get_span_context().trace_id]

print(hf.handle(hf.define("look").dispatch()).result())
with trace.use_span(NonRecordingSpan(SpanContext(10, 11, is_remote=False, trace_flags=TraceFlags(1)))):
    print(hf.handle(hf.define("look").dispatch()).result())
"""


def test_with_only_the_api_the_callers_context_is_passed_on(tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", ONLY_THE_API], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert printed.stderr == ""
    assert printed.stdout.splitlines() == [
        "[None, 0]",
        f"['00-{10:032x}-{11:016x}-01', 10]",
    ]


def test_the_configuration_switches_it_on_by_name(tmp_path: Path) -> None:
    with Holdfast("memory://", settings=Settings(middleware=("otel",)), directory=tmp_path) as hf:
        assert [type(one) for one in hf.extensions.middleware] == [OpenTelemetry]
