"""One of several processes that enqueue, claim and run jobs with keys, all at once, and write down each start and end.

`python -m tests.faults.holding URL LEDGER SECONDS` prints that it is ready, waits for a line on stdin, and at the end
drains the jobs. A start is written after the job has entered its slots, an end before it is settled: what overlaps in
the ledger has overlapped. `test_holding.py` reads it.
"""

import os
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from holdfast.codec import describe
from holdfast.definition import JobBuilder
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.state.ownership import slots_of
from holdfast.values import Ack, AttemptRecord, Entry, EntryOutcome, JobLease, JobState, Nack, Outcome, Settlement
from holdfast.worker.verdict import carrying

from .ledgers import append_line

QUEUES = ("a", "b")
INSTANCES = ("nightly", "hourly")
WIDE_KEYS, PLACES = ("wide-1", "wide-2"), 2
ORDERS = 4
BATCH = 3
DRAIN_WAIT_S = 1.0


class Holder:
    """Performs random operations of producers and workers."""

    def __init__(self, engine: Engine, ledger: Path) -> None:
        self._engine = engine
        self._ledger = ledger
        self._session = new_session()
        self._dice = random.Random(os.getpid())

    def run(self, seconds: float) -> None:
        over_at = time.monotonic() + seconds
        while time.monotonic() < over_at:
            self._dice.choice((self._produce, self._work, self._work, self._work, self._maintain))()

    def drain(self) -> None:
        """Work until every job is completed, including the retries.

        Idle processes wait for a promotion: sixteen that only poll would slow down the hand-over that they wait for.
        """
        while any(set(states) - {JobState.COMPLETED} for states in self._engine.counts().values()):
            self._maintain()
            self._work(wait_s=DRAIN_WAIT_S)

    def _produce(self) -> None:
        dice = self._dice
        keyed = [
            JobBuilder("job").named(dice.choice(INSTANCES)).single_instance(),
            JobBuilder("job").concurrency_key(dice.choice(WIDE_KEYS), PLACES),
            JobBuilder("job").idempotency_key(f"order-{dice.randrange(ORDERS)}"),
            JobBuilder("job").single_instance().concurrency_key(dice.choice(WIDE_KEYS), PLACES),
        ]
        jobs = [self._engine.envelopes.make(one.queue(dice.choice(QUEUES)).definition()) for one in keyed]
        unique = self._engine.envelopes.make(JobBuilder("job").queue(dice.choice(QUEUES)).unique("k").definition())
        [*_, answer] = self._engine.accept([*dice.sample(jobs, len(jobs)), unique])
        if answer.created:
            append_line(self._ledger, "stored", answer.id)

    def _work(self, wait_s: float = 0.0) -> None:
        token = new_owner_token(self._session)
        leases = self._engine.claim(self._dice.choice(QUEUES), BATCH, owner_token=token, wait=wait_s)
        messages = {lease.id: describe(lease.wire) for lease in leases}
        entries = [
            Entry(lease=lease, slots=slots)
            for lease in leases
            if (message := messages[lease.id]) is not None and (slots := slots_of(message))
        ]
        answers = dict(zip((one.lease.id for one in entries), self._engine.enter(entries), strict=True))
        ends: list[Settlement] = []
        for lease in leases:
            answer = answers.get(lease.id)
            if answer is None or answer.outcome is EntryOutcome.ENTERED:
                slots = next((one.slots for one in entries if one.lease is lease), ())
                ends.append(carrying(self._run(lease, [slot.name for slot in slots]), messages[lease.id]))
            elif answer.outcome is EntryOutcome.SPARED:
                skipped = AttemptRecord(outcome=Outcome.SKIPPED, started_us=0, ended_us=0)
                ends.append(Ack(lease=lease, record=skipped))
        for lease in leases:
            if not answers or lease.id not in answers or answers[lease.id].outcome is EntryOutcome.ENTERED:
                append_line(self._ledger, "end", lease.id)
        assert all(self._engine.settle(ends)), "a lease was lost"

    def _run(self, lease: JobLease, slots: Iterable[str]) -> Settlement:
        append_line(self._ledger, "start", lease.id, *slots)
        record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=0, ended_us=0)
        if self._dice.random() < 0.1:
            return Nack(lease=lease, record=record)
        append_line(self._ledger, "done", lease.id, *slots)
        return Ack(lease=lease, record=record)

    def _maintain(self) -> None:
        self._engine.reap_expired()
        self._engine.repair()
        if self._dice.random() < 0.05:
            self._engine.records.delete_unused()


def main(url: str, ledger: str, seconds: str) -> None:
    engine, _ = EngineFactory(Unsigned()).open(url)
    with engine:
        engine.create_schema()
        print("ready", flush=True)
        sys.stdin.readline()
        holder = Holder(engine, Path(ledger))
        holder.run(float(seconds))
        holder.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
