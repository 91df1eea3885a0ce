"""The table of settings: validation, documentation, `config list` and the schema for editors are derived from it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from msgspec import Struct

from holdfast.dead_letters import DeadLetterQueues
from holdfast.errors import ConfigError
from holdfast.queues.addresses import redacted
from holdfast.rates import Rate, parse_rate
from holdfast.spelling import did_you_mean
from holdfast.values import DEFAULT_INSTALLATION, DEFAULT_QUEUE, BackoffStrategy

ENVIRONMENT_PREFIX: Final = "HOLDFAST_"
HIDDEN: Final = "…"
DEFAULT_BACKEND: Final = "default"
_DAY: Final = 86400

_Table: TypeAlias = Literal["lists", "texts", "urls", "rates", "schedules"]
# Kinds of options of a schedule.
_Member: TypeAlias = Literal["command", "instant", "value"]
Kind: TypeAlias = (
    Literal[
        "url",
        "text",
        "name",
        "environment",
        "queue",
        "path",
        "count",
        "number",
        "duration",
        "flag",
        "backoff",
        "words",
        "queues",
    ]
    | _Table
    | _Member
)


class Applies(StrEnum):
    """When a changed setting takes effect; running processes are not affected."""

    START = "start"
    ENQUEUE = "enqueue"


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting with its value; durations are in seconds."""

    url: str = ""
    app: str = ""
    default_queue: str = DEFAULT_QUEUE
    queues: tuple[str, ...] = ()
    max_retries: int = 3
    timeout: float = 300.0
    idempotency_ttl: float = 86400.0
    backoff: str = BackoffStrategy.EXPONENTIAL
    backoff_base: float = 2.0
    backoff_multiplier: float | None = None
    backoff_max: float = 300.0
    backoff_jitter: float = 0.15
    lease: float = 60.0
    crash_limit: int = 3
    breaker_failures: int = 5
    breaker_cooldown: float = 60.0
    poll_interval: float = 1.0
    reap_interval: float = 10.0
    session_dir: str = ""
    retain_completed: float = 86400.0
    retain_dead: float = 0.0
    dead_letter_to: str = ""
    allowed_commands: tuple[str, ...] = ()
    table_prefix: str = "holdfast_"
    installation: str = DEFAULT_INSTALLATION
    signing_key_file: str = ""
    verify: bool = True
    allow_unsigned: bool = False
    middleware: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    retry_policy: str = ""
    metrics: str = ""
    backends: Mapping[str, str] = {}
    routes: Mapping[str, str] = {}
    dead_letter_queues: Mapping[str, str] = {}
    engines: Mapping[str, str] = {}
    allowlist: Mapping[str, tuple[str, ...]] | None = None
    limits: Mapping[str, str] = {}
    environment: str = ""
    build: str = ""
    schedules: Mapping[str, Mapping[str, Any]] = {}

    @property
    def rates(self) -> Mapping[str, Rate]:
        """The rate limits of the queues that have one."""
        rates = {queue: queue_rate(queue, value) for queue, value in self.limits.items()}
        return {queue: rate for queue, rate in rates.items() if rate is not None}

    def rate_of(self, queue: str) -> Rate:
        """The rate limit of a queue that has one."""
        rate = self.rates.get(queue)
        if rate is None:
            raise ConfigError(
                f"queue '{queue}' has no rate limit; set one in holdfast.toml:  limits = {{{queue} = \"60/min\"}}"
            )
        return rate

    @property
    def dead_letters(self) -> DeadLetterQueues:
        """The queues that receive copies of dead letters."""
        return DeadLetterQueues(default=self.dead_letter_to, by_queue=self.dead_letter_queues)

    def __repr__(self) -> str:
        shown = {key.field: key.shown(getattr(self, key.field)) for key in KEYS.values() if key.in_file}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Key(Struct, frozen=True, kw_only=True):
    """One setting: its kind determines how it is written, its bounds which values are valid."""

    name: str
    kind: Kind
    meaning: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()
    applies: Applies = Applies.START
    secret: bool = False
    """Never shown. It can also be read from the file that a variable ending in `_FILE` names."""
    in_file: bool = True
    """Whether it can be set in the configuration file. If not, it is not a field of `Settings`."""
    by_queue: bool = False
    """Whether it is a table whose names are queues, which must be declared if any queue is."""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def default(self) -> Any:
        return getattr(Settings(), self.field) if self.in_file else ""

    @property
    def is_table(self) -> bool:
        return self.kind in get_args(_Table)

    @property
    def variable(self) -> str | None:
        """The environment variable of this setting; tables have none."""
        return None if self.is_table else f"{ENVIRONMENT_PREFIX}{self.field.upper()}"

    @property
    def file_variable(self) -> str | None:
        """The environment variable with the path of a file that contains this secret."""
        return f"{self.variable}_FILE" if self.secret and self.variable else None

    def shown(self, value: Any) -> Any:
        """The value as it may be printed: a URL without its password, other secrets not at all."""
        if not self.secret or not value:
            return value
        if self.kind == "urls":
            urls = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            return {name: redacted(str(url)) for name, url in urls.items()}
        return redacted(value) if self.kind == "url" and isinstance(value, str) else HIDDEN

    def bound(self, value: float) -> str:
        """A bound as it could be written in the file."""
        if self.kind != "duration" or not value:
            return f"{value:g}"
        return f"{value:g}s" if value % _DAY else f"{value / _DAY:g}d"


