"""`RunWatch`: what a job that runs in this process says of itself, on the terminal and for others to see."""

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
KEEP_EVERY_S: Final = 0.5


class RunWatch:
    """Draws how far the job is, and keeps that and what it prints with the engine, where others find it.

    Both is done by a thread of its own and not for every report: a job may make thousands in a second.
    """

    def __init__(self, line: StatusLine, write: Callable[[str], None] | None) -> None:
        self.worker: QueueWorker | None = None
        """Who runs the job."""
        self._line = line
        self._write = write
        self._latest: Progress | None = None
        self._kept: Progress | None = None
        self._output = Output()
        self._known = 0
        self._shown_from = time.monotonic() + SHOWN_AFTER_S
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def progressed(self, job_id: str, progress: Progress) -> None:
        """Hear of progress, on the job's own thread."""
        self._latest = progress
        self._start()

    def printed(self, text: str) -> None:
        """Hear what the job prints, on the thread that does, and write it; until nobody reads that any more."""
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
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._line.clear()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        keep_at = 0.0
        while True:
            if self._latest is not None:
                self._line.show_progress(self._latest)
            if time.monotonic() >= keep_at:
                keep_at = time.monotonic() + KEEP_EVERY_S
                # What could not be kept this time is tried again: nothing but a display depends on it.
                with suppress(HoldfastError):
                    self._keep()
            if self._ended.wait(DRAW_EVERY_S):
                return

    def _keep(self) -> None:
        lease = self.worker.running if self.worker is not None else None
        if self.worker is None or lease is None:
            return
        latest = self._latest
        if latest is not None and latest is not self._kept:
            self.worker.backend.report_progress([(lease, latest)])
            self._kept = latest
        if self._output.total > self._known and time.monotonic() >= self._shown_from:
            output = self._output.latest(LIVE_OUTPUT_BYTES)
            self.worker.backend.report_output([(lease, output)])
            self._known = output.end
