"""`Caretaker`: the worker's thread for what nobody waits for: maintenance, heartbeats, what jobs say, orders."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.queues.contract import Engine
from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobLease, Progress, StopOrder, WorkerReport
from holdfast.worker.live_output import LiveOutputs
from holdfast.worker.maintenance import Maintenance, Timer

log = logging.getLogger("holdfast.caretaker")

BEAT_EVERY_S: Final = 5.0
LOOK_EVERY_S: Final = 1.0
PROGRESS_EVERY_S: Final = 0.25
# Due at each look, however irregular a timer is, but not each time that progress wakes us.
TELL_EVERY_S: Final = 0.8


class Caretaker:
    """Everything here may fail and is tried again: no job depends on it."""

    def __init__(
        self,
        engine: Engine,
        maintenance: Maintenance,
        outputs: LiveOutputs,
        *,
        worker_id: str,
        report: Callable[[], WorkerReport],
        on_order: Callable[[StopOrder], None],
    ) -> None:
        self._engine = engine
        self._registry = WorkerRegistry(engine.state)
        self._maintenance = maintenance
        self._outputs = outputs
        self._worker_id = worker_id
        self._report = report
        self._on_order = on_order
        self._beat = Timer(engine.clock, BEAT_EVERY_S)
        self._tell = Timer(engine.clock, TELL_EVERY_S)
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
        """Keep how far a job is, soon; of several reports the latest."""
        self._progress[lease.id, lease.delivery] = (lease, progress)
        self._wake.set()

    def beat_now(self) -> None:
        """Tell at once what has changed."""
        self._beats_now = True
        self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Say goodbye and end; an engine that does not answer is not waited for long."""
        self._is_over = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_over:
            self._try(self._maintenance.run_due)
            self._try(self._keep_in_touch)
            self._try(self._pass_progress_on)
            if self._tell.is_due():
                self._try(self._outputs.pass_on)
            self._wake.wait(PROGRESS_EVERY_S if self._progress else LOOK_EVERY_S)
            self._wake.clear()
        self._try(self._pass_progress_on)
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
        if order is not None and order is not self._obeyed:
            self._obeyed = order
            self._on_order(order)

    def _ask_for_orders(self) -> StopOrder | None:
        if self._beat.is_due() or self._beats_now:
            self._beats_now = False
            return self._registry.beat(self._report())
        return self._registry.order_of(self._worker_id)

    def _pass_progress_on(self) -> None:
        reports = [self._progress.pop(key) for key in list(self._progress)]
        if reports:
            self._engine.report_progress(reports)
