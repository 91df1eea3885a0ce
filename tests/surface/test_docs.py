"""The documentation is true: its commands run and print what it shows, its snippets work, its tables fit the program.

How a page is tried out, and which comments steer that, is said in pages.py.
"""

import hmac
import json
import re
import shlex
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Backoff, BackoffPolicy
from holdfast.cli import cli, failing
from holdfast.clock import ManualClock
from holdfast.codec import JobMessage, unseal
from holdfast.config import KEYS, Settings
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.extensions import backoff_of
from holdfast.queues.contract import effect_of
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.engines.tables.states import CODES, FORGOTTEN, WAITING
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring
from holdfast.testing import clauses
from holdfast.values import (
    FINAL_STATES,
    Abandon,
    Ack,
    CancelJob,
    DeadReason,
    JobLease,
    JobState,
    Nack,
    Outcome,
    Release,
    Settlement,
    WorkerState,
    WorkerStatus,
)
from reference import PROGRAM, examples_of, leaves, with_commands, with_settings

from .newcomer import STATIONS, steps_table
from .pages import DOCS, FENCE, HEADING, PAGES, README, ROOT, Site, Step, Walk, blocks_of

COMMANDS = dict(leaves(cli, PROGRAM))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

UNPUBLISHED = re.compile(r"pip install (?:-\S+ )*['\"]?holdfast\b")
_LINK = re.compile(r"(?<!\!)\[[^\]]+\]\(([^)\s]+)\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def sections_of(page: Path) -> dict[str, str]:
    """The text below each heading of the second level, down to the next one."""
    parts = re.split(r"^## (.+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the table that begins with this column, its head left out."""
    table = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, f"there is no table that begins with '{heading}'"
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in table[1].splitlines()]


def codes_of(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.abort()


def has_steps(page: Path) -> bool:
    return any(block.is_step for block in blocks_of(page))


@pytest.mark.parametrize("page", [page for page in PAGES if has_steps(page) and page != README], ids=named)
def test_the_commands_of_a_page_do_what_it_says(page: Path, site: Site) -> None:
    Walk(site.in_a_project()).through(page)


def test_a_newcomer_gets_from_the_first_job_to_a_retried_dead_letter_with_the_readme_alone(site: Site) -> None:
    steps: list[Step] = []
    Walk(site.in_a_checkout(), on_step=steps.append).through(README)
    passed = [station for step in steps for station, begins in STATIONS.items() if step.what.startswith(begins)]
    assert list(dict.fromkeys(passed)) == list(STATIONS)
    assert steps_table(steps).count("\n") > len(steps)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.text, block.place, "exec")


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    skipped = [block for page in PAGES for block in blocks_of(page) if block.mark == "skip"]
    assert len(skipped) <= 3
    assert all(re.fullmatch(r"\(.+\)", block.detail) for block in skipped)
    known = {"skip", "exit", "env", "file", "run", "wire", ""}
    assert {block.mark for page in PAGES for block in blocks_of(page)} <= known


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_nobody_is_told_to_install_what_is_not_published(page: Path) -> None:
    assert not UNPUBLISHED.search(page.read_text(encoding="utf-8"))


def test_errors_say_what_to_install_that_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [each for extra in project["optional-dependencies"].values() for each in extra]
    named: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not UNPUBLISHED.search(text), file
        for line in re.findall(r"pip install ('.*)", text):
            named |= set(re.findall(r"'([\w.\[\],-]+[<>=][^']+)'", line))
    assert {"textual>=6,<9", "pytest>=8", "hypothesis>=6.100", "django-tasks>=0.12,<1"} <= named
    assert {each for each in named if not any(one.startswith(each) for one in declared)} == set()


def anchors_of(page: Path) -> set[str]:
    """The fragments that a page's headings can be reached by."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: {link}"
        assert not fragment or fragment in anchors_of(target), f"{named(page)}: {link}"


def test_every_page_of_the_documentation_can_be_found() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link
    }
    assert [named(page) for page in DOCS.rglob("*.md") if page not in linked] == []


def test_pages_show_no_path_of_a_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(home|root|tmp|work|Users)/", page.read_text(encoding="utf-8")), named(page)


def test_files_and_laws_that_pages_name_exist() -> None:
    files = [str(path) for place in ("src", "benchmarks", "scripts", "tests") for path in (ROOT / place).rglob("*.*")]
    for page in PAGES:
        its_own = {block.detail for block in blocks_of(page) if block.mark == "file"}
        for code in codes_of(FENCE.sub("", page.read_text(encoding="utf-8"))):
            if re.fullmatch(r"[\w/]+\.(py|lua)", code) and code not in its_own:
                assert any(path.endswith(f"/{code}") for path in files), f"{named(page)}: {code}"
            if code.startswith("test_"):
                assert code in clauses(), f"{named(page)}: {code}"


def test_the_delays_that_pages_name_are_the_defaults() -> None:
    for page in (README, DOCS / "howto" / "retries.md"):
        assert "2, 4 and 8 seconds (give or take 15%)" in " ".join(page.read_text(encoding="utf-8").split())
    backoff = backoff_of(Settings())
    assert backoff == Backoff()
    assert backoff.jitter == 0.15
    policy = BackoffPolicy(backoff, random=lambda: 0.5)
    assert [policy.delay(attempt) for attempt in (2, 3, 4)] == [2, 4, 8]


def test_the_command_line_page_is_made_from_the_code() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == with_commands(page), "write it again:  python scripts/reference.py"
    described = [heading for heading in sections_of(DOCS / "cli.md") if heading.startswith("holdfast ")]
    assert sorted(described) == sorted(COMMANDS)


def test_the_command_line_page_has_every_member_of_a_job() -> None:
    from holdfast.cli.spec import FIELD_TYPES

    rows = rows_of(sections_of(DOCS / "cli.md")["holdfast enqueue"], "Member")
    assert sorted(code for row in rows for code in codes_of(row[0])) == sorted(FIELD_TYPES)


def test_the_command_line_page_has_every_exit_code() -> None:
    codes = {
        value
        for name, value in vars(failing).items()
        if name.isupper() and type(value) is int and not name.startswith("_")
    }
    assert {int(row[0]) for row in rows_of(sections_of(DOCS / "cli.md")["Exit codes"], "Code")} == {0, *codes}


def test_a_new_command_gets_a_section_and_one_that_is_gone_is_named() -> None:
    page = "# Commands\n\n## holdfast enqueue\n\nBy hand.\n\n## holdfast list\n\nAlso.\n"
    made = with_commands(page)
    assert with_commands(made) == made
    assert re.findall(r"^## (.+)$", made, re.MULTILINE)[:3] == [
        "holdfast enqueue",
        "holdfast run",
        "holdfast list",
    ]
    assert "\nBy hand.\n\n## holdfast run\n\n<!-- generated: usage holdfast run -->\n`holdfast run " in made
    assert "| `--json` | Print JSON. |\n" in made
    with pytest.raises(SystemExit, match="no command 'holdfast rum' any more"):
        with_commands("## holdfast rum\n")
    with pytest.raises(SystemExit, match="options holdfast rum --> names nothing"):
        with_commands("<!-- generated: options holdfast rum -->\n<!-- end -->\n")


def test_the_examples_of_commands_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    named = {tuple(path.split()[1:]): command for path, command in COMMANDS.items()}
    for example in [line for command in COMMANDS.values() for line in examples_of(command)]:
        ours = [part for part in re.split(r" [|>] |[<$]\(|\)", example) if "holdfast " in part]
        assert ours, example
        for part in ours:
            words = shlex.split(part[part.index("holdfast ") :])[1:]
            name = next(name for name in ((words[0],), tuple(words[:2])) if name in named)
            named[name].make_context(example, words[len(name) :])


def test_the_table_of_settings_is_made_from_the_code() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert page == with_settings(page), "write it again:  python scripts/reference.py"
    rows = rows_of(sections_of(DOCS / "configuration.md")["Settings"], "Setting")
    assert [codes_of(row[0]) for row in rows] == [[name] for name in KEYS]


def test_the_configuration_page_has_every_variable_of_a_secret() -> None:
    rows = rows_of(sections_of(DOCS / "configuration.md")["Environment variables"], "Variable")
    named = {code for row in rows for code in codes_of(row[0])}
    assert {key.file_variable for key in KEYS.values() if key.file_variable} <= named
    assert {key.variable for key in KEYS.values() if not key.in_file} <= named


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    envelopes = EnvelopeFactory(Keyring.parse("k" * 32))
    with SqliteEngine(tmp_path / "jobs.db", envelopes) as engine:
        engine.create_schema()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        yield connection


def test_the_schema_page_has_every_table_and_column(schema: sqlite3.Connection) -> None:
    tables = [name for (name,) in schema.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    sections = sections_of(DOCS / "schema.md")
    assert sorted(sections) == sorted(tables)
    for table in tables:
        columns = [
            [f"`{name}`", kind] for _, name, kind, *_ in schema.execute(f"SELECT * FROM pragma_table_info('{table}')")
        ]
        assert [row[:2] for row in rows_of(sections[table], "Column")] == columns, table
        assert all(row[2] for row in rows_of(sections[table], "Column")), table


def test_the_schema_page_has_every_index(schema: sqlite3.Connection) -> None:
    found = dict(schema.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))
    rows = rows_of(sections_of(DOCS / "schema.md")["holdfast_jobs"], "Index")
    assert sorted(codes_of(row[0])[0] for row in rows) == sorted(found)
    for name, described, _ in rows:
        sql = found[codes_of(name)[0]]
        columns = re.search(r"\((.+?)\)", sql)
        condition = re.search(r"WHERE (.+)$", sql)
        expected = [columns[1] if columns else "", *([condition[1]] if condition else [])]
        assert codes_of(described) == expected, name
        assert described.endswith("unique") == ("UNIQUE" in sql), name


def test_the_schema_page_has_every_state_code() -> None:
    text = sections_of(DOCS / "schema.md")["holdfast_jobs"]
    shown = {int(row[0]): codes_of(row[2]) for row in rows_of(text, "Code")}
    expected = {code: [str(state)] for state, code in CODES.items()}
    assert shown == {**expected, WAITING: ["scheduled", "due_at", "pending"], FORGOTTEN: []}


@pytest.mark.parametrize(
    ("heading", "first", "expected"),
    [
        ("States", "State", list(JobState)),
        ("Reasons of dead letters", "Reason", list(DeadReason)),
        ("Outcomes of attempts", "Outcome", list(Outcome)),
        ("Statuses of a turn", "Status", list(WorkerStatus)),
        ("States of a worker", "State", list(WorkerState)),
    ],
)
def test_the_glossary_has_every_word_of_a_closed_list(heading: str, first: str, expected: list[str]) -> None:
    rows = rows_of(sections_of(DOCS / "glossary.md")[heading], first)
    assert sorted(code for row in rows for code in codes_of(row[0])) == sorted(expected)


def test_the_concepts_page_has_every_change_of_state() -> None:
    section = sections_of(DOCS / "concepts.md")["The states of a job"]
    changes = {
        (before, after)
        for row in rows_of(section, "From")
        for before in codes_of(row[0]) or [""]
        for after in codes_of(row[1])
    }
    lease = JobLease(
        id="1", queue="a", wire=b"", token=1, owner_token="t", ttl_s=1, claimed_at=EPOCH, fence_at=0, delivery=1
    )
    ends: list[Settlement] = [
        Ack(lease=lease),
        Nack(lease=lease),
        Release(lease=lease),
        Abandon(lease=lease, reason=DeadReason.FAILED),
        CancelJob(lease=lease),
    ]
    settled = {effect_of(end).state for end in ends}
    # What is given back with a delay is scheduled until it is due. What finds its key taken is blocked, by `enter`.
    unsettled = {JobState.SCHEDULED, JobState.BLOCKED}
    assert {after for before, after in changes if before == JobState.PROCESSING} == settled | unsettled
    # A job is blocked again if the parent because of which it was cancelled is replayed.
    assert {after for before, after in changes if before in FINAL_STATES} == {JobState.PENDING, JobState.BLOCKED}
    assert {state for change in changes for state in change if state} == set(JobState)
    [picture] = [block.text for block in blocks_of(DOCS / "concepts.md")]
    assert [state for state in JobState if state not in picture] == []


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(index)}
    pages = [*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")]
    assert [named(page) for page in pages if page not in listed and page.name != "README.md"] == []


def test_pages_call_things_by_one_name() -> None:
    other_words = re.compile(r"\b(enqueuing|dead-letter queues?|message brokers?|background tasks?)\b", re.IGNORECASE)
    for page in PAGES:
        said = other_words.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        assert not said, f"{named(page)}: {said}; docs/glossary.md has the words"


def test_the_wire_page_has_every_member_in_its_order() -> None:
    rows = rows_of(sections_of(DOCS / "wire.md")["Members"], "Member")
    assert [codes_of(row[0])[0] for row in rows] == [*JobMessage.__struct_encode_fields__, "_sig"]
    required = set(JobMessage.__struct_encode_fields__[: -len(JobMessage.__struct_defaults__)])
    optional = {codes_of(row[0])[0] for row in rows if row[2] != "required"}
    assert optional.isdisjoint(required)


def test_the_wire_page_has_every_error_of_the_test_vectors() -> None:
    vectors = json.loads((DOCS / "wire_vectors.json").read_text(encoding="utf-8"))
    rows = rows_of(sections_of(DOCS / "wire.md")["Verifying"], "What is wrong")
    assert {vector["error"] for vector in vectors["bad"]} <= {code for row in rows for code in codes_of(row[1])}


def worked_example() -> JobDefinition:
    """What the page's own Python block defines."""
    names: dict[str, JobDefinition] = {}
    block = next(block for block in blocks_of(DOCS / "wire.md") if "JobBuilder(" in block.text)
    exec(compile(block.text, block.place, "exec"), names)
    return names["definition"]


def test_the_worked_example_of_the_wire_page_is_what_the_program_makes() -> None:
    shown = {block.detail: block.text.strip() for block in blocks_of(DOCS / "wire.md") if block.mark == "wire"}
    ring = Keyring.parse("2026-01:0123456789abcdef0123456789abcdef")
    factory = EnvelopeFactory(ring, clock=ManualClock(datetime(2026, 1, 1, 12, tzinfo=UTC)))
    wire = factory.make(worked_example(), id="welcome-ada").wire
    signed, signature = unseal(wire)
    assert signature is not None
    key = hmac.digest(b"0123456789abcdef0123456789abcdef", b"holdfast wire v1\0holdfast", "sha256").hex()
    assert shown == {"key": key, "signed": signed.decode(), "signature": signature.decode(), "wire": wire.decode()}
    assert f"{len(signed)} of them" in (DOCS / "wire.md").read_text(encoding="utf-8")
    assert ring.open(shown["wire"].encode()).identifier == "welcome-ada"


def test_a_builder_makes_the_definition_that_the_wire_page_describes() -> None:
    assert worked_example() == (
        JobBuilder("send_mail", {"to": "ada@example.org", "copies": 2})
        .queue("mail")
        .priority(8)
        .max_retries(5)
        .timeout(60)
        .expires(3600)
        .tags("signup")
        .definition()
    )
