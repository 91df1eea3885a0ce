"""Which jobs a search means."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st
from msgspec import Raw, json
from msgspec.structs import replace

from holdfast.search import matches, parse
from holdfast.search.terms import Pattern
from holdfast.values import DeadReason, JobState, JobView

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ARGS = {
    "user": {"id": 42, "name": "Ada", "vip": True},
    "note": None,
    "code": "42",
    "amount": 99.5,
    "lines": [{"sku": "a-1", "n": 1}, {"sku": "b-2", "n": 7}],
    "dots.in": "yes",
}
JOB = JobView(
    id="order-17",
    queue="mail",
    state=JobState.DEAD,
    job="shop.send_invoice",
    name="Invoice of Ada",
    priority=7,
    attempts=4,
    crashes=1,
    deliveries=6,
    accepted_at=NOW - timedelta(hours=2),
    due_at=NOW - timedelta(hours=1),
    finished_at=NOW - timedelta(minutes=30),
    dead_reason=DeadReason.TIMEOUT,
    last_error="TimeoutError: api.example.com\nsecond line",
    payload=Raw(json.encode(ARGS)),
    tags=("vip", "eu"),
    meta=Raw(b'{"tenant": "acme"}'),
    trace_id="t-1",
)


def means(text: str, job: JobView = JOB) -> bool:
    return matches(parse(text, now=NOW, zone=UTC).terms, job, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "state:dead",
        "state:failed,dead",
        "queue:mail",
        "queue:m*",
        "job:shop.send_invoice",
        "job:*send_*",
        "name:*Ada",
        "id:order-17",
        "tag:vip",
        "tag:other,eu",
        "trace:t-1",
        "error:timeout",
        "error:example.com",
        "error:time*second",
        "reason:timeout",
        "reason:time*",
        "attempts:4",
        "attempts:>3 crashes:1 deliveries:6 priority:7",
        "priority:1,7",
        "age:>1h",
        "age:1h..3h",
        "accepted:today",
        "due:<now",
        "finished:>1h",
        "finished:*",
        "args.user.id:42",
        "args.user.id:>41",
        "args.user.id:42.0",
        'args.user.name:"Ada"',
        "args.user.name:A*",
        "args.user.vip:true",
        "args.note:null",
        "args.code:42",
        'args.code:"42"',
        "args.amount:<100",
        "args.lines.0.sku:a-1",
        "args.lines.sku:b-2",
        "args.lines.n:>5",
        'args."dots.in":yes',
        "args.note:*",
        "args:b-2",
        "meta.tenant:acme",
        "ORDER",
        "invoice",
        "send_inv*",
        '"api.example"',
        "-state:failed",
        "-tag:test",
        "-args.absent:1",
        "-finished:<1h",
    ],
)
def test_the_job_is_meant(text: str) -> None:
    assert means(text)
    if text:
        assert not means(f"{text} state:pending")


@pytest.mark.parametrize(
    "text",
    [
        "state:failed",
        "queue:Mail",
        "queue:mai",
        "job:send_invoice",
        'job:"*send_*"',
        "tag:vi",
        "error:absent",
        "reason:failed",
        'reason:"whim"',
        "attempts:<4",
        "age:<1h",
        "finished:<1h",
        "expires:*",
        'args.user.id:"42"',
        "args.user.id:43",
        'args.user.vip:"true"',
        "args.user.vip:1",
        "args.note:false",
        "args.user:Ada",
        "args.user.name:>1",
        "args.lines.2.sku:a-1",
        "args.absent:*",
        "args.user.id.deeper:42",
        "meta.tenant:other",
        "absent",
        "-invoice",
        "state:dead queue:other",
    ],
)
def test_the_job_is_not_meant(text: str) -> None:
    assert not means(text)


def test_the_reason_of_a_cancellation_is_found_by_its_words() -> None:
    cancelled = replace(JOB, state=JobState.CANCELLED, dead_reason=None, cancel_reason="a timeout of ours")
    assert means('reason:"Timeout of"', cancelled)
    assert means("reason:*ours", cancelled)
    assert not means("reason:timeout", cancelled)


def test_arguments_that_are_no_json_are_not_found() -> None:
    assert not means("args.user:42", replace(JOB, payload=Raw(b"{{")))


# Few different letters, so that parts are found at many places and overlap.
stars = st.text(alphabet="abB*", max_size=8)
written = st.text(alphabet="abAB\n*", max_size=12)


@given(stars, written)
def test_a_star_stands_for_any_characters(pattern: str, text: str) -> None:
    meant = ".*".join(map(re.escape, pattern.split("*")))
    assert Pattern(pattern).fits(text) is (re.fullmatch(meant, text, re.DOTALL) is not None)
    assert Pattern(pattern).is_in(text) is (re.search(meant, text, re.DOTALL | re.IGNORECASE) is not None)
    assert Pattern(pattern, is_quoted=True).fits(text) is (pattern == text)
    assert Pattern(pattern, is_quoted=True).is_in(text) is (pattern.lower() in text.lower())


def test_many_stars_in_a_long_text_are_answered() -> None:
    text, pattern = "a" * 10_000, "a*" * 30
    for last, is_there in (("a", True), ("b", False)):
        assert Pattern(pattern + last).fits(text) is is_there
        assert Pattern(pattern + last).is_in(text) is is_there
    assert means(f"error:{pattern}b", replace(JOB, last_error=text)) is False
