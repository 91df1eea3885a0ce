"""`assert_enqueued` and `refute_enqueued`: what fits, and what they say of what does not."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import msgspec
import pytest

from holdfast import Handler, Holdfast, Job, JobContext
from holdfast.config import Settings
from holdfast.errors import DefinitionError
from holdfast.testing import Enqueued, JobKit

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
ORDER = UUID("12345678-1234-5678-1234-567812345678")


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Address:
    street: str
    city: str


class Parcel(msgspec.Struct):
    to: Address
    weights: list[float]


class Note(Handler):
    """A handler of its own class, with a payload that is no object."""

    payload_type = list[int]

    def handle(self, context: JobContext) -> object:
        return context.payload


class Shop:
    """An application, and what its test enqueues."""

    def __init__(self, directory: Path) -> None:
        self.hf = Holdfast("memory://", settings=Settings(), directory=directory)
        self.mail = self.hf.job(mail)
        self.ship = self.hf.job(ship)
        self.hf.handler("note")(Note)


def mail(to: str, subject: str = "Hello", *, options: dict[str, Any] | None = None) -> None: ...


def ship(parcel: Parcel, order: UUID, on: datetime, price: Decimal, size: Size = Size.SMALL) -> None: ...


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def kit(shop: Shop) -> Iterator[JobKit]:
    with JobKit(shop.hf) as kit:
        yield kit


def said(ask: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as caught:
        ask()
    return str(caught.value)


def test_the_jobs_that_fit_are_returned(kit: JobKit, shop: Shop) -> None:
    handle = shop.mail.enqueue("ada@example.org")
    shop.mail.options(delay=60, tags=["signup"]).enqueue("bob@example.org", subject="Hi")
    first, second = kit.assert_enqueued(shop.mail)
    assert isinstance(first, Enqueued)
    assert (first.id, first.job, first.queue, first.delay) == (handle.id, "mail", "default", 0)
    assert first.args == {"to": "ada@example.org", "subject": "Hello", "options": None}
    assert second.run_at - second.enqueued_at == timedelta(minutes=1)
    assert kit.enqueued == (first, second)


def test_arguments_fit_in_part(kit: JobKit, shop: Shop) -> None:
    shop.mail.enqueue("ada@example.org", options={"cc": ["bob", "eve"], "track": {"open": True, "click": False}})
    fitting: list[dict[str, object]] = [
        {"to": "ada@example.org"},
        {"subject": "Hello"},
        {"to": ANY, "options": {"track": {"open": True}}},
        {"options": {"cc": ["bob", "eve"]}},
        {"options": {"cc": ("bob", ANY)}},
        {"to": is_ours},
        {},
    ]
    for args in fitting:
        kit.assert_enqueued(shop.mail, args)
    others: list[dict[str, object]] = [
        {"to": "ADA@example.org"},
        {"options": {"track": {"open": False}}},
        {"options": {"cc": ["bob"]}},
        {"options": {"bcc": ANY}},
        {"options": {"track": {"open": {"deep": 1}}}},
        {"subject": is_ours},
    ]
    for args in others:
        kit.refute_enqueued(shop.mail, args)


def is_ours(text: str) -> bool:
    return text.endswith("@example.org")


def test_arguments_are_of_the_types_that_the_handler_is_given(kit: JobKit, shop: Shop) -> None:
    parcel = Parcel(Address("Main Street", "Ghent"), [1.5, 2])
    shop.ship.enqueue(parcel, ORDER, on=NOON, price=Decimal("9.90"))
    fitting: list[dict[str, object]] = [
        {"parcel": parcel},
        {"parcel": {"to": {"city": "Ghent"}, "weights": [pytest.approx(1.5), 2]}},  # pyright: ignore[reportUnknownMemberType]
        {"parcel": {"to": Address("Main Street", "Ghent")}},
        {"order": ORDER, "size": Size.SMALL},
        {"order": str(ORDER), "size": "s"},
        {"on": NOON.astimezone(tz=None), "price": Decimal("9.9")},
        {"on": "2100-01-01T12:00:00Z", "price": "9.90"},
    ]
    for args in fitting:
        kit.assert_enqueued(shop.ship, args)
    kit.refute_enqueued(shop.ship, {"parcel": {"to": {"city": "Bruges"}}})
    kit.refute_enqueued(shop.ship, {"on": NOON + timedelta(microseconds=1)})


def test_arguments_of_an_untyped_handler_are_as_the_wire_has_them(kit: JobKit, shop: Shop) -> None:
    shop.hf.define("elsewhere", {"when": NOON, "sizes": {1: [Size.LARGE]}}).dispatch()
    kit.assert_enqueued("elsewhere", {"when": NOON, "sizes": {1: [Size.LARGE]}})
    kit.assert_enqueued("elsewhere", {"sizes": {"1": ["l"]}})


def test_a_handler_is_meant_by_its_class_or_its_key(kit: JobKit, shop: Shop) -> None:
    shop.hf.define("note", [1, 2]).dispatch()
    kit.assert_enqueued(Note, [1, 2])
    kit.assert_enqueued("note", [ANY, 2], count=1)
    kit.refute_enqueued(Note, [1])
    kit.refute_enqueued(shop.mail)
    kit.assert_enqueued(count=1)


@pytest.mark.parametrize(
    "condition",
    [
        {"queue": "mail"},
        {"priority": 8},
        {"delay": 300},
        {"delay": timedelta(minutes=5)},
        {"delay": 310, "tolerance": 10},
        {"tags": ["b"]},
        {"tags": ("b", "a")},
        {"meta": {"tenant": {"id": 7}}},
        {"name": "welcome"},
        {"id": "mail-1"},
        {"max_retries": 2},
        {"timeout": timedelta(seconds=9)},
        {"trace_id": "t1"},
        {"queue": "mail", "priority": 8, "delay": 300, "tags": ["a"]},
    ],
)
def test_conditions_that_hold(kit: JobKit, shop: Shop, condition: dict[str, Any]) -> None:
    enqueue_one(shop)
    kit.assert_enqueued(shop.mail, **condition)


@pytest.mark.parametrize(
    ("condition", "difference"),
    [
        ({"queue": "default"}, "queue is 'mail', not 'default'"),
        ({"priority": 7}, "priority is 8, not 7"),
        ({"delay": 301}, "delay is 300 s, not 301 s"),
        ({"delay": 0}, "delay is 300 s, not 0 s"),
        ({"delay": 310, "tolerance": 9}, "delay is 300 s, not 310 s ± 9 s"),
        ({"tags": ["a", "c"]}, "tags are ['a', 'b'], without ['c']"),
        ({"meta": {"tenant": {"id": 8}}}, "meta.tenant.id is 7, not 8"),
        ({"meta": {"user": 8}}, "meta has no 'user'"),
        ({"name": "bye"}, "name is 'welcome', not 'bye'"),
        ({"id": "mail-2"}, "id is 'mail-1', not 'mail-2'"),
        ({"max_retries": 3}, "max_retries is 2, not 3"),
        ({"timeout": 10}, "timeout is 9.0, not 10"),
        ({"trace_id": "t2"}, "trace_id is 't1', not 't2'"),
    ],
)
def test_conditions_that_do_not_hold_are_named(
    kit: JobKit, shop: Shop, condition: dict[str, Any], difference: str
) -> None:
    enqueue_one(shop)
    kit.refute_enqueued(shop.mail, **condition)
    message = said(lambda: kit.assert_enqueued(shop.mail, **condition))
    assert f"\n      {difference}" in message


def enqueue_one(shop: Shop) -> None:
    shop.mail.options(
        queue="mail",
        priority=8,
        delay=300,
        tags=["a", "b"],
        meta={"tenant": {"id": 7, "plan": "free"}},
        name="welcome",
        id="mail-1",
        max_retries=2,
        timeout=9,
        trace_id="t1",
    ).enqueue("ada@example.org")


def test_an_instant_fits_within_a_tolerance(kit: JobKit, shop: Shop) -> None:
    shop.mail.options(run_at=NOON).enqueue("ada")
    kit.assert_enqueued(shop.mail, run_at=NOON + timedelta(seconds=4))
    kit.assert_enqueued(shop.mail, run_at=NOON, tolerance=0)
    kit.refute_enqueued(shop.mail, run_at=NOON + timedelta(seconds=4), tolerance=1)
    kit.refute_enqueued(shop.mail, run_at=NOON - timedelta(seconds=6))
    message = said(lambda: kit.assert_enqueued(shop.mail, run_at=NOON + timedelta(minutes=1)))
    assert "run_at is 2100-01-01 12:00:00+00:00, not 2100-01-01 12:01:00+00:00 ± 5 s" in message


def test_an_instant_matches_its_delay(kit: JobKit, shop: Shop) -> None:
    shop.mail.options(run_at=kit.now() + timedelta(hours=1)).enqueue("ada")
    kit.assert_enqueued(shop.mail, delay=3600)
    kit.refute_enqueued(shop.mail, delay=3600, tolerance=0)
    kit.refute_enqueued(shop.mail, delay=3610)


def test_a_delay_matches_its_instant(kit: JobKit, shop: Shop) -> None:
    shop.mail.options(delay=3600).enqueue("ada")
    kit.assert_enqueued(shop.mail, run_at=kit.now() + timedelta(hours=1))
    kit.refute_enqueued(shop.mail, run_at=kit.now())


def test_jobs_are_counted(kit: JobKit, shop: Shop) -> None:
    shop.mail.enqueue("ada")
    shop.mail.enqueue("bob")
    kit.assert_enqueued(shop.mail, count=2)
    kit.assert_enqueued(shop.mail, {"to": "ada"}, count=1)
    message = said(lambda: kit.assert_enqueued(shop.mail, count=3))
    assert message.startswith("2 jobs were enqueued that match 'mail', expected 3\n2 jobs were enqueued:\n")
    assert "1 job was enqueued that matches 'mail' with args={'to': 'ada'}, expected 2" in said(
        lambda: kit.assert_enqueued(shop.mail, {"to": "ada"}, count=2)
    )
    for count in (0, -1, True):
        with pytest.raises(DefinitionError, match="refute_enqueued"):
            kit.assert_enqueued(shop.mail, count=count)


def test_the_same_job_enqueued_twice_is_one(kit: JobKit, shop: Shop) -> None:
    for _ in range(2):
        shop.mail.options(id="once").enqueue("ada")
    kit.assert_enqueued(shop.mail, count=1)


def test_what_was_enqueued_is_asserted_also_after_it_ran(kit: JobKit, shop: Shop) -> None:
    shop.mail.enqueue("ada")
    kit.drain()
    kit.assert_enqueued(shop.mail, {"to": "ada"})


def test_the_message_shows_what_was_enqueued(kit: JobKit, shop: Shop) -> None:
    shop.hf.define("note", [1, 2]).queue("slow").priority(9).dispatch()
    shop.mail.options(delay=300, tags=["signup"], name="welcome", meta={"tenant": 7}).enqueue("bob", subject="Hi")
    assert said(lambda: kit.assert_enqueued(shop.mail, {"to": "ada", "subject": "Hi"}, queue="mail")) == (
        "no enqueued job matches 'mail' with args={'to': 'ada', 'subject': 'Hi'}, queue='mail'\n"
        "2 jobs were enqueued:\n"
        "  mail(to='bob', subject='Hi', options=None), delay 300 s, name 'welcome', tags signup, meta {'tenant': 7}\n"
        "      args.to is 'bob', not 'ada'\n"
        "      queue is 'default', not 'mail'\n"
        "  note([1, 2]), queue 'slow', priority 9"
    )


def test_the_message_of_a_refutation_shows_what_fits(kit: JobKit, shop: Shop) -> None:
    shop.mail.enqueue("ada")
    shop.mail.options(run_at=NOON).enqueue("bob")
    assert said(lambda: kit.refute_enqueued(shop.mail, {"to": "ada"})) == (
        "1 job was enqueued that should not have been: 'mail' with args={'to': 'ada'}\n"
        "2 jobs were enqueued:\n"
        "  mail(to='ada', subject='Hello', options=None)\n"
        "      matches\n"
        "  mail(to='bob', subject='Hello', options=None), run_at 2100-01-01 12:00:00+00:00\n"
        "      args.to is 'bob', not 'ada'"
    )
    assert said(kit.refute_enqueued).startswith("2 jobs were enqueued that should not have been: any job\n")


def test_the_failure_reports_that_nothing_was_enqueued(kit: JobKit, shop: Shop) -> None:
    message = "no enqueued job matches 'mail'\nnothing was enqueued"
    assert said(lambda: kit.assert_enqueued(shop.mail)) == message


def test_a_long_message_is_cut(kit: JobKit, shop: Shop) -> None:
    shop.hf.enqueue_many(shop.mail.define("x" * 9_000) for _ in range(30))
    message = said(lambda: kit.assert_enqueued(shop.mail, {"to": is_short}))
    assert message.endswith("\n  and 10 more")
    assert len(message) < 12_000
    assert re.search(r"args.to is 'x+…, which is_short rejects", message)


def is_short(text: str) -> bool:
    return len(text) < 10


NOT_TO_BE_ASKED: list[tuple[Callable[[Any, Any], None], str]] = [
    (lambda kit, shop: kit.refute_enqueued(shop.mail, {"too": "ada"}), "no parameter 'too'; did you mean 'to'"),
    (lambda kit, shop: kit.refute_enqueued(shop.mail, ["ada"]), "must be a mapping of names to values"),
    (lambda kit, shop: kit.refute_enqueued(shop.mail, to="ada"), r"pass an argument of the job as args=\{'to': …\}"),
    (lambda kit, shop: kit.refute_enqueued(queue="Mail"), "is not a valid queue name"),
    (lambda kit, shop: kit.refute_enqueued(priority=11), "priority must be between 0 and 9"),
    (lambda kit, shop: kit.refute_enqueued(run_at=datetime(2026, 1, 1)), "no time zone"),
    (lambda kit, shop: kit.refute_enqueued(tags="signup"), r"must be a list, like \['signup'\]"),
    (lambda kit, shop: kit.refute_enqueued(id=""), "is not a valid job id"),
    (lambda kit, shop: kit.refute_enqueued(delay=1, tolerance=-1), "tolerance must be a duration of 0 s or more"),
    (lambda kit, shop: kit.refute_enqueued(tolerance=1), "needs a delay, a run_at or an expires"),
    (lambda kit, shop: kit.refute_enqueued("no key"), "is not a valid handler key"),
    (lambda kit, shop: kit.refute_enqueued(Handler), "is not registered; pass the handler's key"),
    (lambda kit, shop: kit.refute_enqueued(mail), "is not a job"),
    (lambda kit, shop: kit.refute_enqueued(other_job()), "does not belong to the application under test"),
]


@pytest.mark.parametrize(("ask", "message"), NOT_TO_BE_ASKED)
def test_a_question_that_nothing_could_fit_is_refused(
    kit: JobKit, shop: Shop, ask: Callable[[JobKit, Shop], None], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        ask(kit, shop)


def other_job() -> Job[[str], None, None]:
    def mail(to: str) -> None: ...

    return Holdfast("memory://", settings=Settings()).job(mail)
