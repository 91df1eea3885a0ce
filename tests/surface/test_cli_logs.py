"""What a running job prints: `logs`, `logs -f`, `enqueue --follow` and `show`."""

import json
import re
from collections.abc import Iterator
from subprocess import Popen
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import MICROSECONDS
from holdfast.execution.output import Output
from holdfast.queues.contract import LIVE_OUTPUT_BYTES, Engine
from holdfast.state.workers import WorkerRegistry
from holdfast.values import AttemptRecord, ErrorInfo, JobLease, Nack, Outcome

from .registry import claim, report, until
from .terminal import Terminal, ended

JOB = '{"id": "job1", "job": "add"}'


@pytest.fixture
def engine(terminal: Terminal) -> Iterator[Engine]:
    with Holdfast(directory=terminal.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("worker"))
        yield hf.backend()


@pytest.fixture
def lease(terminal: Terminal, engine: Engine) -> JobLease:
    terminal("enqueue", JOB)
    return claim(engine)


class Run:
    """An attempt that prints, and its worker who tells the engine."""

    def __init__(self, engine: Engine, lease: JobLease) -> None:
        self._engine = engine
        self._lease = lease
        self._output = Output()

    def prints(self, text: str, *, tells: bool = True) -> None:
        self._output.write(text)
        if tells:
            assert self._engine.report_output([(self._lease, self._output.latest(LIVE_OUTPUT_BYTES))]) == [True]

    def ends(self, outcome: Outcome = Outcome.SUCCEEDED, *, error: str = "") -> str:
        """End it, and say what is kept of its output."""
        now_us = self._engine.clock.now_us()
        record = AttemptRecord(
            outcome=outcome,
            started_us=now_us - 2 * MICROSECONDS,
            ended_us=now_us,
            error=ErrorInfo(type="OSError", message=error) if error else None,
            output=self._output.text(),
        )
        if outcome is Outcome.SUCCEEDED:
            assert self._engine.ack(self._lease, record)
        else:
            assert self._engine.settle([Nack(lease=self._lease, record=record)]) == [True]
        return record.output


@pytest.fixture
def run(engine: Engine, lease: JobLease) -> Run:
    return Run(engine, lease)


def line_of(process: "Popen[str]") -> str:
    """The next line it prints, which it has to do before it ends."""
    assert process.stdout is not None
    return process.stdout.readline()


def document_of(process: "Popen[str]") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(line_of(process))
    return document


# As it stands now.


def test_what_a_running_job_has_printed_is_shown(terminal: Terminal, run: Run) -> None:
    assert "job1 is running and has no output yet" in terminal("logs", "job1").err
    run.prints("one\ntwo")
    answer = terminal("logs", "job1")
    assert (answer.code, answer.out) == (0, "one\ntwo\n")
    assert answer.err == "#1 is running\n"
    assert terminal("logs", "job1", "--attempt", "1").out == "one\ntwo\n"
    assert terminal("logs", "job1", "--attempt", "2").code == 3
    [document] = terminal("logs", "job1", "--json").json
    assert (document["attempt"], document["outcome"], document["ended_at"]) == (1, None, None)
    assert (document["start"], document["output"]) == (0, "one\ntwo")
    assert terminal("logs", "job1", "--jsonl").json == document


def test_only_the_attempt_asked_for_is_shown(terminal: Terminal, engine: Engine, run: Run) -> None:
    run.prints("first\n")
    run.ends(Outcome.FAILED)
    Run(engine, claim(engine)).prints("second\n")
    assert terminal("logs", "job1").out == "first\nsecond\n"
    assert terminal("logs", "job1", "--attempt", "1").out == "first\n"
    assert terminal("logs", "job1", "--attempt", "2").out == "second\n"
    assert [one["output"] for one in terminal("logs", "job1", "--attempt", "2", "--json").json] == ["second\n"]


def test_of_much_output_the_end_is_shown_behind_a_mark(terminal: Terminal, run: Run) -> None:
    run.prints("x" * 20_000 + "\nthe end\n")
    first, *_, last = terminal("logs", "job1").out.splitlines()
    assert (first, last) == ("… 3,625 bytes not shown …", "the end")
    [document] = terminal("logs", "job1", "--json").json
    assert (document["start"], len(document["output"])) == (3625, LIVE_OUTPUT_BYTES)


def test_show_tells_what_a_running_job_has_printed(terminal: Terminal, run: Run) -> None:
    assert terminal("show", "job1", "--json").json["live_output"] is None
    run.prints("one\n\x1b[2J\n")
    assert terminal("show", "job1").out.endswith("\n\n#1 is running\n  output:\n  | one\n  | \ufffd[2J\n")
    assert terminal("show", "job1", "--json").json["live_output"] == {"text": "one\n\x1b[2J\n", "start": 0}
    run.ends()
    assert "is running" not in terminal("show", "job1").out
    assert terminal("show", "job1", "--json").json["live_output"] is None


# As it comes.


def test_what_a_job_prints_is_followed_and_every_line_comes_once(terminal: Terminal, run: Run) -> None:
    follower = terminal.start("logs", "job1", "-f")
    run.prints("one\n")
    assert line_of(follower) == "one\n"
    run.prints("tw")
    run.prints("o\nthree\n")
    assert (line_of(follower), line_of(follower)) == ("two\n", "three\n")
    run.prints("four\nfive", tells=False)
    run.ends()
    answer = ended(follower)
    assert (answer.code, answer.out) == (0, "four\nfive\n")
    running, over = answer.err.splitlines()
    assert running == "#1 is running"
    assert over.startswith("#1 succeeded at ")


