"""`Lab`: what an engine's test gives the law suite: one empty store, a clock that obeys, and handles on the store.

An engine that takes its time from `Clock` needs no more than a function that opens a handle::

    @pytest.fixture
    def lab() -> Iterator[Lab]:
        with Lab(lambda envelopes, policy, clock: MyEngine("…", envelopes, policy=policy, clock=clock)) as lab:
            yield lab

One whose server keeps the time gives the lab a `ManualClock` of its own kind, which moves the server's clock along.
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
from holdfast.queues.contract import DEFAULT_POLICY, Engine, LeasePolicy, new_owner_token, new_session
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
    Outcome,
    QueuePause,
    WorkerView,
)

LEASE_S = DEFAULT_POLICY.lease_s
GRAIN_S = 1 / 64  # the smallest span that is exact both as a float and in microseconds


class Connect(Protocol):
    """Opens one more handle on the lab's store, as another process would have it."""

    def __call__(self, envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine: ...


class EnvelopeOptions(TypedDict, total=False):
    """What a clause may ask of the job it makes."""

    queue: str
    priority: int
    delay: float
    run_at: datetime
    expires_in: float
    payload: object
    job: str
    name: str
    trace_id: str


class Lab:
    """One empty store and its clock, for one clause."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: ManualClock | None = None,
        grain_s: float = GRAIN_S,
        can_set_back: bool = True,
        keeps_time: bool = False,
    ) -> None:
        self.clock = clock or ManualClock()
        self.grain_s = grain_s
        """How close to an instant a clause may go: more than its calls take, if the clock runs by itself."""
        self.can_set_back = can_set_back
        """Without it, the clauses on a clock set back are skipped."""
        self.keeps_time = keeps_time
        """Whether the time is the server's, whatever the clock of a handle says; without it, clauses on that are
        skipped.
        """
        self.envelopes = EnvelopeFactory(
            Keyring([SigningKey(b"the key of the laboratory, 32 bytes")]), clock=self.clock
        )
        self._connect = connect
        self._handles: list[Engine] = []

    def open(self, policy: LeasePolicy = DEFAULT_POLICY, *, clock: Clock | None = None) -> Engine:
        """A further handle on the same store, in a process with this clock; the lab closes it."""
        engine = self._connect(self.envelopes, policy, clock or self.clock)
        self._handles.append(engine)
        engine.create_schema()
        return engine

    @cached_property
    def engine(self) -> Engine:
        """The handle most clauses use."""
        return self.open()

    @property
    def workers(self) -> WorkerRegistry:
        """The registry of workers, through the handle most clauses use."""
        return WorkerRegistry(self.engine.state)

    def now(self) -> datetime:
        """The engine's time."""
        return from_us(self.clock.now_us())

    def advance(self, seconds: float) -> None:
        """Let time pass for the engine and for this process."""
        self.clock.advance(seconds)

    def set_back(self, seconds: float) -> None:
        """Move the engine's wall clock back, as an operator or a bad time server would."""
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
        return self.engine.claim(queue, limit, owner_token=new_owner_token(new_session()))

    def take(self, id: str, *, queue: str = DEFAULT_QUEUE) -> JobLease:
        """Claim one job, which has to be this one."""
        leases = self.claim(1, queue=queue)
        assert [lease.id for lease in leases] == [id]
        return leases[0]

    def let_crash(self, id: str) -> None:
        """Deliver the job and let its lease end without a verdict."""
        self.take(id)
        self.advance(LEASE_S)
        assert self.engine.reap_expired() == 1

    def history(self, id: str) -> JobHistory:
        """The job, which has to be known, with its attempts."""
        history = self.engine.get(id)
        assert history is not None, f"job '{id}' is gone"
        return history

    def view(self, id: str) -> JobView:
        """The job, which has to be known."""
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

    def everything(self) -> tuple[list[JobHistory], list[QueuePause], list[WorkerView]]:
        """All that can be seen of the store."""
        jobs = [self.history(id) for id in sorted(self.ids())]
        return jobs, list(self.engine.pauses()), self.workers.all()

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Whatever happens inside leaves no trace."""
        before = self.everything()
        yield
        assert self.everything() == before, "what was refused has changed something"


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
