"""The workers that a Redis server has heard of, and what an operator asks of them."""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.clock import span_us
from holdfast.queues.contract import WorkerRegistry, silence_allowed_s
from holdfast.queues.engines.redis.connections import RedisConnections, Script
from holdfast.queues.engines.tables.rows import order, workers
from holdfast.values import StopOrder, WorkerReport, WorkerView

BEAT: Final = Script("room", "beat")
ORDER: Final = Script("room", "order")
LEAVE: Final = Script("leave")
WORKERS: Final = Script("workers")


class RedisRegistry(WorkerRegistry):
    """The workers' side of `RedisBackend`."""

    connections: RedisConnections

    def beat(self, report: WorkerReport) -> StopOrder | None:
        allowed = span_us(silence_allowed_s(report))
        return _order(self.connections.run(BEAT, report.id, msgspec.json.encode(report), allowed))

    def order_of(self, worker_id: str) -> StopOrder | None:
        return _order(self.connections.call("HGET", f"{self.connections.base}worker:{worker_id}", "order"))

    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        return bool(self.connections.run(ORDER, worker_id, order.value))

    def leave(self, worker_id: str) -> None:
        self.connections.run(LEAVE, worker_id)

    def workers(self) -> Sequence[WorkerView]:
        now, rows = self.connections.run(WORKERS)
        return workers([(report, int(heard_at), _text(stored)) for report, heard_at, stored in rows], now)


def _order(stored: bytes | None) -> StopOrder | None:
    return order(_text(stored))


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode()
