"""The command line as a program: how it starts, where it looks, what its errors and exit codes are."""

import json
import sqlite3
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import COMMANDS, SECTIONS
from holdfast.errors import BackendError
from holdfast.queues.engines.sqlite.records import SqliteRecords

from .terminal import Answer, Terminal

LOADED = """
import sys
from holdfast.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""

LEAVES = [
    "run",
    "enqueue",
    "worker start",
    "worker list",
    "worker show",
    "worker stop",
    "list",
    "show",
    "graph",
    "logs",
    "wait",
    "cancel",
    "retry",
    "delete",
    "status",
    "top",
    "queue list",
    "queue show",
    "queue limit",
    "queue pause",
    "queue resume",
    "queue work",
    "queue reap",
    "queue purge",
    "lock list",
    "lock show",
    "breaker list",
    "breaker show",
    "breaker reset",
    "breaker trip",
    *(f"cronjob {verb}" for verb in ("list", "show", "history", "next", "enable", "disable", "add", "remove")),
    *("cronjob run", "cronjob daemon"),
    "dlq list",
    "dlq show",
    "dlq retry",
    "dlq discard",
    "config get",
    "config list",
    "config set",
    "config unset",
    "config path",
    "config check",
    "backend info",
    "migrate",
    "health",
    "doctor",
    "generate systemd",
    "generate docker",
    "generate compose",
    "completion show",
    "schema",
    "help",
    "version",
]
TEXT_ONLY = [
    *("cronjob daemon", "generate systemd", "generate docker", "generate compose", "completion show", "schema"),
    *("help", "version"),
]


# Starting


@pytest.mark.parametrize("program", ["holdfast", "queuectl"])
def test_both_names_are_the_same_program(terminal: Terminal, program: str) -> None:
    [entry] = entry_points(group="console_scripts", name=program)
    assert entry.value == "holdfast.cli:main"
    script = Path(sysconfig.get_path("scripts")) / program
    answer = terminal.program("version", program=(str(script),))
    assert answer == terminal("version")
    assert answer.code == 0


def test_the_package_can_be_run_as_a_module(terminal: Terminal) -> None:
    answer = terminal.program("version")
    assert answer.code == 0
    assert answer.out.startswith(f"holdfast {holdfast.__version__} ")


def test_the_version_names_what_matters_for_a_report(terminal: Terminal) -> None:
    python = ".".join(map(str, sys.version_info[:3]))
    assert (
        terminal("version").out
        == f"holdfast {holdfast.__version__} (python {python}, sqlite {sqlite3.sqlite_version})\n"
    )


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_loads_neither_the_application_nor_its_libraries(terminal: Terminal, word: str) -> None:
    answer = terminal.program(word, program=(sys.executable, "-c", LOADED))
    assert answer.code == 0
    loaded = set(answer.err.splitlines()[-1].split())
    assert "holdfast.cli" in loaded
    for module in ("msgspec", "holdfast.app", "holdfast.config", "sqlite3", "tomlkit", "platformdirs", "asyncio"):
        assert module not in loaded, module


def test_the_version_is_also_an_option(terminal: Terminal) -> None:
    assert terminal("--version") == Answer(0, f"holdfast {holdfast.__version__}\n", "")


def test_help_lists_every_command_with_a_summary_and_examples(terminal: Terminal) -> None:
    answer = terminal("--help")
    assert (answer.code, answer.err) == (0, "")
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name}" in answer.out
        assert summary in " ".join(answer.out.split())
    assert "holdfast run -- echo hello" in answer.out


def test_help_groups_the_commands_in_the_order_people_need_them(terminal: Terminal) -> None:
    lines = terminal("--help").out.splitlines()
    headings = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [*SECTIONS, "Options"]
    assert list(SECTIONS) == ["Jobs", "Workers", "Operations", "Set-up"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--help"], "Usage: queuectl [OPTIONS] COMMAND [ARGS]..."),
        (["worker", "start", "--help"], "Usage: queuectl worker start [OPTIONS] [APP]"),
        (["status", "--qeue"], "Usage: queuectl status [OPTIONS]"),
        (["nothing"], "Error: No such command 'nothing'. queuectl --help lists the commands."),
    ],
)
def test_queuectl_calls_itself_by_its_name(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/queuectl"])
    answer = terminal(*words)
    assert line in (answer.out + answer.err).splitlines()


def test_every_command_is_where_the_table_says_and_explains_itself(terminal: Terminal) -> None:
    assert {leaf.split()[0] for leaf in LEAVES} == set(COMMANDS)
    for leaf in LEAVES:
        answer = terminal(*leaf.split(), "--help")
        assert answer.code == 0
        assert answer.out.startswith(f"Usage: holdfast {leaf} ")
        assert ("\n  --json " in answer.out) == (leaf not in TEXT_ONLY)


@pytest.mark.parametrize("leaf", TEXT_ONLY)
def test_a_command_without_documents_refuses_json(terminal: Terminal, leaf: str) -> None:
    answer = terminal(*leaf.split(), "--json")
    assert answer.code == 2
    assert "prints text only; leave out --json" in answer.error["message"]


def test_without_a_command_it_shows_its_help(terminal: Terminal) -> None:
    answer = terminal()
    assert answer.code == 2
    assert "Operations:" in answer.out + answer.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["enqeue", "{}"], "No such command 'enqeue'. Did you mean 'enqueue'?"),
        (["stat"], "No such command 'stat'. Did you mean 'status'?"),
        (["frobnicate"], "No such command 'frobnicate'."),
        (["dlq", "retri"], "No such command 'retri'."),
        (["worker", "strat"], "No such command 'strat'."),
        (["status", "--qeue", "x"], "No such option '--qeue'."),
    ],
)
def test_a_mistyped_command_is_refused_with_a_suggestion(terminal: Terminal, words: list[str], hint: str) -> None:
    answer = terminal(*words)
    assert (answer.code, answer.out) == (2, "")
    assert hint in answer.err
    assert not terminal.database.exists()


# Where the jobs are


def test_inside_a_project_they_are_in_the_project(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = terminal.project / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert terminal("status").out == f"{terminal.database}\n"
    assert terminal("enqueue", '{"job": "x"}').code == 0
    assert sorted(path.name for path in terminal.database.parent.iterdir() if path.suffix in (".db", ".key")) == [
        "jobs.db",
        "signing.key",
    ]


def test_outside_any_project_they_are_the_users_own(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(terminal.home)
    assert terminal("status").out == f"{terminal.home}/state/holdfast/jobs.db\n"
    assert list(terminal.home.glob(".holdfast")) == []


def test_an_option_wins_over_a_variable_and_that_over_the_file(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(*words: str) -> str:
        return str(terminal("status", *words, "--json").json["location"])

    places = [str(terminal.home / f"{name}.db") for name in ("file", "variable", "option")]
    terminal.config.write_text(f'url = "sqlite:///{places[0]}"\n')
    assert place() == places[0]
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{places[1]}")
    assert place() == places[1]
    terminal("migrate", "--url", f"sqlite:///{places[2]}")
    assert place("--url", f"sqlite:///{places[2]}") == places[2]


def test_looking_at_a_database_that_is_not_there_does_not_make_one(terminal: Terminal) -> None:
    answer = terminal("list", "--url", f"sqlite:///{terminal.home}/typo.db")
    assert answer.code == 2
    assert answer.err.startswith(f"holdfast: there is no database at {terminal.home}/typo.db: pass another --url")
    assert not (terminal.home / "typo.db").exists()


ONLY_LOOK = {
    "status": 0,
    "list": 0,
    "queue list": 0,
    "worker list": 0,
    "dlq list": 0,
    "show job1": 3,
    "logs job1": 3,
    "wait job1": 3,
    "dlq show job1": 3,
    "queue show mail": 3,
    "worker show w1": 3,
    "cancel job1": 3,
    "retry job1": 3,
    "delete job1 --yes": 3,
    "queue resume mail": 0,
    "queue reap": 0,
    "queue purge mail": 0,
    "queue pause mail --dry-run": 0,
    "worker stop --all": 0,
}


@pytest.mark.parametrize(("words", "code"), ONLY_LOOK.items())
@pytest.mark.parametrize("place", [None, "empty/jobs.db", "missing/deeper/jobs.db"])
def test_where_there_is_no_database_yet_looking_finds_nothing_and_makes_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: str, code: int, place: str | None
) -> None:
    if place is not None:
        monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{terminal.home}/{place}")
    before = sorted(terminal.home.rglob("*"))
    assert terminal(*words.split()).code == code
    assert sorted(terminal.home.rglob("*")) == before


def test_watching_a_database_that_does_not_exist_yet_shows_its_first_job(terminal: Terminal) -> None:
    watching = terminal.start("status", "--watch=10ms", "--json")
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["queues"] == {}
    terminal("enqueue", '{"id": "job1", "job": "x"}')
    assert any(json.loads(line)["queues"] for line in watching.stdout)
    watching.terminate()


@pytest.mark.parametrize("named_by", ["option", "variable", "file"])
def test_no_database_is_made_below_a_directory_that_is_not_there(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    place = terminal.home / "typo" / "app" / "jobs.db"
    url, option = f"sqlite:///{place}", list[str]()
    if named_by == "option":
        option = ["--url", url]
    elif named_by == "variable":
        monkeypatch.setenv("HOLDFAST_URL", url)
    else:
        terminal.config.write_text(f'url = "{url}"\n')
    for words in (
        ["enqueue", '{"job": "x"}'],
        ["worker", "start", "--burst"],
        ["run", "--", "true"],
        ["migrate"],
    ):
        sentence = refused(terminal(*option, *words), 2, place)
        assert f"the directory {terminal.home}/typo does not exist, so {place} was not created" in sentence
        assert f"mkdir -p {terminal.home}/typo" in sentence
    assert not (terminal.home / "typo").exists()
    (terminal.home / "typo").mkdir()
    assert terminal("enqueue", *option, '{"job": "x"}').code == 0
    assert place.exists()


@pytest.mark.parametrize("name", ["c#", "what?", "100%", "with space", "grüße"])
def test_a_project_may_be_called_anything(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    project = terminal.home / name
    project.mkdir()
    (project / "holdfast.toml").touch()
    monkeypatch.chdir(project)
    assert terminal("status").out == f"{project}/.holdfast/jobs.db\n"
    terminal("migrate")
    assert (project / ".holdfast" / "jobs.db").exists()
    assert sorted(path.name for path in terminal.home.iterdir()) == [name]


# Places that cannot be used


def refused(answer: Answer, code: int, place: Path) -> str:
    """The one sentence of a refusal, which names the place."""
    assert (answer.code, answer.out) == (code, "")
    assert str(place) in answer.err
    [sentence, *hints] = answer.err.splitlines()
    assert all(hint.startswith("  ") for hint in hints)
    return sentence


def test_a_file_that_is_no_database_is_left_alone(terminal: Terminal) -> None:
    path = terminal.write("notes.txt", "Dear diary, " * 200)
    sentence = refused(terminal("status", "--url", f"sqlite:///{path}"), 4, path)
    assert "is not an SQLite database; choose another file" in sentence
    assert path.read_text() == "Dear diary, " * 200


@pytest.fixture
def foreign(terminal: Terminal) -> Path:
    """The database of another program."""
    path = terminal.project / "shop.db"
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE orders (id INTEGER)")
        database.execute("INSERT INTO orders VALUES (7)")
    database.close()
    return path


def test_a_database_of_another_program_is_used_only_when_asked(terminal: Terminal, foreign: Path) -> None:
    before = foreign.read_bytes()
    option = ["--url", f"sqlite:///{foreign}"]
    for words in (
        ["status", *option],
        ["enqueue", *option, '{"job": "x"}'],
        ["worker", "start", *option, "--burst"],
        ["run", *option, "--", "true"],
    ):
        sentence = refused(terminal(*words), 4, foreign)
        assert "belongs to another program (it has the table 'orders')" in sentence
        assert "holdfast migrate" in sentence
    assert foreign.read_bytes() == before
    assert terminal("migrate", *option).out == f"✓ {foreign} is up to date: schema 7 created\n"
    assert terminal("enqueue", *option, '{"id": "job1", "job": "x"}').code == 0
    database = sqlite3.connect(foreign)
    assert database.execute("SELECT id FROM orders").fetchall() == [(7,)]
    database.close()


def test_a_place_that_is_refused_is_left_without_a_key_of_ours(terminal: Terminal, foreign: Path) -> None:
    terminal("status", "--url", f"sqlite:///{foreign}")
    assert sorted(path.name for path in terminal.project.iterdir()) == ["holdfast.toml", "shop.db"]


def test_a_database_of_a_newer_holdfast_is_left_alone(terminal: Terminal) -> None:
    terminal("migrate")
    database = sqlite3.connect(terminal.database)
    with database:
        database.execute("INSERT INTO holdfast_schema VALUES (99, 0)")
    database.close()
    sentence = refused(terminal("enqueue", '{"job": "x"}'), 4, terminal.database)
    assert "has schema 99, written by a newer Holdfast" in sentence


def test_a_directory_is_no_file(terminal: Terminal) -> None:
    refused(terminal("status", "--url", f"sqlite:///{terminal.home}"), 5, terminal.home)


def test_a_file_is_no_directory(terminal: Terminal) -> None:
    answer = terminal("status", "--url", f"sqlite:///{terminal.config}/jobs.db")
    assert answer.code in (2, 5)
    refused(answer, answer.code, terminal.config)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("jobs.db", "'jobs.db' does not name an engine"),
        ("mongodb://ada:hunter2@host/db", "'mongodb://ada:…@host/db' does not name an engine"),
        ("sqlite://jobs.db", "has two slashes"),
        ("sqlite:///", "does not name a file"),
        ("http://[half", "is not a valid URL"),
        ("sqlite:///jobs.db?cache=shared", "'cache' is not an option of sqlite URLs; known: prefix"),
    ],
)
def test_a_url_that_cannot_be_used_is_explained(terminal: Terminal, url: str, why: str) -> None:
    answer = terminal("status", "--url", url)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
    assert "hunter2" not in answer.err


def test_a_wrong_signing_key_is_explained_and_not_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal("enqueue", '{"job": "x"}')
    for key, why in (("s3cr3t", "at least 32 bytes"), ("s3cr3t" * 8, "signed with another key")):
        monkeypatch.setenv("HOLDFAST_SIGNING_KEY", key)
        answer = terminal("worker", "start", "--burst")
        assert answer.code == 2
        assert why in answer.err
        assert "s3cr3t" not in answer.err


def test_a_key_file_others_can_read_is_refused(terminal: Terminal) -> None:
    terminal("enqueue", '{"job": "x"}')
    key_file = terminal.database.parent / "signing.key"
    key_file.chmod(0o644)
    answer = terminal("enqueue", '{"job": "x"}')
    assert answer.code == 2
    assert f"chmod 600 {key_file}" in answer.err
    assert terminal("status").code == 0, "reading needs no key"


def test_a_lost_key_is_not_replaced_by_a_new_one(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal("enqueue", '{"id": "job1", "job": "x"}')
    key_file = terminal.database.parent / "signing.key"
    key = key_file.read_text()
    key_file.unlink()
    for words in (["enqueue", '{"job": "x"}'], ["worker", "start", "--burst"]):
        sentence = refused(terminal(*words), 2, key_file)
        assert f"{key_file} is missing, and the jobs in {terminal.database} were signed with it" in sentence
    assert not key_file.exists()
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", key)
    assert [job["id"] for job in terminal.jobs()] == ["job1"]


def test_jobs_and_key_of_a_project_stay_out_of_its_history(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal("enqueue", '{"job": "x"}')
    ignored = terminal.database.parent / ".gitignore"
    assert ignored.read_text() == "*\n"
    ignored.write_text("jobs.db*\n")
    terminal("enqueue", '{"job": "x"}')
    assert ignored.read_text() == "jobs.db*\n"
    monkeypatch.chdir(terminal.home)
    terminal("enqueue", '{"job": "x"}')
    assert not (terminal.home / "state" / "holdfast" / ".gitignore").exists()


# Errors and exit codes


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        ("show --json nobody", 3, "UnknownJob"),
        ("status --json --url nothing", 2, "ConfigError"),
        ("list --json --after x", 2, "ConfigError"),
        ("list --json --limit 0", 2, "BadParameter"),
        ("config get --json nothing", 2, "ConfigError"),
        ("worker start --json nowhere", 2, "ConfigError"),
        ("run --json --url nothing true", 2, "ConfigError"),
        ("dlq retry --json", 2, "UsageError"),
        ("show --json", 2, "MissingParameter"),
    ],
)
def test_as_json_every_error_is_one_document_on_stderr(terminal: Terminal, words: str, code: int, kind: str) -> None:
    answer = terminal(*words.split())
    assert answer.code == code
    assert answer.error["code"] == kind
    sentence = terminal(*words.replace(" --json", "").split())
    assert sentence.code == code
    assert answer.error["message"].strip() in sentence.err


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["list"],
        ["worker", "list"],
        ["worker", "stop", "--all", "--wait"],
        ["dlq", "list"],
        ["dlq", "retry", "--all"],
        ["dlq", "discard", "--all", "--yes"],
        ["config", "get"],
        ["config", "get", "lease"],
        ["config", "set", "lease", "5"],
        ["backend", "info"],
        ["migrate"],
        ["migrate", "--sql"],
        ["health"],
        ["doctor"],
        ["top"],
        ["enqueue", '{"job": "x"}'],
    ],
    ids=" ".join,
)
def test_as_json_stdout_is_one_document_and_nothing_else(terminal: Terminal, words: list[str]) -> None:
    answer = terminal(*words, "--json")
    assert answer.code == 0
    assert json.loads(answer.out) is not None
    assert len(answer.out.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["show", "\udcff"],
        ["list", "--queue", "\udcff"],
        ["list", "--job", "\udcff"],
        ["list", "--where", "\udcff"],
        ["status", "--queue", "\udcff"],
        ["dlq", "retry", "\udcff"],
        ["cancel", "\udcff"],
        ["enqueue", "--", "\udcff"],
        ["enqueue", "--id", "\udcff", '{"job": "x"}'],
        ["run", "--", "echo", "\udcff"],
        ["config", "set", "url", "\udcff"],
        ["config", "get", "\udcff"],
    ],
    ids=lambda words: " ".join(words[:-1]),
)
def test_an_argument_that_is_no_text_is_refused_in_one_sentence(terminal: Terminal, words: list[str]) -> None:
    answer = terminal(*words)
    assert answer.code in (2, 4)
    assert answer.out == ""
    assert terminal.config.read_text() == ""


def test_ctrl_c_ends_any_command_as_an_interrupt(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: SqliteRecords, queue: str | None = None) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(SqliteRecords, "counts", interrupted)
    answer = terminal("status")
    assert (answer.code, answer.err.strip()) == (130, "interrupted")


def test_an_error_of_the_engine_is_a_sentence(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: SqliteRecords, queue: str | None = None) -> object:
        raise BackendError("jobs.db is damaged: restore it from a backup")

    monkeypatch.setattr(SqliteRecords, "counts", damaged)
    answer = terminal("status")
    assert (answer.code, answer.err) == (1, "holdfast: jobs.db is damaged: restore it from a backup\n")


def test_an_error_of_the_system_is_a_sentence(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: SqliteRecords, queue: str | None = None) -> object:
        raise OSError(5, "Input/output error", "jobs.db")

    monkeypatch.setattr(SqliteRecords, "counts", failing)
    answer = terminal("status")
    hint = "  diagnose it:  holdfast doctor\n"
    assert (answer.code, answer.err) == (5, f"holdfast: jobs.db: Input/output error\n{hint}")


def test_an_error_of_ours_is_not_hidden(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(self: SqliteRecords, queue: str | None = None) -> object:
        raise AttributeError("a mistake of ours")

    monkeypatch.setattr(SqliteRecords, "counts", buggy)
    with pytest.raises(AttributeError, match="a mistake of ours"):
        terminal("status")


def test_whoever_reads_only_the_beginning_ends_the_command_quietly(terminal: Terminal) -> None:
    lines = "".join(f'{{"id": "job{number}", "job": "x", "payload": "{"x" * 100}"}}\n' for number in range(2000))
    terminal("enqueue", "-", stdin=lines)
    process = terminal.start("list", "--json", "--limit", "10000")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(2) == "[{"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) in (0, 1)


# The schema


def test_migrating_is_safe_to_repeat_and_keeps_the_jobs(terminal: Terminal) -> None:
    assert terminal("migrate").out == f"✓ {terminal.database} is up to date: schema 7 created\n"
    terminal("enqueue", '{"id": "job1", "job": "x"}')
    again = terminal("migrate", "--json").json
    assert again["location"] == str(terminal.database)
    assert (again["database_schema"], again["change"], again["before"], again["version"]) == ("current", "none", 7, 7)
    assert terminal("migrate").out == f"✓ {terminal.database} is up to date: schema 7 already exists\n"
    assert [job["id"] for job in terminal.jobs()] == ["job1"]


def test_a_dry_run_of_a_migration_reports_it_and_does_nothing(terminal: Terminal) -> None:
    def planned() -> tuple[object, ...]:
        document = terminal("migrate", "--dry-run", "--json").json
        return tuple(document[name] for name in ("database_schema", "change", "before", "version"))

    assert terminal("migrate", "--dry-run").out == f"{terminal.database}: would create schema 7\n"
    assert planned() == ("missing", "none", 0, 0)
    assert not terminal.database.exists()
    terminal("migrate")
    assert terminal("migrate", "--dry-run").out == f"{terminal.database}: schema 7 already exists; nothing to do\n"
    assert planned() == ("current", "none", 7, 7)
    database = sqlite3.connect(terminal.database)
    with database:
        database.execute("INSERT INTO holdfast_schema VALUES (99, 0)")
    database.close()
    answer = terminal("migrate", "--dry-run")
    assert answer.out == f"{terminal.database}: schema 99 is newer than this program's 7: upgrade Holdfast here\n"
    assert planned() == ("newer", "none", 99, 99)


def test_a_table_prefix_keeps_two_sets_of_jobs_in_one_file(terminal: Terminal) -> None:
    url = f"sqlite:///{terminal.home}/jobs.db"
    terminal("migrate", "--url", f"{url}?prefix=a_")
    terminal("migrate", "--url", f"{url}?prefix=b_")
    terminal("enqueue", '{"id": "job1", "job": "x"}', "--url", f"{url}?prefix=a_")
    assert len(terminal("list", "--json", "--url", f"{url}?prefix=a_").json) == 1
    assert terminal("list", "--json", "--url", f"{url}?prefix=b_").json == []