KEYS: Final = {
    key.name: key
    for key in (
        Key(
            name="url",
            kind="url",
            secret=True,
            meaning="URL of the backend that stores jobs; default: an SQLite file, .holdfast/jobs.db in the project",
        ),
        Key(
            name="app",
            kind="text",
            meaning="application for workers and commands, as MODULE:NAME (for example shop:hf)",
        ),
        Key(
            name="default-queue",
            kind="queue",
            applies=Applies.ENQUEUE,
            meaning="queue of jobs that do not name one, and of workers that are started without one",
        ),
        Key(
            name="queues",
            kind="queues",
            meaning="the only queues that may be used, separated by commas; default: any",
        ),
        Key(
            name="max-retries",
            kind="count",
            high=1000,
            applies=Applies.ENQUEUE,
            meaning="number of retries after the first attempt; fixed when a job is enqueued",
        ),
        Key(
            name="timeout",
            kind="duration",
            high=366 * _DAY,
            applies=Applies.ENQUEUE,
            meaning="time limit for one attempt; fixed when a job is enqueued; 0 = no limit",
        ),
        Key(
            name="idempotency-ttl",
            kind="duration",
            low=1,
            high=3650 * _DAY,
            applies=Applies.ENQUEUE,
            meaning="how long a completed idempotency key is remembered; fixed when a job is enqueued",
        ),
        Key(
            name="backoff",
            kind="backoff",
            choices=tuple(strategy.value for strategy in BackoffStrategy),
            meaning="delays between attempts: none, fixed, linear or exponential, or a full backoff such as 1s,5s,1m",
        ),
        Key(name="backoff-base", kind="number", high=_DAY, meaning="first delay in seconds"),
        Key(
            name="backoff-multiplier",
            kind="number",
            low=1,
            high=100,
            meaning="growth of an exponential backoff with each retry; default: backoff-base",
        ),
        Key(
            name="backoff-max",
            kind="duration",
            high=366 * _DAY,
            meaning="maximum delay of a linear or exponential backoff; 0 = no limit",
        ),
        Key(
            name="backoff-jitter",
            kind="number",
            high=1,
            meaning="random variation of a linear or exponential backoff; 0.15 means ±15%",
        ),
        Key(
            name="lease",
            kind="duration",
            low=1,
            high=_DAY,
            meaning="how long a worker holds a job without renewing its lease (visibility timeout)",
        ),
        Key(
            name="crash-limit",
            kind="count",
            low=1,
            high=100,
            meaning="consecutive crashes of its worker after which a job is dead-lettered",
        ),
        Key(
            name="breaker-failures",
            kind="count",
            low=1,
            high=1000,
            meaning="consecutive failures that open a circuit breaker",
        ),
        Key(
            name="breaker-cooldown",
            kind="duration",
            low=0.1,
            high=_DAY,
            meaning="how long an open circuit breaker refuses all calls before it lets one through as a trial",
        ),
        Key(
            name="poll-interval",
            kind="duration",
            low=0.01,
            high=3600,
            meaning="maximum time between two polls for due jobs",
        ),
        Key(
            name="reap-interval",
            kind="duration",
            low=0.1,
            high=3600,
            meaning="time between two checks for expired leases",
        ),
        Key(
            name="session-dir",
            kind="path",
            meaning="directory shared by the workers on one host, so that they can detect dead workers immediately",
        ),
        Key(name="retain-completed", kind="duration", high=3660 * _DAY, meaning="how long completed jobs are retained"),
        Key(
            name="retain-dead",
            kind="duration",
            high=3660 * _DAY,
            meaning="how long dead letters are retained; 0 = forever",
        ),
        Key(
            name="dead-letter-to",
            kind="text",
            meaning="queue that receives a copy of each dead letter, for the handler dead-letter; default: no copies",
        ),
        Key(name="allowed-commands", kind="words", meaning="programs that command jobs may run, separated by commas"),
        Key(
            name="table-prefix",
            kind="text",
            meaning="prefix of table names (the schema on PostgreSQL, the key prefix on Redis)",
        ),
        Key(
            name="installation",
            kind="name",
            meaning="name of this installation; only processes with the same name and key accept each other's jobs",
        ),
        Key(
            name="signing-key",
            kind="text",
            secret=True,
            in_file=False,
            meaning="signing keys: the first one signs, all verify; environment variable only",
        ),
        Key(
            name="signing-key-file", kind="path", meaning="file with the signing keys: the first one signs, all verify"
        ),
        Key(
            name="verify", kind="flag", meaning="verify signatures; false is refused unless allow-unsigned is also set"
        ),
        Key(name="allow-unsigned", kind="flag", meaning="with verify = false: run unsigned jobs"),
        Key(name="middleware", kind="words", meaning="middleware, outermost first: MODULE:NAME or entry point names"),
        Key(name="handlers", kind="words", meaning="handlers to register: KEY=MODULE:NAME or entry point names"),
        Key(
            name="retry-policy",
            kind="text",
            meaning="retry policy that replaces backoff: MODULE:NAME or an entry point name",
        ),
        Key(
            name="metrics",
            kind="text",
            meaning="metrics collector: memory, prometheus, MODULE:NAME or an entry point name",
        ),
        Key(
            name="backends",
            kind="urls",
            secret=True,
            meaning="table of additional backends, name = URL; the backend default is configured with the setting url",
        ),
        Key(
            name="routes",
            kind="texts",
            by_queue=True,
            meaning="table that assigns queues to backends, queue = backend; other queues use the backend default",
        ),
        Key(
            name="dead-letter-queues",
            kind="texts",
            by_queue=True,
            meaning="table that overrides dead-letter-to for single queues, queue = queue; empty = no copies",
        ),
        Key(name="engines", kind="texts", meaning="table of third-party engines, URL scheme = MODULE:NAME"),
        Key(
            name="allowlist",
            kind="lists",
            by_queue=True,
            meaning="table of the handlers that jobs on each queue may use; other queues allow all",
        ),
        Key(
            name="limits",
            kind="rates",
            by_queue=True,
            meaning='table of rate limits, queue = rate, such as "60/min" or {rate = "10/s", burst = 20}; 0 = no limit',
        ),
        Key(
            name="environment",
            kind="environment",
            meaning="name of this environment, such as production; a schedule can be limited to some; default: none",
        ),
        Key(
            name="build",
            kind="text",
            meaning="version of the application; the newest one in use defines the schedules; default: their digest",
        ),
        Key(
            name="schedules",
            kind="schedules",
            meaning='table of schedules, name = options, such as backup = {cron = "0 2 * * *", command = ["backup"]}',
        ),
    )
}

# Sets one of the `backends`, by its name: URLs with passwords do not belong in files that people commit.
BACKEND_PREFIX: Final = f"{ENVIRONMENT_PREFIX}BACKEND_"

# Our environment variables that are not settings: for jobs, the log format, the project and `./holdfast`.
OTHER_VARIABLES: Final = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in ("ATTEMPT", "JOB_ID", "LOG_FORMAT", "PROGRESS_FD", "PROJECT", "PYTHON", "QUEUE")
)


def queue_rate(queue: str, value: object) -> Rate | None:
    """The rate limit of a queue, as it is written in the setting `limits`; None if the queue has no limit."""
    try:
        return parse_rate(value)
    except ValueError as problem:
        raise ConfigError(f"the rate limit of queue '{queue}' is {value!r}: {problem}") from None


def key_named(name: str, where: str = "") -> Key:
    """The key with this name, written with dashes or underscores."""
    normal = name.replace("_", "-").lower()
    if normal in KEYS:
        return KEYS[normal]
    hint = did_you_mean(normal, KEYS) or f"known keys: {', '.join(KEYS)}"
    raise ConfigError(f"there is no setting '{name}'{f' ({where})' if where else ''}; {hint}")
