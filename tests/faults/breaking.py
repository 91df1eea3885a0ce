"""One of several processes that call an outside service through one circuit breaker, and run jobs that wait for it.

`python -m tests.faults.breaking URL DIRECTORY` prints that it is ready, waits for a line on stdin, and works until the
file `stop` exists. The service is down while the file `down` exists. `python -m tests.faults.breaking URL DIRECTORY
STEP` makes one trial call and dies at a step of it. `test_breaking.py` reads the ledger.
"""

import logging
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.codec import describe
from holdfast.errors import CircuitOpen
from holdfast.queues.contract import Engine, SharedState, new_owner_token, new_session
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.state.breakers import Breakers, Rule
from holdfast.state.ownership import slots_of
from holdfast.values import Ack, Cell, Entry, EntryOutcome, JobLease, Release, Settlement, Spend, Spent, Write
from holdfast.worker.verdict import carrying

from .ledgers import append_line

NAME: Final = "stripe"
RULE: Final = Rule(failures=5, cooldown=float(os.environ.get("COOLDOWN_S", "0.3")))
QUEUES = ("a", "b")
# The writes of a trial call: before and after each of them, its process is killed.
STEPS: Final = ("before-begin", "after-begin", "before-end", "after-end")


class Caller:
    """Performs random operations of processes that use the circuit."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self._breakers = Breakers(engine.state)
        self._directory = directory
        self._session = new_session()
        self._dice = random.Random(os.getpid())

    def run(self) -> None:
        while not (self._directory / "stop").exists():
            self._dice.choice((self._call, self._work, self._work, self._maintain))()

    def _call(self) -> bool:
        """Call the service. Returns whether the call was made and succeeded."""
        try:
            call = self._breakers.begin(NAME, RULE)
        except CircuitOpen:
            return False
        if call.is_trial:
            append_line(self._directory / "ledger", "trial", str(call.version))
        if (self._directory / "down").exists():
            self._breakers.failed(call, RULE)
            return False
        self._breakers.succeeded(call)
        return True

    def _work(self) -> None:
        token = new_owner_token(self._session)
        leases = self._engine.claim(self._dice.choice(QUEUES), 3, owner_token=token)
        messages = {lease.id: describe(lease.wire) for lease in leases}
        entries = [
            Entry(lease=lease, slots=slots_of(message))
            for lease in leases
            if (message := messages[lease.id]) is not None
        ]
        answers = self._engine.enter(entries)
        ends = [
            carrying(self._run(entry.lease), messages[entry.lease.id])
            for entry, answer in zip(entries, answers, strict=True)
            if answer.outcome is EntryOutcome.ENTERED
        ]
        assert all(self._engine.settle(ends)), "a lease was lost"

    def _run(self, lease: JobLease) -> Settlement:
        append_line(self._directory / "ledger", "start", lease.id)
        return Ack(lease=lease) if self._call() else Release(lease=lease, delay=0.05)

    def _maintain(self) -> None:
        self._engine.repair()
        self._engine.state.sweep()


class DyingState(SharedState):
    """Kills this process before or after its nth write."""

    def __init__(self, inner: SharedState, step: str) -> None:
        self._inner = inner
        self._writes = ["begin", "end"]
        self._step = step

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        name = self._writes.pop(0)
        self._die_at(f"before-{name}")
        versions = self._inner.write(writes)
        self._die_at(f"after-{name}")
        return versions

    def _die_at(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Cell]:
        return self._inner.read(kind, keys, after=after, limit=limit)

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return self._inner.spend(spends)

    def sweep(self, limit: int = 1000) -> int:
        return self._inner.sweep(limit)


def die(engine: Engine, step: str) -> None:
    """Make a trial call, and die at this step. A step that ends in `-failing` is of a call that fails."""
    breakers = Breakers(DyingState(engine.state, step.removesuffix("-failing")))
    call = breakers.begin(NAME, RULE)
    if step.endswith("-failing"):
        breakers.failed(call, RULE)
    else:
        breakers.succeeded(call)


def main(url: str, directory: str, *step: str) -> None:
    logging.disable()  # each opened circuit is a warning
    engine, _ = EngineFactory(Unsigned()).open(url)
    with engine:
        engine.create_schema()
        if step:
            die(engine, *step)
            return
        print("ready", flush=True)
        sys.stdin.readline()
        Caller(engine, Path(directory)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
