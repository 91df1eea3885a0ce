"""The workers that the engine in MySQL has heard of, and what an operator asks of them."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.clock import span_us
from holdfast.queues.contract import FORGET_LOST_S, WorkerRegistry, silence_allowed_s
from holdfast.queues.engines.mysql.connections import CLOCK, MysqlConnections, Session
from holdfast.queues.engines.tables.rows import order, workers
from holdfast.values import StopOrder, WorkerReport, WorkerView

BEAT: Final = """
    INSERT INTO holdfast_workers (id, heard_at, lost_at, report)
    VALUES (%(id)s, %(now)s, %(now)s + %(allowed)s, %(report)s)
    ON DUPLICATE KEY UPDATE heard_at = VALUES(heard_at), lost_at = VALUES(lost_at), report = VALUES(report)"""

ORDER_OF: Final = "SELECT stop_order FROM holdfast_workers WHERE id = %s"

# An order is never taken back, and never made less urgent.
ORDER_STOP: Final = """
    UPDATE holdfast_workers SET stop_order = CASE WHEN stop_order = 'now' THEN stop_order ELSE %s END WHERE id = %s"""

LEAVE: Final = "DELETE FROM holdfast_workers WHERE id = %s"

WORKERS: Final = "SELECT report, heard_at, stop_order FROM holdfast_workers"

# By their keys: to lock what is not forgotten would make its next beat wait.
FORGOTTEN: Final = f"SELECT id FROM holdfast_workers WHERE lost_at <= {CLOCK} - %s ORDER BY id"
FORGET_LOST: Final = f"DELETE FROM holdfast_workers WHERE id = %s AND lost_at <= {CLOCK} - %s"


class MysqlRegistry(WorkerRegistry):
    """The workers' side of `MysqlBackend`."""

    connections: MysqlConnections
    _sql: Callable[[str], str]

    def beat(self, report: WorkerReport) -> StopOrder | None:
        encoded = msgspec.json.encode(report).decode()
        query = {"id": report.id, "allowed": span_us(silence_allowed_s(report)), "report": encoded}

        def change(session: Session) -> str | None:
            session.run(self._sql(BEAT), query | {"now": session.now()})
            row = session.row(self._sql(ORDER_OF), (report.id,))
            return None if row is None else row[0]

        return order(self.connections.transact(change))

    def order_of(self, worker_id: str) -> StopOrder | None:
        row = self.connections.run(lambda session: session.row(self._sql(ORDER_OF), (worker_id,)))
        return None if row is None else order(row[0])

    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        return self.connections.run(lambda session: session.run(self._sql(ORDER_STOP), (order, worker_id))) == 1

    def leave(self, worker_id: str) -> None:
        self.connections.run(lambda session: session.run(self._sql(LEAVE), (worker_id,)))

    def workers(self) -> Sequence[WorkerView]:
        rows, now = self.connections.run(lambda session: (session.rows(self._sql(WORKERS)), session.now()))
        return workers(rows, now)

    def _forget_lost(self) -> None:
        age = span_us(FORGET_LOST_S)

        def forget(session: Session) -> None:
            for (id,) in session.rows(self._sql(FORGOTTEN), (age,)):
                session.run(self._sql(FORGET_LOST), (id, age))

        self.connections.run(forget)
