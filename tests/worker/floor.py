"""A worker with real children on a real engine that can be made to fail, and a ledger of what the jobs did."""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

import msgspec

from holdfast.clock import SYSTEM_CLOCK
from holdfast.dead_letters import DeadLetterQueues
from holdfast.definition import JobDefinition, JobOptions, definition_of
from holdfast.errors import BackendUnavailable
from holdfast.execution.retry import BackoffPolicy
from holdfast.executor import Setup
from holdfast.handlers import COMMAND_KEY, CommandHandler, HandlerRegistry
from holdfast.metrics import End, InMemoryMetrics
from holdfast.queues.contract import Engine, LeasePolicy, SharedState
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring
from holdfast.rates import Rate
from holdfast.state.breakers import Rule
from holdfast.values import (
    Accepted,
    AttemptRecord,
    Backoff,
    BackoffStrategy,
    Cell,
    Entered,
    Entry as SlotEntry,
    JobEnvelope,
    JobFilter,
    JobHistory,
    JobLease,
    JobState,
    JobView,
    LeaseState,
    Outcome,
    Page,
    Settlement,
    Spend,
    Spent,
    StopOrder,
    WorkerResult,
    WorkerStatus,
    Write,
)
from holdfast.worker.admission import Admission
from holdfast.worker.circuits import DEFAULT_RULE
from holdfast.worker.dead_letters import DeadLetterCopies
from holdfast.worker.executors.process import Program, python_program
from holdfast.worker.options import WorkerOptions
from holdfast.worker.reporting import Reporter
from holdfast.worker.supervisor import Supervisor

from ..faults.ledgers import GrowingFile
from ..faults.processes import ROOT, Program as Process, Programs, until
from ..servers.mysql import MariadbServer
from ..servers.places import Place
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from . import app
from .bench import KEY

T = TypeVar("T")
AT_ONCE = BackoffPolicy(Backoff(strategy=BackoffStrategy.NONE, jitter=0.0))
NO_COPIES = DeadLetterQueues()
OPTIONS = WorkerOptions(queues={"default": 1}, kill_after_s=0.3, poll_interval_s=0.5)


