"""`holdfast config`: show, change and check settings."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.cli import OrderedGroup
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
)
from holdfast.units import counted


class SettingDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.setting/1"):
    """One setting with its current value and its description, as `config list` and `get` print it."""

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
    """The document of `config set --json`. `written` is false with `--dry-run`."""

    key: str
    value: Any
    written: bool
    file: str


class UnsetDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.unset/1"):
    """The document of `config unset --json`: whether the file had the setting, and the value that now applies."""

    key: str
    removed: bool
    value: Any
    origin: Origin
    file: str


class PathDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.path/1"):
    """The document of `config path --json`."""

    file: str
    exists: bool
    project: str | None


class CheckDocument(Document, frozen=True, kw_only=True, tag="holdfast.config.check/1"):
    """The document of `config check --json`: `ok` unless there is an error, or with `--strict` a warning."""

    ok: bool
    file: str
    problems: tuple[Problem, ...]


@click.group(cls=OrderedGroup)
def config() -> None:
    """Show, change and check settings."""


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
    if key is None:
        _print_all(reading, as_json=as_json)
    elif as_json:
        write_json(_document(reading, key_named(key)))
    else:
        write(_text(_shown(reading, key_named(key))))


@config.command("list")
@click.option("--show-origin", is_flag=True, help="Show where each value comes from instead of its description.")
@jsonl_option
@url_option
@json_option
def list_settings(show_origin: bool, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """List all settings with their current values.

    \b
    Examples:
      holdfast config list --show-origin
      holdfast config list --json | jq -r '.[] | select(.origin.place != "default") | .key'
    """
    one_form({"--json": as_json, "--jsonl": as_jsonl})
    _print_all(_sound_reading(url), as_json=as_json, as_jsonl=as_jsonl, show_origin=show_origin)


@config.command("set", context_settings={"ignore_unknown_options": True})  # so that -1 is read as a value
@click.argument("key", shell_complete=_names)
@click.argument("value", shell_complete=_values)
@dry_run_option
@json_option
def set_setting(key: str, value: str, dry_run: bool, as_json: bool) -> None:
    """Write one setting to the configuration file. Comments in the file are preserved.

    \b
    Examples:
      holdfast config set max-retries 5
      holdfast config set allowed-commands sleep,echo
    """
    from holdfast.config.checking import refuse_change
    from holdfast.config.writing import write_setting

    project, found = find_project(), key_named(key)
    file, judge = project.config_file, partial(refuse_change, project)
    before = {problem.key for problem in _problems(settings_at()) if problem.warning}
    written = found.shown((_tried if dry_run else write_setting)(file, key, value, judge=judge))
    if as_json:
        write_json(SetDocument(key=found.name, value=written, written=not dry_run, file=str(file)))
    elif dry_run:
        write(f"would set {found.name} = {_text(written)}")
        note(f"dry run: nothing was written to {file}")
    else:
        write(f"✓ {found.name} = {_text(written)}")
        note(f"  written to {file}; applies to commands and workers started from now on")
    if not dry_run:
        _note_surprises(found, file)
        for problem in _problems(settings_at()):
            if problem.warning and (problem.key == found.name or problem.key not in before):
                _note_problem(problem)


def _tried(file: Path, key: str, value: str, *, judge: Callable[[Key, str], None]) -> Any:
    """Write to a copy of the file, to check everything that a write would check."""
    from shutil import copyfile
    from tempfile import TemporaryDirectory

    from holdfast.config.writing import write_setting

    with TemporaryDirectory() as directory:
        copy = Path(directory) / file.name
        if file.is_file():
            copyfile(file, copy)
        return write_setting(copy, key, value, judge=judge)


@config.command("unset")
@click.argument("key", shell_complete=_names)
@dry_run_option
@json_option
def unset(key: str, dry_run: bool, as_json: bool) -> None:
    """Remove one setting from the configuration file. Comments of other settings are preserved.

    \b
    Examples:
      holdfast config unset max-retries
    """
    from holdfast.config.writing import unset_setting

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
        note("dry run: nothing was changed")
    elif removed:
        write(f"✓ {found.name} unset")
        note(f"  removed from {file}; now in effect: {_in_effect(found, now)}")
    else:
        write(f"• {found.name} was not set in {file}")
        note(f"  in effect: {_in_effect(found, now)}")
    _note_errors(reading)


@config.command("path")
@json_option
def path(as_json: bool) -> None:
    """Print the path of the configuration file.

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
            note("it does not exist;  holdfast config set  creates it")


