"""Running jobs: one message end to end, the loop around it, and the keeper of its leases."""

from holdfast.worker.loop import WorkerLoop
from holdfast.worker.worker import QueueWorker

__all__ = ["QueueWorker", "WorkerLoop"]
