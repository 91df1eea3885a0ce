"""Captures what an attempt logs, together with what it prints: a handler on the root logger while jobs may run.

`job_fields` returns the job that a log record belongs to, for the filter in `holdfast.logs`.
"""

import logging
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.execution.output import Output, is_stand_in, output_here, outside_the_job

_JOB: Final = "holdfast.job"
_OURS: Final = "holdfast."
_root = logging.getLogger()
_job_log = logging.getLogger(_JOB)


class _Capture(logging.Handler):
    """Writes the records of a job into its output. Other records are handled as if this handler did not exist."""

    def createLock(self) -> None:
        # An output has its own lock, and an interrupt while the handler's lock is held would block every logger.
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        output = _output_of(record)
        if output is not None:
            self._write(record, output)
        elif not any(_other_handlers(record)):
            _as_without_handlers(record)
        return True

    def _write(self, record: logging.LogRecord, output: Output) -> None:
        # The job may have a handler of its own on a stream that we capture: then its format is used.
        if any(is_stand_in(getattr(h, "stream", None)) and record.levelno >= h.level for h in _other_handlers(record)):
            return
        try:
            output.write(self.format(record) + "\n")
        except Exception:  # the message is formatted here, by the job's code
            self.handleError(record)


def _output_of(record: logging.LogRecord) -> Output | None:
    """The output of the job that the record belongs to. Our own records on our threads belong to no job."""
    is_user_record = record.name == _JOB or not record.name.startswith(_OURS)
    return output_here(even_unclaimed=is_user_record)


def job_fields(record: logging.LogRecord | None = None) -> dict[str, object]:
    """The job and attempt that the calling code, or a record, belongs to; empty outside of a run."""
    output = output_here(even_unclaimed=True) if record is None else _output_of(record)
    if output is None or output.about is None:
        return {}
    message, lease = output.about
    return {
        "job_id": message.identifier,
        "job": message.job,
        "queue": message.queue,
        "attempt": lease.attempts + 1,
        "delivery": lease.delivery,
    }


def _as_without_handlers(record: logging.LogRecord) -> None:
    """Do what Python does with a record that has no handler; it does not, because it has found ours."""
    last_resort = logging.lastResort
    if last_resort is not None and record.levelno >= last_resort.level:
        with outside_the_job():  # it writes to sys.stderr, which would add it to the output of the running job
            last_resort.handle(record)


def _other_handlers(record: logging.LogRecord) -> Iterator[logging.Handler]:
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        yield from (handler for handler in logger.handlers if handler is not _capture)
        logger = logger.parent if logger.propagate else None


class _Level(int):
    """A level that differs in identity from the same number set by the program."""


class _Unasked(logging.Filter):
    """Captures `context.log.info` for the attempt even if the program itself logs only warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _job_log.level is not _our_level or record.levelno >= _asked_level():
            return True
        if _output_of(record) is not None:
            _capture.handle(record)
        return False


def _asked_level() -> int:
    """The level of `holdfast.job`, had we not set one."""
    return (_job_log.parent or _root).getEffectiveLevel()


def _choose_level() -> None:
    """Set `holdfast.job` to INFO, unless the program has set its level, or a lower one for all loggers."""
    if _job_log.level is _our_level and _asked_level() <= _our_level:
        _job_log.setLevel(logging.NOTSET)
    elif _job_log.level == logging.NOTSET and _asked_level() > _our_level:
        _job_log.setLevel(_our_level)
        _job_log.addFilter(_unasked)


_capture = _Capture()
_capture.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
_our_level = _Level(logging.INFO)
_unasked = _Unasked()
_lock = threading.Lock()
_listeners = 0


@contextmanager
def logs_captured() -> Generator[None]:
    """Capture what jobs log while the block runs."""
    global _listeners
    with _lock:
        _listeners += 1
    listen()
    try:
        yield
    finally:
        with _lock:
            _listeners -= 1
            if not _listeners:
                _root.removeHandler(_capture)


def listen() -> None:
    """Add the handler to the root logger, if it is not there: a new configuration may have removed it."""
    if _capture not in _root.handlers:
        _choose_level()
        _root.addHandler(_capture)
