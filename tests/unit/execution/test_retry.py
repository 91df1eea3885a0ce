"""When the next run comes."""

import random

import msgspec
import pytest
from hypothesis import given, strategies as st

from holdfast.definition.definition import MAX_DURATION_S
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.values import Backoff, BackoffStrategy

attempts = st.integers(-5, 10**6)
parts = st.floats(0, 1, exclude_max=True)
backoffs = st.builds(
    Backoff,
    strategy=st.sampled_from(BackoffStrategy),
    base=st.floats(0, MAX_DURATION_S),
    multiplier=st.floats(1, 100),
    max=st.floats(0, MAX_DURATION_S),
    jitter=st.floats(0, 1),
)


GROWING = [BackoffStrategy.LINEAR, BackoffStrategy.EXPONENTIAL]


def without_jitter(backoff: Backoff) -> BackoffPolicy:
    return BackoffPolicy(msgspec.structs.replace(backoff, jitter=0))


def test_the_defaults_wait_two_four_eight_seconds() -> None:
    policy: RetryPolicy = BackoffPolicy(random=lambda: 0.5)
    assert [policy.delay(attempt, None) for attempt in range(1, 6)] == [0, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (BackoffStrategy.NONE, [0, 0, 0, 0]),
        (BackoffStrategy.FIXED, [0, 5, 5, 5]),
        (BackoffStrategy.LINEAR, [0, 5, 10, 15]),
        (BackoffStrategy.EXPONENTIAL, [0, 5, 15, 45]),
    ],
)
def test_each_strategy_grows_in_its_own_way(strategy: BackoffStrategy, delays: list[float]) -> None:
    policy = without_jitter(Backoff(strategy=strategy, base=5, multiplier=3))
    assert [policy.delay(attempt) for attempt in range(1, 5)] == delays


def test_a_list_of_delays_is_taken_as_written_and_its_last_repeats() -> None:
    policy = BackoffPolicy(Backoff(delays=(1, 5, 1000), max=300), random=lambda: 0.99)
    assert [policy.delay(attempt) for attempt in range(1, 7)] == [0, 1, 5, 1000, 1000, 1000]


@pytest.mark.parametrize(("drawn", "delay"), [(0.0, 8.5), (0.5, 10.0), (0.999999999, 11.5)])
@pytest.mark.parametrize("strategy", GROWING)
def test_jitter_spreads_by_fifteen_percent(strategy: BackoffStrategy, drawn: float, delay: float) -> None:
    policy = BackoffPolicy(Backoff(strategy=strategy, base=10), random=lambda: drawn)
    assert policy.delay(2) == pytest.approx(delay)


@pytest.mark.parametrize("strategy", GROWING)
@pytest.mark.parametrize("base", [300, 290, 1000])
def test_at_the_cap_the_jitter_goes_downwards_only(strategy: BackoffStrategy, base: float) -> None:
    lowest = min(base, 300) * 0.85
    backoff = Backoff(strategy=strategy, base=base, max=300)
    draws = iter((0.0, 0.5, 0.999999999))
    policy = BackoffPolicy(backoff, random=lambda: next(draws))
    assert [policy.delay(2) for _ in range(3)] == pytest.approx([lowest, (lowest + 300) / 2, 300])


@pytest.mark.parametrize("strategy", GROWING)
def test_a_herd_at_the_cap_still_spreads(strategy: BackoffStrategy) -> None:
    policy = BackoffPolicy(Backoff(strategy=strategy, base=100, max=300), random=random.Random(16).random)
    delays = [policy.delay(12) for _ in range(3000)]
    tenths = [sum(255 + 4.5 * tenth <= delay < 259.5 + 4.5 * tenth for delay in delays) for tenth in range(10)]
    assert sum(tenths) == len(set(delays)) == 3000
    assert 250 < min(tenths) <= max(tenths) < 350


@pytest.mark.parametrize("base", [0.05, 10, 600, 86400])
def test_a_fixed_delay_is_exact_without_jitter_and_cap(base: float) -> None:
    policy = BackoffPolicy(Backoff(strategy=BackoffStrategy.FIXED, base=base), random=lambda: 0.0)
    assert [policy.delay(attempt) for attempt in (2, 3, 1000)] == [base, base, base]


def test_a_cap_of_zero_is_none() -> None:
    assert without_jitter(Backoff(max=0)).delay(12) == 2048


@given(backoffs, attempts, parts)
def test_no_delay_is_negative_or_above_the_cap(backoff: Backoff, attempt: int, drawn: float) -> None:
    delay = BackoffPolicy(backoff, random=lambda: drawn).delay(attempt)
    is_capped = backoff.strategy in GROWING
    assert 0 <= delay <= ((is_capped and backoff.max) or MAX_DURATION_S)
    if not is_capped and attempt > 1:
        assert delay == (backoff.base if backoff.strategy is BackoffStrategy.FIXED else 0)


@given(backoffs, attempts, parts)
def test_jitter_stays_within_its_part_of_the_delay(backoff: Backoff, attempt: int, drawn: float) -> None:
    jittered = BackoffPolicy(backoff, random=lambda: drawn).delay(attempt)
    plain = without_jitter(backoff).delay(attempt)
    assert plain * (1 - backoff.jitter) - 1e-6 <= jittered <= plain * (1 + backoff.jitter) + 1e-6


@given(backoffs, attempts, st.integers(0, 1000))
def test_without_jitter_a_later_retry_never_waits_less(backoff: Backoff, attempt: int, later: int) -> None:
    policy = BackoffPolicy(backoff, random=lambda: 0.5)
    assert policy.delay(attempt) <= policy.delay(attempt + later)


@given(st.lists(st.floats(0, MAX_DURATION_S), min_size=1, max_size=5), st.integers(2, 10**6))
def test_a_list_gives_only_what_it_holds(delays: list[float], attempt: int) -> None:
    assert BackoffPolicy(Backoff(delays=tuple(delays))).delay(attempt) in delays


def test_a_billionth_retry_of_whole_numbers_is_as_quick_as_the_first() -> None:
    assert without_jitter(Backoff(base=3, multiplier=7, max=60)).delay(10**9) == 60
    assert without_jitter(Backoff(base=0)).delay(10**9) == 0
