"""`JobOptions`, the options of a job, and `JobDefinition`, a job described by them.

A definition has no id, so it can be shared and enqueued many times.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, TypedDict, Unpack, cast

import msgspec
from msgspec import Meta

from holdfast.codec import encode_payload
from holdfast.definition.backoff import BackoffLike, as_backoff, contradiction_in
from holdfast.definition.durations import Duration, in_seconds
from holdfast.errors import DefinitionError
from holdfast.plaintext import CONTROLS, FORMATTING, abridged
from holdfast.rates import parse_rate
from holdfast.spelling import closest
from holdfast.values import QUEUE_NAMES, QUEUE_PATTERN, Backoff, JobTraits, OnConflict, OnParentFailure, UniqueScope

MAX_RETRIES: Final = 1000
MAX_CONCURRENCY: Final = 1_000_000
MAX_KEY_BYTES: Final = 400
MAX_PARENTS: Final = 1000
MAX_DURATION_S: Final = 10 * 366 * 86400.0
QUEUE_BREAKER: Final = "queue_"
"""The beginning of the name of a queue's circuit."""
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_queue_name = re.compile(QUEUE_PATTERN)
_handler_key = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_job_id = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}")
_SHOWN: Final = 60
_KEY: Final = f"[^\\t\\n{CONTROLS}{FORMATTING}\\ud800-\\udfff]+"
_LABEL: Final = f"[^\\t\\n{CONTROLS}{FORMATTING}]{{1,200}}"


_traits: Final = attrgetter(*JobTraits.__struct_fields__)
_NO_TRAITS: Final = _traits(JobTraits())


class Option(NamedTuple):
    """An option on the command line: its help, its flags if they do not follow from its name, and its value."""

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None


class Identified(Protocol):
    """An object with the id of a job, such as a handle."""

    @property
    def id(self) -> str: ...


class JobOptions(TypedDict, total=False):
    """The options of a job, wherever they are set: on the decorator, with `options()`, in JSON, on the command line.

    Declare a new option here, and in `JobTraits` if workers or users need to see it: see "Adding a job option" in
    `docs/architecture.md`.
    """

    id: Annotated[str, Option("Job id. Enqueueing the same id and content again adds nothing.", metavar="ID")]
    name: Annotated[str, Option("Name shown in lists and logs.", metavar="TEXT")]
    tags: Annotated[
        Sequence[str], Option("Tags to attach to the job, for searching. Repeatable.", ("--tag", "--tags"), "A,B")
    ]
    meta: Annotated[
        Mapping[str, object], Option("Metadata for the handler, as K=TEXT or K:=JSON. Repeatable.", metavar="K=V")
    ]
    trace_id: Annotated[str, Option("Trace id, passed to the handler and searchable.", metavar="TEXT")]
    queue: Annotated[
        str, Option("Queue to enqueue the job on; default: the setting default-queue.", ("--queue", "-q"), "NAME")
    ]
    priority: Annotated[
        int, Meta(ge=0, le=9), Option("Priority, 0 to 9; higher runs first; default: 5.", ("--priority", "-p"))
    ]
    max_retries: Annotated[
        int,
        Meta(ge=0, le=MAX_RETRIES),
        Option("Number of retries; default: the setting max-retries.", ("--max-retries", "-r"), "N"),
    ]
    backoff: Annotated[
        BackoffLike,
        Option(
            "Wait between retries: none, fixed:10s, linear:5s,max=1m, exponential:2s,max=10m, or delays: 1s,5s,1m.",
            metavar="BACKOFF",
        ),
    ]
    timeout: Annotated[
        Duration,
        Option("Time limit for one attempt; default: the setting timeout; 0 = no limit.", ("--timeout", "-t")),
    ]
    delay: Annotated[Duration, Option("Wait at least this long before the first run.")]
    run_at: Annotated[
        datetime, Option("Run no earlier than this: 14:30, tomorrow 9:00, …", ("--run-at", "--at"), "WHEN")
    ]
    expires: Annotated[Duration | datetime, Option("Do not start the job after this time or duration.", metavar="WHEN")]
    fence: Annotated[bool, Option("Kill the run if its worker cannot prove that it still holds the lease.")]
    idempotency_key: Annotated[
        str, Option("Run the job only if no job with this handler and key has completed.", metavar="KEY")
    ]
    idempotency_ttl: Annotated[
        Duration, Option("How long the completed key is remembered; default: the setting idempotency-ttl.")
    ]
    single_instance: Annotated[
        bool, Option("Run at most one job with this name at a time; without a name, one per handler.")
    ]
    concurrency_key: Annotated[
        str, Option("Run at most --concurrency jobs with this key at a time; the others wait.", metavar="KEY")
    ]
    concurrency: Annotated[
        int, Meta(ge=1, le=MAX_CONCURRENCY), Option("Limit for the concurrency key; default: 1.", metavar="N")
    ]
    rate_limit: Annotated[
        str | float,
        Option("Limit on how often jobs of this handler start: 10/s, 60/min, 100/h,burst=5, …", metavar="RATE"),
    ]
    rate_key: Annotated[
        str, Option("Apply the rate limit to jobs of this handler with the same key only.", metavar="KEY")
    ]
    breaker: Annotated[
        str, Option("Wait while the circuit with this name is open, without using up an attempt.", metavar="NAME")
    ]
    unique: Annotated[
        str | bool,
        Option("Enqueue only if no job of this handler has this key. In JSON, true = its arguments.", metavar="KEY"),
    ]
    unique_for: Annotated[
        Duration,
        Option("How long the unique key stays taken: open, waiting, or a duration; default: open.", metavar="SCOPE"),
    ]
    on_conflict: Annotated[
        Literal["ignore", "reject", "replace"],
        Option("What to do if the unique key is taken: ignore, reject or replace; default: ignore.", metavar="ACTION"),
    ]
    after: Annotated[
        Sequence[str | Identified],
        Option("Ids of jobs that must complete before this one runs. Repeatable.", ("--depends-on",), "ID,ID"),
    ]
    on_parent_failure: Annotated[
        Literal["cancel", "run", "wait"],
        Option(
            "What to do if one of those jobs dies or is cancelled: cancel, run or wait; default: cancel.",
            metavar="ACTION",
        ),
    ]
    dead_letter_to: Annotated[
        str, Option("Queue for a copy of the job if it dies; default: the setting dead-letter-to.", metavar="QUEUE")
    ]


