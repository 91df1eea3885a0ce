"""Text that a terminal obeys never passes, and JSON keeps its value."""

import json
import unicodedata

import pytest

from holdfast.definition import JobDefinition, JobOptions
from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged, one_line, plain, safe_json

UNSAFE = [
    *map(chr, {*range(32), *range(0x7F, 0xA0)} - {0x09, 0x0A}),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff",
    *map(chr, range(0xE0000, 0xE0080)),
]


@pytest.mark.parametrize("sign", UNSAFE, ids=lambda sign: f"U+{ord(sign):04X}")
def test_what_a_terminal_obeys_is_replaced_in_text_escaped_in_json_and_refused_in_labels(sign: str) -> None:
    assert plain(f"a{sign}b") == "a\ufffdb"
    written = safe_json(json.dumps(f"a{sign}b", ensure_ascii=False))
    assert [each for each in written if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")] == []
    assert json.loads(written) == f"a{sign}b"
    definition = JobDefinition(handler="x")
    for label in (JobOptions(name=sign), JobOptions(trace_id=sign), JobOptions(tags=[sign])):
        with pytest.raises(DefinitionError, match="printable characters"):
            definition.with_options(**label)


def test_other_text_stays_as_it_is() -> None:
    text = "naïve 日本 שלום 👩‍👩‍👧 a\tb"
    assert (plain(f"{text}\n"), one_line(text)) == (f"{text}\n", text)
    assert safe_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)
    assert JobDefinition(handler="x", name=text.replace("\t", " ")).name == text.replace("\t", " ")


def test_a_line_feed_does_not_start_a_line() -> None:
    assert one_line("a\nb\r\nc") == "a↵b\ufffd↵c"


def test_half_a_character_is_replaced() -> None:
    assert plain("a\udc80b") == "a\ufffdb"


def test_a_long_id_is_abridged() -> None:
    assert abridged("x" * 128) == "x" * 128
    assert abridged("x" * 1000) == f"{'x' * 60}... (1,000 characters)"
