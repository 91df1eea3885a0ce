"""`status --watch`, `worker show` and `top`; and what all output has in common: colour, width, signs."""

import json
import os
import signal
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli import wants_color
from holdfast.cli.options import Site
from holdfast.cli.top import Board
from holdfast.deployment import Deployment
from holdfast.state.workers import WorkerRegistry
from holdfast.values import DeadReason, Outcome, RunningJob

from .registry import attempt, claim, lose, report
from .terminal import Screen, Terminal

ESCAPE = "\x1b["


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """A dead job, a waiting one, and two workers of which one is lost."""
    terminal("enqueue", '[{"id": "dead1", "job": "add"}, {"id": "job1", "job": "add", "queue": "mail"}]')
    with Holdfast(directory=terminal.project) as hf:
        engine = hf.backend()
        engine.abandon(claim(engine), DeadReason.FAILED, attempt(Outcome.FAILED, error="no such order"))
        running = RunningJob(id="job7", job="add", queue="mail", started_at=report("x").started_at)
        WorkerRegistry(engine.state).beat(
            report("a" * 32, queues=("mail:3", "default"), jobs=(running,), running=1, done=1234, failed=5)
        )
        lose(WorkerRegistry(engine.state), "b" * 32)
    return terminal


# worker show


def test_a_worker_is_shown_with_what_it_does(shop: Terminal) -> None:
    shown = dict(line.split(None, 1) for line in shop("worker", "show", "aa").out.splitlines()[:11])
    assert shown["id"] == "a" * 32
    assert shown["state"] == "live"
    assert shown["where"] == "pid 4121 on web-1"
    assert shown["queues"] == "mail:3, default"
    assert shown["handlers"] == "add"
    assert shown["slots"] == "1 of 4 busy, in 2 processes"
    assert shown["runs"] == "1,234 done · 5 failed"
    assert "job7 add on mail for " in shop("worker", "show", "aa").out


def test_a_worker_as_json_is_what_its_schema_says(shop: Terminal) -> None:
    document = shop("worker", "show", "a", "--json").json
    assert document["schema"] == "holdfast.worker/1"
    assert (document["id"], document["state"], document["order"]) == ("a" * 32, "live", None)
    listed = shop("worker", "list", "--json").json
    assert {**listed[0], "schema": "holdfast.worker/1"} == document


def test_a_lost_worker_says_what_becomes_of_its_jobs(shop: Terminal) -> None:
    assert "its jobs are requeued when their leases expire" in shop("worker", "show", "b").err


def test_a_worker_nobody_knows_is_not_found(shop: Terminal) -> None:
    assert shop("worker", "show", "c").code == 3


# status


def test_the_status_tells_of_workers(shop: Terminal) -> None:
    assert shop("status").out.splitlines()[-1] == "workers 1 live, 1 lost · 1 of 4 slots busy"
    document = shop("status", "--json").json
    assert document["schema"] == "holdfast.status/1"
    assert document["workers"] == {"live": 1, "draining": 0, "lost": 1, "running": 1, "slots": 4}


def test_in_a_pipe_one_look_follows_another(shop: Terminal) -> None:
    process = shop.start("status", "--watch=10ms", "--json")
    assert process.stdout is not None
    first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    assert first == second
    shop("enqueue", '{"job": "add"}')
    while json.loads(process.stdout.readline())["totals"]["pending"] != 2:
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_on_a_terminal_the_latest_look_takes_the_place_of_the_one_before(shop: Terminal) -> None:
    screen = shop.on_screen("status", "--watch", "10ms")
    screen.wait_for("workers 1 live")
    screen.wait_for(f"{ESCAPE}5F{ESCAPE}J")
    screen.process.send_signal(signal.SIGINT)
    assert screen.ended() == 130


def test_watching_takes_a_span_or_none(terminal: Terminal) -> None:
    answer = terminal("status", "--watch", "mail")
    assert answer.code == 2
    assert "must be a number of seconds" in answer.err


