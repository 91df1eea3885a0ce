"""Workers that exist only in the registry, and jobs held by nobody but the test: no process has to be waited for."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.state.workers import WorkerRegistry
from holdfast.values import AttemptRecord, ErrorInfo, JobLease, Outcome, WorkerReport, WorkerState

from ..faults.processes import DEADLINE_S

T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    """What there is to see, as soon as there is something."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if seen := look():
            return seen
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def report(worker_id: str, **changes: Any) -> WorkerReport:
    """What a worker could say of itself."""
    usual = WorkerReport(
        id=worker_id,
        host="web-1",
        pid=4121,
        version="0.1.0",
        started_at=datetime.now(UTC),
        queues=("default",),
        handlers=("add",),
        processes=2,
        slots=4,
        beat_every_s=600.0,
    )
    return msgspec.structs.replace(usual, **changes)


def lose(registry: WorkerRegistry, worker_id: str, **changes: Any) -> None:
    """Register a worker that reports once and is then lost."""
    registry.beat(report(worker_id, beat_every_s=0.001, **changes))
    until(lambda: [view for view in registry.all() if view.report.id == worker_id and view.state is WorkerState.LOST])


def claim(engine: Engine, queue: str = "default") -> JobLease:
    """The next job of the queue, as soon as there is one."""
    return until(lambda: engine.claim(queue, 1, owner_token=new_owner_token(new_session())))[0]


def attempt(outcome: Outcome = Outcome.SUCCEEDED, *, result: object = None, error: str = "") -> AttemptRecord:
    """The record of a run that took no time."""
    now = time.time_ns() // 1000
    return AttemptRecord(
        outcome=outcome,
        started_us=now,
        ended_us=now,
        result=msgspec.json.encode(result),
        error=ErrorInfo(type="ValueError", message=error) if error else None,
    )