@config.command("check")
@click.option("--strict", is_flag=True, help="Also exit with 1 on warnings.")
@url_option
@json_option
def check(strict: bool, url: str | None, as_json: bool) -> int:
    """Check all settings and report every problem. No server is contacted.

    \b
    Examples:
      holdfast config check
      HOLDFAST_URL_FILE=/run/secrets/url holdfast config check --strict
    """
    reading = settings_at(url)
    problems = _problems(reading)
    errors = sum(not problem.warning for problem in problems)
    warnings = len(problems) - errors
    if as_json:
        ok = not problems if strict else not errors
        write_json(CheckDocument(ok=ok, file=str(reading.project.config_file), problems=problems))
    else:
        _print_problems(reading, problems, errors, warnings)
    return USAGE if errors else FAILED if warnings and strict else 0


def _sound_reading(url: str | None = None) -> Reading:
    """The settings; an error if they cannot be used."""
    reading = settings_at(url)
    reading.settings()
    return reading


def _shown(reading: Reading, key: Key) -> Any:
    """The value of a setting, with secrets hidden."""
    return key.shown(reading.of(key).value)


def _in_effect(key: Key, found: Found) -> str:
    text = _text(key.shown(found.value))
    return f"{text} ({found.origin})" if text else f"the {found.origin}"


def _print_all(reading: Reading, *, as_json: bool, as_jsonl: bool = False, show_origin: bool = False) -> None:
    if as_json or as_jsonl:
        documents = [_document(reading, key) for key in KEYS.values()]
        (write_json if as_json else write_jsonl)(documents)
        return
    rows = [
        (name, _text(_shown(reading, key)), str(reading.of(key).origin) if show_origin else key.meaning)
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
        note(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}; checked: {where}, the environment")
    else:
        write(f"✓ no problems found: {len(reading.found)} of {len(KEYS)} settings are set")
        note(f"  checked: {where}, the environment")


def _note_surprises(key: Key, file: Path) -> None:
    """Explain why a change has no effect, and warn of a secret that others can read."""
    from holdfast.config.checking import others_can_read, remedy

    reading = settings_at()
    now = reading.of(key)
    if now.origin.place is not Place.FILE and key.name in reading.found:
        note(f"  but {now.origin} takes precedence here: {key.name} = {_text(key.shown(now.value))}")
    if key.shown(now.value) != now.value and now.origin.name == str(file) and others_can_read(now):
        note(f"  other users can read that file: {remedy(key, now)}")
    _note_errors(reading)


def _note_errors(reading: Reading) -> None:
    """Warn that commands and workers will not start, and why."""
    for problem in _problems(reading):
        if not problem.warning:
            _note_problem(problem)


def _note_problem(problem: Problem) -> None:
    sign = paint("⚠", DOUBTFUL) if problem.warning else f"{paint('✗', BAD)} commands and workers will not start:"
    note(f"{sign} {problem.message}")
    if problem.advice:
        note(f"  → {problem.advice}")


def _problems(reading: Reading) -> tuple[Problem, ...]:
    from holdfast.config.checking import check_settings

    return check_settings(reading)


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(str(word) for word in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case dict() if any(isinstance(inner, dict) for inner in value.values()):  # pyright: ignore[reportUnknownVariableType]
            return ",".join(value)  # pyright: ignore[reportUnknownArgumentType]
        case dict():
            return "; ".join(f"{name}={_text(words)}" for name, words in value.items())  # pyright: ignore[reportUnknownVariableType]
        case float():
            return f"{value:g}"
        case _:
            return str(value)
