"""`holdfast cancel`: cancel waiting and running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.changing import UNKNOWN, Change, Result, make_change, only_in, view_of, with_children
from holdfast.cli.documents import CancelDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED, TIME_IS_UP
from holdfast.cli.options import WithWait, json_option, url_option, wait_option
from holdfast.cli.output import note
from holdfast.cli.progress import StatusLine
from holdfast.cli.selecting import change_options, choice_options
from holdfast.cli.waiting import looks
from holdfast.values import FINAL_STATES, CancelAnswer, JobState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

UNFINISHED: Final = tuple(state for state in JobState if state not in FINAL_STATES)


@click.command(cls=WithWait)
@choice_options
@click.option("--reason", default="", metavar="TEXT", help="Reason, stored with the job.")
@wait_option(alone="0", help="Wait up to this long for running jobs to stop.")
@change_options
@url_option
@json_option
def cancel(reason: str, wait_s: float | None, **given: Any) -> int:
    """Cancel waiting jobs immediately; ask workers to stop running ones.

    Pass - as ID to read ids from stdin, one per line.

    \b
    Examples:
      holdfast cancel job1
      holdfast cancel job1 job2 --reason "ordered twice" --wait 1m
      holdfast cancel --where 'queue:mail tag:import age:>1h' --dry-run
    """

    def act(engine: Engine, job_ids: Sequence[str]) -> list[Result]:
        answers = {job_id: engine.cancel(job_id, reason) for job_id in job_ids}
        if wait_s is not None:
            _wait(engine, [job_id for job_id, answer in answers.items() if answer is CancelAnswer.REQUESTED], wait_s)
        results = [_result(engine, job_id, answer, waited=wait_s is not None) for job_id, answer in answers.items()]
        return with_children(engine, results)

    change = Change(
        verb="cancel",
        act=act,
        within=UNFINISHED,
        # To cancel a job twice is not an error.
        refusal=only_in((*UNFINISHED, JobState.CANCELLED)),
        nothing="no matching job can be cancelled",
        question="cancel {}",
        worst=max,
    )
    return make_change(change, **given)


def _wait(engine: Engine, job_ids: list[str], limit_s: float) -> None:
    """Wait until none of the jobs is running, or the time is up."""
    line = StatusLine()
    try:
        for _ in looks(limit_s):
            job_ids = [job_id for job_id in job_ids if _state(engine, job_id) is JobState.PROCESSING]
            if not job_ids:
                break
            line.show(f"{len(job_ids)} running…")
    except KeyboardInterrupt:
        line.clear()
        note("no longer waiting; the cancellation requests remain in effect")
        raise
    finally:
        line.clear()


def _state(engine: Engine, job_id: str) -> JobState | None:
    job = view_of(engine, job_id)
    return None if job is None else job.state


def _result(engine: Engine, job_id: str, answer: CancelAnswer, *, waited: bool) -> Result:
    state = JobState.CANCELLED if answer is CancelAnswer.CANCELLED else _state(engine, job_id)
    code, sentence = _outcome(answer, state, waited=waited)
    return Result(job_id, CancelDocument(id=job_id, answer=answer, state=state), code, sentence)


def _outcome(answer: CancelAnswer, state: JobState | None, *, waited: bool) -> tuple[int, str]:
    shown = "deleted" if state is None else state
    match answer:
        case CancelAnswer.CANCELLED:
            return 0, "cancelled"
        case CancelAnswer.REQUESTED if state is JobState.CANCELLED:
            return 0, "cancelled; its worker has stopped it"
        case CancelAnswer.REQUESTED if not waited:
            return 0, "cancellation requested; its worker will stop it within seconds"
        case CancelAnswer.REQUESTED if state is JobState.PROCESSING:
            return TIME_IS_UP, "is still running; its worker has been asked to stop it"
        case CancelAnswer.REQUESTED:
            return REFUSED, f"is {shown}; it finished before its worker received the request"
        case CancelAnswer.TOO_LATE if state is JobState.CANCELLED:
            return 0, "already cancelled; nothing was changed"
        case CancelAnswer.TOO_LATE:
            return REFUSED, f"is {shown}; nothing was changed"
        case CancelAnswer.UNKNOWN:
            return NOT_FOUND, UNKNOWN
