"""One of several processes that run jobs with a rate limit, all at once, and write down when each of them starts.

`python -m tests.faults.limiting URL LEDGER SECONDS` prints that it is ready, waits for a line on stdin, and works for
so long, or until its stdin is closed. `DIE` in the environment names the step at which it kills itself, such as
`after spend`. `test_limiting.py` reads the ledger.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.config import Settings
from holdfast.handlers import JobContext
from holdfast.queues.contract import Engine
from holdfast.values import Outcome, Settlement, Spend
from holdfast.worker import WorkerLoop

from .ledgers import append_line

KEY = "ours:the-signing-key-of-the-tests-of-limits"
LIMITED, FREE = "limited", "free"
PER_S, BURST = 20, 4
RATE = f"{PER_S}/s,burst={BURST}"
SETTINGS = Settings(limits={LIMITED: RATE}, lease=2.0, crash_limit=100, reap_interval=0.1, poll_interval=0.1)


def application(url: str) -> Holdfast:
    return Holdfast(url, settings=SETTINGS, signing_key=KEY)


class Noted:
    """Notes when tokens were last asked for, and when each job starts."""

    def __init__(self, engine: Engine, ledger: Path) -> None:
        self._ledger = ledger
        self._asked_us = 0
        self._spend = engine.state.spend
        engine.state.spend = self.spend  # type: ignore[method-assign]

    def spend(self, spends: Sequence[Spend]) -> Any:
        self._asked_us = time.time_ns() // 1000
        return self._spend(spends)

    def run(self, context: JobContext) -> None:
        append_line(self._ledger, context.id, self._asked_us, time.time_ns() // 1000)


def dying(step: str, real: Callable[..., Any], is_meant: Callable[..., bool]) -> Callable[..., Any]:
    """A verb that kills this process before or after it, if the test wants that."""

    def call(*args: Any, **options: Any) -> Any:
        if os.environ["DIE"] == f"before {step}" and is_meant(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*args, **options)
        if os.environ["DIE"] == f"after {step}" and is_meant(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return call


def let_die(engine: Any) -> None:
    """Plant the steps at which the process can kill itself."""
    state = engine.state
    state.spend = dying("spend", state.spend, _takes)
    state.spend = dying("refund", state.spend, _returns)
    engine.claim = dying("claim", engine.claim, lambda *_: True)
    engine.settle = dying("release", engine.settle, _puts_off)


def _takes(spends: Sequence[Spend]) -> bool:
    return any(one.tokens > 0 for one in spends)


def _returns(spends: Sequence[Spend]) -> bool:
    return any(one.tokens < 0 for one in spends)


def _puts_off(settlements: Sequence[Settlement]) -> bool:
    return any(one.record is not None and one.record.outcome is Outcome.RATE_LIMITED for one in settlements)


def _stop_on_input(loop: WorkerLoop) -> None:
    sys.stdin.readline()
    loop.stop()


def main(url: str, ledger: str, seconds: str) -> None:
    with application(url) as hf:
        engine = hf.backend()
        if "DIE" in os.environ:
            let_die(engine)
        hf.registry.register("job", Noted(engine, Path(ledger)).run)
        with hf.worker() as worker:
            loop = hf.loop(worker, [LIMITED, FREE])
            print("ready", flush=True)
            sys.stdin.readline()
            timer = threading.Timer(float(seconds), loop.stop)
            timer.daemon = True
            timer.start()
            threading.Thread(target=_stop_on_input, args=(loop,), daemon=True).start()
            loop.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
