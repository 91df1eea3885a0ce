"""Log records that say which run they were made in: a filter, a JSON formatter, and what our own workers print."""

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
    """Lets every record pass, with the attributes `job_id`, `job`, `queue`, `attempt` and `delivery`.

    They are None for a record that was made outside of a run; what somebody has given as `extra` stays. It belongs on
    a handler: a logger filters only what is logged by its very name.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = job_fields(record)
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: when, how bad, who, what; which run, with `RunFilter`; and what came as `extra`."""

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
        except (TypeError, ValueError, RecursionError):  # half a character, or an `extra` that no JSON can say
            said = {name: value if isinstance(value, int) else plain(value) for name, value in document.items()}
            return msgspec.json.encode(said).decode()


class PlainFormatter(logging.Formatter):
    """Log lines quote what jobs say: nothing in them may move the cursor or look like another line's beginning."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(run)s%(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        job_id = getattr(record, "job_id", None)
        record.run = "" if job_id is None else f"{getattr(record, 'job', None) or 'job'} {job_id}: "
        return plain(super().format(record)).replace("\n", "\n    ")


def log_to_stderr(level: str = "warning", *, with_outcomes: bool = True) -> None:
    """Print our log records of this level and above, and the warnings of others, unless the program has set up logging
    itself. The format is text, or what HOLDFAST_LOG_FORMAT says. The outcomes of jobs can be left out.
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
