"""What the statements of all parts need: the type that executes them, and rows that a caller's snapshot may lack."""

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.queues.engines.mysql.connections import MysqlConnections, Session, pieces
from holdfast.queues.engines.tables.rows import Row


class MysqlStatements(Protocol):
    """Executes statements: our own session, or a caller's."""

    def run(self, statement: str, values: tuple[Any, ...], /) -> int: ...

    def rows(self, statement: str, values: tuple[Any, ...], /) -> Sequence[Row]: ...

    def insert(self, statement: str, rows: Sequence[Row], /) -> None: ...

    def now(self) -> int: ...


def rows_of_ids(
    session: MysqlStatements, connections: MysqlConnections, statement: str, ids: Sequence[str]
) -> list[Row]:
    """The rows that this statement reads for these ids, the second column of which is a job's number. A caller's
    snapshot may be old, so they are also read outside it; but only the snapshot has the caller's own jobs.
    """

    def read(session: MysqlStatements) -> dict[int, Row]:
        lists = (session.rows(connections.sql(statement), (some,)) for some in pieces(ids))
        return {row[1]: row for rows in lists for row in rows}

    rows = read(session)
    if not isinstance(session, Session):
        rows |= connections.run(read)
    return list(rows.values())
