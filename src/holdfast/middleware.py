"""`Middleware`: hooks around enqueueing and running, called in order on the way in and in reverse on the way out."""

import inspect
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast import plugins
from holdfast.definition import JobDefinition
from holdfast.errors import ConfigError, DefinitionError
from holdfast.handlers.contract import Cancel, JobContext, Snooze

_log = logging.getLogger("holdfast.middleware")


class Middleware:
    """Override the hooks you need. One object serves all jobs, on every thread that enqueues or runs them.

    If a `before_…` hook returns, exactly one `after_…` or `on_…_error` hook follows, like the end of a `with` block.
    The hooks of a run are called in the handler's context (`contextvars`) and within the job's timeout. They are plain
    methods, also for coroutine handlers.
    """

    def before_enqueue(self, definition: JobDefinition) -> JobDefinition | None:
        """Return a definition to enqueue instead, or None. Raise to enqueue no job of this call."""

    def after_enqueue(self, definition: JobDefinition, job_id: str) -> object:
        """The job is stored; with `tx`, once your transaction commits. An exception is logged, since the job exists.

        The definition is the one that `before_enqueue` of this object returned or received.
        """

    def on_enqueue_error(self, definition: JobDefinition, error: BaseException) -> object:
        """The job was not stored; the error is raised to the caller. An exception of this hook is logged."""

    def before_run(self, context: JobContext) -> object:
        """Raise to fail the run before it starts, or raise `Snooze` or `Cancel`."""

    def after_run(self, context: JobContext, value: object) -> object:
        """The handler returned this value, or snoozed or cancelled. An exception of this hook fails the run."""

    def on_run_error(self, context: JobContext, error: BaseException) -> object:
        """The run failed, or was stopped (`JobInterrupted`, `JobTimeout`). An exception of this hook is logged."""


_ENQUEUE_HOOKS: Final = ("before_enqueue", "after_enqueue", "on_enqueue_error")
_RUN_HOOKS: Final = ("before_run", "after_run", "on_run_error")


def around_enqueue(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Those with a hook for enqueueing."""
    return tuple(one for one in middleware if _overrides(one, _ENQUEUE_HOOKS))


def around_run(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Those with a hook for running."""
    return tuple(one for one in middleware if _overrides(one, _RUN_HOOKS))


def _overrides(middleware: Middleware, hooks: Sequence[str]) -> bool:
    return any(getattr(type(middleware), hook) is not getattr(Middleware, hook) for hook in hooks)


class Enqueueing:
    """The hooks around enqueueing some definitions, all or none. Inside the block, `definitions` are those to enqueue.

    The caller sets `ids` before the end of the block.
    """

    def __init__(self, hooks: Sequence[Middleware], definitions: Sequence[JobDefinition]) -> None:
        self._hooks = hooks
        self._passed: list[list[tuple[Middleware, JobDefinition]]] = []
        self.definitions = definitions
        self.ids: Sequence[str] = ()

    def __enter__(self) -> Self:
        if not self._hooks:  # a call for each job would cost a twentieth of its enqueueing
            return self
        try:
            self.definitions = [self._before(definition) for definition in self.definitions]
        except BaseException as problem:
            self._failed(problem)
            raise
        return self

    def __exit__(self, _kind: object, problem: BaseException | None, _traceback: object) -> None:
        if problem is not None:
            self._failed(problem)
            return
        for passed, job_id in zip(self._passed, self.ids if self._hooks else (), strict=True):
            for middleware, definition in reversed(passed):
                # The job is stored: if this raised, the caller would believe it lost and enqueue it again.
                try:
                    middleware.after_enqueue(definition, job_id)
                except Exception:
                    _log.exception("after_enqueue of %s failed; job '%s' is stored", _name_of(middleware), job_id)

    def _before(self, definition: JobDefinition) -> JobDefinition:
        passed: list[tuple[Middleware, JobDefinition]] = []
        self._passed.append(passed)
        for middleware in self._hooks:
            changed = middleware.before_enqueue(definition)
            if changed is not None:
                if not isinstance(changed, JobDefinition):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's
                    raise DefinitionError(
                        f"before_enqueue of {_name_of(middleware)} returned {changed!r}; return a JobDefinition, such "
                        "as definition.with_options(queue=...), or None to leave it unchanged"
                    )
                definition = changed
            passed.append((middleware, definition))
        return definition

    def _failed(self, problem: BaseException) -> None:
        for passed in self._passed:
            for middleware, definition in reversed(passed):
                try:
                    middleware.on_enqueue_error(definition, problem)
                except Exception:
                    _log.exception("on_enqueue_error of %s failed", _name_of(middleware))


class Running:
    """The hooks around one run. The caller sets `value` before the end of the block."""

    def __init__(self, hooks: Sequence[Middleware], context: JobContext) -> None:
        self._hooks = hooks
        self._context = context
        self._entered: list[Middleware] = []
        self.value: object = None

    def __enter__(self) -> Self:
        try:
            for middleware in self._hooks:
                middleware.before_run(self._context)
                self._entered.append(middleware)
        except BaseException as problem:
            self._end(problem)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._end(problem)

    def _end(self, problem: BaseException | None) -> None:
        """Call the final hooks, the last one first. For the hooks that follow, an error of one is the run's error."""
        try:
            while self._entered:
                self._call_after(self._entered.pop(), problem)
        except BaseException as raised:
            self._end(raised)
            raise

    def _call_after(self, middleware: Middleware, problem: BaseException | None) -> None:
        # Off the main thread nothing is raised: a run that had to stop has returned, but still counts as stopped.
        error = self._context.host.stop_reason() or problem
        if error is None or isinstance(error, Snooze | Cancel):
            middleware.after_run(self._context, self.value if error is None else error)
            return
        try:
            middleware.on_run_error(self._context, error)
        except BaseException:  # also an interrupt: it is recorded, and the other hooks must still be called
            _log.exception("on_run_error of %s failed for job '%s'", _name_of(middleware), self._context.id)


def checked(middleware: Iterable[object]) -> tuple[Middleware, ...]:
    """The objects, after checking that each is a valid middleware."""
    return tuple(_checked(one) for one in middleware)


def _checked(middleware: object) -> Middleware:
    if inspect.isclass(middleware):
        name = middleware.__name__
        raise ConfigError(f"the middleware {name} is a class; pass an instance, {name}()")
    if not isinstance(middleware, Middleware):
        raise ConfigError(f"{middleware!r} is not a middleware; derive its class from holdfast.Middleware")
    for hook in (*_ENQUEUE_HOOKS, *_RUN_HOOKS):
        if inspect.iscoroutinefunction(getattr(middleware, hook)):
            raise ConfigError(
                f"{hook} of the middleware {_name_of(middleware)} is async, but it would not be awaited for jobs that "
                "are plain functions; make it a plain method, and use a dependency of the job to await things"
            )
    return middleware


def named_middleware(names: Iterable[str], directory: Path | None = None) -> tuple[Middleware, ...]:
    """The middleware that the settings name."""
    return checked(plugins.make(plugins.MIDDLEWARE, name, directory) for name in names)


def _name_of(middleware: Middleware) -> str:
    return f"{type(middleware).__module__}.{type(middleware).__qualname__}"
