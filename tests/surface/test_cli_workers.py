"""`worker list` and `worker stop`: who is there, and an order that reaches them through the jobs' own database."""

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast
from holdfast.cli.worker.views import COLUMNS
from holdfast.state.workers import WorkerRegistry
from holdfast.values import RunningJob, StopOrder, WorkerReport

from .registry import lose, report, until
from .terminal import Terminal, ended

ONE = "5f3a0000aaaa"
TWO = "5f3b0000bbbb"
EVIL = "\x1b[2J\r"
HERE = socket.gethostname()


@pytest.fixture
def registry(terminal: Terminal) -> Iterator[WorkerRegistry]:
    with Holdfast(directory=terminal.project) as hf:
        yield WorkerRegistry(hf.backend().state)


def running(job_id: str) -> RunningJob:
    return RunningJob(id=job_id, job="add", queue="mail", started_at=datetime.now(UTC) - timedelta(minutes=5))


# list


def test_without_workers_it_says_how_to_start_one(terminal: Terminal) -> None:
    answer = terminal("worker", "list")
    assert (answer.code, answer.out, answer.err) == (0, "", "no workers; start one:  holdfast worker start APP\n")
    assert terminal("worker", "list", "--json").json == []


def test_a_worker_is_one_line_of_what_it_says_of_itself(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(
        report(
            ONE,
            queues=("mail:3", "default"),
            running=2,
            slots=8,
            done=12345,
            failed=6,
            memory_bytes=48_400_000,
            started_at=datetime.now(UTC) - timedelta(hours=5),
        )
    )
    answer = terminal("worker", "list")
    assert (answer.code, answer.err) == (0, "")
    heading, line = answer.out.splitlines()
    assert tuple(heading.split()) == COLUMNS
    seen = ["5f3a0000", "live", "web-1", "4121", "mail:3,default", "2/8", "12,345", "6", "46.2", "MiB", "5", "h"]
    assert line.split()[:-3] == seen
    assert line.endswith(" ago")


def test_states_are_told_apart_and_lost_ones_come_last_with_what_that_means(
    terminal: Terminal, registry: WorkerRegistry
) -> None:
    lose(registry, "aaaaaaaa-lost")
    registry.beat(report("bbbbbbbb-draining", draining=True))
    registry.beat(report("cccccccc-live"))
    registry.beat(report("dddddddd-asked"))
    registry.order_stop("dddddddd-asked", StopOrder.DRAIN)
    answer = terminal("worker", "list")
    lines = [line.split("  ")[:2] for line in answer.out.splitlines()[1:]]
    assert lines == [
        ["bbbbbbbb", "draining"],
        ["cccccccc", "live"],
        ["dddddddd", "live (asked to stop)"],
        ["aaaaaaaa", "lost"],
    ]
    assert "its jobs are requeued when their leases expire" in answer.err
    assert [worker["state"] for worker in terminal("worker", "list", "--json").json] == [
        "draining",
        "live",
        "live",
        "lost",
    ]


def test_the_running_jobs_stand_below_their_worker(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, running=3, jobs=(running("job1"), running("job2"))))
    assert "job1" not in terminal("worker", "list").out
    lines = terminal("worker", "list", "--jobs").out.splitlines()[2:]
    assert lines == ["  └ job1 add on mail for 5 m", "  └ job2 add on mail for 5 m", "  └ and 1 more"]


def test_as_json_every_member_is_there(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, running=1, jobs=(running("job1"),)))
    registry.order_stop(ONE, StopOrder.NOW)
    [document] = terminal("worker", "list", "--json").json
    assert set(document) == {*WorkerReport.__struct_fields__, "schema", "state", "heard_at", "order"}
    assert (document["id"], document["state"], document["order"]) == (ONE, "live", "now")
    assert document["jobs"][0]["id"] == "job1"


def test_ids_are_as_long_as_it_takes_to_tell_them_apart(terminal: Terminal, registry: WorkerRegistry) -> None:
    for worker_id in ("0123456789-a", "0123456789-b", "9999999999"):
        registry.beat(report(worker_id))
    shown = [line.split()[0] for line in terminal("worker", "list").out.splitlines()[1:]]
    assert shown == ["0123456789-a", "0123456789-b", "99999999"]


def test_nothing_a_worker_says_reaches_the_terminal_as_a_command(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=EVIL, queues=(EVIL,), running=1, jobs=(running(EVIL),)))
    answer = terminal("worker", "list", "--jobs")
    assert "\x1b" not in answer.out
    assert "\r" not in answer.out


# stop


def test_the_only_worker_needs_no_name(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE, running=1))
    lose(registry, TWO)
    answer = terminal("worker", "stop")
    assert (answer.code, answer.out) == (0, "✓ 5f3a0000 asked to stop; running jobs finish first\n")
    assert registry.order_of(ONE) is StopOrder.DRAIN


