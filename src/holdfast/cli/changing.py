"""Changing chosen jobs: `retry`, `cancel`, `delete` and `dlq discard` rehearse, ask, act and report in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from holdfast.cli.documents import Document, RehearsalDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import existing
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.selecting import Chosen, chosen, confirm
from holdfast.plaintext import abridged
from holdfast.units import counted
from holdfast.values import JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

MOST_SHOWN: Final = 20
UNKNOWN: Final = "is unknown; see  holdfast list"


class Result(NamedTuple):
    """The result for one job: its document, its exit code, and a sentence that continues the job's id.

    In a summary of many jobs, the sentence ends at its first semicolon.
    """

    id: str
    document: Document
    code: int
    sentence: str


class Change(Struct, frozen=True, kw_only=True):
    """A change to jobs, as one command makes it."""

    verb: str
    # Makes the change to the jobs with these ids.
    act: Callable[[Engine, Sequence[str]], list[Result]]
    # The states in which a search looks for jobs.
    within: tuple[JobState, ...]
    # Why the job would be refused, or None if it would not.
    refusal: Callable[[JobView], str | None]
    # Printed if there is no job to change.
    nothing: str
    # Removes jobs that must not be changed, or raises an error if they were named.
    narrow: Callable[[Engine, Chosen], Chosen] = lambda _, jobs: jobs
    # The question before jobs are changed that were not named by their ids; {} stands for how many.
    question: str | None = None
    noun: str = "job"
    # Chooses the exit code if the jobs have several.
    worst: Callable[[Sequence[int]], int] = min


def make_change(
    change: Change,
    *,
    job_ids: Sequence[str],
    searches: Sequence[str],
    url: str | None,
    dry_run: bool,
    as_json: bool,
    yes: bool = False,
    queue: str | None = None,
    everything: bool | None = None,
) -> int:
    """Choose the jobs, change them or rehearse it, print the results and return the exit code."""
    with existing(url, queue, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        engine = site.engine
        jobs = chosen(engine, job_ids, searches, within=change.within, everything=everything, queue=queue)
        jobs = change.narrow(engine, jobs)
        if dry_run:
            codes = _rehearse(change, engine, jobs, as_json=as_json)
        else:
            if change.question is not None and jobs.is_bulk and jobs.ids:
                confirm(change.question.format(counted(len(jobs.ids), change.noun)), yes=yes)
            results = change.act(engine, jobs.ids)
            codes = [result.code for result in results]
            if as_json:
                write_json([result.document for result in results])
            elif results:
                _print(results)
            else:
                note(change.nothing)
    failures = [code for code in codes if code]
    return change.worst(failures) if failures else 0


def _rehearse(change: Change, engine: Engine, jobs: Chosen, *, as_json: bool) -> list[int]:
    views = {job_id: jobs.found.get(job_id) or view_of(engine, job_id) for job_id in jobs.ids}
    refusals = {job_id: UNKNOWN if job is None else change.refusal(job) for job_id, job in views.items()}
    if as_json:
        write_json(
            [
                RehearsalDocument(
                    id=job_id,
                    state=None if job is None else job.state,
                    would=change.verb,
                    refused=job is not None and refusals[job_id] is not None,
                )
                for job_id, job in views.items()
            ]
        )
    else:
        accepted = [job for job in views.values() if job is not None and refusals[job.id] is None]
        for job in accepted[:MOST_SHOWN]:
            write(f"would {change.verb} {job.id} ({job.state} on {job.queue})")
        if len(accepted) > MOST_SHOWN:
            write(f"would {change.verb} {len(accepted) - MOST_SHOWN:,} more")
        _note_refusals([(job_id, reason) for job_id, reason in refusals.items() if reason is not None])
        note(f"dry run: {counted(len(views), 'job')} checked, nothing was changed")
    return [NOT_FOUND if job is None else REFUSED if refusals[job_id] else 0 for job_id, job in views.items()]


def _print(results: Sequence[Result]) -> None:
    done = [result for result in results if not result.code]
    if len(done) > MOST_SHOWN:
        for outcome, number in Counter(result.sentence.partition(";")[0] for result in done).items():
            write(f"✓ {counted(number, 'job')}: {outcome}")
    else:
        for result in done:
            write(f"✓ {result.id} {result.sentence}")
    _note_refusals([(result.id, result.sentence) for result in results if result.code])


def _note_refusals(refusals: Sequence[tuple[str, str]]) -> None:
    for job_id, reason in refusals[:MOST_SHOWN]:
        note(f"✗ {abridged(job_id)} {reason}")
    if len(refusals) > MOST_SHOWN:
        note(f"  and {len(refusals) - MOST_SHOWN:,} more")


def only_in(states: Iterable[JobState]) -> Callable[[JobView], str | None]:
    """The refusal of a command that changes only jobs in these states."""
    wanted = frozenset(states)
    return lambda job: None if job.state in wanted else f"is {job.state} and would be refused"


def with_children(engine: Engine, results: Sequence[Result]) -> list[Result]:
    """The results, with the number of jobs that depend on each changed job. Of many jobs, only a summary is printed."""
    if len(results) > MOST_SHOWN:
        return list(results)
    return [one if one.code else one._replace(sentence=one.sentence + _dependents(engine, one.id)) for one in results]


def _dependents(engine: Engine, job_id: str) -> str:
    number = engine.relatives(job_id, limit=1).child_count
    return f"; {counted(number, 'job')} depend{'s' if number == 1 else ''} on it" if number else ""


def view_of(engine: Engine, job_id: str) -> JobView | None:
    """The job, if it is known."""
    history = engine.get(job_id)
    return None if history is None else history.job
