"""One attempt: the runtime that makes it, the timeout that ends it, and the policy that says when the next one is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.execution.output import Output
    from holdfast.execution.retry import BackoffPolicy, RetryPolicy
    from holdfast.execution.runtime import JobRuntime
    from holdfast.execution.timeout import JobCancelRequested, JobInterrupted, JobTimeout, Timeout
    from holdfast.values import ExecutionResult

__all__ = [
    "BackoffPolicy",
    "ExecutionResult",
    "JobCancelRequested",
    "JobInterrupted",
    "JobRuntime",
    "JobTimeout",
    "Output",
    "RetryPolicy",
    "Timeout",
]

# Loaded when they are asked for: producers and the command line want the policy, and not what runs jobs.
_HOME_OF = {
    "BackoffPolicy": "holdfast.execution.retry",
    "ExecutionResult": "holdfast.values",
    "JobCancelRequested": "holdfast.execution.timeout",
    "JobInterrupted": "holdfast.execution.timeout",
    "JobRuntime": "holdfast.execution.runtime",
    "JobTimeout": "holdfast.execution.timeout",
    "Output": "holdfast.execution.output",
    "RetryPolicy": "holdfast.execution.retry",
    "Timeout": "holdfast.execution.timeout",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast.execution' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