def test_without_a_name_all_workers_of_this_host_are_stopped(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE))
    registry.beat(report(TWO, host=HERE, running=1))
    lose(registry, "cccccccc", host=HERE)
    answer = terminal("worker", "stop")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "✓ 5f3a0000 asked to stop; running jobs finish first",
        "✓ 5f3b0000 asked to stop; running jobs finish first",
    ]
    assert (registry.order_of(ONE), registry.order_of(TWO)) == (StopOrder.DRAIN, StopOrder.DRAIN)
    assert registry.order_of("cccccccc") is None


OTHERS = "1 worker on other hosts (web-2) will not be stopped; --all stops all workers"


def test_if_others_run_on_other_hosts_it_asks_and_stops_only_those_here(
    terminal: Terminal, registry: WorkerRegistry
) -> None:
    registry.beat(report(ONE, host=HERE))
    registry.beat(report(TWO, host="web-2"))
    answer = terminal("worker", "stop", typed="n\n")
    assert (answer.code, answer.out, registry.order_of(ONE)) == (1, "", None)
    assert answer.err.startswith(f"{OTHERS}\nStop 1 worker on this host ({HERE}) only? [y/N]: ")
    answer = terminal("worker", "stop", typed="y\n")
    assert (answer.code, answer.out) == (0, "✓ 5f3a0000 asked to stop; running jobs finish first\n")
    assert (registry.order_of(ONE), registry.order_of(TWO)) == (StopOrder.DRAIN, None)


def test_where_nobody_can_answer_it_needs_yes_or_all(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE))
    registry.beat(report(TWO, host="web-2"))
    for words in ((), ("--json",)):
        answer = terminal("worker", "stop", *words)
        assert (answer.code, answer.out) == (2, "")
        assert f"this would stop 1 worker on this host ({HERE}) only; pass --yes, or" in answer.err
    assert terminal("worker", "stop", "--dry-run").out == "would stop 5f3a0000 (live, 0 jobs running)\n"
    assert (registry.order_of(ONE), registry.order_of(TWO)) == (None, None)
    answer = terminal("worker", "stop", "--yes", "--json")
    assert ([each["id"] for each in answer.json], answer.err) == ([ONE], f"{OTHERS}\n")
    assert (registry.order_of(ONE), registry.order_of(TWO)) == (StopOrder.DRAIN, None)
    assert [each["id"] for each in terminal("worker", "stop", "--all", "--json").json] == [ONE, TWO]
    assert registry.order_of(TWO) is StopOrder.DRAIN


def test_workers_on_other_hosts_only_are_listed_and_none_is_stopped(
    terminal: Terminal, registry: WorkerRegistry
) -> None:
    registry.beat(report(ONE, host="web-2"))
    registry.beat(report(TWO, host="web-3", pid=99))
    answer = terminal("worker", "stop", "--yes")
    assert (answer.code, answer.out) == (4, "")
    assert f"no worker is running on this host ({HERE}); name one on another host, or pass --all:" in answer.err
    assert "5f3a0000  live, pid 4121 on web-2" in answer.err
    assert "5f3b0000  live, pid 99 on web-3" in answer.err
    assert registry.order_of(ONE) is None


def test_all_are_stopped_but_the_lost(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE))
    registry.beat(report(TWO, running=2))
    lose(registry, "cccccccc")
    answer = terminal("worker", "stop", "--all", "--now")
    assert answer.out.splitlines() == [
        "✓ 5f3a0000 asked to stop now; running jobs are released",
        "✓ 5f3b0000 asked to stop now; running jobs are released",
    ]
    assert (registry.order_of(ONE), registry.order_of(TWO)) == (
        StopOrder.NOW,
        StopOrder.NOW,
    )
    assert registry.order_of("cccccccc") is None


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE))
    registry.beat(report(TWO))
    assert terminal("worker", "stop", "5f3b").code == 0
    assert (registry.order_of(ONE), registry.order_of(TWO)) == (
        None,
        StopOrder.DRAIN,
    )
    answer = terminal("worker", "stop", "5f3")
    assert (answer.code, answer.out) == (4, "")
    assert "5f3a0000" in answer.err
    assert "5f3b0000" in answer.err
    assert registry.order_of(ONE) is None


def test_a_whole_id_that_begins_another_is_the_one(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report("5f3a"))
    registry.beat(report("5f3a99"))
    assert terminal("worker", "stop", "5f3a").code == 0
    assert (registry.order_of("5f3a"), registry.order_of("5f3a99")) == (
        StopOrder.DRAIN,
        None,
    )


@pytest.mark.parametrize("unknown", ["77", ""])
def test_if_one_is_unknown_none_is_stopped(terminal: Terminal, registry: WorkerRegistry, unknown: str) -> None:
    registry.beat(report(ONE))
    answer = terminal("worker", "stop", ONE, unknown, "--json")
    assert answer.code == 3
    assert answer.error["code"] == "NoSuchWorker"
    assert registry.order_of(ONE) is None


