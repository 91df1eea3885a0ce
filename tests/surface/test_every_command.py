"""Every command of the command line keeps the same contract, in a pipe and on a terminal: one table, one set of laws.

The commands run in this process, on a real terminal where one is wanted; only `top`, which draws by itself, is started.
"""

import fcntl
import io
import json
import os
import pty
import re
import shlex
import shutil
import socket
import struct
import sys
import termios
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from holdfast import Holdfast
from holdfast.cli.schemas import DOCUMENTS, document
from holdfast.cli.words import is_ascii_locale
from holdfast.state.workers import WorkerRegistry
from holdfast.values import DeadReason, Entry, Outcome, RunningJob, Slot

from .registry import attempt, claim, lose, report
from .terminal import Answer, Terminal, undone
from .test_cli_program import LEAVES

ESCAPE = "\x1b"
HERE = socket.gethostname()
LIST = "list of "
LINES = "lines of "
NO_JSON = "no JSON"


class Case(NamedTuple):
    """One command as it is tried: what is typed, what it is to leave, and which of the laws concern it."""

    words: str
    # The document of --json: one, or behind LIST or LINES many; "" is any that is published, NO_JSON is none.
    prints: str
    # What is on stdout, and what is on stderr; nothing else than "" is nothing.
    out: str
    err: str = ""
    code: int = 0
    is_table: bool = False
    is_coloured: bool = False
    # Starts processes, so it is not tried in every way.
    is_slow: bool = False


