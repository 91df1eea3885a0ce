"""The numbered scripts of a schema, `<engine>/schema/0001_jobs.sql` and so on, in the names of one installation.

What `holdfast migrate` executes and what `holdfast migrate --sql` prints is the same text.
"""

from collections.abc import Callable
from importlib import resources

from msgspec import Struct


class Migration(Struct, frozen=True, kw_only=True):
    """One step of a schema. Its last statement records that it was taken, so it is taken once."""

    number: int
    name: str
    sql: str


def read_migrations(engine: str, *, record: str, named: Callable[[str], str]) -> tuple[Migration, ...]:
    """The steps of an engine's schema in their order. In `record`, which is added to each, `:number` is its own."""
    steps: list[Migration] = []
    for entry in resources.files("holdfast.queues.engines").joinpath(f"{engine}/schema").iterdir():
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        script = entry.read_text(encoding="utf-8").rstrip("\n")
        sql = f"{script}\n\n{record.replace(':number', str(int(number)))}\n"
        steps.append(Migration(number=int(number), name=name, sql=named(sql)))
    return tuple(sorted(steps, key=lambda step: step.number))
