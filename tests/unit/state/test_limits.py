"""Rate limits for any code, and the tokens of jobs: on the engine in memory, with a clock that the test moves."""

import random
from collections.abc import Callable, Iterator

import pytest

from holdfast import Holdfast
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.errors import ConfigError, DefinitionError, RateLimited
from holdfast.rates import Rate, parse_rate
from holdfast.state.limits import Limiter, Start, waits_of

LIMITS = {"mail": "60/min", "api": "10/s,burst=20", "free": "0"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with Holdfast("memory://", settings=Settings(limits=LIMITS), clock=clock) as hf:
        yield hf


@pytest.fixture
def maps(hf: Holdfast) -> Limiter:
    return hf.limiter("maps", "2/s", burst=3)


def test_it_allows_its_burst_and_then_its_rate(maps: Limiter, clock: ManualClock) -> None:
    assert [maps.allow() for _ in range(4)] == [True, True, True, False]
    clock.advance(0.5)
    assert [maps.allow(), maps.allow()] == [True, False]


def test_several_are_allowed_together_or_not_at_all(maps: Limiter) -> None:
    assert maps.allow(2)
    assert not maps.allow(2)
    assert maps.allow(1), "a refusal takes no token"


@pytest.mark.parametrize("n", [0, 4, -1, 1.5, True])
def test_a_number_that_can_never_be_allowed_is_refused(maps: Limiter, n: int) -> None:
    with pytest.raises(ValueError, match="limiter 'maps' allows 1 to 3 at once"):
        maps.allow(n)


def test_throttling_raises_when_to_try_again(maps: Limiter, clock: ManualClock) -> None:
    maps.throttle(3)
    with pytest.raises(RateLimited) as one:
        maps.throttle()
    assert one.value.retry_after == pytest.approx(0.5)
    limit = "limiter 'maps' has reached its rate limit of 2/s,burst=3"
    assert str(one.value) == f"{limit}; the next token is available in 500 ms"
    with pytest.raises(RateLimited, match="2 tokens are available in 1 s") as two:
        maps.throttle(2)
    clock.advance(two.value.retry_after)
    maps.throttle(2)


def test_usage_shows_what_is_left_and_takes_nothing(maps: Limiter, clock: ManualClock) -> None:
    def seen() -> tuple[int, float]:
        usage = maps.usage()
        assert (usage.rate, usage.burst) == ("2/s,burst=3", 3)
        return usage.available, round(usage.wait_s, 3)

    assert seen() == seen() == (3, 0.0)
    maps.allow(2)
    assert seen() == seen() == (1, 0.0)
    maps.allow()
    assert seen() == (0, 0.5)
    clock.advance(0.4)
    assert seen() == (0, 0.1)
    clock.advance(0.1)
    assert seen() == (1, 0.0)
    clock.advance(100)
    assert seen() == (3, 0.0)


def test_usage_of_a_fast_limit_is_exact(hf: Holdfast) -> None:
    """A token of this rate costs a fraction of a microsecond more than it should."""
    fast = hf.limiter("fast", "300000/s", burst=300_000)
    assert fast.usage().available == 300_000
    assert fast.allow(100_000)
    assert abs(fast.usage().available - 200_000) <= 70_000


def test_a_reset_makes_all_tokens_available(maps: Limiter) -> None:
    maps.allow(3)
    maps.reset()
    assert maps.usage().available == 3
    assert maps.allow(3)


def test_limits_are_shared_by_name(hf: Holdfast, maps: Limiter) -> None:
    maps.allow(3)
    assert not hf.limiter("maps", "2/s", burst=3).allow()
    assert hf.limiter("other", "2/s", burst=3).allow(3)


def test_the_limit_of_a_queue_is_the_setting(hf: Holdfast) -> None:
    assert hf.limiter(queue="mail").rate == Rate(number=60.0, unit="min", burst=1)
    api = hf.limiter(queue="api")
    assert api.usage().burst == 20
    assert api.allow(20)
    assert hf.limiter(queue="mail").allow()


@pytest.mark.parametrize("queue", ["free", "other"])
def test_a_queue_without_a_limit_is_an_error_that_says_what_to_write(hf: Holdfast, queue: str) -> None:
    wanted = f"queue '{queue}' has no rate limit; set one in holdfast.toml:  limits = {{{queue} = \"60/min\"}}"
    with pytest.raises(ConfigError) as refused:
        hf.limiter(queue=queue)
    assert str(refused.value) == wanted


def test_a_limit_that_cannot_be_read_names_the_queue() -> None:
    with (
        Holdfast("memory://", settings=Settings(limits={"mail": "often"})) as hf,
        pytest.raises(ConfigError, match="the rate limit of queue 'mail' is 'often': write a number and a unit"),
    ):
        hf.limiter(queue="mail")


def test_a_limiter_needs_a_name_and_a_rate(hf: Holdfast) -> None:
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("a limiter needs a name and a rate", lambda: hf.limiter()),
        ("a limiter needs a name and a rate", lambda: hf.limiter("maps")),
        ("limiter 'maps', rate '2/x': write a number", lambda: hf.limiter("maps", "2/x")),
        ("limiter 'maps', rate '2/s': the burst must be", lambda: hf.limiter("maps", "2/s", burst=0)),
        ("the rate must be greater than 0", lambda: hf.limiter("maps", 0)),
        ("the limit of a queue is a setting", lambda: hf.limiter("maps", queue="mail")),
    ]
    for problem, call in wrong:
        with pytest.raises(DefinitionError, match=problem):
            call()


