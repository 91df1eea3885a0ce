"""`JobDefinition`: what a job is. It has no id, so it can be shared and enqueued many times."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.codec import encode_payload
from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged
from holdfast.values import DEFAULT_PRIORITY, DEFAULT_QUEUE, Backoff

MAX_RETRIES: Final = 1000
MAX_SPAN_S: Final = 10 * 366 * 86400.0
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_queue_name = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_handler_key = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_job_id = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}")
_SHOWN: Final = 60
_label = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class JobDefinition(Struct, frozen=True, kw_only=True):
    """A job, described. Options left as None take the application's setting when the job is enqueued."""

    handler: str
    payload: msgspec.Raw = msgspec.Raw(b"null")
    name: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_retries: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    delay: float | None = None
    run_at: datetime | None = None
    expires_in: float | None = None
    expires_at: datetime | None = None
    tags: tuple[str, ...] = ()
    meta: msgspec.Raw = msgspec.Raw(b"{}")
    trace_id: str | None = None
    fence: bool = False

    def __post_init__(self) -> None:
        if not _handler_key.fullmatch(self.handler):
            raise DefinitionError(
                f"{self.handler!r} cannot be a handler key: use letters, digits, '_', '.', ':' and '-', at most 200"
            )
        check_queue(self.queue)
        _check_number("priority", self.priority, 0, 9, whole=True)
        _check_number("max_retries", self.max_retries, 0, MAX_RETRIES, whole=True)
        _check_number("timeout", self.timeout, 0, MAX_SPAN_S)
        _check_number("delay", self.delay, 0, MAX_SPAN_S)
        _check_number("expires", self.expires_in, 0, MAX_SPAN_S)
        if self.delay is not None and self.run_at is not None:
            raise DefinitionError("a job has either a delay or a run_at, not both")
        if self.expires_in is not None and self.expires_at is not None:
            raise DefinitionError("a job expires either after a span or at an instant, not both")
        _check_instant("run_at", self.run_at)
        _check_instant("expires", self.expires_at)
        _check_label("name", self.name)
        _check_label("trace_id", self.trace_id)
        for tag in self.tags:
            _check_label("tag", tag)
        if not isinstance(self.fence, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
            raise DefinitionError(f"fence must be True or False, not {self.fence!r}")
        if self.backoff is not None:
            check_backoff(self.backoff)

    def with_payload(self, payload: object) -> "JobDefinition":
        return msgspec.structs.replace(self, payload=encode_payload(payload))

    def with_name(self, name: str | None) -> "JobDefinition":
        return msgspec.structs.replace(self, name=name)

    def with_queue(self, queue: str) -> "JobDefinition":
        return msgspec.structs.replace(self, queue=queue)

    def with_priority(self, priority: int) -> "JobDefinition":
        return msgspec.structs.replace(self, priority=priority)

    def with_max_retries(self, max_retries: int | None) -> "JobDefinition":
        return msgspec.structs.replace(self, max_retries=max_retries)

    def with_backoff(self, backoff: Backoff | None) -> "JobDefinition":
        return msgspec.structs.replace(self, backoff=backoff)

    def with_timeout(self, timeout: float | timedelta | None) -> "JobDefinition":
        return msgspec.structs.replace(self, timeout=span_s(timeout))

    def with_delay(self, delay: float | timedelta | None) -> "JobDefinition":
        return msgspec.structs.replace(self, delay=span_s(delay), run_at=None)

    def with_run_at(self, run_at: datetime | None) -> "JobDefinition":
        return msgspec.structs.replace(self, run_at=run_at, delay=None)

    def with_expires(self, expires: float | timedelta | datetime | None) -> "JobDefinition":
        if isinstance(expires, datetime):
            return msgspec.structs.replace(self, expires_at=expires, expires_in=None)
        return msgspec.structs.replace(self, expires_in=span_s(expires), expires_at=None)

    def with_tags(self, *tags: str) -> "JobDefinition":
        return msgspec.structs.replace(self, tags=unique(tags))

    def with_meta(self, meta: Mapping[str, object]) -> "JobDefinition":
        return msgspec.structs.replace(self, meta=encode_payload(dict(meta), what="the meta"))

    def with_added_meta(self, meta: Mapping[str, object]) -> "JobDefinition":
        """With these members beside those it has, or instead of those of the same name."""
        return self.with_meta({**msgspec.json.decode(self.meta, type=dict[str, object]), **meta})

    def with_trace_id(self, trace_id: str | None) -> "JobDefinition":
        return msgspec.structs.replace(self, trace_id=trace_id)

    def with_fence(self, *, fence: bool = True) -> "JobDefinition":
        return msgspec.structs.replace(self, fence=fence)


def check_queue(queue: str) -> str:
    """The queue's name, if it can be one."""
    if not isinstance(queue, str) or not _queue_name.fullmatch(queue):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"{queue!r} cannot be a queue name: use lower-case letters, digits, '_' and '-', "
            "starting with a letter or digit, at most 63"
        )
    return queue