CASES = {
    "run": Case("run -- true", "", "", "✓ true: completed", is_slow=True),
    "worker start": Case(
        "worker start --burst", LINES + "holdfast.worker.result/1", "command cmd1 done in", "nothing lost", is_slow=True
    ),
    "worker list": Case(
        "worker list --jobs",
        LIST + "holdfast.worker/1",
        "job7 add on mail",
        "lost: missed three heartbeats",
        is_table=True,
        is_coloured=True,
    ),
    "worker show": Case("worker show aa", "holdfast.worker/1", f"pid 4121 on {HERE}", is_coloured=True),
    "worker stop": Case("worker stop aa", LIST + "holdfast.worker.stop/1", "✓ aaaaaaaa asked to stop"),
    "list": Case("list", LIST + "holdfast.job/1", "job1", is_table=True, is_coloured=True),
    "show": Case("show dead1", "holdfast.job.shown/1", "no such order", is_coloured=True),
    "graph": Case("graph dead1", "holdfast.graph/1", "└─ kid1", is_table=True, is_coloured=True),
    "logs": Case("logs dead1", LIST + "holdfast.job.log/1", "", "#1 failed at"),
    "wait": Case("wait dead1", "holdfast.job.history/1", "", "✗ dead1 is dead", code=7),
    "cancel": Case("cancel job1", LIST + "holdfast.job.cancel/1", "✓ job1 cancelled"),
    "retry": Case("retry dead1", LIST + "holdfast.job.retry/1", "✓ dead1 requeued"),
    "delete": Case("delete dead1", LIST + "holdfast.job.delete/1", "✓ dead1 deleted"),
    "status": Case("status", "holdfast.status/1", "mail", is_table=True, is_coloured=True),
    "top": Case("top", "holdfast.status/1", "", "top needs a terminal", code=2),
    "queue list": Case(
        "queue list", LIST + "holdfast.queue/1", "mail", "no live worker for default", is_table=True, is_coloured=True
    ),
    "queue show": Case("queue show mail", "holdfast.queue/1", "worker       aaaa"),
    "queue limit": Case("queue limit keyed", "holdfast.queue.limit/1", "keyed: 60/min; 1 of 1 job can start now"),
    "queue pause": Case("queue pause mail", LIST + "holdfast.queue.pause/1", "✓ mail paused", "resume:  holdfast"),
    "queue resume": Case("queue resume slow", LIST + "holdfast.queue.resume/1", "✓ slow resumed"),
    "queue work": Case(
        "queue work --once", LINES + "holdfast.worker.result/1", "command cmd1 done in", "nothing lost", is_slow=True
    ),
    "queue reap": Case("queue reap mail", "holdfast.queue.reap/1", "✓ 0 jobs reaped"),
    "queue purge": Case("queue purge mail --state dead --yes", "holdfast.queue.purge/1", "", "no dead jobs in queue"),
    "lock list": Case("lock list", LIST + "holdfast.lock/1", "key:order-7", is_table=True, is_coloured=True),
    "lock show": Case("lock show key:order-7", "holdfast.lock/1", "held by", "to free the key, cancel the job"),
    "breaker list": Case("breaker list", LIST + "holdfast.breaker/1", "stripe", is_table=True, is_coloured=True),
    "breaker show": Case("breaker show stripe", "holdfast.breaker/1", "retry in", "to close the circuit now"),
    "breaker reset": Case(
        "breaker reset stripe", LIST + "holdfast.breaker.reset/1", "✓ stripe reset", "blocked jobs can run now"
    ),
    "breaker trip": Case(
        "breaker trip stripe", LIST + "holdfast.breaker.trip/1", "✓ stripe tripped", "reset:  holdfast"
    ),
    "cronjob list": Case(
        "cronjob list",
        LIST + "holdfast.cronjob/1",
        "every day at 01:00",
        "runs, newest on the right",
        is_table=True,
        is_coloured=True,
    ),
    "cronjob show": Case("cronjob show poll", "holdfast.cronjob/1", "every hour (every 1h)"),
    "cronjob history": Case(
        "cronjob history poll", LIST + "holdfast.cronjob.entry/1", "vendor is down", is_table=True, is_coloured=True
    ),
    "cronjob next": Case("cronjob next nightly -n 2", LIST + "holdfast.cronjob.instant/1", "01:00:00+0"),
    "cronjob enable": Case("cronjob enable nightly", LIST + "holdfast.cronjob.switch/1", "✓ nightly enabled"),
    "cronjob disable": Case(
        "cronjob disable nightly", LIST + "holdfast.cronjob.switch/1", "✓ nightly disabled", "enable:  holdfast"
    ),
    "cronjob add": Case(
        "cronjob add new --every 90s --job add", "holdfast.cronjob.add/1", "✓ new added", "every 90 seconds"
    ),
    "cronjob remove": Case("cronjob remove nightly", LIST + "holdfast.cronjob.remove/1", "✓ nightly removed"),
    "cronjob run": Case("cronjob run nightly", LIST + "holdfast.cronjob.run/1", "✓ nightly enqueued as "),
    "cronjob daemon": Case("cronjob daemon no_such:hf", NO_JSON, "", "there is no module 'no_such'", code=2),
    "dlq list": Case("dlq list", LIST + "holdfast.job/1", "dead1", is_table=True, is_coloured=True),
    "dlq show": Case("dlq show dead1", "holdfast.job.shown/1", "no such order", is_coloured=True),
    "dlq retry": Case("dlq retry dead1", LIST + "holdfast.job.retry/1", "✓ dead1 requeued"),
    "dlq discard": Case("dlq discard --all --yes", LIST + "holdfast.job.discard/1", "✓ dead1 discarded"),
    "config get": Case("config get lease", "holdfast.config.setting/1", "60"),
    "config list": Case(
        "config list", LIST + "holdfast.config.setting/1", "max-retries", "from ", is_table=True, is_coloured=True
    ),
    "config set": Case("config set lease 30", "holdfast.config.set/1", "✓ lease = 30", "written to"),
    "config unset": Case("config unset timeout", "holdfast.config.unset/1", "• timeout was not set", "in effect"),
    "config path": Case("config path", "holdfast.config.path/1", "holdfast.toml"),
    "config check": Case("config check", "holdfast.config.check/1", "✓ no problems found", "checked: "),
    "backend info": Case("backend info", "holdfast.backend/1", "CAPABILITY", is_table=True, is_coloured=True),
    "migrate": Case("migrate", "holdfast.migrate/1", "is up to date"),
    "health": Case("health --full", "holdfast.health/1", "unhealthy", code=1, is_table=True, is_coloured=True),
    "doctor": Case("doctor", "holdfast.doctor/1", "error", code=1, is_coloured=True),
    "generate systemd": Case("generate systemd --user jobs", NO_JSON, "[Service]", "then: "),
    "generate docker": Case("generate docker", NO_JSON, "FROM ", "then: "),
    "generate compose": Case("generate compose", NO_JSON, "services:", "then: "),
    "completion show": Case("completion show bash", NO_JSON, "_HOLDFAST_COMPLETE"),
    "schema": Case("schema", NO_JSON, "PRINTED BY", is_table=True, is_coloured=True),
    "help": Case("help states", NO_JSON, "due, waiting for a worker", is_table=True),
    "version": Case("version", NO_JSON, "holdfast "),
    "enqueue": Case(
        """enqueue '{"id": "new1", "job": "add"}'""", "holdfast.job.enqueue/1", "✓ new1 queued on default", "stored in "
    ),
}
# What does not concern every way of trying a command, but has a document of its own.
OTHERS = {
    "holdfast.job.count/1": "list --count",
    "holdfast.job.plan/1": "enqueue --job add n=1 --dry-run",
    "holdfast.job.rehearsal/1": "cancel job1 --dry-run",
    "holdfast.migrate.sql/1": "migrate --sql",
    "holdfast.error/1": "show nobody",
}
# What takes back nothing by itself, so it has to be tried before it is done.
CHANGES = [
    "worker stop aa",
    "cancel job1",
    "retry dead1",
    "delete dead1",
    "queue pause mail",
    "queue resume slow",
    "queue reap",
    "breaker reset stripe",
    "breaker trip stripe",
    "cronjob enable nightly",
    "cronjob disable nightly",
    "cronjob add new --every 90s --job add",
    "cronjob remove nightly",
    "cronjob run nightly",
    "queue purge mail --state all",
    "queue purge --all --state all",
    "dlq retry dead1",
    "dlq discard --all",
    "config set lease 30",
    "config unset timeout",
    "migrate",
]
# What would destroy more than was named: the question, with the exact number.
SEVERE = {
    "cancel --where state:pending": "this would cancel 2 jobs; pass --yes",
    "delete --where state:dead": "this would delete 1 job for good; pass --yes",
    "dlq discard --all": "this would discard 1 dead letter for good; pass --yes",
    "queue purge default --state dead": "this would permanently delete 1 dead job from queue default; pass --yes",
    "queue purge --all --state dead": "this would permanently delete 1 dead job from all queues; pass --confirm=all",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_project(tmp_path_factory.mktemp("template"))


def create_project(place: Path) -> Path:
    """A project with a dead job and its cancelled child, a job that holds a key, two waiting ones of which one is a
    command, two workers, a paused queue, an open circuit, and two schedules, of which one was skipped.
    """
    (place / "holdfast.toml").write_text('allowed-commands = ["true"]\nlimits = {keyed = "60/min"}\n')
    with Holdfast(directory=place) as hf:
        engine = hf.backend()
        hf.define("add").id("dead1").max_retries(0).dispatch()
        engine.abandon(claim(engine), DeadReason.FAILED, attempt(Outcome.FAILED, error="no such order"))
        hf.define("add").id("kid1").after("dead1").dispatch()
        hf.define("add").id("held1").queue("keyed").dispatch()
        engine.enter([Entry(lease=claim(engine, "keyed"), slots=(Slot(name="key:order-7"),))])
        hf.define("add").id("job1").queue("mail").dispatch()
        hf.define("command", {"argv": ["true"]}).id("cmd1").dispatch()
        running = RunningJob(id="job7", job="add", queue="mail", started_at=report("x").started_at)
        reported = report("a" * 32, host=HERE, queues=("mail:3",), jobs=(running,), running=1, done=1234)
        WorkerRegistry(engine.state).beat(reported)
        lose(WorkerRegistry(engine.state), "b" * 32)
        engine.pause("slow", "vendor is down")
        hf.breaker("stripe", cooldown="10m").trip()
        hf.schedule("nightly").define("add").queue("nightly").daily_at("01:00").timezone("Europe/Berlin").save()
        hf.schedule("poll").define("add").queue("nightly").every("1h").save()
        hf.schedule("poll").pause("vendor is down")
        hf.cron_runner().tick(datetime.now(UTC) + timedelta(hours=1), only=["poll"])
        hf.schedule("poll").resume()
    return place


class Desk:
    """A terminal whose project is as in the template before each command."""

    def __init__(self, terminal: Terminal, template: Path) -> None:
        self.terminal = terminal
        self._template = template

    def piped(self, *words: str, stdin: str = "") -> Answer:
        """What the command leaves in pipes."""
        self._restore()
        return self.terminal(*words, stdin=stdin)

    def seen(self, *words: str, columns: int = 80) -> tuple[int, str]:
        """What the command shows on a terminal of that width, and its exit code; nobody is at the keyboard."""
        code, shown = self.drawn(*words, columns=columns)
        return code, shown.decode(errors="replace").replace("\r\n", "\n")

    def drawn(self, *words: str, columns: int = 80) -> tuple[int, bytes]:
        """The same, with the bytes that the terminal received."""
        self._restore()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        shown = io.BytesIO()
        reader = threading.Thread(target=_drain, args=(ours, shown))
        reader.start()
        kept = sys.stdin, sys.stdout, sys.stderr
        try:
            with (
                undone(self.terminal.project),
                open(theirs, "r+b", buffering=0) as both,
                _Unattended(both, encoding="utf-8") as keyboard,
            ):
                screen = io.TextIOWrapper(io.BufferedWriter(both), encoding="utf-8", write_through=True)
                sys.stdin, sys.stdout, sys.stderr = keyboard, screen, screen
                code = self.terminal.call(*words)
                screen.flush()
        finally:
            sys.stdin, sys.stdout, sys.stderr = kept
            reader.join(30)
            os.close(ours)
        return code, shown.getvalue()

    def _restore(self) -> None:
        for place in (self.terminal.project, self.terminal.home):
            shutil.rmtree(place)
        shutil.copytree(self._template, self.terminal.project)
        self.terminal.home.mkdir()
        os.chdir(self.terminal.project)


class _Unattended(io.TextIOWrapper):
    """A keyboard nobody sits at: whoever asks there would wait for ever."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        raise AssertionError("somebody was asked")

    def read(self, size: int | None = -1, /) -> str:
        raise AssertionError("somebody was asked")


def _drain(descriptor: int, into: io.BytesIO) -> None:
    while True:
        try:
            said = os.read(descriptor, 65536)
        except OSError:  # so Linux says that nobody has the other end any more
            return
        if not said:
            return
        into.write(said)


@pytest.fixture
def desk(terminal: Terminal, template: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("TERM", "xterm")
    return Desk(terminal, template)


def test_the_table_has_every_command() -> None:
    assert sorted(CASES) == sorted(LEAVES)


def test_every_document_is_printed_by_a_command_that_is_tried() -> None:
    tried = {case.prints.removeprefix(LIST).removeprefix(LINES) for case in CASES.values()} | set(OTHERS)
    assert set(DOCUMENTS) - tried == set()


# In a pipe


@pytest.mark.parametrize("leaf", CASES)
def test_in_a_pipe_stdout_is_data_and_stderr_remarks(desk: Desk, leaf: str) -> None:
    case = CASES[leaf]
    answer = desk.piped(*shlex.split(case.words))
    assert (answer.code, ESCAPE in answer.out + answer.err) == (case.code, False)
    for said, expected in ((answer.out, case.out), (answer.err, case.err)):
        assert expected in said
        assert bool(said) == bool(expected)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("leaf", [leaf for leaf, case in CASES.items() if not case.is_slow])
def test_where_the_locale_is_plain_signs_are_ascii(desk: Desk, leaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C")
    answer = desk.piped(*shlex.split(CASES[leaf].words))
    assert (answer.code, answer.out.isascii(), answer.err.isascii()) == (CASES[leaf].code, True, True)


# As JSON


@pytest.mark.parametrize("leaf", [leaf for leaf, case in CASES.items() if case.prints != NO_JSON])
def test_as_json_it_prints_what_its_schema_says(desk: Desk, leaf: str) -> None:
    case = CASES[leaf]
    words = shlex.split(case.words)
    at = words.index("--") if "--" in words else len(words)
    answer = desk.piped(*words[:at], "--json", *words[at:])
    # What cannot be shown without a terminal can be told as JSON.
    assert answer.code == (0 if leaf == "top" else case.code)
    assert ESCAPE not in answer.out
    if case.prints.startswith(LINES):
        documents = [json.loads(line) for line in answer.out.splitlines()]
    else:
        [line] = answer.out.splitlines()
        documents = many(json.loads(line), is_many=case.prints.startswith(LIST))
    assert documents
    for each in documents:
        if not case.prints and "schema" not in each:
            pytest.skip(f"the document of '{leaf}' is not published yet")
        assert_published(desk, each, case.prints.removeprefix(LIST).removeprefix(LINES))


def many(printed: Any, *, is_many: bool) -> list[dict[str, Any]]:
    """The documents of an array, or the only one."""
    assert isinstance(printed, list) == is_many
    return list(printed) if is_many else [printed]


@pytest.mark.parametrize("name", OTHERS)
def test_its_other_documents_are_what_their_schemas_say(desk: Desk, name: str) -> None:
    answer = desk.piped(*OTHERS[name].split(), "--json")
    printed = json.loads(answer.out or answer.err)
    for each in many(printed, is_many=name.endswith("rehearsal/1")):
        assert_published(desk, each, name)


def assert_published(desk: Desk, printed: dict[str, Any], name: str) -> None:
    """It says which document it is, and is what the schema of that says, without anything else."""
    assert printed["schema"] == (name or printed["schema"])
    schema = desk.terminal("schema", printed["schema"]).json
    Draft202012Validator.check_schema(schema)
    validator: Any = Draft202012Validator(closed(schema))
    assert list(validator.iter_errors(printed)) == []
    assert not validator.is_valid({**printed, "surprise": 1})
    assert not validator.is_valid({**printed, "schema": "holdfast.other/1"})
    for moment in moments(printed):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", moment)


def closed(schema: dict[str, Any]) -> Any:
    """The schema, which lets members be added, as one that lets none: what is printed now is to be described now."""

    def close(members: dict[str, Any]) -> dict[str, Any]:
        return {**members, "additionalProperties": False} if "properties" in members else members

    return json.loads(json.dumps(schema), object_hook=close)


def moments(printed: dict[str, Any]) -> list[str]:
    """All instants within a document."""
    found: list[str] = []

    def note(members: dict[str, Any]) -> None:
        found.extend(each for name, each in members.items() if name.endswith(("_at", "_until", "since")) and each)

    json.loads(json.dumps(printed), object_hook=note)
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_a_schema_and_its_document_carries_its_name(name: str) -> None:
    assert document(name)[1].__struct_config__.tag == name


LISTS = [leaf for leaf, case in CASES.items() if case.prints.startswith(LIST) and leaf.endswith("list")]


@pytest.mark.parametrize("leaf", LISTS)
def test_a_list_is_an_array_or_a_document_on_each_line(desk: Desk, leaf: str) -> None:
    words = CASES[leaf].words.split()
    whole = many(desk.piped(*words, "--json").json, is_many=True)
    lines = desk.piped(*words, "--jsonl").out.splitlines()
    assert [json.loads(line)["schema"] for line in lines] == [each["schema"] for each in whole]
    assert desk.piped(*words, "--json", "--jsonl").code == 2


# On a terminal


@pytest.mark.parametrize("leaf", [leaf for leaf in CASES if leaf != "top"])
def test_on_a_terminal_lines_fit_and_colours_are_only_there(
    desk: Desk, leaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[leaf]
    words = shlex.split(case.words)
    remarks = set(desk.piped(*words).err.splitlines()) if case.is_table else set[str]()
    for columns in (80,) if case.is_slow else (80, 40):
        code, shown = desk.seen(*words, columns=columns)
        assert (code, ESCAPE in shown) == (case.code, case.is_coloured)
        if case.is_table:
            rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in shown.splitlines()]
            table = [row for row in rows if row not in remarks and str(desk.terminal.project) not in row]
            heading = next((at for at, row in enumerate(table) if row.isupper()), 0)
            assert max(map(len, table[heading:])) <= columns
            assert len(table) > 1
    if case.is_coloured:
        assert ESCAPE not in desk.seen("--color", "never", *words)[1]
        assert ESCAPE not in desk.seen(*words, "--color", "never")[1]
        assert ESCAPE in desk.piped(*words, "--color=always").out
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
            with monkeypatch.context() as environment:
                environment.setenv(name, value)
                assert ESCAPE not in desk.seen(*words)[1]
        with monkeypatch.context() as environment:
            environment.setenv("FORCE_COLOR", "1")
            assert ESCAPE in desk.piped(*words).out


UUID = "01a1e152-0eef-74ed-b36d-aa317915c763"


@pytest.fixture
def narrow(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The terminal with a job of an automatic id that has failed, 80 columns wide."""
    desk.piped("version")
    with Holdfast(directory=desk.terminal.project) as hf:
        hf.define("welcome").id(UUID).queue("mail").priority(9).max_retries(3).dispatch()
        engine = hf.backend()
        assert engine.abandon(claim(engine, "mail"), DeadReason.FAILED, attempt(Outcome.FAILED, error="no such order"))
    monkeypatch.setenv("COLUMNS", "80")
    return desk.terminal


def test_a_narrow_list_keeps_state_and_error_and_names_what_it_leaves_out(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = narrow("list", "--queue", "mail", "--state", "dead")
    heading, row = answer.out.splitlines()
    assert heading.split() == ["ID", "STATE", "JOB", "QUEUE", "TRY", "AGE", "ERROR"]
    assert row.startswith("01a1e152")
    assert "…" in row.split()[0]
    assert "no such order" in row
    assert answer.err == "shortened: ID (-o wide shows all)\n"
    monkeypatch.setenv("COLUMNS", "40")
    answer = narrow("list", "--queue", "mail", "--state", "dead")
    heading, row = answer.out.splitlines()
    assert heading.split() == ["ID", "STATE", "ERROR"]
    assert row.split()[1] == "dead"
    assert "ValueError: n" in row
    assert " ".join(answer.err.split()) == "shortened: ID; left out: JOB, QUEUE, TRY, AGE (-o wide shows all)"
    monkeypatch.delenv("COLUMNS")
    answer = narrow("list", "--queue", "mail", "--state", "dead")
    assert UUID in answer.out
    assert answer.err == ""


def test_a_narrow_status_leaves_out_states_without_jobs_first(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = narrow("status")
    heading = answer.out.splitlines()[1].split()
    assert {"PENDING", "DEAD"} <= set(heading)
    assert "BLOCKED" not in heading
    assert "left out: BLOCKED" in answer.err
    assert "(--json has all)" in answer.err
    monkeypatch.setenv("COLUMNS", "40")
    heading = narrow("status").out.splitlines()[1].split()
    assert heading == ["QUEUE", "PENDING", "PROCESSING", "DEAD"]
    monkeypatch.delenv("COLUMNS")
    assert "left out" not in narrow("status").err


def test_top_fills_the_terminal_until_it_is_left(desk: Desk) -> None:
    desk.piped("version")
    screen = desk.terminal.on_screen("top")
    screen.wait_for("mail")
    os.write(screen.descriptor, b"q")
    assert screen.ended() == 0


def test_status_refreshes_with_watch(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    case, pauses = CASES["status"], list[float]()

    def interrupted(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) % 2 == 0:
            raise KeyboardInterrupt  # as Ctrl-C does while it waits

    monkeypatch.setattr("holdfast.cli.status.time.sleep", interrupted)
    answer = desk.piped(*case.words.split(), "--watch=5s", "--json")
    first, second = (json.loads(line) for line in answer.out.splitlines())
    assert first == second
    assert_published(desk, second, case.prints)
    code, shown = desk.seen(*case.words.split(), "--watch", columns=40)
    assert code == 130
    # The second look is drawn over the first, whose lines are one row each.
    [before, after] = re.split(r"\x1b\[\d+F\x1b\[J", shown)
    [number] = re.findall(r"\x1b\[(\d+)F", shown)
    assert len(after.splitlines()) == int(number) <= len(before.splitlines())
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", row)) <= 40 for row in after.splitlines())
    assert pauses == [5.0, 5.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ("-o wide", "ID     STATE       JOB"),
        ("-o csv", "id,state,job,queue,try,age,error"),
        ("--csv", "id,state,job,queue,try,age,error"),
        ("-o ids", "cmd1"),
        ("-q", "cmd1"),
        ("-o json", '[{"schema": "holdfast.job/1", "id": "cmd1"'),
        ("-o jsonl", '{"schema":"holdfast.job/1","id":"cmd1"'),
        ("--json --fields id,state", '[{"id": "cmd1", "state": "pending"}, {"id": "job1"'),
        ("--fields id,finished-at", "ID     FINISHED AT"),
    ],
)
def test_a_list_of_jobs_has_many_forms(desk: Desk, option: str, first: str) -> None:
    assert desk.piped("list", *option.split()).out.startswith(first)
    _, shown = desk.seen("list", *option.split(), columns=20)
    if "wide" in option:
        assert "no such order" in shown


def test_two_forms_exclude_each_other(desk: Desk) -> None:
    refused = desk.piped("list", "-o", "json", "--csv")
    assert (refused.code, refused.error["hint"]) == (2, "see  holdfast list --help")


@pytest.mark.parametrize(
    ("environment", "is_plain"),
    [
        ({}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "C", "PYTHONIOENCODING": "utf-8"}, False),
        ({"LANG": "C", "PYTHONUTF8": "1"}, False),
    ],
)
def test_which_locale_is_plain(environment: dict[str, str], is_plain: bool) -> None:
    assert is_ascii_locale(environment) is is_plain


# Danger


@pytest.mark.parametrize("words", SEVERE)
def test_nobody_is_asked_who_cannot_answer(desk: Desk, words: str) -> None:
    question = SEVERE[words]
    answer = desk.piped(*words.split())
    assert (answer.code, answer.out, question in answer.err) == (2, "", True)
    for asked in (["--no-input", *words.split()], [*words.split(), "--no-input"]):
        code, shown = desk.seen(*asked, columns=200)
        assert (code, question in " ".join(shown.split())) == (2, True)
    sure = question.rpartition("pass ")[2]
    assert desk.piped(*words.split(), sure).code == 0


@pytest.mark.parametrize("words", CHANGES)
def test_what_is_only_tried_changes_nothing(desk: Desk, words: str) -> None:
    desk.piped("version")
    before = everything(desk.terminal)
    answer = desk.terminal(*words.split(), "--dry-run")
    assert (answer.code, "✓" in answer.out) == (0, False)
    assert everything(desk.terminal) == before


def everything(terminal: Terminal) -> object:
    looks = [terminal(*words.split(), "--json").json for words in ("list", "queue list", "worker list")]
    files = sorted(str(path) for path in terminal.home.rglob("*") if path.is_file())
    return looks, terminal.config.read_text(), files


# Options that stand anywhere


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--json", "config path"),
        ("--json", "worker show aa"),
        ("--json", "show nobody"),
        ("--utc", "show dead1"),
        ("--url=sqlite:///typo.db", "list"),
        ("--url=sqlite:///typo.db", "queue list"),
        ("--color=always", "dlq show dead1"),
        ("--no-input", "dlq discard --all"),
        ("--no-input", "version"),
        ("--utc", "config path"),
    ],
)
def test_an_option_of_all_commands_may_stand_before_or_behind(desk: Desk, option: str, words: str) -> None:
    before, behind = desk.piped(option, *words.split()), desk.piped(*words.split(), option)
    assert (before.code, before.err) == (behind.code, behind.err)
    assert [*map(_still, before.out.split())] == [*map(_still, behind.out.split())]
    assert before.code != 2 or option.startswith(("--url", "--no-input"))


