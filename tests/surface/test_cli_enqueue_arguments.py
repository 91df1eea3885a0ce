"""`holdfast enqueue --job KEY K=V …`: arguments as words, read as the application declares them, if it is named."""

import re
from pathlib import Path
from typing import Any

import pytest

from .terminal import Terminal

SHOP = """
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Literal, TypedDict
from uuid import UUID

import msgspec
from pydantic import BaseModel

from holdfast import Handler, Holdfast

hf = Holdfast(allowlist={"narrow": ["send_mail"]})


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Address:
    street: str
    number: int


@hf.job(queue="mail", max_retries=7, tags=["post"], delay=5)
def send_mail(to: str, copies: int = 1, loud: bool = False) -> str:
    return to


@hf.job
def everything(
    text: str | None = None,
    anything=None,
    number: float | None = None,
    size: Size = Size.SMALL,
    kind: Literal[1, 2] = 1,
    at: datetime | None = None,
    lasts: timedelta | None = None,
    price: Decimal | None = None,
    who: UUID | None = None,
    where: list[Address] = [],
    either: int | str = 0,
) -> None: ...


class Parcel(BaseModel):
    weight: float
    to: str = "nobody"


@hf.job
def ship(parcel: Parcel, others: list[Parcel] = []) -> None: ...


class Resize(msgspec.Struct):
    width: int
    height: int = 0


@dataclass
class Crop:
    left: int
    top: int = 0


class Turn(TypedDict):
    degrees: float


for key, kind in {"resize": Resize, "crop": Crop, "turn": Turn, "loose": dict}.items():
    @hf.handler(key)
    class Image(Handler):
        payload_type = kind

        def handle(self, context): ...
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal.write("shop.py", SHOP)
    return terminal


def payload(terminal: Terminal, *words: str, **options: Any) -> Any:
    """What the words would be given to the handler as."""
    answer = terminal("enqueue", *words, "--dry-run", "--json", **options)
    assert answer.code == 0, answer.err
    return answer.json["payload"]


# Without the application


def test_text_is_text_and_json_is_json(terminal: Terminal) -> None:
    words = ["to=ada", "copies:=2", "number=2", "empty=", "eq=a=b", "list:=[1, null]", "a:b=c"]
    assert terminal("enqueue", "--job", "mail", *words).code == 0
    [job] = terminal.jobs()
    assert (job["job"], job["queue"]) == ("mail", "default")
    assert job["payload"] == {
        "to": "ada",
        "copies": 2,
        "number": "2",
        "empty": "",
        "eq": "a=b",
        "list": [1, None],
        "a:b": "c",
    }


def test_a_value_may_be_in_a_file(terminal: Terminal) -> None:
    terminal.write("letter.txt", "Dear Ada,\nétude\n")
    terminal.write("parts.json", '{"a": [1]}')
    said = payload(terminal, "--job", "mail", "text=@letter.txt", "parts:=@parts.json", 'who:="@ada"')
    assert said == {"text": "Dear Ada,\nétude\n", "parts": {"a": [1]}, "who": "@ada"}


def test_a_payload_may_be_json_and_many_payloads_are_many_jobs(terminal: Terminal) -> None:
    assert payload(terminal, "--job", "mail", '{"to": "ada", "job": "mine"}') == {"to": "ada", "job": "mine"}
    lines = '{"to": "ada"}\n{"to": "bob"}\n'
    assert terminal("enqueue", "--job", "mail", "-", stdin=lines).out == "✓ 2 jobs queued\n"
    terminal.write("all.json", '[{"to": "eve"}]')
    assert terminal("enqueue", "--job", "mail", "--file", "all.json").out == "✓ 1 job queued\n"
    assert [job["payload"]["to"] for job in terminal.jobs()] == ["ada", "bob", "eve"]


def test_a_job_that_is_taken_for_a_command_is_explained(terminal: Terminal) -> None:
    answer = terminal("enqueue", "send_mail", "to=ada")
    assert answer.code == 4
    assert "the command (pass a job with its arguments after --job): command 'send_mail' is not allowed" in answer.err


def test_a_job_without_arguments_has_none(terminal: Terminal) -> None:
    assert payload(terminal, "--job", "tidy") == {}


WRONG: dict[str, tuple[list[str], str]] = {
    "spaces around the sign": (
        ["to", "=", "ada"],
        "'to' is not a valid argument; write NAME=TEXT or NAME:=JSON without spaces",
    ),
    "a blank behind it": (["to=", "ada"], "'ada' is not a valid argument"),
    "spaces in quotes": (["to = ada"], "'to = ada': remove the spaces around the =: to=ada"),
    "a value that is not quoted": (
        ["to=Ada", "Lovelace"],
        "'Lovelace' is not a valid argument; .* contains spaces: 'to=Ada Lovelace'",
    ),
    "no name": (["=ada"], "'=ada' is not a valid argument"),
    "no name before JSON": ([":=1"], "':=1' is not a valid argument"),
    "a name twice": (["to=ada", "to:=1"], "argument 'to' is given twice"),
    "text as JSON": (["to:=ada"], "argument 'to' is not valid JSON: .*; for text, use = instead of :="),
    "half of JSON": (["to:={"], "argument 'to' is not valid JSON"),
    "a number past 64 bits": (
        ["n:=9223372036854775808"],
        "argument 'n' contains an integer that does not fit in 64 bits; send it as a string$",
    ),
    "a file that is not there": (
        ["to=@ada"],
        "argument 'to': cannot read the file 'ada': No such file .*  :='\"@ada\"'",
    ),
    "a directory": (["to:=@."], "argument 'to': cannot read the file '.': Is a directory"),
    "a file that is no text": (["to=@bytes"], "argument 'to' is not UTF-8 text"),
    "a file that is no JSON": (["to:=@bytes"], "argument 'to' is not valid JSON"),
    "a giant file": (
        ["to=@giant"],
        r"argument 'to': giant has 1,048,577 bytes, and the limit is 1,048,576; store the data",
    ),
}


@pytest.mark.parametrize(("words", "why"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_argument_is_refused_with_what_is(terminal: Terminal, words: list[str], why: str) -> None:
    terminal.write("bytes", b"\xff\xfe")
    terminal.write("giant", b"x" * (1024 * 1024 + 1))
    answer = terminal("enqueue", "--job", "mail", *words)
    assert (answer.code, answer.out) == (2, "")
    assert re.search(why, answer.err), answer.err
    assert terminal.jobs() == []


# With the application


def test_arguments_are_what_the_function_declares(shop: Terminal) -> None:
    words = {
        "text": ("null", "null"),
        "anything": ("42", "42"),
        "number": ("1.5", 1.5),
        "size": ("l", "l"),
        "kind": ("2", 2),
        "at": ("2026-11-20T08:00:00Z", "2026-11-20T08:00:00Z"),
        "lasts": ("PT5S", "PT5S"),
        "price": ("1.10", "1.10"),
        "who": ("01a1e151-e969-71ef-8024-e69183a7ebbf", "01a1e151-e969-71ef-8024-e69183a7ebbf"),
        "where": ('[{"street": "Main", "number": 1}]', [{"street": "Main", "number": 1}]),
        "either": ("42", "42"),
    }
    said = payload(
        shop, "--app", "shop:hf", "--job", "everything", *(f"{name}={word}" for name, (word, _) in words.items())
    )
    assert said == {name: value for name, (_, value) in words.items()}
    assert payload(shop, "--app", "shop", "--job", "everything", "number=null", "either:=42") == {
        "number": None,
        "either": 42,
    }


def test_the_options_of_the_decorator_hold_unless_others_are_given(shop: Terminal) -> None:
    shop("enqueue", "--app", "shop:hf", "--job", "send_mail", "--id", "a", "to=ada", "loud=true")
    shop(
        "enqueue",
        "--app",
        "shop:hf",
        '{"job": "send_mail", "id": "b", "payload": {"to": "b"}, "run_at": "2199-01-01T00:00:00Z"}',
    )
    shop("enqueue", "--app", "shop:hf", "--job", "send_mail", "--id", "c", "-q", "q", "-r", "0", "--tag", "t", "to=c")
    first, second, third = shop.jobs()
    assert (first["queue"], first["max_retries"], first["tags"]) == ("mail", 7, ["post"])
    assert (first["state"], first["payload"]) == ("scheduled", {"to": "ada", "loud": True})
    assert (second["queue"], second["due_at"]) == ("mail", "2199-01-01T00:00:00Z")
    assert (third["queue"], third["max_retries"], third["tags"]) == ("q", 0, ["t"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["resize", "width=640"], {"width": 640}),
        (["crop", "left=1", "top=2"], {"left": 1, "top": 2}),
        (["turn", "degrees=90"], {"degrees": 90.0}),
        (["loose", "a=1", "b:=1"], {"a": "1", "b": 1}),
    ],
)
def test_a_handler_class_declares_its_arguments_by_its_payload(
    shop: Terminal, words: list[str], expected: dict[str, object]
) -> None:
    assert payload(shop, "--app", "shop:hf", "--job", *words) == expected


UNFIT: dict[str, tuple[list[str], str]] = {
    "a word for a number": (
        ["send_mail", "to=a", "copies=x"],
        "argument 'copies' of job 'send_mail': expected int, not 'x'",
    ),
    "true for a number": (
        ["send_mail", "to=a", "copies=true"],
        "'copies' of job 'send_mail': expected int, not 'true'",
    ),
    "a number for a text": (["send_mail", "to:=1"], "argument 'to' of job 'send_mail': expected str, not 1"),
    "no such name": (
        ["send_mail", "to=a", "coppies=1"],
        "job 'send_mail' has no argument 'coppies'; did you mean 'copies'",
    ),
    "nothing like it": (
        ["send_mail", "to=a", "zzz=1"],
        "has no argument 'zzz'; it takes to: str, copies: int (optional)",
    ),
    "one is missing": (["send_mail", "copies=1"], "job 'send_mail' needs 'to': add  to=…; it takes to: str"),
    "all are missing": (["crop"], "job 'crop' needs 'left': add  left=…"),
    "no member of an enum": (["everything", "size=xl"], "expected one of s, l, not 'xl'"),
    "a year for a time": (
        ["everything", "at=2026"],
        "argument 'at' of job 'everything': expected datetime | null, not '2026'",
    ),
    "text for a list": (["everything", "where=Main"], "expected a list as JSON, not 'Main'"),
    "a part that does not fit": (
        ["everything", 'where=[{"street": "Main", "number": "x"}]'],
        """argument 'where' of job 'everything': expected int, got str (at [0].number) in '[{"street""",
    ),
    "no such handler": (["send_mial", "to=a"], "no handler 'send_mial' is registered; did you mean 'send_mail'?"),
    "no number": (["turn", "degrees=nan"], "argument 'degrees' of job 'turn': expected float, not 'nan'"),
}


