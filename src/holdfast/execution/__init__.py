"""One attempt: the runtime that makes it, the timeout that ends it, and the policy that says when the next one is."""

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
