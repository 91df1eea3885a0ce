"""One of several processes that call every verb of an engine concurrently and record each answer.

`python -m tests.faults.hammer URL NAME SECONDS LEDGER` prints that it is ready, starts after a line on stdin, and exits
after this many seconds, once every kind of event has occurred often enough.
It writes one JSON array per line, an `Event`; `test_hammer.py` compares the ledgers of all processes.
"""

import random
import sys
import time
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import msgspec

from holdfast.clock import SYSTEM_CLOCK, to_us
from holdfast.definition import JobDefinition
from holdfast.queues.contract import Engine, LeasePolicy, effect_of, new_owner_token
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring
from holdfast.values import (
    Abandon,
    Ack,
    AttemptRecord,
    CancelJob,
    DeadReason,
    ErrorInfo,
    JobLease,
    LeaseState,
    Nack,
    Outcome,
    Release,
    Settlement,
)

KEY = "ours:the-signing-key-of-all-the-hammers-here"
QUEUES = ("default", "other")
CRASH_LIMIT = 3
LEASE_S = 5.0
CARELESS_LEASE_S = 0.2
MOST = 12
LEAST_TURNS = 200


class Accepted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """These jobs were accepted."""

    ids: list[str]


class Claimed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """This process claimed the job: the start and the expiry of the lease, by the engine's clock."""

    id: str
    delivery: int
    owner_token: str
    from_us: int
    until_us: int


class Renewed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The lease was renewed: its earliest and its latest possible expiry."""

    id: str
    delivery: int
    until_us: int
    latest_us: int


class Settled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to a verdict, and when it was sent and answered."""

    id: str
    delivery: int
    verdict: str
    sent_us: int
    answered_us: int
    held: bool


class Reaped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """This many jobs were reaped."""

    number: int


Event: TypeAlias = Accepted | Claimed | Renewed | Settled | Reaped


