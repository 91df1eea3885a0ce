"""The workers that the PostgreSQL engine has heard of, and what an operator asks of them."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.clock import span_us
from holdfast.queues.contract import FORGET_LOST_S, WorkerRegistry, silence_allowed_s
from holdfast.queues.engines.postgres.connections import PostgresConnections
from holdfast.queues.engines.postgres.records import NOW, NOW_IS
from holdfast.queues.engines.tables.rows import order, workers
from holdfast.values import StopOrder, WorkerReport, WorkerView

BEAT: Final = f"""
    WITH {NOW_IS}
    INSERT INTO holdfast.workers AS w (id, heard_at, lost_at, report) VALUES (:id, {NOW}, {NOW} + :allowed, :report)
    ON CONFLICT (id) DO UPDATE SET heard_at = excluded.heard_at, lost_at = excluded.lost_at, report = excluded.report
    RETURNING stop_order"""

ORDER_OF: Final = "SELECT stop_order FROM holdfast.workers WHERE id = :id"

# An order is never taken back, and never made less urgent.
ORDER_STOP: Final = """
    UPDATE holdfast.workers SET stop_order = CASE WHEN stop_order = 'now' THEN stop_order ELSE :order END
    WHERE id = :id"""

LEAVE: Final = "DELETE FROM holdfast.workers WHERE id = :id"

WORKERS: Final = f"""
    WITH {NOW_IS} SELECT {NOW}, w.report, w.heard_at, w.stop_order FROM holdfast.workers AS w"""

FORGET_LOST: Final = f"WITH {NOW_IS} DELETE FROM holdfast.workers WHERE lost_at <= {NOW} - :kept"


class PostgresRegistry(WorkerRegistry):
    """The workers' side of `PostgresBackend`."""

    connections: PostgresConnections
    _sql: Callable[[str], bytes]

    def beat(self, report: WorkerReport) -> StopOrder | None:
        query = {
            "id": report.id,
            "allowed": span_us(silence_allowed_s(report)),
            "report": msgspec.json.encode(report).decode(),
        }
        row = self.connections.run(lambda connection: connection.execute(self._sql(BEAT), query).fetchone())
        return None if row is None else order(row[0])

    def order_of(self, worker_id: str) -> StopOrder | None:
        query = {"id": worker_id}
        row = self.connections.run(lambda connection: connection.execute(self._sql(ORDER_OF), query).fetchone())
        return None if row is None else order(row[0])

    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        query = {"id": worker_id, "order": order.value}
        return self.connections.run(lambda connection: connection.execute(self._sql(ORDER_STOP), query).rowcount) == 1

    def leave(self, worker_id: str) -> None:
        self.connections.run(lambda connection: connection.execute(self._sql(LEAVE), {"id": worker_id}))

    def workers(self) -> Sequence[WorkerView]:
        rows = self.connections.run(lambda connection: connection.execute(self._sql(WORKERS)).fetchall())
        return workers([row[1:] for row in rows], rows[0][0]) if rows else ()

    def _forget_lost(self) -> None:
        query = {"kept": span_us(FORGET_LOST_S)}
        self.connections.run(lambda connection: connection.execute(self._sql(FORGET_LOST), query))
