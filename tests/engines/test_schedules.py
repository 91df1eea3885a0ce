"""Schedules on every engine: eight runners, whose clocks differ by up to a minute, are stopped between any two steps.

Each due instant becomes exactly one job, and the ledger accounts for all of them. With HOLDFAST_LONG=1 in the
environment, a whole day passes on every engine.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from holdfast.clock import ManualClock, to_us
from holdfast.cron.runner import CronRunner
from holdfast.cron.schedule import Schedule
from holdfast.cron.stored import Definitions, Schedules
from holdfast.cron.timing import Cron, Every
from holdfast.definition import JobDefinition
from holdfast.queues.contract import Engine
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.testing import Lab, memory_lab, sqlite_lab
from holdfast.values import Accepted, CatchUp, JobEnvelope, Overlap, ScheduleSource, TickOutcome

from ..conformance.labs import mysql_lab, postgres_lab, redis_lab

IS_LONG: Final = os.environ.get("HOLDFAST_LONG") == "1"
KEYRING: Final = Keyring([SigningKey(b"the key of the laboratory, 32 bytes")])
RUNNERS: Final = 8
SKEW_S: Final = 30.0
SCHEDULES: Final = (
    Schedule(name="import", definition=JobDefinition(handler="import"), timing=Every(600)),
    Schedule(
        name="report", definition=JobDefinition(handler="report"), timing=Cron("*/5 * * * *"), depends_on=("import",)
    ),
    Schedule(
        name="clean",
        definition=JobDefinition(handler="clean"),
        timing=Every(420),
        catch_up=CatchUp.ALL,
        catch_up_limit=3,
    ),
    Schedule(
        name="mail",
        definition=JobDefinition(handler="mail"),
        timing=Cron("7 * * * *", "Europe/Berlin"),
        catch_up=CatchUp.LAST,
        overlap=Overlap.QUEUE,
    ),
)


@contextmanager
def fresh_sqlite_lab() -> Generator[Lab]:
    with TemporaryDirectory() as folder, sqlite_lab(Path(folder) / "jobs.db") as lab:
        yield lab


LABS: Final[dict[str, tuple[type[Engine], Callable[[], AbstractContextManager[Lab]]]]] = {
    "memory": (MemoryEngine, memory_lab),
    "sqlite": (SqliteEngine, fresh_sqlite_lab),
    "postgres": (PostgresEngine, postgres_lab),
    "mysql": (MysqlEngine, mysql_lab),
    "redis": (RedisEngine, redis_lab),
}


@pytest.fixture(params=[name for name, (engine, _) in LABS.items() if engine.capabilities.dependencies])
def lab(request: pytest.FixtureRequest) -> Generator[Lab]:
    with LABS[request.param][1]() as lab:
        yield lab


def note_stored(engine: Engine, ids: list[str]) -> None:
    """Note the ids of all jobs that this engine is asked to store. It would recognise one that is stored again within
    an hour, but the runner must not rely on that.
    """
    accept = engine.accept

    def noted(envelopes: Sequence[JobEnvelope], *arguments: Any, **options: Any) -> list[Accepted]:
        answer = accept(envelopes, *arguments, **options)
        ids.extend(one.id for one in envelopes)
        return answer

    engine.accept = noted  # type: ignore[method-assign]


class Killed(BaseException):
    """The runner was killed between two steps."""


class Stepping:
    """Runs calls of several runners at once, one step at a time in a random order, and kills some between two steps."""

    def __init__(self, choices: random.Random, deadliness: float) -> None:
        self._choices = choices
        self._deadliness = deadliness
        self._turns: dict[int, threading.Semaphore] = {}
        self._paused = threading.Semaphore(0)
        self._waiting: list[int] = []
        self._lock = threading.Lock()
        self.stored: list[str] = []

    def watch(self, engine: Engine) -> None:
        """Make every call of this engine a step, and note the jobs that it stores."""
        note_stored(engine, self.stored)
        for owner, names in ((engine, ("accept", "find", "describe")), (engine.state, ("read", "write"))):
            for name in names:
                setattr(owner, name, self._stepped(getattr(owner, name)))

    def _stepped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            self._pause()
            answer = call(*arguments, **options)
            self._pause()
            return answer

        return stepped

    def _pause(self) -> None:
        turn = self._turns.get(threading.get_ident())
        if turn is None:
            return
        with self._lock:
            self._waiting.append(threading.get_ident())
        self._paused.release()
        turn.acquire()
        if self._choices.random() < self._deadliness:
            raise Killed

    def run(self, calls: list[Callable[[], object]]) -> list[bool]:
        """Run these calls, and return which of them were killed."""
        killed = [False] * len(calls)

        def run(number: int) -> None:
            self._turns[threading.get_ident()] = threading.Semaphore(0)
            try:
                self._pause()
                calls[number]()
            except Killed:
                killed[number] = True
            finally:
                del self._turns[threading.get_ident()]
                self._paused.release()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
        for thread in threads:
            thread.start()
        for _ in threads:
            self._paused.acquire()
        while self._waiting:
            at = self._choices.randrange(len(self._waiting))
            self._turns[self._waiting.pop(at)].release()
            self._paused.acquire()
        for thread in threads:
            thread.join()
        return killed


class Crew:
    """Eight runners, each with its own engine handle. A killed runner is replaced by a new one."""

    def __init__(self, lab: Lab, choices: random.Random, deadliness: float) -> None:
        self._lab = lab
        self._choices = choices
        self._stepping = Stepping(choices, deadliness)
        self.stored = self._stepping.stored
        self._clocks: list[ManualClock] = []
        self._engines: list[Engine] = []
        for number in range(RUNNERS):
            skew_s = -SKEW_S + 2 * SKEW_S * number / (RUNNERS - 1)
            clock = ManualClock(lab.now() + timedelta(seconds=skew_s))
            engine = lab.open(clock=clock)
            self._stepping.watch(engine)
            self._clocks.append(clock)
            self._engines.append(engine)
        self._runners = [CronRunner(engine, KEYRING) for engine in self._engines]
        self.kills = 0

    def advance(self, seconds: float) -> None:
        self._lab.advance(seconds)
        for clock in self._clocks:
            clock.advance(seconds)

    def work(self) -> None:
        """Let some of the runners do what is due, step by step."""
        chosen = self._choices.sample(range(RUNNERS), self._choices.randint(1, RUNNERS))
        killed = self._stepping.run([self._runners[number].step for number in chosen])
        for number, is_killed in zip(chosen, killed, strict=True):
            if is_killed:
                self.kills += 1
                self._runners[number] = CronRunner(self._engines[number], KEYRING)

    def finish(self) -> None:
        """Let one that lives do the rest, after all clocks have passed the last instant."""
        survivor = CronRunner(self._lab.engine, KEYRING)
        while survivor.tick():
            pass


def check(lab: Lab, start: datetime, end: datetime) -> Counter[TickOutcome]:
    """Every instant is accounted for once, and every run that the ledger lists is exactly one job."""
    schedules = Schedules(lab.engine, KEYRING)
    outcomes: Counter[TickOutcome] = Counter()
    expected_jobs: set[str] = set()
    for schedule in SCHEDULES:
        instants = schedule.instants(start, end, 100_000)
        entries = schedules.history(schedule.name, 1000)
        covered = [
            instant
            for entry in reversed(entries)
            for instant in instants
            if to_us(instant) >= (entry.tick.first_us or to_us(entry.instant)) and instant <= entry.instant
        ]
        assert covered == instants, schedule.name
        assert sum(entry.tick.count for entry in entries) == len(instants)
        for entry in entries:
            outcomes[entry.tick.outcome] += entry.tick.count
            assert entry.tick.at_us >= to_us(entry.instant), "it fired before its instant, by the engine's clock"
            if entry.tick.job_id is not None:
                expected_jobs.add(entry.tick.job_id)
    jobs = {id: lab.view(id) for id in lab.ids()}
    assert set(jobs) == expected_jobs
    for id, job in jobs.items():
        if job.schedule == "report" and f"import@{id.partition('@')[2]}" in jobs:
            assert job.after == (f"import@{id.partition('@')[2]}",)
    return outcomes


@pytest.mark.parametrize("seed", [1, 2])
def test_each_instant_is_fired_once_by_eight_runners_that_are_killed_at_any_step(lab: Lab, seed: int) -> None:
    choices = random.Random(seed)
    for schedule in SCHEDULES:
        Schedules(lab.engine, KEYRING).save(schedule)
    start = lab.now()
    hours = 24 if IS_LONG else 2
    crew = Crew(lab, choices, deadliness=0.02)
    while lab.now() < start + timedelta(hours=hours):
        # Now and then, no runner is running for a while.
        is_outage = choices.random() < 0.03
        crew.advance(choices.uniform(1000, 3000) if is_outage else choices.choice([1, 5, 20, 120]))
        crew.work()
    crew.advance(2 * SKEW_S)
    crew.finish()
    outcomes = check(lab, start, lab.now())
    assert len(set(crew.stored)) == len(crew.stored)
    assert crew.kills > 10
    assert min(outcomes[one] for one in (TickOutcome.FIRED, TickOutcome.LATE, TickOutcome.MISSED)) > 0


def test_programs_that_start_at_the_same_moment_store_their_schedules_once(lab: Lab) -> None:
    defined = Definitions(source=ScheduleSource.CODE, origin="shop", schedules=SCHEDULES)
    programs = [Schedules(lab.open(clock=lab.clock), KEYRING) for _ in range(RUNNERS)]
    with ThreadPoolExecutor(RUNNERS) as threads:
        done = [one.result() for one in [threads.submit(program.reconcile, defined) for program in programs]]
    assert all(one.is_newest and not one.refused for one in done)
    assert sorted(name for one in done for name in one.saved) == sorted(one.name for one in SCHEDULES)
    assert [view.schedule for view in programs[0].views()] == sorted(SCHEDULES, key=lambda one: one.name)


def test_each_instant_is_fired_once_by_eight_runners_at_the_same_moment(lab: Lab) -> None:
    for schedule in SCHEDULES:
        Schedules(lab.engine, KEYRING).save(schedule)
    start = lab.now()
    engines = [lab.open(clock=lab.clock) for _ in range(RUNNERS)]
    stored: list[str] = []
    for engine in engines:
        note_stored(engine, stored)
    runners = [CronRunner(engine, KEYRING) for engine in engines]
    with ThreadPoolExecutor(RUNNERS) as threads:
        for _ in range(20):
            lab.advance(150)
            list(threads.map(CronRunner.step, runners))
        lab.advance(1)
        CronRunner(lab.engine, KEYRING).tick()
    assert len(set(stored)) == len(stored)
    check(lab, start, lab.now())
