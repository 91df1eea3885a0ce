"""`LiveOutputs`: reports to the engine what running jobs have printed."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.queues.contract import LIVE_OUTPUT_BYTES, Engine
from holdfast.values import JobLease, LiveOutput
from holdfast.worker.executors.process import Flight

# Most jobs finish before that, and their output is part of the settlement.
SHOWN_AFTER_S: Final = 1.0


class LiveOutputs:
    """Checks the running jobs from time to time, so that short jobs cost nothing."""

    def __init__(self, backend: Engine, running: Callable[[], Sequence[Flight]]) -> None:
        self._backend = backend
        self._running = running
        self._reported: dict[int, int] = {}
        """The number of bytes of each job's output that the engine has, by the number of the flight."""

    def report(self) -> None:
        """Send the engine what was printed since the last report."""
        started_by = time.monotonic() - SHOWN_AFTER_S
        reported: dict[int, int] = {}
        reports: list[tuple[JobLease, LiveOutput]] = []
        for flight in self._running():
            if flight.printed is None or flight.started_at > started_by:
                continue
            before = self._reported.get(flight.number, 0)
            latest = flight.printed.latest(LIVE_OUTPUT_BYTES) if flight.printed.total > before else None
            if latest is not None:
                reports.append((flight.lease, latest))
            reported[flight.number] = before if latest is None else latest.end
        if reports:
            self._backend.report_output(reports)
        self._reported = reported
