"""`holdfast backend info` and `holdfast migrate --sql`: looking and printing, where nothing may be made by it."""

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from holdfast.queues.engines.sqlite.engine import SqliteEngine

from .terminal import Terminal

SQLITE = f"SQLite {sqlite3.sqlite_version}"
LATER_TABLES = (
    "progress",
    "live_output",
    "cells",
    "buckets",
    "slots",
    "places",
    "blocked",
    "uniques",
    "edges",
    "notes",
)


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


@pytest.mark.parametrize(
    "words",
    [
        ["backend", "info"],
        ["backend", "info", "sqlite:///elsewhere/jobs.db"],
        ["backend", "info", "memory://"],
        ["migrate", "--sql"],
        ["migrate", "--sql", "--url", "sqlite:///elsewhere/jobs.db"],
        # Nobody is there, and nobody is needed.
        ["migrate", "--sql", "--url", "postgresql://ada@127.0.0.1:1/shop"],
        ["migrate", "--sql", "--url", "mysql://ada@127.0.0.1:1/shop"],
    ],
    ids=" ".join,
)
def test_looking_and_printing_make_nothing_and_need_no_key(terminal: Terminal, words: list[str]) -> None:
    terminal.config.write_text('signing-key-file = "lost.key"\n')
    for more in ([], ["--json"]):
        assert terminal(*words, *more).code == 0
    assert everything_in(terminal.project.parent) == {
        str(terminal.project): b"",
        str(terminal.home): b"",
        str(terminal.config): terminal.config.read_bytes(),
    }


def test_a_database_is_described_and_left_as_it_is(terminal: Terminal) -> None:
    assert terminal("migrate").code == 0
    before = everything_in(terminal.project)
    answer = terminal("backend", "info")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[:8] == [
        f"location   {terminal.database}",
        "engine     sqlite",
        f"server     {SQLITE}",
        "names      holdfast_…",
        "schema     7 (current)",
        "settings   journal_mode wal",
        "survives   process crash and power loss (every commit is fsynced)",
        "",
    ]
    assert everything_in(terminal.project) == before


def test_as_json_every_capability_is_there(terminal: Terminal) -> None:
    document = terminal("backend", "info", "--json").json
    assert document["capabilities"] == msgspec.structs.asdict(SqliteEngine.capabilities)
    assert document["database_schema"] == {"version": 0, "known": 7, "state": "missing"}


def test_an_older_schema_says_what_to_do(terminal: Terminal) -> None:
    terminal("migrate")
    with closing(sqlite3.connect(terminal.database, isolation_level=None)) as database:
        database.execute("DELETE FROM holdfast_schema WHERE version > 1")
        tables = [f"TABLE holdfast_{name}" for name in LATER_TABLES]
        for thing in (*tables, "INDEX holdfast_jobs_tally"):
            database.execute(f"DROP {thing}")
        database.execute("CREATE TABLE holdfast_facts (kind TEXT, fact TEXT)")
    assert "schema     1 is older than this program's 7; run  holdfast migrate\n" in terminal("backend", "info").out
    assert terminal("migrate").out == f"✓ {terminal.database} is up to date: schema upgraded from 1 to 7\n"


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_the_database_of_another_program_is_only_looked_at(terminal: Terminal, journal_mode: str) -> None:
    path = terminal.project / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode={journal_mode}")
        database.execute("CREATE TABLE orders (id INTEGER)")
    before = everything_in(terminal.project)
    answer = terminal("backend", "info", f"sqlite:///{path}", "--json")
    assert answer.json["database_schema"]["state"] == "missing"
    assert everything_in(terminal.project) == before


def test_a_file_that_is_no_database_is_refused(terminal: Terminal) -> None:
    path = terminal.write("notes.txt", "Dear diary, " * 200)
    answer = terminal("backend", "info", f"sqlite:///{path}")
    assert answer.code == 4
    assert answer.err == f"holdfast: {path} is not an SQLite database; choose another file\n"


@pytest.mark.parametrize("name", ["memory", "sync"])
def test_an_engine_of_one_process_has_no_schema_and_keeps_nothing(terminal: Terminal, name: str) -> None:
    document = terminal("backend", "info", f"{name}://", "--json").json
    assert document["engine"] == name
    assert document["database_schema"] is None
    assert document["survives"] == "nothing: jobs are lost when the process exits"
    assert "schema" not in terminal("backend", "info", f"{name}://").out.partition("CAPABILITY")[0]


def test_an_unreachable_server_is_an_error_behind_what_is_known(terminal: Terminal) -> None:
    answer = terminal("backend", "info", "redis://127.0.0.1:1/0?password=hunter2", "--json")
    assert answer.code == 5
    assert answer.json["server"] is None
    assert answer.json["location"] == "redis://127.0.0.1:1/0?password=…"
    assert answer.json["capabilities"]["durable"] is True
    assert '"code": "BackendUnavailable"' in answer.err
    assert "hunter2" not in answer.out + answer.err


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "memory://", "sync://"])
def test_where_there_are_no_tables_there_is_no_sql(terminal: Terminal, url: str) -> None:
    answer = terminal("migrate", "--sql", "--url", url)
    assert (answer.code, answer.out) == (2, "")
    assert "has no tables, so there is no SQL to print" in answer.err


def test_the_sql_as_json_is_the_sql_in_steps(terminal: Terminal) -> None:
    document = terminal("migrate", "--sql", "--json").json
    printed = terminal("migrate", "--sql").out
    assert document["location"] == str(terminal.database)
    steps = [(step["number"], step["name"]) for step in document["migrations"]]
    assert steps == [
        (1, "jobs"),
        (2, "workers"),
        (3, "tally"),
        (4, "live_output"),
        (5, "state"),
        (6, "slots"),
        (7, "edges"),
    ]
    at = -1
    for step in document["migrations"]:
        found = printed.find(step["sql"])
        assert found > at
        at = found
    # It can be fed to a tool as it is, remarks included.
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(printed)
        assert database.execute("SELECT version FROM holdfast_schema").fetchall() == [
            (1,),
            (2,),
            (3,),
            (4,),
            (5,),
            (6,),
            (7,),
        ]


def test_the_configured_prefix_is_in_the_sql(terminal: Terminal) -> None:
    terminal.config.write_text('table-prefix = "shop_"\n')
    assert "CREATE TABLE shop_jobs (" in terminal("migrate", "--sql").out
    assert 'CREATE TABLE "shop".jobs (' in terminal("migrate", "--sql", "--url", "postgresql://db/x").out
    printed = terminal("migrate", "--sql", "--url", "mysql://db/x?prefix=mine_").out
    assert "CREATE TABLE IF NOT EXISTS mine_jobs (" in printed
    assert "shop_" not in printed


def test_no_driver_is_needed_to_print_its_sql(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in ("psycopg", "pymysql"):
        monkeypatch.setitem(sys.modules, driver, None)
    for name in [name for name in sys.modules if re.search(r"engines\.(postgres|mysql)", name)]:
        monkeypatch.delitem(sys.modules, name)
    for url in ("postgresql://db/shop", "mysql://db/shop"):
        assert "CREATE TABLE" in terminal("migrate", "--sql", "--url", url).out
        assert "pip install" in terminal("migrate", "--url", url).err
        assert "pip install" in terminal("config", "check", "--url", url).out
