"""Values and bytes: what may travel, what is refused, and which messages are the same job."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from holdfast.codec import (
    INT64_MAX,
    INT64_MIN,
    MAX_DEPTH,
    MAX_WIRE_BYTES,
    JobMessage,
    content_digest,
    decode_message,
    decode_untrusted_message,
    describe,
    encode_message,
    encode_payload,
    seal,
    strict_json,
    unseal,
)
from holdfast.errors import EnvelopeRejected, NewerWire, PayloadRejected, UnknownMember, WireError
from holdfast.values import Backoff

SIGNATURE = b"5e" * 32
MESSAGE = JobMessage(
    v=1,
    job="mail.send",
    payload=msgspec.Raw(b'{"to":"ada@example.org","copies":2}'),
    queue="mail",
    max_retries=3,
    identifier="job1",
    timeout=30.0,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    kid="2026",
)
scalars = (
    st.none() | st.booleans() | st.integers(INT64_MIN, INT64_MAX) | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    scalars | st.text(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
anything_like_json = st.binary() | st.text('[]{}",:0123456789eE+-.truefalsn\\ud8 \n\x00\ufeffé').map(str.encode)


def wire_of(**changes: Any) -> bytes:
    return seal(encode_message(msgspec.structs.replace(MESSAGE, **changes)), SIGNATURE)


def nested(depth: int, leaf: object = None) -> object:
    value = leaf
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


# JSON that nobody vouches for

HOSTILE = {
    "a key twice": b'{"a": 1, "a": 1}',
    "a key twice, deep inside": b'[{"b": {"a": 1, "c": 2, "a": 3}}]',
    "a key twice, once escaped": b'{"a": 1, "\\u0061": 2}',
    "NaN": b"NaN",
    "Infinity": b"[Infinity]",
    "minus Infinity": b'{"a": -Infinity}',
    "a float that becomes infinite": b"1e999",
    "a negative float that becomes infinite": b'[0, {"a": -1e999}]',
    "a hundred thousand brackets": b"[" * 100_000,
    "a hundred thousand closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000,
    "the first integer past 64 bits": b"9223372036854775808",
    "the first negative integer past 64 bits": b"-9223372036854775809",
    "an integer past 64 bits, unsigned": b"18446744073709551616",
    "an integer of 5000 digits": b"9" * 5000,
    "a negative integer of 5000 digits": b"[-" + b"9" * 5000 + b"]",
    "a high surrogate alone": b'"\\ud800"',
    "a high surrogate before a letter": b'"\\ud800x"',
    "a low surrogate alone": b'"\\udc00"',
    "surrogates the wrong way round": b'"\\udc00\\ud800"',
    "a surrogate in a key": b'{"\\udfff": 1}',
    "a surrogate as bytes": b'"\xed\xa0\x80"',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "bytes behind the value": b"{} x",
    "a second value": b"{}{}",
    "a NUL behind the value": b"{}\x00",
    "bytes that are not UTF-8": b'"\xff"',
    "an overlong encoding": b'"\xc0\xaf"',
    "a control character in a string": b'"\n"',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a": 1}'.encode("utf-16-le"),
    "a comment": b"{} // yes",
    "single quotes": b"{'a': 1}",
    "a comma too many": b"[1, 2,]",
    "a leading zero": b"[01]",
    "a plus sign": b"+1",
    "nothing": b"",
    "only white space": b" \n",
    "half a value": b'{"a": ',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_two_parsers_could_read_differently_is_refused(text: bytes) -> None:
    with pytest.raises(PayloadRejected):
        strict_json(text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_as_a_message_it_is_refused_as_undecodable(text: bytes) -> None:
    with pytest.raises(EnvelopeRejected):
        decode_untrusted_message(text)


@pytest.mark.parametrize("depth", [1, 2, MAX_DEPTH])
def test_nesting_up_to_the_limit_is_read(depth: int) -> None:
    assert strict_json(json.dumps(nested(depth)).encode()) == nested(depth)


@pytest.mark.parametrize("value", [nested(MAX_DEPTH + 1), nested(MAX_DEPTH + 1, "text"), nested(MAX_DEPTH, {})])
def test_nesting_past_the_limit_is_refused(value: object) -> None:
    with pytest.raises(PayloadRejected, match="deeper than 32"):
        strict_json(json.dumps(value).encode())
    with pytest.raises(PayloadRejected, match="deeper than 32"):
        encode_payload(value)


def test_nesting_far_past_the_limit_is_refused() -> None:
    for depth in (MAX_DEPTH + 2, 100, 900):
        with pytest.raises(PayloadRejected, match="deeper than 32"):
            strict_json(json.dumps(nested(depth)).encode())


class CountedKey(str):
    """A key that counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_repeated_key_among_very_many_is_found_without_comparing_each_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: Callable[..., object] = json.loads

    def counted(text: bytes, *, object_pairs_hook: Callable[[list[tuple[str, Any]]], object], **options: Any) -> object:
        def hook(pairs: list[tuple[str, Any]]) -> object:
            return object_pairs_hook([(CountedKey(name), value) for name, value in pairs])

        return loads(text, object_pairs_hook=hook, **options)

    monkeypatch.setattr(json, "loads", counted)
    monkeypatch.setattr(CountedKey, "comparisons", 0)
    members = b",".join(b'"k%d":0' % number for number in range(2000))
    with pytest.raises(PayloadRejected, match="'k1999' appears twice"):
        strict_json(b"{" + members + b',"k1999":0}')
    assert 0 < CountedKey.comparisons <= 2000


