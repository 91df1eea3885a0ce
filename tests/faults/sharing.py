"""One of several processes that write the same cells and spend from the same bucket, all at once.

`python -m tests.faults.sharing URL NAME SECONDS` prints that it is ready, waits for a line on stdin, and at the end
prints its results as one line of JSON; `test_shared_state.py` adds up the results of all processes.
"""

import random
import sys
import time

import msgspec

from holdfast.queues.contract import Engine
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.values import Drop, Put, Spend

COUNTER, STEP, TURN = "counter", "step", "turn"
PER_S, BURST = 40.0, 8


class Share(msgspec.Struct, frozen=True):
    """The results of one process: numbers it counted to, tokens it was granted, versions of the turns it took."""

    counted: list[int]
    granted: int
    turns: list[int]


class Sharer:
    """Performs random operations; every write has a condition."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._state = engine.state
        self._name = name
        self._dice = random.Random(name)
        self.counted: list[int] = []
        self.granted = 0
        self.turns: list[int] = []

    def run(self, seconds: float) -> Share:
        over_at = time.monotonic() + seconds
        while time.monotonic() < over_at:
            self._dice.choice((self._count, self._count, self._spend, self._take_turn, self._sweep))()
        return Share(self.counted, self.granted, self.turns)

    def _count(self) -> None:
        """Increment the counter and store the step, or do neither."""
        cells = self._state.read(COUNTER, ["c"])
        version, number = (cells[0].version, int(cells[0].value)) if cells else (0, 0)
        counter = Put(kind=COUNTER, key="c", value=b"%d" % (number + 1), if_version=version)
        step = Put(kind=STEP, key=f"{number + 1:08}", value=self._name.encode(), if_version=0)
        if self._state.write(self._dice.sample([counter, step], 2)) is not None:
            self.counted.append(number + 1)

    def _spend(self) -> None:
        tokens = self._dice.randint(1, 3)
        [spent] = self._state.spend([Spend(bucket="b", tokens=tokens, per_s=PER_S, burst=BURST)])
        self.granted += spent.tokens

    def _take_turn(self) -> None:
        """A turn is dropped or expires: either way, the next one has a greater version."""
        versions = self._state.write([Put(kind=TURN, key="t", ttl=0.01, if_version=0)])
        if versions is not None:
            self.turns += versions
            if self._dice.random() < 0.5:
                self._state.write([Drop(kind=TURN, key="t", if_version=versions[0])])

    def _sweep(self) -> None:
        self._state.sweep()


def main(url: str, name: str, seconds: str) -> None:
    engine, _ = EngineFactory(Unsigned()).open(url)
    with engine:
        engine.create_schema()
        print("ready", flush=True)
        sys.stdin.readline()
        share = Sharer(engine, name).run(float(seconds))
    print(msgspec.json.encode(share).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
