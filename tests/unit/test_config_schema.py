"""The schema for editors says of the file what the table of settings says."""

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft7Validator

from holdfast.config import KEYS, as_seconds, check_value
from holdfast.config.schema import settings_schema
from holdfast.errors import ConfigError

PROPERTIES: dict[str, Any] = settings_schema()["properties"]
IN_FILE = [key for key in KEYS.values() if key.in_file]


def test_it_has_every_key_that_may_stand_in_the_file_and_no_other() -> None:
    assert list(PROPERTIES) == [key.name for key in IN_FILE]
    assert settings_schema()["additionalProperties"] is False
    assert "signing-key" not in PROPERTIES


def test_underscores_mean_the_same() -> None:
    patterns = settings_schema()["patternProperties"]
    for key in IN_FILE:
        spelled = [name["$ref"] for pattern, name in patterns.items() if re.search(pattern, key.field)]
        assert spelled == ([f"#/properties/{key.name}"] if "-" in key.name else [])


@pytest.mark.parametrize("key", IN_FILE, ids=lambda key: key.name)
def test_a_key_is_described_and_has_its_default(key: Any) -> None:
    described = PROPERTIES[key.name]
    assert described["description"].lower() == f"{key.meaning.lower()}."
    if key.default is None:
        assert "default" not in described
    elif key.default != "":
        assert check_value(key, described["default"]) == key.default


@pytest.mark.parametrize("key", [key for key in IN_FILE if key.high], ids=lambda key: key.name)
def test_a_number_has_the_range_that_the_program_enforces(key: Any) -> None:
    described = PROPERTIES[key.name]
    number = described["anyOf"][0] if key.kind == "duration" else described
    assert number["type"] == ("integer" if key.kind == "count" else "number")
    for end, beyond in (("minimum", -1), ("maximum", 1)):
        check_value(key, number[end])
        with pytest.raises(ConfigError):
            check_value(key, number[end] + beyond)


@given(st.one_of(st.text(), st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3})? ?(ms|s|m|h|d|w)?", fullmatch=True)))
def test_a_span_that_the_schema_accepts_is_one(text: str) -> None:
    if re.search(PROPERTIES["lease"]["anyOf"][1]["pattern"], text, re.ASCII):
        assert as_seconds(text) >= 0


@pytest.mark.parametrize("text", ["90s", "15m", "2h", "3d", "1w", "500ms", "1.5h", "30", "5 m"])
def test_the_schema_accepts_spans_as_the_documentation_writes_them(text: str) -> None:
    assert re.search(PROPERTIES["lease"]["anyOf"][1]["pattern"], text)


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ("fixed", True),
        ("exponential:2s,multiplier=3", True),
        ("1s,5s,1m", True),
        (10, True),
        (["1s", 5], True),
        ("expnential", False),
        ([], False),
        (["soon"], False),
        (-1, False),
        (True, False),
    ],
)
def test_a_backoff_is_a_strategy_a_notation_a_delay_or_a_list_of_delays(value: Any, is_valid: bool) -> None:
    validator: Any = Draft7Validator(PROPERTIES["backoff"])
    assert validator.is_valid(value) is is_valid
    if is_valid:
        check_value(KEYS["backoff"], value)


def test_choices_flags_lists_and_tables_have_their_types() -> None:
    assert PROPERTIES["backoff"]["anyOf"][0]["enum"] == ["none", "fixed", "linear", "exponential"]
    assert PROPERTIES["verify"]["type"] == "boolean"
    assert PROPERTIES["installation"]["pattern"] == "^[A-Za-z0-9_.-]{1,64}$"
    assert PROPERTIES["allowed-commands"] == {
        "description": "Programs that command jobs may run, separated by commas.",
        "type": "array",
        "items": {"type": "string"},
        "default": [],
    }
    assert PROPERTIES["allowlist"]["additionalProperties"] == {"type": "array", "items": {"type": "string"}}
