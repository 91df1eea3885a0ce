"""`holdfast config`: read, change and check settings."""

from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.cli.documents import Document
from holdfast.cli.failing import FAILED, USAGE
from holdfast.cli.options import json_option, jsonl_option, one_form, settings_at, url_option
from holdfast.cli.output import note, write, write_json, write_jsonl
from holdfast.cli.selecting import dry_run_option
from holdfast.cli.style import BAD, DOUBTFUL, paint, print_table
from holdfast.config import (
    KEYS,
    Applies,
    Found,
    Key,
    Origin,
    Place,
    Problem,
    Reading,
    find_project,
    key_named,
    unset_setting,
    write_setting,
)


class SettingDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.setting/1"):
    """One setting as it is in force, with all that the table says of it; what `config list` and `get` print."""

    key: str
    value: Any
    origin: Origin
    default: Any
    kind: str
    range: tuple[float, float] | None
    choices: tuple[str, ...]
    applies: Applies
    secret: bool
    variable: str | None
    meaning: str


class SetDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.set/1"):
    """What `config set --json` prints: the value, and the file it was written to unless it was only tried."""

    key: str
    value: Any
    written: bool
    file: str


class UnsetDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.unset/1"):
    """What `config unset --json` prints: whether it was taken out, and what is in force now."""

    key: str
    removed: bool
    value: Any
    origin: Origin
    file: str


class PathDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.path/1"):
    """What `config path --json` prints."""

    file: str
    exists: bool
    project: str | None


class CheckDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.check/1"):
    """What `config check --json` prints: `ok` unless there is an error, or with `--strict` a warning."""

    ok: bool
    file: str
    problems: tuple[Problem, ...]


@click.group()
def config() -> None:
    """Read, change and check settings."""


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    begun = incomplete.replace("_", "-").lower()
    return [CompletionItem(name, help=key.meaning) for name, key in KEYS.items() if name.startswith(begun)]


def _values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    key = KEYS.get(str(ctx.params.get("key")).replace("_", "-"))
    words = () if key is None else ("true", "false") if key.kind == "flag" else key.choices
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


@config.command("get")
@click.argument("key", required=False, shell_complete=_names)
@json_option
def get_setting(key: str | None, as_json: bool) -> None:
    """Show one setting, or all of them."""
    reading = _sound_reading()
    if key is not None:
        found = key_named(key)
        if as_json:
            write_json(_document(reading, found))
        else:
            write(_text(_shown(reading, found)))
    elif as_json:
        write_json([_document(reading, each) for each in KEYS.values()])
    else:
        _print_all(reading, show_origin=False)


