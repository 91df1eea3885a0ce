"""Writes the parts of the documentation that are generated from the code: `python scripts/reference.py`.

In `docs/cli.md`, marks name what is between them: the list of commands, the usage of one, its options and examples, the
exit codes, the documents with a schema, the counters of a worker. A command without a section gets one. In
`docs/configuration.md`, marks enclose the tables of settings and of the options of a schedule. Everything else on
the pages is written by hand.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from holdfast.cli import cli
from holdfast.cli.schemas import DOCUMENTS
from holdfast.cli.topics import EXIT_CODES
from holdfast.config.keys import KEYS, Applies, Key
from holdfast.config.schedules import MEMBERS
from holdfast.metrics import End
from holdfast.metrics.counters import MEANINGS

DOCS: Final = Path(__file__).parents[1] / "docs"
PROGRAM: Final = "holdfast"
_part_pattern = re.compile(r"<!-- generated: (\S+)(?: ([^\n]+))? -->\n.*?<!-- end -->", re.DOTALL)
_section_pattern = re.compile(rf"^## ({PROGRAM} .+)\n", re.MULTILINE)
_examples_pattern = re.compile(r"^Examples?:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_table_pattern = re.compile(r"<!-- (settings|schedules): begin -->\n.*?<!-- \1: end -->", re.DOTALL)
_APPLIES = {Applies.START: "next start", Applies.ENQUEUE: "next start, new jobs"}


def with_commands(page: str) -> str:
    """The page with all generated parts updated, and a section for each command."""
    commands = dict(leaves(cli, PROGRAM))
    page = _with_sections(page, list(commands))
    return _part_pattern.sub(lambda part: _part(commands, part[1], part[2] or ""), page)


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command (not groups), by the words that invoke it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command, info_name=path)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield from leaves(inner, f"{path} {name}")


def usage_of(path: str, command: click.Command) -> str:
    """The usage line of `--help`."""
    return " ".join([path, *command.collect_usage_pieces(click.Context(command, info_name=path))])


def examples_of(command: click.Command) -> list[str]:
    """The command lines of the examples in its `--help`, one per line."""
    # Click's mark for a paragraph without wrapping is alone in the line above.
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    found = _examples_pattern.search(text)
    return [line.strip() for line in found[1].splitlines()] if found else []


def option_row(option: click.Option) -> list[str]:
    """The spelling and the meaning of an option."""
    names = ", ".join(sorted([*option.opts, *option.secondary_opts], key=len))
    value = "" if option.is_flag else f" {option.metavar or _value(option.type)}"
    required = " Required." if option.required else ""
    default = f" Default: {option.default}." if option.show_default else ""
    return [f"`{names}{value}`", f"{option.help or ''}{required}{default}".strip()]


def _value(kind: click.ParamType[Any]) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    return "N" if isinstance(kind, click.types.IntParamType | click.types.FloatParamType) else kind.name.upper()


def _with_sections(page: str, paths: list[str]) -> str:
    """The page with an empty section for each command that lacks one, after that of the previous command."""
    parts = _section_pattern.split(page)
    described = parts[1::2]
    for gone in [path for path in described if path not in paths]:
        raise SystemExit(f"there is no command '{gone}' any more: take its section out of the page")
    sections = dict(zip(described, parts[2::2], strict=True))
    order = list(described)
    for path, before in zip(paths, ["", *paths], strict=False):
        if path not in sections:
            order.insert(order.index(before) + 1 if before in order else len(order), path)
            sections[path] = "".join(
                f"\n<!-- generated: {what} {path} -->\n<!-- end -->\n" for what in ("usage", "options")
            )
            # The next section starts with its heading, which needs an empty line before it.
            sections[path] += "\n" if order[-1] != path else ""
    return parts[0] + "".join(f"## {path}\n{sections[path]}" for path in order)


def _part(commands: dict[str, click.Command], what: str, path: str) -> str:
    mark = f"<!-- generated: {what}{' ' * bool(path)}{path} -->"
    match what:
        case "commands":
            rows = [[f"[`{each}`](#{each.replace(' ', '-')})", _summary(command)] for each, command in commands.items()]
            text = _table(["Command", "What it does"], rows)
        case "exit-codes":
            text = _table(["Code", "Meaning"], [[code, f"{_sentence(said)}."] for code, said in EXIT_CODES.items()])
        case "schemas":
            documents = [[f"`{name}`", printed_by] for name, (_, printed_by) in DOCUMENTS.items()]
            text = _table(["Document", "Printed by"], documents)
        case "counters":
            ends = set(map(str, End))
            counters = [
                [f"`holdfast_{name}_total`", "✓" if name in ends else "", meaning] for name, meaning in MEANINGS.items()
            ]
            text = _table(["Counter", "End", "Meaning"], counters)
        case "usage" if path in commands:
            text = f"`{usage_of(path, commands[path])}`\n"
        case "options" if path in commands:
            text = _options(commands[path])
        case _:
            raise SystemExit(f"{mark} names nothing that can be generated")
    return f"{mark}\n{text}<!-- end -->"


def _summary(command: click.Command) -> str:
    """The first paragraph of its help."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


def _options(command: click.Command) -> str:
    rows = [option_row(param) for param in command.params if isinstance(param, click.Option) and not param.hidden]
    table = _table(["Option", "Meaning"], rows) if rows else ""
    examples = examples_of(command)
    shown = "".join(["\n```sh\n", *(f"{line}\n" for line in examples), "```\n"]) if examples else ""
    return table + shown


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    described = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join([described[0], "|---" * len(head) + "|\n", *described[1:]])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def with_settings(page: str) -> str:
    """The page with its tables of settings updated."""
    tables = {"settings": settings_table(), "schedules": members_table()}
    if set(_table_pattern.findall(page)) != tables.keys():
        raise SystemExit("a table lacks its marks: <!-- settings: begin --> and <!-- settings: end -->, or schedules")
    return _table_pattern.sub(
        lambda found: f"<!-- {found[1]}: begin -->\n{tables[found[1]]}<!-- {found[1]}: end -->", page
    )


def members_table() -> str:
    """Every option of a schedule as a row of Markdown."""
    return _table(
        ["Option", "Range", "Meaning"], [[f"`{one.name}`", _range(one), one.meaning] for one in MEMBERS.values()]
    )


def settings_table() -> str:
    """Every setting as a row of Markdown."""
    head = "| Setting | Kind | Default | Range | Applies from | Meaning |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        "".join(f"| {cell} " if cell else "| " for cell in _row(key)) + "|\n" for key in KEYS.values()
    )


def _row(key: Key) -> list[str]:
    return [f"`{key.name}`", key.kind, _default(key, key.default), _range(key), _APPLIES[key.applies], key.meaning]


def _range(key: Key) -> str:
    if key.choices and key.kind == "text":
        return ", ".join(key.choices)
    return f"{key.bound(key.low)} to {key.bound(key.high)}" if key.high else ""


def _default(key: Key, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case None | ():
            return ""
        case float() if key.kind == "duration":
            return key.bound(value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def main() -> None:
    for name, written in (("cli.md", with_commands), ("configuration.md", with_settings)):
        page = DOCS / name
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
