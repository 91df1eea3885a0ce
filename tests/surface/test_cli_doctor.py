"""`doctor`: every kind of misconfiguration, planted and found, each with what to do about it."""

import os
import sqlite3
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli.diagnosis import Level
from holdfast.cli.diagnosis.settings import worker_option_findings
from holdfast.cli.diagnosis.store import clock_findings, heartbeat_findings
from holdfast.config import Settings
from holdfast.queues import addresses
from holdfast.queues.contract import EngineInfo
from holdfast.queues.engines.sqlite import connections as sqlite_file
from holdfast.queues.signing import SigningKey
from holdfast.state.workers import WorkerRegistry

from ..servers.places import SERVERS, Place
from .registry import lose, report
from .terminal import Terminal

Document = Mapping[str, Any]


def findings(terminal: Terminal, *words: str, code: int | None = None) -> list[Document]:
    """What the doctor finds; each that is not well has an advice, unless the words of `config check` say what to do."""
    answer = terminal("doctor", "--json", *words)
    document = answer.json
    found: list[Document] = document["findings"]
    assert document["schema"] == "holdfast.doctor/1"
    assert document["ok"] == all(each["level"] != "error" for each in found)
    assert answer.code == (0 if document["ok"] else 1) if code is None else code
    bad = [each for each in found if each["level"] in ("warning", "error")]
    assert all(each["advice"] or each["check"] in ("settings", "keys") for each in bad), found
    return found


def found_in(terminal: Terminal, check: str, *words: str) -> list[tuple[str, str]]:
    """The level and the sentence of everything that is not well with one thing."""
    return [
        (each["level"], each["message"])
        for each in findings(terminal, *words)
        if each["check"] == check and each["level"] not in ("ok", "note")
    ]


def planted(terminal: Terminal, check: str, *words: str) -> tuple[str, str]:
    """The one thing that is wrong there."""
    [found] = found_in(terminal, check, *words)
    return found


@pytest.fixture
def worked(terminal: Terminal) -> Terminal:
    """A project with a job, and a worker that knows how to run it."""
    terminal("enqueue", '{"id": "job1", "job": "add"}')
    with Holdfast(directory=terminal.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("a" * 32, handlers=("add",)))
    return terminal


def test_a_sound_installation_has_nothing_wrong(worked: Terminal) -> None:
    answer = worked("doctor", "--strict")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith("no problems found\n")
    assert {each["check"] for each in findings(worked)} == {
        "versions",
        "paths",
        "permissions",
        "file system",
        "settings",
        "one place",
        "schema",
        "clocks",
        "keys",
        "workers",
        "queues",
        "handlers",
    }


def test_nothing_is_made_by_looking(terminal: Terminal) -> None:
    assert terminal("doctor").code == 0
    assert terminal("health", "--full").code == 0
    assert sorted(path.name for path in terminal.project.iterdir()) == ["holdfast.toml"]


def test_a_setting_that_cannot_be_read_is_a_finding(terminal: Terminal) -> None:
    terminal.config.write_text("lease = 0.5\n")
    level, sentence = planted(terminal, "settings")
    assert level == "error"
    assert "lease = 0.5" in sentence
    assert "out of range" in sentence
    last = findings(terminal)[-1]
    assert (last["check"], last["message"]) == (
        "the rest",
        "skipped; fix the errors above and run  holdfast doctor  again",
    )


# Paths, permissions, file systems


def test_a_directory_in_place_of_the_database_is_found(terminal: Terminal) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}"\n')
    assert planted(terminal, "settings")[1] == f"url in {terminal.config}:1: {terminal.home} is a directory"


def test_a_file_in_place_of_a_directory_is_found(terminal: Terminal) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.config}/jobs.db"\n')
    assert planted(terminal, "settings")[1].startswith(f"url in {terminal.config}:1: {terminal.config} is not a dir")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_found(terminal: Terminal) -> None:
    terminal.home.chmod(0o500)
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}/jobs.db"\n')
    try:
        assert "this user cannot write to" in planted(terminal, "paths")[1]
    finally:
        terminal.home.chmod(0o700)


