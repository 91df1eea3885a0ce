"""`Caretaker`: the worker's thread for what is not urgent: maintenance, heartbeats, stop orders, progress, output."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.queues.contract import Engine
from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobLease, Progress, StopOrder, WorkerReport
from holdfast.worker.circuits import QueueCircuits
from holdfast.worker.live_output import LiveOutputs
from holdfast.worker.maintenance import Maintenance, Timer

log = logging.getLogger("holdfast.caretaker")

BEAT_EVERY_S: Final = 5.0
CHECK_EVERY_S: Final = 1.0
PROGRESS_EVERY_S: Final = 0.25
# Less than CHECK_EVERY_S, since timers are jittered: due at every check, but not each time that progress wakes us.
REPORT_EVERY_S: Final = 0.8


class Caretaker:
    """Everything here may fail and is retried: no job depends on it.

    A heartbeat is also sent soon after the number of running jobs has changed, so that `worker list` shows the truth
    about a job that has just started.
    """

    def __init__(
        self,
        engine: Engine,
        maintenance: Maintenance,
        outputs: LiveOutputs,
        circuits: QueueCircuits,
        *,
        worker_id: str,
        report: Callable[[], WorkerReport],
        running: Callable[[], int],
        on_order: Callable[[StopOrder], None],
    ) -> None:
        self._engine = engine
        self._registry = WorkerRegistry(engine.state)
        self._maintenance = maintenance
        self._outputs = outputs
        self._circuits = circuits
        self._worker_id = worker_id
        self._report = report
        self._running = running
        self._on_order = on_order
        self._beat = Timer(engine.clock, BEAT_EVERY_S)
        self._change = Timer(engine.clock, REPORT_EVERY_S)
        self._output = Timer(engine.clock, REPORT_EVERY_S)
        self._reported_running = 0
        self._progress: dict[tuple[str, int], tuple[JobLease, Progress]] = {}
        self._wake = threading.Event()
        self.answered_at = time.monotonic()
        self.failing_since: float | None = None
        self._is_over = False
        self._beats_now = False
        self._obeyed: StopOrder | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-caretaker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def progressed(self, lease: JobLease, progress: Progress) -> None:
        """Store a job's progress soon; of several reports, only the latest."""
        self._progress[lease.id, lease.delivery] = (lease, progress)
        self._wake.set()

    def beat_now(self) -> None:
        """Send a heartbeat now."""
        self._beats_now = True
        self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Remove the worker from the registry and end the thread, or give up after `timeout_s`."""
        self._is_over = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_over:
            self._try(self._maintenance.run_due)
            self._try(self._keep_in_touch)
            self._try(self._report_progress)
            if self._output.is_due():
                self._try(self._outputs.report)
            self._wake.wait(PROGRESS_EVERY_S if self._progress else CHECK_EVERY_S)
            self._wake.clear()
        self._try(self._report_progress)
        self._try(self._circuits.note)
        self._try(lambda: self._registry.leave(self._worker_id))

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BackendUnavailable as problem:
            log.debug("engine unavailable: %s", problem)
        except BackendError as problem:
            log.warning("maintenance failed, retrying: %s", problem)
        except Exception:
            log.exception("maintenance failed, retrying")

    def _keep_in_touch(self) -> None:
        try:
            order = self._ask_for_orders()
        except BackendUnavailable:
            self.failing_since = self.failing_since or time.monotonic()
            raise
        self.answered_at, self.failing_since = time.monotonic(), None
        self._circuits.answered()
        if order is not None and order is not self._obeyed:
            self._obeyed = order
            self._on_order(order)
        self._circuits.note()

    def _ask_for_orders(self) -> StopOrder | None:
        """The stop order for this worker, if there is one. A heartbeat also returns it."""
        has_changed = self._running() != self._reported_running and self._change.is_due()
        if not (self._beat.is_due() or self._beats_now or has_changed):
            return self._registry.order_of(self._worker_id)
        self._beats_now = False
        report = self._report()
        order = self._registry.beat(report)
        self._reported_running = report.running
        return order

    def _report_progress(self) -> None:
        reports = [self._progress.pop(key) for key in list(self._progress)]
        if reports:
            self._engine.report_progress(reports)
