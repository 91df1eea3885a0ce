"""The workers that the embedded engine has heard of, and what an operator asks of them."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.clock import Clock, span_us
from holdfast.queues.contract import FORGET_LOST_S, WorkerRegistry, silence_allowed_s
from holdfast.queues.engines.sqlite.connections import SqliteFile
from holdfast.queues.engines.tables.rows import order, workers
from holdfast.values import StopOrder, WorkerReport, WorkerView

BEAT: Final = """
    INSERT INTO holdfast_workers (id, heard_at, lost_at, report) VALUES (:id, :now, :now + :allowed, :report)
    ON CONFLICT (id) DO UPDATE SET heard_at = excluded.heard_at, lost_at = excluded.lost_at, report = excluded.report
    RETURNING stop_order"""

ORDER_OF: Final = "SELECT stop_order FROM holdfast_workers WHERE id = ?"

# An order is never taken back, and never made less urgent.
ORDER_STOP: Final = """
    UPDATE holdfast_workers SET stop_order = CASE WHEN stop_order = 'now' THEN stop_order ELSE :order END
    WHERE id = :id"""

LEAVE: Final = "DELETE FROM holdfast_workers WHERE id = ?"

WORKERS: Final = "SELECT report, heard_at, stop_order FROM holdfast_workers"

IS_ONE_FORGOTTEN: Final = "SELECT 1 FROM holdfast_workers WHERE lost_at <= ? LIMIT 1"

FORGET_LOST: Final = "DELETE FROM holdfast_workers WHERE lost_at <= ?"


class SqliteRegistry(WorkerRegistry):
    """The workers' side of `SqliteBackend`."""

    file: SqliteFile
    clock: Clock
    _sql: Callable[[str], str]

    def beat(self, report: WorkerReport) -> StopOrder | None:
        encoded = msgspec.json.encode(report).decode()
        query = {"id": report.id, "allowed": span_us(silence_allowed_s(report)), "report": encoded}

        def change(connection: sqlite3.Connection, now: int) -> str | None:
            order: str | None = connection.execute(self._sql(BEAT), query | {"now": now}).fetchone()[0]
            return order

        return order(self.file.write(change))

    def order_of(self, worker_id: str) -> StopOrder | None:
        row = self.file.read(lambda connection: connection.execute(self._sql(ORDER_OF), (worker_id,)).fetchone())
        return None if row is None else order(row[0])

    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        query = {"id": worker_id, "order": order}
        return self.file.write(lambda connection, _: connection.execute(self._sql(ORDER_STOP), query).rowcount) == 1

    def leave(self, worker_id: str) -> None:
        self.file.write(lambda connection, _: connection.execute(self._sql(LEAVE), (worker_id,)))

    def workers(self) -> Sequence[WorkerView]:
        rows = self.file.read(lambda connection: connection.execute(self._sql(WORKERS)).fetchall())
        return workers(rows, self.clock.now_us())

    def _forget_lost(self) -> None:
        before = self.clock.now_us() - span_us(FORGET_LOST_S)
        if self.file.read(lambda connection: connection.execute(self._sql(IS_ONE_FORGOTTEN), (before,)).fetchone()):
            self.file.write(lambda connection, _: connection.execute(self._sql(FORGET_LOST), (before,)))
