"""`holdfast config`: read and change settings."""

from typing import Any

import click

from holdfast.cli.options import json_option
from holdfast.cli.output import glyph, print_json, print_table, say
from holdfast.config import KEYS, find_project, key_named, load_settings, write_setting
from holdfast.queues.opening import redacted


@click.group()
def config() -> None:
    """Read and change settings."""


@config.command("get")
@click.argument("key", required=False)
@json_option
def get_setting(key: str | None, as_json: bool) -> None:
    """Show one setting, or all of them."""
    project = find_project()
    settings = load_settings(project)
    if key is not None:
        found = key_named(key)
        value = _shown(found.name, getattr(settings, found.field))
        if as_json:
            print_json({"key": found.name, "value": value})
        else:
            click.echo(_text(value))
        return
    values = {name: _shown(name, getattr(settings, each.field)) for name, each in KEYS.items()}
    if as_json:
        print_json(values)
    else:
        rows = [(name, _text(value), KEYS[name].meaning) for name, value in values.items()]
        print_table(("KEY", "VALUE", "MEANING"), rows)
        say(f"from {project.config_file}" if project.config_file.is_file() else f"{project.config_file} does not exist")


@config.command("set", context_settings={"ignore_unknown_options": True})  # so that -1 is a value, and out of range
@click.argument("key")
@click.argument("value")
@json_option
def set_setting(key: str, value: str, as_json: bool) -> None:
    """Write one setting to the configuration file; comments in it are kept.

    \b
    Examples:
      holdfast config set max-retries 5
      holdfast config set allowed-commands sleep,echo
    """
    project = find_project()
    name = key_named(key).name
    written = _shown(name, write_setting(project.config_file, key, value))
    if as_json:
        print_json({"key": name, "value": written, "file": str(project.config_file)})
    else:
        click.echo(f"{glyph('✓', '*')} {name} = {_text(written)}")
        say(f"  written to {project.config_file}; it counts for whatever starts from now on")


def _shown(name: str, value: Any) -> Any:
    """A setting without the password that a URL may have; who needs that has the file."""
    return redacted(value) if name == "url" and value else value


def _text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(str(word) for word in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case float():
            return f"{value:g}"
        case _:
            return str(value)
