"""A function's signature is the type of its payload."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.codec import encode_payload
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.handlers import FunctionHandler, JobContext


@dataclasses.dataclass
class Line:
    price: Decimal
    parts: "list[Line]" = dataclasses.field(default_factory=list["Line"])


def call(handler: FunctionHandler, payload: object) -> object:
    decoded = handler.decode(bytes(encode_payload(payload)))
    return handler.handle(JobContext(id="job1", job=handler.key, queue="default", attempt=3, payload=decoded))


def test_arguments_arrive_in_the_types_the_function_declares() -> None:
    def bill(number: int, due: datetime, lines: list[Line], note=None, *, draft: bool) -> object:  # type: ignore[no-untyped-def] # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        return number, due, lines, note, draft  # pyright: ignore[reportUnknownVariableType]

    due = datetime(2026, 1, 1, tzinfo=UTC)
    payload = {"number": 7, "due": due, "lines": [{"price": "1.50"}], "note": {"any": ["json"]}, "draft": False}
    handler = FunctionHandler(bill)  # pyright: ignore[reportUnknownArgumentType]
    assert call(handler, payload) == (7, due, [Line(Decimal("1.50"))], {"any": ["json"]}, False)


def test_a_default_is_the_functions_own_also_where_no_json_could_say_it() -> None:
    shared: list[str] = ["mutable"]

    def job(count: int = 3, names: list[str] = shared, missing: str = None) -> object:  # type: ignore[assignment] # noqa: RUF013 # pyright: ignore[reportArgumentType]
        return count, names, missing

    assert call(FunctionHandler(job), {"count": 4}) == (4, shared, None)


def test_a_parameter_annotated_job_context_receives_the_context() -> None:
    def job(context: JobContext, name: str) -> object:
        return context.attempt, name

    handler = FunctionHandler(job)
    assert call(handler, {"name": "ada"}) == (3, "ada")
    assert handler.payload_of("ada") == msgspec.Raw(b'{"name":"ada"}')
    with pytest.raises(msgspec.ValidationError, match="unknown field `context`"):
        call(handler, {"name": "ada", "context": {}})


def test_a_job_enqueued_without_a_payload_is_a_call_without_arguments() -> None:
    def tick(times: int = 1) -> object:
        return times

    def needs(name: str) -> None: ...

    assert call(FunctionHandler(tick), None) == 1
    with pytest.raises(msgspec.ValidationError, match="missing required field `name`"):
        call(FunctionHandler(needs), None)


def test_an_async_function_is_known_as_one() -> None:
    async def job() -> None: ...

    assert FunctionHandler(job).is_async
    assert not FunctionHandler(lambda: None, key="plain").is_async


def test_its_key_is_the_bare_name_or_the_one_given() -> None:
    def send_mail() -> None: ...

    assert FunctionHandler(send_mail).key == "send_mail"
    assert FunctionHandler(send_mail, key="mail.send").key == "mail.send"
    with pytest.raises(DefinitionError, match="pass key="):
        FunctionHandler(lambda: None)


def positional_only(a: int, /) -> None: ...
def many(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"), [(positional_only, "a: int"), (many, r"\*args: int"), (keywords, r"\*\*kwargs: int")]
)
def test_a_parameter_the_payload_could_not_name_is_refused(function: Callable[..., None], parameter: str) -> None:
    with pytest.raises(DefinitionError, match=rf"parameter '{parameter}' .* arguments are passed by name"):
        FunctionHandler(function)


def takes_path(path: Path) -> None: ...
def takes_paths(paths: list[dict[str, Path]]) -> None: ...
def takes_tuple_keys(table: dict[tuple[int, int], str]) -> None: ...
def takes_function(callback: Callable[[], None]) -> None: ...
def takes_ambiguity(value: list[int] | set[int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter", "why"),
    [
        (takes_path, "path", "pathlib.Path is not a JSON type"),
        (takes_paths, "paths", "pathlib.Path is not a JSON type"),
        (takes_tuple_keys, "table", "keys of a JSON object are text"),
        (takes_function, "callback", "Callable is not a JSON type"),
        (takes_ambiguity, "value", "may not contain more than one array-like"),
    ],
)
def test_an_annotation_that_json_cannot_fill_is_refused_at_registration(
    function: Callable[..., None], parameter: str, why: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"parameter '{parameter}: .* cannot be decoded from JSON: .*{why}"):
        FunctionHandler(function)


def test_an_annotation_that_cannot_be_evaluated_is_refused() -> None:
    def job(x: int) -> None: ...

    job.__annotations__["x"] = "Nowhere"
    with pytest.raises(DefinitionError, match="'Nowhere' is not defined"):
        FunctionHandler(job)


def test_an_annotation_written_as_text_is_read() -> None:
    def job(x: int) -> object:
        return x

    job.__annotations__["x"] = "int"
    assert call(FunctionHandler(job), {"x": 1}) == 1


def test_any_and_object_take_all_json() -> None:
    def job(a: Any, b: object) -> object:
        return a, b

    assert call(FunctionHandler(job), {"a": [1], "b": {"c": None}}) == ([1], {"c": None})


def test_a_generator_is_refused() -> None:
    def job() -> Any:
        yield 1

    async def async_job() -> Any:
        yield 1

    for function in (job, async_job):
        with pytest.raises(DefinitionError, match="would never be iterated"):
            FunctionHandler(function)


def greet(name: str, times: int = 1, lines: list[Line] | None = None) -> None: ...


def test_a_call_is_bound_by_position_and_by_name_in_the_order_of_the_parameters() -> None:
    def job(first: int, context: JobContext, second: int = 2, *, third: int, fourth: int = 4) -> None: ...

    handler = FunctionHandler(job)
    assert handler.payload_of(third=3, first=1) == msgspec.Raw(b'{"first":1,"third":3}')
    assert handler.payload_of(1, 5, fourth=6, third=3) == msgspec.Raw(b'{"first":1,"second":5,"third":3,"fourth":6}')
    for args, kwargs, complaint in (
        ((1, 2, 3), {"fourth": 4}, "too many positional arguments"),
        ((1,), {}, "missing a required argument: 'third'"),
        ((1,), {"first": 1, "third": 3}, "multiple values for argument 'first'"),
        ((1,), {"third": 3, "context": 5}, "unexpected keyword argument 'context'"),
    ):
        with pytest.raises(DefinitionError, match=complaint):
            handler.payload_of(*args, **kwargs)


def test_the_payload_is_what_was_bound_as_json() -> None:
    handler = FunctionHandler(greet)
    payload = handler.payload_of("ada", lines=[Line(Decimal(1))])
    assert payload == msgspec.Raw(b'{"name":"ada","lines":[{"price":"1","parts":[]}]}')
    with pytest.raises(DefinitionError, match=r"parameter 'times': Expected `int`, got `str`$"):
        handler.payload_of("ada", times="b")


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((), {}, r"job 'greet': missing a required argument: 'name'; call it as greet\(name: str, times: int = 1"),
        (("a", 1, None, 4), {}, "too many positional arguments"),
        (("a",), {"tmies": 2}, "unexpected keyword argument 'tmies'"),
        (("a", "b"), {}, "job 'greet', parameter 'times': Expected `int`, got `str`$"),
        (("a",), {"times": 1.5}, "job 'greet', parameter 'times': Expected `int`, got `float`"),
        (
            ("a",),
            {"lines": [{"price": "x"}]},
            r"job 'greet', parameter 'lines': Invalid decimal string \(at lines\[0\].price\)",
        ),
    ],
)
def test_a_call_that_does_not_fit_is_refused_where_it_is_made(
    args: tuple[Any, ...], kwargs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        FunctionHandler(greet).payload_of(*args, **kwargs)


@pytest.mark.parametrize("value", [object(), float("nan"), 2**64])
def test_an_argument_that_cannot_travel_is_named(value: object) -> None:
    def job(first: Any, second: Any) -> None: ...

    with pytest.raises(PayloadRejected, match="job 'job', parameter 'second'"):
        FunctionHandler(job).payload_of("fine", value)
