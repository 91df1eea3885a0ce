"""`OpenTelemetry`: connects the trace that enqueues a job with the runs of the job. Needs the extra `otel`.

The context travels in the job's `meta` as W3C `traceparent` and `tracestate`; spans follow OpenTelemetry's messaging
conventions. Without an SDK nothing is recorded, but the producer's context is still passed on.
"""

from contextvars import ContextVar, Token
from typing import Final

from holdfast import __version__
from holdfast.definition import JobDefinition
from holdfast.errors import ConfigError
from holdfast.handlers import Cancel, JobContext, Snooze
from holdfast.middleware import Middleware

try:
    from opentelemetry import context as contexts, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as problem:
    raise ConfigError("tracing needs the package opentelemetry-api: pip install opentelemetry-api") from problem

SYSTEM: Final = "holdfast"
_propagator = TraceContextTextMapPropagator()
_running: ContextVar[tuple[Span, "Token[contexts.Context]"] | None] = ContextVar("holdfast_span", default=None)


class OpenTelemetry(Middleware):
    """A span for each job that is enqueued (producer) and for each run (consumer).

    The span of a run starts a new trace and links to the one that enqueued the job, which may be long ago and have
    many runs. With `continue_trace`, the run is part of that trace instead. Put this middleware first, so that the
    other hooks run inside its span.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, continue_trace: bool = False) -> None:
        self._tracer = trace.get_tracer("holdfast", __version__, tracer_provider)
        self._continue_trace = continue_trace
        # By the identity of the definition that `before_enqueue` returns; the later hooks receive the same object.
        self._sending: dict[int, Span] = {}

    def before_enqueue(self, definition: JobDefinition) -> JobDefinition | None:
        span = self._tracer.start_span(
            f"send {definition.queue}",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": definition.queue,
                "holdfast.job": definition.handler,
            },
        )
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(span))
        if not carrier:  # nothing is recorded, and the caller is in no trace
            return None
        passed_on = definition.with_added_meta(carrier)
        if passed_on.trace_id is None:
            passed_on = passed_on.with_options(trace_id=trace.format_trace_id(span.get_span_context().trace_id))
        self._sending[id(passed_on)] = span
        return passed_on

    def after_enqueue(self, definition: JobDefinition, job_id: str) -> None:
        span = self._sending.pop(id(definition), None)
        if span is not None:
            span.set_attribute("messaging.message.id", job_id)
            span.end()

    def on_enqueue_error(self, definition: JobDefinition, error: BaseException) -> None:
        span = self._sending.pop(id(definition), None)
        if span is not None:
            _record(span, error)
            span.end()

    def before_run(self, context: JobContext) -> None:
        origin = _propagator.extract(_carrier(context), contexts.Context())
        enqueued = trace.get_current_span(origin).get_span_context()
        span = self._tracer.start_span(
            f"process {context.queue}",
            context=origin if self._continue_trace else contexts.Context(),
            kind=SpanKind.CONSUMER,
            links=[Link(enqueued)] if enqueued.is_valid and not self._continue_trace else None,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": context.queue,
                "messaging.message.id": context.id,
                "holdfast.job": context.job,
                "holdfast.attempt": context.attempt,
                "holdfast.delivery": context.delivery,
            },
        )
        if not span.get_span_context().is_valid and enqueued.is_valid:
            span = trace.NonRecordingSpan(enqueued)  # without an SDK: jobs that the job enqueues stay in its trace
        _running.set((span, contexts.attach(trace.set_span_in_context(span))))

    def after_run(self, context: JobContext, value: object) -> None:
        span = _detached_span()
        if span is not None:
            if isinstance(value, Snooze | Cancel):
                span.set_attribute("holdfast.outcome", "snoozed" if isinstance(value, Snooze) else "cancelled")
            span.end()

    def on_run_error(self, context: JobContext, error: BaseException) -> None:
        span = _detached_span()
        if span is not None:
            _record(span, error)
            span.end()


def _carrier(context: JobContext) -> dict[str, str]:
    """The members of `meta` that the propagator may read: they can have any type."""
    found = {name: context.meta.get(name) for name in _propagator.fields}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _detached_span() -> Span | None:
    """Detach the span of the run that is ending, and return it."""
    opened = _running.get()
    if opened is None:
        return None
    span, token = opened
    _running.set(None)
    contexts.detach(token)
    return span


def _record(span: Span, error: BaseException) -> None:
    kind = type(error)
    span.record_exception(error)  # type: ignore[arg-type,unused-ignore]
    span.set_attribute("error.type", kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind))
    span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {error}"))


def _full_name(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
