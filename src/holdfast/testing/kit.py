"""`JobKit`: holds an application's jobs in memory during a test, to be inspected and run."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, ParamSpec, Self, TypeAlias, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct

from holdfast.app import Holdfast
from holdfast.clock import duration_us, from_us, to_us
from holdfast.cron.schedule import Schedule
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.definition.definition import MAX_DURATION_S, check_queue
from holdfast.definition.durations import Duration, in_seconds
from holdfast.deployment import job_defaults
from holdfast.errors import DefinitionError, HoldfastError, JobFailed, NotSupported, UnknownHandler
from holdfast.handlers import FunctionHandler, Handler
from holdfast.job import Job
from holdfast.queues.contract import EngineTransaction, LeasePolicy
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, Signer, SigningKey
from holdfast.state.ownership import IDEMPOTENCY
from holdfast.testing.clock import TravellingClock
from holdfast.testing.drained import UNKNOWN, Drained, end_of
from holdfast.testing.enqueued import Enqueued, Expectation, Expected, counted, enqueued
from holdfast.testing.scheduled import ScheduledRuns
from holdfast.testing.turns import Turn, Turns, is_running
from holdfast.values import (
    Accepted,
    Ack,
    CellWrite,
    Entry,
    EntryOutcome,
    JobEnvelope,
    JobState,
    Settlement,
    Slot,
)

P = ParamSpec("P")
T = TypeVar("T")
AnyJob: TypeAlias = Job[..., Any, Any] | type[Handler] | str
LIMIT: Final = 10_000
_SHOWN: Final = 5
_HOLDERS: Final = "holdfast-testing"


class KitEngine(MemoryEngine):
    """The memory engine, which reports to the kit every job it accepts. Leases do not expire, because the kit runs and
    settles every job that it claims.

    Enqueueing in a caller's transaction is accepted, but the job does not wait for the commit.
    """

    capabilities = msgspec.structs.replace(MemoryEngine.capabilities, transactional_enqueue=True)

    def __init__(
        self,
        envelopes: EnvelopeFactory,
        clock: TravellingClock,
        on_accepted: Callable[[Sequence[JobEnvelope], bool], None],
    ) -> None:
        super().__init__(envelopes, policy=LeasePolicy(lease_s=MAX_DURATION_S), clock=clock)
        self._travelling = clock
        self._on_accepted = on_accepted
        self._queues: set[str] = set()

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        accepted = super().accept(envelopes, writes=writes)
        self._travelling.woken()
        created = [envelope for envelope, one in zip(envelopes, accepted, strict=True) if one.created]
        self._queues.update(envelope.queue for envelope in created)
        self._on_accepted(created, tx is not None)
        return accepted

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._travelling.woken()
        return super().settle(settlements)

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        raise NotSupported(
            "the testing kit has no transactions for handlers: test this handler on its own engine, with "
            "Holdfast('sqlite:///…') or your server's URL and hf.worker().process_once(queue)"
        )

    def next_due(self, queues: Collection[str] | None) -> tuple[int, str] | None:
        """When the next job is due, and in which queue; paused queues are skipped."""
        return min(((due_us, queue) for queue, due_us in self.dues(queues).items()), default=None)

    def dues(self, queues: Collection[str] | None) -> dict[str, int]:
        """When the next job of each queue is due; paused queues are skipped."""
        with self.store.lock:
            open_queues = [queue for queue in sorted(self._queues) if queue not in self.store.pauses]
            dues = {queue: self.store.next_due_us(queue) for queue in open_queues if queues is None or queue in queues}
        return {queue: due_us for queue, due_us in dues.items() if due_us is not None}

    def clear(self) -> None:
        """Delete all jobs."""
        self.store.clear()

    @contextmanager
    def held(self, key: str) -> Generator[None]:
        """Let a job in a private queue hold a key inside the block."""
        definition = JobDefinition(handler="holdfast.testing.holder", queue=_HOLDERS)
        self.jobs.accept([self.envelopes.make(definition)])
        lease = self.fetch(_HOLDERS)
        assert lease is not None
        [entered] = self.enter([Entry(lease=lease, slots=(Slot(name=key),))])
        if entered.outcome is not EntryOutcome.ENTERED:
            self.cancel(lease.id)
            raise HoldfastError(f"the key '{key}' is already held")
        try:
            yield
        finally:
            super().settle([Ack(lease=lease, leaves=(key,))])
            self.discard(lease.id, states=(JobState.COMPLETED,))


class _Stage(Struct, frozen=True):
    """The objects of a kit that has been entered."""

    engine: KitEngine
    signer: Signer
    turns: Turns
    schedules: ScheduledRuns
    leaving: ExitStack


class JobKit:
    """The jobs of one application during a test. Inside the `with` block, the application uses an engine in memory.

    In manual mode, jobs wait for `drain`. In inline mode, a job runs before `enqueue` returns. In both modes it is
    encoded, verified, retried and settled as a worker would do it.
    """

    __test__ = False

    def __init__(self, app: Holdfast, *, inline: bool = False) -> None:
        if not isinstance(app, Holdfast):  # pyright: ignore[reportUnnecessaryIsInstance] - easily mistaken
            raise TypeError(f"a JobKit takes a Holdfast application, not {app!r}")
        self.app = app
        self.clock = TravellingClock()
        self._is_inline = inline
        self._raises = True
        self._log: list[Enqueued] = []
        self._entered: _Stage | None = None
        self._draining = threading.Lock()

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this JobKit is already in use; create another one")
        signer = Keyring([SigningKey.generate()])
        envelopes = EnvelopeFactory(signer, clock=self.clock, defaults=job_defaults(self.app.settings))
        engine = KitEngine(envelopes, self.clock, self._note)
        leaving = ExitStack()
        leaving.enter_context(self.app.engines.replaced_by(engine, signer))
        turns = Turns(self.app, engine, signer)
        leaving.callback(turns.close)
        self._log.clear()
        self._entered = _Stage(engine, signer, turns, ScheduledRuns(self.app), leaving)
        return self

    def __exit__(self, *_: object) -> None:
        stage, self._entered = self._stage, None
        stage.leaving.close()

    @property
    def _stage(self) -> _Stage:
        if self._entered is None:
            raise RuntimeError("this JobKit is not in use: write  with JobKit(hf) as kit:")
        return self._entered

    @property
    def enqueued(self) -> tuple[Enqueued, ...]:
        """Every enqueued job, in order, whether or not it has run."""
        return tuple(self._log)

    def now(self) -> datetime:
        """The current time of the jobs: the real time plus what `drain` and `advance` have skipped."""
        return self.clock.now()

    def advance(self, span: Duration) -> None:
        """Advance the clock of the jobs, without running any."""
        self.clock.advance(span)

    def clear(self) -> None:
        """Delete every job, including those that wait."""
        self._stage.engine.clear()
        self._log.clear()

    @contextmanager
    def inline(self, *, raise_errors: bool = True) -> Generator[Self]:
        """Inside the block, run each job before `enqueue` returns, which raises `JobFailed` if the job is dead."""
        with self._mode(inline=True, raises=raise_errors):
            yield self

    @contextmanager
    def manual(self) -> Generator[Self]:
        """Inside the block, jobs wait for `drain`."""
        with self._mode(inline=False, raises=self._raises):
            yield self

    @contextmanager
    def _mode(self, *, inline: bool, raises: bool) -> Generator[None]:
        before = self._is_inline, self._raises
        self._is_inline, self._raises = inline, raises
        try:
            yield
        finally:
            self._is_inline, self._raises = before

    def assert_enqueued(
        self,
        job: AnyJob | None = None,
        args: object = None,
        *,
        count: int | None = None,
        **expected: Unpack[Expected],
    ) -> tuple[Enqueued, ...]:
        """Assert that at least one enqueued job matches, or exactly `count` of them, and return them.

        `job` is a job, a handler's class or its key; default: any job. `args` has some of the arguments with their
        expected values. A nested mapping may have some of the members, and a function may take the place of a value: it
        is called with the actual one.
        """
        __tracebackhide__ = True
        if count is not None and (isinstance(count, bool) or count < 1):
            raise DefinitionError(f"count must be 1 or more, not {count!r}; use refute_enqueued() to expect none")
        expectation = self._expectation(job, args, expected)
        matching = tuple(one for one in self._log if expectation.matches(one))
        if len(matching) == count or (matching and count is None):
            return matching
        if not matching:
            problem = f"no enqueued job matches {expectation}"
        else:
            verb = "matches" if len(matching) == 1 else "match"
            problem = f"{counted(len(matching))} enqueued that {verb} {expectation}, expected {count}"
        raise AssertionError(f"{problem}\n{expectation.listing(self._log)}")

    def refute_enqueued(self, job: AnyJob | None = None, args: object = None, **expected: Unpack[Expected]) -> None:
        """Assert that no enqueued job matches; without arguments, that none was enqueued."""
        __tracebackhide__ = True
        expectation = self._expectation(job, args, expected)
        number = sum(expectation.matches(one) for one in self._log)
        if number:
            problem = f"{counted(number)} enqueued that should not have been: {expectation}"
            raise AssertionError(f"{problem}\n{expectation.listing(self._log)}")

    def drain(
        self,
        *,
        queue: str | Collection[str] | None = None,
        within: Duration | None = None,
        limit: int = LIMIT,
        raise_errors: bool = False,
    ) -> Drained:
        """Run jobs, earliest first, until none is waiting, and count how the runs ended.

        The clock advances to the next due time, so scheduled, retried and snoozed jobs also run, and so do jobs that
        other jobs enqueue. `within` limits this to jobs due in that time. More than `limit` runs are an error: a job
        probably enqueues itself forever. With `raise_errors`, this finally raises `JobFailed` if a job is dead, with
        the job's own exception as its cause.
        """
        __tracebackhide__ = True
        stage, drain = self._stage, self._drain(queue, within, limit)
        with self.clock.standing_still():
            while (due := drain.next()) is not None:
                drain.note(stage.turns.take(due))
        return drain.ended(raise_errors=raise_errors)

    def travel(
        self,
        span: Duration,
        *,
        environment: str | None = None,
        limit: int = LIMIT,
        raise_errors: bool = False,
    ) -> Drained:
        """Advance the clock by this duration and run what becomes due: schedules fire, and jobs run, the earliest
        first. Returns the number of runs by result.

        Schedules run from the first call on, in this environment; default: the setting `environment`.
        """
        __tracebackhide__ = True
        stage, drain = self._stage, self._drain(None, span, limit)
        # In inline mode, a job that is retried would advance the clock beyond the next schedule.
        with self.manual(), self.clock.standing_still():
            until = self.clock.now() + timedelta(seconds=in_seconds("span", span))
            runner = stage.schedules.runner(environment)
            cells = runner.schedules.cells
            changes = cells.changes()
            while True:
                at = runner.next_at
                is_on_the_way = at is not None and at <= until
                drain.until_us = to_us(at if at is not None and is_on_the_way else until)
                if (due := drain.next()) is not None:
                    drain.note(stage.turns.take(due))
                    if (now := cells.changes()) != changes:  # the job has changed a schedule
                        runner.prepare()
                        changes = now
                elif at is not None and is_on_the_way:
                    self.clock.travel_to(at)
                    runner.tick()
                else:
                    break
            self.clock.travel_to(until)
        return drain.ended(raise_errors=raise_errors)

    def assert_scheduled(self, name: str, *, at: datetime | None = None, environment: str | None = None) -> Schedule:
        """Assert that a schedule exists and runs, at this time if one is given, and return it.

        A time without an offset is in the time zone of the schedule.
        """
        __tracebackhide__ = True
        problem = self._stage.schedules.problem(name, at, environment)
        if problem:
            raise AssertionError(problem)
        return self._stage.schedules.find(name)

    def refute_scheduled(self, name: str, *, at: datetime | None = None, environment: str | None = None) -> None:
        """Assert that a schedule does not exist or does not run, or not at this time if one is given."""
        __tracebackhide__ = True
        if not self._stage.schedules.problem(name, at, environment):
            raise AssertionError(f"schedule '{name}' runs{'' if at is None else f' at {at.isoformat(sep=chr(32))}'}")

    @contextmanager
    def held(self, key: str) -> Generator[None]:
        """Hold a key inside the block, as a job in another worker would: jobs with this key are blocked.

        The key starts with its kind, as in `holdfast lock list`: `key:customer-7`, `instance:report` or
        `idempotency:charge/order-7`.
        """
        kind, _, name = key.partition(":")
        if kind not in ("key", "instance", IDEMPOTENCY) or not name:
            raise DefinitionError(
                f"{key!r} is not a key; write key:NAME, instance:NAME or idempotency:HANDLER/KEY, as "
                "holdfast lock list shows it"
            )
        with self._stage.engine.held(key):
            yield
        self._run_inline()

    async def drain_async(
        self,
        *,
        queue: str | Collection[str] | None = None,
        within: Duration | None = None,
        limit: int = LIMIT,
        raise_errors: bool = False,
    ) -> Drained:
        """Like `drain`, but run coroutine handlers on the event loop of the test."""
        __tracebackhide__ = True
        stage, drain = self._stage, self._drain(queue, within, limit)
        with self.clock.standing_still():
            while (due := drain.next()) is not None:
                drain.note(await stage.turns.take_async(due))
        return drain.ended(raise_errors=raise_errors)

    @overload
    def perform(self, job: Job[P, Any, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def perform(self, job: JobDefinition | JobBuilder, /, *, attempt: int = 1) -> Any: ...
    def perform(self, job: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run one job once, and return its result or raise its exception; it is not enqueued or retried.

        The arguments are encoded, signed, verified and decoded as for any job. With a definition, such as
        `job.define(...)`, `attempt` is the number of the attempt.
        """
        __tracebackhide__ = True
        turns = self._stage.turns
        value = turns.perform(*self._performed(job, args, kwargs))
        self._run_inline()
        return value

    @overload
    async def perform_async(self, job: Job[P, Any, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def perform_async(self, job: JobDefinition | JobBuilder, /, *, attempt: int = 1) -> Any: ...
    async def perform_async(self, job: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Like `perform`, but run a coroutine handler on the event loop of the test."""
        __tracebackhide__ = True
        turns = self._stage.turns
        value = await turns.perform_async(*self._performed(job, args, kwargs))
        self._run_inline()
        return value

    def _performed(
        self, job: Job[..., Any, Any] | JobDefinition | JobBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[JobEnvelope, int]:
        attempt = 1
        if isinstance(job, Job):
            self._check_ours(job)
            definition, job_id = job.definition_and_id(*args, **kwargs)
        else:
            definition, job_id = job.definition_and_id() if isinstance(job, JobBuilder) else (job, None)
            attempt = kwargs.pop("attempt", 1)
            if args or kwargs:
                raise TypeError("a definition already has its arguments; only attempt= may be added")
            if not attempt >= 1:
                raise ValueError(f"attempt must be 1 or more, not {attempt}")
        # With the hooks of enqueueing, because the handler may need what they add to the job.
        with self.app.signed([definition], [job_id]) as batch:
            [envelope] = batch.envelopes
        return envelope, attempt

    def _drain(self, queue: str | Collection[str] | None, within: Duration | None, limit: int) -> "_Drain":
        if is_running():
            raise HoldfastError("a job cannot call drain(); the jobs that it enqueues run when it has finished")
        queues = None if queue is None else {queue} if isinstance(queue, str) else set(queue)
        for one in queues or ():
            check_queue(one)
        span = None if within is None else in_seconds("within", within)
        if span is not None and not span >= 0:
            raise ValueError(f"within must be a duration of 0 s or more, not {span:g} s")
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        until_us = None if span is None else self.clock.now_us() + duration_us(span)
        return _Drain(self._stage.engine, self.clock, queues, until_us, limit)

    def _note(self, envelopes: Sequence[JobEnvelope], in_transaction: bool) -> None:
        """Record accepted jobs; in inline mode, run them."""
        stage, now = self._stage, self.clock.now()
        for envelope in envelopes:
            message = stage.signer.open(envelope.wire)
            self._log.append(enqueued(envelope, message, self._handler(envelope.job), now))
        # In a caller's transaction, the job would run before the data it needs is committed.
        if not in_transaction:
            self._run_inline()

    def _run_inline(self) -> None:
        """In inline mode, run the waiting jobs. If another thread is already running them, it also runs this one's."""
        engine = self._stage.engine
        if not self._is_inline or is_running():
            return
        while engine.next_due(None) is not None and self._draining.acquire(blocking=False):
            try:
                self.drain(raise_errors=self._raises)
            finally:
                self._draining.release()

    def _handler(self, key: str) -> Handler | None:
        try:
            return self.app.registry.resolve(key)
        except UnknownHandler:
            return None

    def _expectation(self, job: AnyJob | None, args: object, expected: Expected) -> Expectation:
        key = None if job is None else self._key_of(job)
        return Expectation(key, None if key is None else self._handler(key), args, expected)

    def _key_of(self, job: AnyJob) -> str:
        match job:
            case str():
                return JobDefinition(handler=job).handler  # checks the key
            case Job():
                self._check_ours(job)
                return job.key
            case type():
                known = self.app.registry.keys()
                keys = [key for key in known if type(self._handler(key)) is job]
                if len(keys) != 1:
                    found = f"registered under {', '.join(keys)}" if keys else "not registered"
                    raise DefinitionError(f"{job.__name__} is {found}; pass the handler's key instead")
                return keys[0]
            case _:
                raise DefinitionError(f"{job!r} is not a job; pass a job, a handler's class or its key")

    def _check_ours(self, job: Job[..., Any, Any]) -> None:
        handler = self._handler(job.key)
        if not isinstance(handler, FunctionHandler) or handler.function is not getattr(job, "__wrapped__", None):
            raise DefinitionError(
                f"job '{job.key}' does not belong to the application under test: pass its own application to JobKit, "
                "name it in the pytest setting holdfast_app, or return it from a fixture of that name"
            )


class _Drain:
    """One call of `drain`."""

    def __init__(
        self,
        engine: KitEngine,
        clock: TravellingClock,
        queues: Collection[str] | None,
        until_us: int | None,
        limit: int,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._queues = queues
        self.until_us = until_us
        self._limit = limit
        self._turns = 0
        self._ends: Counter[tuple[str, str]] = Counter()
        self._dead: list[Turn] = []
        self._drained = Drained()
        self._next_token_us: dict[str, int] = {}

    def next(self) -> str | None:
        """Advance the clock to the next job and return its queue; None if no job is left."""
        dues = self._engine.dues(self._queues).items()
        # The jobs of a queue that has reached its rate limit wait for its next token.
        due = min(((max(due_us, self._next_token_us.get(queue, 0)), queue) for queue, due_us in dues), default=None)
        if due is None or (self.until_us is not None and due[0] > self.until_us):
            return None
        if self._turns >= self._limit:
            raise AssertionError(self._endless())
        self._turns += 1
        self._clock.travel_to(from_us(due[0]))
        return due[1]

    def note(self, turn: Turn | None) -> None:
        if turn is None:
            return
        if turn.result.job_id is None and turn.result.queue is not None:
            self._turns -= 1
            self._next_token_us[turn.result.queue] = self._clock.now_us() + duration_us(turn.result.retry_in or 0.0)
            return
        result, end = turn.result, end_of(turn.result)
        self._drained.add(result)
        self._ends[result.job or "a job that cannot be read", end] += 1
        if end in ("dead", UNKNOWN):
            self._dead.append(turn)
        if end == UNKNOWN:  # a worker would wait for a deployment; in a test nothing can change before it continues
            self._engine.cancel(str(result.job_id), result.error.line if result.error is not None else "")

    def ended(self, *, raise_errors: bool) -> Drained:
        if raise_errors and self._dead:
            first = self._dead[0]
            more = f" (and {len(self._dead) - 1} more)" if len(self._dead) > 1 else ""
            error = first.result.error.line if first.result.error is not None else "no error was recorded"
            verb = "cannot run here" if end_of(first.result) == UNKNOWN else "is dead"
            raise JobFailed(f"job '{first.result.job_id}' ({first.result.job}) {verb}: {error}{more}") from first.raised
        return self._drained

    def _endless(self) -> str:
        most = ", ".join(f"'{job}' {end} {number:,} times" for (job, end), number in self._ends.most_common(_SHOWN))
        return (
            f"jobs are still waiting after {self._limit:,} runs: {most}. Does a job enqueue or snooze itself forever? "
            "If not, pass a higher limit to drain()"
        )
