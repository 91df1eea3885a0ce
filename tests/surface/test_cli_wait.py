"""`enqueue --wait`: it stays until the job has ended, shows how far it is, and exits as the job did."""

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.queues.contract import Engine
from holdfast.state.workers import WorkerRegistry
from holdfast.values import CancelJob, DeadReason, JobLease, Nack, Outcome, Progress

from .registry import attempt, claim, report
from .terminal import Terminal, ended

JOB = '{"id": "job1", "job": "add"}'


@pytest.fixture
def engine(terminal: Terminal) -> Iterator[Engine]:
    """With a worker that is known: without one, there is a remark."""
    with Holdfast(directory=terminal.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("worker"))
        yield hf.backend()


def progress(engine: Engine, lease: JobLease, done: float, message: str) -> None:
    assert engine.report_progress([(lease, Progress(done=done, total=100, message=message))]) == [True]


def test_the_result_is_all_of_stdout(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", "--wait", JOB)
    assert engine.ack(claim(engine), attempt(result={"sum": 42}))
    answer = ended(process)
    assert (answer.code, answer.out) == (0, '{"sum": 42}\n')
    assert answer.err.splitlines() == [
        "✓ job1 queued on default",
        f"  stored in {terminal.database}",
        "✓ job1 completed in 0 ms",
    ]


def test_a_job_that_returns_nothing_prints_nothing(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", JOB, "--wait", "1m")
    assert engine.ack(claim(engine), attempt())
    assert ended(process)[:2] == (0, "")


def test_a_job_that_had_ended_before_is_not_waited_for(terminal: Terminal, engine: Engine) -> None:
    terminal("enqueue", JOB)
    engine.ack(claim(engine), attempt(result=42))
    assert terminal("enqueue", JOB, "--wait")[:2] == (0, "42\n")


def test_a_retry_is_waited_for(terminal: Terminal, engine: Engine) -> None:
    terminal("enqueue", JOB)
    assert engine.settle([Nack(lease=claim(engine), record=attempt(Outcome.FAILED, error="disk gone"))]) == [True]
    screen = terminal.on_screen("enqueue", "--wait", JOB, stdout=subprocess.PIPE)
    screen.wait_for("failed…")
    assert engine.ack(claim(engine), attempt(result=1))
    assert screen.ended() == 0
    assert screen.process.stdout is not None
    assert screen.process.stdout.read() == "1\n"


def test_a_dead_job_ends_with_its_error_and_a_code_of_its_own(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", "--wait", JOB)
    assert engine.abandon(claim(engine), DeadReason.FAILED, attempt(Outcome.FAILED, error="disk gone"))
    answer = ended(process)
    assert (answer.code, answer.out) == (7, "")
    assert "✗ job1 is dead (failed): ValueError: disk gone\n" in answer.err
    assert "holdfast show job1" in answer.err


def test_a_cancelled_job_ends_with_its_reason(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", "--wait", JOB)
    assert engine.settle([CancelJob(lease=claim(engine), reason="ordered twice")]) == [True]
    answer = ended(process)
    assert (answer.code, answer.out) == (7, "")
    assert "✗ job1 was cancelled: ordered twice\n" in answer.err


@pytest.mark.parametrize("state", ["pending", "processing"])
def test_when_the_time_is_up_the_job_stays_queued(terminal: Terminal, engine: Engine, state: str) -> None:
    terminal("enqueue", JOB)
    if state == "processing":
        claim(engine)
    answer = terminal("enqueue", "--wait", "10ms", JOB)
    assert (answer.code, answer.out) == (6, "")
    assert f"✗ timed out after 10 ms: job1 is still {state}\n" in answer.err
    assert terminal.job("job1")["state"] == state


def test_as_json_it_is_the_document_of_the_job_however_it_ended(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", "--json", "--wait", JOB)
    assert engine.ack(claim(engine), attempt(result=[1, 2]))
    answer = ended(process)
    assert (answer.code, answer.json["state"]) == (0, "completed")
    assert answer.json["history"][-1]["result"] == [1, 2]
    answer = terminal("enqueue", '{"id": "job2", "job": "x"}', "--wait=1ms", "--json")
    assert (answer.code, answer.json["id"], answer.json["state"]) == (6, "job2", "pending")


def test_a_record_that_is_not_kept_says_nothing_of_how_it_ended(terminal: Terminal, engine: Engine) -> None:
    terminal("enqueue", JOB)
    assert engine.abandon(claim(engine), DeadReason.NO_RETRY)
    assert engine.discard("job1")
    answer = terminal("enqueue", JOB, "--wait")
    assert (answer.code, answer.out) == (1, "")
    assert "its record has been deleted" in answer.err


def test_an_interrupt_leaves_the_job_queued(terminal: Terminal, engine: Engine) -> None:
    screen = terminal.on_screen("enqueue", "--wait", JOB)
    screen.wait_for("pending…")
    screen.process.send_signal(signal.SIGINT)
    assert screen.ended() == 130
    assert "no longer waiting; job1 is queued, see  holdfast show job1" in screen.rows
    assert terminal.job("job1")["state"] == "pending"


def test_without_a_worker_it_says_how_to_start_one(terminal: Terminal) -> None:
    answer = terminal("enqueue", "--wait", "1ms", JOB)
    assert "no worker is running; start one:  holdfast worker start APP" in answer.err
    assert "no worker" not in terminal("enqueue", JOB).err


# A span or a job


@pytest.mark.parametrize(
    "words", [["--wait", "1ms", JOB], [JOB, "--wait", "1ms"], ["--wait=1ms", JOB], ["--json", "--wait", "1ms", JOB]]
)
def test_a_span_behind_it_is_its_span(terminal: Terminal, engine: Engine, words: list[str]) -> None:
    assert terminal("enqueue", *words).code == 6
    assert terminal.jobs()[0]["id"] == "job1"


def test_a_word_of_the_command_is_the_commands(terminal: Terminal, engine: Engine) -> None:
    terminal("config", "set", "allowed-commands", "echo")
    assert terminal("enqueue", "--wait", "1ms", "--", "echo", "--wait", "nobody").code == 6
    assert terminal.jobs()[0]["payload"] == {"argv": ["echo", "--wait", "nobody"]}


def test_what_is_no_span_is_refused_and_nothing_is_kept(terminal: Terminal) -> None:
    assert terminal("enqueue", JOB, "--wait=soon").code == 2
    assert terminal.jobs() == []


# On a terminal


def test_the_bar_follows_the_job_and_leaves_no_trace(terminal: Terminal, engine: Engine) -> None:
    screen = terminal.on_screen("enqueue", "--wait", JOB)
    screen.wait_for("pending…")
    lease = claim(engine)
    screen.wait_for("running…")
    progress(engine, lease, 30, "resizing")
    screen.wait_for(f"{'█' * 7}{'░' * 17} 30/100 (30 %) resizing")
    progress(engine, lease, 75, "packing")
    screen.wait_for("75/100 (75 %) packing")
    assert engine.ack(lease, attempt(result=42))
    assert screen.ended() == 0
    assert screen.rows == [
        "✓ job1 queued on default",
        f"  stored in {terminal.database}",
        "42",
        "✓ job1 completed in 0 ms",
        "",
    ]


def test_the_bar_never_wraps(terminal: Terminal, engine: Engine) -> None:
    screen = terminal.on_screen("enqueue", "--wait", JOB, columns=40)
    lease = claim(engine)
    progress(engine, lease, 30, "x" * 200)
    screen.wait_for(f"{'█' * 7}{'░' * 17} 30/100 (30 %)…")
    engine.ack(lease, attempt())
    assert screen.ended() == 0
    assert "x" not in screen.rows[-2]


def test_the_result_can_be_piped_while_the_bar_is_on_the_terminal(terminal: Terminal, engine: Engine) -> None:
    screen = terminal.on_screen("enqueue", "--wait", JOB, stdout=subprocess.PIPE)
    lease = claim(engine)
    screen.wait_for("running…")
    engine.ack(lease, attempt(result=42))
    assert screen.ended() == 0
    assert screen.process.stdout is not None
    assert screen.process.stdout.read() == "42\n"


def test_elsewhere_nothing_moves(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", "--wait", JOB)
    lease = claim(engine)
    progress(engine, lease, 30, "resizing")
    assert terminal("enqueue", "--wait", "10ms", JOB).err.count("\r") == 0
    engine.ack(lease, attempt())
    assert "\r" not in ended(process).err


# Several


def lines(*job_ids: str) -> str:
    return "".join(f'{{"id": "{job_id}", "job": "x", "max_retries": 0}}\n' for job_id in job_ids)


def test_several_are_counted_and_the_failed_ones_named(terminal: Terminal, engine: Engine) -> None:
    process = terminal.start("enqueue", "-", "--wait")
    assert process.stdin is not None
    process.stdin.write(lines("a", "b", "c"))
    process.stdin.close()
    process.stdin = None
    engine.ack(claim(engine), attempt())
    engine.abandon(claim(engine), DeadReason.FAILED, attempt(Outcome.FAILED, error="disk gone"))
    engine.ack(claim(engine), attempt())
    answer = ended(process)
    assert (answer.code, answer.out) == (7, "2 completed · 1 dead\n")
    assert "✗ b is dead (failed): ValueError: disk gone\n" in answer.err
    assert "✓ 3 jobs queued\n" in answer.err


def test_several_that_complete_end_well(terminal: Terminal, engine: Engine) -> None:
    terminal("enqueue", "-", stdin=lines("a", "b"))
    for _ in range(2):
        engine.ack(claim(engine), attempt(result=1))
    answer = terminal("enqueue", "-", "--wait", stdin=lines("a", "b", "a"))
    assert (answer.code, answer.out) == (0, "2 completed\n")
    documents = terminal("enqueue", "-", "--wait", "--json", stdin=lines("a", "b")).json
    assert [(document["id"], document["history"][0]["result"]) for document in documents] == [("a", 1), ("b", 1)]


def test_several_of_which_one_does_not_end(terminal: Terminal, engine: Engine) -> None:
    terminal("enqueue", "-", stdin=lines("a", "b"))
    engine.ack(claim(engine), attempt())
    answer = terminal("enqueue", "-", "--wait", "10ms", stdin=lines("a", "b"))
    assert (answer.code, sorted(answer.out.strip().split(" · "))) == (6, ["1 completed", "1 pending"])
    assert "unfinished jobs remain queued" in answer.err


def test_more_than_one_page_of_jobs_is_waited_for(terminal: Terminal, engine: Engine) -> None:
    ids = [f"job{number}" for number in range(1500)]
    terminal("enqueue", "-", stdin=lines(*ids))
    answer = terminal("enqueue", "-", "--wait", "1ms", stdin=lines(*ids))
    assert (answer.code, answer.out) == (6, "1,500 pending\n")


def test_a_bar_counts_the_jobs_that_have_ended(terminal: Terminal, engine: Engine) -> None:
    terminal.write("jobs.jsonl", lines("a", "b"))
    screen = terminal.on_screen("enqueue", "@jobs.jsonl", "--wait")
    engine.ack(claim(engine), attempt())
    screen.wait_for("1/2 (50 %) jobs finished")
    engine.ack(claim(engine), attempt())
    assert screen.ended() == 0
    assert screen.rows[-2:] == ["2 completed", ""]


# show


def test_progress_is_shown_with_the_job(terminal: Terminal, engine: Engine) -> None:
    terminal("enqueue", JOB)
    assert terminal.job("job1")["progress"] is None
    lease = claim(engine)
    engine.report_progress([(lease, Progress(done=30, total=100, message="resizing\x1b[2J"))])
    [line] = [line for line in terminal("show", "job1").out.splitlines() if line.startswith("progress")]
    assert line.startswith("progress     30/100 (30 %) resizing\ufffd[2J, ")
    assert line.endswith(" ago")
    document = terminal.job("job1")["progress"]
    assert {name: document[name] for name in ("done", "total", "message")} == {
        "done": 30.0,
        "total": 100.0,
        "message": "resizing\x1b[2J",
    }
    assert document["at"].endswith("Z")
    engine.report_progress([(lease, Progress(done=7))])
    assert set(terminal.job("job1")["progress"]) == {"done", "total", "message", "at"}
    assert json.loads(terminal("list", "--json").out)[0]["progress"]["done"] == 7