def test_jobs_that_everybody_can_read_are_found(worked: Terminal) -> None:
    worked.database.chmod(0o644)
    level, sentence = planted(worked, "permissions")
    assert level == "warning"
    assert str(worked.database) in sentence


def test_a_directory_that_everybody_can_write_is_found(worked: Terminal) -> None:
    worked.database.parent.chmod(0o777)
    level, sentence = planted(worked, "permissions")
    assert level == "error"
    assert "so any user could replace the jobs and their key" in sentence


def test_settings_that_everybody_can_write_are_found(terminal: Terminal) -> None:
    terminal.config.chmod(0o666)
    assert planted(terminal, "permissions", "--project", str(terminal.project)) == (
        "error",
        f"everyone can write to {terminal.config}, so any user could allow any command or redirect the jobs",
    )


def test_a_password_that_everybody_can_read_is_found_and_not_shown(terminal: Terminal) -> None:
    terminal.config.write_text('url = "redis://:hunter2@127.0.0.1:1/0"\n')
    terminal.config.chmod(0o644)
    answer = terminal("doctor")
    assert "contains a password, and other users can read the file" in " ".join(answer.out.split())
    assert "hunter2" not in answer.out + answer.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_log_that_belongs_to_another_user_is_found(worked: Terminal) -> None:
    log = Path(f"{worked.database}-wal")
    log.touch(0o600)
    os.chown(log, 12345, -1)
    level, sentence = planted(worked, "permissions")
    assert level == "error"
    assert "belongs to user 12345" in sentence


@pytest.mark.parametrize(
    ("kind", "level", "why"),
    [
        ("nfs4", "error", "SQLite's locks are unreliable"),
        ("tmpfs", "warning", "lost when the machine restarts"),
    ],
)
def test_a_file_system_that_keeps_nothing_is_found(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, kind: str, level: str, why: str
) -> None:
    def mounted(path: Path) -> str:
        return kind

    monkeypatch.setattr(addresses, "file_system", mounted)  # no such mount can be made here
    found = planted(terminal, "file system")
    assert found[0] == level
    assert f"({kind})" in found[1]
    assert why in found[1]


def test_a_real_file_system_in_memory_is_found(terminal: Terminal) -> None:
    if addresses.file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("there is no file system in memory here")
    assert planted(terminal, "file system", "--url", "sqlite:////dev/shm/holdfast-doctor/jobs.db")[0] == "warning"


# Versions and schema


def test_a_worker_of_another_version_is_found(worked: Terminal) -> None:
    with Holdfast(directory=worked.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("b" * 32, version="0.0.1"))
    level, sentence = planted(worked, "workers")
    assert level == "warning"
    assert "1 worker with Holdfast 0.0.1" in sentence


def test_a_library_that_is_too_old_is_found(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "MIN_VERSION", (99, 0, 0))
    assert "needs 99.0.0 or newer" in planted(terminal, "versions")[1]


@pytest.mark.parametrize(("schema", "level"), [(99, "error"), (1, "warning")])
def test_a_schema_that_does_not_fit_is_found(worked: Terminal, schema: int, level: str) -> None:
    database = sqlite3.connect(worked.database)
    with database:
        database.execute("DELETE FROM holdfast_schema WHERE version > 1")
        if schema > 1:
            database.execute("INSERT INTO holdfast_schema VALUES (99, 0)")
    database.close()
    found = planted(worked, "schema")
    assert found[0] == level
    assert f"schema {schema} is " in found[1]


# Clocks


