"""Jobs that depend on others, on the command line: enqueueing them, the output of reading commands, and `graph`."""

import json
import sqlite3
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.values import DeadReason, JobState

from .registry import claim
from .terminal import Terminal

STEPS = (("clean", "extract"), ("train", "extract"), ("report", "clean,train"))


@pytest.fixture
def hf(terminal: Terminal) -> Iterator[Holdfast]:
    with Holdfast(directory=terminal.project) as hf:
        yield hf


@pytest.fixture
def diamond(terminal: Terminal) -> Terminal:
    """A project in which two jobs wait for one, and another waits for both."""
    terminal("enqueue", "--job", "step", "--id", "extract")
    for job_id, parents in STEPS:
        assert terminal("enqueue", "--job", "step", "--id", job_id, "--depends-on", parents).code == 0
    return terminal


def lines(text: str, name: str) -> list[str]:
    """The facts with this name in what `show` prints."""
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(f"{name} ")]


def fail(hf: Holdfast, job_id: str) -> None:
    """Dead-letter the next job, which must be this one."""
    lease = claim(hf.backend())
    assert lease.id == job_id
    assert hf.backend().abandon(lease, DeadReason.FAILED)


# Enqueueing


def test_parents_are_named_in_one_word_or_in_several(terminal: Terminal) -> None:
    for job_id in ("a", "b", "c"):
        terminal("enqueue", "--job", "step", "--id", job_id)
    terminal("enqueue", "--job", "step", "--id", "d", "--depends-on", "a, b", "--depends-on", "c", "--depends-on", "a")
    document = terminal("show", "d", "--json").json
    assert (document["state"], document["depends_on"], document["on_parent_failure"]) == (
        "blocked",
        ["a", "b", "c"],
        "cancel",
    )


@pytest.mark.parametrize("name", ["depends_on", "dependsOn", "after"])
def test_json_calls_them_depends_on_and_a_file_may_name_its_own_jobs(terminal: Terminal, name: str) -> None:
    jobs = [{"id": "b", "job": "step", name: ["a"], "on_parent_failure": "run"}, {"id": "a", "job": "step"}]
    assert terminal("enqueue", "-", stdin="\n".join(map(json.dumps, jobs))).out == "✓ 2 jobs queued\n"
    assert {one["id"]: one["depends_on"] for one in terminal.jobs()} == {"a": [], "b": ["a"]}
    assert terminal("show", "b", "--json").json["on_parent_failure"] == "run"


@pytest.mark.parametrize("rehearsed", [(), ("--dry-run",)], ids=["done", "tried"])
@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--depends-on", "nobody"), 3, "job 'x' depends on 'nobody', which does not exist in this backend"),
        (("--depends-on", "x"), 2, "these jobs wait for each other, so none of them could run: x → x"),
        (("--depends-on", "a,,b"), 2, "'a,,b' contains an empty id; write --depends-on a,b"),
        (("--depends-on", "a b"), 2, "'a b' is not a valid job id"),
        (("--on-parent-failure", "run"), 2, "--on-parent-failure has no effect without --depends-on; set --depends-on"),
        (("--on-parent-failure", "retry"), 2, "'retry' is not one of 'cancel', 'run', 'wait'"),
        (
            ("--depends-on", "a", "--unique", "k", "--on-conflict", "replace"),
            2,
            "a job that replaces another one cannot have parents; leave out --depends-on or --on-conflict",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    terminal: Terminal, rehearsed: tuple[str, ...], words: tuple[str, ...], code: int, problem: str
) -> None:
    answer = terminal("enqueue", "--job", "step", "--id", "x", *words, *rehearsed)
    assert answer.code == code
    assert problem in answer.err
    assert terminal.jobs() == []


