"""Stored results: `result_of` returns the result of a finished job, `ParentResults` those of a job's parents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.definition.definition import Identified
from holdfast.errors import JobCancelled, JobFailed, ResultGone
from holdfast.handlers.payload import decoder_of
from holdfast.plaintext import abridged
from holdfast.values import PARENT_FAILED, JobHistory, JobState, Outcome

# A job that was skipped has the result of the job that completed its idempotency key.
_HAS_RESULT: Final = (Outcome.SUCCEEDED, Outcome.SKIPPED)

ReadJob: TypeAlias = Callable[[str], JobHistory | None]
"""A function that reads the record of a job; None if there is none."""


class ParentResults(Mapping[str, Any]):
    """The results of the jobs that a job depends on, by id or handle. With a handle, the result is decoded as the type
    that its function declares.

    A result is read from the backend each time it is accessed: a job that reads none pays for none. A parent without a
    result is an error: `JobFailed` or `JobCancelled` if it failed, `ResultGone` if its result is not available.
    """

    def __init__(self, parents: Sequence[str], read: ReadJob) -> None:
        self._parents = parents
        self._read = read

    def __getitem__(self, parent: str | Identified) -> Any:
        job_id = parent if isinstance(parent, str) else parent.id
        if job_id not in self._parents:
            raise KeyError(f"this job does not depend on job '{job_id}'; {_listed(self._parents)}")
        history = self._read(job_id)
        if history is None:
            raise ResultGone(f"the record of job '{job_id}' was deleted while this job was waiting or running")
        return result_of(history, getattr(parent, "returns", Any))

    def __contains__(self, parent: object) -> bool:
        return parent in self._parents

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def __len__(self) -> int:
        return len(self._parents)

    def __repr__(self) -> str:
        return f"ParentResults({', '.join(self._parents)})"


def _listed(parents: Sequence[str]) -> str:
    return f"it depends on {abridged(', '.join(parents))}" if parents else "it has no parents"


def result_of(history: JobHistory, returns: Any) -> Any:
    """The result of a finished job, decoded as the type `returns`."""
    job = history.job
    match job.state:
        case JobState.COMPLETED:
            pass
        case JobState.DEAD:
            raise JobFailed(f"job '{job.id}' is dead ({job.dead_reason}): {job.last_error or 'no error was recorded'}")
        case JobState.CANCELLED if job.cancel_reason == PARENT_FAILED:
            parents = abridged(", ".join(job.after))
            raise JobCancelled(
                f"job '{job.id}' was cancelled ({PARENT_FAILED}): one of the jobs that it depends on failed ({parents})"
            )
        case JobState.CANCELLED:
            raise JobCancelled(f"job '{job.id}' was cancelled: {job.cancel_reason or 'no reason was given'}")
        case _:
            raise ResultGone(f"job '{job.id}' has no result yet: it is {job.state}")
    last = next((past.record for past in reversed(history.attempts) if past.record.outcome in _HAS_RESULT), None)
    if last is None or last.result is None:
        if last is not None and last.note:
            raise ResultGone(f"job '{job.id}' completed, but {last.note}")
        return None
    try:
        return decoder_of(returns).decode(last.result)
    except msgspec.ValidationError as problem:
        raise ResultGone(
            f"job '{job.id}' completed, but its result is not of the type that the function declares ({problem}); "
            f"to get the stored value, call hf.handle('{job.id}').result()"
        ) from None
    except (msgspec.DecodeError, RecursionError) as problem:
        raise ResultGone(f"job '{job.id}' completed, but its stored result cannot be decoded: {problem}") from None
