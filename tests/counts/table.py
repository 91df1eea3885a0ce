"""The table of counted work: reading and writing it, comparing it with what was counted, and showing it on a page."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

Row = dict[str, list[int] | float]
"""What one operation costs, by kind of work: one count for each size of batch, or one number for each job."""
Work = dict[str, Row]
"""The rows of one engine, by operation."""
Table = dict[str, Work]

PATH = Path(__file__).with_name("counted_work.toml")
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
UPDATE_VARIABLE = "HOLDFAST_UPDATE_COUNTS"
UPDATE = f"{UPDATE_VARIABLE}=1 ./test tests/counts"
NAMES = {
    "memory": "Memory",
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "mysql": "MariaDB",
    "redis": "Redis (Valkey)",
}

_HEAD = f"""\
# How much work each operation does on each engine, for batches of these sizes: docs/performance.md, "Counted work".
# A change in these numbers is a change in performance, and belongs in the commit that causes it. To rewrite them:
#   {UPDATE}
"""
_section_pattern = re.compile(r"(?<=<!-- counted work: begin -->\n).*?(?=<!-- counted work: end -->)", re.DOTALL)


def load() -> Table:
    return tomllib.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def save(table: Table) -> None:
    parts = [_HEAD]
    for engine in NAMES:
        for operation, row in table.get(engine, {}).items():
            lines = [f"{kind} = {value}" for kind, value in row.items()]
            parts.append("\n".join([f"[{engine}.{operation}]", *lines, ""]))
    PATH.write_text("\n".join(parts), encoding="utf-8")


def slope(sizes: Sequence[int], counts: Sequence[int]) -> float:
    """The work for each job: what is added between the two largest batches."""
    return round((counts[-1] - counts[-2]) / (sizes[-1] - sizes[-2]), 2)


def differences(expected: Work, counted: Work, *, apart_from: Collection[str] = ()) -> list[str]:
    """One line for each number that is not what the table says, apart from these kinds of work."""
    return [
        f"{operation}: {kind} was {before.get(kind)}, is {now.get(kind)}"
        for operation in dict.fromkeys([*expected, *counted])
        for before, now in [(expected.get(operation, {}), counted.get(operation, {}))]
        for kind in dict.fromkeys([*before, *now])
        if kind not in apart_from and before.get(kind) != now.get(kind)
    ]


def with_table(page: str, table: Table) -> str:
    """The page with the table between its two marks."""
    assert _section_pattern.search(page), "the page has no marks for the table"
    return _section_pattern.sub(lambda _: _markdown(table), page)


def _markdown(table: Table) -> str:
    return "\n".join(_engine_table(NAMES[engine], work) for engine, work in table.items())


def _engine_table(name: str, work: Work) -> str:
    kinds = list(dict.fromkeys(kind for row in work.values() for kind in row if kind != "sizes"))
    head = [name, *(kind.replace("_per_job", " per job").replace("_", " ") for kind in kinds)]
    lines = [_line(head), "|---" * len(head) + "|\n"]
    lines += [
        _line([operation.replace("_", " "), *(_cell(row, kind) for kind in kinds)]) for operation, row in work.items()
    ]
    return "".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n"


def _cell(row: Mapping[str, list[int] | float], kind: str) -> str:
    value, sizes = row.get(kind), row.get("sizes")
    if not isinstance(value, list):
        return "" if value is None else f"{value:,.10g}"
    if not isinstance(sizes, list):
        return f"{value[0]:,}"
    per_job = slope(sizes, value)
    per_batch = round(value[-2] - per_job * sizes[-2], 2)
    return f"{per_batch:,.10g} + {per_job:,.10g} n" if per_job else f"{value[-1]:,}"