@pytest.mark.parametrize("rehearsed", [(), ("--dry-run",)], ids=["done", "tried"])
def test_a_cycle_in_a_file_is_printed(terminal: Terminal, rehearsed: tuple[str, ...]) -> None:
    parents = {"a": ["c"], "b": ["a"], "c": ["b"], "d": []}
    jobs = [{"id": one, "job": "step", "depends_on": after} for one, after in parents.items()]
    answer = terminal("enqueue", "-", *rehearsed, stdin="\n".join(map(json.dumps, jobs)))
    assert answer.code == 2
    assert answer.err == "holdfast: these jobs wait for each other, so none of them could run: a → c → b → a\n"


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ('"depends_on": "a"', "field 'depends_on': Expected `array`, got `str`"),
        ('"depends_on": [7]', "field 'depends_on[0]': Expected `str`, got `int`"),
        ('"dependson": ["a"]', "unknown field 'dependson'; did you mean 'depends_on'?"),
        ('"depends_on": ["a"], "after": ["a"]', "field 'depends_on' is given twice, once as 'after'"),
        ('"on_parent_failure": "retry"', "field 'on_parent_failure': 'retry' is not one of cancel, run, wait"),
    ],
)
def test_a_wrong_member_is_named(terminal: Terminal, member: str, problem: str) -> None:
    answer = terminal("enqueue", f'{{"id": "x", "job": "step", {member}}}')
    assert answer.code == 2
    assert problem in answer.err


def test_an_unknown_parent_comes_with_what_to_do(terminal: Terminal) -> None:
    answer = terminal("enqueue", "--job", "step", "--depends-on", "nobody", "--json")
    assert answer.code == 3
    assert answer.error["code"] == "UnknownParent"
    assert "enqueue the parent first" in answer.error["message"]
    assert answer.error["hint"] == "list the jobs:  holdfast list"


def test_a_dry_run_shows_the_parents_and_stores_nothing(diamond: Terminal) -> None:
    words = ("--job", "step", "--id", "new", "--depends-on", "report,clean", "--on-parent-failure", "wait")
    answer = diamond("enqueue", *words, "--dry-run")
    assert "  depends on   report, clean\n" in answer.out
    assert "  on failure   wait if a job that it depends on fails\n" in answer.out
    document = diamond("enqueue", *words, "--dry-run", "--json").json
    assert (document["depends_on"], document["on_parent_failure"]) == (["report", "clean"], "wait")
    diamond("enqueue", *words)
    again = diamond("enqueue", *words, "--dry-run")
    assert "new already exists (blocked), apparently with the same content" in again.err
    other = diamond("enqueue", "--job", "step", "--id", "new", "--depends-on", "report", "--dry-run")
    assert other.code == 4


# Reading


def test_show_names_what_a_job_waits_for_and_what_waits_for_it(diamond: Terminal) -> None:
    shown = diamond("show", "clean").out
    assert lines(shown, "depends on") == ["extract (pending)"]
    assert lines(shown, "needed by") == ["report (blocked)"]
    [why] = lines(shown, "why")
    assert why.startswith("has been waiting ")
    assert why.endswith(" for 1 job: extract (pending)")
    document = diamond("show", "report", "--json").json
    parent = {"state": "blocked", "on_parent_failure": "cancel", "outcome": "open"}
    assert document["parents"] == [{"id": "clean", **parent}, {"id": "train", **parent}]
    assert (document["open_parents"], document["children"], document["child_count"]) == (2, [], 0)
    document = diamond("show", "extract", "--json").json
    assert ([one["id"] for one in document["children"]], document["child_count"]) == (["clean", "train"], 2)


def test_of_some_parents_that_have_completed_only_the_others_are_waited_for(diamond: Terminal, hf: Holdfast) -> None:
    for _ in range(2):
        hf.backend().ack(claim(hf.backend()))
    [why] = lines(diamond("show", "report").out, "why")
    assert why.endswith(" for 1 of 2 jobs: train (pending)")
    assert lines(diamond("show", "report").out, "depends on") == ["clean (completed)", "train (pending)"]


