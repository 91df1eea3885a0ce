"""The contract between a job and the code that does it: what a handler is, what it sees, how it may end a run."""

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

from holdfast.definition.definition import MAX_SPAN_S
from holdfast.errors import NotSupported
from holdfast.handlers.payload import decoder_of
from holdfast.values import ExecutionResult, Progress

_MESSAGE_LIMIT: Final = 1024
_log = logging.getLogger("holdfast.job")


# Both are BaseExceptions, like an interrupt: they are verdicts, and an `except Exception` on the way up that
# swallowed one would turn it into a success.
class Snooze(BaseException):
    """Return or raise it to run the job again after `delay`; it costs no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= seconds <= MAX_SPAN_S:
            raise ValueError(f"a snooze lasts between 0 and {MAX_SPAN_S:g} seconds, not {seconds:g}")
        super().__init__(seconds)
        self.delay_s = seconds


class Cancel(BaseException):
    """Return or raise it to end the job as cancelled: it is neither done nor failed, and is not run again."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Host:
    """Whoever runs an attempt, as its context sees it. This one runs nothing: tests of handlers need no more."""

    __slots__ = ()

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's time is up."""
        return None

    @property
    def delivery(self) -> int:
        """How often the job has been delivered, this time included."""
        return 0

    def stop_asked(self) -> bool:
        """Whether the attempt shall stop."""
        return False

    def stop_reason(self) -> BaseException | None:
        """Why the attempt ends as stopped, whatever it still returns."""
        return None

    def write(self, text: str) -> None:
        """Add to the output kept with the attempt."""

    def held_back(self) -> AbstractContextManager[None]:
        """Interrupt nothing inside the block."""
        return nullcontext()

    def report(self, progress: Progress) -> None:
        """Pass on how far the job is."""

    def transaction(self) -> Any:
        """A connection in the transaction that ends with the run."""
        raise NotSupported("there is no engine here, so there is no transaction: run the job through a worker")


_NO_HOST: Final = Host()


class JobContext(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a handler sees of its job, and what it may ask its host. `attempt` is 1 for the first run."""

    id: str
    job: str
    queue: str
    attempt: int
    payload: Any = None
    name: str | None = None
    meta: Mapping[str, Any] = MappingProxyType({})
    tags: tuple[str, ...] = ()
    trace_id: str | None = None
    host: Host = _NO_HOST

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's time is up, if it has a timeout."""
        return self.host.deadline

    @property
    def delivery(self) -> int:
        """How often the job has been given to a worker, this time included; 0 if it has not."""
        return self.host.delivery

    @property
    def log(self) -> logging.Logger:
        """The logger `holdfast.job`; what is logged while the job runs, here or elsewhere, is kept with the attempt."""
        return _log

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the job is, in whatever unit: `progress(40, 100, "rows")`. The latest report counts."""
        self.host.report(
            Progress(
                done=_amount("done", done),
                total=None if total is None else _amount("total", total),
                message=_short(message),
            )
        )

    def transaction(self) -> Any:
        """The driver's connection to the queue's own database, in a transaction that ends with this run.

        What is written there and the end of the job are one commit, after the handler has returned: the effect exists
        exactly once, whatever is killed when. If the run fails, snoozes or has lost its job, nothing of it is kept.
        Neither commit nor roll back. On SQLite nobody else can write from here on: ask for it late, and be quick.
        """
        return self.host.transaction()

    def is_cancelled(self) -> bool:
        """Whether the attempt shall stop: cancelled, out of time, or the worker is stopping."""
        return self.host.stop_asked()

    def write(self, text: str) -> None:
        """Add to the output kept with the attempt."""
        self.host.write(text)

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Hold back a timeout or a cancellation until the block has ended, for a step that must not be cut in two.

        Keep it short: the worker kills a process that stays deaf.
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
    """Business logic: `handle` is the job. It may be `async def`, and then the hooks may be too.

    `before_run` and `handle` share the job's timeout, and whatever they raise fails the run. `after_run` follows
    whenever `before_run` returned, however `handle` ended; it is told the result and cannot change it: what it
    raises is logged.
    """

    payload_type: Any = Any
    """What the payload is decoded into; a payload that does not fit fails the run, and retrying cannot mend it."""

    no_retry: tuple[type[BaseException], ...] = ()
    """Exceptions after which the job is not run again."""

    is_async: bool = False
    """Whether `handle` is a coroutine function; read from the class, never guessed from what it returns."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.is_async = inspect.iscoroutinefunction(cls.handle)

    @abstractmethod
    def handle(self, context: JobContext) -> object:
        """Do the job once; return its result, `Snooze(...)` or `Cancel(...)`."""

    def before_run(self, context: JobContext) -> object:  # noqa: B027 - a hook: having none is the usual case
        """Prepare one run."""

    def after_run(self, context: JobContext, result: ExecutionResult) -> object:  # noqa: B027
        """Clean up after one run."""

    def check(self, payload: Any) -> None:  # noqa: B027
        """Refuse a payload before anything runs: `CommandForbidden` and `HandlerForbidden` are for the worker to
        settle without an attempt, any other exception is a failed run.
        """

    def decode(self, payload: bytes) -> Any:
        """The payload as its type."""
        return decoder_of(self.payload_type).decode(payload)