@pytest.mark.parametrize(
    ("ahead_s", "level", "side"),
    [
        (0.0, Level.OK, ""),
        (0.9, Level.OK, ""),
        (5.0, Level.WARNING, "5 s ahead of"),
        (-90.0, Level.ERROR, "90 s behind"),
    ],
)
def test_a_server_with_another_clock_is_found(ahead_s: float, level: Level, side: str) -> None:
    info = EngineInfo(server="Redis 8", settings={}, survives="", clock_us=1_000_000_000 + int(ahead_s * 1e6))
    [found] = clock_findings(info, asked_us=1_000_000_000, answered_us=1_000_000_000, lease_s=60)
    assert found.level is level
    assert side in found.message


def test_what_the_question_took_is_no_skew() -> None:
    info = EngineInfo(server="Redis 8", settings={}, survives="", clock_us=1_003_000_000)
    [found] = clock_findings(info, asked_us=1_000_000_000, answered_us=1_006_000_000, lease_s=60)
    assert found.level is Level.OK


@pytest.mark.parametrize("place", list(SERVERS), indirect=True)
def test_a_server_tells_its_clock(place: Place, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "k" * 32)
    sound = [each for each in findings(terminal, "--url", place.url) if each["check"] == "clocks"]
    assert [each["level"] for each in sound] == ["ok"]
    assert "the server's clock and this host's agree" in sound[0]["message"]
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
    level, sentence = planted(terminal, "clocks", "--url", place.url)
    assert level == "error"
    assert "60 m behind this host's" in sentence


def test_a_clock_that_was_set_back_is_found(worked: Terminal) -> None:
    with Holdfast(directory=worked.project) as hf:
        views = WorkerRegistry(hf.backend().state).all()
    an_hour_ago = time.time_ns() // 1000 - 3_600_000_000
    [found] = heartbeat_findings(views, now_us=an_hour_ago, lease_s=60)
    assert found.level is Level.ERROR
    assert "the clock was set back" in found.message


# One place


def test_jobs_in_a_file_nobody_looks_at_are_found(worked: Terminal) -> None:
    other = worked.home / "other.db"
    worked("migrate", "--url", f"sqlite:///{other}")
    worked.config.write_text(f'url = "sqlite:///{other}"\n')
    level, sentence = planted(worked, "one place")
    assert level == "warning"
    assert f"{worked.database} has 1 unfinished job and 1 live worker" in sentence
    assert str(other) in sentence


