"""URLs of engines: which engine a URL names, and checks that need no connection.

Separate from `opening.py`, which needs the engines' contract: settings, `--help` and completion need only this.
"""

import re
import shlex
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast import plugins
from holdfast.errors import ConfigError
from holdfast.queues.engines.kinds import ALIASES, KINDS, EngineKind, Home

_LONGEST_TIMEOUT_S = 3600.0
_others: set[str] = set()
_SCHEME: Final = r"[a-z][a-z0-9+.-]*"
_USER_INFO: Final = r"^(\w[\w+.-]*://[^/:@]*:).*@"
_LOGIN_OPTION: Final = r"([?&][^=&]*password=)[^&#]*"


def kind_of(url: str) -> EngineKind:
    """The engine that a URL names."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        # The parser's own message may quote a password.
        raise ConfigError(
            f"{redacted(url)!r} is not a valid URL: escape special characters in the password, and use [ and ] only "
            "around an IPv6 address"
        ) from None
    name = ALIASES.get(scheme, scheme)
    if name in KINDS:
        return KINDS[name]
    if name not in _others and plugins.published(plugins.ENGINES, name) is None:
        raise ConfigError(
            f"{redacted(url)!r} does not name an engine: a URL starts with one of "
            f"{', '.join(f'{name}:' for name in (*KINDS, *ALIASES))} such as sqlite:///jobs.db"
        )
    return EngineKind(scheme=name, title=name, home=Home.SERVER)


def add_scheme(scheme: str) -> None:
    """Let URLs that start with this scheme name a third-party engine."""
    if scheme in KINDS or scheme in ALIASES:
        raise ConfigError(f"{scheme}: is one of Holdfast's own engines; choose another scheme")
    if not re.fullmatch(_SCHEME, scheme):
        raise ConfigError(f"{scheme!r} is not a valid URL scheme; use lower-case letters, then digits, + . or -")
    _others.add(scheme)


def check_url(url: str) -> None:
    """Raise if a URL cannot name an engine. Nothing is opened, and no driver is imported."""
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
        raise ConfigError(f"{url!r} does not name a file: write sqlite:///jobs.db, or sqlite:////var/lib/app/jobs.db")
    if path == ":memory:":
        raise ConfigError("an in-memory database loses its jobs: use memory:// for tests, or name a file")
    return Path(path).expanduser().absolute()


def check_room(file: Path) -> None:
    """Raise if a database would need more than one new directory."""
    if (missing := missing_above(file)) is not None:
        raise ConfigError(
            f"the directory {missing} does not exist, so {file} was not created: name another url, or create it with  "
            f"mkdir -p {shlex.quote(str(missing))}"
        )


def missing_above(file: Path) -> Path | None:
    """The missing directory that must exist before a database is created: only the last one is created for it."""
    above = file.parent.parent
    return above if is_missing(above) else None


def is_missing(file: Path) -> bool:
    """Whether a file certainly does not exist; if that is unknown, opening it reports the reason."""
    try:
        file.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def sqlite_prefix(url: str) -> str | None:
    """The table prefix in an sqlite URL, its only option."""
    options = parse_qs(urlsplit(url).query, keep_blank_values=True)
    for option in options:
        if option != "prefix":
            raise ConfigError(f"{option!r} is not an option of sqlite URLs; known: prefix")
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
    # Not by the rules of URLs, so that a password with an unescaped character is removed as well.
    return re.sub(_LOGIN_OPTION, r"\1…", re.sub(_USER_INFO, r"\1…@", url), flags=re.IGNORECASE)


def file_system(path: Path) -> str:
    """The type of the file system a path is on; empty if it is unknown, as on every system but Linux."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    resolved = str(path.resolve())
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        point = left.split(" ")[4].replace("\\040", " ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ")[0]
    return kind
