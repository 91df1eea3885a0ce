"""`Service`: a worker as a program. It handles signals, serves the probes, adopts orphans and runs the supervisor.

The command line, Django and programs that embed a worker all start it here; they differ only in what they print.
"""

import gc
import os
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypeAlias

from holdfast.cron.runner import CronRunner
from holdfast.metrics import MetricsCollector
from holdfast.metrics.levels import QueueLevels, WorkerLevels
from holdfast.queues.contract import Engine
from holdfast.units import counted, format_duration
from holdfast.values import CircuitState, StopOrder
from holdfast.worker.executors.guarded_program import orphans_adopted
from holdfast.worker.probes import Checks, ProbeServer
from holdfast.worker.queue_depth import QueueDepth
from holdfast.worker.schedules import ScheduleThread
from holdfast.worker.signals import handling_signals
from holdfast.worker.supervisor import Supervisor

GC_THRESHOLD: Final = 20_000

Follow: TypeAlias = Callable[
    [
        Callable[[], WorkerLevels],
        Callable[[], Mapping[str, QueueLevels] | None],
        Callable[[], Mapping[str, CircuitState]],
    ],
    None,
]
"""The method `follow` of a collector that exports gauges: those of the worker, of the queues and of the circuits."""


class Service:
    """Runs a supervisor until it is stopped: by a signal, by `worker stop`, or because its work is done."""

    def __init__(
        self,
        supervisor: Supervisor,
        engine: Engine,
        metrics: MetricsCollector,
        *,
        probes: tuple[str, int] | None = None,
        schedules: CronRunner | None = None,
    ) -> None:
        self.supervisor = supervisor
        self._engine = engine
        self._metrics = metrics
        self._probes = probes
        self._schedules = schedules

    def run(self, on_started: Callable[[str | None], None], on_stopped: Callable[[], None]) -> int:
        """Run on the main thread and return the exit code. `on_started` receives the URL of the probes, if there are
        any. From then on, signals stop the worker.
        """
        supervisor = self.supervisor
        with ExitStack() as stack:
            stack.enter_context(orphans_adopted())
            url = None
            if self._probes is not None:
                server = stack.enter_context(ProbeServer(*self._probes, checks=self._checks()))
                url = f"http://{server.address[0]}:{server.address[1]}"
            # Before anything is printed: a program that reads that the worker is running may stop it at once.
            stack.enter_context(handling_signals(self._answer_to_signals(), _stop_signals()))
            on_started(url)
            stack.callback(on_stopped)
            if self._schedules is not None:
                stack.enter_context(ScheduleThread(self._schedules))
            with _rare_collections():
                supervisor.run()
        return 1 if supervisor.unsettled else 0

    def _checks(self) -> Checks:
        return Checks(live=self.supervisor.liveness, ready=self.supervisor.readiness, metrics=self._document())

    def _document(self) -> Callable[[], tuple[bytes, str]] | None:
        """The function that renders `/metrics`, if the collector has one. Our collector adds the worker's gauges."""
        follow: Follow | None = getattr(self._metrics, "follow", None)
        if follow is not None:
            depth = QueueDepth(self._engine, self.supervisor.options.queues)
            follow(self.supervisor.levels, depth.read, depth.circuits)
        render: Callable[[], tuple[bytes, str]] | None = getattr(self._metrics, "render", None)
        return render

    def _answer_to_signals(self) -> Callable[[signal.Signals], None]:
        """The first signal drains: running jobs finish. The second one stops and releases them."""
        supervisor = self.supervisor
        # The second signal may arrive before the supervisor has acted on the first.
        is_asked = False

        def answer(number: signal.Signals) -> None:
            nonlocal is_asked
            if is_asked or supervisor.is_draining:
                _print_now("stopping the running jobs and requeueing them")
                supervisor.stop(StopOrder.NOW)
            else:
                is_asked = True
                _print_now(_draining(supervisor.running, supervisor.options.grace_s))
                supervisor.stop(StopOrder.DRAIN)

        return answer


def _draining(running: int, grace_s: float) -> str:
    if not running:
        return "stopping"
    limit = f" within {format_duration(grace_s)}" if grace_s else ""
    them = "it" if running == 1 else "them"
    return f"stopping: finishing {counted(running, 'running job')}{limit}; press Ctrl-C again to requeue {them}"


def _stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop a worker. Closing the terminal is one of them, unless it was started with nohup."""
    asked = (signal.SIGTERM, signal.SIGINT)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def _print_now(sentence: str) -> None:
    """Print to stderr without taking the lock of `sys.stderr`, which the main thread may hold."""
    with suppress(OSError):
        os.write(2, f"{sentence}\n".encode())


@contextmanager
def _rare_collections() -> Generator[None]:
    """Run the garbage collector rarely: the thousands of small objects of a batch contain no cycles."""
    was = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *was[1:])
    try:
        yield
    finally:
        gc.set_threshold(*was)
        gc.unfreeze()
