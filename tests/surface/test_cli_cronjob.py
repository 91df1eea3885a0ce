"""Schedules on the command line: `holdfast cronjob`, and how `worker start`, `health` and `doctor` treat them."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli.cronjob.frozen import frozen_at
from holdfast.cron.schedule import Schedule
from holdfast.cron.timing import Cron
from holdfast.definition import JobDefinition

from ..faults.processes import DEADLINE_S
from .terminal import Terminal

NOW = datetime(2027, 1, 10, 12, 30, tzinfo=UTC)
BACKUP = '[schedules.backup]\ncron = "0 2 * * *"\ntimezone = "Europe/Berlin"\ncommand = ["true"]\n'
# Defines a schedule, and prints on stderr that it was imported.
SHOP = """
import sys
from holdfast import Holdfast

print("imported", file=sys.stderr)
hf = Holdfast()

@hf.job(cron="0 3 * * *", timezone="Europe/Berlin", queue="reports")
def report(day: str = "today") -> str:
    return day
"""


def schedule(terminal: Terminal, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = terminal("cronjob", "show", name, "--json").json
    return shown


def history(terminal: Terminal, name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = terminal("cronjob", "history", name, "--json").json
    return entries


def tick(terminal: Terminal, after: timedelta) -> None:
    """Run what is due as if this much time had passed."""
    with Holdfast(directory=terminal.project) as hf:
        hf.cron_runner().tick(datetime.now(UTC) + after)


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_due(terminal: Terminal, name: str) -> None:
    """Wait until a schedule is due, without running it."""
    until(lambda: bool(terminal("cronjob", "run", "--due", "--dry-run", "--only", name, "--json").json))


# Adding and removing


def test_a_command_is_scheduled_without_python(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "true")
    when = ["--cron", "0 2 * * *", "--timezone", "Europe/Berlin"]
    added = terminal("cronjob", "add", "backup", *when, "--", "true", "-x")
    assert (added.code, added.out) == (0, "✓ backup added\n")
    shown = schedule(terminal, "backup")
    assert (shown["schedule"], shown["described"], shown["timezone"]) == (
        "0 2 * * *",
        "every day at 02:00",
        "Europe/Berlin",
    )
    assert (shown["job"], shown["payload"], shown["runs"]) == ("command", {"argv": ["true", "-x"]}, True)
    assert "job          true -x on default\n" in terminal("cronjob", "show", "backup").out


def test_a_job_is_scheduled_with_its_arguments_and_options(terminal: Terminal) -> None:
    options = "--job poll a=1 b:=2 --queue slow --overlap skip --jitter 30s --catch-up all --catch-up-limit 3"
    added = terminal("cronjob", "add", "poll", "--every", "90s", *options.split(), "--note", "ask Ada")
    assert added.code == 0
    shown = schedule(terminal, "poll")
    assert {name: shown[name] for name in ("payload", "queue", "overlap", "jitter", "catch_up", "catch_up_limit")} == {
        "payload": {"a": "1", "b": 2},
        "queue": "slow",
        "overlap": "skip",
        "jitter": 30.0,
        "catch_up": "all",
        "catch_up_limit": 3,
    }
    assert shown["note"] == "ask Ada"


def test_adding_again_replaces_and_adding_the_same_changes_nothing(terminal: Terminal) -> None:
    add = ["cronjob", "add", "poll", "--job", "poll", "--every"]
    assert terminal(*add, "90s").out == "✓ poll added\n"
    assert terminal(*add, "90s").out == "• poll is unchanged\n"
    assert terminal(*add, "60s").out == "✓ poll replaced\n"
    assert schedule(terminal, "poll")["schedule"] == "every 1m"


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--cron", "0 2 * *", "--", "true"], 2, "cron '0 2 * *' has 4 fields"),
        (["--", "true"], 2, "pass either --cron or --every"),
        (["--cron", "@daily", "--every", "90s", "--", "true"], 2, "pass either --cron or --every"),
        (["--cron", "@daily"], 2, "nothing to run; pass a command after --, or --job KEY"),
        (["--cron", "@daily", "--", "rm", "-rf"], 4, "command 'rm' is not allowed here"),
        (["--cron", "@daily", "--jitter", "soon", "--", "true"], 2, "jitter = 'soon': must be a number of seconds"),
        (
            ["--cron", "@daily", "--depends-on", "import", "--", "true"],
            2,
            "it depends on 'import', which does not exist",
        ),
        (["--cron", "@daily", "--timezone", "Berlin", "--", "true"], 2, "did you mean 'Europe/Berlin'?"),
    ],
)
def test_what_could_not_run_is_refused_and_not_stored(
    terminal: Terminal, words: list[str], code: int, problem: str
) -> None:
    terminal("config", "set", "allowed-commands", "true")
    refused = terminal("cronjob", "add", "backup", *words)
    assert (refused.code, problem in refused.err) == (code, True)
    assert terminal("cronjob", "list", "--json").json == []


def test_a_name_that_the_settings_define_is_refused(terminal: Terminal) -> None:
    terminal.config.write_text(f'allowed-commands = ["true"]\n{BACKUP}')
    assert terminal("cronjob", "run", "--due").code == 0
    refused = terminal("cronjob", "add", "backup", "--every", "90s", "--", "true")
    assert refused.code == 2
    assert "schedule 'backup' is already defined in holdfast.toml; choose another name" in refused.err


def test_schedules_are_removed_with_their_children_or_not_at_all(terminal: Terminal) -> None:
    terminal("cronjob", "add", "import", "--every", "90s", "--job", "a")
    terminal("cronjob", "add", "report", "--every", "90s", "--job", "b", "--depends-on", "import")
    refused = terminal("cronjob", "remove", "import")
    assert (refused.code, "because 'report' depends on it" in refused.err) == (2, True)
    removed = terminal("cronjob", "remove", "import", "report")
    assert (removed.code, removed.out) == (0, "✓ report removed\n✓ import removed\n")
    assert terminal("cronjob", "list", "-q").out == ""


@pytest.mark.parametrize("verb", ["show", "history", "next", "enable", "disable", "remove", "run"])
def test_a_schedule_that_does_not_exist_is_not_found_but_the_nearest(terminal: Terminal, verb: str) -> None:
    terminal("cronjob", "add", "nightly", "--every", "90s", "--job", "a")
    answer = terminal("cronjob", verb, "nigthly")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err == "holdfast: there is no schedule 'nigthly'; did you mean 'nightly'?\n"


# Switching


def test_a_disabled_schedule_says_why_and_does_not_run(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a")
    assert terminal("cronjob", "disable", "sync", "--reason", "vendor outage").code == 0
    shown = schedule(terminal, "sync")
    assert (shown["runs"], shown["reason"], shown["next"]) == (False, "disabled by ada: vendor outage", None)
    assert "no: disabled by ada: vendor outage" in terminal("cronjob", "list").out
    tick(terminal, timedelta(hours=1))
    [entry] = history(terminal, "sync")
    assert (entry["outcome"], entry["reason"]) == ("skipped", "disabled by ada: vendor outage")
    assert terminal("cronjob", "enable", "sync").code == 0
    assert schedule(terminal, "sync")["runs"] is True


def test_none_of_several_is_switched_if_one_does_not_exist(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a")
    assert terminal("cronjob", "disable", "sync", "other").code == 3
    assert schedule(terminal, "sync")["runs"] is True


# Listing


def test_a_schedule_in_the_settings_is_listed_before_anything_has_stored_it(terminal: Terminal) -> None:
    terminal.config.write_text(f'allowed-commands = ["true"]\n{BACKUP}')
    [listed] = terminal("cronjob", "list", "--json").json
    assert (listed["name"], listed["stored"], listed["source"]) == ("backup", False, "config")
    assert listed["reason"] == "no runner has stored it yet"
    assert not terminal.database.exists()
    terminal("cronjob", "run", "--due")
    [listed] = terminal("cronjob", "list", "--json").json
    assert (listed["stored"], listed["origin"], listed["runs"]) == (True, "holdfast.toml", True)


def test_a_schedule_of_another_environment_is_listed_as_such(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a", "--environments", "production")
    assert schedule(terminal, "sync")["reason"] == "limited to production"
    terminal("config", "set", "environment", "production")
    assert schedule(terminal, "sync")["runs"] is True


def test_the_last_runs_are_a_bar(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a", "--catch-up", "all", "--catch-up-limit", "2")
    tick(terminal, timedelta(hours=4))
    terminal("cronjob", "disable", "sync")
    tick(terminal, timedelta(hours=5))
    [heading, row] = terminal("cronjob", "list").out.splitlines()
    assert heading.split() == ["NAME", "SCHEDULE", "ZONE", "LAST", "NEXT", "RUNS", "ON"]
    assert "!!••░" in row


def test_reading_imports_nothing_of_the_application(terminal: Terminal) -> None:
    terminal.write("shop.py", SHOP)
    terminal("config", "set", "app", "shop:hf")
    assert "imported" in terminal("cronjob", "run", "--due").err
    for words in ("list", "show report", "next report", "history report", "run --due --dry-run", "disable report"):
        assert "imported" not in terminal("cronjob", *words.split()).err
    assert "imported" not in terminal("health").err
    [listed] = terminal("cronjob", "list", "--json").json
    assert (listed["name"], listed["source"], listed["origin"], listed["queue"]) == (
        "report",
        "code",
        "shop",
        "reports",
    )


def test_the_next_times_are_in_the_zone_and_say_where_clocks_change(terminal: Terminal) -> None:
    terminal("cronjob", "add", "a", "--cron", "30 2 * 3,10 SUN", "--timezone", "Europe/Berlin", "--job", "a")
    instants = terminal("cronjob", "next", "a", "-n", "12", "--json").json
    changed = [each["local"] for each in instants if each["note"]]
    assert changed
    assert all("clocks changed to +0" in each["note"] for each in instants if each["note"])
    lines = terminal("cronjob", "next", "a", "-n", "12").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [each["local"] for each in instants]
    in_utc = terminal("cronjob", "next", "a", "-n", "1", "--utc").out
    assert in_utc.rstrip().endswith("+00:00")


def test_a_shell_completes_names(terminal: Terminal) -> None:
    terminal("cronjob", "add", "nightly", "--every", "90s", "--job", "a")
    answer = terminal.program(_HOLDFAST_COMPLETE="bash_complete", COMP_WORDS="holdfast cronjob show ni", COMP_CWORD="3")
    assert answer.out == "plain,nightly\n"


# Running


def test_a_schedule_is_run_now_in_addition_to_its_times(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a")
    [ran] = terminal("cronjob", "run", "sync", "--json").json
    [job] = terminal.jobs()
    assert (job["id"], job["state"]) == (ran["job"], "pending")
    assert history(terminal, "sync") == []


def test_running_a_schedule_of_another_backend_stores_no_other_there(terminal: Terminal) -> None:
    url = f"sqlite:///{terminal.project / 'other.db'}"
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a", "--url", url)
    terminal.config.write_text(f'allowed-commands = ["true"]\n{BACKUP}')
    assert terminal("cronjob", "run", "sync", "--url", url).code == 0
    assert [row["name"] for row in terminal("cronjob", "list", "--url", url, "--json").json] == ["sync"]


def test_what_is_due_is_run_once(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "true")
    terminal("cronjob", "add", "tick", "--every", "1s", "--", "true")
    until_due(terminal, "tick")
    assert terminal.jobs() == []
    [*_, ran] = terminal("cronjob", "run", "--due", "--json").json
    [job] = terminal.jobs()
    assert (ran["outcome"], job["id"]) == ("fired", ran["job"])


def test_inline_jobs_run_in_the_command_and_decide_its_exit_code(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "true,false")
    for name, program in (("good", "true"), ("bad", "false")):
        terminal("cronjob", "add", name, "--every", "1s", "--inline", "--", program)
        until_due(terminal, name)
        answer = terminal("cronjob", "run", "--due", "--only", name)
        assert (answer.code, "exit code 1" in answer.err) == ((0, False) if name == "good" else (7, True))
    assert {job["name"]: job["state"] for job in terminal.jobs()} == {"good": "completed", "bad": "dead"}
    assert history(terminal, "bad")[0]["state"] == "dead"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "nothing to run; pass the names of schedules to run them now, --due to run everything that is due"),
        ("sync --due", "pass names or --due, not both"),
        ("sync --only sync", "pass names or --only, not both"),
        ("sync --enqueue", "--enqueue requires --test-time"),
        ("--test-time soon", "'soon' is not a time"),
        ("--due --only other", "there is no schedule 'other'"),
    ],
)
def test_what_is_unclear_is_asked_for(terminal: Terminal, words: str, problem: str) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a")
    answer = terminal("cronjob", "run", *words.split())
    assert (answer.code in (2, 3), problem in answer.err) == (True, True)
    assert terminal.jobs() == []


# At a frozen time


def test_at_a_frozen_time_nothing_runs_unless_asked_to(terminal: Terminal) -> None:
    terminal("cronjob", "add", "nightly", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--job", "a")
    terminal("cronjob", "add", "utc", "--cron", "30 2 * * *", "--job", "b")
    terminal("cronjob", "add", "off", "--cron", "* * * * *", "--job", "c")
    terminal("cronjob", "disable", "off")
    for option in ("--test-time", "-testTime"):
        answer = terminal("cronjob", "run", option, "2027-01-10 02:30")
        assert answer.out.splitlines() == [
            "would run nightly for 2027-01-10 02:30:00+01:00",
            f"• off: disabled by {os.environ.get('LOGNAME', 'root')}",
            "would run utc for 2027-01-10 02:30:00+00:00",
        ]
        assert answer.err == "nothing was enqueued; to enqueue these jobs, add --enqueue\n"
    assert terminal.jobs() == []
    only = terminal(
        "cronjob", "run", "--test-time", "2027-01-10T01:30Z", "-only", "nightly,utc", "--enqueue", "--json"
    ).json
    assert [(row["schedule"], row["outcome"], row["job"] is not None) for row in only] == [
        ("nightly", "fired", True),
        ("utc", None, False),
    ]
    assert [job["name"] for job in terminal.jobs()] == ["nightly"]
    assert history(terminal, "nightly") == []


@pytest.mark.parametrize(
    ("text", "zone", "moment", "remark"),
    [
        ("2027-03-27 02:30", "Europe/Berlin", "2027-03-27T01:30", ""),
        (
            "2027-03-28 02:30",
            "Europe/Berlin",
            "2027-03-28T01:00",
            "2027-03-28 02:30 does not exist in Europe/Berlin (clocks go 02:00 → 03:00)",
        ),
        (
            "2027-10-31 02:30",
            "Europe/Berlin",
            "2027-10-31T00:30",
            "2027-10-31 02:30 occurs twice in Europe/Berlin; using the first occurrence",
        ),
        ("2027-03-28T02:30+02:00", "Europe/Berlin", "2027-03-28T00:30", ""),
        ("2027-03-28 02:30", "UTC", "2027-03-28T02:30", ""),
        ("23:15", "Asia/Tokyo", "2027-01-10T14:15", ""),
        ("+2h", "Asia/Tokyo", "2027-01-10T14:30", ""),
    ],
)
def test_a_bare_time_is_one_in_the_zone_of_the_schedule(text: str, zone: str, moment: str, remark: str) -> None:
    frozen = frozen_at(text, zone, NOW)
    assert (frozen.moment, frozen.remark) == (datetime.fromisoformat(f"{moment}+00:00"), remark)


@pytest.mark.parametrize(
    ("text", "is_due"),
    [("02:29", False), ("02:29:59", False), ("02:30", True), ("02:30:40", True), ("02:31", False)],
)
def test_it_is_the_whole_minute_and_no_other(text: str, *, is_due: bool) -> None:
    nightly = Schedule(name="a", definition=JobDefinition(handler="a"), timing=Cron("30 2 * * *"))
    due = frozen_at(f"2027-01-10T{text}Z", "UTC", NOW).due(nightly)
    assert due == (datetime(2027, 1, 10, 2, 30, tzinfo=UTC) if is_due else None)


def test_a_time_in_the_gap_is_when_the_schedule_runs(terminal: Terminal) -> None:
    nightly = Schedule(name="a", definition=JobDefinition(handler="a"), timing=Cron("30 2 * * *", "Europe/Berlin"))
    due = frozen_at("2027-03-28 02:30", "Europe/Berlin", NOW).due(nightly)
    assert due == datetime(2027, 3, 28, 1, tzinfo=UTC)
    terminal("cronjob", "add", "nightly", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--job", "a")
    answer = terminal("cronjob", "run", "--test-time", "2027-03-28 02:30")
    assert answer.out == "would run nightly for 2027-03-28 03:00:00+02:00\n"
    assert answer.err.startswith("2027-03-28 02:30 does not exist in Europe/Berlin (clocks go 02:00 → 03:00)\n")


# Until stopped


def test_a_daemon_runs_schedules_and_inline_jobs_until_it_is_stopped(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "true")
    terminal("cronjob", "add", "inline", "--every", "1s", "--inline", "--", "true")
    terminal("cronjob", "add", "queued", "--every", "1s", "--", "true")
    daemon = terminal.start("cronjob", "daemon")
    until(lambda: any(entry["state"] == "completed" for entry in history(terminal, "inline")))
    until(lambda: any(entry["outcome"] == "fired" for entry in history(terminal, "queued")))
    daemon.send_signal(signal.SIGTERM)
    _, err = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 0
    assert err.splitlines()[-1] == "stopping"
    assert all(entry["state"] is None for entry in history(terminal, "queued"))


def test_a_worker_runs_schedules_unless_it_is_told_not_to(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "true")
    terminal.config.write_text(f'{terminal.config.read_text()}\n[schedules.tick]\nevery = "1s"\ncommand = ["true"]\n')
    worker = terminal.start("worker", "start")
    until(lambda: any(entry["state"] == "completed" for entry in history(terminal, "tick")))
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=DEADLINE_S)
    assert "schedules: next at " in err
    before = history(terminal, "tick")
    without = terminal.start("worker", "start", "--no-schedules", "--max-jobs", "1")
    terminal("enqueue", "--", "true")
    _, err = without.communicate(timeout=DEADLINE_S)
    assert "schedules: " not in err
    assert len(history(terminal, "tick")) == len(before)


# Health


def test_a_missed_schedule_is_red_and_says_what_to_do(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a")
    assert "✓ schedules  1 on" in terminal("health").out
    # Half an hour after the last one: a run that is only a few minutes late would still take place.
    in_three_hours = (datetime.now(UTC) + timedelta(hours=3)).replace(minute=30)
    tick(terminal, in_three_hours - datetime.now(UTC))
    sick = terminal("health", "--json")
    [check] = [check for check in sick.json["checks"] if check["name"] == "schedules"]
    assert (sick.code, check["ok"]) == (1, False)
    assert "sync missed 3 runs, the last at " in check["message"]
    assert "no runner was running; see  holdfast cronjob history sync" in check["message"]
    assert "✗ schedules   sync missed 3 runs" in terminal("doctor").out


def test_a_runner_that_is_missing_is_red(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a")
    _change_cell(terminal.database, "schedule-cursors", "sync", {"through_us": 1_700_000_000_000_000})
    answer = terminal("health")
    assert answer.code == 1
    assert "✗ schedules  no runner is running: 1 schedule overdue (sync)" in answer.out


def test_a_schedule_of_another_environment_needs_no_runner_here(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1h", "--job", "a", "--environments", "production")
    _change_cell(terminal.database, "schedule-cursors", "sync", {"through_us": 1_700_000_000_000_000})
    assert (terminal("health").code, "overdue" in terminal("doctor").out) == (0, False)
    terminal("config", "set", "environment", "production")
    assert (terminal("health").code, "overdue" in terminal("doctor").out) == (1, True)


def test_a_schedule_that_can_never_run_is_red(terminal: Terminal) -> None:
    def configure(build: int, backup: str) -> None:
        terminal.config.write_text(f'allowed-commands = ["true"]\nbuild = "{build}"\n{backup}')
        terminal("cronjob", "run", "--due")

    configure(1, f'{BACKUP}depends-on = ["dump"]\n')
    answer = terminal("health")
    assert answer.code == 1
    assert "✗ schedules  backup is always skipped: it depends on 'dump', which does not exist" in answer.out
    configure(2, BACKUP)
    terminal("cronjob", "add", "dump", "--cron", "0 2 * * *", "--depends-on", "backup", "--", "true")
    assert terminal("health").code == 0
    configure(3, f'{BACKUP}depends-on = ["dump"]\n')
    answer = terminal("health")
    assert answer.code == 1
    assert "so none of them could run: " in answer.out


def test_an_altered_schedule_is_red_and_does_not_run(terminal: Terminal) -> None:
    terminal("cronjob", "add", "sync", "--every", "1s", "--job", "a")
    _change_cell(
        terminal.database, "schedules", "sync", change=lambda template: template.replace("every 1s", "every 2s")
    )
    assert terminal("cronjob", "run", "--due").code == 0
    assert terminal.jobs() == []
    answer = terminal("health")
    assert (answer.code, "sync does not run, because it was altered" in answer.out) == (1, True)
    assert "no: altered: " in terminal("cronjob", "list").out
    refused = terminal("cronjob", "run", "sync")
    assert (refused.code != 0, terminal.jobs()) == (True, [])


def test_a_schedule_that_vanished_from_the_settings_is_a_warning(terminal: Terminal) -> None:
    terminal.config.write_text(f'allowed-commands = ["true"]\n{BACKUP}')
    terminal("cronjob", "run", "--due")
    terminal.config.write_text('allowed-commands = ["true"]\nbuild = "zz"\n')
    terminal("cronjob", "run", "--due")
    answer = terminal("health")
    assert answer.code == 0
    assert "⚠ schedules  backup does not run: it is no longer defined in the settings (since " in answer.out
    assert "holdfast cronjob remove backup" in answer.out
    assert terminal("cronjob", "remove", "backup").code == 0
    assert "schedules" not in terminal("health").out


def _change_cell(
    database: Path, kind: str, key: str, members: dict[str, Any] | None = None, *, change: Callable[[str], str] = str
) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    [value] = connection.execute("SELECT value FROM holdfast_cells WHERE kind = ? AND key = ?", [kind, key]).fetchone()
    cell = json.loads(value) | (members or {})
    if "template" in cell:
        cell["template"] = change(cell["template"])
    connection.execute(
        "UPDATE holdfast_cells SET value = ? WHERE kind = ? AND key = ?", [json.dumps(cell).encode(), kind, key]
    )
    connection.close()
