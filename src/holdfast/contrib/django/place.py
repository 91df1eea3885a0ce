"""Where the jobs of a task backend are stored, from its OPTIONS: at a URL, or in one of Django's databases."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.crypto import salted_hmac
from msgspec import Struct

from holdfast.app import Holdfast
from holdfast.config import PROJECT_VARIABLE, Project, Settings, find_project, load_settings, user_project
from holdfast.contrib.django.framework import DEFAULT_TASK_QUEUE_NAME
from holdfast.errors import ConfigError, HoldfastError
from holdfast.queues.addresses import redacted
from holdfast.queues.keyfiles import find_keyring

OWN_OPTIONS: Final = ("database", "modules", "signing_key")
# OPTIONS of a database that Django itself handles; the others are passed to libpq.
_NOT_OF_LIBPQ: Final = frozenset(
    (
        "assume_role",
        "client_encoding",
        "cursor_factory",
        "isolation_level",
        "pool",
        "prepare_threshold",
        "row_factory",
        "server_side_binding",
    )
)


class BackendPlace(Struct, frozen=True, kw_only=True):
    """The URL where a task backend stores its jobs. `database` is its alias if it is one of Django's databases.

    `problem` explains why it cannot be used.
    """

    alias: str
    url: str
    database: str | None
    signing_key: str | None
    settings: Settings
    project: Project
    problem: str | None = None

    def __repr__(self) -> str:
        # Error pages show it, so it contains no password and no key.
        return f"BackendPlace(alias={self.alias!r}, url={redacted(self.url)!r}, database={self.database!r})"

    def is_still_there(self) -> bool:
        """Whether `place_of` would return the same again."""
        if self.problem is not None:
            return False
        return self.database is None or url_of_database(self.database) == self.url

    @property
    def is_of_tests(self) -> bool:
        """Whether it is the in-memory database that Django's test runner creates."""
        return self.database is not None and str(connections[self.database].settings_dict["NAME"]).startswith("file:")

    def application(self) -> Holdfast:
        """The application that stores its jobs here."""
        if self.problem is not None:
            raise ImproperlyConfigured(self.problem)
        return Holdfast(
            self.url,
            backends={},
            routes={},
            settings=self.settings,
            signing_key=self.signing_key,
            directory=self.project.directory,
        )


def place_of(alias: str, options: Mapping[str, Any]) -> BackendPlace:
    """The place that the OPTIONS describe. A problem is part of the value, and is reported by Django's checks."""
    try:
        return _place_of(alias, options, find_project(_base_directory()))
    except HoldfastError as problem:
        text = str(problem).replace("on the command line", f"in TASKS[{alias!r}]['OPTIONS']")
        return BackendPlace(
            alias=alias,
            url="",
            database=None,
            signing_key=None,
            settings=Settings(),
            project=user_project(),
            problem=text,
        )


def _place_of(alias: str, options: Mapping[str, Any], project: Project) -> BackendPlace:
    several = sorted({"backends", "routes"} & options.keys())
    if several:
        raise ConfigError(
            f"TASKS[{alias!r}]['OPTIONS'] has {' and '.join(several)}; with Django, give each backend its own alias in "
            "TASKS, and choose it with  @task(backend=...)"
        )
    given = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    # The queue of tasks that name none is Django's own.
    settings = load_settings(project, {"default-queue": DEFAULT_TASK_QUEUE_NAME, **given})
    database = options.get("database")
    if database is not None and options.get("url"):
        raise ConfigError(f"TASKS[{alias!r}]['OPTIONS'] has both a url and a database; remove one of them")
    url = "" if database is not None else settings.url
    if not url:
        database = DEFAULT_DB_ALIAS if database is None else database
        url = url_of_database(database)
    elif _leads_to_default(url):
        database = DEFAULT_DB_ALIAS
    return BackendPlace(
        alias=alias,
        url=url,
        database=database,
        signing_key=_signing_key(options, settings),
        settings=settings,
        project=project,
    )


def _leads_to_default(url: str) -> bool:
    """Whether a URL is that of Django's default database, as worker processes receive it."""
    with suppress(ConfigError):
        return url == url_of_database(DEFAULT_DB_ALIAS)
    return False


def url_of_database(alias: str) -> str:
    """The current URL of one of Django's databases; a test runner changes its name."""
    if alias not in connections:
        raise ConfigError(f"there is no database {alias!r} in DATABASES; use {', '.join(sorted(connections))}")
    connection = connections[alias]
    place: dict[str, Any] = connection.settings_dict
    match connection.vendor:
        case "sqlite":
            return _sqlite(place)
        case "postgresql":
            return _postgresql(place)
        case "mysql":
            return _mysql(place)
        case vendor:
            raise ConfigError(
                f"jobs cannot be stored in the database {alias!r} ({vendor}); set a url in its OPTIONS, such as "
                "redis://localhost/0 or sqlite:////var/lib/shop/jobs.db"
            )


def _sqlite(place: Mapping[str, Any]) -> str:
    name = os.fspath(place["NAME"])
    # Tests use an in-memory database, which no other process can open: their jobs are stored in memory as well.
    if name == ":memory:" or name.startswith("file:"):
        return "memory://"
    return f"sqlite:///{quote(str(Path(name).absolute()))}"


def _postgresql(place: Mapping[str, Any]) -> str:
    options = {name: str(value) for name, value in place["OPTIONS"].items() if name not in _NOT_OF_LIBPQ}
    host = str(place["HOST"])
    if host.startswith("/"):
        options["host"], host = host, ""
    return _url("postgresql", place, host, options)


def _mysql(place: Mapping[str, Any]) -> str:
    host, options = str(place["HOST"]), dict[str, str]()
    given = place["OPTIONS"]
    if host.startswith("/") or "unix_socket" in given:
        options["socket"], host = given.get("unix_socket", host), ""
    tls = given.get("ssl")
    if tls:
        names = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_key"}
        options |= {names[name]: str(value) for name, value in tls.items() if name in names}
        options.setdefault("tls", "verify" if "tls_ca" in options else "encrypt")
    return _url("mysql", place, host or "localhost", options)


def _url(scheme: str, place: Mapping[str, Any], host: str, options: Mapping[str, str]) -> str:
    who = quote(str(place["USER"]), safe="")
    if place["PASSWORD"]:
        who += ":" + quote(str(place["PASSWORD"]), safe="")
    where = f"[{host}]" if ":" in host else host
    where += f":{place['PORT']}" if place["PORT"] else ""
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"{scheme}://{who}{'@' if who else ''}{where}/{quote(str(place['NAME'] or ''), safe='')}{query}"


def _signing_key(options: Mapping[str, Any], settings: Settings) -> str | None:
    """The configured keys, or else keys derived from SECRET_KEY, which every process of a Django project has."""
    if options.get("signing_key"):
        return str(options["signing_key"])
    if find_keyring(installation=settings.installation, configured_file=settings.signing_key_file) is not None:
        return None
    secrets: list[str] = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS]
    return ",".join(
        salted_hmac("holdfast.contrib.django", "signing key", secret=secret, algorithm="sha256").hexdigest()
        for secret in secrets
    )


def _base_directory() -> Path | None:
    """Where to look for the project, unless a variable names it."""
    base = getattr(django_settings, "BASE_DIR", None)
    return None if base is None or os.environ.get(PROJECT_VARIABLE) else Path(base)