class JobDefinition(JobTraits, frozen=True, kw_only=True):
    """The description of a job. Options that are None take the application's setting when the job is enqueued."""

    handler: str
    payload: msgspec.Raw = msgspec.Raw(b"null")
    queue: str | None = None
    max_retries: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    delay: float | None = None
    run_at: datetime | None = None
    expires_in: float | None = None
    expires_at: datetime | None = None
    unique: str | bool = False
    unique_for: UniqueScope | float = UniqueScope.OPEN
    on_conflict: OnConflict = OnConflict.IGNORE
    ledger_ttl: float | None = None
    """How long the result of a scheduled job is retained in the ledger of its schedule. Set by the schedule."""
    has_traits: bool = False
    """Whether any of `JobTraits` is set. Computed here, because each of many enqueued jobs would pay for it."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "has_traits", _traits(self) != _NO_TRAITS)
        check_handler(self.handler)
        if self.queue is not None:
            check_queue(self.queue)
        _check_number("priority", self.priority, 0, 9, whole=True)
        _check_number("max_retries", self.max_retries, 0, MAX_RETRIES, whole=True)
        _check_number("timeout", self.timeout, 0, MAX_DURATION_S)
        _check_number("delay", self.delay, 0, MAX_DURATION_S)
        _check_number("expires", self.expires_in, 0, MAX_DURATION_S)
        if self.delay is not None and self.run_at is not None:
            raise DefinitionError("a job can have a delay or a run_at, not both")
        if self.expires_in is not None and self.expires_at is not None:
            raise DefinitionError("a job can expire after a duration or at a point in time, not both")
        _check_instant("run_at", self.run_at)
        _check_instant("expires", self.expires_at)
        _check_label("name", self.name)
        _check_label("trace_id", self.trace_id)
        for tag in self.tags:
            _check_label("tag", tag)
        _check_flag("fence", self.fence)
        if self.dead_letter_to is not None:
            check_queue(self.dead_letter_to)
        if self.after:
            self._check_parents()
        self._check_ownership()
        if self.backoff is not None:
            check_backoff(self.backoff)

    def _check_ownership(self) -> None:
        _check_key("idempotency_key", self.idempotency_key)
        _check_number("idempotency_ttl", self.idempotency_ttl, 1, MAX_DURATION_S)
        _check_flag("single_instance", self.single_instance)
        _check_key("concurrency_key", self.concurrency_key)
        _check_number("concurrency", self.concurrency, 1, MAX_CONCURRENCY, whole=True)
        as_rate_limit(self.rate_limit)
        _check_key("rate_key", self.rate_key)
        if self.breaker is not None:
            check_breaker(self.breaker)
        if not isinstance(self.unique, bool):
            _check_key("unique", self.unique)
        if not isinstance(self.unique_for, UniqueScope):
            _check_number("unique_for", self.unique_for, 1, MAX_DURATION_S)
        for option, needed, is_alone in (
            ("idempotency_ttl", "idempotency_key", self.idempotency_ttl is not None and self.idempotency_key is None),
            ("concurrency", "concurrency_key", self.concurrency != 1 and self.concurrency_key is None),
            ("rate_key", "rate_limit", self.rate_key is not None and self.rate_limit is None),
            ("unique_for", "unique", self.unique_for != UniqueScope.OPEN and self.unique is False),
            ("on_parent_failure", "after", self.on_parent_failure != OnParentFailure.CANCEL and not self.after),
            ("on_conflict", "unique", self.on_conflict != OnConflict.IGNORE and self.unique is False),
        ):
            if is_alone:
                raise DefinitionError(f"{option} has no effect without {needed}; set {needed} as well")

    def _check_parents(self) -> None:
        for parent in self.after:
            check_id(parent)
        if len(self.after) > MAX_PARENTS:
            raise DefinitionError(
                f"a job can depend on up to {MAX_PARENTS:,} jobs, not {len(self.after):,}; "
                "add intermediate jobs that each depend on some of them"
            )
        if self.on_conflict is OnConflict.REPLACE:
            raise DefinitionError("a job that replaces another one cannot have parents; leave out after or on_conflict")

    def with_encoded(self, payload: msgspec.Raw) -> "JobDefinition":
        """This definition with a payload that is already encoded. The options are not checked again, because every call
        of a job would pay for that.
        """
        definition = copy(self)
        msgspec.structs.force_setattr(definition, "payload", payload)
        return definition

    def with_payload(self, payload: object) -> "JobDefinition":
        return msgspec.structs.replace(self, payload=encode_payload(payload))

    def with_options(self, **options: Unpack[JobOptions]) -> "JobDefinition":
        """This definition with other options. Of `delay` and `run_at`, the new one replaces the old one."""
        check_options(options)
        fields: dict[str, Any] = {**options}
        refuse_id(fields.pop("id", None))
        if "delay" in fields or "run_at" in fields:
            fields = {"delay": None, "run_at": None, **fields}
        if "expires" in fields:
            expires = fields.pop("expires")
            is_instant = isinstance(expires, datetime)
            fields |= {"expires_at": expires if is_instant else None, "expires_in": None if is_instant else expires}
        if fields.get("backoff") is not None:
            fields["backoff"] = as_backoff(fields["backoff"])
        if "tags" in fields:
            fields["tags"] = unique(fields["tags"])
        if "meta" in fields:
            fields["meta"] = _encoded_meta(fields["meta"])
        if fields.get("unique") is False:
            fields = {"unique_for": UniqueScope.OPEN, "on_conflict": OnConflict.IGNORE, **fields}
        if "unique_for" in fields:
            fields["unique_for"] = as_unique_scope(fields["unique_for"])
        if "after" in fields:
            fields["after"] = as_parents(fields["after"])
        if "on_parent_failure" in fields:
            fields["on_parent_failure"] = _as_on_parent_failure(fields["on_parent_failure"])
        if "on_conflict" in fields:
            fields["on_conflict"] = _as_on_conflict(fields["on_conflict"])
        if "rate_limit" in fields:
            fields["rate_limit"] = as_rate_limit(fields["rate_limit"])
        for option in ("timeout", "delay", "expires_in", "idempotency_ttl"):
            if fields.get(option) is not None:
                fields[option] = in_seconds(option.removesuffix("_in"), fields[option])
        return msgspec.structs.replace(self, **fields)

    def with_added_meta(self, meta: Mapping[str, object]) -> "JobDefinition":
        """This definition with more members in its meta; they replace those of the same name."""
        return self.with_options(meta={**msgspec.json.decode(self.meta, type=dict[str, object]), **meta})


def definition_of(handler: str, payload: object, options: JobOptions) -> JobDefinition:
    """The definition of a job with these options, except for its id."""
    described: JobOptions = {**options}
    job_id = described.pop("id", None)
    if job_id is not None:
        check_id(job_id)
    return JobDefinition(handler=handler, payload=encode_payload(payload)).with_options(**described)


# What Celery, RQ, Dramatiq, Huey, Procrastinate and Django's tasks call these options.
_ELSEWHERE: Final = {
    **dict.fromkeys(("countdown", "schedule_in"), "delay"),
    **dict.fromkeys(("eta", "run_after", "schedule_at"), "run_at"),
    **dict.fromkeys(("retry", "retries"), "max_retries"),
    **dict.fromkeys(("retry_backoff", "retry_delay", "min_backoff"), "backoff"),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout"),
    **dict.fromkeys(("task_id", "job_id"), "id"),
    **dict.fromkeys(("max_age", "ttl"), "expires"),
    "queue_name": "queue",
}


def check_options(options: Collection[str], *others: str) -> None:
    """Refuse a name that is neither a job option nor one of the `others` that are allowed here."""
    known = sorted({*JobOptions.__optional_keys__, *others})
    for name in sorted(options):
        if name not in known:
            near = _ELSEWHERE.get(name) or closest(name, known)
            guess = f" did you mean '{near}'?" if near else ""
            raise DefinitionError(f"'{name}' is not a job option;{guess} known options: {', '.join(known)}")


def check_handler(key: str) -> str:
    """The key of a handler, if it is valid."""
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        name = getattr(key, "__name__", None)
        advice = f"; to enqueue a job defined with @hf.job, write  {name}.define(...)" if name is not None else ""
        raise DefinitionError(f"a handler key must be a string, like 'mail.send', not {abridged(repr(key))}{advice}")
    if not _handler_key.fullmatch(key):
        raise DefinitionError(
            f"{key!r} is not a valid handler key; use up to 200 letters, digits, '_', '.', ':' and '-'"
        )
    return key


def check_queue(queue: str) -> str:
    """The name of a queue, if it is valid."""
    if not isinstance(queue, str) or not _queue_name.fullmatch(queue):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{queue!r} is not a valid queue name; {QUEUE_NAMES}")
    return queue


def check_breaker(name: str) -> str:
    """The name of a circuit breaker, if it is valid."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"breaker must be a name, like 'stripe', not {name!r}")
    _check_key("breaker", name)
    if name.startswith(QUEUE_BREAKER):
        raise DefinitionError(
            f"breaker {abridged(name)!r} starts with '{QUEUE_BREAKER}', which is reserved for the circuits of queues"
        )
    return name


