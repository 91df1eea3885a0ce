"""`Site`: one store with three jobs, of which the middle one is bad, and everything that may not stumble over it."""

import json
import queue
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.definition import JobDefinition
from holdfast.errors import HoldfastError, IdConflict
from holdfast.handlers import JobContext
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.keyfiles import KEY_FACTS
from holdfast.queues.signing import Keyring
from holdfast.state.breakers import Breakers
from holdfast.state.facts import Facts
from holdfast.state.workers import WorkerRegistry
from holdfast.values import (
    Ack,
    AttemptRecord,
    DeadReason,
    ErrorInfo,
    JobFilter,
    JobLease,
    JobState,
    Outcome,
    Release,
    Settlement,
    Spend,
)
from holdfast.worker.admission import Admission
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.circuits import QueueCircuits
from holdfast.worker.exchanger import EngineAnswer, EngineRequest, Exchanger
from holdfast.worker.round_robin import RoundRobin
from holdfast.worker.throttle import Throttle

from ..surface.registry import report
from ..surface.terminal import Answer as Printed, Terminal
from .cases import AFTER, BAD, BEFORE, KEY, QUEUE, Case, Fate, Stage

LATE = "late"
HEALTHY = [AFTER, BEFORE]
NEVER_STARTED = {reason for reason in DeadReason if not reason.follows_a_run} - {DeadReason.CRASH_LOOP}
NOT_FOUND, TIME_IS_UP, JOB_FAILED = 3, 6, 7


class Store(Protocol):
    """The raw store, past the engine."""

    def find_bad(self) -> None:
        """Note which is the bad job while its record is whole."""

    def still_has_it(self) -> bool:
        """Whether the bad job was not deleted."""
        ...

    def close(self) -> None: ...


