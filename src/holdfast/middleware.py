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
    """Override the hooks you need. One object serves all jobs, on every thread that enqueues or runs some.

    A `before_…` that returned is followed by exactly one `after_…` or `on_…_error`, like the block of a `with`. The
    hooks of a run are called in the context (`contextvars`) that the handler runs in, within the job's timeout, around
    coroutines as well; they are plain methods.
    """

    def before_enqueue(self, definition: JobDefinition) -> JobDefinition | None:
        """Return another definition to have that one signed and kept, or None; raise to keep none of this call."""

    def after_enqueue(self, definition: JobDefinition, job_id: str) -> object:
        """The job is kept; with `tx`, if your transaction is. What this raises is logged, since the job exists.

        The definition is the one that `before_enqueue` of this object has passed on.
        """

    def on_enqueue_error(self, definition: JobDefinition, error: BaseException) -> object:
        """The job was not kept; the caller is told why. What this raises is logged."""

    def before_run(self, context: JobContext) -> object:
        """Raise to fail the run before it begins, or raise `Snooze` or `Cancel`."""

    def after_run(self, context: JobContext, value: object) -> object:
        """The handler returned this, or ended with that `Snooze` or `Cancel`. What this raises fails the run."""

    def on_run_error(self, context: JobContext, error: BaseException) -> object:
        """The run fails with this, or was stopped: `JobInterrupted`, `JobTimeout`. What this raises is logged."""


_ENQUEUE_HOOKS: Final = ("before_enqueue", "after_enqueue", "on_enqueue_error")
_RUN_HOOKS: Final = ("before_run", "after_run", "on_run_error")


def around_enqueue(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Those that have something to do when a job is enqueued."""
    return tuple(one for one in middleware if _overrides(one, _ENQUEUE_HOOKS))


def around_run(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Those that have something to do when a job is run."""
    return tuple(one for one in middleware if _overrides(one, _RUN_HOOKS))


def _overrides(middleware: Middleware, hooks: Sequence[str]) -> bool:
    return any(getattr(type(middleware), hook) is not getattr(Middleware, hook) for hook in hooks)


class Enqueueing:
    """The hooks around keeping some definitions, all or none: entered, `definitions` are those to keep.

    Whoever keeps them sets `ids` before the block ends.
    """

    def __init__(self, hooks: Sequence[Middleware], definitions: Sequence[JobDefinition]) -> None:
        self._hooks = hooks
        self._passed: list[list[tuple[Middleware, JobDefinition]]] = []
        self.definitions = definitions
        self.ids: Sequence[str] = ()

    def __enter__(self) -> Self:
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
        for passed, job_id in zip(self._passed, self.ids, strict=True):
            for middleware, definition in reversed(passed):
                # The job is kept: told of an error, the caller would take it for lost and enqueue it again.
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
                        f"before_enqueue of {_name_of(middleware)} returned {changed!r}: return a JobDefinition, such "
                        "as definition.with_options(queue=...), or None to leave it as it is"
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
    """The hooks around one run. Whoever runs it sets `value` before the block ends."""

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
            self._leave(problem)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._leave(problem)

    def _leave(self, problem: BaseException | None) -> None:
        """Call the hooks after, from the last to the first; an error of one is the run's for those before it."""
        try:
            while self._entered:
                self._call_after(self._entered.pop(), problem)
        except BaseException as raised:
            self._leave(raised)
            raise

    def _call_after(self, middleware: Middleware, problem: BaseException | None) -> None:
        # Where nothing can be raised, a run that was to stop has returned all the same, and is judged by that.
        error = self._context.host.stop_reason() or problem
        if error is None or isinstance(error, Snooze | Cancel):
            middleware.after_run(self._context, self.value if error is None else error)
            return
        try:
            middleware.on_run_error(self._context, error)
        except BaseException:  # an interrupt, too: it has been noted, and the other hooks are still to be called
            _log.exception("on_run_error of %s failed for job '%s'", _name_of(middleware), self._context.id)


def checked(middleware: Iterable[object]) -> tuple[Middleware, ...]:
    """The objects, if each can be one."""
    return tuple(_checked(one) for one in middleware)


def _checked(middleware: object) -> Middleware:
    if inspect.isclass(middleware):
        name = middleware.__name__
        raise ConfigError(f"the middleware {name} is a class: pass an object of it, {name}()")
    if not isinstance(middleware, Middleware):
        raise ConfigError(f"{middleware!r} is no middleware: derive its class from holdfast.Middleware")
    for hook in (*_ENQUEUE_HOOKS, *_RUN_HOOKS):
        if inspect.iscoroutinefunction(getattr(middleware, hook)):
            raise ConfigError(
                f"{hook} of the middleware {_name_of(middleware)} is async, but plain functions are jobs too, and "
                "nobody would await it there: make it a plain method, and await things in a dependency of the job"
            )
    return middleware


def named_middleware(names: Iterable[str], directory: Path | None = None) -> tuple[Middleware, ...]:
    """The objects that a configuration names."""
    return checked(plugins.make(plugins.MIDDLEWARE, name, directory) for name in names)


def _name_of(middleware: Middleware) -> str:
    return f"{type(middleware).__module__}.{type(middleware).__qualname__}"
