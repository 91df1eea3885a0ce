"""What the statements of all parts need: the server's clock, arrays of numbers, and the type that executes them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from holdfast.queues.engines.tables.rows import Row

# The server's clock, read each time the expression is evaluated.
CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# The same, read once per statement.
NOW_IS: Final = f"clock AS MATERIALIZED (SELECT {CLOCK} AS now)"
NOW: Final = "(SELECT now FROM clock)"


class Rows(Protocol):
    """The rows that a statement returned."""

    def fetchall(self) -> Sequence[Row]: ...


class PostgresStatements(Protocol):
    """Executes statements: one of our connections, or a caller's."""

    def execute(self, query: bytes, params: dict[str, Any], /, *, binary: bool = False) -> Rows: ...


def numbers(values: Iterable[object]) -> str:
    """An array of integers, or of "NULL", in the server's syntax. Letting the driver format each one costs more."""
    return f"{{{','.join(map(str, values))}}}"
