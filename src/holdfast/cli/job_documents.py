"""Jobs and their attempts as JSON documents."""

from typing import Any

import msgspec

from holdfast.cli.documents import HistoryDocument, JobDocument
from holdfast.values import AttemptView, JobHistory, JobView


def job_document(job: JobView) -> dict[str, Any]:
    """A job as a JSON document: every member is present, payload and meta are values."""
    document: dict[str, Any] = {"schema": JobDocument.__struct_config__.tag}
    document |= {name: getattr(job, name) for name in job.__struct_fields__}
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
