"""`health`: asked at the store and at a worker's probes, for people, programs and orchestrators."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.state.workers import WorkerRegistry
from holdfast.worker.probes import Check, Checks, ProbeServer

from .registry import lose, report
from .terminal import Terminal


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """One due job, and a worker of its queue."""
    terminal("enqueue", '{"id": "job1", "job": "add"}')
    with Holdfast(directory=terminal.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("a" * 32))
    return terminal


def checks(terminal: Terminal, *words: str, code: int) -> dict[str, tuple[bool, str]]:
    answer = terminal("health", "--json", *words)
    assert (answer.code, answer.err) == (code, "")
    document: dict[str, Any] = answer.json
    assert document["schema"] == "holdfast.health/1"
    assert document["ok"] is (code == 0)
    return {check["name"]: (check["ok"], check["message"]) for check in document["checks"]}


# At the store


def test_each_question_asks_what_the_one_before_it_asks(shop: Terminal) -> None:
    assert list(checks(shop, "--live", code=0)) == ["store"]
    assert list(checks(shop, code=0)) == list(checks(shop, "--ready", code=0)) == ["store", "workers"]
    assert list(checks(shop, "--full", code=0)) == ["store", "workers", "lost", "waiting"]


def test_people_read_one_line_for_each_check(shop: Terminal) -> None:
    answer = shop("health", "--full")
    assert answer.code == 0
    assert [line[:12].rstrip() for line in answer.out.splitlines()] == [
        "✓ store",
        "✓ workers",
        "✓ lost",
        "✓ waiting",
        "healthy",
    ]


def test_a_job_that_has_waited_too_long_is_unhealthy(shop: Terminal) -> None:
    is_past = "--max-wait", "0"
    assert checks(shop, *is_past, "--full", code=1)["waiting"][1].startswith("default: a job has waited ")
    assert checks(shop, *is_past, code=0)
    assert checks(shop, "--full", code=0)["waiting"] == (True, "no due job has waited longer than 60 s")
    answer = shop("health", *is_past, "--full")
    assert answer.code == 1
    assert answer.out.endswith("unhealthy: 1 of 4 checks failed\n")


def test_a_paused_queue_may_wait_and_a_delayed_job_does_not(shop: Terminal) -> None:
    with Holdfast(directory=shop.project) as hf:
        hf.backend().pause("default", "until noon")
    assert checks(shop, "--full", "--max-wait", "0", code=0)
    shop("enqueue", "--queue", "later", "--delay", "1h", '{"job": "x"}')
    assert checks(shop, "--full", "--max-wait", "0", code=0)


def test_a_queue_without_a_worker_is_not_ready(shop: Terminal) -> None:
    shop("enqueue", "--queue", "mail", '{"job": "x"}')
    assert checks(shop, code=1)["workers"] == (False, "1 live; no worker for mail")
    assert checks(shop, "--live", code=0)


def test_a_lost_worker_is_unhealthy(shop: Terminal) -> None:
    with Holdfast(directory=shop.project) as hf:
        lose(WorkerRegistry(hf.backend().state), "b" * 32)
    assert checks(shop, code=0)
    assert checks(shop, "--full", code=1)["lost"] == (False, "lost: bbbbbbbb")


def test_an_engine_that_cannot_be_reached_is_unhealthy(terminal: Terminal) -> None:
    found = checks(terminal, "--live", "--url", "redis://127.0.0.1:1/0", code=1)
    assert list(found) == ["store"]
    assert "cannot be used now" in found["store"][1]


def test_asking_makes_no_schema(terminal: Terminal) -> None:
    path = terminal.write("empty.db", b"")
    for question in ("--live", "--ready", "--full"):
        seen = checks(terminal, question, "--url", f"sqlite:///{path}", code=0)
        assert (list(seen), "no schema yet" in seen["store"][1]) == (["store"], True)
    assert path.read_bytes() == b""


def test_a_file_of_another_program_is_one_line(terminal: Terminal) -> None:
    path = terminal.project / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    before = path.read_bytes()
    answer = terminal("health", "--url", f"sqlite:///{path}")
    assert (answer.code, answer.out.count("store")) == (1, 1)
    assert "this file belongs to another program: choose another file" in answer.out
    assert path.read_bytes() == before


def test_a_setting_that_is_wrong_is_no_answer(terminal: Terminal) -> None:
    terminal.config.write_text("lease = 0\n")
    assert terminal("health").code == 2


# At a worker


class Worker:
    """The probes of a worker that is as well as a test says."""

    def __init__(self) -> None:
        self.loop: str | None = None
        self.ready: list[Check] = [("engine", None), ("executors", None)]
        self.server = ProbeServer("127.0.0.1", 0, checks=Checks(live=lambda: self.loop, ready=lambda: self.ready))
        self.url = "http://{}:{}".format(*self.server.address)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.server.close()


def test_a_worker_says_how_it_is(terminal: Terminal, worker: Worker) -> None:
    assert checks(terminal, "--live", "--url", worker.url, code=0) == {"loop": (True, "running")}
    assert checks(terminal, "--url", worker.url, code=0) == {
        "loop": (True, "running"),
        "engine": (True, "ok"),
        "executors": (True, "ok"),
    }


def test_a_worker_that_lacks_its_engine_is_live_and_not_ready(terminal: Terminal, worker: Worker) -> None:
    worker.ready = [("engine", "has not answered for 5 s"), ("executors", None)]
    assert checks(terminal, "--live", "--url", worker.url, code=0)
    assert checks(terminal, "--ready", "--url", worker.url, code=1)["engine"] == (False, "has not answered for 5 s")


def test_a_worker_that_stands_still_is_not_live(terminal: Terminal, worker: Worker) -> None:
    worker.loop = "the loop has not turned for a while"
    assert (
        checks(terminal, "--live", "--url", worker.url, code=1)["loop"][1]
        == "loop: the loop has not turned for a while"
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "http://[half", "http://"])
def test_a_worker_that_does_not_answer_is_not_live(terminal: Terminal, url: str) -> None:
    answer = terminal("health", "--live", "--url", url)
    assert answer.code in (1, 2)
    assert "Traceback" not in answer.err


def test_a_password_is_not_repeated(terminal: Terminal) -> None:
    answer = terminal("health", "--json", "--url", "http://ada:secret@127.0.0.1:1")
    assert (answer.code, answer.json["location"]) == (1, "http://ada:…@127.0.0.1:1")
    assert "secret" not in answer.out + answer.err


def test_no_proxy_stands_between(terminal: Terminal, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert checks(terminal, "--live", "--url", worker.url, code=0)


def test_a_real_worker_answers(terminal: Terminal) -> None:
    process = terminal.start("worker", "start", "--probe-port", "0", "--quiet")
    assert process.stderr is not None
    said = ""
    while "probes at " not in said:
        said = process.stderr.readline()
        assert said
    url = said.split()[-1]
    assert terminal("health", "--live", "--url", url).code == 0
    process.terminate()
    assert process.wait(30) == 0
