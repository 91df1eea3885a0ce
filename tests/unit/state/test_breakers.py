"""Circuit breakers: when a circuit opens and closes, who makes the trial call, and what each call costs."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest

from holdfast import CircuitOpen, Holdfast, Snooze
from holdfast.clock import ManualClock
from holdfast.errors import BackendError, BackendUnavailable, DefinitionError
from holdfast.execution.timeout import JobTimeout
from holdfast.queues.contract import SharedState
from holdfast.state.breakers import CIRCUITS, WAITS, Breaker, Breakers, Rule, rule_of
from holdfast.testing import memory_lab
from holdfast.values import Cell, CircuitState, Put, Spend, Spent, Write

RULE = Rule(failures=3, cooldown=60.0)


class CountingState(SharedState):
    """Counts reads and writes, and can fail."""

    def __init__(self, inner: SharedState) -> None:
        self._inner = inner
        self.reads = self.writes = 0
        self.problem: BackendError | None = None

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Cell]:
        self.reads += 1
        self._fail()
        return self._inner.read(kind, keys, after=after, limit=limit)

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        self.writes += 1
        self._fail()
        return self._inner.write(writes)

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return self._inner.spend(spends)

    def sweep(self, limit: int = 1000) -> int:
        return self._inner.sweep(limit)

    def _fail(self) -> None:
        if self.problem is not None:
            raise self.problem


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state() -> Iterator[CountingState]:
    with memory_lab() as lab:
        counting = CountingState(lab.engine.state)
        counting.advance = lab.advance  # type: ignore[attr-defined]
        yield counting


@pytest.fixture
def advance(state: CountingState) -> Callable[[float], None]:
    return state.advance  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def breakers(state: CountingState) -> Breakers:
    return Breakers(state)


def fail(breakers: Breakers, times: int = 1, rule: Rule = RULE) -> None:
    """Make calls that fail."""
    for _ in range(times):
        breakers.failed(breakers.begin("stripe", rule), rule)


def succeed(breakers: Breakers) -> None:
    """Make a call that succeeds."""
    breakers.succeeded(breakers.begin("stripe", RULE))


def refused(breakers: Breakers) -> float:
    """The time after which a call that must be refused may be repeated."""
    with pytest.raises(CircuitOpen) as refusal:
        breakers.begin("stripe", RULE)
    return refusal.value.retry_after


def test_a_healthy_call_costs_one_read_and_no_write(breakers: Breakers, state: CountingState) -> None:
    succeed(breakers)
    assert (state.reads, state.writes) == (1, 0)
    fail(breakers)
    succeed(breakers)
    state.reads = state.writes = 0
    succeed(breakers)
    assert (state.reads, state.writes) == (1, 0)


def test_failures_in_a_row_open_the_circuit(breakers: Breakers) -> None:
    fail(breakers, 2)
    assert breakers.get("stripe").state is CircuitState.CLOSED
    fail(breakers)
    assert breakers.get("stripe").state is CircuitState.OPEN
    assert refused(breakers) == pytest.approx(60)


def test_a_success_resets_the_count(breakers: Breakers) -> None:
    for _ in range(5):
        fail(breakers, 2)
        succeed(breakers)
    assert breakers.get("stripe").state is CircuitState.CLOSED
    assert breakers.get("stripe").failures == 0


def test_after_the_cooldown_exactly_one_call_is_the_trial(breakers: Breakers, advance: Callable[[float], None]) -> None:
    fail(breakers, 3)
    advance(59)
    assert refused(breakers) == pytest.approx(1)
    advance(1)
    assert breakers.get("stripe").state is CircuitState.HALF_OPEN
    trial = breakers.begin("stripe", RULE)
    assert trial.is_trial
    assert refused(breakers) == pytest.approx(60)
    assert breakers.get("stripe").state is CircuitState.HALF_OPEN
    breakers.succeeded(trial)
    assert breakers.get("stripe").state is CircuitState.CLOSED
    succeed(breakers)


def test_a_failed_trial_begins_the_cooldown_again(breakers: Breakers, advance: Callable[[float], None]) -> None:
    fail(breakers, 3)
    opened_at = breakers.get("stripe").opened_at
    for failures in (4, 5):
        advance(60)
        fail(breakers)
        assert refused(breakers) == pytest.approx(60)
        view = breakers.get("stripe")
        assert (view.state, view.failures, view.opened_at) == (CircuitState.OPEN, failures, opened_at)


def test_a_trial_whose_process_dies_is_followed_by_another(
    breakers: Breakers, advance: Callable[[float], None]
) -> None:
    fail(breakers, 3)
    advance(60)
    assert breakers.begin("stripe", RULE).is_trial
    advance(60)
    second = breakers.begin("stripe", RULE)
    assert second.is_trial
    breakers.succeeded(second)
    assert breakers.get("stripe").state is CircuitState.CLOSED


def test_a_trial_that_another_has_replaced_changes_nothing(
    breakers: Breakers, advance: Callable[[float], None]
) -> None:
    fail(breakers, 3)
    advance(60)
    slow = breakers.begin("stripe", RULE)
    advance(60)
    second = breakers.begin("stripe", RULE)
    before = breakers.get("stripe")
    breakers.succeeded(slow)
    breakers.failed(slow, RULE)
    breakers.given_up(slow)
    assert breakers.get("stripe") == before
    breakers.failed(second, RULE)
    assert breakers.get("stripe").state is CircuitState.OPEN


def test_a_slow_trial_without_a_successor_still_closes_the_circuit(
    breakers: Breakers, advance: Callable[[float], None]
) -> None:
    fail(breakers, 3)
    advance(60)
    slow = breakers.begin("stripe", RULE)
    advance(3600)
    breakers.succeeded(slow)
    assert breakers.get("stripe").state is CircuitState.CLOSED


def test_an_interrupted_trial_lets_the_next_one_begin_at_once(
    breakers: Breakers, advance: Callable[[float], None]
) -> None:
    fail(breakers, 3)
    advance(60)
    breakers.given_up(breakers.begin("stripe", RULE))
    assert breakers.begin("stripe", RULE).is_trial


def test_calls_of_an_earlier_generation_count_neither_way(breakers: Breakers, advance: Callable[[float], None]) -> None:
    early = [breakers.begin("stripe", RULE) for _ in range(4)]
    fail(breakers, 3)
    breakers.succeeded(early.pop())
    breakers.failed(early.pop(), RULE)
    assert (breakers.get("stripe").state, breakers.get("stripe").failures) == (CircuitState.OPEN, 3)
    advance(60)
    succeed(breakers)
    for call in early:
        breakers.failed(call, RULE)
    assert (breakers.get("stripe").state, breakers.get("stripe").failures) == (CircuitState.CLOSED, 0)


def test_trip_and_reset(breakers: Breakers, advance: Callable[[float], None]) -> None:
    assert not breakers.reset("stripe")
    breakers.trip("stripe", RULE)
    assert refused(breakers) == pytest.approx(60)
    advance(30)
    breakers.trip("stripe", Rule(failures=3, cooldown=600.0))
    assert refused(breakers) == pytest.approx(600)
    assert breakers.reset("stripe")
    succeed(breakers)
    assert [view.name for view in breakers.all()] == ["stripe"]


def test_a_reset_during_a_trial_counts(breakers: Breakers, advance: Callable[[float], None]) -> None:
    fail(breakers, 3)
    advance(60)
    trial = breakers.begin("stripe", RULE)
    breakers.reset("stripe")
    breakers.failed(trial, RULE)
    assert breakers.get("stripe").state is CircuitState.CLOSED


def test_a_damaged_cell_counts_as_closed(breakers: Breakers, state: CountingState) -> None:
    state.write([Put(kind=CIRCUITS, key="stripe", value=b"\xff\x00")])
    succeed(breakers)
    fail(breakers, 3)
    assert breakers.get("stripe").state is CircuitState.OPEN


def test_many_circuits_are_listed(breakers: Breakers) -> None:
    for name in ("b", "a"):
        breakers.failed(breakers.begin(name, RULE), RULE)
    breakers.trip("c", RULE)
    assert [(view.name, view.state) for view in breakers.all()] == [
        ("a", CircuitState.CLOSED),
        ("b", CircuitState.CLOSED),
        ("c", CircuitState.OPEN),
    ]


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with Holdfast("memory://") as app:
        yield app


class Refusal(Exception):
    """The service has answered."""


def test_exceptions_of_other_types_show_that_the_service_responds(hf: Holdfast) -> None:
    breaker = hf.breaker("stripe", failures=2, on=(ConnectionError, OSError))
    for problem in (ConnectionError, Refusal, ConnectionError, Refusal):
        with pytest.raises(problem), breaker:
            raise problem
    assert breaker.state() is CircuitState.CLOSED
    for _ in range(2):
        with pytest.raises(TimeoutError), breaker:
            raise TimeoutError
    with pytest.raises(CircuitOpen), breaker:
        pytest.fail("the call was made")


def test_a_timeout_of_the_job_is_a_failure_and_an_interrupt_is_not(hf: Holdfast) -> None:
    breaker = hf.breaker("stripe", failures=1)
    for interrupt in (KeyboardInterrupt, Snooze(1), asyncio.CancelledError):
        with pytest.raises(BaseException), breaker:  # noqa: B017, PT011 - whichever it is
            raise interrupt
    assert breaker.state() is CircuitState.CLOSED
    with pytest.raises(JobTimeout), breaker:
        raise JobTimeout("too long")
    assert breaker.state() is CircuitState.OPEN


def test_a_breaker_decorates_functions_and_coroutine_functions(hf: Holdfast) -> None:
    breaker = hf.breaker("stripe", failures=1, cooldown=timedelta(minutes=1))

    @breaker
    def charge(amount: int) -> int:
        """Charge it."""
        return 100 // amount

    @breaker
    async def refund(amount: int) -> int:
        return 100 // amount

    assert (charge(5), asyncio.run(refund(4)), charge.__doc__) == (20, 25, "Charge it.")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(refund(0))
    with pytest.raises(CircuitOpen):
        charge(5)
    with pytest.raises(CircuitOpen):
        asyncio.run(refund(5))
    breaker.reset()
    assert charge(5) == 20
    with pytest.raises(DefinitionError, match="is a generator"):
        breaker(_generator)


def _generator() -> Iterator[int]:
    yield 1


def test_an_open_circuit_inside_another_call_is_not_a_failure_of_that_call(hf: Holdfast) -> None:
    outer, inner = hf.breaker("outer", failures=1), hf.breaker("inner", failures=1)
    inner.trip()
    with pytest.raises(CircuitOpen, match="the circuit 'inner' is open"), outer, inner:
        pytest.fail("the call was made")
    assert outer.state() is CircuitState.CLOSED
    with outer, outer:
        pass


def test_one_breaker_can_be_shared_by_tasks(hf: Holdfast) -> None:
    breaker = hf.breaker("stripe", failures=2)

    async def call(number: int) -> None:
        async with breaker:
            await asyncio.sleep(0)
            if number % 2:
                raise OSError

    async def main() -> None:
        await asyncio.gather(*(call(number) for number in range(4)), return_exceptions=True)

    asyncio.run(main())
    assert breaker.state() is CircuitState.OPEN


def test_without_its_store_the_call_is_made_and_its_outcome_counts_for_the_caller(
    state: CountingState, breakers: Breakers, caplog: pytest.LogCaptureFixture
) -> None:
    breaker = Breaker(lambda: breakers, "stripe", RULE, (Exception,))
    fail(breakers)
    state.problem = BackendUnavailable("the server is away")
    with caplog.at_level(logging.WARNING, "holdfast.breaker"), breaker:
        pass
    assert "circuit 'stripe' cannot be read; calling without the breaker: the server is away" in caplog.text
    state.problem = None
    with caplog.at_level(logging.WARNING, "holdfast.breaker"), breaker:
        state.problem = BackendError("the disk is full")
    assert "circuit 'stripe': the outcome of a call could not be recorded: the disk is full" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": ""}, "breaker '' must be non-empty, printable text"),
        ({"name": "queue_mail"}, "starts with 'queue_', which is reserved for the circuits of queues"),
        ({"name": "x", "failures": 0}, "failures must be an integer from 1 to 1,000, not 0"),
        ({"name": "x", "cooldown": "soon"}, "cooldown 'soon': must be a number of seconds, or a value such as 90s"),
        ({"name": "x", "cooldown": 0}, "cooldown must be a positive duration, such as '60s', not 0"),
    ],
)
def test_a_breaker_that_cannot_be_meant_is_refused(hf: Holdfast, arguments: dict[str, object], why: str) -> None:
    with pytest.raises(DefinitionError) as refusal:
        hf.breaker(**arguments)  # type: ignore[arg-type]
    assert why in str(refusal.value)


def test_durations_can_be_written_in_each_way() -> None:
    rules = {rule_of(5, cooldown) for cooldown in ("2m", 120, 120.0, timedelta(minutes=2))}
    assert rules == {Rule(failures=5, cooldown=120.0)}


def test_the_cells_of_a_closed_circuit_do_not_refuse_calls(breakers: Breakers, state: CountingState) -> None:
    """Another program may have left the second cell behind."""
    state.write([Put(kind=WAITS, key="stripe")])
    succeed(breakers)
