"""Workers: they claim jobs, run them, renew their leases and settle them."""

from holdfast.worker.loop import WorkerLoop
from holdfast.worker.worker import QueueWorker

__all__ = ["QueueWorker", "WorkerLoop"]
