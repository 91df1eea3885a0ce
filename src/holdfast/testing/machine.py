"""A state machine that makes random calls through two handles of an engine, and compares each answer and job with the
model.

It needs a lab whose clock does not run between calls. Hypothesis reduces a failure to the shortest sequence of calls.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from enum import Enum

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from msgspec.structs import replace

from holdfast.clock import from_us, to_us
from holdfast.errors import IdConflict
from holdfast.queues.contract import LeasePolicy, new_owner_token
from holdfast.testing.lab import Lab
from holdfast.testing.model import FINISHED, SECOND, WAITING, Content, Model, ModelJob
from holdfast.values import (
    Abandon,
    Accepted,
    Ack,
    CancelJob,
    DeadReason,
    JobFilter,
    JobLease,
    JobState,
    JobView,
    LeaseState,
    Nack,
    Outcome,
    Release,
    Settlement,
)

POLICY = LeasePolicy(lease_s=60.0, crash_limit=2, retain_completed_s=7200.0)


class LeaseMoment(Enum):
    """When a worker uses its lease."""

    NOW = 0
    LAST = 1
    TOO_LATE = 2


class Order(Enum):
    """An operator's command on one job."""

    CANCEL = 0
    REPLAY = 1
    REPLAY_IGNORING_EXPIRY = 2
    DISCARD = 3


handles = st.integers(0, 1)
queues = st.sampled_from(["mail", "mail", "mail", "slow"])
some_queues = st.sampled_from([None, "mail", "slow"])
priorities = st.integers(4, 6)
delays = st.sampled_from([0, 0, 0, 5, 90])
moments = st.sampled_from(LeaseMoment)
limits = st.sampled_from([1, 2, 3, 0])
verdicts = st.sampled_from(["nack", "release", "crash", "ack", "abandon", "reject", "cancel", "expire"])


