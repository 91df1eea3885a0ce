"""What a handler sees of its job, and the verdicts it may return."""

import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest

from holdfast.handlers import Cancel, FunctionHandler, Handler, Host, JobContext, Snooze
from holdfast.handlers.payload import decoded
from holdfast.values import Progress


def a_context(payload: object = None) -> JobContext:
    return JobContext(id="job1", job="mail", queue="default", attempt=1, payload=payload)


@pytest.mark.parametrize(("delay", "seconds"), [(60, 60.0), (0, 0.0), (1.5, 1.5), (timedelta(minutes=2), 120.0)])
def test_a_snooze_takes_seconds_or_a_timedelta(delay: float | timedelta, seconds: float) -> None:
    assert Snooze(delay).delay_s == seconds


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), timedelta(days=-1)])
def test_a_snooze_of_no_sensible_length_is_refused(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match="a snooze must be between"):
        Snooze(delay)


@pytest.mark.parametrize("verdict", [Snooze(1), Cancel("no longer wanted")])
def test_an_except_exception_on_the_way_up_does_not_swallow_a_verdict(verdict: BaseException) -> None:
    def nested() -> None:
        raise verdict

    with pytest.raises(type(verdict)) as raised, suppress(Exception):
        nested()
    assert raised.value is verdict


def test_a_context_stands_alone_so_that_handlers_can_be_tested_without_a_worker() -> None:
    context = a_context({"to": "ada"})
    context.write("nobody reads this")
    context.progress(1, 2, "nobody sees this")
    with context.uninterrupted():
        assert not context.is_cancelled()
    assert context.log.name == "holdfast.job"
    assert repr(context) == "JobContext(id='job1', job='mail', queue='default', attempt=1, payload={'to': 'ada'})"


def test_a_context_cannot_be_changed() -> None:
    context = a_context()
    with pytest.raises(AttributeError):
        context.attempt = 2  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        context.meta["key"] = "value"  # type: ignore[index] # pyright: ignore[reportIndexIssue]


class Listening(Host):
    @property
    def deadline(self) -> datetime:
        return datetime(2026, 5, 1, tzinfo=UTC)

    def __init__(self) -> None:
        self.written: list[str] = []
        self.heard: list[Progress] = []

    def stop_asked(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.written.append(text)

    def report(self, progress: Progress) -> None:
        self.heard.append(progress)


def test_what_the_runtime_answers_reaches_the_handler() -> None:
    host = Listening()
    context = msgspec.structs.replace(a_context(), host=host)
    context.write("half way")
    assert context.is_cancelled()
    assert context.deadline == host.deadline
    assert host.written == ["half way"]


def reported(*args: Any) -> Progress:
    host = Listening()
    msgspec.structs.replace(a_context(), host=host).progress(*args)
    (progress,) = host.heard
    return progress


@pytest.mark.parametrize(
    ("args", "progress"),
    [
        ((3,), Progress(done=3.0)),
        ((0, 0), Progress(done=0.0, total=0.0)),
        ((12, 10, "more than was thought"), Progress(done=12.0, total=10.0, message="more than was thought")),
        ((Fraction(1, 2), 2**70), Progress(done=0.5, total=2.0**70)),
    ],
)
def test_a_handler_says_how_far_it_is(args: tuple[Any, ...], progress: Progress) -> None:
    assert reported(*args) == progress


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize("what", ["done", "total"])
def test_progress_in_impossible_numbers_is_refused(what: str, amount: float) -> None:
    with pytest.raises(ValueError, match=rf"{what} must be a finite number, 0 or more, not "):
        a_context().progress(amount if what == "done" else 1, amount if what == "total" else None)


@pytest.mark.parametrize("args", [("3",), (None,), (True,), (1, "of many"), (1, 2, 3), (1j,)])
def test_progress_in_anything_but_numbers_and_text_is_refused(args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"pass progress\(done, total, message\)"):
        a_context().progress(*args)


def test_a_long_message_is_cut_between_characters_and_can_be_stored() -> None:
    assert reported(1, 2, "ab" + "€" * 1000).message == "ab" + "€" * 340
    assert reported(1, 2, "a\0b\udc80").message == "a\ufffdb?"


def test_a_handler_knows_from_its_class_whether_it_is_async() -> None:
    class Plain(Handler):
        def handle(self, context: JobContext) -> object:
            return None

    class Coroutine(Handler):
        async def handle(self, context: JobContext) -> object:
            return None

    assert (Plain().is_async, Coroutine().is_async) == (False, True)


def test_a_payload_is_decoded_into_the_type_the_handler_declares() -> None:
    class Order(msgspec.Struct):
        number: int

    class Ship(Handler):
        payload_type = Order

        def handle(self, context: JobContext) -> object:
            return None

    assert Ship().decode(b'{"number": 7}') == Order(number=7)
    with pytest.raises(msgspec.ValidationError):
        Ship().decode(b'{"number": "seven"}')


@dataclass
class Parcel:
    number: int
    weight: float = 1.0


class Letter(TypedDict):
    number: int
    weight: NotRequired[float]


@pytest.mark.parametrize("kind", [Parcel, Letter])
def test_a_handler_class_refuses_members_that_its_payload_type_lacks_as_a_function_does(kind: Any) -> None:
    class Ship(Handler):
        payload_type = kind

        def handle(self, context: JobContext) -> object:
            return None

    def ship(number: int, weight: float = 1.0) -> None: ...

    for handler in (Ship(), FunctionHandler(ship)):
        assert handler.decode(b'{"number": 7}')
        assert handler.decode(b'{"weight": 2.5, "number": 7}')
        with pytest.raises(msgspec.ValidationError, match=r"^Object contains unknown field `zz`$"):
            handler.decode(b'{"number": 7, "zz": 2}')


def test_a_struct_or_a_model_decides_itself_about_unknown_members() -> None:
    class Loose(msgspec.Struct):
        number: int

    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        number: int

    assert decoded(b'{"number": 7, "zz": 2}', Loose) == Loose(number=7)
    with pytest.raises(msgspec.ValidationError, match="unknown field `zz`"):
        decoded(b'{"number": 7, "zz": 2}', Strict)
    assert decoded(b'{"number": 7, "zz": 2}', Any) == {"number": 7, "zz": 2}