def test_the_list_says_what_blocked_jobs_wait_for(diamond: Terminal) -> None:
    rows = {line.split()[0]: line for line in diamond("list").out.splitlines()}
    assert rows["clean"].endswith("  waiting for extract")
    assert rows["report"].endswith("  waiting for 2 jobs")
    assert (
        diamond("list", "--columns", "id,depends_on", "--csv").out.splitlines()[1] == 'report,"[""clean"",""train""]"'
    )
    assert diamond("list", "--columns", "id,depends_on").out.splitlines()[1].split() == ["report", "clean,", "train"]


def test_many_children_are_counted_and_the_first_are_shown(terminal: Terminal) -> None:
    jobs = [{"id": "top", "job": "step"}, *({"id": f"c{n}", "job": "step", "depends_on": ["top"]} for n in range(250))]
    terminal("enqueue", "-", stdin="\n".join(map(json.dumps, jobs)))
    needed = lines(terminal("show", "top").out, "needed by")
    assert needed == [*(f"c{n} (blocked)" for n in range(10)), "and 240 more jobs; see  holdfast graph top"]
    document = terminal("show", "top", "--json").json
    assert (len(document["children"]), document["child_count"]) == (100, 250)


def test_a_cancelled_child_names_the_parent_and_how_to_run_both(diamond: Terminal, hf: Holdfast) -> None:
    fail(hf, "extract")
    assert lines(diamond("show", "clean").out, "why") == [
        "a job that it depends on failed: extract (dead)",
        "to run this job, retry that job:  holdfast retry extract",
    ]
    assert "clean was cancelled: parent-failed" in diamond("wait", "clean").err
    answer = diamond("retry", "extract")
    assert answer.out == "✓ extract requeued (attempts reset, history retained); 2 jobs depend on it\n"
    hf.backend().repair()
    assert hf.handle("report").status() is JobState.BLOCKED


def test_a_child_that_waits_for_a_failed_parent_says_that_it_must_be_retried(terminal: Terminal, hf: Holdfast) -> None:
    terminal("enqueue", "--job", "step", "--id", "a")
    terminal("enqueue", "--job", "step", "--id", "b", "--depends-on", "a", "--on-parent-failure", "wait")
    fail(hf, "a")
    waiting, advice = lines(terminal("show", "b").out, "why")
    assert waiting.endswith(" for 1 job: a (dead)")
    assert advice == "this job runs only if the failed jobs are retried and complete:  holdfast retry a"
    assert lines(terminal("show", "b").out, "on failure") == ["wait if a job that it depends on fails"]


def test_a_parent_whose_record_is_gone_is_shown_as_deleted(terminal: Terminal, hf: Holdfast) -> None:
    terminal("enqueue", "--job", "step", "--id", "a")
    terminal("enqueue", "--job", "step", "--id", "b", "--depends-on", "a")
    fail(hf, "a")
    assert terminal("dlq", "discard", "a").code == 0
    assert lines(terminal("show", "b").out, "depends on") == ["a (deleted)"]
    assert lines(terminal("show", "b").out, "why") == ["a job that it depends on failed and was deleted"]


def test_cancelling_a_job_says_how_many_depend_on_it(diamond: Terminal, hf: Holdfast) -> None:
    assert diamond("cancel", "clean").out == "✓ clean cancelled; 1 job depends on it\n"
    assert hf.handle("report").view().cancel_reason == "parent-failed"
    assert diamond("cancel", "train", "extract").out.splitlines() == [
        "✓ train cancelled; 1 job depends on it",
        "✓ extract cancelled; 2 jobs depend on it",
    ]


# The graph


