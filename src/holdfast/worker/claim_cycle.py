"""`ClaimCycle`: decides on the worker's next request to the engine, and processes the answer."""

import time
from collections.abc import Container, Mapping
from typing import Final

from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.exchanger import EngineAnswer, EngineRequest, Exchanger
from holdfast.worker.holdings import Holdings
from holdfast.worker.options import WorkerOptions
from holdfast.worker.reporting import Reporter
from holdfast.worker.settlements import PendingSettlements

YIELD_S: Final = 0.05
FAILED_PAUSE_S: Final = 1.0
_BURST_WAIT_S: Final = 0.05
_UNLIMITED: Final = 1 << 30


class ClaimCycle:
    """One request at a time: it sends settlements and returns admitted jobs. The `Exchanger` runs it on its thread."""

    def __init__(
        self,
        exchanger: Exchanger,
        *,
        holdings: Holdings,
        dispatcher: Dispatcher,
        reporter: Reporter,
        options: WorkerOptions,
        limited: Container[str] = (),
    ) -> None:
        self._exchanger = exchanger
        self._holdings = holdings
        self._dispatcher = dispatcher
        self._reporter = reporter
        self._options = options
        self._limited = limited
        self._asked: PendingSettlements | None = None
        self._asked_at = 0.0
        self._ask_at = 0.0
        self._is_waiting = False
        self._is_leaving = False
        self._is_limited = False
        self._finished_when_asked = 0
        self._finished_when_dry: int | None = None

    @property
    def is_asking(self) -> bool:
        """Whether a request is waiting for its answer."""
        return self._asked is not None

    @property
    def is_exchanging(self) -> bool:
        """Whether the exchanger is working on a request. The loop then yields the processor to its thread, because
        SQLite needs it for a thousand short moments, and frames of lingering children go into the next batch anyway.
        It does not yield for long to an engine that is slow.
        """
        is_working = self._asked is not None and not self._is_waiting
        return is_working and time.monotonic() < self._asked_at + YIELD_S

    @property
    def is_dry(self) -> bool:
        """Whether the last claim found nothing and no job has finished since: one that did may have enqueued others,
        or may be due again itself.
        """
        return self._finished_when_dry == self._holdings.finished

    @property
    def undelivered(self) -> int:
        """The number of settlements that were sent to the engine and are not answered yet."""
        return len(self._asked or ())

    def ask(self) -> None:
        """Send the next request, if one is needed and the last one is answered."""
        if self._asked is not None:
            if self._is_waiting and (self._holdings.unsent or self._is_leaving):
                self._is_waiting = False
                self._exchanger.nudge()
            return
        now = time.monotonic()
        limits = self._limits(now)
        if (not self._holdings.unsent and not limits) or now < self._ask_at:
            return
        if not limits and self._holdings.may_linger(now):
            return
        self._asked, self._asked_at = self._holdings.take_unsent(), now
        self._finished_when_asked = self._holdings.finished
        wait_s = 0.0 if self._asked else self._wait()
        self._is_waiting = wait_s > 0
        self._exchanger.ask(
            EngineRequest(
                settlements=self._asked.settlements, limits=limits, wait_s=wait_s, is_burst=self._options.burst
            )
        )

    def leave(self) -> None:
        """Claim no more jobs."""
        self._is_leaving = True
        self._exchanger.leave()

    def hurry(self) -> None:
        """Also stop repeating settlements."""
        self._exchanger.hurry()

    def close(self, timeout_s: float) -> None:
        """End the exchanger's thread. Settlements that are not answered by now are given up."""
        self._exchanger.close(timeout_s)
        asked, self._asked = self._asked, None
        if asked:
            self._holdings.answered(asked, [None] * len(asked))

    def _wait(self) -> float:
        if self._options.burst and not self._is_limited:
            return _BURST_WAIT_S if self._holdings.flights else 0.0
        return self._options.poll_interval_s

    def _limits(self, now: float) -> Mapping[str, int]:
        """The number of jobs to claim from each queue: those that will start soon, up to `max_jobs`."""
        if self._is_leaving or (self._options.burst and self.is_dry and not self._holdings.flights):
            return {}
        left = self._left()
        rooms = self._dispatcher.room(now)
        # A token is for a start now: no job of a queue with a rate limit is claimed before a slot is free.
        free = self._options.slots - len(self._holdings.flights)
        limits = {queue: min(room, left, free if queue in self._limited else room) for queue, room in rooms.items()}
        return {queue: limit for queue, limit in limits.items() if limit > 0}

    def _left(self) -> int:
        if not self._options.max_jobs:
            return _UNLIMITED
        # Jobs whose settlements are not answered yet also count.
        begun = self._reporter.jobs_done + len(self._holdings.flights) + len(self._holdings.unsent)
        return self._options.max_jobs - begun

    def answered(self, answer: EngineAnswer) -> None:
        """Process the answer to the last request; the caller takes over the admitted jobs."""
        asked, self._asked, self._is_waiting = self._asked, None, False
        if answer.problem is not None:
            self._ask_at = time.monotonic() + FAILED_PAUSE_S
        elif answer.request.limits:
            self._is_limited = answer.is_limited
            if not answer.is_refused:
                is_dry = not answer.admitted and not answer.is_limited
                self._finished_when_dry = self._finished_when_asked if is_dry else None
        if asked:
            self._holdings.answered(asked, answer.held)