@pytest.mark.parametrize(("words", "why"), UNFIT.values(), ids=UNFIT.keys())
def test_what_does_not_fit_is_refused_by_its_name(shop: Terminal, words: list[str], why: str) -> None:
    answer = shop("enqueue", "--app", "shop:hf", "--job", *words)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err, answer.err
    assert shop.jobs() == []


def test_json_is_checked_against_the_application_too(shop: Terminal) -> None:
    lines = '{"job": "resize", "payload": {"width": 1}}\n{"job": "resize", "payload": {"width": "x"}}\n'
    answer = shop("enqueue", "--app", "shop:hf", "-", stdin=lines)
    assert answer.code == 2
    assert "line 2: job 'resize' does not accept this payload: expected int, got str (at width)" in answer.err
    refused = shop("enqueue", "--app", "shop:hf", '{"job": "send-mail"}')
    assert (refused.code, "did you mean 'send_mail'?" in refused.err) == (2, True)
    forbidden = shop("enqueue", "--app", "shop:hf", "--job", "resize", "width=1", "--queue", "narrow")
    assert (forbidden.code, "queue 'narrow' may not run handler 'resize'" in forbidden.err) == (4, True)
    assert shop.jobs() == []


def test_an_application_may_be_kept_elsewhere(shop: Terminal, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    assert shop("enqueue", "--app", "shop:hf", "--url", url, "--job", "resize", "width=1").code == 0
    assert shop.jobs() == []
    assert len(shop("list", "--json", "--url", url).json) == 1


def test_an_application_that_is_not_there_is_said(shop: Terminal) -> None:
    answer = shop("enqueue", "--app", "shops:hf", "--job", "resize", "width=1")
    assert (answer.code, answer.err) == (
        2,
        "holdfast: there is no module 'shops'; run this command in the directory that contains it\n",
    )


def test_a_model_is_read_as_it_reads_itself(shop: Terminal) -> None:
    words = ("enqueue", "--app", "shop:hf", "--job", "ship")
    kept = shop(*words, 'parcel:={"weight": 2}', 'others:=[{"weight": 1}]', "--id", "s1")
    assert kept.code == 0, kept.err
    wrong = shop(*words, 'parcel:={"weight": "heavy"}')
    assert (wrong.code, wrong.out) == (2, "")
    assert "weight" in wrong.err
