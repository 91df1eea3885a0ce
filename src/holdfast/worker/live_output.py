"""`LiveOutputs`: what jobs that run for a while have printed, for the engine to show."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.queues.contract import LIVE_OUTPUT_BYTES, Engine
from holdfast.values import JobLease, LiveOutput
from holdfast.worker.executors.process import Flight

# Most jobs are over by then, and their verdicts tell their output.
SHOWN_AFTER_S: Final = 1.0


class LiveOutputs:
    """Looks at what is running now and then, so that short jobs have nothing to do with it."""

    def __init__(self, backend: Engine, running: Callable[[], Sequence[Flight]]) -> None:
        self._backend = backend
        self._running = running
        self._passed_on: dict[int, int] = {}
        """How much of each job's output the engine knows, by the number of the flight."""

    def pass_on(self) -> None:
        """Tell the engine what was printed since the last time."""
        begun_by = time.monotonic() - SHOWN_AFTER_S
        known: dict[int, int] = {}
        reports: list[tuple[JobLease, LiveOutput]] = []
        for flight in self._running():
            if flight.printed is None or flight.started_at > begun_by:
                continue
            before = self._passed_on.get(flight.number, 0)
            latest = flight.printed.latest(LIVE_OUTPUT_BYTES) if flight.printed.total > before else None
            if latest is not None:
                reports.append((flight.lease, latest))
            known[flight.number] = before if latest is None else latest.end
        if reports:
            self._backend.report_output(reports)
        self._passed_on = known