def test_the_outermost_integers_of_64_bits_are_read() -> None:
    assert strict_json(b"[9223372036854775807, -9223372036854775808, -0]") == [INT64_MAX, INT64_MIN, 0]


def test_surrogates_that_belong_together_are_one_character() -> None:
    assert strict_json(b'"\\ud83d\\ude00"') == "😀"


def test_the_size_is_checked_before_anything_is_parsed() -> None:
    within = b" " * (MAX_WIRE_BYTES - 1) + b"1"
    assert strict_json(within) == 1
    with pytest.raises(PayloadRejected, match="the input is 1,048,577 bytes, the limit is 1,048,576"):
        strict_json(b"\xff" + within, what="the input")
    assert strict_json(b" " + within, limit=len(within) + 1) == 1


def test_the_refusal_names_what_was_refused_and_why() -> None:
    with pytest.raises(PayloadRejected, match=r"^line 7: the key 'to' appears twice in one object$"):
        strict_json(b'{"to": 1, "to": 2}', what="line 7")
    with pytest.raises(PayloadRejected, match=r"^line 7 is not valid JSON: "):
        strict_json(b"{", what="line 7")


@given(anything_like_json)
@example(b'{"a":1e5,"b":[-0.0,"\\u00e9"]}')
def test_any_bytes_are_either_refused_or_mean_what_any_parser_reads(text: bytes) -> None:
    try:
        value = strict_json(text)
    except PayloadRejected:
        return
    assert repr(value) == repr(json.loads(text))


@given(json_values)
def test_every_ordinary_value_is_read(value: object) -> None:
    assert strict_json(json.dumps(value, ensure_ascii=False).encode()) == value
    assert strict_json(json.dumps(value, indent=1).encode()) == value


# Payloads on their way out


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    price: Decimal
    count: int = 1


class Order(msgspec.Struct):
    id: UUID
    lines: list[Line]


