"""Reads settings from all places. Every value is checked, and every problem is collected."""

import os
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from holdfast.config.declared import undeclared
from holdfast.config.keys import BACKEND_PREFIX, DEFAULT_BACKEND, KEYS, Key, Settings, key_named
from holdfast.config.kinds import check_value
from holdfast.config.project import OUR_TABLE, SHARED_FILE, Project, table_in, text_of
from holdfast.dead_letters import DeadLetterQueues
from holdfast.errors import ConfigError

_LINE: Final = r"""\s*(?:\[\s*([^\[\]]+?)\s*\]\s*(?:\#.*)?|["']?([\w-]+)["']?\s*=.*)"""


class Place(StrEnum):
    """The places that a value can come from."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    SECRET_FILE = "secret-file"  # noqa: S105 - the name of a place
    FLAG = "flag"
    APPLICATION = "application"


class Origin(Struct, frozen=True, kw_only=True):
    """Where a value comes from: the place, its name and, in a file, the line if it can be found."""

    place: Place = Place.DEFAULT
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.place:
            case Place.DEFAULT:
                return "default"
            case Place.FILE:
                return self.name if self.line is None else f"{self.name}:{self.line}"
            case Place.VARIABLE:
                return f"${self.name}"
            case Place.SECRET_FILE:
                return f"the file that ${self.name} names"
            case Place.FLAG:
                return self.name
            case Place.APPLICATION:
                return "the application"

    @property
    def where(self) -> str:
        """The origin as part of a sentence."""
        return "on the command line" if self.place is Place.FLAG else f"in {self}"


class Found(Struct, frozen=True, kw_only=True):
    """A value and its origin."""

    value: Any
    origin: Origin = Origin()

    def __repr__(self) -> str:
        return f"Found({self.origin})"  # the value may be a secret


class Problem(Struct, frozen=True, kw_only=True):
    """Something that is wrong with the settings. Only a problem that is not a warning stops a command."""

    message: str
    advice: str = ""
    """What to do; empty if the message contains it."""
    key: str | None = None
    origin: Origin | None = None
    warning: bool = False


class Reading(Struct, frozen=True, kw_only=True):
    """The settings from all places: for each key that is set, the value that takes precedence; and every problem."""

    project: Project
    found: Mapping[str, Found]
    problems: tuple[Problem, ...]

    def of(self, key: Key) -> Found:
        """The value in effect, and its origin."""
        return self.found.get(key.name) or Found(value=key.default)

    def settings(self) -> Settings:
        """The settings, or the first problem as an error."""
        if self.problems:
            more = len(self.problems) - 1
            hint = f" (and {more} more; list them with  holdfast config check)" if more else ""
            raise ConfigError(f"{self.problems[0].message}{hint}")
        return Settings(**{KEYS[name].field: one.value for name, one in self.found.items() if KEYS[name].in_file})


def load_settings(
    project: Project, flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings from flags, the environment, the file and defaults, in this order of precedence."""
    return read_settings(project, flags, environment).settings()


def read_settings(
    project: Project,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    text: str | None = None,
) -> Reading:
    """The settings from all places, with every problem instead of the first.

    `text` takes the place of the text of the configuration file.
    """
    reader = _SettingsReader()
    reader.read_file(project.config_file, text)
    reader.read_environment(os.environ if environment is None else environment)
    reader.read_flags(flags or {})
    reader.compare()
    return Reading(project=project, found=reader.found, problems=tuple(reader.problems))