def test_jobs_left_outside_of_the_project_are_found(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(terminal.home)
    terminal("enqueue", '{"job": "x"}')
    monkeypatch.chdir(terminal.project)
    assert f"{terminal.home}/state/holdfast/jobs.db" in planted(terminal, "one place")[1]


def test_a_variable_that_others_lack_is_found(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{terminal.home}/mine.db")
    assert "HOLDFAST_URL is set; processes without it use" in planted(terminal, "one place")[1]


# Keys


def test_a_key_others_can_read_is_found(worked: Terminal) -> None:
    key = worked.database.parent / "signing.key"
    key.chmod(0o640)
    assert planted(worked, "keys")[1] == f"{key} holds the signing keys and others can read it"
    [advice] = [each["advice"] for each in findings(worked) if each["check"] == "keys"]
    assert advice == f"chmod 600 {key}"


def test_a_key_that_git_would_keep_is_found(worked: Terminal) -> None:
    directory = worked.database.parent
    subprocess.run(["git", "init", "--quiet", directory], check=True)
    assert found_in(worked, "keys") == []  # our own .gitignore is there
    (directory / ".gitignore").unlink()
    level, sentence = planted(worked, "keys")
    assert (level, sentence.split(":")[0]) == ("warning", f"git does not ignore {directory / 'signing.key'}")
    (directory / ".gitignore").write_text("*.key\n")
    assert found_in(worked, "keys") == []


def test_a_key_that_was_lost_is_found(worked: Terminal) -> None:
    (worked.database.parent / "signing.key").unlink()
    assert "is missing, and the jobs were signed with it" in planted(worked, "keys")[1]


def test_a_key_file_that_is_not_there_is_found(terminal: Terminal) -> None:
    terminal.config.write_text('signing-key-file = "keys/nowhere.key"\n')
    assert "nowhere.key: No such file or directory" in planted(terminal, "keys")[1]


def test_another_key_than_that_of_the_jobs_is_found(worked: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", SigningKey.generate_text())
    assert "signed with another key" in planted(worked, "keys")[1]


def test_another_installation_than_that_of_the_jobs_is_found(worked: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_INSTALLATION", "staging")
    assert "or for an installation other than 'staging'" in planted(worked, "keys")[1]
    answer = worked("enqueue", '{"job": "add"}')
    assert answer.code != 0
    assert "or for an installation other than 'staging'" in " ".join(answer.err.split())


def test_two_keys_for_one_file_are_found(worked: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    old = (worked.database.parent / "signing.key").read_text().strip()
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", f"{SigningKey.generate_text()},{old}")
    assert found_in(worked, "keys") == []
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", SigningKey.generate_text())
    worked.database.unlink()
    assert "and this one rejects theirs" in planted(worked, "keys")[1]


def test_a_key_that_is_too_short_is_found_and_not_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "s3cr3t")
    answer = terminal("doctor")
    assert answer.code == 1
    assert "at least 32 bytes" in " ".join(answer.out.split())
    assert "s3cr3t" not in answer.out


def test_a_server_without_a_key_is_found(terminal: Terminal) -> None:
    found = findings(terminal, "--url", "redis://127.0.0.1:1/0")
    wrong = {each["check"]: each["message"] for each in found if each["level"] == "error"}
    assert "all of them need the same signing key" in wrong["keys"]
    assert "cannot be used now" in wrong["engine"]


def test_signatures_that_are_switched_off_are_found(terminal: Terminal) -> None:
    terminal.config.write_text("verify = false\nallow-unsigned = true\n")
    assert planted(terminal, "keys")[0] == "warning"


# Leases and grace


@pytest.mark.parametrize(
    ("settings", "grace", "kill_after", "level", "why"),
    [
        (Settings(), 0.5, 10, Level.WARNING, "the grace period is 500 ms"),
        (Settings(), 30, 90, Level.WARNING, "longer than the lease of 60 s"),
        (Settings(timeout=5), 30, 10, Level.NOTE, "longer than the timeout of jobs, 5 s"),
    ],
)
def test_options_of_workers_that_contradict_the_settings_are_found(
    settings: Settings, grace: float, kill_after: float, level: Level, why: str
) -> None:
    [found] = worker_option_findings(settings, grace_s=grace, kill_after_s=kill_after)
    assert found.level is level
    assert why in found.message


def test_the_grace_of_the_workers_is_told_by_an_option(terminal: Terminal) -> None:
    assert found_in(terminal, "settings") == []
    assert "--kill-after is 90 s" in planted(terminal, "settings", "--kill-after", "90s")[1]


def test_a_strict_doctor_fails_for_warnings(terminal: Terminal) -> None:
    terminal.config.write_text("crash-limit = 1\n")
    assert terminal("doctor").code == 0
    assert terminal("doctor", "--strict").code == 1


# Workers, queues, handlers


def test_a_worker_that_is_lost_is_found(worked: Terminal) -> None:
    with Holdfast(directory=worked.project) as hf:
        lose(WorkerRegistry(hf.backend().state), "b" * 32, running=3)
    level, sentence = planted(worked, "workers")
    assert level == "warning"
    assert "worker bbbbbbbb (pid 4121 on web-1) is lost" in sentence
    assert "3 jobs" in sentence


def test_a_queue_without_a_worker_is_found(worked: Terminal) -> None:
    worked("enqueue", "--queue", "defaults", '{"job": "add"}')
    level, sentence = planted(worked, "queues")
    assert level == "error"
    assert sentence == (
        "defaults has 1 job waiting and no worker; a worker processes 'default': is one of the names misspelled?"
    )


def test_where_no_job_waits_no_worker_is_claimed(terminal: Terminal) -> None:
    terminal("enqueue", "--id", "a", "--job", "add")
    assert "start one:  holdfast worker start APP" in [each["advice"] for each in findings(terminal)]
    terminal("cancel", "a")
    said = {each["check"]: each["message"] for each in findings(terminal)}
    assert said["queues"] == "no jobs are waiting"


def test_a_paused_queue_is_worth_a_note(worked: Terminal) -> None:
    with Holdfast(directory=worked.project) as hf:
        hf.backend().pause("default", "until noon")
    notes = [each["message"] for each in findings(worked) if (each["check"], each["level"]) == ("queues", "note")]
    assert notes == ["default is paused (until noon), with 1 job waiting"]


APP = """
from holdfast import Holdfast

hf = Holdfast(allowlist={"mail": ["send"]})


@hf.job
def subtract(a: int, b: int) -> int:
    return a - b


@hf.job
def send(to: str) -> None:
    pass
"""


def test_handlers_the_application_lacks_are_found(worked: Terminal) -> None:
    worked.write("shop.py", APP)
    for job, queue in (("subtrac", "default"), ("subtract", "mail"), ("send", "mail")):
        worked("enqueue", "--queue", queue, f'{{"job": "{job}"}}')
    sentences = [sentence for _, sentence in found_in(worked, "handlers", "--app", "shop:hf")]
    assert len(sentences) == 3
    assert any("'add'" in sentence for sentence in sentences)
    assert any("did you mean 'subtract'?" in sentence for sentence in sentences)
    assert any("queue 'mail' may not run handler 'subtract'" in sentence for sentence in sentences)
    assert all("1 waiting job cannot be run by shop:hf" in sentence for sentence in sentences)


def test_handlers_no_worker_has_are_found_without_an_application(worked: Terminal) -> None:
    worked("enqueue", '{"job": "ad"}')
    level, sentence = planted(worked, "handlers")
    assert level == "error"
    assert "no live worker of queue 'default' has the handler 'ad'; did you mean 'add'?" in sentence


def test_an_application_that_cannot_be_imported_is_a_finding(terminal: Terminal) -> None:
    assert "there is no module 'nowhere'" in planted(terminal, "settings", "--app", "nowhere:hf")[1]


# What it looks like


def test_advice_is_printed_whole_and_sentences_fit_the_terminal(
    worked: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked.database.chmod(0o644)
    monkeypatch.setenv("COLUMNS", "60")
    lines = worked("doctor").out.splitlines()
    assert f"              → chmod 600 {worked.database}" in lines
    words = [line for line in lines if "→" not in line and "/" not in line]
    assert all(len(line) <= 60 for line in words)
    assert lines[-1] == "1 warning"


COMMAND = "python -c 'import secrets; print(secrets.token_hex(32))'"


@pytest.mark.parametrize("width", [None, "60"])
def test_a_command_in_a_sentence_is_printed_whole(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, width: str | None
) -> None:
    terminal.config.write_text('url = "redis://127.0.0.1:1/0"\n')
    if width is not None:
        monkeypatch.setenv("COLUMNS", width)
    lines = terminal("doctor").out.splitlines()
    [told] = [line for line in lines if COMMAND in line]
    assert told.startswith("✗ keys") if width is None else told.strip() == COMMAND


def test_in_a_pipe_a_finding_is_one_line(terminal: Terminal) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}/{"long" * 30}/{"way" * 30}/jobs.db"\n')
    lines = terminal("doctor").out.splitlines()
    [at] = [at for at, line in enumerate(lines) if line.endswith("long does not exist")]
    told, advice = lines[at : at + 2]
    assert told.startswith(f"✗ settings    url in {terminal.config}:1: the directory {terminal.home}/long")
    assert advice.startswith("              → name another file, or create it with  mkdir -p ")


def test_the_database_is_still_ours_alone(worked: Terminal) -> None:
    worked("doctor")
    assert stat.S_IMODE(worked.database.stat().st_mode) == 0o600