def test_nobody_to_stop(terminal: Terminal, registry: WorkerRegistry) -> None:
    assert terminal("worker", "stop").code == 3
    assert terminal("worker", "stop", "--all").code == 0
    assert terminal("worker", "stop", "--all", "--json").json == []
    lose(registry, ONE)
    answer = terminal("worker", "stop")
    assert (answer.code, "lost workers cannot be stopped" in answer.err) == (3, True)


def test_names_and_all_contradict_each_other(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE))
    assert terminal("worker", "stop", ONE, "--all").code == 2
    assert registry.order_of(ONE) is None


def test_a_lost_worker_has_nothing_to_stop_but_finds_the_order_if_it_comes_back(
    terminal: Terminal, registry: WorkerRegistry
) -> None:
    lose(registry, ONE)
    answer = terminal("worker", "stop", ONE, "--wait")
    assert (answer.code, answer.out) == (0, "")
    assert "is lost, last seen" in answer.err
    assert answer.err.count("its jobs are requeued when their leases expire") == 1
    assert registry.beat(report(ONE)) is StopOrder.DRAIN


def test_an_order_to_leave_now_is_not_softened(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE))
    terminal("worker", "stop", "--now")
    terminal("worker", "stop")
    assert registry.order_of(ONE) is StopOrder.NOW


def test_waiting_ends_when_the_worker_has_left(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE))
    process = terminal.start("worker", "stop", "--wait", ONE)
    until(lambda: registry.order_of(ONE))
    registry.leave(ONE)
    answer = ended(process)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == ["✓ 5f3a0000 asked to stop; running jobs finish first", "✓ 5f3a0000 has stopped"]


def test_waiting_ends_when_the_worker_is_lost(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE))
    process = terminal.start("worker", "stop", "--json", "--wait", "0")
    until(lambda: registry.order_of(ONE))
    lose(registry, ONE, host=HERE)
    answer = ended(process)
    [document] = answer.json
    assert (answer.code, document["id"], document["order"], document["state"]) == (0, ONE, "drain", "lost")


def test_when_the_time_is_up_it_says_what_still_runs(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE, draining=True, running=1, jobs=(running("job1"),)))
    answer = terminal("worker", "stop", "--wait", "10ms")
    assert answer.code == 6
    first, job = answer.err.splitlines()
    assert first.startswith("✗ 5f3a0000 has not stopped yet; ")
    assert first.endswith(" ago it was running 1 job")
    assert job == "  job1 add on mail for 5 m"
    answer = terminal("worker", "stop", "--wait", "10ms", "--json")
    [document] = answer.json
    assert (answer.code, document["id"], document["order"], document["state"]) == (6, ONE, "drain", "draining")


def test_on_a_terminal_waiting_can_be_seen(terminal: Terminal, registry: WorkerRegistry) -> None:
    registry.beat(report(ONE, host=HERE, running=2))
    screen = terminal.on_screen("worker", "stop", "--wait")
    screen.wait_for("waiting for 1 worker to stop…")
    registry.leave(ONE)
    assert screen.ended() == 0
    assert screen.rows[-2:] == ["✓ 5f3a0000 has stopped", ""]
    assert not [row for row in screen.rows if "waiting for" in row]


# With a worker that is one

SHOP = """
from holdfast import Holdfast, JobContext

hf = Holdfast()

@hf.job
def resize(context: JobContext, gate: str) -> int:
    context.progress(30, 100, "resizing")
    with open(gate) as words:
        words.read()
    return 42
"""


def test_a_real_worker_is_listed_shows_progress_and_stops_when_it_is_told(terminal: Terminal) -> None:
    terminal.write("shop.py", SHOP)
    os.mkfifo(terminal.project / "gate")
    process = terminal.start("worker", "start", "shop:hf")
    until(lambda: terminal.database.exists() and terminal("worker", "list", "--json").json)
    [worker] = terminal("worker", "list", "--json").json
    assert (worker["state"], worker["pid"], worker["queues"]) == ("live", process.pid, ["default"])
    screen = terminal.on_screen("enqueue", "--wait", '{"id": "job1", "job": "resize", "payload": {"gate": "gate"}}')
    screen.wait_for("30/100 (30 %) resizing")
    stopping = terminal.start("worker", "stop", worker["id"][:8], "--wait")
    assert stopping.stdout is not None
    assert "asked to stop" in stopping.stdout.readline()
    (terminal.project / "gate").write_text("go")
    assert screen.ended() == 0
    assert "42" in screen.rows
    assert ended(stopping)[:2] == (0, f"✓ {worker['id'][:8]} has stopped\n")
    assert ended(process).code == 0
    assert terminal("worker", "list", "--json").json == []