class Jobs:
    """Jobs of one bucket that ask to start."""

    def __init__(self, hf: Holdfast, rate: str) -> None:
        self._state = hf.backend().state
        parsed = parse_rate(rate)
        assert parsed is not None
        self._rate = parsed

    def waits(self, *jobs: tuple[str, int]) -> list[float]:
        """The waits of jobs by their ids and deliveries."""
        return waits_of(
            self._state, [Start(job_id=id, delivery=number, bucket="b", rate=self._rate) for id, number in jobs]
        )


def test_new_jobs_wait_one_after_the_other(hf: Holdfast) -> None:
    jobs = Jobs(hf, "4/s,burst=2")
    assert jobs.waits(("a", 1), ("b", 1), ("c", 1)) == [0.0, 0.0, pytest.approx(0.25)]
    assert jobs.waits(("d", 1)) == [pytest.approx(0.5)]


def test_a_job_that_comes_at_its_turn_starts(hf: Holdfast, clock: ManualClock) -> None:
    jobs = Jobs(hf, "60/min")
    assert jobs.waits(("first", 1), ("a", 1), ("b", 1)) == [0.0, pytest.approx(1.0), pytest.approx(2.0)]
    for id in ("a", "b"):
        clock.advance(1.0)
        assert jobs.waits((id, 2)) == [0.0]


@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.2])
def test_jobs_that_come_a_little_late_are_not_put_off_again(hf: Holdfast, clock: ManualClock, late_s: float) -> None:
    jobs = Jobs(hf, "60/min")
    jobs.waits(("first", 1), ("a", 1), ("b", 1))
    clock.advance(1.0 + late_s)
    assert jobs.waits(("a", 2)) == [0.0]
    clock.advance(1.0 - late_s)
    assert jobs.waits(("b", 2)) == [0.0]


def test_jobs_that_piled_up_go_to_the_end_of_the_line(hf: Holdfast, clock: ManualClock) -> None:
    jobs = Jobs(hf, "60/min")
    jobs.waits(*((f"job-{number}", 1) for number in range(5)))
    clock.advance(100.0)
    late = jobs.waits(*((f"job-{number}", 2) for number in range(1, 5)))
    assert late[0] == 0.0
    assert all(wait > 0.5 for wait in late[1:]), "no more than the burst"


def test_a_retry_takes_another_token(hf: Holdfast) -> None:
    jobs = Jobs(hf, "60/min")
    assert jobs.waits(("a", 1)) == [0.0]
    assert jobs.waits(("a", 2))[0] > 0


def test_a_job_that_was_blocked_before_does_not_start_early(hf: Holdfast) -> None:
    jobs = Jobs(hf, "1/h")
    assert jobs.waits(("a", 1)) == [0.0]
    assert jobs.waits(("blocked", 2))[0] > 3000
    assert jobs.waits(("b", 1))[0] > 3000, "the token that was not used is returned once"


def test_a_new_job_runs_before_its_turn_only_if_tokens_would_be_lost(hf: Holdfast, clock: ManualClock) -> None:
    """While workers put off a long line, they find no time for the jobs that are due."""
    jobs = Jobs(hf, "60/min")
    assert jobs.waits(("first", 1), *((f"old-{number}", 1) for number in range(9)))[-1] == pytest.approx(9.0)
    clock.advance(0.5)
    assert jobs.waits(("early", 1)) == [pytest.approx(9.5)]
    clock.advance(0.6)
    assert jobs.waits(("new", 1)) == [0.0], "the token was free for a while"
    assert jobs.waits(("next", 1)) == [pytest.approx(9.9)], "its place in the line is free again"


def test_in_any_window_no_more_start_than_rate_and_burst(hf: Holdfast, clock: ManualClock) -> None:
    """Whatever the order and the delays, and with jobs that come too late."""
    dice = random.Random(5)
    jobs = Jobs(hf, "60/min")
    due: list[tuple[float, str, int]] = [(dice.uniform(0, 200), f"job-{number}", 1) for number in range(300)]
    starts: list[float] = []
    began = clock.monotonic()
    while due:
        at, id, delivery = due.pop(due.index(min(due)))
        clock.advance(max(0.0, began + at - clock.monotonic()) + dice.choice([0.0, 0.0, 0.01, 0.2, 3.0]))
        now = clock.monotonic() - began
        [wait] = jobs.waits((id, delivery))
        if wait:
            due.append((now + wait, id, delivery + 1))
        else:
            starts.append(now)
    assert len(starts) == 300
    for begin in starts:
        assert sum(begin <= start < begin + 60.0 for start in starts) <= 61
