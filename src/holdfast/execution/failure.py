"""Describes an exception as text, for the record of a failed run: without locals or our own frames, limited in size."""

import asyncio
import os
import traceback
from collections.abc import Iterator
from typing import Final

from holdfast import handlers
from holdfast.execution.output import cut
from holdfast.values import ErrorInfo

MESSAGE_LIMIT: Final = 8 * 1024
TRACEBACK_LIMIT: Final = 32 * 1024
_MOST_FRAMES: Final = 200
_OURS: Final = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(handlers.__file__) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "contrib") + os.sep,
)
_LOOP: Final = os.path.dirname(asyncio.__file__) + os.sep


def describe_error(error: BaseException) -> ErrorInfo:
    """The exception's type, message and traceback."""
    return ErrorInfo(type=name_of(type(error)), message=_message_of(error), traceback=traceback_of(error))


def name_of(kind: type[BaseException]) -> str:
    """The name of the type, as users import it."""
    module = str(kind.__module__)  # a class may set it to anything
    if module == "builtins":
        return kind.__qualname__
    return f"{'holdfast' if module.startswith('holdfast.') else module}.{kind.__qualname__}"


def traceback_of(error: BaseException) -> str:
    """The traceback, starting at the handler's code; if the stack is very deep, its last frames."""
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__, limit=-_MOST_FRAMES)
        for part in _parts_of(report):
            part.stack = traceback.StackSummary.from_list(_frames_of_the_job(part.stack))
        text = "".join(report.format())
    except Exception as problem:  # an exception may have its own __str__, which may raise
        text = f"the traceback could not be formatted: {type(problem).__name__}"
    return cut(text, TRACEBACK_LIMIT)


def _message_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as problem:
        text = f"the message could not be formatted: {type(problem).__name__}"
    return cut(text, MESSAGE_LIMIT)


def _parts_of(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, its causes, and the members of its groups."""
    waiting: list[traceback.TracebackException | None] = [report]
    while waiting:
        part = waiting.pop()
        if part is not None:
            yield part
            waiting += [part.__cause__, part.__context__, *(part.exceptions or ())]


def _frames_of_the_job(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    frames = [frame for frame in stack if not frame.filename.startswith(_OURS)]
    # The frames above the handler's code are of the loop it runs on. Deeper frames of asyncio belong to the handler.
    first = next((at for at, frame in enumerate(frames) if not frame.filename.startswith(_LOOP)), len(frames))
    return frames[first:]