@config.command("list")
@click.option("--show-origin", is_flag=True, help="Show where each value comes from, instead of what it means.")
@jsonl_option
@url_option
@json_option
def list_settings(show_origin: bool, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """Show all settings as they are in force here.

    \b
    Examples:
      holdfast config list --show-origin
      holdfast config list --json | jq -r '.[] | select(.origin.place != "default") | .key'
    """
    one_form({"--json": as_json, "--jsonl": as_jsonl})
    reading = _sound_reading(url)
    documents = [_document(reading, key) for key in KEYS.values()]
    if as_json:
        write_json(documents)
    elif as_jsonl:
        write_jsonl(documents)
    else:
        _print_all(reading, show_origin=show_origin)


@config.command("set", context_settings={"ignore_unknown_options": True})  # so that -1 is a value, and out of range
@click.argument("key", shell_complete=_names)
@click.argument("value", shell_complete=_values)
@dry_run_option
@json_option
def set_setting(key: str, value: str, dry_run: bool, as_json: bool) -> None:
    """Write one setting to the configuration file; comments in it are kept.

    \b
    Examples:
      holdfast config set max-retries 5
      holdfast config set allowed-commands sleep,echo
    """
    file, found = find_project().config_file, key_named(key)
    written = found.shown(_tried(file, key, value) if dry_run else write_setting(file, key, value))
    if as_json:
        write_json(SetDocument(key=found.name, value=written, written=not dry_run, file=str(file)))
    elif dry_run:
        write(f"would set {found.name} = {_text(written)}")
        note(f"nothing was written to {file}: --dry-run")
    else:
        write(f"✓ {found.name} = {_text(written)}")
        note(f"  written to {file}; it counts for whatever starts from now on")
    if not dry_run:
        _say_what_else(found, Origin(place=Place.FILE, name=str(file)))


def _tried(file: Path, key: str, value: str) -> Any:
    """What would be written: into a copy of the file, so that every refusal is met."""
    with TemporaryDirectory() as directory:
        copy = Path(directory) / file.name
        if file.is_file():
            copyfile(file, copy)
        return write_setting(copy, key, value)


@config.command("unset")
@click.argument("key", shell_complete=_names)
@dry_run_option
@json_option
def unset(key: str, dry_run: bool, as_json: bool) -> None:
    """Take one setting out of the configuration file; comments of others are kept.

    \b
    Examples:
      holdfast config unset max-retries
    """
    file, found = find_project().config_file, key_named(key)
    is_there = dry_run and settings_at().of(found).origin.place is Place.FILE
    removed = not dry_run and unset_setting(file, key)
    reading = settings_at()
    now = reading.of(found)
    if as_json:
        write_json(
            UnsetDocument(
                key=found.name, removed=removed, value=found.shown(now.value), origin=now.origin, file=str(file)
            )
        )
    elif is_there:
        write(f"would unset {found.name} in {file}")
        note("nothing was changed: --dry-run")
    elif removed:
        write(f"✓ {found.name} is unset")
        note(f"  taken out of {file}; in force now: {_in_force(found, now)}")
    else:
        write(f"• {found.name} was not set in {file}")
        note(f"  in force: {_in_force(found, now)}")
    _say_problems(reading)


@config.command("path")
@json_option
def path(as_json: bool) -> None:
    """Show which file the settings are read from and written to.

    \b
    Examples:
      $EDITOR "$(holdfast config path)"
    """
    project = find_project()
    file = project.config_file
    if as_json:
        directory = None if project.directory is None else str(project.directory)
        write_json(PathDocument(file=str(file), exists=file.is_file(), project=directory))
    else:
        write(str(file))
        if not file.is_file():
            note("it does not exist;  holdfast config set  makes it")


@config.command("check")
@click.option("--strict", is_flag=True, help="Warnings count, too: exit with 1.")
@url_option
@json_option
def check(strict: bool, url: str | None, as_json: bool) -> int:
    """Read everything and report all that is wrong with it; no server is asked.

    \b
    Examples:
      holdfast config check
      HOLDFAST_URL_FILE=/run/secrets/url holdfast config check --strict
    """
    from holdfast.config.checking import check_settings

    reading = settings_at(url)
    problems = check_settings(reading)
    errors = sum(not problem.warning for problem in problems)
    warnings = len(problems) - errors
    if as_json:
        ok = not problems if strict else not errors
        write_json(CheckDocument(ok=ok, file=str(reading.project.config_file), problems=problems))
    else:
        _print_problems(reading, problems, errors, warnings)
    return USAGE if errors else FAILED if warnings and strict else 0


def _sound_reading(url: str | None = None) -> Reading:
    """The reading of settings that can be used; others are an error."""
    reading = settings_at(url)
    reading.settings()
    return reading


def _shown(reading: Reading, key: Key) -> Any:
    """A setting without its secret; who needs that has the file."""
    return key.shown(reading.of(key).value)


def _in_force(key: Key, found: Found) -> str:
    text = _text(key.shown(found.value))
    return f"{text} ({found.origin})" if text else f"the {found.origin}"


def _print_all(reading: Reading, *, show_origin: bool) -> None:
    rows = [
        (name, _text(_shown(reading, key)), str(reading.of(key).origin) if show_origin else (key.meaning))
        for name, key in KEYS.items()
    ]
    print_table(("KEY", "VALUE", "ORIGIN" if show_origin else "MEANING"), rows)
    file = reading.project.config_file
    note(f"from {file}" if file.is_file() else f"{file} does not exist")


def _document(reading: Reading, key: Key) -> SettingDocument:
    return SettingDocument(
        key=key.name,
        value=_shown(reading, key),
        origin=reading.of(key).origin,
        default=key.default,
        kind=key.kind,
        range=(key.low, key.high) if key.high else None,
        choices=key.choices,
        applies=key.applies,
        secret=key.secret,
        variable=key.variable,
        meaning=key.meaning,
    )


def _print_problems(reading: Reading, problems: tuple[Problem, ...], errors: int, warnings: int) -> None:
    for problem in problems:
        sign = paint("⚠", DOUBTFUL) if problem.warning else paint("✗", BAD)
        write(f"{sign} {problem.message}")
        if problem.advice:
            write(f"  → {problem.advice}")
    file = reading.project.config_file
    where = str(file) if file.is_file() else f"no file ({file} does not exist)"
    if problems:
        note(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}; read: {where}, the environment")
    else:
        write(f"✓ nothing is wrong: {len(reading.found)} of {len(KEYS)} settings are set")
        note(f"  read: {where}, the environment")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _say_what_else(key: Key, written: Origin) -> None:
    """What somebody who has just changed a setting would otherwise wonder about."""
    from holdfast.config.checking import others_can_read, remedy

    reading = settings_at()
    now = reading.of(key)
    if now.origin.place is not Place.FILE and key.name in reading.found:
        note(f"  but here {now.origin} wins: {key.name} = {_text(key.shown(now.value))}")
    if key.shown(now.value) != now.value and now.origin.name == written.name and others_can_read(now):
        note(f"  others can read that file: {remedy(key, now)}")
    _say_problems(reading)


def _say_problems(reading: Reading) -> None:
    for problem in reading.problems:
        note(f"  every command will refuse to start: {problem.message}")


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(str(word) for word in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case dict():
            return "; ".join(f"{name}={_text(words)}" for name, words in value.items())  # pyright: ignore[reportUnknownVariableType]
        case float():
            return f"{value:g}"
        case _:
            return str(value)
