"""The tables `[schedules.NAME]`: what they mean, what is refused and by which name, and the schema for editors."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from holdfast.config import Project, check_value, read_settings
from holdfast.config.checking import check_settings
from holdfast.config.schedules import MEMBERS, configured_schedules, parse_schedules, schedule_of
from holdfast.config.schema import settings_schema
from holdfast.cron.schedule import Schedule
from holdfast.cron.timing import Cron, Every
from holdfast.definition.definition import definition_of
from holdfast.errors import ConfigError
from holdfast.values import CatchUp, Overlap

SCHEMA: Any = Draft7Validator(settings_schema())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def read(folder: Path, text: str) -> list[Schedule]:
    (folder / "holdfast.toml").write_text(text)
    return configured_schedules(read_settings(Project.at(folder), environment={}).settings())


def problems(folder: Path, text: str) -> list[str]:
    (folder / "holdfast.toml").write_text(text)
    reading = read_settings(Project.at(folder), environment={})
    return [one.message.replace(str(folder), "") for one in check_settings(reading, {}) if one.key == "schedules"]


def test_a_table_with_every_member_is_that_schedule(folder: Path) -> None:
    text = """
        [schedules.backup]
        cron = "0 2 * * *"
        timezone = "Europe/Berlin"
        command = ["backup", "--all"]
        queue = "nightly"
        max-retries = 1
        timeout = "2h"
        inline = true
        depends-on = ["import"]
        environments = ["production", "staging"]
        catch-up = "all"
        catch-up-limit = 3
        overlap = "skip"
        jitter = "30s"
        starts-at = 2026-12-01T06:00:00
        ends-at = 2027-07-01T06:00:00+02:00
        enabled = false
        note = "ask Ada"
        owner = "ops"
        """
    assert read(folder, text) == [
        Schedule(
            name="backup",
            definition=definition_of(
                "command",
                {"argv": ["backup", "--all"]},
                {"queue": "nightly", "max_retries": 1, "timeout": 7200},
            ),
            timing=Cron("0 2 * * *", "Europe/Berlin"),
            inline=True,
            depends_on=("import",),
            environments=("production", "staging"),
            catch_up=CatchUp.ALL,
            catch_up_limit=3,
            overlap=Overlap.SKIP,
            jitter=30.0,
            starts_at=datetime(2026, 12, 1, 5, tzinfo=UTC),
            ends_at=datetime(2027, 7, 1, 4, tzinfo=UTC),
            enabled=False,
            note="ask Ada",
            owner="ops",
        )
    ]
    assert {line.split()[0] for line in text.split("\n") if "=" in line} == MEMBERS.keys() - {"every", "job", "payload"}


def test_a_table_can_name_a_job_with_its_payload_and_an_interval(folder: Path) -> None:
    [schedule] = read(folder, '[schedules.poll]\nevery = "90s"\njob = "poll_rates"\npayload = {base = "EUR"}')
    assert (schedule.timing, schedule.definition) == (
        Every(90.0),
        definition_of("poll_rates", {"base": "EUR"}, {"queue": "default"}),
    )


def test_members_can_be_written_with_underscores_and_a_command_as_text(folder: Path) -> None:
    text = '[schedules.a]\ncron = "@daily"\ncommand = "backup --all"\n{}'
    assert read(folder, text.format("catch_up = 'last'\nmax_retries = 2")) == read(
        folder, text.format("catch-up = 'last'\nmax-retries = 2")
    )
    assert problems(folder, text.format("catch_up = 'last'\ncatch-up = 'last'")) == [
        "schedules in /holdfast.toml: [schedules.a] catch-up is set twice, with a dash and with an underscore; "
        "remove one"
    ]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('cron = "0 2 * *"\njob = "x"', "cron '0 2 * *' has 4 fields; write five: "),
        ('cron = "@daily"\njob = "x"\ntimeout = "soon"', "timeout = 'soon': must be a number of seconds, or a value "),
        ('cron = "@daily"\njob = "x"\noverlap = "maybe"', "overlap = 'maybe': must be allow, skip or queue"),
        ('cron = "@daily"\njob = "x"\nmax-retries = -1', "max-retries = -1 is out of range: it must be between 0 and"),
        ('cron = "@daily"\njob = "x"\nqueue = "No Queue"', "queue = 'No Queue': 'No Queue' is not a valid queue name"),
        ('cron = "@daily"\njob = "x"\nstarts-at = "soon"', "starts-at = 'soon': must be a time, such as 2026-12-01T"),
        ('cron = "@daily"\njob = "x"\nenvironments = ["No"]', "'No' is not a valid environment; use up to 40 lower-"),
        ('cron = "@daily"\njob = "x"\ntimezone = "Berlin"', "timezone 'Berlin' is not known; did you mean 'Europe/"),
        ('every = "90s"\njob = "x"\ntimezone = "Asia/Tokyo"', "timezone has no effect with 'every 90s'; leave it out"),
        ('every = "0.5s"\njob = "x"', "every = 0.5s is out of range: it must be between 1s and 366d"),
        ('cron = "@daily"\nevery = "1m"\njob = "x"', "set cron or every, not both"),
        ('cron = "@daily"\njob = "x"\ncommand = "ls"', "set command or job, not both"),
        ('job = "x"', "set cron or every"),
        ('cron = "@daily"', "set command or job"),
        ('cron = "@daily"\ncommand = []', "command = []: the command is empty; pass a program and its arguments"),
        ('cron = "@daily"\ncommand = "ls"\npayload = {}', "payload is only valid for a job, not for a command"),
        ('cron = "@daily"\njob = "x"\nstart-at = 1', "a schedule has no option 'start-at'; did you mean 'starts-at'?"),
        ('cron = "@daily"\njob = "x"\n"" = 1', "a schedule has no option ''; known options: cron, every, timezone"),
        ('cron = "@daily"\njob = "x"\ncatch-up-limit = 0', "catch-up-limit = 0 is out of range: it must be between 1"),
    ],
)
def test_an_error_names_the_table_and_the_member(folder: Path, table: str, problem: str) -> None:
    [found] = problems(folder, f"[schedules.backup]\n{table}")
    assert found.startswith(f"schedules in /holdfast.toml: [schedules.backup] {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schedules = 5", "schedules = 5 in /holdfast.toml:1: must be a table of schedules, such as {backup = {cron"),
        (
            "[schedules]\nx = 5",
            "schedules in /holdfast.toml:1: [schedules.x] must be a table with options such as cron",
        ),
        ('[schedules."a b"]\ncron = "@daily"\njob = "x"', "[schedules.a b] 'a b' is not a valid name for a schedule"),
        (
            '[schedules.a]\ncron = "@daily"\njob = "x"\ndepends-on = ["b"]\n'
            '[schedules.b]\ncron = "@daily"\njob = "x"\ndepends-on = ["a"]',
            "these schedules depend on each other, so none of them could run: ",
        ),
        (
            'queues = ["default"]\n[schedules.a]\ncron = "@daily"\njob = "x"\nqueue = "mail"',
            "queue 'mail' is not declared; declared queues: default",
        ),
    ],
)
def test_an_error_of_the_whole_is_reported(folder: Path, text: str, problem: str) -> None:
    [found] = problems(folder, text)
    assert problem in found


def test_a_command_that_no_worker_allows_is_a_warning(folder: Path) -> None:
    text = '[schedules.backup]\ncron = "@daily"\ncommand = ["pg_dump", "shop"]'
    assert problems(folder, text) == [
        "schedules in /holdfast.toml: [schedules.backup] runs 'pg_dump', which is not in allowed-commands"
    ]
    assert problems(folder, f'allowed-commands = ["pg_dump"]\n{text}') == []


@pytest.mark.parametrize("environment", ["Production", "a b", "-", "x" * 41])
def test_an_environment_that_no_schedule_could_name_is_refused(folder: Path, environment: str) -> None:
    (folder / "holdfast.toml").write_text(f'environment = "{environment}"')
    [problem] = read_settings(Project.at(folder), environment={}).problems
    assert "use up to 40 lower-case letters" in problem.message


@pytest.mark.parametrize(
    ("table", "is_valid"),
    [
        ({"cron": "0 2 * * *", "command": ["backup"]}, True),
        ({"every": "90s", "job": "poll", "payload": {"a": [1]}, "catch_up": "last"}, True),
        ({"every": 90, "command": "backup --all", "starts-at": "2026-12-01T06:00:00"}, True),
        ({"cron": "0 2 * * *"}, False),
        ({"cron": "0 2 * * *", "every": 5, "job": "x"}, False),
        ({"cron": "0 2 * * *", "job": "x", "command": "y"}, False),
        ({"cron": "0 2 * * *", "job": "x", "overlap": "maybe"}, False),
        ({"cron": "0 2 * * *", "job": "x", "catch-up-limit": 0}, False),
        ({"crn": "0 2 * * *", "job": "x"}, False),
    ],
)
def test_the_schema_accepts_what_the_program_accepts(table: dict[str, Any], *, is_valid: bool) -> None:
    assert SCHEMA.is_valid({"schedules": {"backup": table}}) is is_valid
    if is_valid:
        assert parse_schedules({"backup": table})
    else:
        with pytest.raises(ConfigError):
            parse_schedules({"backup": table})


@pytest.mark.parametrize("member", [one for one in MEMBERS.values() if one.high], ids=lambda one: one.name)
def test_the_schema_of_a_member_has_the_range_that_the_program_enforces(member: Any) -> None:
    described = settings_schema()["properties"]["schedules"]["additionalProperties"]["properties"][member.name]
    number = described["anyOf"][0] if member.kind == "duration" else described
    for end, beyond in (("minimum", -1), ("maximum", 1)):
        check_value(member, number[end])
        with pytest.raises(ConfigError):
            check_value(member, number[end] + beyond)


def test_a_time_without_an_offset_is_one_in_the_time_zone_of_the_schedule() -> None:
    table = {"cron": "@daily", "timezone": "Asia/Tokyo", "job": "x", "starts-at": "2026-12-01"}
    assert schedule_of("a", parse_schedules({"a": table})["a"]).starts_at == datetime(2026, 11, 30, 15, tzinfo=UTC)