NEW_YEAR = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
CARRIED: Mapping[str, tuple[object, bytes]] = {
    "nothing": (None, b"null"),
    "a datetime in UTC": (NEW_YEAR, b'"2026-01-01T12:30:00Z"'),
    "a datetime with microseconds": (NEW_YEAR.replace(microsecond=7), b'"2026-01-01T12:30:00.000007Z"'),
    "a datetime elsewhere": (NEW_YEAR.astimezone(timezone(timedelta(hours=2))), b'"2026-01-01T14:30:00+02:00"'),
    "a date": (date(2026, 1, 1), b'"2026-01-01"'),
    "a duration": (timedelta(days=1, seconds=3), b'"P1DT3S"'),
    "a decimal": (Decimal("1.50"), b'"1.50"'),
    "a UUID": (UUID(int=5), b'"00000000-0000-0000-0000-000000000005"'),
    "bytes": (b"\x00\xff", b'"AP8="'),
    "a member of an enumeration": (Colour.RED, b'"red"'),
    "a dataclass": (Line(Decimal("2")), b'{"price":"2","count":1}'),
    "a Struct": (
        Order(UUID(int=1), [Line(Decimal("9.99"), 2)]),
        b'{"id":"00000000-0000-0000-0000-000000000001","lines":[{"price":"9.99","count":2}]}',
    ),
    "a tuple": ((1, "a"), b'[1,"a"]'),
    "a set": (frozenset({1}), b"[1]"),
    "numbers as keys": ({1: "a", 2.5: "b"}, b'{"1":"a","2.5":"b"}'),
    "text beyond ASCII": ({"é": "😀"}, '{"é":"😀"}'.encode()),
    "the largest integer": (INT64_MAX, b"9223372036854775807"),
    "the smallest integer": (INT64_MIN, b"-9223372036854775808"),
    "digits in text": ("9" * 40, b'"' + b"9" * 40 + b'"'),
    "brackets in text": ("[" * 100, b'"' + b"[" * 100 + b'"'),
    "null in text": ("null and void", b'"null and void"'),
}


@pytest.mark.parametrize(("value", "expected"), CARRIED.values(), ids=CARRIED.keys())
def test_a_value_is_written_as_the_wire_format_says(value: object, expected: bytes) -> None:
    assert bytes(encode_payload(value)) == expected


class Strange:
    pass


def itself() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


NOT_CARRIED: Mapping[str, tuple[object, str]] = {
    "NaN": (math.nan, "contains nan"),
    "infinity": ({"a": [math.inf]}, "contains inf"),
    "NaN in a Struct": (Order(UUID(int=1), [Line(math.nan)]), "contains nan"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "NaN in a set": (frozenset({math.nan}), "contains nan"),
    "an integer past 64 bits": (INT64_MAX + 1, "does not fit in 64 bits; send it as a string"),
    "a negative integer past 64 bits": ([INT64_MIN - 1], "does not fit in 64 bits"),
    "an integer of 64 bits, unsigned": ({"a": 2**64 - 1}, "does not fit in 64 bits"),
    "an integer of 400 digits": (10**400, "does not fit in 64 bits"),
    "nesting": (nested(MAX_DEPTH + 2), "nested deeper than 32 levels"),
    "nesting without end": (itself(), "cannot be written as JSON"),
    "a surrogate": ("\ud800", "cannot be written as JSON"),
    "a surrogate in a key": ({"\udfff": 1}, "cannot be written as JSON"),
    "an object": (Strange(), "cannot be written as JSON: .*Strange"),
    "a class": (Strange, "cannot be written as JSON"),
    "a function": (itself, "cannot be written as JSON"),
    "a complex number": (1j, "cannot be written as JSON"),
    "a generator": ((n for n in (1, 2)), "cannot be written as JSON"),
    "a tuple as a key": ({(1, 2): 3}, "cannot be written as JSON"),
    "None as a key": ({None: 3}, "cannot be written as JSON"),
    "too much": ("x" * (MAX_WIRE_BYTES - 1), "1,048,577 bytes, the limit is 1,048,576"),
}


@pytest.mark.parametrize(("value", "why"), NOT_CARRIED.values(), ids=NOT_CARRIED.keys())
def test_a_value_no_other_process_could_read_back_is_refused(value: object, why: str) -> None:
    with pytest.raises(PayloadRejected, match=f"^the meta .*{why}"):
        encode_payload(value, what="the meta")


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"deep": {2.5: "a", "2.5": "b"}}]])
def test_keys_that_become_the_same_text_are_refused(value: object) -> None:
    with pytest.raises(PayloadRejected):
        encode_payload(value)