def test_each_attempt_is_followed_from_its_beginning(terminal: Terminal, engine: Engine, run: Run) -> None:
    follower = terminal.start("logs", "job1", "-f")
    run.prints("same\n")
    assert line_of(follower) == "same\n"
    run.ends(Outcome.FAILED)
    again = Run(engine, claim(engine))
    again.prints("same\n")
    assert line_of(follower) == "same\n"
    again.ends()
    answer = ended(follower)
    assert answer.out == ""
    said = [line.partition(" at ")[0] for line in answer.err.splitlines()]
    assert said == ["#1 is running", "#1 failed", "#2 is running", "#2 succeeded"]


def test_an_attempt_that_was_too_short_to_be_seen_is_followed_in_the_same_order(
    terminal: Terminal, engine: Engine, run: Run
) -> None:
    run.prints("quick\n", tells=False)
    run.ends(Outcome.FAILED, error="disk gone")
    last = Run(engine, claim(engine))
    last.prints("again\n", tells=False)
    last.ends()
    screen = terminal.on_screen("logs", "job1", "-f")
    assert screen.ended() == 0
    rows = [row.partition(" at ")[0] for row in screen.rows if row]
    assert rows[1:] == ["#1 began", "quick", "#1 failed", "#2 began", "again", "#2 succeeded"]


def test_how_an_attempt_failed_is_said_when_it_ended_and_what_became_of_the_job(
    terminal: Terminal, engine: Engine, run: Run
) -> None:
    run.ends(Outcome.FAILED, error="disk gone")
    line = terminal("logs", "job1").err.splitlines()[0]
    assert re.fullmatch(r"#1 failed at .*, took 2 s: OSError: disk gone", line)
    ended_at = terminal("show", "job1", "--json").json["history"][0]["ended_at"]
    with_utc = terminal("logs", "job1", "--utc").err
    assert ended_at[:19].replace("T", " ") in with_utc
    assert f"#1 failed at {ended_at[:19].replace('T', ' ')}" in terminal("show", "job1", "--utc").out
    engine.cancel("job1", "no use")
    answer = terminal("logs", "job1", "-f")
    assert (answer.code, "✗ job1 was cancelled: no use\n" in answer.err) == (0, True)
    assert "has no attempt 7, only 1 attempt\n" in terminal("logs", "job1", "-f", "--attempt", "7").err


def test_what_came_too_fast_is_marked_and_the_end_is_whole(terminal: Terminal, run: Run) -> None:
    follower = terminal.start("logs", "job1", "-f")
    run.prints("begin\n")
    assert line_of(follower) == "begin\n"
    run.prints("x" * 99 * 1000 + "\n")
    assert line_of(follower) == f"… {99_001 - LIVE_OUTPUT_BYTES:,} bytes not shown …\n"
    assert len(line_of(follower)) == LIVE_OUTPUT_BYTES
    run.prints("y" * 50_000 + "\nend\n", tells=False)
    kept = run.ends()
    answer = ended(follower)
    tail = kept.rpartition("cut …\n")[2]
    assert answer.out.rpartition("cut …\n")[2] == tail
    assert int(answer.out.split()[1].replace(",", "")) == 50_005 - len(tail)


def test_a_crash_repeats_nothing_that_was_shown(terminal: Terminal) -> None:
    terminal("config", "set", "lease", "3s")
    terminal("enqueue", JOB)
    with Holdfast(directory=terminal.project) as hf:
        engine = hf.backend()
        run = Run(engine, claim(engine))
        follower = terminal.start("logs", "job1", "-f", "--attempt", "1")
        run.prints("z" * 20_000 + "\nlast words\n")
        assert line_of(follower).endswith(" bytes not shown …\n")
        assert (line_of(follower)[-3:], line_of(follower)) == ("zz\n", "last words\n")
        until(engine.reap_expired)
    answer = ended(follower)
    assert (answer.code, answer.out) == (0, "")
    assert "#1 crashed at " in answer.err


def test_parts_are_documents_and_so_is_the_whole(terminal: Terminal, run: Run) -> None:
    follower = terminal.start("logs", "job1", "-f", "--jsonl")
    run.prints("one\n")
    part = document_of(follower)
    assert (part["attempt"], part["outcome"], part["start"], part["output"]) == (1, None, 0, "one\n")
    run.prints("zwö\n")
    part = document_of(follower)
    assert (part["start"], part["output"]) == (4, "zwö\n")
    run.prints("drei\n")
    assert document_of(follower)["start"] == 9
    run.ends()
    whole = document_of(follower)
    assert (whole["outcome"], whole["start"], whole["output"]) == ("succeeded", 0, "one\nzwö\ndrei\n")
    assert ended(follower).code == 0


def test_the_line_below_makes_room_for_what_comes(terminal: Terminal, run: Run) -> None:
    screen = terminal.on_screen("logs", "job1", "-f")
    screen.wait_for("running…")
    run.prints("half a")
    screen.wait_for("half a")
    run.prints(" line\n")
    screen.wait_for("half a line")
    run.ends()
    assert screen.ended() == 0
    where, running, printed, over, *rest = screen.rows
    assert (where[:3], running, printed, over[:12]) == ("in ", "#1 is running", "half a line", "#1 succeeded")
    assert not any(rest)


def test_a_job_is_followed_from_where_it_is_enqueued(terminal: Terminal, engine: Engine) -> None:
    follower = terminal.start("enqueue", "--follow", JOB)
    run = Run(engine, claim(engine))
    run.prints("one\n")
    assert line_of(follower) == "one\n"
    run.prints("two\n", tells=False)
    run.ends()
    answer = ended(follower)
    assert (answer.code, answer.out) == (0, "two\n")
