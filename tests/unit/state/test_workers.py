"""The worker registry on cells: what another version of Holdfast wrote, and what operators ask at the same time."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from holdfast.clock import ManualClock
from holdfast.queues.engines.memory.connections import MemoryStore
from holdfast.queues.engines.memory.state import MemoryState
from holdfast.state.workers import ORDERS, SHOW_LOST_S, WORKERS, WorkerRegistry
from holdfast.values import Put, StopOrder, WorkerReport, Write


def report(id: str) -> WorkerReport:
    return WorkerReport(
        id=id,
        host="ship",
        pid=1,
        version="0",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        queues=("default",),
        handlers=(),
        processes=1,
        slots=1,
        beat_every_s=10,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(clock: ManualClock) -> MemoryState:
    return MemoryState(MemoryStore(), clock)


@pytest.mark.parametrize("newer", [b'{"id": "new", "host": 7}', b'{"v": 2}', b"not JSON", b"\xff", b"[" * 50_000])
def test_a_report_that_cannot_be_read_hides_only_itself(state: MemoryState, clock: ManualClock, newer: bytes) -> None:
    registry = WorkerRegistry(state)
    registry.beat(report("old"))
    state.write([Put(kind=WORKERS, key="new", value=newer, ttl=SHOW_LOST_S)])
    assert [view.report.id for view in registry.all()] == ["old"]
    assert registry.order_stop("new", StopOrder.DRAIN)
    assert registry.order_of("new") is StopOrder.DRAIN
    clock.advance(2 * SHOW_LOST_S)
    assert state.sweep() == 3


def test_more_than_this_version_knows_is_left_out_of_a_report(state: MemoryState) -> None:
    registry = WorkerRegistry(state)
    registry.beat(report("w"))
    [cell] = state.read(WORKERS)
    state.write([Put(kind=WORKERS, key="w", value=cell.value[:-1] + b', "mood": "merry"}', ttl=SHOW_LOST_S + 30)])
    assert [view.report for view in registry.all()] == [report("w")]


@pytest.mark.parametrize("order", [b"dance", b"\xff"])
def test_an_order_of_a_newer_version_is_not_followed(state: MemoryState, order: bytes) -> None:
    registry = WorkerRegistry(state)
    registry.beat(report("w"))
    state.write([Put(kind=ORDERS, key="w", value=order)])
    assert registry.order_of("w") is None
    assert registry.beat(report("w")) is None
    assert [view.order for view in registry.all()] == [None]
    assert registry.order_stop("w", StopOrder.DRAIN)
    assert registry.order_of("w") is StopOrder.DRAIN


def test_the_more_urgent_of_two_simultaneous_orders_wins(clock: ManualClock) -> None:
    class Raced(MemoryState):
        """Another operator writes between the read and the write."""

        is_raced = False

        def write(self, writes: Sequence[Write]) -> list[int] | None:
            if isinstance(writes[0], Put) and writes[0].kind == ORDERS and not self.is_raced:
                self.is_raced = True
                WorkerRegistry(self).order_stop("w", StopOrder.NOW)
            return super().write(writes)

    registry = WorkerRegistry(Raced(MemoryStore(), clock))
    registry.beat(report("w"))
    assert registry.order_stop("w", StopOrder.DRAIN)
    assert registry.order_of("w") is StopOrder.NOW


def test_a_lost_worker_that_reports_again_is_known_at_once(state: MemoryState, clock: ManualClock) -> None:
    registry = WorkerRegistry(state)
    registry.beat(report("w"))
    clock.advance(2 * SHOW_LOST_S)
    assert registry.all() == []
    registry.beat(report("w"))
    assert [view.report.id for view in registry.all()] == ["w"]