@pytest.mark.parametrize("raw", [b"not json", b'{"a":1,"a":2}', b'1,"priority":9', b""])
def test_json_that_was_made_elsewhere_is_read_before_it_travels(raw: bytes) -> None:
    with pytest.raises(PayloadRejected):
        encode_payload(msgspec.Raw(raw))


@pytest.mark.parametrize("raw", [b"null", b'{"a":[null]}', b"9223372036854775807"])
def test_json_that_was_made_elsewhere_and_is_good_travels_as_it_is(raw: bytes) -> None:
    assert bytes(encode_payload(msgspec.Raw(raw))) == raw


@pytest.mark.parametrize("raw", [b"9223372036854775808", b"[" * 33 + b"]" * 33, b'{"a":null,"a":null}'])
def test_json_that_was_made_elsewhere_keeps_the_same_limits(raw: bytes) -> None:
    with pytest.raises(PayloadRejected):
        encode_payload(msgspec.Raw(raw))


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_a_payload_is_either_refused_or_read_back_exactly(value: object) -> None:
    try:
        encoded = encode_payload(value)
    except PayloadRejected:
        return
    assert repr(json.loads(bytes(encoded))) == repr(value)
    assert strict_json(bytes(encoded)) == value


# Messages


def test_a_message_is_one_json_object_with_its_names_and_without_its_defaults() -> None:
    assert json.loads(encode_message(MESSAGE)) == {
        "v": 1,
        "job": "mail.send",
        "payload": {"to": "ada@example.org", "copies": 2},
        "queue": "mail",
        "maxRetries": 3,
        "identifier": "job1",
        "timeout": 30.0,
        "createdAt": "2026-01-01T00:00:00Z",
        "kid": "2026",
    }


def test_a_sealed_message_is_still_one_json_object_and_its_signature_is_last() -> None:
    signed = encode_message(MESSAGE)
    wire = seal(signed, SIGNATURE)
    assert json.loads(wire) == {**json.loads(signed), "_sig": SIGNATURE.decode()}
    assert wire.endswith(b',"_sig":"' + SIGNATURE + b'"}')
    assert unseal(wire) == (signed, SIGNATURE)


@pytest.mark.parametrize(
    "wire",
    [
        encode_message(MESSAGE),
        b"",
        b"{}",
        b',"_sig":"' + SIGNATURE + b'"}',
        seal(b"{}", SIGNATURE) + b" ",
        seal(b"{}", SIGNATURE)[:-2] + b'"]',
        seal(b"{}", SIGNATURE[:-1]),
        seal(b"{}", SIGNATURE + b"0"),
        b'{"_sig":"' + SIGNATURE + b'","v":1}',
        seal(b"{}", SIGNATURE).replace(b',"_sig"', b', "_sig"'),
    ],
)
def test_a_signature_counts_only_where_it_belongs(wire: bytes) -> None:
    assert unseal(wire) == (wire, None)


@given(st.binary())
def test_whatever_is_sealed_comes_out_again(body: bytes) -> None:
    signed = b"{" + body + b"}"
    assert unseal(seal(signed, SIGNATURE)) == (signed, SIGNATURE)


