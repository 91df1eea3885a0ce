"""Where copies of dead letters go, how they are named, and what the application stores itself."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import DeadLetter, Holdfast
from holdfast.config import Settings
from holdfast.dead_letters import DEAD_LETTER_KEY, DeadLetterQueues, copy_id
from holdfast.definition.definition import check_id
from holdfast.errors import ConfigError, DefinitionError, PayloadRejected
from holdfast.values import JobState

KEY = "ours:the-key-of-the-tests-of-dead-letters"
QUEUES = DeadLetterQueues(default="failed_jobs", by_queue={"mail": "failed_mail", "noise": ""})


def test_a_queue_of_the_table_overrides_the_one_for_all() -> None:
    assert [QUEUES.of(queue) for queue in ("mail", "noise", "default")] == ["failed_mail", None, "failed_jobs"]
    assert QUEUES
    assert not DeadLetterQueues(by_queue={"noise": ""})
    assert DeadLetterQueues().of("mail") is None


def test_an_id_belongs_to_one_delivery_and_is_always_valid() -> None:
    assert copy_id("row-0", 1) == "row-0:dead:1"
    ids = [copy_id(id, delivery) for id in ("a", "b" * 128, "c" * 128, "\ud800 no id", "") for delivery in (1, 2)]
    assert len({check_id(id) for id in ids}) == len(ids)


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        (DeadLetterQueues(default="Failed Jobs"), "'Failed Jobs' is not a valid queue name"),
        (DeadLetterQueues(by_queue={"mail": "no!"}), "'no!' is not a valid queue name"),
        (DeadLetterQueues(by_queue={"no!": "failed"}), "'no!' is not a valid queue name"),
        (DeadLetterQueues(default="failed"), "queue 'nightly' is in backend 'reports'.* 'failed' in backend 'default'"),
        (DeadLetterQueues(by_queue={"mail": "nightly"}), "queue 'mail' is in backend 'default'.*'nightly' in backend"),
        (
            DeadLetterQueues(default="nightly"),
            "queue 'nightly' is in backend 'reports', so it cannot receive the dead letters of queues in backend",
        ),
    ],
)
def test_a_copy_stays_in_the_backend_of_its_dead_letter(queues: DeadLetterQueues, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        queues.check({"nightly": "reports"}, "default")


def test_queues_in_other_backends_can_have_their_own() -> None:
    routes = {"nightly": "reports", "failed_reports": "reports"}
    DeadLetterQueues(default="failed", by_queue={"nightly": "failed_reports", "failed_reports": ""}).check(
        routes, "default"
    )
    DeadLetterQueues().check(routes, "default")


def test_an_application_with_queues_in_two_backends_is_refused() -> None:
    settings = Settings(dead_letter_to="failed")
    with pytest.raises(ConfigError, match="in dead-letter-queues, set nightly to a queue in 'reports'"):
        Holdfast("memory://", backends={"reports": "memory://"}, routes={"nightly": "reports"}, settings=settings)


def test_a_job_cannot_name_a_queue_in_another_backend() -> None:
    with Holdfast(
        "memory://",
        backends={"reports": "memory://"},
        routes={"nightly": "reports"},
        settings=Settings(),
        signing_key=KEY,
    ) as hf:
        with pytest.raises(DefinitionError, match="must be a queue in the same backend: queue 'default' is in"):
            hf.define("job").dead_letter_to("nightly").dispatch()
        assert hf.backend().counts() == {}


def test_a_job_names_a_valid_queue() -> None:
    with pytest.raises(DefinitionError, match="'Failed' is not a valid queue name"):
        Holdfast("memory://", settings=Settings()).define("job").dead_letter_to("Failed")


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    settings = Settings(dead_letter_to="failed_jobs", dead_letter_queues={"noise": ""})
    with Holdfast("memory://", settings=settings, signing_key=KEY) as hf:
        yield hf


def test_the_application_stores_a_dead_letter_of_its_own(hf: Holdfast) -> None:
    id = hf.dead_letters.store({"row": 0}, "load", "the file has no such row", 3, queue="imports")
    history = hf.backend().get(id)
    assert history is not None
    assert (history.job.job, history.job.queue) == (DEAD_LETTER_KEY, "failed_jobs")
    letter = msgspec.json.decode(history.job.payload, type=dict[str, DeadLetter])["letter"]
    assert letter == DeadLetter(
        job="load",
        queue="imports",
        payload={"row": 0},
        reason="the file has no such row",
        attempts=3,
        dead_at=letter.dead_at,
    )
    assert abs((letter.dead_at - history.job.accepted_at).total_seconds()) < 60


def test_two_dead_letters_of_the_application_are_two_jobs(hf: Holdfast) -> None:
    assert len({hf.dead_letters.store(None, "load", "no reason") for _ in range(2)}) == 2
    assert hf.backend().counts("failed_jobs") == {"failed_jobs": {JobState.PENDING: 2}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"handler": "no key!"}, r"'no key!' is not a valid handler key"),
        ({"handler": len}, r"a handler key must be a string"),
        ({"reason": ""}, r"reason must be non-empty text, like .*, not ''"),
        ({"reason": ValueError("no")}, r"reason must be non-empty text, like .*, not ValueError\('no'\)"),
        ({"attempts": -1}, r"attempts must be an integer, 0 or more, not -1"),
        ({"attempts": True}, r"attempts must be an integer, 0 or more, not True"),
        ({"attempts": "3"}, r"attempts must be an integer, 0 or more, not '3'"),
        ({"queue": "no queue!"}, r"'no queue!' is not a valid queue name"),
        ({"queue": ""}, r"'' is not a valid queue name"),
        ({"payload": float("inf")}, r"the payload contains inf"),
    ],
)
def test_what_no_dead_job_can_have_is_refused(hf: Holdfast, changes: dict[str, Any], problem: str) -> None:
    letter: dict[str, Any] = {"payload": None, "handler": "load", "reason": "no such row", "attempts": 3}
    with pytest.raises(DefinitionError, match=problem):
        hf.dead_letters.store(**{**letter, **changes})
    assert hf.backend().counts() == {}


def test_without_a_queue_nothing_is_stored(hf: Holdfast) -> None:
    with pytest.raises(
        ConfigError, match=r"no queue is configured for the dead letters of queue 'noise'.*config set dead-letter-to"
    ):
        hf.dead_letters.store(None, "load", "no reason", queue="noise")
    with pytest.raises(PayloadRejected):
        hf.dead_letters.store(float("nan"), "load", "no reason")
    assert hf.backend().counts() == {}