def runs(pid: int) -> bool:
    """Whether it is a process, and not only the memory of one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class ShakyState(SharedState):
    """Shared state that fails with its engine, which counts its calls as the verbs `state` and `spend`."""

    def __init__(self, sound: SharedState, engine: "ShakyEngine") -> None:
        self._sound = sound
        self._engine = engine

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Cell]:
        return self._engine.shaky("state", lambda: self._sound.read(kind, keys, after=after, limit=limit))

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        return self._engine.shaky("state", lambda: self._sound.write(writes))

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return self._engine.shaky("spend", lambda: self._sound.spend(spends))

    def sweep(self, limit: int = 1000) -> int:
        return self._engine.shaky("state", lambda: self._sound.sweep(limit))


class ShakyEngine(Engine):
    """Fails where a test wants it to: a verb while it is `down`, or once after it was done, its answer lost.

    It comes before the engine it spoils among the bases of a class.
    """

    def __init__(self, address: Path | str, **options: Any) -> None:
        self.ring = Keyring.parse(KEY)
        self._sound.__init__(address, EnvelopeFactory(self.ring, clock=SYSTEM_CLOCK), **options)
        self.state = ShakyState(self.state, self)
        self.down: set[str] = set()
        self.lost_answers: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @property
    def _sound(self) -> Any:
        """The engine as it is."""
        return super()

    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        return self.shaky("claim", lambda: self._sound.claim(queue, limit, owner_token=owner_token))

    def enter(self, entries: Sequence[SlotEntry]) -> list[Entered]:
        return self.shaky("enter", lambda: self._sound.enter(entries))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self.shaky("settle", lambda: self._sound.settle(settlements))

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        call: Callable[..., tuple[list[bool], list[JobLease]]] = self._sound.exchange
        return self.shaky("exchange", lambda: call(settlements, queue, limit, owner_token=owner_token))

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        return self.shaky("accept", lambda: self._sound.accept(envelopes, tx, writes=writes))

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        call: Callable[..., Page] = self._sound.find
        return self.shaky("find", lambda: call(where, limit=limit, after=after))

    def get(self, job_id: str) -> JobHistory | None:
        call: Callable[..., JobHistory | None] = self._sound.get
        return self.shaky("get", lambda: call(job_id))

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self.shaky("renew_many", lambda: self._sound.renew_many(leases))

    def shaky(self, verb: str, call: Callable[[], T]) -> T:
        self.calls[verb] += 1
        if verb in self.down:
            raise BackendUnavailable(f"{verb}: nobody is there")
        answer = call()
        if answer and self.lost_answers[verb]:
            self.lost_answers[verb] -= 1
            raise BackendUnavailable(f"{verb}: the answer was lost")
        return answer


class ShakySqlite(ShakyEngine, SqliteEngine):
    pass


class ShakyPostgres(ShakyEngine, PostgresEngine):
    pass


class ShakyMysql(ShakyEngine, MysqlEngine):
    pass


class ShakyRedis(ShakyEngine, RedisEngine):
    pass


def shaky_engine(place: Place, policy: LeasePolicy) -> ShakyEngine:
    """The engine of this place."""
    match place.server:
        case PostgresServer(url=url):
            return ShakyPostgres(url, policy=policy, prefix=place.prefix)
        case MariadbServer(url=url):
            return ShakyMysql(url, policy=policy, prefix=place.prefix)
        case RedisServer(url=url):
            return ShakyRedis(url, policy=policy, prefix=place.prefix)
        case _:
            return ShakySqlite(place.database, policy=policy)


class Entry(NamedTuple):
    """One line of the ledger."""

    what: str
    id: str
    pid: int
    words: tuple[str, ...]


class Running:
    """A running worker, on its own thread."""

    def __init__(self, supervisor: Supervisor, metrics: InMemoryMetrics) -> None:
        self.supervisor = supervisor
        self.metrics = metrics
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker")
        self._thread.start()

    @property
    def tally(self) -> dict[WorkerStatus, int]:
        return dict(self.supervisor.reporter.tally)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, order: StopOrder = StopOrder.DRAIN) -> None:
        """Stop it."""
        self.supervisor.stop(order)

    def ended(self) -> None:
        """Wait until it has stopped, and check that every delivery has one end."""
        until(lambda: not self.is_running, "the worker to leave")
        assert self._problem is None, self._problem
        reporter, ends = self.supervisor.reporter, {end.name: self.metrics.total(end) for end in End}
        assert self.metrics.total("jobs_fetched") == sum(ends.values()), ends
        assert reporter.claimed == reporter.tally.total() + reporter.unsettled

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except BaseException as problem:
            self._problem = problem


class Floor:
    """Everything in one directory."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.directory = directory = place.directory
        self._ledger = GrowingFile(directory / "ledger")
        self._opened: list[ShakyEngine] = []
        self._workers: list[Running] = []
        self._processes = Programs(
            directory,
            FLOOR=str(directory),
            HOLDFAST_URL=place.url,
            HOLDFAST_SIGNING_KEY=KEY,
            HOLDFAST_REAP_INTERVAL="0.1",
            HOLDFAST_POLL_INTERVAL="0.1",
            HOLDFAST_BACKOFF="none",
        )
        self.engine = self.open()

    def open(self, *, lease_s: float = 30.0, crash_limit: int = 3) -> ShakyEngine:
        """The engine with this policy, for all that follows."""
        self.engine = shaky_engine(self.place, LeasePolicy(lease_s=lease_s, crash_limit=crash_limit))
        self._opened.append(self.engine)
        return self.engine

    def close(self) -> None:
        self._processes.end_all()
        for worker in self._workers:
            if worker.is_running:
                worker.stop(StopOrder.NOW)
        for worker in self._workers:
            worker.ended()
        for engine in self._opened:
            engine.close()

    def definition(
        self, job: str, payload: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> JobDefinition:
        return definition_of(job, payload, options)

    def put(self, job: str, payload: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> str:
        """Enqueue one job."""
        return self.engine.enqueue(self.definition(job, payload, **options), id=options.get("id"))

    def put_many(self, number: int, job: str, **options: Unpack[JobOptions]) -> list[str]:
        """Enqueue so many at once."""
        definition = self.definition(job, **options)
        envelopes = [self.engine.envelopes.make(definition) for _ in range(number)]
        return [one.id for one in self.engine.accept(envelopes)]

    def program(self, **setup: Any) -> Program:
        """How the children are started."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        imports = os.pathsep.join([*filter(None, [environment.get("PYTHONPATH")]), str(ROOT)])
        environment |= {"PYTHONPATH": imports, "FLOOR": str(self.directory)}
        document = msgspec.json.encode(Setup(app="tests.worker.app:hf", **setup)).decode()
        return python_program("holdfast.executor", [document], environment)

    def scripted(self, manner: str) -> Program:
        """Children that run no jobs and send what `scripted.py` defines."""
        return python_program("tests.worker.scripted", [manner], self.program().environment)

    def supervisor(
        self,
        *,
        program: Program | None = None,
        commands: Sequence[str] = (),
        unknown_to_children: str = "",
        max_jobs_per_child: int = 0,
        max_memory_bytes: int = 0,
        listener: Callable[[Sequence[WorkerResult]], None] | None = None,
        breaker: Rule = DEFAULT_RULE,
        dead_letters: DeadLetterQueues = NO_COPIES,
        metrics: InMemoryMetrics | None = None,
        limits: Mapping[str, Rate] | None = None,
        **options: Any,
    ) -> Supervisor:
        """A worker of these jobs; interrupts are short and failures are retried at once."""
        registry = HandlerRegistry()
        registry.register(COMMAND_KEY, CommandHandler(commands))
        app.register(registry)
        if unknown_to_children:
            registry.register(unknown_to_children, app.quick)
        chosen = msgspec.structs.replace(OPTIONS, **options)
        setup = {"slots": chosen.concurrency, "max_jobs": max_jobs_per_child, "max_memory_bytes": max_memory_bytes}
        return Supervisor(
            self.engine,
            program=program or self.program(**setup, allow=tuple(commands)),
            registry=registry,
            admission=Admission(self.engine.ring, registry, SYSTEM_CLOCK),
            retry=AT_ONCE,
            copies=DeadLetterCopies(self.engine.envelopes, self.engine.ring, dead_letters),
            reporter=Reporter(metrics or InMemoryMetrics(), registry, listener=listener),
            options=chosen,
            version="0",
            limits=limits,
            breaker=breaker,
        )

    def start(self, **options: Any) -> Running:
        """Start a worker."""
        metrics = InMemoryMetrics()
        worker = Running(self.supervisor(metrics=metrics, **options), metrics)
        self._workers.append(worker)
        return worker

    def work(self, **options: Any) -> Running:
        """Run a worker until no job is due."""
        worker = self.start(burst=True, **options)
        worker.ended()
        return worker

    def process(self, *options: str, lease_s: int = 60, is_greeted: bool = True, **environment: str) -> Process:
        """Start a worker as the program it is, which signals can reach."""
        arguments = ("worker", "start", "tests.worker.app:hf", "--kill-after", "0.3", *options)
        process = self._processes.holdfast(*arguments, HOLDFAST_LEASE=str(lease_s), **environment)
        if is_greeted:
            process.wait_for("queues default")
        return process

    @contextmanager
    def stranger(self) -> Generator[sqlite3.Connection]:
        """A connection of another program to the same file."""
        connection = sqlite3.connect(self.place.database, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    def open_gate(self, gate: str) -> None:
        (self.directory / f"gate-{gate}").touch()

    def ledger(self, *what: str) -> list[Entry]:
        """The lines of these kinds, or all."""
        lines = [line.split() for line in self._ledger.lines()]
        entries = [Entry(kind, id, int(pid), tuple(words)) for kind, id, pid, *words in lines]
        return [entry for entry in entries if not what or entry.what in what]

    def starts(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(entry.id for entry in self.ledger("start"))

    def ends(self) -> Counter[str]:
        """How often each job was run to its end."""
        return Counter(entry.id for entry in self.ledger("end"))

    def noted(self, what: str, id: str, *, times: int = 1) -> Entry:
        """Wait for that line about the job, the last of so many."""

        def look() -> list[Entry]:
            found = [entry for entry in self.ledger(what) if entry.id == id]
            return found if len(found) >= times else []

        return until(look, f"'{what}' of job {id}")[times - 1]

    def reached(self, id: str, *states: JobState) -> JobView:
        """Wait until the job is in one of these states."""
        until(lambda: self.view(id).state in states, f"job {id} to be {' or '.join(states)}")
        return self.view(id)

    def history(self, id: str) -> JobHistory:
        history = self.engine.get(id)
        assert history is not None, f"job '{id}' is gone"
        return history

    def view(self, id: str) -> JobView:
        return self.history(id).job

    def state(self, id: str) -> JobState:
        return self.view(id).state

    def records(self, id: str) -> list[AttemptRecord]:
        return [past.record for past in self.history(id).attempts]

    def outcomes(self, id: str) -> list[Outcome]:
        return [record.outcome for record in self.records(id)]
