"""A definition that exists can be enqueued: everything else is refused where it is written."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from holdfast.definition import JobDefinition, JobOptions
from holdfast.definition.definition import MAX_DURATION_S, check_id, check_queue, unique
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.values import Backoff, BackoffStrategy, OnConflict, UniqueScope

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MAIL = JobDefinition(handler="mail.send")


def test_what_is_left_out_is_left_to_the_application() -> None:
    assert (MAIL.queue, MAIL.priority) == (None, 5)
    assert bytes(MAIL.payload) == b"null"
    assert bytes(MAIL.meta) == b"{}"
    assert MAIL.max_retries is None
    assert MAIL.timeout is None
    assert MAIL.backoff is None


@pytest.mark.parametrize("key", ["mail", "mail.send", "Mail:send-2", "_x", "9", "a" * 200])
def test_these_are_handler_keys(key: str) -> None:
    assert JobDefinition(handler=key).handler == key


@pytest.mark.parametrize(
    "key", ["", " mail", "mail send", ".mail", "-mail", "mail/send", "máil", "mail\n", "a" * 201, "os.system()", "маil"]
)
def test_these_are_not(key: str) -> None:
    with pytest.raises(DefinitionError, match="is not a valid handler key; use"):
        JobDefinition(handler=key)


@pytest.mark.parametrize("queue", ["default", "a", "0", "mail-2_b", "a" * 63])
def test_these_are_queue_names(queue: str) -> None:
    assert check_queue(queue) == queue
    assert MAIL.with_options(queue=queue).queue == queue


@pytest.mark.parametrize("queue", ["", "Mail", "_mail", "-mail", "mail.x", "mail x", "mail\n", "ma:il", "a" * 64, "é"])
def test_these_are_no_queue_names(queue: str) -> None:
    with pytest.raises(DefinitionError, match="is not a valid queue name; use up to 63 lower-case letters"):
        MAIL.with_options(queue=queue)


@pytest.mark.parametrize("job_id", ["job1", "2026-01-01/shop@eu:7+a=b", "_", "a" * 128])
def test_these_are_ids(job_id: str) -> None:
    assert check_id(job_id) == job_id


@pytest.mark.parametrize("job_id", ["", "-rf", "--all", ".", "/etc", "a b", "a\n", "a'b", "a%b", "é", "a" * 129, "a\0"])
def test_these_are_no_ids(job_id: str) -> None:
    with pytest.raises(DefinitionError, match="is not a valid job id; use"):
        check_id(job_id)


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("priority", [0, 9], [-1, 10, math.nan]),
        ("max_retries", [0, 1000], [-1, 1001]),
        ("timeout", [0, 0.001, MAX_DURATION_S], [-0.001, MAX_DURATION_S * 2, math.inf, math.nan]),
        ("delay", [0, MAX_DURATION_S], [-1, math.inf, math.nan]),
        ("expires_in", [0, MAX_DURATION_S], [-1, math.inf, math.nan]),
    ],
)
def test_a_number_outside_its_range_is_refused_with_the_range(option: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(JobDefinition(handler="mail", **{option: value}), option) == value
    for value in bad:
        with pytest.raises(DefinitionError, match=rf"{option.removesuffix('_in')} must be between 0 and .*, not "):
            JobDefinition(handler="mail", **{option: value})


@pytest.mark.parametrize(
    ("backoff", "what"),
    [
        (Backoff(base=-1), "backoff base"),
        (Backoff(base=math.nan), "backoff base"),
        (Backoff(multiplier=0.5), "backoff multiplier"),
        (Backoff(multiplier=math.inf), "backoff multiplier"),
        (Backoff(max=-1), "backoff max"),
        (Backoff(jitter=1.5), "backoff jitter"),
        (Backoff(delays=(1, -1)), "backoff delay"),
        (Backoff(delays=(math.nan,)), "backoff delay"),
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(backoff: Backoff, what: str) -> None:
    with pytest.raises(DefinitionError, match=f"{what} must be between"):
        MAIL.with_options(backoff=backoff)


@pytest.mark.parametrize("text", ["", "a\nb", "a\x1b[31m", "a\x7f", "\0", "x" * 201])
def test_a_label_is_short_and_without_control_characters(text: str) -> None:
    friendly = "grüße, 😀"
    assert MAIL.with_options(name=friendly, trace_id=friendly, tags=[friendly])
    refused: list[JobOptions] = [{"name": text}, {"trace_id": text}, {"tags": [text]}]
    for options in refused:
        with pytest.raises(DefinitionError, match=r"^(name|trace_id|tag) .* must be 1 to 200 printable characters"):
            MAIL.with_options(**options)


def test_a_datetime_without_a_zone_is_refused() -> None:
    naive = datetime(2026, 1, 1)
    with pytest.raises(DefinitionError, match="run_at 2026-01-01T00:00:00 has no time zone"):
        MAIL.with_options(run_at=naive)
    with pytest.raises(DefinitionError, match="expires 2026-01-01T00:00:00 has no time zone"):
        MAIL.with_options(expires=naive)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"run_at": "tomorrow"}, r"run_at must be a datetime with a time zone, like .*, not 'tomorrow'"),
        ({"tags": (1,)}, "tag must be a string, like '1', not 1"),
        ({"name": 5}, "name must be a string, like '5', not 5"),
        ({"timeout": 1e300}, r"timeout must be between 0 and 3660 days, not 1e\+300 seconds"),
    ],
)
def test_what_is_of_another_type_is_refused_with_what_to_write(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        JobDefinition(handler="mail", **options)


@pytest.mark.parametrize("tags", [5, [["a"]]])
def test_tags_are_texts(tags: Any) -> None:
    with pytest.raises(DefinitionError, match=r"tags must be a list of strings, like \['import'\]"):
        unique(tags)


def test_an_id_that_is_too_long_is_not_repeated_whole() -> None:
    with pytest.raises(DefinitionError, match=r"^'a{59}\.\.\. \(5,000 characters\) is not a valid job id"):
        check_id("a" * 5000)


def test_two_ways_to_say_when_are_refused() -> None:
    with pytest.raises(DefinitionError, match="a delay or a run_at"):
        JobDefinition(handler="mail", delay=1, run_at=NOON)
    with pytest.raises(DefinitionError, match="after a duration or at a point in time"):
        JobDefinition(handler="mail", expires_in=1, expires_at=NOON)


def test_an_instant_beyond_what_engines_can_count_is_refused() -> None:
    never = datetime.max.replace(tzinfo=UTC)
    with pytest.raises(DefinitionError, match=r"run_at .* is too far in the future; the limit is the year 2200"):
        MAIL.with_options(run_at=never)
    with pytest.raises(DefinitionError, match=r"expires .* is too far in the future; the limit is the year 2200"):
        MAIL.with_options(expires=never)


def test_the_later_of_delay_and_run_at_replaces_the_earlier() -> None:
    both = MAIL.with_options(delay=5).with_options(run_at=NOON)
    assert (both.delay, both.run_at) == (None, NOON)
    both = both.with_options(delay=timedelta(minutes=1))
    assert (both.delay, both.run_at) == (60.0, None)


def test_the_later_of_two_expiries_replaces_the_earlier() -> None:
    both = MAIL.with_options(expires=5).with_options(expires=NOON)
    assert (both.expires_in, both.expires_at) == (None, NOON)
    both = both.with_options(expires=timedelta(hours=1))
    assert (both.expires_in, both.expires_at) == (3600.0, None)


def test_other_options_make_another_definition_and_leave_the_first_unchanged() -> None:
    before = msgspec.structs.asdict(MAIL)
    changed = MAIL.with_payload({"a": 1}).with_options(
        name="welcome",
        queue="mail",
        priority=9,
        max_retries=0,
        backoff=Backoff(strategy=BackoffStrategy.FIXED),
        timeout=timedelta(minutes=2),
        delay=3,
        expires=4,
        tags=["a", "b"],
        meta={"k": "v"},
        trace_id="t-1",
        fence=True,
    )
    assert changed == JobDefinition(
        handler="mail.send",
        payload=changed.payload,
        name="welcome",
        queue="mail",
        priority=9,
        max_retries=0,
        backoff=Backoff(strategy=BackoffStrategy.FIXED),
        timeout=120.0,
        delay=3,
        expires_in=4,
        tags=("a", "b"),
        meta=changed.meta,
        trace_id="t-1",
        fence=True,
    )
    assert (bytes(changed.payload), bytes(changed.meta)) == (b'{"a":1}', b'{"k":"v"}')
    assert msgspec.structs.asdict(MAIL) == before
    assert changed.with_options(fence=False).fence is False


@pytest.mark.parametrize("fence", [1, "yes", None])
def test_a_fence_is_wanted_or_not(fence: Any) -> None:
    with pytest.raises(DefinitionError, match="fence must be True or False"):
        JobDefinition(handler="mail.send", fence=fence)


def test_changing_one_thing_checks_everything_again() -> None:
    with pytest.raises(DefinitionError, match="priority"):
        msgspec.structs.replace(MAIL, priority=99)


@given(st.lists(st.sampled_from("abcd")))
def test_a_tag_counts_once_and_keeps_its_first_place(tags: list[str]) -> None:
    kept = MAIL.with_options(tags=tags).tags
    assert sorted(kept) == sorted(set(tags))
    assert [tags.index(tag) for tag in kept] == sorted(tags.index(tag) for tag in kept)


def test_a_payload_and_a_meta_that_cannot_travel_say_which_it_was() -> None:
    with pytest.raises(PayloadRejected, match=r"^the payload contains nan"):
        MAIL.with_payload([math.nan])
    with pytest.raises(PayloadRejected, match=r"^the meta contains inf"):
        MAIL.with_options(meta={"a": math.inf})


def test_a_definition_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        MAIL.queue = "other"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("option", ["idempotency_key", "concurrency_key", "unique"])
@pytest.mark.parametrize("key", ["", "a\nb", "\x00", "x" * 401, "\ud800", 7])
def test_a_key_is_short_printable_text(option: str, key: Any) -> None:
    wrong: Any = {option: key}
    with pytest.raises(DefinitionError, match=option):
        JobDefinition(handler="send").with_options(**wrong)
    right: Any = {option: "é" * 200}
    JobDefinition(handler="send").with_options(**right)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"idempotency_ttl": 5}, "idempotency_ttl has no effect without idempotency_key"),
        ({"concurrency": 2}, "concurrency has no effect without concurrency_key"),
        ({"unique_for": "waiting"}, "unique_for has no effect without unique"),
        ({"on_conflict": "reject"}, "on_conflict has no effect without unique"),
        ({"unique": "k", "unique_for": "ever"}, "unique_for must be 'open', 'waiting' or a duration"),
        ({"unique": "k", "unique_for": 0}, "unique_for must be between 1 s and"),
        ({"unique": "k", "unique_for": None}, "unique_for must be 'open', 'waiting' or a duration"),
        ({"unique": "k", "on_conflict": "explode"}, "on_conflict must be 'ignore', 'reject', 'replace', not 'explode'"),
        ({"concurrency_key": "k", "concurrency": 0}, "concurrency must be between 1 and"),
        ({"concurrency_key": "k", "concurrency": 1.5}, "concurrency must be an integer"),
        (
            {"idempotency_key": "k", "idempotency_ttl": 0},
            "idempotency_ttl must be between 1 s and 3660 days, not 0 seconds",
        ),
        ({"single_instance": "yes"}, "single_instance must be True or False"),
    ],
)
def test_options_of_ownership_that_make_no_sense_are_refused(options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        JobDefinition(handler="send").with_options(**options)


def test_the_scope_of_a_unique_job_is_a_word_or_a_duration() -> None:
    job = JobDefinition(handler="send")
    assert job.with_options(unique=True).unique_for is UniqueScope.OPEN
    assert job.with_options(unique=True, unique_for="waiting").unique_for is UniqueScope.WAITING
    for period in (timedelta(minutes=10), 600, "10m"):
        assert job.with_options(unique="k", unique_for=period).unique_for == 600.0
    assert job.with_options(unique="k", on_conflict="replace").on_conflict is OnConflict.REPLACE


def test_a_job_that_is_unique_by_default_can_be_enqueued_without_its_key() -> None:
    job = JobDefinition(handler="send").with_options(unique=True, unique_for=60, on_conflict="reject")
    assert job.with_options(unique=False) == JobDefinition(handler="send")
