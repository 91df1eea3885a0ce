"""Rate limits, as token buckets in shared state: of queues, of handlers and their keys, and of any application code.

The engine's clock decides how full a bucket is, so all processes share one limit. A bucket's name starts with its kind:
`queue:`, `handler:`, `key:` or `limiter:`; the line of a handler or key is a bucket whose name starts with `line:`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from holdfast.errors import EnvelopeRejected, RateLimited
from holdfast.queues.envelope import scoped_key
from holdfast.rates import Rate, parse_rate
from holdfast.units import format_duration
from holdfast.values import MAX_TOKENS, Spend, Spent

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine, SharedState


LINE: Final = "line:"
# How early a job whose turn has come may start: by at most half of the time between two starts, unless that is shorter
# than the delays of a worker.
EARLY_S: Final = 0.25
SHORT_S: Final = 0.1


class Rated(Protocol):
    """The members of a job's message or view that its rate limit depends on."""

    @property
    def job(self) -> str: ...
    @property
    def rate_limit(self) -> str | None: ...
    @property
    def rate_key(self) -> str | None: ...


class Start(Struct, frozen=True, kw_only=True):
    """A claimed job with a rate limit that asks to start."""

    job_id: str
    delivery: int
    bucket: str
    rate: Rate


def rate_of(message: Rated) -> Rate | None:
    """The rate limit of a job. Most jobs have none."""
    if message.rate_limit is None:
        return None
    try:
        return parse_rate(message.rate_limit)
    except ValueError as problem:  # another program may have signed it
        raise EnvelopeRejected(f"not a valid message: rate limit {message.rate_limit[:64]!a}: {problem}") from None


def check_rated(message: Rated) -> None:
    """Refuse a rate or a key outside the range that a definition allows. Another program may have signed it."""
    rate = rate_of(message)
    if rate is not None:
        try:
            Spend(bucket=f"{LINE}{bucket_of(message)}", tokens=1, per_s=rate.per_s, burst=rate.burst)
        except ValueError as problem:
            raise EnvelopeRejected(f"not a valid message: {problem}") from None


def bucket_of(message: Rated) -> str:
    """The bucket that a job with a rate limit takes its token from."""
    return f"handler:{message.job}" if message.rate_key is None else f"key:{scoped_key(message.job, message.rate_key)}"


def queue_bucket(queue: str) -> str:
    """The bucket of a queue."""
    return f"queue:{queue}"


def waits_of(state: "SharedState", starts: Sequence[Start]) -> list[float]:
    """The seconds that each job has to wait, 0 if it may start now, in which case it has taken a token.

    A second bucket, the line, only orders the jobs that wait. A new job takes the next place there, which is the time
    for which it is put off; when it is delivered again, it takes a token, and by then there usually is one. A job that
    finds none, because many became due while no worker was running, takes the next place again.
    """
    fresh = [start for start in starts if start.delivery == 1]
    places = dict(zip(_ids(fresh), _take_places(state, fresh), strict=True))
    answers = dict(zip(_ids(starts), state.spend([_ask(start, places) for start in starts]), strict=True))
    granted = {start.job_id for start in starts if _is_granted(start, answers[start.job_id])}
    refused = [start for start in starts if start.job_id not in granted]
    returning = [start for start in refused if start.delivery > 1]
    early = [start for start in starts if start.job_id in granted and places.get(start.job_id)]
    refunds = [_spend(start, tokens=-1) for start in returning] + [_spend(start, LINE, tokens=-1) for start in early]
    if refunds:
        state.spend(refunds)
    places |= dict(zip(_ids(returning), _take_places(state, returning), strict=True))
    return [0.0 if id in granted else places[id] or answers[id].wait_s for id in _ids(starts)]


def _ask(start: Start, places: Mapping[str, float]) -> Spend:
    """Ask for the token of a job. One whose turn has not come may take it only if the bucket is full: then no job that
    is due wants it. One that was delivered before reserves it, because it may be a moment early.
    """
    if start.delivery > 1:
        return _spend(start, reserve=True)
    return _spend(start, burst=1 if places[start.job_id] else start.rate.burst)


