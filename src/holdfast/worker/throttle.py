"""`Throttle`: how many jobs of a queue a worker may claim now, by the queue's rate limit. Every kind of worker uses it.

A worker takes tokens before it claims, and returns those of jobs that did not run. If it is killed in between, the
tokens are lost until the bucket refills; no limit is ever exceeded.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.clock import Clock
from holdfast.errors import BackendError
from holdfast.queues.contract import SharedState
from holdfast.rates import Rate
from holdfast.state.limits import queue_bucket
from holdfast.values import MAX_TOKENS, Spend, WorkerResult, WorkerStatus

log = logging.getLogger("holdfast.worker")


class Throttle:
    """The rate limits of a worker's queues. It asks the engine only about queues that have one.

    It reuses the answer that a queue has no token for at most `poll_interval_s`; with 0, it asks every time. With
    `skips_empty`, a queue that was empty is skipped for the same time, unless the engine hints that it has work
    (`waited`). An idle queue therefore costs neither tokens nor round trips.
    """

    def __init__(
        self,
        state: SharedState,
        limits: Mapping[str, Rate],
        clock: Clock,
        *,
        poll_interval_s: float = 0.0,
        skips_empty: bool = False,
    ) -> None:
        self._state = state
        self._limits = limits
        self._clock = clock
        self._poll_interval_s = poll_interval_s
        self._skips_empty = skips_empty
        self._ask_at: dict[str, float] = {}
        self._waits_s: dict[str, float] = {}
        self._empty: set[str] = set()
        self._owed: Counter[str] = Counter()
        self._short: set[str] = set()
        self._reached: set[str] = set()
        self._news: list[WorkerResult] = []

    def __contains__(self, queue: object) -> bool:
        return queue in self._limits

    def take(self, queue: str, wanted: int) -> int:
        """The number of jobs that may be claimed, at most `wanted`. From a limited queue, this takes as many tokens."""
        rate = self._limits.get(queue)
        if rate is None:
            return wanted
        now = self._clock.monotonic()
        if wanted <= 0 or now < self._ask_at.get(queue, now):
            return 0
        [spent] = self._state.spend([_spend(queue, min(wanted, MAX_TOKENS), rate)])
        if not spent.tokens and spent.wait_s > 2 * rate.each_s:
            # The bucket was used at a lower rate, before the setting was changed: at this rate, it refills sooner.
            self._state.spend([_spend(queue, -MAX_TOKENS, rate)])
            [spent] = self._state.spend([_spend(queue, min(wanted, MAX_TOKENS), rate)])
        self._empty.discard(queue)
        self._short.discard(queue)
        if spent.tokens < wanted:
            self._short.add(queue)
            self._waits_s[queue] = spent.wait_s
            self._ask_at[queue] = now + min(spent.wait_s, self._poll_interval_s)
        if not spent.tokens and queue not in self._reached:
            self._reached.add(queue)
            self._news.append(self.refusal(queue))
        return spent.tokens

    def refusal(self, queue: str) -> WorkerResult:
        """The result of a turn in which the queue had no token left, according to the engine's last answer."""
        return WorkerResult(status=WorkerStatus.RATE_LIMITED, queue=queue, retry_in=self._waits_s.get(queue, 0.0))

    def claimed(self, queue: str, allowed: int, number: int) -> None:
        """Record how many of the allowed jobs were claimed. The tokens of the others are returned."""
        if queue not in self._limits:
            return
        self.owe(queue, allowed - number)
        if number < allowed:
            self._short.discard(queue)
            self._reached.discard(queue)
            self._ask_at.pop(queue, None)  # the returned tokens can be taken at once
        if not number and self._skips_empty:
            self._empty.add(queue)
            self._ask_at[queue] = self._clock.monotonic() + self._poll_interval_s

    def waited(self, *, in_vain: bool) -> None:
        """Record that the engine has waited for jobs: it found none, or hinted at some."""
        ask_at = self._clock.monotonic() + (self._poll_interval_s if in_vain else 0.0)
        self._ask_at |= dict.fromkeys(self._empty, ask_at)

    def owe(self, queue: str, tokens: int = 1) -> None:
        """Record the tokens of jobs that did not run; `refund` returns them."""
        if tokens and queue in self._limits:
            self._owed[queue] += tokens

    def refund(self) -> None:
        """Return the tokens that are owed."""
        if not self._owed:
            return
        spends = [_spend(queue, -tokens, self._limits[queue]) for queue, tokens in self._owed.items()]
        self._owed.clear()
        try:
            self._state.spend(spends)
        except BackendError as problem:
            # Returned twice, they would exceed the limit; not returned, they cost a little time.
            log.warning("could not return unused tokens of a rate limit; they are lost until it refills: %s", problem)

    def is_waiting(self, queue: str) -> bool:
        """Whether the queue waits for its next token."""
        return queue not in self._empty and self._ask_at.get(queue, 0.0) > self._clock.monotonic()

    def has_reached(self, queue: str) -> bool:
        """Whether the queue had fewer tokens than were wanted when it was last asked, and so may have jobs that were
        not claimed. Its next token may be available by now.
        """
        return queue in self._short

    def next_token_in(self, queues: Iterable[str]) -> float | None:
        """The seconds until the first of these queues may have a token again; None if none of them waits for one."""
        now = self._clock.monotonic()
        return min((self._ask_at[queue] - now for queue in queues if self.is_waiting(queue)), default=None)

    def news(self) -> list[WorkerResult]:
        """The limits that were reached since the last call: each once, until its queue has fewer jobs than tokens."""
        news, self._news = self._news, []
        return news


def _spend(queue: str, tokens: int, rate: Rate) -> Spend:
    return Spend(bucket=queue_bucket(queue), tokens=tokens, per_s=rate.per_s, burst=rate.burst)