def test_json_is_refused_before_and_behind_a_command_that_has_none(desk: Desk) -> None:
    before, behind = desk.piped("--json", "version"), desk.piped("version", "--json")
    assert before == behind
    assert before.code == 2


def _still(word: str) -> str:
    """What the time between two looks changes is no difference."""
    return "" if re.fullmatch(r"[\d.]+", word) or word in ("ms", "s") else word


def test_help_is_short_to_ask_for(desk: Desk) -> None:
    desk.piped("version")
    for leaf in CASES:
        answer = desk.terminal(*leaf.split(), "-h")
        assert (answer.code, answer.out) == (0, desk.terminal(*leaf.split(), "--help").out)


# Mistakes


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("lst", "Did you mean 'list'?"),
        ("dlq lsit", "Did you mean 'list'?"),
        ("worker strat", "Did you mean 'start'?"),
        ("list --qeue mail", "Did you mean one of: '--queue'"),
        ("list --state ded", "did you mean 'dead'?"),
        ("list --fields idd", "did you mean 'id'?"),
        ("list --where stat:dead", "did you mean 'state'?"),
        ("list --queue mial", "did you mean 'mail'?"),
        ("status --queue mial", "did you mean 'mail'?"),
        ("queue show mial", "did you mean 'mail'?"),
        ("queue pause mial", "did you mean 'mail'?"),
        ("queue pause defalt", "did you mean 'default'?  undo:  holdfast queue resume defalt"),
        ("queue pause other", "queue 'other' has no jobs and no worker"),
        ("queue resume slwo", "did you mean 'slow'?"),
        ("config get leese", "did you mean 'lease'?"),
        ("schema helth", "did you mean 'holdfast.health/1'?"),
        ("help stats", "did you mean 'status'?"),
        ("show nobody", "list the jobs:  holdfast list"),
        ("wait nobody", "list the jobs:  holdfast list"),
        ("cancel nobody", "see  holdfast list"),
        ("retry nobody", "see  holdfast list"),
        ("delete nobody", "see  holdfast list"),
        ("retry job1", "job1 is pending, neither dead nor cancelled"),
        ("retry job1", "see  holdfast show job1"),
        ("dlq show job1", "see  holdfast show job1"),
        ("dlq discard job1", "see  holdfast show job1"),
        ("worker show zz", "see  holdfast worker list"),
        ("logs dead1 --attempt 7", "only 1 attempt"),
        ("logs job1 --attempt 7", "wait for it with  --follow"),
        ("list --url sqlite:///typo.db", "create it with  holdfast migrate"),
        ("list --url redis://127.0.0.1:1/0", "diagnose it:  holdfast doctor"),
        ("list --after nonsense", "copy the value of --after"),
        ("list --json --csv", "choose one"),
        ("queue purge mail --state failed", "cancel them first:  holdfast cancel"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do_next(
    desk: Desk, words: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "k" * 32 if "redis" in words else "")
    answer = desk.piped(*words.split())
    assert hint in answer.err + answer.out


# Spellings of the reference


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("""enqueue '{"id": "job9", "command": "true"}'""", "✓ job9 queued on default"),
        ("""enqueue '{"id": "job9", "command": "true", "max_retries": 2}'""", "✓ job9 queued on default"),
        ("""enqueue '{"id": "job9", "command": "true", "maxRetries": 2}'""", "✓ job9 queued on default"),
        ("worker stop", "✓ aaaaaaaa asked to stop"),
        ("status", "mail"),
        *((f"list --state {state}", "") for state in ("pending", "processing", "completed", "failed", "dead")),
        *((f"list --state {state}", "") for state in ("scheduled", "cancelled", "Pending", "pending,dead")),
        ("list --status pending", "job1"),
        ("list --state pending --json", '"id": "job1"'),
        ("list --where status:dead", "dead1"),
        ("list --where task:add", "dead1"),
        ("dlq list", "dead1"),
        ("dlq retry dead1", "✓ dead1 requeued"),
        ("config set max-retries 3", "✓ max-retries = 3"),
        ("config set max_retries 3", "✓ max-retries = 3"),
        ("config get max_retries", "3"),
        ("queue reap mail", "✓ 0 jobs reaped"),
        ("queue purge mail --status completed --before 7d --dry-run", "would purge 0 completed jobs from queue mail"),
        ("queue purge --queue default --status dead --force", "✓ 1 job purged from queue default"),
        ("queue purge --queue mail --status all --dry-run", "would purge 0 completed,dead,cancelled jobs"),
        ("health --json", '"schema": "holdfast.health/1"'),
    ],
)
def test_a_spelling_of_the_reference_is_understood(desk: Desk, words: str, said: str) -> None:
    answer = desk.piped(*shlex.split(words))
    assert answer.code in (0, 1 if words.startswith("health") else 0)
    assert said in answer.out


@pytest.mark.parametrize(
    "words",
    [
        "worker start --count 3",
        "queue work",
        "queue work mail --once",
        "queue work mail --oneTime",
        "queue work mail -oneTime",
        "queue work mail --max 1",
    ],
)
def test_a_spelling_of_the_reference_for_working_is_understood(desk: Desk, words: str) -> None:
    # Of another place, which is refused before a process is started: only that it is understood is of interest.
    answer = desk.piped(*words.split(), "--url", "nothing")
    assert "does not name an engine" in answer.err