def test_the_graph_is_drawn_parents_first_and_every_job_has_its_children_once(diamond: Terminal) -> None:
    diamond("enqueue", "--job", "step", "--id", "mail", "--depends-on", "report")
    heading, *rows = diamond("graph", "extract").out.splitlines()
    assert heading.split("  ")[0] == "ID"
    assert [row[:26].rstrip() for row in rows] == [
        "extract (this job)",
        "├─ clean",
        "│  └─ report",
        "│     └─ mail",
        "└─ train",
        "   └─ report (see above)",
    ]
    assert rows[2].split()[-5:] == ["report", "blocked", "2", "jobs", "step"]


def test_the_graph_of_a_job_has_its_ancestors_and_its_descendants_only(diamond: Terminal) -> None:
    rows = diamond("graph", "clean").out.splitlines()[1:]
    assert [row.split("  ")[0] for row in rows[:1]] == ["extract"]
    assert [row.partition("  ")[0] for row in rows] == ["extract", "├─ clean (this job)", "│", "└─ and 1 more job"]
    assert rows[2].lstrip("│ ").startswith("└─ report")
    document = diamond("graph", "clean", "--json").json
    assert [
        (one["id"], one["depends_on"], one["hidden_parents"], one["hidden_children"]) for one in document["jobs"]
    ] == [
        ("clean", ["extract"], 0, 0),
        ("extract", [], 0, 1),
        ("report", ["clean"], 1, 0),
    ]


def test_a_job_without_relatives_is_a_graph_of_its_own(terminal: Terminal) -> None:
    terminal("enqueue", "--job", "step", "--id", "a")
    answer = terminal("graph", "a")
    assert answer.out.splitlines()[1].split() == ["a", "(this", "job)", "pending", "–", "step"]
    assert answer.err == ""
    unknown = terminal("graph", "nobody")
    assert unknown.code == 3
    assert "there is no job 'nobody'" in unknown.err


def test_a_large_graph_is_cut_and_says_so(terminal: Terminal) -> None:
    jobs = [{"id": "top", "job": "step"}, *({"id": f"c{n}", "job": "step", "depends_on": ["top"]} for n in range(200))]
    terminal("enqueue", "-", stdin="\n".join(map(json.dumps, jobs)))
    answer = terminal("graph", "top")
    rows = answer.out.splitlines()
    assert len(rows) == 1 + 100 + 1
    assert rows[-1] == "└─ and 101 more jobs"
    assert answer.err.endswith("to show more:  holdfast graph top --depth 20 --limit 1000\n")
    assert len(terminal("graph", "top", "--limit", "1000").out.splitlines()) == 1 + 201


def test_a_long_chain_is_cut_at_the_depth(terminal: Terminal) -> None:
    chain = [{"id": f"c{n}", "job": "step", "depends_on": [f"c{n - 1}"] if n else []} for n in range(30)]
    terminal("enqueue", "-", stdin="\n".join(map(json.dumps, chain)))
    shown = [one["id"] for one in terminal("graph", "c15", "--depth", "2", "--json").json["jobs"]]
    assert sorted(shown) == ["c13", "c14", "c15", "c16", "c17"]
    rows = terminal("graph", "c15", "--depth", "2").out.splitlines()
    assert rows[-1].strip() == "└─ and 1 more job"
    assert len(terminal("graph", "c15", "--depth", "1000", "--json").json["jobs"]) == 30


def test_a_cycle_in_a_damaged_database_is_drawn_once(diamond: Terminal) -> None:
    with sqlite3.connect(diamond.database) as connection:
        connection.execute(
            "INSERT INTO holdfast_edges SELECT r.seq, e.seq, 0, 0 FROM holdfast_jobs AS r, holdfast_jobs AS e "
            "WHERE r.id = 'report' AND e.id = 'extract'"
        )
    connection.close()
    for job_id in ("extract", "report"):
        rows = diamond("graph", job_id).out.splitlines()[1:]
        assert rows[0].startswith(f"{job_id} (this job)")
        assert len(rows) == 6
    assert len(diamond("graph", "clean", "--json").json["jobs"]) == 4
    assert diamond("show", "extract").code == 0