class _SettingsReader:
    """Reads the places in reverse order of precedence, so that the last value of a key is the one in effect."""

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.problems: list[Problem] = []

    def read_file(self, path: Path, text: str | None = None) -> None:
        try:
            text = text_of(path) if text is None else text
            table = table_in(path, text)
        except ConfigError as problem:
            self._note(str(problem), None, Origin(place=Place.FILE, name=str(path)))
            return
        lines = lines_of(text, OUR_TABLE if path.name == SHARED_FILE else "")
        # Third-party engines first: a URL may name one of them.
        for name, raw in sorted(table.items(), key=lambda member: member[0] != "engines"):
            self._take(name, raw, Origin(place=Place.FILE, name=str(path), line=lines.get(name)))

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for key in KEYS.values():
            given = self._ask(key, key.variable, Place.VARIABLE, environment)
            if not given and key.in_file:  # the file with the signing keys is a separate setting
                self._ask(key, key.file_variable, Place.SECRET_FILE, environment)
        for variable in sorted(environment):
            is_overridden = variable.endswith("_FILE") and variable.removesuffix("_FILE") in environment
            if variable.startswith(BACKEND_PREFIX) and not is_overridden:
                self._take_backend(variable, environment[variable])

    def _take_backend(self, variable: str, raw: str) -> None:
        """Add one backend to those in the file. The variable contains its URL, or names a file that does."""
        name = variable.removeprefix(BACKEND_PREFIX).lower()
        place = Place.SECRET_FILE if name.endswith("_file") else Place.VARIABLE
        key, origin, before = KEYS["backends"], Origin(place=place, name=variable), self.found.get("backends")
        try:
            url = _secret(key, raw, origin) if place is Place.SECRET_FILE else raw
            [(named, checked)] = check_value(key, {name.removesuffix("_file"): url}, origin.where).items()
        except ConfigError as problem:
            self._note(str(problem), key.name, origin)
            return
        others: Mapping[str, str] = {} if before is None else before.value
        spelled = next((one for one in others if one.lower().replace("-", "_") == named), named)
        self.found[key.name] = Found(value={**others, spelled: checked}, origin=origin)

    def _ask(self, key: Key, variable: str | None, place: Place, environment: Mapping[str, str]) -> bool:
        """Read a variable; whether it is set."""
        raw = None if variable is None else environment.get(variable)
        # An empty signing key counts as none, as in `find_keyring`; for any other setting, empty is a value.
        if variable is None or raw is None or not (raw or key.in_file):
            return False
        self._take(key.name, raw, Origin(place=place, name=variable))
        return True

    def read_flags(self, flags: Mapping[str, Any]) -> None:
        for name, raw in flags.items():
            if raw is not None:
                self._take(name, raw, Origin(place=Place.FLAG, name=f"--{name.replace('_', '-')}"))

    def compare(self) -> None:
        """Check the settings that must fit each other."""
        names = ("verify", "allow-unsigned", "backends", "routes")
        verify, unsigned, backends, routes = (self._found(KEYS[name]) for name in names)
        if not verify.value and not unsigned.value:
            self._note(
                f"verify = false {verify.origin.where} lets anyone who can write to the database run any registered "
                "handler; if that is what you want, also set allow-unsigned = true",
                "verify",
                verify.origin,
            )
        if DEFAULT_BACKEND in backends.value:
            message = f"backends {backends.origin.where}: {DEFAULT_BACKEND} is the backend in url; set url instead"
            self._note(message, "backends", backends.origin)
        known = (DEFAULT_BACKEND, *backends.value)
        for queue, name in routes.value.items():
            if name not in known:
                message = f"there is no backend {name!r} for {queue}; known backends: {', '.join(known)}"
                self._note(f"routes {routes.origin.where}: {message}", "routes", routes.origin)
        self._compare_dead_letters(routes.value)
        self._compare_queues()

    def _compare_dead_letters(self, routes: Mapping[str, str]) -> None:
        default, by_queue = (self._found(KEYS[name]) for name in ("dead-letter-to", "dead-letter-queues"))
        name, origin = ("dead-letter-queues", by_queue.origin) if by_queue.value else ("dead-letter-to", default.origin)
        try:
            DeadLetterQueues(default=default.value, by_queue=by_queue.value).check(routes, DEFAULT_BACKEND)
        except ConfigError as problem:
            self._note(f"{name} {origin.where}: {problem}", name, origin)

    def _compare_queues(self) -> None:
        """Check that all queues in the settings are declared, if any queue is."""
        declared = self._found(KEYS["queues"])
        default = self._found(KEYS["default-queue"])
        for key in KEYS.values():
            for queue in self._queues_in(key):
                if problem := undeclared(queue, declared.value):
                    found = self._found(key)
                    self._note(f"{key.name} {found.origin.where}: {problem}", key.name, found.origin)
        if problem := undeclared(default.value, declared.value):
            if default.origin.place is not Place.DEFAULT:
                self._note(f"default-queue {default.origin.where}: {problem}", "default-queue", default.origin)
            else:
                self._note(
                    f"queues {declared.origin.where} does not contain '{default.value}', the default queue: add it, or "
                    f"set default-queue to one of {', '.join(declared.value)}",
                    "queues",
                    declared.origin,
                )

    def _queues_in(self, key: Key) -> Iterable[str]:
        """The queues that a setting names, apart from the one that is compared on its own."""
        value = self._found(key).value
        if key.name == "dead-letter-to":
            return (value,) if value else ()
        if key.name == "schedules":
            return [table["queue"] for table in value.values() if "queue" in table]
        copied_to = filter(None, value.values()) if key.name == "dead-letter-queues" else ()
        return (*(value or ()), *copied_to) if key.by_queue else ()

    def _found(self, key: Key) -> Found:
        return self.found.get(key.name) or Found(value=key.default)

    def _take(self, name: str, raw: Any, origin: Origin) -> None:
        try:
            key = key_named(name, origin.where)
            if origin.place is Place.FILE:
                self._refuse_twice(key, origin)
            value = _value(key, raw, origin)
            if key.name == "engines":
                from holdfast.queues.opening import register_engine

                for scheme, reference in value.items():
                    register_engine(scheme, reference, Path(origin.name).parent)
            self.found[key.name] = Found(value=value, origin=origin)
        except ConfigError as problem:
            self._note(str(problem), name.replace("_", "-").lower(), origin)

    def _refuse_twice(self, key: Key, origin: Origin) -> None:
        if key.name in self.found:
            raise ConfigError(
                f"{key.name} is set twice in {origin.name}, with a dash and with an underscore; remove one"
            )

    def _note(self, message: str, key: str | None, origin: Origin) -> None:
        self.problems.append(Problem(message=message, key=key, origin=origin))


