"""`WorkerRegistry`: the workers of an installation and their stop orders. For people only: leases alone decide which
worker holds a job.

A worker is a cell that expires a day after the worker counts as lost. The version of the cell is the engine's time of
the last heartbeat. A stop order is a separate cell, so that a heartbeat cannot overwrite it.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.clock import from_us
from holdfast.values import Cell, Drop, Put, StopOrder, WorkerReport, WorkerState, WorkerView

if TYPE_CHECKING:
    from holdfast.queues.contract import SharedState

LOST_AFTER_BEATS: Final = 3
SHOW_LOST_S: Final = 86_400.0
WORKERS: Final = "workers"
ORDERS: Final = "stop-orders"

_decoder = msgspec.json.Decoder(WorkerReport)


class WorkerRegistry:
    """The workers of an installation."""

    def __init__(self, state: "SharedState") -> None:
        self._state = state

    def beat(self, report: WorkerReport) -> StopOrder | None:
        """Store the worker's current report, and return the stop order for it, if there is one."""
        ttl = silence_allowed_s(report) + SHOW_LOST_S
        self._state.write([Put(kind=WORKERS, key=report.id, value=msgspec.json.encode(report), ttl=ttl)])
        return self.order_of(report.id)

    def order_of(self, worker_id: str) -> StopOrder | None:
        """The stop order for this worker, if there is one; a cheap read."""
        cells = self._state.read(ORDERS, [worker_id])
        return _order(cells[0]) if cells else None

    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        """Ask a worker to stop; False if there is no such worker. The more urgent of two orders applies."""
        while True:
            given = self._state.read(ORDERS, [worker_id])
            if not self._state.read(WORKERS, [worker_id]):
                return False
            if given and _order(given[0]) is StopOrder.NOW:
                return True
            version = given[0].version if given else 0
            put = Put(kind=ORDERS, key=worker_id, value=order.encode(), ttl=SHOW_LOST_S, if_version=version)
            if self._state.write([put]) is not None:
                return True

    def leave(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        self._state.write([Drop(kind=WORKERS, key=worker_id), Drop(kind=ORDERS, key=worker_id)])

    def all(self) -> list[WorkerView]:
        """All known workers, the oldest first.

        Reports that a newer version of Holdfast wrote and this one cannot read are left out.
        """
        orders = {cell.key: _order(cell) for cell in self._state.read_all(ORDERS)}
        views = [
            WorkerView(
                report=report, state=_state(report, cell), heard_at=from_us(cell.version), order=orders.get(report.id)
            )
            for cell in self._state.read_all(WORKERS)
            if (report := _report(cell)) is not None
        ]
        return sorted(views, key=lambda view: (view.report.started_at, view.report.id))


def queues_of(view: WorkerView) -> list[str]:
    """The names of the worker's queues, without their weights."""
    return [queue.partition(":")[0] for queue in view.report.queues]


def silence_allowed_s(report: WorkerReport) -> float:
    """The time without a heartbeat after which a worker counts as lost."""
    return LOST_AFTER_BEATS * report.beat_every_s


def _state(report: WorkerReport, cell: Cell) -> WorkerState:
    if cell.expires_in is not None and cell.expires_in < SHOW_LOST_S:
        return WorkerState.LOST
    return WorkerState.DRAINING if report.draining else WorkerState.LIVE


def _report(cell: Cell) -> WorkerReport | None:
    try:
        report = _decoder.decode(cell.value)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # A time without a zone cannot be compared with the others.
    return report if report.started_at.tzinfo is not None else None


def _order(cell: Cell) -> StopOrder | None:
    """The order in a cell, if this version of Holdfast knows it."""
    stored = cell.value.decode(errors="replace")
    return StopOrder(stored) if stored in list(StopOrder) else None