class EngineMachine(RuleBasedStateMachine):
    """The rules; `machine_for` provides the lab."""

    jobs: Bundle[str] = Bundle("jobs")
    leases: Bundle[JobLease] = Bundle("leases")
    settled: Bundle[Settlement] = Bundle("settled")

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._known: list[str] = []
        self._wires: dict[str, bytes] = {}
        self.lab = self._stack.enter_context(self.open_lab())
        self.engines = (self.lab.open(POLICY), self.lab.open(POLICY))
        self.model = Model(
            now=to_us(self.lab.now()),
            lease_s=POLICY.lease_s,
            crash_limit=POLICY.crash_limit,
            retain_completed_s=POLICY.retain_completed_s,
        )

    def open_lab(self) -> AbstractContextManager[Lab]:
        raise NotImplementedError("use machine_for(), which provides the lab")

    def teardown(self) -> None:
        self._stack.close()

    @initialize(target=jobs, queue=queues, batch=st.lists(st.tuples(priorities, delays), min_size=1, max_size=4))
    def start_with_some_jobs(self, queue: str, batch: list[tuple[int, int]]) -> MultipleResults[str]:
        return multiple(*[self._new_job(queue, priority, delay, 0) for priority, delay in batch])

    @rule(target=jobs, queue=queues, priority=priorities, delay=delays, handle=handles)
    def accept(self, queue: str, priority: int, delay: int, handle: int) -> str:
        return self._new_job(queue, priority, delay, handle)

    def _new_job(self, queue: str, priority: int, delay: int, handle: int) -> str:
        id = f"job{len(self._known):03}"
        self._known.append(id)
        self._accept(handle, id, (queue, priority, "first"), delay)
        return id

    @rule(id=jobs, same=st.booleans(), queue=queues, delay=delays, handle=handles)
    def accept_a_known_id(self, id: str, same: bool, queue: str, delay: int, handle: int) -> None:
        known = self.model.content_of(id)
        if not self.model.is_in_between(id):
            self._accept(handle, id, known if same and known else (queue, 5, "second"), delay)

    def _accept(self, handle: int, id: str, content: Content, delay: int) -> None:
        queue, priority, payload = content
        envelope = self.lab.envelope(id, queue=queue, priority=priority, payload=payload, delay=delay)
        created = self.model.accept(id, content, delay * SECOND)
        if created is None:
            with pytest.raises(IdConflict):
                self.engines[handle].accept([self.lab.envelope("innocent"), envelope])
        else:
            assert self.engines[handle].accept([envelope]) == [Accepted(id=id, created=created)]
            if created:
                self._wires[id] = envelope.wire

    @rule(target=leases, queue=queues, limit=limits, handle=handles)
    def claim(self, queue: str, limit: int, handle: int) -> MultipleResults[JobLease]:
        return multiple(*self._claim(queue, limit, handle))

    @rule(target=settled, queue=queues, verdict=verdicts, delay=delays, handle=handles)
    def deliver(self, queue: str, verdict: str, delay: int, handle: int) -> MultipleResults[Settlement]:
        """Claim one job and settle it, as in most deliveries."""
        settlements = [self._settlement(lease, verdict, delay) for lease in self._claim(queue, 1, handle)]
        for settlement in settlements:
            self._settle(settlement, 1 - handle)
        return multiple(*settlements)

    @rule(target=leases, queue=queues, handle=handles)
    def let_crash(self, queue: str, handle: int) -> MultipleResults[JobLease]:
        """Claim one job, let its lease expire, and reap it."""
        leases = self._claim(queue, 1, handle)
        self.advance(POLICY.lease_s)
        self.reap(None, 1 - handle)
        return multiple(*leases)

    def _claim(self, queue: str, limit: int, handle: int) -> list[JobLease]:
        token = new_owner_token()
        leases = self.engines[handle].claim(queue, limit, owner_token=token)
        self._check_claim(leases, queue, limit, token)
        return leases

    @rule(lease=leases, limit=st.integers(1, 3), handle=handles)
    def claim_with_the_same_token(self, lease: JobLease, limit: int, handle: int) -> None:
        held = self.model.held(lease.queue, lease.owner_token)
        if held:  # a worker generates a token for each claim, so one without leases is not used again
            again = self.engines[handle].claim(lease.queue, limit, owner_token=lease.owner_token)
            assert sorted(one.id for one in again) == held
            for one in again:
                self._check_lease(one, lease.owner_token)

    @rule(target=leases, lease=leases, verdict=verdicts, delay=delays, queue=queues, limit=limits, handle=handles)
    def exchange(
        self, lease: JobLease, verdict: str, delay: int, queue: str, limit: int, handle: int
    ) -> MultipleResults[JobLease]:
        settlement, token = self._settlement(lease, verdict, delay), new_owner_token()
        expected = self.model.settle(settlement)
        [answer], leases = self.engines[handle].exchange([settlement], queue, limit, owner_token=token)
        assert expected in (None, answer)
        self._check_claim(leases, queue, limit, token)
        return multiple(*leases)

    def _check_claim(self, leases: list[JobLease], queue: str, limit: int, token: str) -> None:
        self._adopt_due_times()
        ids = [lease.id for lease in leases]
        assert ids in self.model.batches(queue, limit)
        self.model.claim(ids, token)
        for lease in leases:
            self._check_lease(lease, token)

    def _check_lease(self, lease: JobLease, token: str) -> None:
        job = self.model.jobs[lease.id]
        assert (lease.queue, lease.owner_token, lease.ttl_s) == (job.queue, token, POLICY.lease_s)
        assert (lease.delivery, lease.attempts, lease.crashes) == (job.deliveries, job.attempts, job.crashes)
        assert (lease.ignore_expiry, lease.wire) == (job.ignore_expiry, self._wires[job.id])

    @rule(target=settled, lease=leases, verdict=verdicts, delay=delays, moment=moments, handle=handles)
    def settle(self, lease: JobLease, verdict: str, delay: int, moment: LeaseMoment, handle: int) -> Settlement:
        self._advance_to_moment(lease, moment)
        settlement = self._settlement(lease, verdict, delay)
        self._settle(settlement, handle)
        return settlement

    @rule(settlement=settled, handle=handles)
    def settle_again(self, settlement: Settlement, handle: int) -> None:
        self._settle(settlement, handle)

    @rule(lease=leases, verdict=verdicts, handle=handles)
    def settle_with_a_forged_token(self, lease: JobLease, verdict: str, handle: int) -> None:
        forged = replace(lease, owner_token=new_owner_token())
        assert self.engines[handle].settle([self._settlement(forged, verdict, 0)]) == [False]
        assert self.engines[handle].renew_many([forged]) == [LeaseState.LOST]

    def _advance_to_moment(self, lease: JobLease, moment: LeaseMoment) -> None:
        job = self.model.jobs.get(lease.id)
        if moment is not LeaseMoment.NOW and job is not None and job.lease_until is not None:
            self._advance_to(job.lease_until - (moment is LeaseMoment.LAST))

    def _settle(self, settlement: Settlement, handle: int) -> None:
        expected = self.model.settle(settlement)
        [answer] = self.engines[handle].settle([settlement])
        assert expected in (None, answer)

    def _settlement(self, lease: JobLease, verdict: str, delay: float) -> Settlement:
        record = self.lab.record
        match verdict:
            case "ack":
                return Ack(lease=lease, record=record(Outcome.SUCCEEDED))
            case "nack":
                return Nack(lease=lease, delay=delay, record=record(Outcome.FAILED))
            case "release":
                return Release(lease=lease, delay=delay, record=record(Outcome.SNOOZED))
            case "crash":
                return Release(lease=lease, delay=delay, crashed=True, record=record(Outcome.CRASHED))
            case "abandon":
                return Abandon(lease=lease, reason=DeadReason.FAILED, record=record(Outcome.FAILED))
            case "reject":
                return Abandon(lease=lease, reason=DeadReason.BAD_SIGNATURE, record=record(Outcome.REJECTED))
            case "cancel":
                return CancelJob(lease=lease, reason="enough", record=record(Outcome.CANCELLED))
            case _:
                return CancelJob(lease=lease, expired=True, record=record(Outcome.EXPIRED))

    @rule(first=leases, second=leases, moment=moments, handle=handles)
    def renew(self, first: JobLease, second: JobLease, moment: LeaseMoment, handle: int) -> None:
        self._advance_to_moment(first, moment)
        answers = self.engines[handle].renew_many([first, second])
        assert answers == [self.model.renew(first), self.model.renew(second)]

    @precondition(lambda self: self.model.has_leased_jobs)
    @rule(queue=some_queues, handle=handles)
    def reap(self, queue: str | None, handle: int) -> None:
        assert self.engines[handle].reap_expired(queue) == self.model.reap(queue)

    @rule(seconds=st.sampled_from([1, 30, 59, 60, 121, 3599, 3601, 7200]))
    def advance(self, seconds: float) -> None:
        self.lab.advance(seconds)
        self.model.set_time(to_us(self.lab.now()))

    @rule(id=jobs, early=st.booleans())
    def advance_to_the_next_event_of(self, id: str, early: bool) -> None:
        job = self.model.jobs.get(id)
        if job is not None:
            self._advance_to((job.due if job.lease_until is None else job.lease_until) - early)

    def _advance_to(self, instant: int) -> None:
        if instant > self.model.now:
            self.advance((instant - self.model.now) / SECOND)

    @rule(seconds=st.sampled_from([20, 3600]))
    def set_the_clock_back(self, seconds: float) -> None:
        self.lab.set_back(seconds)
        self.model.set_time(to_us(self.lab.now()))

    @rule(id=jobs, order=st.sampled_from(Order), handle=handles)
    def operate(self, id: str, order: Order, handle: int) -> None:
        engine, model = self.engines[handle], self.model
        match order:
            case Order.CANCEL:
                assert engine.cancel(id, "an operator") == model.cancel(id)
            case Order.REPLAY:
                assert engine.replay(id) == model.replay(id, ignore_expiry=False)
            case Order.REPLAY_IGNORING_EXPIRY:
                assert engine.replay(id, ignore_expiry=True) == model.replay(id, ignore_expiry=True)
            case Order.DISCARD:
                assert engine.discard(id) == model.discard(id)

    @precondition(lambda self: self.model.has_finished_jobs)
    @rule(
        states=st.sets(st.sampled_from(FINISHED), min_size=1),
        queue=some_queues,
        age_s=st.sampled_from([None, 60, 3600]),
        handle=handles,
    )
    def purge(self, states: set[JobState], queue: str | None, age_s: int | None, handle: int) -> None:
        older_than = None if age_s is None else timedelta(seconds=age_s)
        purged = self.engines[handle].purge(states, queue=queue, older_than=older_than)
        assert purged == self.model.purge(states, queue, None if age_s is None else age_s * SECOND)

    @precondition(lambda self: self.model.has_finished_jobs)
    @rule(handle=handles)
    def prune(self, handle: int) -> None:
        assert self.engines[handle].prune() == self.model.prune()

    @rule(queue=queues, limit=limits, handle=handles)
    def pause_and_resume(self, queue: str, limit: int, handle: int) -> None:
        self.engines[handle].pause(queue)
        assert self.engines[1 - handle].claim(queue, limit, owner_token=new_owner_token()) == []
        assert [pause.queue for pause in self.engines[handle].pauses()] == [queue]
        assert self.engines[handle].resume(queue)
        assert not self.engines[handle].resume(queue)

    @invariant()
    def the_engine_and_the_model_show_the_same(self) -> None:
        self._adopt_due_times()
        engine, now = self.engines[1], self.model.now
        for id in [*self._known, "innocent"]:
            history, job = engine.get(id), self.model.jobs.get(id)
            assert (history is None) == (job is None), f"{id} is known only to the engine or only to the model"
            if history is not None and job is not None:
                assert _seen(history.job) == _expected(job, now)
                assert [(past.delivery, past.record.outcome) for past in history.attempts] == job.outcomes
        assert sorted(view.id for view in engine.find(JobFilter(), limit=1000).jobs) == sorted(self.model.jobs)
        numbers = Counter((job.queue, job.state_at(now)) for job in self.model.jobs.values())
        assert numbers == {
            (queue, state): number for queue, states in engine.counts().items() for state, number in states.items()
        }

    def _adopt_due_times(self) -> None:
        """Use the engine's due times for jobs that are due at once: any instant up to now is allowed."""
        for job in self.model.jobs.values():
            if job.due_at_once and job.state in WAITING:
                history = self.engines[0].get(job.id)
                assert history is not None
                due = to_us(history.job.due_at)
                assert due <= job.due
                job.due = due
            job.due_at_once = False


