"""Holding on to a lease while its job runs: in time, as long as it runs, and with an ear for cancellations."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.dead_letters import DeadLetterQueues
from holdfast.definition import JobDefinition
from holdfast.errors import BackendUnavailable
from holdfast.execution.retry import BackoffPolicy
from holdfast.execution.runtime import JobRuntime
from holdfast.handlers import HandlerRegistry, JobContext
from holdfast.metrics import InMemoryMetrics
from holdfast.queues.contract import Engine, LeasePolicy, new_owner_token, new_session
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring
from holdfast.values import CancelAnswer, JobLease, JobState, LeaseState, Outcome, WorkerStatus
from holdfast.worker import QueueWorker
from holdfast.worker.dead_letters import DeadLetterCopies
from holdfast.worker.keeper import Keeper

from ..faults.processes import DEADLINE_S, until
from .bench import KEY, Bench

LEASE_S = 3.0


class WatchedEngine(MemoryEngine):
    """Records how much of the lease was left at each renewal; can fail before it renews."""

    def __init__(self) -> None:
        ring = Keyring.parse(KEY)
        policy = LeasePolicy(lease_s=LEASE_S)
        super().__init__(EnvelopeFactory(ring, clock=SYSTEM_CLOCK), policy=policy, clock=SYSTEM_CLOCK)
        self.ring = ring
        self.left_us: list[int] = []
        self.problems: list[Exception] = []

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        if self.problems:
            raise self.problems.pop()
        left = [self.store.records[lease.id].lease_until_us - self.clock.now_us() for lease in leases]
        answers = super().renew_many(leases)
        self.left_us += left
        return answers


class Site:
    """A worker with a short lease, on the real clock."""

    def __init__(self) -> None:
        self.engine = WatchedEngine()
        self.registry = HandlerRegistry()
        self.worker = QueueWorker(
            self.engine,
            JobRuntime(self.registry),
            self.engine.ring,
            retry=BackoffPolicy(),
            metrics=InMemoryMetrics(),
            clock=SYSTEM_CLOCK,
            copies=DeadLetterCopies(self.engine.envelopes, self.engine.ring, DeadLetterQueues()),
        )

    def put(self, run: Callable[[JobContext], object]) -> str:
        def handle(context: JobContext) -> object:
            return run(context)

        self.registry.register("job", handle)
        return self.engine.enqueue(JobDefinition(handler="job"))

    def wait_for_renewals(self, number: int) -> None:
        until(lambda: len(self.engine.left_us) >= number, "the lease to be renewed")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.worker.close()


def test_a_job_that_runs_longer_than_its_lease_keeps_it(site: Site) -> None:
    reaped: list[int] = []

    def run(context: JobContext) -> None:
        for number in range(1, 5):
            site.wait_for_renewals(number)
            reaped.append(site.engine.reap_expired())

    id = site.put(run)
    assert site.worker.process_once("default").status is WorkerStatus.ACKED
    history = site.engine.get(id)
    assert history is not None
    assert history.attempts[0].record.duration_s > LEASE_S
    assert (history.job.deliveries, reaped) == (1, [0] * 4)
    assert min(site.engine.left_us) > 0
    assert max(site.engine.left_us[1:]) <= LEASE_S * 1e6 * 2 / 3 + 10_000, "renewed more often than every third of it"


@pytest.mark.parametrize("problem", [BackendUnavailable("nobody answers"), RuntimeError("a bug")])
def test_a_renewal_that_fails_is_tried_again_before_the_lease_ends(site: Site, problem: Exception) -> None:
    site.engine.problems.append(problem)
    id = site.put(lambda context: site.wait_for_renewals(3))
    assert site.worker.process_once("default").status is WorkerStatus.ACKED
    assert min(site.engine.left_us) > 0
    assert not site.engine.problems
    history = site.engine.get(id)
    assert history is not None
    assert history.job.state is JobState.COMPLETED


def test_a_job_that_has_ended_is_not_renewed_any_more(site: Site) -> None:
    site.put(lambda context: site.wait_for_renewals(1))
    site.worker.process_once("default")
    renewed = len(site.engine.left_us)
    second = site.engine.enqueue(JobDefinition(handler="job"))
    (lease,) = site.engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    assert lease.id == second
    until(site.engine.reap_expired, "a lease to end that is not the keeper's")
    assert len(site.engine.left_us) == renewed


def test_an_operators_cancel_reaches_the_running_job(site: Site) -> None:
    went_on: list[str] = []

    def run(context: JobContext) -> None:
        assert site.engine.cancel(context.id, "by mistake") is CancelAnswer.REQUESTED
        threading.Event().wait(DEADLINE_S)
        went_on.append("after the cancel")

    id = site.put(run)
    assert site.worker.process_once("default").status is WorkerStatus.CANCELLED
    history = site.engine.get(id)
    assert history is not None
    assert (history.job.state, history.job.cancel_reason) == (JobState.CANCELLED, "by mistake")
    assert history.job.attempts == 0
    assert [past.record.outcome for past in history.attempts] == [Outcome.CANCELLED]
    assert not went_on


def test_a_job_that_finishes_before_it_hears_of_its_cancel_has_finished(site: Site) -> None:
    id = site.put(lambda context: site.engine.cancel(context.id))
    assert site.worker.process_once("default").status is WorkerStatus.ACKED
    history = site.engine.get(id)
    assert history is not None
    assert history.job.state is JobState.COMPLETED


class Heard:
    """A keeper, and what it reports."""

    def __init__(self, engine: Engine) -> None:
        self.words: list[str] = []
        self.keeper = Keeper(engine, on_cancel=self._cancel, on_lost=self._lost)

    def _cancel(self, lease: JobLease) -> bool:
        self.words.append(f"{lease.id}: cancel")
        return True

    def _lost(self, lease: JobLease) -> None:
        self.words.append(f"{lease.id}: lost")


def test_a_lost_lease_is_reported_once_and_the_others_are_kept(bench: Bench) -> None:
    bench.put(id="a-lost")
    bench.put(id="b-kept")
    lost, kept = bench.engine.claim("default", 2, owner_token=new_owner_token(new_session()))
    heard = Heard(bench.engine)
    heard.keeper.hold([lost, kept])
    bench.engine.release(lost)
    for _ in range(3):
        bench.clock.advance(bench.engine.policy.lease_s / 2)
        assert heard.keeper.renew_held()
    heard.keeper.close()
    assert heard.words == ["a-lost: lost"]
    assert bench.engine.ack(kept)


def test_a_lease_that_is_lost_while_its_job_runs_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    lost = "job {}: lease lost while it was running; its result will be discarded"

    def run(context: JobContext) -> None:
        site.engine.store.records[context.id].lease_until_us = 0
        assert site.engine.reap_expired() == 1
        until(lambda: lost.format(context.id) in caplog.messages, "the loss to be logged")

    id = site.put(run)
    assert site.worker.process_once("default").status is WorkerStatus.LOST_LEASE
    assert caplog.messages.count(lost.format(id)) == 1


def test_a_lease_is_known_to_hold_from_when_the_last_good_renewal_was_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(id="job")
    (lease,) = bench.engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    renew_many = bench.engine.renew_many

    def slowly(leases: Sequence[JobLease]) -> list[LeaseState]:
        answers = renew_many(leases)
        bench.clock.advance(5.0)
        return answers

    def in_vain(leases: Sequence[JobLease]) -> list[LeaseState]:
        raise BackendUnavailable("nobody is there")

    keeper = Heard(bench.engine).keeper
    keeper.hold([lease])
    assert keeper.fence_at(lease) == lease.fence_at
    bench.clock.advance(10.0)
    monkeypatch.setattr(bench.engine, "renew_many", slowly)
    assert keeper.renew_held()
    assert keeper.fence_at(lease) == pytest.approx(lease.fence_at + 10.0)
    monkeypatch.setattr(bench.engine, "renew_many", in_vain)
    assert not keeper.renew_held()
    assert keeper.fence_at(lease) == pytest.approx(lease.fence_at + 10.0)
    keeper.close()


def test_what_was_dropped_of_a_batch_is_renewed_no_more(bench: Bench) -> None:
    for id in ("a", "b", "c"):
        bench.put(id=id)
    leases = bench.engine.claim("default", 3, owner_token=new_owner_token(new_session()))
    keeper = Heard(bench.engine).keeper
    keeper.hold(leases)
    keeper.drop(leases[:2])
    for _ in range(3):
        bench.clock.advance(bench.engine.policy.lease_s / 2)
        assert keeper.renew_held()
    keeper.close()
    assert bench.engine.reap_expired() == 2
    assert bench.engine.ack(leases[2])


def test_a_cancel_is_told_once(bench: Bench) -> None:
    bench.put(id="job")
    (lease,) = bench.engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    bench.engine.cancel("job")
    heard = Heard(bench.engine)
    heard.keeper.hold([lease])
    heard.keeper.renew_held()
    heard.keeper.renew_held()
    heard.keeper.close()
    assert heard.words == ["job: cancel"]


def test_between_renewals_what_is_held_for_a_while_is_looked_at(bench: Bench) -> None:
    for id in ("cancelled", "lost", "held"):
        bench.put(id=id)
    leases = {lease.id: lease for lease in bench.engine.claim("default", 3, owner_token=new_owner_token(new_session()))}
    before = {id: bench.view(id).lease_until for id in ("cancelled", "held")}
    heard = Heard(bench.engine)
    keeper = heard.keeper
    keeper.hold(leases.values())
    bench.engine.cancel("cancelled")
    bench.engine.release(leases["lost"])
    bench.clock.advance(1)
    keeper.check()
    assert heard.words == [], "what came a moment ago is not looked at"
    for _ in range(2):
        keeper.check()
        assert sorted(heard.words) == ["cancelled: cancel", "lost: lost"]
    assert {id: bench.view(id).lease_until for id in ("cancelled", "held")} == before
    keeper.close()


@pytest.mark.parametrize("problem", [BackendUnavailable("nobody is there"), RuntimeError("a bug")])
def test_a_look_that_fails_is_made_again(bench: Bench, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    bench.put(id="job")
    leases = bench.engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    bench.engine.cancel("job")
    heard = Heard(bench.engine)
    keeper = heard.keeper
    keeper.hold(leases)
    keeper.check()

    def in_vain(leases: Sequence[JobLease]) -> list[LeaseState]:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(bench.engine, "lease_states", in_vain)
        keeper.check()
    assert heard.words == []
    keeper.check()
    keeper.close()
    assert heard.words == ["job: cancel"]


def test_a_cancel_that_comes_when_the_job_has_ended_interrupts_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job may run by then, on the same thread: it must not be the one that is interrupted."""
    asks, has_ended = threading.Event(), threading.Event()
    renew_many = bench.engine.renew_many

    def slowly(leases: Sequence[JobLease]) -> list[LeaseState]:
        answers = renew_many(leases)
        asks.set()
        assert has_ended.wait(DEADLINE_S)
        return answers

    monkeypatch.setattr(bench.engine, "renew_many", slowly)
    bench.put(id="job")
    (lease,) = bench.engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    bench.engine.cancel("job")
    heard = Heard(bench.engine)
    renewal = threading.Thread(target=heard.keeper.renew_held)
    heard.keeper.hold([lease])
    renewal.start()
    assert asks.wait(DEADLINE_S)
    heard.keeper.drop([lease])
    has_ended.set()
    renewal.join(DEADLINE_S)
    heard.keeper.close()
    assert not heard.words