def refuse_id(job_id: str | None) -> None:
    """Refuse to make a definition of what was given an id: a definition has none, and this one would be lost."""
    if job_id is not None:
        raise DefinitionError(
            f"a definition has no id, and '{abridged(job_id)}' would be lost: leave it out here, and give it to "
            f"hf.enqueue(definition, id=...), or those of many to hf.enqueue_many(definitions, ids=[...])"
        )


def check_definition(definition: JobDefinition) -> JobDefinition:
    """The definition, if it is one."""
    if not isinstance(definition, JobDefinition):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        name = getattr(definition, "__name__", None)
        advice = "job.define(...), or definition() of a builder" if name is None else f"{name}.define(...)"
        raise DefinitionError(f"{name or abridged(repr(definition))} is no definition of a job: pass {advice}")
    return definition


def check_id(job_id: str) -> str:
    """The job's id, if it can be one."""
    if not isinstance(job_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        raise DefinitionError(f"a job id must be text, like 'mail-7', not {abridged(repr(job_id))}")
    if not _job_id.fullmatch(job_id):
        text = repr(job_id)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(str(job_id)):,} characters)"
        raise DefinitionError(
            f"{shown} cannot be a job id: use letters, digits and _ . : @ / + = -, starting with a letter, "
            "digit or '_', at most 128"
        )
    return job_id


def check_backoff(backoff: Backoff) -> Backoff:
    """The backoff, if every number in it makes sense."""
    _check_number("backoff base", backoff.base, 0, MAX_SPAN_S)
    _check_number("backoff multiplier", backoff.multiplier, 1, 100)
    _check_number("backoff max", backoff.max, 0, MAX_SPAN_S)
    _check_number("backoff jitter", backoff.jitter, 0, 1)
    for delay in backoff.delays:
        _check_number("backoff delay", delay, 0, MAX_SPAN_S)
    return backoff


def span_s(span: float | timedelta | None) -> float | None:
    """A span in seconds, from what users write."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def unique(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags once each, in the order given."""
    if isinstance(tags, str):
        raise DefinitionError(f"tags must be a list, like ['{tags}']")
    try:
        return tuple(dict.fromkeys(tags))
    except TypeError:
        raise DefinitionError(f"tags must be a list of texts, like ['import'], not {tags!r}") from None


def _check_instant(option: str, instant: datetime | None) -> None:
    if instant is None:
        return
    if not isinstance(instant, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(
            f"{option} must be a datetime with a time zone, like datetime.now(UTC) + timedelta(hours=1), "
            f"not {instant!r}"
        )
    if instant.tzinfo is None:
        raise DefinitionError(f"{option} {instant.isoformat()} has no time zone: pass an aware datetime")
    if instant > LATEST:
        raise DefinitionError(f"{option} {instant.isoformat()} is later than {LATEST.year}")


def _check_label(option: str, text: str | None) -> None:
    if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        raise DefinitionError(f"{option} must be text, like {str(text)!r}, not {text!r}")
    if text is not None and not _label.fullmatch(text):
        raise DefinitionError(f"{option} {text!r} must be 1 to 200 printable characters")


def _check_number(option: str, value: float | None, low: float, high: float, *, whole: bool = False) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{option} must be a number{' of seconds' if high == MAX_SPAN_S else ''}, not {value!r}")
    # NaN fails both comparisons, so the test is for being inside, never for being outside.
    if not low <= value <= high:
        if high == MAX_SPAN_S:
            raise DefinitionError(f"{option} must be between 0 and {high / 86400:g} days, not {value:g} seconds")
        raise DefinitionError(f"{option} must be between {low:g} and {high:g}, not {value:g}")
    if whole and not isinstance(value, int):
        raise DefinitionError(f"{option} must be a whole number, not {value!r}")
