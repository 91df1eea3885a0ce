"""A worker on the memory engine with a manual clock: tests run one turn at a time and inspect the result."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Self, Unpack

import msgspec

from holdfast.app import Holdfast
from holdfast.clock import ManualClock, from_us
from holdfast.codec import WIRE_VERSION, JobMessage, encode_message
from holdfast.config import Settings
from holdfast.definition import JobOptions, definition_of
from holdfast.execution.retry import RetryPolicy
from holdfast.handlers import FunctionHandler
from holdfast.metrics import End
from holdfast.queues.contract import new_owner_token, new_session
from holdfast.queues.signing import Keyring
from holdfast.values import (
    DEFAULT_INSTALLATION,
    AttemptRecord,
    JobEnvelope,
    JobHistory,
    JobView,
    Outcome,
    WorkerResult,
)
from holdfast.worker import QueueWorker

KEY = "ours:the-key-of-the-tests-of-the-worker"
DEFAULTS = Settings()


class Counts:
    """A metrics collector whose counts can be compared at once."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        self.seen[f"{name} {queue}"] += value

    def total(self, name: str) -> int:
        """The value of a counter over all queues."""
        return sum(value for seen, value in self.seen.items() if seen.split()[0] == name)


class Bench:
    """One application, one engine, one worker."""

    def __init__(
        self,
        *,
        settings: Settings = DEFAULTS,
        retry_policy: RetryPolicy | None = None,
        allowlist: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.counts = Counts()
        self.app = Holdfast(
            "memory://",
            settings=settings,
            signing_key=KEY,
            allowlist=allowlist,
            retry_policy=retry_policy,
            metrics=self.counts,
            clock=self.clock,
        )
        self.engine = self.app.backend()
        self.worker: QueueWorker = self.app.worker()

    def close(self) -> None:
        """Close everything, and check that every delivery has one end."""
        self.worker.close()
        self.app.close()
        assert self.counts.total("jobs_fetched") == sum(map(self.counts.total, End)), self.counts.seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def handler(
        self, function: Callable[..., object], key: str = "job", *, no_retry: tuple[type[BaseException], ...] = ()
    ) -> None:
        """Let this function be the handler under that key."""
        self.app.registry.register(key, FunctionHandler(function, key=key, no_retry=no_retry))

    def put(self, key: str = "job", payload: object = None, **options: Unpack[JobOptions]) -> str:
        """Enqueue one job, as a producer elsewhere would: nothing here has to allow it."""
        return self.engine.enqueue(definition_of(key, payload, options), id=options.get("id"))

    def put_wire(self, wire: bytes, *, id: str = "smuggled", queue: str = "default") -> str:
        """Put bytes into the queue that are not from one of our producers."""
        self.engine.accept([JobEnvelope(id=id, queue=queue, job="job", priority=5, wire=wire)])
        return id

    def turn(self, queue: str = "default") -> WorkerResult:
        """One turn of the worker."""
        return self.worker.process_once(queue)

    def history(self, id: str) -> JobHistory:
        history = self.engine.get(id)
        assert history is not None, f"job '{id}' is gone"
        return history

    def view(self, id: str) -> JobView:
        return self.history(id).job

    def records(self, id: str) -> list[AttemptRecord]:
        return [past.record for past in self.history(id).attempts]

    def outcomes(self, id: str) -> list[Outcome]:
        return [record.outcome for record in self.records(id)]

    def due_in(self, id: str) -> timedelta:
        """How long until the job is due."""
        return self.view(id).due_at - from_us(self.clock.now_us())

    def let_its_worker_die(self, queue: str = "default") -> None:
        """Claim a job as another worker would, and let the lease end without a verdict."""
        assert self.engine.claim(queue, 1, owner_token=new_owner_token(new_session()))
        self.clock.advance(self.engine.policy.lease_s)


def wire_of(
    *,
    key: str = KEY,
    installation: str = DEFAULT_INSTALLATION,
    id: str = "smuggled",
    job: str = "job",
    v: int = WIRE_VERSION,
    **changes: Any,
) -> bytes:
    """A signed message as some producer would make it."""
    ring = Keyring.parse(key, installation=installation)
    message = JobMessage(
        v=v,
        job=job,
        payload=msgspec.Raw(b"null"),
        queue="default",
        max_retries=3,
        identifier=id,
        timeout=300.0,
        created_at=from_us(0),
        kid=ring.kid,
    )
    return ring.sign(encode_message(msgspec.structs.replace(message, **changes)))
