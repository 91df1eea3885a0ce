"""Finds errors and likely mistakes in settings, without opening an engine or importing a plugin or the application.

`config check` and `doctor` report the results. All rules about settings are here.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast import plugins
from holdfast.config.keys import BACKEND_PREFIX, ENVIRONMENT_PREFIX, KEYS, OTHER_VARIABLES, Key
from holdfast.config.project import OUR_TABLE, OWN_FILE, SHARED_FILE, Project, table_in, text_of
from holdfast.config.reading import Found, Origin, Place, Problem, Reading, read_settings
from holdfast.definition.backoff import PARAMETERS, strategies_with
from holdfast.errors import ConfigError
from holdfast.queues.addresses import embedded_file, is_missing, kind_of, missing_above
from holdfast.queues.engines.kinds import Home
from holdfast.queues.keyfiles import find_keyring, is_open, key_path, read_keyring
from holdfast.queues.opening import EngineFactory, check_driver, check_plugin, missing_key
from holdfast.queues.signing import Unsigned
from holdfast.spelling import closest
from holdfast.values import BackoffStrategy

GENERATE_A_KEY: Final = "generate one with  python -c 'import secrets; print(secrets.token_hex(32))'"
# A lease is renewed after a third of its duration: if it is shorter than this, a busy machine loses leases.
SHORTEST_SANE_LEASE_S: Final = 3.0
# Problems that a change may leave behind, because another setting must follow: the setting, and that of the problem.
# The signing key is not in the file, and another process may have it.
_SET_IN_TWO_STEPS: Final = {("verify", "verify"), ("verify", "signing-key"), ("url", "signing-key")}
NAMED: Final = {
    "middleware": plugins.MIDDLEWARE,
    "handlers": plugins.HANDLERS,
    "retry-policy": plugins.RETRY_POLICIES,
    "metrics": plugins.METRICS,
}


def check_settings(reading: Reading, environment: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    """Every problem of these settings, errors first."""
    environment = dict(os.environ if environment is None else environment)
    problems = [
        *reading.problems,
        *_keys(reading),
        *_paths(reading),
        *_engine(reading),
        *_application(reading),
        *_named(reading),
        *_signatures(reading),
        *_leases(reading),
        *_backoff(reading),
        *_scheduled_commands(reading),
        *_overruled(reading, environment),
        *_unknown_variables(environment),
        *_ignored_table(reading),
        *_open_files(reading),
    ]
    return tuple(sorted(problems, key=lambda problem: problem.warning))


def refuse_change(project: Project, key: Key, text: str) -> None:
    """Raise if commands would not start with this text of the configuration file, because of the value of this key."""
    # A variable may hide the value, but not in every process.
    environment = {name: value for name, value in os.environ.items() if name not in (key.variable, key.file_variable)}

    def errors(text: str | None) -> list[Problem]:
        problems = check_settings(read_settings(project, environment=environment, text=text), environment)
        return [problem for problem in problems if not problem.warning]

    before = {problem.key for problem in errors(None)}
    for problem in errors(text):
        is_new = problem.key == key.name or problem.key not in before
        if is_new and (key.name, problem.key) not in _SET_IN_TWO_STEPS:
            where = "" if problem.origin is None else f" {problem.origin.where}"
            advice = f"; {problem.advice}" if problem.advice else ""
            raise ConfigError(f"{problem.message.replace(where, '', 1)}{advice}")


def _keys(reading: Reading) -> Iterator[Problem]:
    """Signing keys that are missing or cannot be read."""
    if not reading.of(KEYS["verify"]).value:
        return
    given, filed = reading.of(KEYS["signing-key"]), reading.of(KEYS["signing-key-file"])
    installation: str = reading.of(KEYS["installation"]).value
    try:
        ring = find_keyring(given.value or None, installation=installation, environment={}, configured_file=filed.value)
    except ConfigError as problem:
        key, by = ("signing-key", given) if given.value else ("signing-key-file", filed)
        file = None if given.value else Path(filed.value).expanduser()
        yield _unreadable(f"{key} {by.origin.where}: ", problem, file, key=key, origin=by.origin)
        return
    if ring is None:
        for _, url, place in _places(reading):
            yield from _keys_of_engine(url, place, installation)


def _unreadable(begin: str, problem: ConfigError, file: Path | None, *, key: str, origin: Origin) -> Problem:
    """Keys that cannot be read. If the message ends with the command that helps, that becomes the advice."""
    message, close = str(problem), f"chmod 600 {shlex.quote(str(file))}"
    if message.endswith(close):
        advice = close
    elif file is not None and is_missing(file):
        advice = f"create it; {GENERATE_A_KEY}"
    else:
        advice = f"use the same keys, each at least 32 characters long, in all processes; {GENERATE_A_KEY}"
    return Problem(message=f"{begin}{message.removesuffix(f':  {close}')}", advice=advice, key=key, origin=origin)


def _places(reading: Reading) -> Iterator[tuple[str, Found, str]]:
    """Every backend: the setting that names it, the value of that setting, and the URL."""
    url, backends = reading.of(KEYS["url"]), reading.of(KEYS["backends"])
    yield "url", url, url.value or reading.project.default_url
    others: Mapping[str, str] = backends.value
    for name, place in others.items():
        yield f"backends.{name}", backends, place


def _keys_of_engine(url: Found, place: str, installation: str) -> Iterator[Problem]:
    """A server needs a key from the settings. The key of an embedded database must be readable if it exists."""
    file = embedded_file(place)
    if file is not None:
        key_file = key_path(file)
        origin = Origin(place=Place.FILE, name=str(key_file))
        try:
            if key_file.exists():
                read_keyring(key_file, installation=installation)
        except ConfigError as problem:
            yield _unreadable("", problem, key_file, key="signing-key", origin=origin)
        except OSError as problem:
            yield Problem(
                message=f"cannot read {key_file}: {problem.strerror}",
                advice="make it readable only by this user",
                key="signing-key",
                origin=origin,
            )
    elif kind_of(place).needs_key:
        yield Problem(message=missing_key(place), key="signing-key", origin=url.origin)


def _paths(reading: Reading) -> Iterator[Problem]:
    """Embedded databases whose path cannot be a file. Whether this user may write there is not checked."""
    for name, found, place in _places(reading):
        file = embedded_file(place)
        if file is None:
            continue
        above = standing_above(file)
        if os.access(file, os.F_OK) and file.is_dir():
            yield _problem(name, found, f"{file} is a directory", "name a file in it")
        elif not above.is_dir():
            message = f"{above} is not a directory, so the database cannot be created"
            yield _problem(name, found, message, "name another file")
        elif place != reading.project.default_url and (missing := missing_above(file)) is not None:
            advice = f"name another file, or create it with  mkdir -p {shlex.quote(str(missing))}"
            yield _problem(name, found, f"the directory {missing} does not exist", advice)


def standing_above(file: Path) -> Path:
    """The nearest directory above a file that exists, as far as this user can see."""
    return next((place for place in file.parents if os.access(place, os.F_OK)), file.parent)


def _engine(reading: Reading) -> Iterator[Problem]:
    """URLs whose driver or plugin is not installed, or whose options or table prefix are not valid."""
    prefix = reading.of(KEYS["table-prefix"])
    for name, found, place in _places(reading):
        for setting, given, begin in (
            (name, found, KEYS["table-prefix"].default),
            ("table-prefix", prefix, prefix.value),
        ):
            try:
                _try_engine(place, begin, reading.project.directory)
            except ConfigError as problem:
                yield _problem(setting, given, str(problem))
                break


def _try_engine(url: str, prefix: str, directory: Path | None) -> None:
    """Raise for anything that can be wrong with an engine before it connects."""
    factory = EngineFactory(Unsigned(), table_prefix=prefix)
    kind = kind_of(url)
    if not kind.is_ours:
        check_plugin(kind, directory)
        return
    if kind.migrations:
        check_driver(url)
        factory.migrations(url)
    if kind.home is Home.SERVER:
        factory.open(url)[0].close()  # it connects when it is first used


def _application(reading: Reading) -> Iterator[Problem]:
    """An application whose module cannot be found. It is not imported."""
    found = reading.of(KEYS["app"])
    if not found.value:
        return
    if not plugins.is_reference(found.value):
        message = f"{found.value!r} is not an application; write MODULE:NAME, such as shop:hf for hf in shop.py"
        yield _problem("app", found, message)
        return
    package, project = found.value.partition(":")[0].partition(".")[0], reading.project.directory
    if not plugins.has_package(package, [Path.cwd(), *([] if project is None else [project])]):
        yield _problem("app", found, f"there is no module '{package}'", "create it in the project, or install it")


def _named(reading: Reading) -> Iterator[Problem]:
    """Plugins that cannot be found."""
    for name, kind in NAMED.items():
        found = reading.of(KEYS[name])
        listed: tuple[str, ...] = (found.value,) if isinstance(found.value, str) else found.value
        for one in listed:
            try:
                if one:
                    # A handler may have its key in front: KEY=MODULE:NAME.
                    plugins.check(kind, one.rpartition("=")[2], reading.project.directory)
            except ConfigError as problem:
                yield _problem(name, found, str(problem))


def _signatures(reading: Reading) -> Iterator[Problem]:
    verify, unsigned = reading.of(KEYS["verify"]), reading.of(KEYS["allow-unsigned"])
    if verify.value and unsigned.value:
        yield _warning("allow-unsigned", unsigned, "has no effect without verify = false", "remove it")
    if not verify.value and all(problem.key != "verify" for problem in reading.problems):
        yield _warning(
            "verify",
            verify,
            "disables signatures: anyone who can write to the database can run any registered handler",
            "remove verify = false and allow-unsigned = true",
        )


def _leases(reading: Reading) -> Iterator[Problem]:
    lease, poll = reading.of(KEYS["lease"]), reading.of(KEYS["poll-interval"])
    reap, crashes = reading.of(KEYS["reap-interval"]), reading.of(KEYS["crash-limit"])
    if lease.value < SHORTEST_SANE_LEASE_S:
        yield _warning(
            "lease",
            lease,
            f"must be renewed every {lease.value / 3:.2g}s; on a busy machine, leases will expire while their jobs run",
            "use a longer lease:  holdfast config set lease 60s",
        )
    if poll.value > lease.value:
        yield _warning(
            "poll-interval",
            poll,
            f"is longer than lease ({lease.value:g}s): requeued jobs of a dead worker wait that long for the next poll",
            "use a shorter interval:  holdfast config set poll-interval 1s",
        )
    if reap.value > lease.value / 2 and "reap-interval" in reading.found:
        cut = f"{lease.value / 2:g}s"
        yield _warning(
            "reap-interval",
            reap,
            f"is longer than half the lease; {cut} is used instead",
            f"use a shorter interval or a longer lease:  holdfast config set reap-interval {cut}",
        )
    if crashes.value == 1:
        yield _warning(
            "crash-limit",
            crashes,
            "dead-letters every job whose worker is killed or loses its connection to the engine",
            "let a job survive a crash of its worker:  holdfast config set crash-limit 3",
        )


def _backoff(reading: Reading) -> Iterator[Problem]:
    backoff: str = reading.of(KEYS["backoff"]).value
    used = PARAMETERS[BackoffStrategy(backoff)] if backoff in list(BackoffStrategy) else ()
    for name in PARAMETERS[BackoffStrategy.EXPONENTIAL]:
        found = reading.found.get(f"backoff-{name}")
        if found is not None and name not in used:
            advice = f"remove it, or set backoff to {' or '.join(strategies_with(name))}"
            yield _warning(f"backoff-{name}", found, f"has no effect with backoff = {backoff}", advice)
    base, most = reading.of(KEYS["backoff-base"]), reading.of(KEYS["backoff-max"])
    if "multiplier" in used:
        yield from _growth(reading, base)
    if "max" in used and 0 < most.value < base.value:
        key, found = ("backoff-max", most) if "backoff-max" in reading.found else ("backoff-base", base)
        other = f"backoff-base = {base.value:g}" if key == "backoff-max" else f"backoff-max = {most.value:g}"
        yield _warning(
            key,
            found,
            f"conflicts with {other}: every delay is limited to {most.value:g}s",
            "use a longer backoff-max or a shorter backoff-base",
        )


def _growth(reading: Reading, base: Found) -> Iterator[Problem]:
    """An exponential backoff that does not grow."""
    multiplier = reading.of(KEYS["backoff-multiplier"])
    advice = "use a larger multiplier:  holdfast config set backoff-multiplier 2"
    if multiplier.value == 1:
        yield _warning("backoff-multiplier", multiplier, "makes every delay equal to backoff-base", advice)
    elif multiplier.value is None and base.value <= 1:
        what = "is also the multiplier, because backoff-multiplier is not set, so the delays do not grow"
        yield _warning("backoff-base", base, what, advice)


def _scheduled_commands(reading: Reading) -> Iterator[Problem]:
    """Schedules whose commands no worker of this project would run, unless it is started with `--allow`."""
    schedules, allowed = reading.of(KEYS["schedules"]), reading.of(KEYS["allowed-commands"])
    tables: Mapping[str, Mapping[str, Any]] = schedules.value
    for name, table in tables.items():
        if "command" in table and (program := table["command"][0]) not in allowed.value:
            setting = shlex.quote(",".join([*allowed.value, program]))
            yield Problem(
                message=f"schedules {schedules.origin.where}: [schedules.{name}] runs {program!r}, which is not in "
                "allowed-commands",
                advice=f"allow it with  holdfast config set allowed-commands {setting}  or start the workers with  "
                f"--allow {shlex.quote(program)}",
                key="schedules",
                origin=schedules.origin,
                warning=True,
            )


def _overruled(reading: Reading, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Files with a secret that are not read, because the secret itself is set as well."""
    for key in KEYS.values():
        given = reading.of(key).origin
        if key.file_variable in environment and given.place is Place.VARIABLE:
            yield Problem(
                message=f"${key.variable} and ${key.file_variable} are both set; the first takes precedence",
                advice="unset one",
                key=key.name,
                origin=given,
                warning=True,
            )


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[Problem]:
    known = {name for key in KEYS.values() for name in (key.variable, key.file_variable) if name is not None}
    for name in sorted(environment.keys() - known - OTHER_VARIABLES):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(BACKEND_PREFIX):
            continue
        near = closest(name, known, cutoff=0.8)
        if near:
            yield Problem(
                message=f"${name} is not a setting and is ignored; did you mean ${near}?",
                origin=Origin(place=Place.VARIABLE, name=name),
                warning=True,
            )


