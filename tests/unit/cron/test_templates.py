"""Templates: whatever was not signed for this name by a known key of this installation never becomes a schedule."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.cron.schedule import Schedule, ScheduleBuilder
from holdfast.cron.templates import PURPOSE, describe_template, open_template, seal_template
from holdfast.cron.timing import Cron, Every
from holdfast.definition import JobDefinition, definition_of
from holdfast.errors import (
    BadSignature,
    DefinitionError,
    EnvelopeRejected,
    HoldfastError,
    NewerWire,
    UnknownKey,
    UnknownMember,
)
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey, Unsigned
from holdfast.values import Backoff

SECRET = b"the key of the schedules, 32 bytes long"
KEYRING = Keyring([SigningKey(SECRET)])
NIGHTLY = (
    ScheduleBuilder(
        definition_of("report", {"kind": "sales"}, {"backoff": "fixed:10s", "tags": ["a"], "meta": {"k": 1}})
    )
    .named("nightly")
    .daily_at("01:00")
    .timezone("Europe/Berlin")
    .depends_on("import")
    .catch_up("last")
    .starting(datetime(2026, 1, 1, tzinfo=UTC))
    .schedule()
)


def changed(wire: bytes, **members: Any) -> bytes:
    """The template with other members, and the old signature."""
    return json.dumps({**json.loads(wire), **members}, separators=(",", ":")).encode()


def resigned(wire: bytes, **members: Any) -> bytes:
    """The template with other members, signed by a program that has the key."""
    content = {name: value for name, value in json.loads(wire).items() if name != "_sig"}
    return KEYRING.sign_for(PURPOSE, json.dumps({**content, **members}, separators=(",", ":")).encode())


def test_a_template_returns_the_same_schedule() -> None:
    opened = open_template("nightly", seal_template(NIGHTLY, 7, KEYRING), KEYRING)
    assert opened.schedule == NIGHTLY
    assert opened.revision == 7
    plain = Schedule(name="a", definition=JobDefinition(handler="a"), timing=Every(90))
    assert open_template("a", seal_template(plain, 1, KEYRING), KEYRING).schedule == plain
    assert b'"retry' not in seal_template(plain, 1, KEYRING), "defaults are left out"


def test_every_option_of_a_definition_survives() -> None:
    definition = JobDefinition(
        handler="report",
        payload=msgspec.Raw(b'{"a":1}'),
        name="a",
        priority=7,
        trace_id="t",
        tags=("a", "b"),
        meta=msgspec.Raw(b'{"k":1}'),
        fence=True,
        idempotency_key="k",
        idempotency_ttl=9.0,
        single_instance=True,
        concurrency_key="c",
        concurrency=2,
        dead_letter_to="dead",
        rate_limit="10/s",
        rate_key="r",
        breaker="b",
        queue="q",
        max_retries=0,
        backoff=Backoff(delays=(1.0, 2.0)),
        timeout=0.0,
        delay=3.0,
        expires_in=60.0,
    )
    set_by_schedules = {"after", "on_parent_failure", "schedule", "scheduled_for", "ledger_ttl"}
    refused = {"run_at", "expires_at", "unique", "unique_for", "on_conflict"}
    for field in msgspec.structs.fields(JobDefinition):
        if field.name not in set_by_schedules | refused:
            assert getattr(definition, field.name) != field.default, f"{field.name} is not tested"
    schedule = Schedule(name="a", definition=definition, timing=Cron("0 1 * * *"))
    assert open_template("a", seal_template(schedule, 1, KEYRING), KEYRING).schedule == schedule


@pytest.mark.parametrize(
    "members",
    [
        {"timing": "* * * * *"},
        {"job": {"handler": "other"}},
        {"enabled": False},
        {"revision": 8},
        {"owner": "eve"},
    ],
)
def test_a_changed_template_is_refused(members: dict[str, Any]) -> None:
    wire = changed(seal_template(NIGHTLY, 7, KEYRING), **members)
    with pytest.raises(BadSignature):
        open_template("nightly", wire, KEYRING)


def test_every_changed_byte_is_noticed() -> None:
    wire = seal_template(NIGHTLY, 7, KEYRING)
    for at in range(len(wire)):
        with pytest.raises(HoldfastError):
            open_template("nightly", wire[:at] + bytes([wire[at] ^ 1]) + wire[at + 1 :], KEYRING)


def test_a_template_is_bound_to_its_name() -> None:
    wire = seal_template(NIGHTLY, 7, KEYRING)
    with pytest.raises(BadSignature, match="signed as 'nightly', not as 'weekly'"):
        open_template("weekly", wire, KEYRING)


def test_a_template_of_another_installation_is_refused() -> None:
    theirs = Keyring([SigningKey(SECRET, installation="staging")])
    with pytest.raises(BadSignature, match="signed for another installation"):
        open_template("nightly", seal_template(NIGHTLY, 7, theirs), KEYRING)


def test_a_template_with_an_unknown_key_is_refused() -> None:
    theirs = Keyring([SigningKey(b"another key of another program, 32 b")])
    with pytest.raises(UnknownKey, match="the schedule was signed with key"):
        open_template("nightly", seal_template(NIGHTLY, 7, theirs), KEYRING)
    both = Keyring([*KEYRING.keys, *theirs.keys])
    assert open_template("nightly", seal_template(NIGHTLY, 7, theirs), both).schedule == NIGHTLY


def test_an_unsigned_template_is_refused() -> None:
    wire = seal_template(NIGHTLY, 7, Unsigned())
    with pytest.raises(BadSignature, match="the schedule carries no signature"):
        open_template("nightly", wire, KEYRING)
    assert open_template("nightly", wire, Unsigned()).schedule == NIGHTLY


def test_a_signed_message_is_not_a_template_and_a_template_is_not_a_message() -> None:
    message = EnvelopeFactory(KEYRING).make(JobDefinition(handler="report")).wire
    with pytest.raises(BadSignature):
        open_template("nightly", message, KEYRING)
    with pytest.raises(HoldfastError):
        KEYRING.open(seal_template(NIGHTLY, 7, KEYRING))
    # Not even one with the same members could be taken for the other.
    assert KEYRING.sign(b"{}") != KEYRING.sign_for(PURPOSE, b"{}")


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"v": 2}, NewerWire),
        ({"v": 2, "new": 1}, NewerWire),
        ({"new": 1}, UnknownMember),
        ({"job": {"handler": "a", "new": 1}}, UnknownMember),
        ({"timing": "* *"}, EnvelopeRejected),
        ({"zone": "Mars/Olympus"}, EnvelopeRejected),
        ({"job": {"handler": "a", "priority": 99}}, EnvelopeRejected),
        ({"catch_up": "some"}, EnvelopeRejected),
    ],
)
def test_a_template_that_this_version_cannot_read_is_refused(members: dict[str, Any], error: type[Exception]) -> None:
    wire = resigned(seal_template(NIGHTLY, 7, KEYRING), **members)
    with pytest.raises(error):
        open_template("nightly", wire, KEYRING)


def test_a_template_is_shown_without_a_key() -> None:
    assert describe_template(seal_template(NIGHTLY, 7, KEYRING)) == NIGHTLY
    assert describe_template(b"") is None
    assert describe_template(b"[]") is None


def test_a_template_that_is_too_large_is_refused() -> None:
    large = Schedule(name="a", definition=definition_of("a", "x" * 800_000, {}), timing=Every(90))
    with pytest.raises(DefinitionError, match=r"schedule 'a' is 800,.* bytes; the limit is 786,432"):
        seal_template(large, 1, KEYRING)
