"""The settings `default-queue` and `queues`: where jobs that name no queue go, and which names are accepted."""

import pytest

from .terminal import Terminal

SHOP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.job
def add(a: int = 1) -> int:
    return a

@hf.job(queue="reports")
def report() -> None: ...

@hf.job(queue="mial")
def send() -> None: ...
"""
DECLARED = 'queues = ["default", "mail", "reports"]\n'
NO_SUCH_QUEUE = 3  # of `queue show`
MEANT = "queue 'mial' is not declared; did you mean 'mail'?"


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal.write("shop.py", SHOP)
    return terminal


def queues(terminal: Terminal) -> set[str]:
    return {job["queue"] for job in terminal.jobs()}


def test_a_job_that_names_no_queue_is_on_the_default_queue(shop: Terminal) -> None:
    shop.config.write_text('default-queue = "mail"\n')
    assert "queued on mail" in shop("enqueue", '{"job": "add"}').out
    assert shop("enqueue", '{"job": "add"}', "--dry-run", "--json").json["queue"] == "mail"
    assert shop("enqueue", "--app", "shop:hf", "--job", "add", "--json").json["queue"] == "mail"
    assert shop("enqueue", "--job", "add", "--queue", "default", "--json").json["queue"] == "default"
    assert shop("enqueue", "--app", "shop:hf", "--job", "report", "--json").json["queue"] == "reports"


def test_a_worker_without_a_queue_processes_the_default_queue(shop: Terminal) -> None:
    shop.config.write_text('default-queue = "mail"\n')
    shop("enqueue", '{"job": "add"}')
    shop("enqueue", '{"job": "add"}')
    answer = shop("worker", "start", "shop:hf", "--burst", "--max-jobs", "1")
    assert answer.err.splitlines()[1] == "queues mail · handlers add, report, send · 1 process"
    assert shop("queue", "work", "--app", "shop:hf", "--burst").err.splitlines()[1].startswith("queues mail ·")
    assert {job["state"] for job in shop.jobs()} == {"completed"}


def test_the_start_of_a_worker_is_suggested_without_the_default_queue(terminal: Terminal) -> None:
    terminal.config.write_text('default-queue = "mail"\n')
    terminal("enqueue", '{"job": "add"}')
    terminal("enqueue", '{"job": "add", "queue": "default"}')
    advice = terminal("doctor").out
    assert "start one:  holdfast worker start APP\n" in advice
    assert "start one:  holdfast worker start APP --queue default\n" in advice


REFUSED = {
    "enqueue": ("enqueue", "--queue", "mial", "--job", "add"),
    "enqueue as JSON": ("enqueue", '{"job": "add", "queue": "mial"}'),
    "enqueue a function": ("enqueue", "--app", "shop:hf", "--job", "send"),
    "enqueue --dry-run": ("enqueue", "--queue", "mial", "--job", "add", "--dry-run"),
    "worker start": ("worker", "start", "--queue", "mail:3,mial", "--burst"),
    "queue work": ("queue", "work", "mial", "--burst"),
    "generate": ("generate", "compose", "--queue", "mial"),
    "queue pause": ("queue", "pause", "mial"),
    "queue resume": ("queue", "resume", "mial"),
    "queue show": ("queue", "show", "mial"),
    "queue reap": ("queue", "reap", "mial"),
    "queue purge": ("queue", "purge", "mial", "--yes"),
    "list": ("list", "--queue", "mial"),
    "status": ("status", "--queue", "mial"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_a_queue_that_is_not_declared_is_refused_with_a_suggestion(shop: Terminal, words: tuple[str, ...]) -> None:
    shop.config.write_text(DECLARED)
    shop("enqueue", "--job", "add")
    answer = shop(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == f"holdfast: {MEANT}"
    assert queues(shop) == {"default"}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_without_declared_queues_any_name_is_accepted(shop: Terminal, words: tuple[str, ...]) -> None:
    answer = shop(*words)
    assert (answer.code in (0, NO_SUCH_QUEUE), MEANT in answer.err) == (True, False)


def test_of_several_jobs_the_one_on_an_undeclared_queue_is_named(terminal: Terminal) -> None:
    terminal.config.write_text(DECLARED)
    answer = terminal("enqueue", "-", stdin='{"job": "a"}\n{"job": "b", "queue": "mial"}\n')
    assert (answer.code, answer.err) == (2, f"holdfast: line 2: {MEANT}\n")
    assert terminal.jobs() == []


def test_the_jobs_of_a_queue_that_is_no_longer_declared_stay_reachable(shop: Terminal) -> None:
    for _ in range(2):
        assert shop("enqueue", "--queue", "mial", "--job", "add", "--quiet").code == 0
    shop.config.write_text(DECLARED)
    assert shop("enqueue", "--queue", "mial", "--job", "add").code == 2
    for words in (
        ("queue", "show", "mial"),
        ("list", "--queue", "mial"),
        ("queue", "pause", "mial"),
        ("queue", "resume", "mial"),
        ("worker", "start", "shop:hf", "--queue", "mial", "--burst", "--max-jobs", "1"),
        ("queue", "work", "mial", "--app", "shop:hf", "--burst"),
        ("queue", "purge", "mial", "--yes"),
    ):
        assert shop(*words).code == 0, words
    assert shop.jobs() == []
    assert shop("queue", "show", "mial").code == 2


def test_private_queues_need_not_be_declared(terminal: Terminal) -> None:
    terminal.config.write_text(DECLARED)
    assert terminal("run", "--", "true").code == 0
    [queue] = queues(terminal)
    assert queue.startswith("run-")
    assert terminal("list", "--queue", queue, "--quiet").out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DECLARED + '[allowlist]\nmial = ["add"]\n', f"allowlist in {{file}}:2: {MEANT}"),
        (
            DECLARED + "[backends]\nother = 'sqlite:///other.db'\n[routes]\nmial = 'other'\n",
            f"routes in {{file}}:4: {MEANT}",
        ),
        (DECLARED + 'default-queue = "mial"\n', f"default-queue in {{file}}:2: {MEANT}"),
        (
            'queues = ["mail", "reports"]\n',
            "queues in {file}:1 does not contain 'default', the default queue: add it, or set default-queue to one of "
            "mail, reports",
        ),
    ],
)
def test_a_check_of_the_settings_finds_queues_that_are_not_declared(
    terminal: Terminal, text: str, problem: str
) -> None:
    terminal.config.write_text(text)
    answer = terminal("config", "check")
    assert (answer.code, answer.out.splitlines()[0]) == (2, f"✗ {problem.format(file=terminal.config)}")


def test_queues_cannot_be_declared_without_those_that_the_settings_name(terminal: Terminal) -> None:
    terminal.config.write_text("[allowlist]\nmail = []\n")
    assert terminal("config", "set", "queues", "default").code == 2
    assert terminal.config.read_text() == "[allowlist]\nmail = []\n"
    assert terminal("config", "set", "queues", "default,mail").code == 0
    assert terminal("config", "set", "default-queue", "mial").code == 2
    assert terminal("config", "set", "default-queue", "mail").code == 0


@pytest.mark.parametrize("value", ["A", "mail,", "a b", "-a", "mail;drop"])
def test_only_names_of_queues_can_be_declared(terminal: Terminal, value: str) -> None:
    refused = terminal("config", "set", "default-queue", value)
    assert (refused.code, "is not a valid queue name; use up to 63" in refused.err) == (2, True)
    listed = terminal("config", "set", "queues", f"default,{value}")
    assert (listed.code == 2) == (value != "mail,")
