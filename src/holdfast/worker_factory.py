"""`WorkerFactory`: builds the workers that run an application's jobs.

Everything that runs jobs is imported when it is needed: most programs only enqueue jobs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.config import Settings
from holdfast.deployment import Opened
from holdfast.extensions import Extensions
from holdfast.handlers import CommandHandler, HandlerRegistry
from holdfast.job import AnyJob
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Signer, Unsigned
from holdfast.state.breakers import Rule
from holdfast.state.facts import COMMAND_FACTS, Facts
from holdfast.values import Progress, WorkerResult

if TYPE_CHECKING:
    from holdfast.cron.runner import CronRunner
    from holdfast.execution.runtime import JobRuntime, OnEnded
    from holdfast.worker import QueueWorker, WorkerLoop
    from holdfast.worker.dead_letters import DeadLetterCopies
    from holdfast.worker.executors.process import Program
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.service import Service
    from holdfast.worker.systemd import Notifier

log = logging.getLogger("holdfast.worker")


class WorkerFactory:
    """Builds workers for any engine from the handlers, extensions and settings of one application."""

    def __init__(
        self,
        registry: HandlerRegistry,
        jobs: Mapping[str, AnyJob],
        commands: CommandHandler,
        extensions: Extensions,
        settings: Settings,
        *,
        version: str,
    ) -> None:
        self._registry = registry
        self._jobs = jobs
        self._commands = commands
        self._extensions = extensions
        self._settings = settings
        self._version = version

    def prepare(self) -> None:
        """Load everything that the settings name. A name that cannot be found is an error now, before any claim."""
        self._extensions.load(self._registry, self._jobs)

    def worker(
        self,
        opened: Opened,
        *,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> "QueueWorker":
        """A worker in this process. `tee` gets a job's output while it runs, `on_progress` its progress reports."""
        from holdfast.worker import QueueWorker

        engine, signer = opened
        _warn_if_unsigned(signer)
        return QueueWorker(
            engine,
            self.runtime(engine, tee=tee, on_progress=on_progress),
            signer,
            retry=self._extensions.retry_policy,
            metrics=self._extensions.metrics,
            clock=engine.clock,
            breaker=self._breaker,
            copies=self._copies(opened),
            limits=self._settings.rates,
        )

    @property
    def _breaker(self) -> Rule:
        """The rule of the circuits of queues."""
        return Rule(failures=self._settings.breaker_failures, cooldown=self._settings.breaker_cooldown)

    def _copies(self, opened: Opened) -> "DeadLetterCopies":
        from holdfast.worker.dead_letters import DeadLetterCopies

        return DeadLetterCopies(opened.engine.envelopes, opened.signer, self._settings.dead_letters)

    def runtime(
        self,
        engine: Engine,
        *,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
        on_ended: "OnEnded | None" = None,
    ) -> "JobRuntime":
        """A runtime that runs single attempts in this process."""
        from holdfast.execution.runtime import JobRuntime

        self.prepare()
        return JobRuntime(
            self._registry,
            clock=engine.clock,
            tee=tee,
            on_progress=on_progress,
            transactions=engine.transaction,
            middleware=self._extensions.middleware,
            on_ended=on_ended,
        )

    def loop(
        self,
        worker: "QueueWorker",
        queues: Sequence[str] = (),
        *,
        burst: bool = False,
        max_jobs: int = 0,
        on_result: Callable[[WorkerResult], None] | None = None,
    ) -> "WorkerLoop":
        """A loop in which a worker processes one job after another; `run()` it. Default: the default queue."""
        from holdfast.worker import WorkerLoop

        return WorkerLoop(
            worker,
            queues or (self._settings.default_queue,),
            poll_interval_s=self._settings.poll_interval,
            reap_interval_s=min(self._settings.reap_interval, self._settings.lease / 2),
            burst=burst,
            max_jobs=max_jobs,
            on_result=on_result,
        )

    def service(
        self,
        opened: Opened,
        program: "Program",
        options: "WorkerOptions",
        *,
        on_results: Callable[[Sequence[WorkerResult]], None] | None = None,
        notifier: "Notifier | None" = None,
        probes: tuple[str, int] | None = None,
        session_dir: Path | None = None,
        schedules: "CronRunner | None" = None,
    ) -> "Service":
        """A worker that handles signals and runs its jobs in child processes, which run this program.

        The program must know the same handlers. With `probes`, the worker serves them at this host and port. Workers
        that share a `session_dir` notice each other's deaths. With `schedules`, the worker also fires schedules, and
        processes the queues of the jobs that run inline.
        """
        from holdfast.worker.admission import Admission
        from holdfast.worker.reporting import Reporter
        from holdfast.worker.service import Service
        from holdfast.worker.supervisor import Supervisor

        engine, signer = opened
        _warn_if_unsigned(signer)
        if self._commands.allowed:
            # Producers refuse commands that no worker would run: publish which ones this worker allows.
            Facts(engine.state).add(COMMAND_FACTS, self._commands.allowed)
        if probes is not None:
            self._extensions.count_for_prometheus()
        self.prepare()
        metrics = self._extensions.metrics
        if schedules is not None:
            inline = {queue: 1 for queue in schedules.prepare() if queue not in options.queues}
            options = msgspec.structs.replace(options, queues={**options.queues, **inline})
        supervisor = Supervisor(
            engine,
            program=program,
            registry=self._registry,
            admission=Admission(signer, self._registry, engine.clock),
            retry=self._extensions.retry_policy,
            copies=self._copies(opened),
            reporter=Reporter(metrics, self._registry, listener=on_results),
            options=options,
            version=self._version,
            limits=self._settings.rates,
            breaker=self._breaker,
            notifier=notifier,
            session_dir=session_dir,
        )
        return Service(supervisor, engine, metrics, probes=probes, schedules=schedules)


def _warn_if_unsigned(signer: Signer) -> None:
    if isinstance(signer, Unsigned):
        # Critical, so that it is printed and logged at every log level.
        log.critical(
            "signatures are not verified (verify = false): anyone who can write to the database can run any registered "
            "handler; to verify them, remove verify and allow-unsigned from the settings"
        )
