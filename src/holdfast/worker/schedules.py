"""Runs a `CronRunner`: in a thread of a worker, or in the foreground together with the jobs that run inline."""

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from holdfast.cron.runner import CronRunner
from holdfast.errors import BackendUnavailable
from holdfast.worker.loop import WorkerLoop

log = logging.getLogger("holdfast.cron")

INLINE_LOOK_S: Final = 1.0
STOP_S: Final = 10.0


class ScheduleThread:
    """Fires schedules inside the `with` block, while the program does something else."""

    def __init__(self, runner: CronRunner) -> None:
        self._runner = runner
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-schedules", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        # A commit in progress finishes. One that hangs on the engine is applied or not, and both are safe.
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        self._runner.run(self._stop.wait)


class ScheduleDaemon:
    """Fires schedules until it is stopped, and runs the inline jobs of all runners on the main thread."""

    def __init__(self, runner: CronRunner, loop: Callable[[Sequence[str]], WorkerLoop]) -> None:
        self._runner = runner
        self._loop = loop
        self._running: WorkerLoop | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Run until `stop` is called, from a signal handler or another thread."""
        with ScheduleThread(self._runner):
            while not self._stopped.wait(INLINE_LOOK_S):
                if queues := self._runner.inline_queues:
                    self._run_inline(queues)

    def _run_inline(self, queues: Sequence[str]) -> None:
        try:
            self._running = self._loop(queues)
            if not self._stopped.is_set():
                self._running.run()
        except Exception as problem:
            # One outage must not end the daemon; the runner in the thread goes on too.
            expected = isinstance(problem, BackendUnavailable)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "inline jobs cannot be run: %s; retrying in %g s",
                problem,
                INLINE_LOOK_S,
                exc_info=None if expected else problem,
            )

    def stop(self) -> None:
        """Stop firing schedules. A running job finishes first."""
        self._stopped.set()
        if self._running is not None:
            self._running.stop()
