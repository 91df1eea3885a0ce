"""The table of settings. Validation, the documentation, `config list` and the schema for editors are made from it."""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.queues.addresses import redacted
from holdfast.values import DEFAULT_INSTALLATION, BackoffStrategy

ENVIRONMENT_PREFIX: Final = "HOLDFAST_"
HIDDEN: Final = "…"
DEFAULT_BACKEND: Final = "default"
_DAY: Final = 86400

Kind: TypeAlias = Literal[
    "url", "text", "name", "path", "count", "number", "span", "flag", "choice", "words", "lists", "texts", "urls"
]
_TABLES: Final = frozenset({"lists", "texts", "urls"})


class Applies(StrEnum):
    """When a change counts; none reaches what runs already."""

    START = "start"
    ENQUEUE = "enqueue"


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting with its value; spans are seconds."""

    url: str = ""
    max_retries: int = 3
    timeout: float = 300.0
    backoff: str = BackoffStrategy.EXPONENTIAL
    backoff_base: float = 2.0
    backoff_max: float = 300.0
    backoff_jitter: float = 0.15
    lease: float = 60.0
    crash_limit: int = 3
    poll_interval: float = 1.0
    reap_interval: float = 10.0
    retain_completed: float = 86400.0
    retain_dead: float = 0.0
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
    engines: Mapping[str, str] = {}
    allowlist: Mapping[str, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        shown = {key.field: key.shown(getattr(self, key.field)) for key in KEYS.values() if key.in_file}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Key(Struct, frozen=True, kw_only=True):
    """One setting: its kind decides how it is written, its bounds what it may be."""

    name: str
    kind: Kind
    meaning: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()
    applies: Applies = Applies.START
    secret: bool = False
    """Never shown, and read from the file that a variable ending in `_FILE` names."""
    in_file: bool = True
    """Whether it may stand in the configuration file; what may not is no field of `Settings` either."""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def default(self) -> Any:
        return getattr(Settings(), self.field) if self.in_file else ""

    @property
    def is_table(self) -> bool:
        return self.kind in _TABLES

    @property
    def variable(self) -> str | None:
        """The environment variable of this setting; a table has none."""
        return None if self.is_table else f"{ENVIRONMENT_PREFIX}{self.field.upper()}"

    @property
    def file_variable(self) -> str | None:
        """The variable that names a file with this secret in it."""
        return f"{self.variable}_FILE" if self.secret and self.variable else None

    def shown(self, value: Any) -> Any:
        """The value as people and logs may see it: of a URL all but its password, of another secret nothing."""
        if not self.secret or not value:
            return value
        if self.kind == "urls":
            urls = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            return {name: redacted(str(url)) for name, url in urls.items()}
        return redacted(value) if self.kind == "url" and isinstance(value, str) else HIDDEN

    def bound(self, value: float) -> str:
        """A bound as it could be written in the file."""
        if self.kind != "span" or not value:
            return f"{value:g}"
        return f"{value:g}s" if value % _DAY else f"{value / _DAY:g}d"


KEYS: Final = {
    key.name: key
    for key in (
        Key(
            name="url",
            kind="url",
            secret=True,
            meaning="where the jobs are kept; default: .holdfast/jobs.db in the project",
        ),
        Key(
            name="max-retries",
            kind="count",
            high=1000,
            applies=Applies.ENQUEUE,
            meaning="retries after the first run, fixed at enqueue",
        ),
        Key(
            name="timeout",
            kind="span",
            high=366 * _DAY,
            applies=Applies.ENQUEUE,
            meaning="longest one attempt may take, fixed at enqueue; 0 = no limit",
        ),
        Key(
            name="backoff",
            kind="choice",
            choices=tuple(strategy.value for strategy in BackoffStrategy),
            meaning="how the delay grows: none, fixed, linear, exponential",
        ),
        Key(name="backoff-base", kind="number", high=_DAY, meaning="first delay in seconds, and the multiplier"),
        Key(name="backoff-max", kind="span", high=366 * _DAY, meaning="longest delay between two attempts"),
        Key(name="backoff-jitter", kind="number", high=1, meaning="random part of a delay: 0.15 is ±15 %"),
        Key(name="lease", kind="span", low=1, high=_DAY, meaning="how long a claim holds without being renewed"),
        Key(name="crash-limit", kind="count", low=1, high=100, meaning="deliveries without a verdict that end a job"),
        Key(name="poll-interval", kind="span", low=0.01, high=3600, meaning="longest pause between two looks"),
        Key(name="reap-interval", kind="span", low=0.1, high=3600, meaning="pause between two looks for dead workers"),
        Key(name="retain-completed", kind="span", high=3660 * _DAY, meaning="how long completed jobs are kept"),
        Key(name="retain-dead", kind="span", high=3660 * _DAY, meaning="how long dead letters are kept; 0 = for ever"),
        Key(name="allowed-commands", kind="words", meaning="programs that command jobs may run, separated by commas"),
        Key(name="table-prefix", kind="text", meaning="what the names of our tables begin with"),
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
            meaning="the signing keys themselves, the signing one first; only as a variable",
        ),
        Key(name="signing-key-file", kind="path", meaning="file with the signing keys, the signing one first"),
        Key(name="verify", kind="flag", meaning="check signatures; false only together with allow-unsigned"),
        Key(name="allow-unsigned", kind="flag", meaning="with verify = false: run jobs that nobody signed"),
        Key(name="middleware", kind="words", meaning="hooks around jobs: MODULE:NAME, or the names of installed ones"),
        Key(
            name="handlers", kind="words", meaning="functions and handlers to know: KEY=MODULE:NAME, or installed ones"
        ),
        Key(
            name="retry-policy",
            kind="text",
            meaning="when to retry, instead of backoff: MODULE:NAME, or an installed one",
        ),
        Key(name="metrics", kind="text", meaning="what counts: memory, prometheus, MODULE:NAME, or an installed one"),
        Key(
            name="backends",
            kind="urls",
            secret=True,
            meaning="other places for jobs, a table of names and URLs; url is the one named default",
        ),
        Key(name="routes", kind="texts", meaning="the backend of a queue, a table; queues not named are in default"),
        Key(name="engines", kind="texts", meaning="engines of others, a table: the scheme of their URLs, MODULE:NAME"),
        Key(name="allowlist", kind="lists", meaning="handlers that a queue may run, a table; queues not named run all"),
    )
}

# A member of `backends`, by the name behind it: URLs with passwords are not for files that people commit.
BACKEND_PREFIX: Final = f"{ENVIRONMENT_PREFIX}BACKEND_"

# Variables of ours that are no settings: what a job finds, how a worker logs, and what shells and `./holdfast` ask.
OTHER_VARIABLES: Final = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in ("ATTEMPT", "COMPLETION_WAIT", "JOB_ID", "LOG_FORMAT", "PROGRESS_FD", "PYTHON", "QUEUE")
)


def key_named(name: str, where: str = "") -> Key:
    """The key of that name, dashes or underscores."""
    normal = name.replace("_", "-").lower()
    if normal in KEYS:
        return KEYS[normal]
    near = get_close_matches(normal, KEYS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(KEYS)}"
    raise ConfigError(f"there is no setting '{name}'{f' ({where})' if where else ''}; {hint}")
