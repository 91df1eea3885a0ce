"""Checks the schedules in the database: whether a runner is running, and which problems they have."""

from collections.abc import Sequence

from holdfast.cli.cronjob.troubles import condition_of
from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.queues.contract import Engine
from holdfast.values import WorkerState, WorkerView


def schedule_findings(engine: Engine, workers: Sequence[WorkerView], environment: str) -> Findings:
    """Find schedules that do not run."""
    condition = condition_of(engine, environment)
    for trouble in condition.troubles:
        report = warning if trouble.is_warning else error
        yield report("schedules", trouble.message, trouble.advice)
    if not condition or condition.troubles:
        return
    if any(view.state is WorkerState.LIVE for view in workers):
        yield fine("schedules", str(condition))
    else:
        yield note(
            "schedules",
            f"{condition}; no worker is running: start one, or use  holdfast cronjob daemon  or  cronjob run --due",
        )