def _is_granted(start: Start, spent: Spent) -> bool:
    """Whether the job may start now. Jobs start a little late because of the delays of their worker; the next one must
    not be put off because of that.
    """
    if start.delivery == 1:
        return spent.tokens > 0
    each_s = start.rate.each_s
    return spent.wait_s <= (each_s if each_s <= SHORT_S else min(each_s / 2, EARLY_S))


def _ids(starts: Sequence[Start]) -> list[str]:
    return [start.job_id for start in starts]


def _take_places(state: "SharedState", starts: Sequence[Start]) -> list[float]:
    """The seconds until the turn of each job."""
    spends = [_spend(start, LINE, reserve=True) for start in starts]
    return [answer.wait_s for answer in state.spend(spends)] if spends else []


def _spend(
    start: Start, prefix: str = "", *, tokens: int = 1, burst: int | None = None, reserve: bool = False
) -> Spend:
    rate = start.rate
    return Spend(
        bucket=f"{prefix}{start.bucket}",
        tokens=tokens,
        per_s=rate.per_s,
        burst=min(rate.burst if burst is None else burst, MAX_TOKENS),
        reserve=reserve,
    )


class Usage(Struct, frozen=True, kw_only=True):
    """The usage of a limit: the tokens that are available now, and the seconds until the next one if there is none.

    `rate` is the limit as text, and `burst` how many tokens there can be at most.
    """

    rate: str
    burst: int
    available: int
    wait_s: float


class Limiter:
    """A rate limit that all processes share. Each use takes a token; tokens are refilled at the rate.

    `state` is called for each use, because the engine may be opened later, or be replaced in a test.
    """

    def __init__(self, name: str, bucket: str, rate: Rate, state: "Callable[[], SharedState]") -> None:
        self.name = name
        self.rate = rate
        self._bucket = bucket
        self._state = state

    def allow(self, n: int = 1) -> bool:
        """Take `n` tokens if that many are available. Returns whether they were taken."""
        return not self._wait(n)

    def throttle(self, n: int = 1) -> None:
        """Take `n` tokens, or raise `RateLimited`. A job that raises it runs again once they are available."""
        wait_s = self._wait(n)
        if wait_s:
            wanted = "the next token is" if n == 1 else f"{n:,} tokens are"
            when = f"{wanted} available in {format_duration(wait_s)}"
            raise RateLimited(f"{self.name} has reached its rate limit of {self.rate}; {when}", wait_s)

    def usage(self) -> Usage:
        """The current usage of the limit. Takes no token."""
        full_in_s, each_s, burst = self._spend(0)[1], self.rate.each_s, self.rate.burst
        # Tokens cost whole microseconds, rounded up; less than that is not missing.
        missing = full_in_s - 1e-6 * burst
        available = burst if missing <= 0 else max(0, min(burst, int(burst - missing / each_s)))
        wait_s = 0.0 if available else max(0.0, full_in_s - (burst - 1) * each_s)
        return Usage(rate=str(self.rate), burst=burst, available=available, wait_s=wait_s)

    def reset(self) -> None:
        """Refill the bucket. Jobs that were already put off keep their turns."""
        while self._spend(-MAX_TOKENS)[1] > 0:
            pass

    def _wait(self, n: int) -> float:
        """Take `n` tokens and return 0, or take none and return the seconds until that many are available."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= self.rate.burst:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"{self.name} allows 1 to {self.rate.burst:,} at once, not {n!r}; set a higher burst to take more"
            )
        granted, _ = self._spend(n)
        if granted == n:
            return 0.0
        _, full_in_s = self._spend(-granted)
        return max(1e-6, full_in_s - (self.rate.burst - n) * self.rate.each_s)

    def _spend(self, tokens: int) -> tuple[int, float]:
        """The tokens granted; for 0 or a refund, also the seconds until the bucket is full."""
        # A bucket that holds one token is full when the next one is free.
        burst = self.rate.burst if tokens > 0 else 1
        [spent] = self._state().spend([Spend(bucket=self._bucket, tokens=tokens, per_s=self.rate.per_s, burst=burst)])
        return spent.tokens, spent.wait_s


def queue_limiter(engine: "Engine", queue: str, rate: Rate) -> Limiter:
    """The rate limit of a queue in an open engine."""
    return Limiter(f"queue '{queue}'", queue_bucket(queue), rate, lambda: engine.state)
