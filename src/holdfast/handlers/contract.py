"""The contract of a handler: what it implements, what it gets from its context, and how it can snooze or cancel."""

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from numbers import Real
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from holdfast.definition.definition import MAX_DURATION_S
from holdfast.errors import NotSupported
from holdfast.handlers.payload import decoded
from holdfast.handlers.results import ParentResults
from holdfast.values import ExecutionResult, Progress

_MESSAGE_LIMIT: Final = 1024
_log = logging.getLogger("holdfast.job")


# Both are BaseExceptions, like an interrupt: an `except Exception` in the job that caught one would turn it into a
# success.
class Snooze(BaseException):
    """Return or raise it to run the job again after `delay`, without using up an attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= seconds <= MAX_DURATION_S:
            raise ValueError(f"a snooze must be between 0 and {MAX_DURATION_S:g} seconds, not {seconds:g}")
        super().__init__(seconds)
        self.delay_s = seconds


class Cancel(BaseException):
    """Return or raise it to cancel the job: it is neither done nor failed, and does not run again."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Host:
    """The runner of an attempt, as its context sees it. This base class does nothing, which is enough for tests."""

    __slots__ = ()

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's timeout expires."""
        return None

    @property
    def delivery(self) -> int:
        """The number of deliveries of the job, including this one."""
        return 0

    @property
    def fence(self) -> int:
        """The fence number of the job's keys; 0 if it has none."""
        return 0

    def stop_asked(self) -> bool:
        """Whether the attempt must stop."""
        return False

    def stop_reason(self) -> BaseException | None:
        """Why the attempt is stopped, whatever it still returns."""
        return None

    def write(self, text: str) -> None:
        """Add to the output of the attempt."""

    def held_back(self) -> AbstractContextManager[None]:
        """Interrupt nothing inside the block."""
        return nullcontext()

    def report(self, progress: Progress) -> None:
        """Report progress."""

    @property
    def results(self) -> ParentResults:
        """The results of the jobs that the job depends on."""
        return ParentResults((), lambda _: None)

    def transaction(self) -> Any:
        """A connection in the transaction that ends with the run."""
        raise NotSupported("context.transaction() is available only when a worker runs the job")


_NO_HOST: Final = Host()


class JobContext(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The handler's view of its job, and the means to report, log and stop. `attempt` is 1 for the first run."""

    id: str
    job: str
    queue: str
    attempt: int
    payload: Any = None
    name: str | None = None
    meta: Mapping[str, Any] = MappingProxyType({})
    tags: tuple[str, ...] = ()
    trace_id: str | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    host: Host = _NO_HOST

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's timeout expires, if it has one."""
        return self.host.deadline

    @property
    def delivery(self) -> int:
        """The number of deliveries of the job to a worker, including this one; 0 outside of a worker."""
        return self.host.delivery

    @property
    def fence(self) -> int:
        """A fencing token: greater than that of every earlier run that held the job's keys; 0 if the job has no keys.

        Pass it to the resource that the key protects, which can then refuse writes from an earlier holder.
        """
        return self.host.fence

    @property
    def results(self) -> ParentResults:
        """The results of the jobs that this one depends on, by id or handle: `context.results["import-7"]`.

        Each access reads the parent's record from the backend. A parent that failed raises `JobFailed` or
        `JobCancelled`; with `on_parent_failure="cancel"`, the default, the job runs only if no parent has failed.
        """
        return self.host.results

    @property
    def log(self) -> logging.Logger:
        """The logger `holdfast.job`. What is logged while the job runs, to any logger, is stored with the attempt."""
        return _log

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the job's progress, in any unit: `progress(40, 100, "rows")`. The latest report counts."""
        self.host.report(
            Progress(
                done=_amount("done", done),
                total=None if total is None else _amount("total", total),
                message=_short(message),
            )
        )

    def transaction(self) -> Any:
        """The driver's connection to the queue's own database, in a transaction that ends with this run.

        After the handler has returned, its writes and the completion of the job are committed together: the effect
        exists exactly once, whatever is killed when. If the run fails, snoozes or has lost its lease, the transaction
        is rolled back. Do not commit or roll back yourself. On SQLite no other process can write from here on: ask for
        it late, and be quick.
        """
        return self.host.transaction()

    def is_cancelled(self) -> bool:
        """Whether the attempt must stop: it was cancelled, has timed out, or the worker is shutting down."""
        return self.host.stop_asked()

    def write(self, text: str) -> None:
        """Add to the output of the attempt."""
        self.host.write(text)

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Delay a timeout or a cancellation until the end of the block, for a step that must not be interrupted.

        Keep it short: the worker kills a process that does not stop in time.
        """
        return self.host.held_back()


def _amount(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"progress(): {what} must be a number, not {value!r}; pass progress(done, total, message)")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise ValueError(f"progress(): {what} must be a finite number, 0 or more, not {value!r}")
    return number


def _short(message: object) -> str:
    if not isinstance(message, str):
        raise TypeError(f"progress(): the message must be text, not {message!r}; pass progress(done, total, message)")
    # NUL and lone surrogates are legal in a str, but not in every engine's text column.
    data = message[:_MESSAGE_LIMIT].replace("\0", "\ufffd").encode("utf-8", "replace")
    return data[:_MESSAGE_LIMIT].decode(errors="ignore")


class Handler(ABC):
    """The code that runs a job: `handle`. It may be `async def`; then the hooks may also be.

    `before_run` and `handle` share the job's timeout, and an exception of either fails the run. `after_run` is called
    whenever `before_run` has returned, however `handle` ended. It receives the result and cannot change it; an
    exception is logged.
    """

    payload_type: Any = Any
    """The type that the payload is decoded into. A payload that does not fit fails the run without a retry."""

    no_retry: tuple[type[BaseException], ...] = ()
    """Exceptions after which the job is not run again."""

    is_async: bool = False
    """Whether `handle` is a coroutine function; determined from the class, not from what it returns."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.is_async = inspect.iscoroutinefunction(cls.handle)

    @abstractmethod
    def handle(self, context: JobContext) -> object:
        """Run the job once. Returns its result, `Snooze(...)` or `Cancel(...)`."""

    def before_run(self, context: JobContext) -> object:  # noqa: B027 - a hook: having none is the usual case
        """Prepare one run."""

    def after_run(self, context: JobContext, result: ExecutionResult) -> object:  # noqa: B027
        """Clean up after one run."""

    def check(self, payload: Any) -> None:  # noqa: B027
        """Raise to refuse a payload before anything runs. `CommandForbidden` and `HandlerForbidden` dead-letter the
        job without an attempt; any other exception is a failed run.
        """

    def decode(self, payload: bytes) -> Any:
        """Decode the payload into its type."""
        return decoded(payload, self.payload_type)