class InMemory:
    """A store that is reached through its engine only."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    def find_bad(self) -> None:
        """It is called by its id."""

    def still_has_it(self) -> bool:
        return self._hf.backend().get(BAD) is not None

    def close(self) -> None:
        """It is closed with its application."""


def application(url: str) -> tuple[Holdfast, list[str]]:
    """An application whose jobs write down that they ran."""
    hf, ran = Holdfast(url, signing_key=KEY), list[str]()

    def note(context: JobContext) -> str:
        ran.append(context.id)
        return "done"

    def fail(context: JobContext) -> None:
        ran.append(context.id)
        raise ValueError("disk gone")

    hf.job(note)
    hf.job(fail)
    return hf, ran


class Site:
    """The application, its engine, and the raw store below it."""

    def __init__(self, hf: Holdfast, store: Store, ran: list[str]) -> None:
        self.store = store
        self.ran = ran
        self._hf = hf
        self._keys = Keyring.parse(KEY)
        self._token = new_owner_token(new_session())

    @property
    def engine(self) -> Engine:
        return self._hf.backend()

    def put(self, case: Case) -> None:
        """Enqueue the three jobs, bring the bad one to its stage, and damage it."""
        if case.stage is Stage.WAITING:
            for id in (BEFORE, BAD, AFTER):
                self._enqueue(id, case.handler if id == BAD else "note")
        else:
            self._enqueue(BEFORE, "note", priority=4)
            self._enqueue(BAD, case.handler, priority=6)
            self._enqueue(AFTER, "note")
            self._bring_to(case.stage)
        Facts(self.engine.state).add(KEY_FACTS, [self._keys.keys[0].fingerprint])
        WorkerRegistry(self.engine.state).beat(report("w-good"))
        self.store.find_bad()
        for step in case.damage:
            step(self.store)

    def accept(self, wire: bytes) -> None:
        """Enqueue the three jobs, the bad one with this message."""
        envelopes = EnvelopeFactory(self._keys)
        jobs = [envelopes.make(JobDefinition(handler="note"), id=id) for id in (BEFORE, BAD, AFTER)]
        self.engine.accept([replace(job, wire=wire) if job.id == BAD else job for job in jobs])

    def _enqueue(self, id: str, handler: str, priority: int = 5) -> None:
        self._hf.define(handler).priority(priority).max_retries(1).id(id).dispatch()

    def _bring_to(self, stage: Stage) -> None:
        (lease,) = self.engine.claim(QUEUE, 1, owner_token=self._token)
        assert lease.id == BAD
        error = ErrorInfo(type="ValueError", message="disk gone", traceback="in a file")
        match stage:
            case Stage.FAILED:
                assert self.engine.nack(lease, 0.0, _record(Outcome.FAILED, error=error))
            case Stage.DEAD:
                record = _record(Outcome.FAILED, error=error, output="said", note="why")
                assert self.engine.abandon(lease, DeadReason.FAILED, record)
            case Stage.DONE:
                assert self.engine.ack(lease, _record(Outcome.SUCCEEDED, result=b"5", output="said"))
            case _:
                pass

    # A worker

    def work(self) -> None:
        """Drain the queue, one job at a time."""
        with self._hf.worker() as worker:
            self._hf.loop(worker, [QUEUE], burst=True).run()

    def work_in_batches(self) -> None:
        """Drain the queue as a worker with processes does: what it settles and claims goes in one request."""
        answers: queue.Queue[EngineAnswer] = queue.Queue()
        exchanger = Exchanger(
            self.engine,
            RoundRobin({QUEUE: 1}),
            session=new_session(),
            admission=Admission(self._keys, self._hf.registry, self.engine.clock),
            backoff=EngineBackoff(self.engine.clock),
            throttle=Throttle(self.engine.state, {}, self.engine.clock),
            circuits=QueueCircuits(Breakers(self.engine.state), self.engine.clock),
            on_claimed=lambda _: None,
            on_answer=answers.put,
            fence_at=lambda lease: lease.fence_at,
        )
        settlements: list[Settlement] = []
        try:
            while True:
                exchanger.ask(EngineRequest(settlements=settlements, limits={QUEUE: 10}))
                answer = answers.get(timeout=10)
                if answer.problem is not None:
                    raise answer.problem
                for settled, held in zip(settlements, answer.held, strict=True):
                    assert held or settled.lease.id not in HEALTHY, f"{settled.lease.id} was not settled"
                if not answer.admitted and not settlements:
                    return
                settlements = [refusal.settlement for refusal in answer.admitted.refusals]
                settlements += [self._run(lease) for lease in answer.admitted.leases]
        finally:
            exchanger.close(1.0)

    def _run(self, lease: JobLease) -> Settlement:
        self.ran.append(lease.id)
        return Ack(lease=lease, record=_record(Outcome.SUCCEEDED, result=b"5"))

    def repeat_the_claim(self) -> None:
        """Ask once more for what the bad job was claimed with, as after a lost reply; what comes instead goes back."""
        leases = self.engine.claim(QUEUE, 1, owner_token=self._token)
        self.engine.settle([Release(lease=lease, unstarted=True) for lease in leases if lease.id in HEALTHY])

    # What has to hold

    def check(self, case: Case) -> None:
        """The neighbours have run once, and the bad job has come to an end that it may have."""
        assert sorted(id for id in self.ran if id in HEALTHY) == HEALTHY
        self.check_fate(case)

    def check_fate(self, case: Case) -> None:
        found = {job.id: job for job in self.engine.find(JobFilter()).jobs}
        assert [found[id].state for id in HEALTHY] == [JobState.COMPLETED] * 2
        assert self.store.still_has_it(), "the bad job was deleted"
        # A damaged id is shown as well as it can be.
        bad = found.get(BAD) or next((job for id, job in found.items() if id not in (*HEALTHY, LATE)), None)
        match case.fate:
            case Fate.ENDS:
                assert bad is not None
                assert bad.state in (JobState.COMPLETED, JobState.DEAD)
            case Fate.DIES:
                assert bad is not None
                assert bad.state is JobState.DEAD
                assert bad.dead_reason in NEVER_STARTED
            case Fate.STAYS:
                pass

    def check_maintenance(self) -> None:
        """What every worker does for all of them goes on."""
        self.engine.expire_leases([bytes(8), bytes.fromhex(self._token)[:8]])
        self.engine.reap_expired()
        self.engine.reap_expired(QUEUE)
        self.engine.repair()
        self.engine.slots()
        self.engine.prune()
        self.engine.tidy()
        self.engine.repair()
        self.engine.slots()
        self.engine.counts()
        self.engine.counts(QUEUE)
        self.engine.oldest_waits()
        assert WorkerRegistry(self.engine.state).all()[-1].report.id == "w-good"
        self.engine.state.spend([Spend(bucket="rate", tokens=1, per_s=1.0, burst=1)])
        self.engine.pauses()
        self.engine.repair()
        self.engine.slots()

    def check_enqueueing(self) -> None:
        """Another job is accepted, and the bad one, given again, is compared."""
        self._enqueue(LATE, "note")
        assert self.engine.get(LATE) is not None
        with suppress(IdConflict):
            self._enqueue(BAD, "note")

    def check_operating(self) -> None:
        """An operator's requests are answered, whatever the answer is."""
        for request in (self.engine.cancel, self.engine.replay, self.engine.discard):
            request(BAD)

    def check_result(self) -> None:
        """A producer that waits for the result gets one, or an error it can expect."""
        with suppress(HoldfastError, TimeoutError):
            self._hf.handle(BAD).result(timeout=0)


def _record(outcome: Outcome, **told: Any) -> AttemptRecord:
    return AttemptRecord(outcome=outcome, started_us=1, ended_us=2, **told)


def listed(terminal: Terminal) -> list[str]:
    """The ids in `list --json`, which has to be JSON for any parser."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is not JSON")

    return [job["id"] for job in json.loads(_answered(terminal("list", "--json")).out, parse_constant=refuse)]


def check_commands(terminal: Terminal) -> None:
    """Every command that reads answers, and shows the healthy jobs."""
    ids = listed(terminal)
    assert set(HEALTHY) <= set(ids)
    table = _answered(terminal("list")).out
    assert all(id in table for id in HEALTHY)
    for words in (["status"], ["queue", "list"], ["dlq", "list"], ["worker", "list"]):
        _answered(terminal(*words))
    for id in {BAD, *ids} - {*HEALTHY, ""}:
        for words in (["show", "--", id], ["show", "--json", "--", id], ["logs", "--", id]):
            _answered(terminal(*words), NOT_FOUND)


def check_waiting(terminal: Terminal) -> None:
    """Waiting for a job that has ended answers at once, even if its result is not readable."""
    _answered(terminal("wait", "--timeout", "0.01", "--", BAD), NOT_FOUND, JOB_FAILED, TIME_IS_UP)


def _answered(printed: Printed, *codes: int) -> Printed:
    assert printed.code in (0, *codes), printed.err
    assert "Traceback" not in printed.err
    return printed