def _seen(view: JobView) -> dict[str, object]:
    return {
        "state": view.state,
        "counts": (view.attempts, view.crashes, view.deliveries),
        "due": view.due_at if view.state in (*WAITING, JobState.SCHEDULED) else None,
        "lease until": view.lease_until,
        "finished": view.finished_at,
        "reason": view.dead_reason,
        "cancel requested": view.cancel_requested,
    }


def _expected(job: ModelJob, now: int) -> dict[str, object]:
    return {
        "state": job.state_at(now),
        "counts": (job.attempts, job.crashes, job.deliveries),
        "due": from_us(job.due) if job.state in WAITING else None,
        "lease until": None if job.lease_until is None else from_us(job.lease_until),
        "finished": None if job.finished is None else from_us(job.finished),
        "reason": job.dead_reason,
        "cancel requested": job.cancel_requested,
    }


def machine_for(
    open_lab: Callable[[], AbstractContextManager[Lab]], *, examples: int = 50, steps: int = 80
) -> type[EngineMachine]:
    """The state machine for these labs. The variable `HOLDFAST_HYPOTHESIS_EXAMPLES` overrides `examples`."""

    class Machine(EngineMachine):
        def open_lab(self) -> AbstractContextManager[Lab]:
            return open_lab()

    Machine.TestCase.settings = settings(
        max_examples=int(os.environ.get("HOLDFAST_HYPOTHESIS_EXAMPLES", examples)),
        stateful_step_count=steps,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    return Machine
