"""The numbered scripts of a schema, such as `<engine>/schema/0001_jobs.sql`, with the table names of a prefix.

`holdfast migrate` executes the text that `holdfast migrate --sql` prints.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast.errors import BackendError, ConfigError, SchemaTooNew

# Not importlib.resources: importing that takes longer than reading the scripts.
_ENGINES: Final = Path(__file__).parents[1]
_PREFIX: Final = r"[A-Za-z_][A-Za-z0-9_]{0,39}"


class Migration(Struct, frozen=True, kw_only=True):
    """One step of a schema. Its last statement records that it was applied, so it is applied once."""

    number: int
    name: str
    sql: str

    @property
    def statements(self) -> list[str]:
        """The statements of the step, each of which ends at the end of a line."""
        return [statement for statement in self.sql.split(";\n") if statement.strip()]


def read_migrations(engine: str, *, record: str, named: Callable[[str], str]) -> tuple[Migration, ...]:
    """The steps of an engine's schema in order. `record` is appended to each, with `:number` replaced by its number."""
    steps: list[Migration] = []
    for entry in _ENGINES.joinpath(engine, "schema").iterdir():
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        script = entry.read_text(encoding="utf-8").rstrip("\n")
        sql = f"{script}\n\n{record.replace(':number', str(int(number)))}\n"
        steps.append(Migration(number=int(number), name=name, sql=named(sql)))
    return tuple(sorted(steps, key=lambda step: step.number))


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that no table name can start with."""
    if not re.fullmatch(_PREFIX, prefix):
        raise ConfigError(f"{prefix!r} is not a valid table prefix; use up to 40 letters, digits and '_'")


def known_version(version: int, steps: Sequence[Migration], place: object) -> int:
    """The version of a schema; raises if it is newer than this program."""
    if version > (newest := steps[-1].number):
        raise SchemaTooNew(
            f"{place} has schema {version}, written by a newer Holdfast; this program supports up to {newest}: upgrade "
            "Holdfast here"
        )
    return version


def check_current(version: int, steps: Sequence[Migration], place: object) -> None:
    """Refuse a schema that is older or newer than this program."""
    if known_version(version, steps, place) < (newest := steps[-1].number):
        raise BackendError(f"{place} has schema {version}, but this program needs {newest}: run  holdfast migrate")
