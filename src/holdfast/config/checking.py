"""Everything that can be known to be wrong with settings, or not meant, before anything is opened.

`config check` and `doctor` both say it: a rule about settings stands here, and nowhere else.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from holdfast import plugins
from holdfast.config.keys import BACKEND_PREFIX, ENVIRONMENT_PREFIX, KEYS, OTHER_VARIABLES, Key
from holdfast.config.project import OUR_TABLE, OWN_FILE, SHARED_FILE, table_in, text_of
from holdfast.config.reading import Found, Origin, Place, Problem, Reading
from holdfast.errors import ConfigError
from holdfast.queues.addresses import embedded_file, kind_of, missing_above
from holdfast.queues.engines.kinds import Home
from holdfast.queues.keyfiles import find_keyring, is_open, key_path, read_keyring
from holdfast.queues.opening import BackendFactory, check_driver, missing_key
from holdfast.queues.signing import Unsigned
from holdfast.values import BackoffStrategy

MAKE_A_KEY: Final = "make one with  python -c 'import secrets; print(secrets.token_hex(32))'"
# Renewal comes every third of a lease: below this, the pause of a busy machine costs leases.
SHORTEST_SANE_LEASE_S: Final = 3.0
NAMED: Final = {
    "middleware": plugins.MIDDLEWARE,
    "handlers": plugins.HANDLERS,
    "retry-policy": plugins.RETRY_POLICIES,
    "metrics": plugins.METRICS,
}


def check_settings(reading: Reading, environment: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    """Every problem of these settings, errors first. No engine is opened and no server asked."""
    environment = dict(os.environ if environment is None else environment)
    problems = [
        *reading.problems,
        *_keys(reading),
        *_paths(reading),
        *_engine(reading),
        *_named(reading),
        *_signatures(reading),
        *_leases(reading),
        *_backoff(reading),
        *_overruled(reading, environment),
        *_unknown_variables(environment),
        *_ignored_table(reading),
        *_open_files(reading),
    ]
    return tuple(sorted(problems, key=lambda problem: problem.warning))


def _keys(reading: Reading) -> Iterator[Problem]:
    """The signing keys can be read, and there are some where none is made."""
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
    """Keys that cannot be had; the command that would help is the advice, not a part of the sentence."""
    said, close = str(problem), f"chmod 600 {shlex.quote(str(file))}"
    if said.endswith(close):
        advice = close
    elif file is not None and not file.exists():
        advice = f"put it there; {MAKE_A_KEY}"
    else:
        advice = f"give the same keys, each of at least 32 characters, to all who use these jobs; {MAKE_A_KEY}"
    return Problem(message=f"{begin}{said.removesuffix(f':  {close}')}", advice=advice, key=key, origin=origin)


def _places(reading: Reading) -> Iterator[tuple[str, Found, str]]:
    """Every place for jobs: the setting that names it, where that comes from, and the URL."""
    url, backends = reading.of(KEYS["url"]), reading.of(KEYS["backends"])
    yield "url", url, url.value or reading.project.default_url
    others: Mapping[str, str] = backends.value
    for name, place in others.items():
        yield f"backends.{name}", backends, place


def _keys_of_engine(url: Found, place: str, installation: str) -> Iterator[Problem]:
    """A server's keys have to be given; the one beside an embedded database is made, and has to stay readable."""
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
                message=f"{key_file} cannot be looked for: {problem.strerror}",
                advice="let this user read it, and nobody else",
                key="signing-key",
                origin=origin,
            )
    elif kind_of(place).needs_key:
        yield Problem(message=missing_key(place), key="signing-key", origin=url.origin)


def _paths(reading: Reading) -> Iterator[Problem]:
    """A file can be where the jobs are to be. Whether this user may write it is for whoever works there to know."""
    for name, found, place in _places(reading):
        file, key = embedded_file(place), name.partition(".")[0]
        if file is None:
            continue
        above = standing_above(file)
        if os.access(file, os.F_OK) and file.is_dir():
            message = f"{name} {found.origin.where}: {file} is a directory"
            yield Problem(message=message, advice="let it name a file in it", key=key, origin=found.origin)
        elif not above.is_dir():
            message = f"{name} {found.origin.where}: {above} is no directory, so nothing can be kept below it"
            yield Problem(message=message, advice="let it name another place", key=key, origin=found.origin)
        elif place != reading.project.default_url and (missing := missing_above(file)) is not None:
            yield Problem(
                message=f"{name} {found.origin.where}: there is no directory {missing}, so nothing is made below it",
                advice=f"let it name another place, or make it with  mkdir -p {shlex.quote(str(missing))}",
                key=key,
                origin=found.origin,
                warning=True,
            )


def standing_above(file: Path) -> Path:
    """The nearest place above a file that is there, as far as this user can see."""
    return next((place for place in file.parents if os.access(place, os.F_OK)), file.parent)


def _engine(reading: Reading) -> Iterator[Problem]:
    """The driver is installed, and the names of our tables can be names there."""
    prefix = reading.of(KEYS["table-prefix"])
    for name, found, place in _places(reading):
        for setting, origin, begin in (
            (name, found.origin, KEYS["table-prefix"].default),
            ("table-prefix", prefix.origin, prefix.value),
        ):
            try:
                _try_engine(place, begin)
            except ConfigError as problem:
                key = setting.partition(".")[0]
                yield Problem(message=f"{setting} {origin.where}: {problem}", key=key, origin=origin)
                break