def refuse_id(job_id: str | None) -> None:
    """Refuse an id where a definition is created: a definition has no id, so it would be lost."""
    if job_id is not None:
        raise DefinitionError(
            f"a definition has no id, so '{abridged(job_id)}' would be lost; pass it to "
            "hf.enqueue(definition, id=...), or several to hf.enqueue_many(definitions, ids=[...])"
        )


def check_definition(definition: JobDefinition) -> JobDefinition:
    """The definition, if it is one."""
    if not isinstance(definition, JobDefinition):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        name = getattr(definition, "__name__", None)
        advice = "job.define(...) or builder.definition()" if name is None else f"{name}.define(...)"
        raise DefinitionError(f"{name or abridged(repr(definition))} is not a job definition; pass {advice}")
    return definition


def check_id(job_id: str) -> str:
    """The id of a job, if it is valid."""
    if not isinstance(job_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        raise DefinitionError(f"a job id must be a string, like 'mail-7', not {abridged(repr(job_id))}")
    if not _job_id.fullmatch(job_id):
        text = repr(job_id)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(str(job_id)):,} characters)"
        raise DefinitionError(
            f"{shown} is not a valid job id; use up to 128 letters, digits and _ . : @ / + = -, starting with a "
            "letter, digit or '_'"
        )
    return job_id