class Hammer:
    """Two handles on one engine: most claims of the second are settled too late."""

    def __init__(self, url: str, name: str, ledger: str) -> None:
        self._dice = random.Random(name)
        self._engine = self._opened(url, LEASE_S)
        self._careless = self._opened(url, CARELESS_LEASE_S)
        self._held: list[JobLease] = []
        self._late: list[JobLease] = []
        self._ledger = open(ledger, "wb")  # noqa: SIM115 - closed with the process
        self._encoder = msgspec.json.Encoder()

    def _opened(self, url: str, lease_s: float) -> Engine:
        policy = LeasePolicy(lease_s=lease_s, crash_limit=CRASH_LIMIT)
        engine, _ = EngineFactory(Keyring.parse(KEY), policy=policy).open(url)
        engine.create_schema()
        return engine

    def run(self, seconds: float) -> None:
        turns = (
            (self._accept, 30),
            (self._claim, 15),
            (self._claim_carelessly, 8),
            (self._exchange, 25),
            (self._settle, 10),
            (self._settle_late, 5),
            (self._renew, 10),
            (self._reap, 5),
        )
        verbs, weights = [verb for verb, _ in turns], [weight for _, weight in turns]
        over_at = time.monotonic() + seconds
        for turn in count():
            if turn >= LEAST_TURNS and time.monotonic() >= over_at:
                break
            self._dice.choices(verbs, weights)[0]()
        self._settle_all(self._held)
        self._ledger.close()
        self._engine.close()
        self._careless.close()

    def _accept(self) -> None:
        envelopes = [
            self._engine.envelopes.make(
                JobDefinition(
                    handler="hammered",
                    queue=self._dice.choice(QUEUES),
                    priority=self._dice.randrange(10),
                    delay=self._dice.choice((None, None, 0.05)),
                )
            )
            for _ in range(self._dice.randint(1, MOST))
        ]
        answers = self._engine.accept(envelopes)
        assert all(one.created for one in answers)
        self._note(Accepted([one.id for one in answers]))
        if self._dice.random() < 0.1:
            assert not any(one.created for one in self._engine.accept(envelopes)), "the same jobs, once more"

    def _claim(self) -> None:
        queue, token = self._dice.choice(QUEUES), new_owner_token()
        limit = self._dice.randint(1, MOST)
        leases = self._engine.claim(queue, limit, owner_token=token)
        self._keep(leases, limit)
        if leases and self._dice.random() < 0.2:
            again = self._engine.claim(queue, limit, owner_token=token)
            if _now_us() < min(map(_end_us, leases)):
                assert {one.id for one in again} == {one.id for one in leases}, "the same claim, once more"

    def _claim_carelessly(self) -> None:
        limit = self._dice.randint(1, 3)
        leases = self._careless.claim(self._dice.choice(QUEUES), limit, owner_token=new_owner_token())
        assert len(leases) <= limit
        self._note(*map(_claimed, leases))
        self._late += leases

    def _exchange(self) -> None:
        settlements, limit = self._verdicts(self._taken(self._held)), self._dice.randint(0, MOST)
        sent_us = _now_us()
        held, leases = self._engine.exchange(
            settlements, self._dice.choice(QUEUES), limit, owner_token=new_owner_token()
        )
        self._note_answers(settlements, held, sent_us)
        self._keep(leases, limit)

    def _settle(self) -> None:
        self._settle_all(self._taken(self._held))

    def _settle_late(self) -> None:
        self._settle_all(self._taken(self._late))

    def _settle_all(self, leases: Sequence[JobLease]) -> None:
        settlements = self._verdicts(leases)
        sent_us = _now_us()
        held = self._engine.settle(settlements)
        self._note_answers(settlements, held, sent_us)
        if any(held) and self._dice.random() < 0.1:
            assert self._engine.settle(settlements) == held, "the same verdicts, once more"

    def _renew(self) -> None:
        leases = self._dice.sample(self._held, min(len(self._held), MOST))
        sent_us = _now_us()
        states = self._engine.renew_many(leases)
        answered_us = _now_us()
        for lease, state in zip(leases, states, strict=True):
            if state is LeaseState.LOST:
                self._held.remove(lease)
                self._late.append(lease)
            else:
                length_us = round(lease.ttl_s * 1e6)
                self._note(Renewed(lease.id, lease.delivery, sent_us + length_us, answered_us + length_us))

    def _reap(self) -> None:
        self._note(Reaped(self._engine.reap_expired()))

    def _keep(self, leases: Sequence[JobLease], limit: int) -> None:
        assert len(leases) <= limit
        self._note(*map(_claimed, leases))
        self._held += leases

    def _taken(self, leases: list[JobLease]) -> list[JobLease]:
        """Remove some of these from the list, and return them."""
        self._dice.shuffle(leases)
        taken = leases[: self._dice.randint(0, 2 * MOST)]
        del leases[: len(taken)]
        return taken

    def _verdicts(self, leases: Sequence[JobLease]) -> list[Settlement]:
        return [self._verdict(lease) for lease in leases]

    def _verdict(self, lease: JobLease) -> Settlement:
        began, now = to_us(lease.claimed_at), _now_us()
        problem = ErrorInfo(type="ValueError", message="no luck")
        success = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=began, ended_us=now)
        failure = AttemptRecord(outcome=Outcome.FAILED, started_us=began, ended_us=now, error=problem)
        luck, delay = self._dice.random(), self._dice.choice((0.0, 0.05))
        if luck < 0.6:
            return Ack(lease=lease, record=success)
        if luck < 0.7:
            return Ack(lease=lease, record=msgspec.structs.replace(success, result=b"[1,2]", output="done\n"))
        if luck < 0.8:
            return Nack(lease=lease, delay=delay, record=failure)
        if luck < 0.9:
            returned = AttemptRecord(outcome=Outcome.INTERRUPTED, started_us=began, ended_us=now)
            return Release(lease=lease, delay=delay, unstarted=self._dice.random() < 0.5, record=returned)
        if luck < 0.95:
            return Abandon(lease=lease, reason=DeadReason.FAILED, record=failure)
        given_up = AttemptRecord(outcome=Outcome.CANCELLED, started_us=began, ended_us=now)
        return CancelJob(lease=lease, reason="not wanted", record=given_up)

    def _note_answers(self, settlements: Sequence[Settlement], held: Sequence[bool], sent_us: int) -> None:
        answered_us = _now_us()
        for one, answer in zip(settlements, held, strict=True):
            lease, verdict = one.lease, effect_of(one).verdict
            self._note(Settled(lease.id, lease.delivery, verdict, sent_us, answered_us, answer))

    def _note(self, *events: Event) -> None:
        for event in events:
            self._ledger.write(self._encoder.encode(event) + b"\n")


def _claimed(lease: JobLease) -> Claimed:
    return Claimed(lease.id, lease.delivery, lease.owner_token, to_us(lease.claimed_at), _end_us(lease))


def _end_us(lease: JobLease) -> int:
    return to_us(lease.claimed_at) + round(lease.ttl_s * 1e6)


def _now_us() -> int:
    return SYSTEM_CLOCK.now_us()


def main(url: str, name: str, seconds: str, ledger: str) -> None:
    hammer = Hammer(url, name, ledger)
    print("ready", flush=True)
    sys.stdin.readline()
    hammer.run(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