# Colour and width


@pytest.mark.parametrize(
    ("choice", "environment", "expected"),
    [
        ("auto", {}, None),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, None),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "0"}, None),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_who_decides_about_colour(choice: str, environment: dict[str, str], expected: bool | None) -> None:
    assert wants_color(choice, environment) is expected


@pytest.mark.parametrize("words", [["status"], ["doctor"], ["health", "--full"]], ids=" ".join)
def test_a_pipe_gets_no_colour_unless_asked_for(
    shop: Terminal, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    bare = shop(*words).out
    assert ESCAPE not in bare
    assert ESCAPE in shop("--color", "always", *words).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ESCAPE in shop(*words).out
    assert ESCAPE not in shop("--color", "never", *words).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert ESCAPE not in shop(*words).out


def test_a_terminal_gets_colour_unless_it_asks_for_none(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shop.on_screen("status")
    assert screen.ended() == 0
    assert f"{ESCAPE}31m" in screen.text
    monkeypatch.setenv("NO_COLOR", "1")
    screen = shop.on_screen("status")
    assert screen.ended() == 0
    assert ESCAPE not in screen.text


def test_json_is_never_coloured(shop: Terminal) -> None:
    assert ESCAPE not in shop("--color", "always", "status", "--json").out


def test_a_table_is_no_wider_than_its_terminal(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shop.on_screen("--color", "never", "status", columns=40)
    assert screen.ended() == 0
    assert max(len(row) for row in screen.rows[1:]) <= 40
    assert any(row.endswith("…") for row in screen.rows)
    wide = shop("status").out
    assert max(len(line) for line in wide.splitlines()) > 40
    monkeypatch.setenv("COLUMNS", "30")
    place, *table = shop("status").out.splitlines()
    assert place == str(shop.database)
    assert max(len(line) for line in table) <= 30


def test_an_old_terminal_gets_signs_it_has(shop: Terminal) -> None:
    answer = shop.program("health", "--full", PYTHONIOENCODING="ascii")
    assert answer.out.isascii()
    assert answer.out.startswith("* store")


# top


class Live:
    """`top` in a terminal of its own."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.before: list[Any] = termios.tcgetattr(screen.descriptor)

    def press(self, keys: str) -> None:
        os.write(self.screen.descriptor, keys.encode())

    def is_restored(self) -> bool:
        """Whether the terminal is as it was: line by line again, the first screen back, the cursor shown."""
        text = self.screen.text
        return (
            termios.tcgetattr(self.screen.descriptor) == self.before
            and text.rindex(f"{ESCAPE}?1049l") > text.rindex(f"{ESCAPE}?1049h")
            and text.rindex(f"{ESCAPE}?25h") > text.rindex(f"{ESCAPE}?25l")
        )


@pytest.fixture
def live(shop: Terminal) -> Live:
    pytest.importorskip("textual")
    live = Live(shop.on_screen("top", "--every", "200ms", columns=160))
    live.screen.wait_for("no such order")
    return live


def test_the_view_shows_jobs_queues_and_workers_and_leaves_the_terminal_as_it_was(live: Live) -> None:
    for text in ("dead1", "mail", "aaaaaaaa", "lost"):
        live.screen.wait_for(text)
    live.press("?")
    live.screen.wait_for("tab next pane")
    live.press("q")
    assert live.screen.ended() == 0
    assert live.is_restored()


def test_a_dead_letter_is_retried_and_found_by_its_words(live: Live, shop: Terminal) -> None:
    live.press("/")
    live.screen.wait_for("filter by words")
    live.press("dead1")
    live.screen.wait_for("1 match 'dead1'")
    live.press("\r")
    live.screen.wait_for("press esc to show all jobs")
    live.press("r")
    live.screen.wait_for("dead1 requeued")
    assert shop.job("dead1")["state"] == "pending"
    live.press("q")
    assert live.screen.ended() == 0


def test_several_are_discarded_only_when_asked_for_twice(shop: Terminal) -> None:
    pytest.importorskip("textual")
    shop("enqueue", '{"id": "dead2", "job": "add"}')
    with Holdfast(directory=shop.project) as hf:
        engine = hf.backend()
        engine.abandon(claim(engine), DeadReason.FAILED, attempt(Outcome.FAILED, error="no such order"))
    live = Live(shop.on_screen("top", "--every", "200ms", columns=160))
    live.screen.wait_for("dead2")
    live.press("/")
    live.screen.wait_for("filter by words")
    live.press("dead")
    live.screen.wait_for("2 match 'dead'")
    live.press("\r")
    live.screen.wait_for("press esc to show all jobs")
    live.press("x")
    live.press(f"{ESCAPE}B")
    live.press("x")
    live.press("D")
    live.screen.wait_for("permanently discard 2 jobs? press D again")
    assert {shop.job(name)["state"] for name in ("dead1", "dead2")} == {"dead"}
    live.press("D")
    live.screen.wait_for("dead1 discarded")
    live.screen.wait_for("dead2 discarded")
    live.press("q")
    assert live.screen.ended() == 0


def test_what_is_selected_and_not_shown_is_left_alone(live: Live, shop: Terminal) -> None:
    live.press(f"{ESCAPE}B")
    live.press("x")
    live.screen.wait_for("*")
    live.press("/")
    live.screen.wait_for("filter by words")
    live.press("job1")
    live.screen.wait_for("1 match 'job1'")
    live.press("\r")
    live.screen.wait_for("press esc to show all jobs")
    live.press("D")
    live.screen.wait_for("job1 is not a dead letter")
    assert shop.job("dead1")["state"] == "dead"
    live.press("q")
    assert live.screen.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_killed_it_leaves_the_terminal_as_it_was(live: Live, number: signal.Signals) -> None:
    live.screen.process.send_signal(number)
    assert live.screen.ended() == 128 + number
    assert live.is_restored()


def test_ctrl_c_leaves(live: Live) -> None:
    live.press("\x03")
    assert live.screen.ended() == 0
    assert live.is_restored()


def test_without_the_extra_it_says_what_to_install(shop: Terminal, tmp_path: Path) -> None:
    (tmp_path / "textual").mkdir()
    (tmp_path / "textual" / "__init__.py").write_text("raise ModuleNotFoundError(name='textual')\n")
    screen = shop.on_screen("top", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert screen.ended() == 2
    assert "needs the package textual: pip install 'textual>=6,<9'" in " ".join(screen.text.split())


def test_without_a_terminal_it_says_what_there_is(terminal: Terminal) -> None:
    answer = terminal("top")
    assert answer.code == 2
    assert "holdfast status --watch" in answer.err


def test_what_a_key_does_is_told_in_a_sentence(shop: Terminal) -> None:
    deployment = Deployment.configured(directory=shop.project)
    with deployment.open().engine as engine:
        board = Board(Site(engine, deployment.location(), deployment))
        assert board.pause_or_resume("mail") == "mail paused; running jobs continue"
        assert board.pause_or_resume("mail") == "mail resumed"
        assert board.cancel("job1") == "job1 cancelled"
        assert board.cancel("job1") == "job1 has already finished"
        assert board.cancel("nobody") == "nobody no longer exists"
        assert board.discard("job1") == "job1 is not a dead letter; nothing was discarded"
        assert board.retry("nobody") == "nobody no longer exists"
        assert board.discard("dead1") == "dead1 discarded"
        shop("run", "--id", "over", "--", "false")
        assert board.retry("over") == "over belongs to a `holdfast run` that has exited; no worker processes its queue"
        assert shop.job("over")["state"] == "dead"
        assert [job.id for job in board.snapshot("cancelled add").jobs] == ["job1"]
