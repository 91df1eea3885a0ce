"""URLs of engines: which engine one means, and what can be said of it before anything is opened.

Apart from `opening.py`, which needs the engines' contract: the settings, `--help` and completion need only this.
"""

import re
import shlex
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast import plugins
from holdfast.errors import ConfigError
from holdfast.queues.engines.kinds import ALIASES, KINDS, EngineKind, Home

_LONGEST_TIMEOUT_S = 3600.0
_others: set[str] = set()
_scheme = re.compile(r"[a-z][a-z0-9+.-]*")
_password = re.compile(r"^(\w[\w+.-]*://[^/:@]*:).*@")
_secret_option = re.compile(r"([?&][^=&]*password=)[^&#]*", re.IGNORECASE)


def kind_of(url: str) -> EngineKind:
    """The engine that a URL names."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        # What the parser says could quote a password.
        raise ConfigError(
            f"{redacted(url)!r} is not a URL: escape special characters of the password, and write [ and ] only around "
            "an IPv6 address"
        ) from None
    name = ALIASES.get(scheme, scheme)
    if name in KINDS:
        return KINDS[name]
    if name not in _others and plugins.published(plugins.ENGINES, name) is None:
        raise ConfigError(
            f"{redacted(url)!r} names no engine: a URL begins with one of "
            f"{', '.join(f'{name}:' for name in (*KINDS, *ALIASES))} such as sqlite:///jobs.db"
        )
    return EngineKind(scheme=name, title=name, home=Home.SERVER)


def add_scheme(scheme: str) -> None:
    """Let URLs that begin with this mean a third-party engine."""
    if scheme in KINDS or scheme in ALIASES:
        raise ConfigError(f"{scheme}: is an engine of Holdfast's own: choose another scheme")
    if not _scheme.fullmatch(scheme):
        raise ConfigError(f"{scheme!r} cannot begin a URL: write lower-case letters and digits, then + . or -")
    _others.add(scheme)


def check_url(url: str) -> None:
    """Refuse a URL that cannot be one of an engine's. Nothing is opened, and no driver is asked."""
    if embedded_file(url) is not None:
        sqlite_prefix(url)


def embedded_file(url: str) -> Path | None:
    """The file of a URL whose engine is embedded; None for all others."""
    return sqlite_path(url) if kind_of(url).home is Home.FILE else None


def sqlite_path(url: str) -> Path:
    """The file of an sqlite URL: `sqlite:///jobs.db` is relative, `sqlite:////var/jobs.db` absolute."""
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(f"{url!r} has two slashes; an sqlite URL has three (relative) or four (absolute)")
    path = unquote(parts.path.removeprefix("/"))
    if not path:
        raise ConfigError(f"{url!r} names no file: write sqlite:///jobs.db, or sqlite:////var/lib/app/jobs.db")
    if path == ":memory:":
        raise ConfigError("a job in an in-memory database is not kept: use memory:// for tests, or name a file")
    return Path(path).expanduser().absolute()


def check_room(file: Path) -> None:
    """Refuse a place for a database below a directory that is not there."""
    if (missing := missing_above(file)) is not None:
        raise ConfigError(
            f"there is no directory {missing}, so {file} is not made below it: name another url, or make it with  "
            f"mkdir -p {shlex.quote(str(missing))}"
        )


def missing_above(file: Path) -> Path | None:
    """The directory that has to be there before a database is made: one is made for it, more were hardly meant."""
    above = file.parent.parent
    return above if is_missing(above) else None


def is_missing(file: Path) -> bool:
    """Whether a file is surely not there; of one that cannot be looked for, whoever opens it is told why."""
    try:
        file.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def sqlite_prefix(url: str) -> str | None:
    """The table prefix an sqlite URL asks for, its only option."""
    options = parse_qs(urlsplit(url).query, keep_blank_values=True)
    for option in options:
        if option != "prefix":
            raise ConfigError(f"{option!r} is no option of sqlite URLs; known: prefix")
    return options["prefix"][-1] if options else None


def without_option(url: str, name: str) -> tuple[str, str | None]:
    """The URL without this option, and the value of the option; all other options are the driver's."""
    # Cut out, not parsed and rebuilt: drivers differ in how they read `+`, escapes and an empty host.
    address, _, query = url.partition("?")
    options = query.split("&")
    values = [unquote(option.removeprefix(f"{name}=")) for option in options if option.startswith(f"{name}=")]
    rest = "&".join(option for option in options if not option.startswith(f"{name}="))
    return f"{address}?{rest}" if rest else address, values[-1] if values else None


def seconds_of(name: str, value: str | float) -> float:
    """The value of an option that is a timeout: up to an hour."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise ConfigError(f"{name}={value!r} is not a number of seconds")
    return seconds


def redacted(url: str) -> str:
    """The URL without its password, for messages."""
    # Not by the rules of URLs: a password with a character that should have been escaped is one all the same.
    return _secret_option.sub(r"\1…", _password.sub(r"\1…@", url))
