"""Jobs and their attempts as JSON documents."""

from typing import Any

import msgspec

from holdfast.cli.documents import HistoryDocument, JobDocument, RelativeDocument
from holdfast.cli.words import DEPENDS_ON
from holdfast.values import AttemptView, JobHistory, JobView, Relative, Relatives


def job_document(job: JobView) -> dict[str, Any]:
    """A job as a JSON document: every member is present, payload and meta are values."""
    document: dict[str, Any] = {"schema": JobDocument.__struct_config__.tag}
    document |= {name: getattr(job, name) for name in job.__struct_fields__}
    document[DEPENDS_ON] = document.pop("after")
    document["payload"] = _value(job.payload)
    document["meta"] = _value(job.meta)
    document["progress"] = None if job.progress is None else msgspec.structs.asdict(job.progress)
    return document


def history_document(history: JobHistory) -> dict[str, Any]:
    """A job as a JSON document with its `history`, one document per attempt, oldest first, and its live output."""
    live = history.live_output
    return {
        **job_document(history.job),
        "schema": HistoryDocument.__struct_config__.tag,
        "history": [_attempt_document(past) for past in history.attempts],
        "live_output": None if live is None else msgspec.structs.asdict(live),
    }


def relatives_members(relatives: Relatives) -> dict[str, Any]:
    """The members of a JSON document about the jobs that a job depends on and those that depend on it."""
    return {
        "parents": [_relative_document(one) for one in relatives.parents],
        "open_parents": relatives.open_parents,
        "children": [_relative_document(one) for one in relatives.children],
        "child_count": relatives.child_count,
    }


def _relative_document(one: Relative) -> RelativeDocument:
    return RelativeDocument(id=one.job_id, state=one.state, on_parent_failure=one.on_failure, outcome=one.outcome)


def _attempt_document(attempt: AttemptView) -> dict[str, Any]:
    """An attempt as a JSON document."""
    record = attempt.record
    return {
        "delivery": attempt.delivery,
        "outcome": record.outcome,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "duration_s": record.duration_s,
        "error": record.error,
        "output": record.output,
        "result": None if record.result is None else _value(record.result),
        "note": record.note,
    }


def _value(json_text: msgspec.Raw | bytes) -> Any:
    """The value of a stored JSON text, or the text itself if it is not JSON, since it has not been verified."""
    try:
        return msgspec.json.decode(json_text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return bytes(json_text).decode(errors="replace")
