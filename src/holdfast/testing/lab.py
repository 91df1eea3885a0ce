"""`Lab`: gives the conformance tests an empty engine, a clock that they control, and further handles on the engine.

An engine that takes its time from `Clock` needs only a function that opens a handle::

    @pytest.fixture
    def lab() -> Iterator[Lab]:
        with Lab(lambda envelopes, policy, clock: MyEngine("…", envelopes, policy=policy, clock=clock)) as lab:
            yield lab

For an engine that uses the server's clock, pass a subclass of `ManualClock` that also moves the server's clock.
"""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self, TypedDict, Unpack

from holdfast.clock import Clock, ManualClock, from_us
from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.contract import DEFAULT_POLICY, Engine, LeasePolicy, new_owner_token
from holdfast.queues.engines.memory.connections import MemoryStore
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.state.workers import WorkerRegistry
from holdfast.values import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    AttemptRecord,
    ErrorInfo,
    JobEnvelope,
    JobFilter,
    JobHistory,
    JobLease,
    JobView,
    OnParentFailure,
    Outcome,
    QueuePause,
    SlotView,
    WorkerView,
)

LEASE_S = DEFAULT_POLICY.lease_s
GRAIN_S = 1 / 64  # the shortest duration that is exact both as a float and in microseconds


class Connect(Protocol):
    """Opens a further handle on the engine under test, as another process would."""

    def __call__(self, envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine: ...


class EnvelopeOptions(TypedDict, total=False):
    """The options of a job that a clause creates."""

    queue: str
    priority: int
    delay: float
    run_at: datetime
    expires_in: float
    payload: object
    job: str
    name: str
    trace_id: str
    after: tuple[str, ...]
    on_parent_failure: OnParentFailure


class Lab:
    """An empty engine and its clock, for one clause."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: ManualClock | None = None,
        grain_s: float = GRAIN_S,
        keeps_time: bool = False,
    ) -> None:
        self.clock = clock or ManualClock()
        self.grain_s = grain_s
        """The precision of the clock. If it runs by itself, this must be longer than the calls of a clause take."""
        self.keeps_time = keeps_time
        """Whether the engine uses the server's clock, not the handle's; if not, the clauses about that are skipped."""
        self.envelopes = EnvelopeFactory(
            Keyring([SigningKey(b"the key of the laboratory, 32 bytes")]), clock=self.clock
        )
        self._connect = connect
        self._handles: list[Engine] = []

    def open(self, policy: LeasePolicy = DEFAULT_POLICY, *, clock: Clock | None = None) -> Engine:
        """Open a further handle on the same engine, with this clock; the lab closes it."""
        engine = self._connect(self.envelopes, policy, clock or self.clock)
        self._handles.append(engine)
        engine.create_schema()
        return engine

    @cached_property
    def engine(self) -> Engine:
        """The handle that most clauses use."""
        return self.open()

    @property
    def workers(self) -> WorkerRegistry:
        """The registry of workers of that handle."""
        return WorkerRegistry(self.engine.state)

    def now(self) -> datetime:
        """The engine's time."""
        return from_us(self.clock.now_us())

    def advance(self, seconds: float) -> None:
        """Advance the clocks of the engine and of this process."""
        self.clock.advance(seconds)

    def set_back(self, seconds: float) -> None:
        """Set the engine's wall clock back, as an operator or a wrong time server would."""
        self.clock.set_back(seconds)

    def close(self) -> None:
        """Close every handle."""
        while self._handles:
            self._handles.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def envelope(self, id: str | None = None, **options: Unpack[EnvelopeOptions]) -> JobEnvelope:
        """One signed job, not yet accepted."""
        definition = JobDefinition(
            handler=options.get("job", "mail.send"),
            payload=encode_payload(options.get("payload", {"to": "ada@example.org"})),
            queue=options.get("queue", DEFAULT_QUEUE),
            priority=options.get("priority", DEFAULT_PRIORITY),
            delay=options.get("delay"),
            run_at=options.get("run_at"),
            expires_in=options.get("expires_in"),
            name=options.get("name"),
            trace_id=options.get("trace_id"),
            after=options.get("after", ()),
            on_parent_failure=options.get("on_parent_failure", OnParentFailure.CANCEL),
        )
        return self.envelopes.make(definition, id=id)

    def record(
        self,
        outcome: Outcome = Outcome.SUCCEEDED,
        *,
        error: ErrorInfo | None = None,
        output: str = "",
        result: bytes | None = None,
    ) -> AttemptRecord:
        """The record of an attempt that took no time."""
        now_us = self.engine.clock.now_us()
        return AttemptRecord(
            outcome=outcome, started_us=now_us, ended_us=now_us, error=error, output=output, result=result
        )

    def put(self, *ids: str, **options: Unpack[EnvelopeOptions]) -> None:
        """Accept these jobs together, so that they are claimed in this order; none of them may be known already."""
        answers = self.engine.accept([self.envelope(id, **options) for id in ids])
        assert [answer.id for answer in answers if answer.created] == list(ids)

    def claim(self, limit: int = 10, *, queue: str = DEFAULT_QUEUE) -> list[JobLease]:
        """Claim under a new token."""
        return self.engine.claim(queue, limit, owner_token=new_owner_token())

    def take(self, id: str, *, queue: str = DEFAULT_QUEUE) -> JobLease:
        """Claim one job, which must be this one."""
        leases = self.claim(1, queue=queue)
        assert [lease.id for lease in leases] == [id]
        return leases[0]

    def let_crash(self, id: str) -> None:
        """Deliver the job and let its lease expire without a verdict."""
        self.take(id)
        self.advance(LEASE_S)
        assert self.engine.reap_expired() == 1

    def history(self, id: str) -> JobHistory:
        """The job, which must exist, with its attempts."""
        history = self.engine.get(id)
        assert history is not None, f"job '{id}' does not exist"
        return history

    def view(self, id: str) -> JobView:
        """The job, which must exist."""
        return self.history(id).job

    def outcomes(self, id: str) -> list[Outcome]:
        """How the job's attempts ended, oldest first."""
        return [attempt.record.outcome for attempt in self.history(id).attempts]

    def ids(self, where: JobFilter | None = None, *, page: int = 100) -> list[str]:
        """The ids of all jobs that match, read page by page."""
        found: list[str] = []
        after: str | None = None
        while True:
            answer = self.engine.find(where or JobFilter(), limit=page, after=after)
            found += [job.id for job in answer.jobs]
            after = answer.next
            if after is None:
                return found

    def everything(self) -> tuple[list[JobHistory], list[QueuePause], list[WorkerView], list[SlotView]]:
        """Everything that the engine shows."""
        jobs = [self.history(id) for id in sorted(self.ids())]
        return jobs, list(self.engine.pauses()), self.workers.all(), self.engine.slots()

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Assert that the block changes nothing."""
        before = self.everything()
        yield
        assert self.everything() == before, "a refused call has changed something"


def memory_lab() -> Lab:
    """A lab for the memory engine."""
    store = MemoryStore()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return MemoryEngine(envelopes, policy=policy, clock=clock, store=store)

    return Lab(connect)


def sqlite_lab(path: Path) -> Lab:
    """A lab for the SQLite engine; the file must not exist."""

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return SqliteEngine(path, envelopes, policy=policy, clock=clock)

    return Lab(connect)
