"""`RunWatch`: shows the output and progress of a job in this process, and reports them to the engine."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from holdfast.cli.progress import StatusLine
from holdfast.errors import HoldfastError
from holdfast.execution.output import Output
from holdfast.queues.contract import LIVE_OUTPUT_BYTES
from holdfast.values import Progress
from holdfast.worker import QueueWorker
from holdfast.worker.live_output import SHOWN_AFTER_S

DRAW_EVERY_S: Final = 0.1
REPORT_EVERY_S: Final = 0.5


class RunWatch:
    """Draws the progress of the job, and reports its progress and output to the engine for other processes.

    A thread does both at intervals, because a job may make thousands of reports in a second.
    """

    def __init__(self, line: StatusLine, write: Callable[[str], None] | None) -> None:
        self.worker: QueueWorker | None = None
        """The worker that runs the job."""
        self._line = line
        self._write = write
        self._latest: Progress | None = None
        self._reported: Progress | None = None
        self._output = Output()
        self._reported_end = 0
        self._shown_from = time.monotonic() + SHOWN_AFTER_S
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def progressed(self, job_id: str, progress: Progress) -> None:
        """Receive a progress report, on the job's thread."""
        self._latest = progress
        self._start()

    def printed(self, text: str) -> None:
        """Receive output, on the thread that printed it, and write it until stdout is closed."""
        self._output.write(text)
        self._start()
        try:
            if self._write is not None:
                self._line.pass_by(text, self._write)
        except OSError:
            self._write = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._line.clear()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        report_at = 0.0
        while True:
            if self._latest is not None:
                self._line.show_progress(self._latest)
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + REPORT_EVERY_S
                # A failed report is repeated; only displays depend on it.
                with suppress(HoldfastError):
                    self._report()
            if self._is_over.wait(DRAW_EVERY_S):
                return

    def _report(self) -> None:
        lease = self.worker.running if self.worker is not None else None
        if self.worker is None or lease is None:
            return
        latest = self._latest
        if latest is not None and latest is not self._reported:
            self.worker.backend.report_progress([(lease, latest)])
            self._reported = latest
        if self._output.total > self._reported_end and time.monotonic() >= self._shown_from:
            output = self._output.latest(LIVE_OUTPUT_BYTES)
            self.worker.backend.report_output([(lease, output)])
            self._reported_end = output.end
