"""What can be an argument and a result: each value comes to the function, and back to whoever asks, as it was."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_validator

from holdfast import Holdfast, JobState, ResultGone
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.testing import JobKit


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Point(NamedTuple):
    x: int
    y: int


class Label(TypedDict):
    text: str


@dataclass
class Address:
    city: str
    since: date


class Parcel(msgspec.Struct):
    weight: Decimal
    to: Address


class Line(BaseModel):
    sku: str
    price: Decimal = Field(gt=0)


class Order(BaseModel):
    number: UUID
    at: datetime
    lines: list[Line]
    note: str | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=False)
    at: datetime = Field(alias="orderedAt")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def year(self) -> int:
        return self.at.year


class Numbers(RootModel[list[int]]): ...


MOMENT = datetime(2026, 11, 16, 12, 30, 0, 125, tzinfo=timezone(timedelta(hours=2)))
NUMBER = UUID("9a2f7c3e-5d0b-4c0f-8a39-6a3f8de40d11")
ORDER = Order(number=NUMBER, at=MOMENT, lines=[Line(sku="a", price=Decimal("0.10"))])
VALUES: list[tuple[Any, Any]] = [
    (datetime, MOMENT),
    (date, date(2026, 2, 28)),
    (time, time(23, 59, 1)),
    (timedelta, timedelta(days=1, microseconds=3)),
    (Decimal, Decimal("0.1000")),
    (UUID, NUMBER),
    (Colour, Colour.RED),
    (Size, Size.LARGE),
    (bytes, b"\x00\xff"),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (dict[date, int], {date(2026, 1, 1): 2}),
    (Point, Point(1, 2)),
    (Label, {"text": "x"}),
    (Address, Address("Kiel", date(2020, 1, 1))),
    (Parcel, Parcel(Decimal("1.50"), Address("Kiel", date(2020, 1, 1)))),
    (list[Parcel] | None, [Parcel(Decimal(1), Address("Kiel", date(2020, 1, 1)))]),
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (dict[str, Line], {"a": Line(sku="a", price=Decimal(2))}),
    (Order | None, None),
    (Strict, Strict(orderedAt=MOMENT)),
    (Numbers, Numbers([1, 2])),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_value_is_the_same_in_the_function_and_for_whoever_asks(kind: Any, value: Any) -> None:
    hf = Holdfast("memory://")
    seen: list[Any] = []

    def keep(value: Any) -> Any:
        seen.append(value)
        return value

    keep.__annotations__ = {"value": kind, "return": kind}
    job = hf.job(keep)
    with hf, hf.worker() as worker:
        handle = job.enqueue(value)
        worker.process_once("default")
        returned = handle.result(timeout=0)
    assert (seen, returned) == ([value], value)
    assert (type(seen[0]), type(returned)) == (type(value), type(value))


@pytest.fixture
def hf() -> Holdfast:
    return Holdfast("memory://")


def test_what_a_model_refuses_is_refused_when_it_is_enqueued_with_the_place_inside(hf: Holdfast) -> None:
    @hf.job
    def pay(order: Order) -> None: ...

    wrong: Any = {"number": str(NUMBER), "at": MOMENT, "lines": [{"sku": "a", "price": "0"}]}
    with pytest.raises(DefinitionError, match=r"parameter 'order': lines\.0\.price: Input should be greater than 0"):
        pay.enqueue(wrong)
    wrong["at"] = "then"
    with pytest.raises(DefinitionError, match=r"at: Input should be a valid datetime.*, and 1 more"):
        pay.enqueue(wrong)
    with pytest.raises(DefinitionError, match="parameter 'order'"):
        pay.enqueue(7)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_model_is_validated_again_where_the_job_runs(hf: Holdfast) -> None:
    closed = False

    class Door(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def is_open(cls, name: str) -> str:
            if closed:
                raise ValueError("the door is closed")
            return name

    def enter(door: Door) -> None: ...

    enter.__annotations__["door"] = Door
    job = hf.job(enter)
    with hf, hf.worker() as worker:
        handle = job.enqueue(Door(name="front"))
        closed = True
        worker.process_once("default")
        view = handle.view()
        assert view.state is JobState.DEAD
        assert "door" in (view.last_error or "")
        assert "the door is closed" in (view.last_error or "")


def test_a_model_that_does_not_read_what_it_writes_is_refused(hf: Holdfast) -> None:
    class Turned(BaseModel):
        inside: int = Field(validation_alias="in", serialization_alias="out")

    def turn(value: Turned) -> None: ...

    turn.__annotations__["value"] = Turned
    with pytest.raises(DefinitionError, match="in: Field required"):
        hf.job(turn).enqueue(Turned(**{"in": 1}))


def test_a_class_that_is_neither_is_refused_where_it_is_declared(hf: Holdfast) -> None:
    class Socket: ...

    def send(to: Socket) -> None: ...

    send.__annotations__["to"] = Socket
    with pytest.raises(DefinitionError, match=r"Socket is not a JSON type; declare a type that JSON can carry"):
        hf.job(send)

    @hf.job
    def anything(value: object) -> None: ...

    with pytest.raises(PayloadRejected, match=r"parameter 'value'.*Socket is not a JSON type"):
        anything.enqueue(Socket())


def test_a_model_is_written_wherever_a_payload_is(hf: Holdfast) -> None:
    definition = hf.define("pay", {"order": ORDER, "numbers": [Numbers([1])]}).definition()
    assert msgspec.json.decode(definition.payload) == {
        "order": ORDER.model_dump(mode="json"),
        "numbers": [[1]],
    }


def test_the_kit_compares_models_as_the_wire_has_them(hf: Holdfast) -> None:
    @hf.job
    def pay(order: Order) -> None: ...

    with JobKit(hf) as kit:
        pay.enqueue(ORDER)
        kit.assert_enqueued(pay, args={"order": ORDER})
        kit.assert_enqueued(pay, args={"order": {"note": None}})


def test_a_result_that_is_not_what_the_function_declares_now_is_not_given_as_if_it_were(hf: Holdfast) -> None:
    @hf.job
    def count() -> int:
        return 3

    with hf, hf.worker() as worker:
        handle = count.enqueue()
        worker.process_once("default")
        assert hf.handle(handle.id, returns=int).result() == 3
        with pytest.raises(ResultGone, match="not of the type that the function declares"):
            hf.handle(handle.id, returns=Order).result()


def test_moments_without_a_zone_stay_without_one(hf: Holdfast) -> None:
    @hf.job
    def at(moment: datetime) -> datetime:
        return moment

    with hf, hf.worker() as worker:
        naive, aware = at.enqueue(datetime(2026, 1, 1)), at.enqueue(datetime(2026, 1, 1, tzinfo=UTC))
        worker.process_once("default")
        worker.process_once("default")
        assert naive.result().tzinfo is None
        assert aware.result().tzinfo is not None