def _try_engine(url: str, prefix: str) -> None:
    """Whatever can be known of an engine without asking it."""
    factory = BackendFactory(Unsigned(), table_prefix=prefix)
    kind = kind_of(url)
    if kind.migrations:
        check_driver(url)
        factory.migrations(url)
    elif kind.home is Home.SERVER:
        factory.open(url)[0].close()  # it connects when it is first asked something


def _named(reading: Reading) -> Iterator[Problem]:
    """What others bring along is installed, or named by its module; nothing is imported for it."""
    for name, kind in NAMED.items():
        found = reading.of(KEYS[name])
        listed: tuple[str, ...] = (found.value,) if isinstance(found.value, str) else found.value
        for one in listed:
            if one and ":" not in one and plugins.published(kind, one) is None:
                yield Problem(
                    message=f"{name} {found.origin.where}: {plugins.unknown(kind, one)}", key=name, origin=found.origin
                )


def _signatures(reading: Reading) -> Iterator[Problem]:
    verify, unsigned = reading.of(KEYS["verify"]), reading.of(KEYS["allow-unsigned"])
    if verify.value and unsigned.value:
        yield _warning("allow-unsigned", unsigned, "does nothing without verify = false", "remove it")
    if not verify.value and all(problem.key != "verify" for problem in reading.problems):
        yield _warning(
            "verify",
            verify,
            "switches signatures off: whoever can write the queue can have any registered handler run",
            "remove verify = false and allow-unsigned = true",
        )


def _leases(reading: Reading) -> Iterator[Problem]:
    lease, poll = reading.of(KEYS["lease"]), reading.of(KEYS["poll-interval"])
    reap, crashes = reading.of(KEYS["reap-interval"]), reading.of(KEYS["crash-limit"])
    if lease.value < SHORTEST_SANE_LEASE_S:
        yield _warning(
            "lease",
            lease,
            f"has to be renewed every {lease.value / 3:.2g}s, and a busy machine will miss that: jobs will be taken "
            "from workers that are well",
            "make it longer, 60s if in doubt:  holdfast config set lease 60s",
        )
    if poll.value > lease.value:
        yield _warning(
            "poll-interval",
            poll,
            f"is longer than lease ({lease.value:g}s): what a dead worker held lies about after it was given back",
            "make it shorter:  holdfast config set poll-interval 1s",
        )
    if reap.value > lease.value / 2 and "reap-interval" in reading.found:
        cut = f"{lease.value / 2:g}s"
        yield _warning(
            "reap-interval",
            reap,
            f"is more than half of lease, so it is cut to {cut}",
            f"make it shorter, or lease longer:  holdfast config set reap-interval {cut}",
        )
    if crashes.value == 1:
        yield _warning(
            "crash-limit",
            crashes,
            "makes a dead letter of every job whose worker is killed or cut off from its engine",
            "let a job survive one crash of its worker:  holdfast config set crash-limit 3",
        )


def _backoff(reading: Reading) -> Iterator[Problem]:
    base, most = reading.of(KEYS["backoff-base"]), reading.of(KEYS["backoff-max"])
    if 0 < most.value < base.value and reading.of(KEYS["backoff"]).value != BackoffStrategy.NONE:
        key, found = ("backoff-max", most) if "backoff-max" in reading.found else ("backoff-base", base)
        other = f"backoff-base = {base.value:g}" if key == "backoff-max" else f"backoff-max = {most.value:g}"
        yield _warning(
            key,
            found,
            f"does not go with {other}: every delay is cut to {most.value:g}s",
            "make backoff-max longer, or backoff-base shorter",
        )


def _overruled(reading: Reading, environment: Mapping[str, str]) -> Iterator[Problem]:
    """A file with a secret is not read when the secret is given otherwise; rarely is that meant."""
    for key in KEYS.values():
        given = reading.of(key).origin
        if key.file_variable in environment and given.place is Place.VARIABLE:
            yield Problem(
                message=f"${key.variable} and ${key.file_variable} are both set, and the first wins",
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
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            yield Problem(
                message=f"${name} names no setting and is ignored; did you mean ${near[0]}?",
                origin=Origin(place=Place.VARIABLE, name=name),
                warning=True,
            )


def _ignored_table(reading: Reading) -> Iterator[Problem]:
    """A project has one file of settings: beside one of our own, a table in the shared one counts for nothing."""
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
            message=f"[{OUR_TABLE}] in {shared} is ignored, since {file} is there",
            advice="move its settings, and remove it",
            origin=Origin(place=Place.FILE, name=str(shared)),
            warning=True,
        )


def _open_files(reading: Reading) -> Iterator[Problem]:
    """A password in a file that others can read."""
    for name, found in reading.found.items():
        key = KEYS[name]
        if found.origin.place is Place.FILE and key.shown(found.value) != found.value and others_can_read(found):
            yield _warning(name, found, "holds a password, and others can read that file", remedy(key, found))


def others_can_read(found: Found) -> bool:
    """Whether the file that a value comes from is open to others than its owner."""
    return is_open(Path(found.origin.name).stat())


def remedy(key: Key, found: Found) -> str:
    """What to do about a secret in a file that others can read."""
    variable = key.variable or f"{BACKEND_PREFIX}NAME"
    return (
        f"chmod 600 {shlex.quote(found.origin.name)}, or give it in {variable} or in a file that {variable}_FILE names"
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
