"""Log records that name their job: a filter, a JSON formatter, and the log format of our own workers."""

import logging
import os
from datetime import UTC, datetime
from typing import Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.execution.logs import job_fields
from holdfast.plaintext import plain, safe_json

__all__ = ["JsonFormatter", "RunFilter", "job_fields", "log_to_stderr"]

FIELDS: Final = ("job_id", "job", "queue", "attempt", "delivery")
FORMAT_VARIABLE: Final = "HOLDFAST_LOG_FORMAT"
_MADE: Final = {"message", "asctime", "taskName", "run", "is_outcome", *FIELDS}
_KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | _MADE


class RunFilter(logging.Filter):
    """Passes every record and adds the attributes `job_id`, `job`, `queue`, `attempt` and `delivery`.

    They are None for a record from outside of a run; values that were passed as `extra` stay. Add it to a handler: the
    filter of a logger applies only to records logged to exactly that logger.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = job_fields(record)
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, the job (with `RunFilter`), and `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                document[name] = value
        document.update((name, value) for name, value in vars(record).items() if name not in _KNOWN | document.keys())
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        try:
            return safe_json(msgspec.json.encode(document, enc_hook=str).decode())
        except (TypeError, ValueError, RecursionError):  # a lone surrogate, or an `extra` that JSON cannot represent
            fields = {name: value if isinstance(value, int) else plain(value) for name, value in document.items()}
            return msgspec.json.encode(fields).decode()


class PlainFormatter(logging.Formatter):
    """Formats a record as text. Log lines quote job output, so control characters and line starts are escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(run)s%(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        job_id = getattr(record, "job_id", None)
        record.run = "" if job_id is None else f"{getattr(record, 'job', None) or 'job'} {job_id}: "
        return plain(super().format(record)).replace("\n", "\n    ")


def log_to_stderr(level: str = "warning", *, with_outcomes: bool = True) -> None:
    """Print our log records of this level and above, and the warnings of other loggers, unless the program has set up
    logging itself. HOLDFAST_LOG_FORMAT sets the format; default: text. The outcomes of jobs can be left out.
    """
    handler = logging.StreamHandler()
    handler.addFilter(RunFilter())
    if not with_outcomes:
        handler.addFilter(lambda record: not hasattr(record, "is_outcome"))
    match os.environ.get(FORMAT_VARIABLE, "text"):
        case "text" | "":
            handler.setFormatter(PlainFormatter())
        case "json":
            handler.setFormatter(JsonFormatter())
        case other:
            raise ConfigError(f"{FORMAT_VARIABLE} = {other!r}: choose text or json")
    logging.getLogger("holdfast").setLevel(level.upper())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