def _value(key: Key, raw: Any, origin: Origin) -> Any:
    match origin.place:
        case Place.FILE:
            refuse_in_file(key, origin.where)
            return _anchored(key, check_value(key, raw, origin.where), Path(origin.name).parent)
        case Place.SECRET_FILE:
            return check_value(key, _secret(key, raw, origin), origin.where)
        case _:
            return check_value(key, raw, origin.where)


def refuse_in_file(key: Key, where: str = "") -> None:
    """Raise for the signing key: it does not belong in a file that people copy and commit."""
    if not key.in_file:
        raise ConfigError(
            f"{key.name} does not belong in the configuration file{f' ({where})' if where else ''}: set "
            f"{key.variable}, or set {key.name}-file to a file that only you can read"
        )


def _anchored(key: Key, value: Any, directory: Path) -> Any:
    """A relative path in a file is relative to that file, not to the current directory."""
    if key.kind == "path":
        return str(directory / Path(value).expanduser()) if value else value
    if key.kind == "urls":
        return {name: _anchored(KEYS["url"], url, directory) for name, url in value.items()}
    if key.kind == "url" and value.startswith("sqlite:///") and not value.startswith("sqlite:////"):
        path = value.removeprefix("sqlite:///")
        return value if path.startswith(("~", ":")) else f"sqlite:///{quote(str(directory), safe='/')}/{path}"
    return value


def _secret(key: Key, named: str, origin: Origin) -> str:
    """The secret in a file of one line."""
    if not named:
        raise ConfigError(f"${origin.name} is empty; name the file that contains the {key.name}, or unset the variable")
    from holdfast.queues.keyfiles import read_secret

    try:
        text = read_secret(Path(named).expanduser(), f"the {key.name}").strip()
    except ConfigError as problem:
        raise ConfigError(f"${origin.name}: {problem}") from None
    if len(text.splitlines()) > 1:
        raise ConfigError(f"${origin.name}: {named} has more than one line; it must contain only the {key.name}")
    return text


def lines_of(text: str, table: str) -> dict[str, int]:
    """The line on which each key of a table is set, as far as it can be found.

    The TOML parser does not report lines. A key that seems to be set twice, as in a multi-line string, is left out.
    """
    lines: dict[str, int] = {}
    doubtful: set[str] = set()
    here = ""
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.fullmatch(_LINE, line)
        if match is None:
            continue
        if match[1]:
            here = match[1].replace(" ", "")
            name = here.removeprefix(f"{table}.") if table else here
            if here == table or "." in name or (table and name == here):
                continue
        elif here != table:
            continue
        else:
            name = match[2]
        if name in lines:
            doubtful.add(name)
        lines[name] = number
    return {name: number for name, number in lines.items() if name not in doubtful}
