"""The builder says the same as the definition it makes, step by step."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from holdfast.definition import JobBuilder, JobDefinition, JobOptions, definition_of
from holdfast.definition.backoff import BackoffLike, as_backoff
from holdfast.definition.durations import Duration
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.values import Backoff, BackoffStrategy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Desk:
    """Notes what is dispatched."""

    def __init__(self) -> None:
        self.given: list[tuple[JobDefinition, str | None, object]] = []

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str:
        self.given.append((definition, id, tx))
        return id or "made-up"


def test_every_step_arrives_in_the_definition() -> None:
    builder = (
        JobBuilder("mail.send", {"to": "ada"})
        .named("welcome")
        .queue("mail")
        .priority(7)
        .max_retries(2)
        .backoff([1, 2])
        .timeout(timedelta(seconds=9))
        .delay(timedelta(seconds=3))
        .expires(60)
        .tags("a", "b", "a")
        .meta({"k": 1})
        .trace_id("t-1")
        .fence()
    )
    made = builder.definition()
    assert made == JobDefinition(
        handler="mail.send",
        payload=made.payload,
        name="welcome",
        queue="mail",
        priority=7,
        max_retries=2,
        backoff=Backoff(delays=(1.0, 2.0)),
        timeout=9.0,
        delay=3.0,
        expires_in=60,
        tags=("a", "b"),
        meta=made.meta,
        trace_id="t-1",
        fence=True,
    )
    assert (bytes(made.payload), bytes(made.meta)) == (b'{"to":"ada"}', b'{"k":1}')
    assert builder.run_at(NOON).expires(NOON).definition().run_at == NOON
    assert builder.definition().delay is None
    assert builder.definition().expires_at == NOON


def test_a_definition_taken_from_a_builder_no_longer_changes_with_it() -> None:
    builder = JobBuilder("mail.send")
    taken = builder.definition()
    builder.priority(9)
    assert (taken.priority, builder.definition().priority) == (5, 9)


def test_dispatching_hands_the_definition_and_the_id_to_the_application() -> None:
    desk = Desk()
    assert JobBuilder("mail", enqueuer=desk).dispatch() == "made-up"
    assert JobBuilder("mail", enqueuer=desk).id("job1").priority(9).dispatch(tx="theirs") == "job1"
    assert desk.given == [
        (JobDefinition(handler="mail"), None, None),
        (JobDefinition(handler="mail", priority=9), "job1", "theirs"),
    ]


def test_without_an_application_dispatching_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"pass definition\(\) to Holdfast.enqueue\(\)"):
        JobBuilder("mail").dispatch()


WRONG_STEPS: dict[str, Callable[[JobBuilder], JobBuilder]] = {
    "queue": lambda builder: builder.queue("No Good"),
    "priority": lambda builder: builder.priority(10),
    "max_retries": lambda builder: builder.max_retries(-1),
    "timeout": lambda builder: builder.timeout(-1),
    "delay": lambda builder: builder.delay(math.nan),
    "run_at": lambda builder: builder.run_at(datetime(2026, 1, 1)),
    "named": lambda builder: builder.named("\n"),
    "id": lambda builder: builder.id("a b"),
    "backoff": lambda builder: builder.backoff([1, -1]),
}


@pytest.mark.parametrize("step", WRONG_STEPS.values(), ids=WRONG_STEPS.keys())
def test_what_is_wrong_is_refused_at_the_step_that_says_it(step: Callable[[JobBuilder], JobBuilder]) -> None:
    builder = JobBuilder("mail")
    before = builder.definition()
    with pytest.raises(DefinitionError):
        step(builder)
    assert builder.definition() == before


def test_the_first_step_is_checked_too() -> None:
    with pytest.raises(PayloadRejected):
        JobBuilder("mail", object())
    with pytest.raises(DefinitionError, match="handler key"):
        JobBuilder("no good")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (Backoff(base=9), Backoff(base=9)),
        ("fixed", Backoff(strategy=BackoffStrategy.FIXED)),
        ("fixed:1s", Backoff(strategy=BackoffStrategy.FIXED, base=1)),
        ("exponential:2s,multiplier=3,max=10m,jitter=10%", Backoff(base=2, multiplier=3, max=600, jitter=0.1)),
        ("1s,5s,1m", Backoff(delays=(1, 5, 60))),
        (BackoffStrategy.NONE, Backoff(strategy=BackoffStrategy.NONE)),
        ([1, 5, 30], Backoff(delays=(1.0, 5.0, 30.0))),
        ((2,), Backoff(delays=(2.0,))),
        (0.05, Backoff(strategy=BackoffStrategy.FIXED, base=0.05)),
        (10, Backoff(strategy=BackoffStrategy.FIXED, base=10)),
        ("10", Backoff(strategy=BackoffStrategy.FIXED, base=10)),
        (timedelta(minutes=10), Backoff(strategy=BackoffStrategy.FIXED, base=600)),
        ([1, "5s", timedelta(minutes=1)], Backoff(delays=(1.0, 5.0, 60.0))),
    ],
)
def test_a_backoff_may_be_written_in_several_ways(written: BackoffLike, meant: Backoff) -> None:
    assert as_backoff(written) == meant


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match="none, fixed, linear, exponential"):
        JobBuilder("mail").backoff("expnential")


def test_a_backoff_that_cannot_be_read_is_refused_with_what_is_wrong_about_it() -> None:
    with pytest.raises(DefinitionError, match=r"^backoff 'fixed:soon': base 'soon': must be a number of seconds"):
        JobBuilder("mail").backoff("fixed:soon")


@pytest.mark.parametrize(
    ("backoff", "why"),
    [
        ([], "the list of backoff delays is empty"),
        (True, "backoff must be a number of seconds, a timedelta, or a string such as '90s', .*, not True"),
        (-1, "backoff base must be between 0 and 3660 days, not -1 seconds"),
        ({"base": 5}, "backoff must be a number of seconds"),
        ([1, None], "backoff delay must be a number of seconds, .*, not None"),
        ([1, "soon"], "backoff delay 'soon': must be a number of seconds, or a value such as 90s"),
        ("fixed:10s,jitter=10%", r"jitter has no effect with fixed; use it with linear or exponential$"),
        ("fixed:10s,jitter=0", "jitter has no effect with fixed"),
        ("fixed:10s,jitter=15%", "jitter has no effect with fixed"),
        ("fixed:max=1h", "max has no effect with fixed"),
        ("linear:5s,multiplier=3", r"multiplier has no effect with linear; use it with exponential$"),
        ("none:5s", "base has no effect with none; use it with fixed or linear or exponential"),
        (Backoff(strategy=BackoffStrategy.FIXED, jitter=0.3), "^backoff jitter has no effect with fixed; use it with"),
        (Backoff(delays=(1, 5), max=60), "^backoff max has no effect with a list of delays; use it with linear or"),
        (
            "exponential:10m",
            r"^the backoff base, 600 s, is longer than the max, 300 s; set a longer max, as in exponential:10m,max=",
        ),
        (Backoff(strategy=BackoffStrategy.LINEAR, base=600), "the backoff base, 600 s, is longer than the max, 300 s"),
    ],
)
def test_a_backoff_without_sense_is_refused_with_what_is_wrong_about_it(backoff: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        JobBuilder("mail").backoff(backoff)


@pytest.mark.parametrize("backoff", ["exponential:10m,max=10m", "linear:10m,max=0", "fixed:10m", [600], "none"])
def test_a_backoff_whose_parameters_all_count_is_accepted(backoff: BackoffLike) -> None:
    assert JobBuilder("mail").backoff(backoff).definition().backoff is not None


@pytest.mark.parametrize("written", [300, 300.0, "300", "300s", "5m", "5 M", timedelta(minutes=5)])
def test_every_duration_may_be_a_number_a_timedelta_or_text(written: Duration) -> None:
    builder = JobBuilder("mail").timeout(written).delay(written).expires(written)
    builder = builder.idempotency_key("k", ttl=written).unique("u", unique_for=written)
    built = builder.definition()
    assert (built.timeout, built.delay, built.expires_in, built.idempotency_ttl, built.unique_for) == (300,) * 5


@pytest.mark.parametrize("option", ["timeout", "delay", "expires", "idempotency_ttl"])
@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("soon", "'soon': must be a number of seconds, or a value such as 90s, 15m, 2h or 3d"),
        ("-5s", "'-5s': must be a number of seconds"),
        ("", "'': must be a number of seconds"),
        (True, "must be a number of seconds, a timedelta, or a string such as '90s', '15m', '2h' or '3d', not True"),
        ([5], r"must be a number of seconds, a timedelta, or a string such as .*, not \[5\]"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_option_and_the_notation(option: str, written: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=rf"^{option} {why}"):
        definition_of("mail", None, cast("JobOptions", {"idempotency_key": "k", option: written}))


@pytest.mark.parametrize("meta", [3, "k=v", None, ["k"]])
def test_a_meta_that_is_no_mapping_is_refused(meta: Any) -> None:
    with pytest.raises(DefinitionError, match="meta must be a mapping, not"):
        JobBuilder("mail").meta(meta)


@pytest.mark.parametrize("key", [None, 3, b"mail", ["mail"]])
def test_a_handler_key_is_text(key: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^a handler key must be a string, like 'mail\.send', not [^;]*$"):
        JobBuilder(key)


def test_a_function_in_place_of_a_handler_key_is_refused_with_what_to_write() -> None:
    def send() -> None: ...

    function: Any = send
    with pytest.raises(
        DefinitionError, match=r"must be a string, .*; to enqueue a job .*, write  send\.define\(\.\.\.\)$"
    ):
        JobBuilder(function)