@pytest.mark.parametrize(
    "changed",
    [
        b'{"v":1}',
        encode_message(MESSAGE).replace(b'"timeout":30.0', b'"timeout":"30"'),
        encode_message(MESSAGE).replace(b'"v":1', b'"v":"1"'),
        encode_message(MESSAGE).replace(b"2026-01-01T", b"2026-13-01T"),
        b"[]",
        b"null",
    ],
)
def test_json_of_another_shape_is_refused(changed: bytes) -> None:
    for decode in (decode_message, decode_untrusted_message):
        with pytest.raises(EnvelopeRejected, match="not a valid message"):
            decode(changed)


@pytest.mark.parametrize("extra", [b"", b',"futureField":{"x":1}'])
def test_a_newer_message_is_told_apart_from_a_broken_one(extra: bytes) -> None:
    newer = encode_message(msgspec.structs.replace(MESSAGE, v=2))[:-1] + extra + b"}"
    for decode in (decode_message, decode_untrusted_message):
        with pytest.raises(NewerWire, match="wire version 2; this program supports up to 1; upgrade") as caught:
            decode(newer)
        assert caught.value.version == 2


def with_member(text: bytes, **changes: Any) -> bytes:
    """A message with one more member, signed or not: nothing here verifies."""
    return seal(encode_message(msgspec.structs.replace(MESSAGE, **changes))[:-1] + b"," + text + b"}", SIGNATURE)


def test_an_unknown_member_is_told_apart_from_a_broken_message() -> None:
    wider = unseal(with_member(b'"colour":{"r":1},"shade":2'))[0]
    for decode in (decode_message, decode_untrusted_message):
        with pytest.raises(UnknownMember, match="has the member 'colour', which this program does not know") as caught:
            decode(wider)
        assert caught.value.name == "colour"


@given(st.text().filter(lambda name: name not in (*JobMessage.__struct_encode_fields__, "_sig")), json_values)
def test_any_member_of_another_name_is_unknown_and_takes_nothing_from_the_others(name: str, value: object) -> None:
    wire = with_member(json.dumps(name).encode() + b":" + json.dumps(value).encode())
    with pytest.raises(UnknownMember) as caught:
        decode_message(unseal(wire)[0])
    assert caught.value.name == name
    assert describe(wire) == MESSAGE
    assert content_digest(wire) != content_digest(wire_of())


def test_an_unknown_member_inside_a_member_is_refused() -> None:
    inside = encode_message(msgspec.structs.replace(MESSAGE, backoff=Backoff(base=1.0))).replace(
        b'"base":1.0', b'"base":1.0,"colour":"red"'
    )
    with pytest.raises(EnvelopeRejected, match="colour"):
        decode_message(inside)


def test_a_version_no_integer_can_hold_is_not_taken_for_a_newer_one() -> None:
    with pytest.raises(EnvelopeRejected):
        decode_untrusted_message(b'{"v":99999999999999999999999999}')


UNREADABLE = {
    "not UTF-8 in a field": encode_message(MESSAGE).replace(b"mail.send", b"mail\xff"),
    "not UTF-8 in the payload": encode_message(MESSAGE).replace(b"ada@", b"ad\xff@"),
    "an endless number in the payload": encode_message(MESSAGE).replace(b":2", b":1e999"),
    "a number of 5000 digits in the payload": encode_message(MESSAGE).replace(b":2", b":" + b"9" * 5000),
    "not UTF-8 in the name of a field": encode_message(MESSAGE).replace(b"queue", b"que\xff"),
}


@given(st.binary() | st.tuples(st.integers(0, len(wire_of()) - 1), st.integers(1, 255)))
@example((5, 1))  # version 0
@example(UNREADABLE["not UTF-8 in a field"])
@example(UNREADABLE["not UTF-8 in the payload"])
@example(UNREADABLE["an endless number in the payload"])
@example(UNREADABLE["a number of 5000 digits in the payload"])
@example(UNREADABLE["not UTF-8 in the name of a field"])
def test_whatever_lies_in_the_database_can_be_described_and_compared(stored: bytes | tuple[int, int]) -> None:
    if isinstance(stored, tuple):
        place, flip = stored
        wire = bytearray(wire_of())
        wire[place] ^= flip
        stored = bytes(wire)
    message = describe(stored)
    assert message is None or message.v == 1
    assert len(content_digest(stored)) == 16