def check_backoff(backoff: Backoff) -> Backoff:
    """The backoff, if every number in it is in range and has an effect."""
    _check_number("backoff base", backoff.base, 0, MAX_DURATION_S)
    _check_number("backoff multiplier", backoff.multiplier, 1, 100)
    _check_number("backoff max", backoff.max, 0, MAX_DURATION_S)
    _check_number("backoff jitter", backoff.jitter, 0, 1)
    for delay in backoff.delays:
        _check_number("backoff delay", delay, 0, MAX_DURATION_S)
    if (contradiction := contradiction_in(backoff)) is not None:
        raise DefinitionError(contradiction)
    return backoff


def as_unique_scope(scope: Duration) -> UniqueScope | float:
    """The scope of a unique job: `open`, `waiting`, or a duration in seconds."""
    if isinstance(scope, str) and scope in (UniqueScope.OPEN, UniqueScope.WAITING):
        return UniqueScope(scope)
    try:
        return in_seconds("unique_for", scope)
    except DefinitionError:
        raise DefinitionError(
            f"unique_for must be 'open', 'waiting' or a duration such as '10m', not {scope!r}"
        ) from None


def as_rate_limit(rate: str | float | None) -> str | None:
    """A rate in its usual spelling; None for 0, which means no limit."""
    if rate is None:
        return None
    if not isinstance(rate, str | float | int):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"rate_limit must be text such as '10/s', or a number per minute, not {rate!r}")
    try:
        parsed = parse_rate(rate)
    except ValueError as problem:
        raise DefinitionError(f"rate_limit {rate!r}: {problem}") from None
    return None if parsed is None else str(parsed)


