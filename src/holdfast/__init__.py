"""Holdfast keeps background jobs: it takes a job, holds it fast until it is done, and can show that none was lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.dead_letters import DeadLetter
    from holdfast.definition import JobBuilder, JobDefinition, JobOptions
    from holdfast.errors import (
        CircuitOpen,
        HoldfastError,
        JobCancelled,
        JobFailed,
        RateLimited,
        ResultGone,
        UnknownJob,
    )
    from holdfast.execution.retry import BackoffPolicy, RetryPolicy
    from holdfast.handle import AsyncJobHandle, JobHandle
    from holdfast.handlers import Cancel, Depends, Handler, JobContext, Snooze
    from holdfast.job import Job
    from holdfast.metrics import InMemoryMetrics, MetricsCollector
    from holdfast.middleware import Middleware
    from holdfast.values import Backoff, BackoffStrategy, DeadReason, ExecutionResult, JobState

__version__ = "0.1.0"

__all__ = [
    "AsyncJobHandle",
    "Backoff",
    "BackoffPolicy",
    "BackoffStrategy",
    "Cancel",
    "CircuitOpen",
    "DeadLetter",
    "DeadReason",
    "Depends",
    "ExecutionResult",
    "Handler",
    "Holdfast",
    "HoldfastError",
    "InMemoryMetrics",
    "Job",
    "JobBuilder",
    "JobCancelled",
    "JobContext",
    "JobDefinition",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobState",
    "MetricsCollector",
    "Middleware",
    "RateLimited",
    "ResultGone",
    "RetryPolicy",
    "Snooze",
    "UnknownJob",
    "__version__",
]

# Where each public name lives. They are loaded when they are asked for, so that `holdfast --help` loads none of them.
_HOMES = {
    "holdfast.app": ("Holdfast",),
    "holdfast.dead_letters": ("DeadLetter",),
    "holdfast.definition": ("JobBuilder", "JobDefinition", "JobOptions"),
    "holdfast.errors": (
        *("CircuitOpen", "HoldfastError", "JobCancelled", "JobFailed"),
        *("RateLimited", "ResultGone", "UnknownJob"),
    ),
    "holdfast.execution.retry": ("BackoffPolicy", "RetryPolicy"),
    "holdfast.handle": ("AsyncJobHandle", "JobHandle"),
    "holdfast.handlers": ("Cancel", "Depends", "Handler", "JobContext", "Snooze"),
    "holdfast.job": ("Job",),
    "holdfast.metrics": ("InMemoryMetrics", "MetricsCollector"),
    "holdfast.middleware": ("Middleware",),
    "holdfast.values": ("Backoff", "BackoffStrategy", "DeadReason", "ExecutionResult", "JobState"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