def test_only_wire_errors_leave_the_decoder() -> None:
    with pytest.raises(WireError):
        decode_message(UNREADABLE["not UTF-8 in a field"])


def test_a_stored_message_is_described_with_or_without_its_signature() -> None:
    assert describe(wire_of()) == MESSAGE
    assert describe(encode_message(MESSAGE)) == MESSAGE
    assert describe(b"\x00 not a message") is None
    assert describe(wire_of(v=2)) is None


def test_a_message_with_an_unknown_member_is_described_by_the_others() -> None:
    assert describe(with_member(b'"colour":"red"')) == MESSAGE
    assert describe(with_member(b'"colour":"red","colour":"blue"')) is None
    assert describe(with_member(b'"colour":"red"', v=2)) is None


# What makes two messages the same job


@pytest.mark.parametrize(
    "changes",
    [
        {"created_at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"expires_at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"trace_id": "another"},
        {"kid": "2027"},
        {"payload": msgspec.Raw(b'{ "copies": 2, "to": "ada@example.org" }')},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_when_by_whom_and_in_which_order_does_not_make_another_job(changes: dict[str, Any]) -> None:
    assert content_digest(wire_of(**changes)) == content_digest(wire_of())


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "mail.sent"},
        {"payload": msgspec.Raw(b'{"to":"ada@example.org","copies":3}')},
        {"payload": msgspec.Raw(b'{"to":"ada@example.org","copies":"2"}')},
        {"payload": msgspec.Raw(b'["ada@example.org",2]')},
        {"queue": "mail2"},
        {"priority": 6},
        {"max_retries": 4},
        {"name": "welcome"},
        {"timeout": 31.0},
        {"backoff": Backoff()},
        {"backoff": Backoff(delays=(1.0, 2.0))},
        {"tags": ("a",)},
        {"tags": ("b", "a")},
        {"meta": msgspec.Raw(b'{"a":1}')},
        {"fence": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_runs_and_how_makes_another_job(changes: dict[str, Any]) -> None:
    assert content_digest(wire_of(**changes)) != content_digest(wire_of())


def test_the_order_of_tags_and_of_payload_lists_counts() -> None:
    assert content_digest(wire_of(tags=("a", "b"))) != content_digest(wire_of(tags=("b", "a")))
    one, other = (wire_of(payload=msgspec.Raw(text)) for text in (b"[1,2]", b"[2,1]"))
    assert content_digest(one) != content_digest(other)


def test_unknown_members_make_another_job_but_not_their_order_or_spelling() -> None:
    red, blue = with_member(b'"colour":"red"'), with_member(b'"colour":"blue"')
    assert len({content_digest(wire) for wire in (red, blue, with_member(b'"shade":"red"'), wire_of())}) == 4
    assert content_digest(red) == content_digest(with_member(b' "colour" : "red"', kid="2027", trace_id="another"))
    assert content_digest(red) != content_digest(with_member(b'"colour":"red"', job="mail.sent"))
    one, other = with_member(b'"a":{"x":1,"y":2},"b":2'), with_member(b'"b":2,"a":{"y":2,"x":1}')
    assert content_digest(one) == content_digest(other)


def test_fields_cannot_borrow_from_each_other() -> None:
    assert content_digest(wire_of(name="a", queue="b")) != content_digest(wire_of(name="b", queue="a"))
    assert content_digest(wire_of(tags=("a,b",))) != content_digest(wire_of(tags=("a", "b")))


def test_bytes_that_say_nothing_are_the_same_only_if_they_are_equal() -> None:
    assert content_digest(b"junk") == content_digest(b"junk")
    assert content_digest(b"junk") != content_digest(b"Junk")