def _as_on_conflict(action: str) -> OnConflict:
    if action not in list(OnConflict):
        raise DefinitionError(f"on_conflict must be {', '.join(map(repr, map(str, OnConflict)))}, not {action!r}")
    return OnConflict(action)


def _as_on_parent_failure(action: str) -> OnParentFailure:
    if action not in list(OnParentFailure):
        raise DefinitionError(
            f"on_parent_failure must be {', '.join(map(repr, map(str, OnParentFailure)))}, not {action!r}"
        )
    return OnParentFailure(action)


def as_parents(parents: object) -> tuple[str, ...]:
    """The ids of jobs, given as ids or handles, without duplicates."""
    ids = _ids_of(parents)
    if None in ids:
        given = abridged(repr(parents))
        raise DefinitionError(f"after must be a list of jobs or their ids, like [handle, 'import-7'], not {given}")
    return tuple(dict.fromkeys(check_id(cast("str", one)) for one in ids))


def _ids_of(parents: object) -> list[object]:
    """The ids of the listed jobs; None stands for anything that is not a job."""
    if not isinstance(parents, Iterable) or isinstance(parents, str):
        return [None]
    return [one if isinstance(one, str) else getattr(one, "id", None) for one in cast("Iterable[object]", parents)]


def unique(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags without duplicates, in the order given."""
    if isinstance(tags, str):
        raise DefinitionError(f"tags must be a list, like ['{tags}']")
    try:
        return tuple(dict.fromkeys(tags))
    except TypeError:
        raise DefinitionError(f"tags must be a list of strings, like ['import'], not {tags!r}") from None


def _encoded_meta(meta: Mapping[str, object]) -> msgspec.Raw:
    if not isinstance(meta, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"meta must be a mapping, not {meta!r}")
    return encode_payload(dict(meta), what="the meta")


def _check_instant(option: str, instant: datetime | None) -> None:
    if instant is None:
        return
    if not isinstance(instant, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(
            f"{option} must be a datetime with a time zone, like datetime.now(UTC) + timedelta(hours=1), "
            f"not {instant!r}"
        )
    if instant.tzinfo is None:
        raise DefinitionError(f"{option} {instant.isoformat()} has no time zone; pass an aware datetime")
    if instant > LATEST:
        raise DefinitionError(
            f"{option} {instant.isoformat()} is too far in the future; the limit is the year {LATEST.year}"
        )


def _check_flag(option: str, flag: bool) -> None:
    if not isinstance(flag, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"{option} must be True or False, not {flag!r}")


def _check_key(option: str, key: str | None) -> None:
    if key is None:
        return
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"{option} must be a string, like 'customer-7', not {abridged(repr(key))}")
    if not re.fullmatch(_KEY, key):
        raise DefinitionError(f"{option} {abridged(key)!r} must be non-empty, printable text")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise DefinitionError(f"{option} {abridged(key)!r} is longer than {MAX_KEY_BYTES} bytes; use a hash of it")


def _check_label(option: str, text: str | None) -> None:
    if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        raise DefinitionError(f"{option} must be a string, like {str(text)!r}, not {text!r}")
    if text is not None and not re.fullmatch(_LABEL, text):
        raise DefinitionError(f"{option} {text!r} must be 1 to 200 printable characters")


def _check_number(option: str, value: float | None, low: float, high: float, *, whole: bool = False) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"{option} must be a number{' of seconds' if high == MAX_DURATION_S else ''}, not {value!r}"
        )
    # NaN fails both comparisons, so check that the value is inside the range, not that it is outside.
    if not low <= value <= high:
        if high == MAX_DURATION_S:
            least = f"{low:g} s" if low else "0"
            raise DefinitionError(f"{option} must be between {least} and {high / 86400:g} days, not {value:g} seconds")
        raise DefinitionError(f"{option} must be between {low:g} and {high:.15g}, not {value:.15g}")
    if whole and not isinstance(value, int):
        raise DefinitionError(f"{option} must be an integer, not {value!r}")