def _ignored_table(reading: Reading) -> Iterator[Problem]:
    """A table in `pyproject.toml` that is not read, because there is a `holdfast.toml`."""
    file = reading.project.config_file
    shared = file.with_name(SHARED_FILE)
    if file.name != OWN_FILE or not file.is_file() or reading.project.directory is None:
        return
    try:
        ignored = bool(table_in(shared, text_of(shared)))
    except ConfigError:
        return
    if ignored:
        yield Problem(
            message=f"[{OUR_TABLE}] in {shared} is ignored, because {file} exists",
            advice="move its settings to that file, and remove the table",
            origin=Origin(place=Place.FILE, name=str(shared)),
            warning=True,
        )


def _open_files(reading: Reading) -> Iterator[Problem]:
    """Passwords in files that other users can read."""
    for name, found in reading.found.items():
        key = KEYS[name]
        if found.origin.place is Place.FILE and key.shown(found.value) != found.value and others_can_read(found):
            yield _warning(name, found, "contains a password, and other users can read the file", remedy(key, found))


def others_can_read(found: Found) -> bool:
    """Whether other users can read the file that a value comes from, if it exists already."""
    file = Path(found.origin.name)
    return file.exists() and is_open(file.stat())


def remedy(key: Key, found: Found) -> str:
    """What to do about a secret in a file that other users can read."""
    variable = key.variable or f"{BACKEND_PREFIX}NAME"
    return f"chmod 600 {shlex.quote(found.origin.name)}, or set {variable}, or name a file with it in {variable}_FILE"


def _problem(setting: str, found: Found, message: str, advice: str = "") -> Problem:
    return Problem(
        message=f"{setting} {found.origin.where}: {message}",
        advice=advice,
        key=setting.partition(".")[0],
        origin=found.origin,
    )


def _warning(name: str, found: Found, what: str, advice: str) -> Problem:
    shown = KEYS[name].shown(found.value)
    text = str(shown).lower() if isinstance(shown, bool) else f"{shown:g}" if isinstance(shown, float) else str(shown)
    return Problem(
        message=f"{name} = {text} {found.origin.where} {what}",
        advice=advice,
        key=name,
        origin=found.origin,
        warning=True,
    )
