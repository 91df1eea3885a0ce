"""Settings: one table of keys, four places, every value checked wherever it stands."""

import os
import stat
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast.config import (
    KEYS,
    Project,
    Settings,
    as_seconds,
    check_value,
    find_project,
    key_named,
    load_settings,
)
from holdfast.config.writing import unset_setting, write_setting
from holdfast.errors import ConfigError
from holdfast.queues.addresses import sqlite_path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a home and a project elsewhere in it."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name.lower()))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def settings(folder: Path, flags: Mapping[str, Any] | None = None, **environment: str) -> Settings:
    return load_settings(find_project(folder), flags, environment)


def write(folder: Path, text: str, name: str = "holdfast.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# Where a value comes from


def test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_defaults(folder: Path) -> None:
    assert settings(folder).max_retries == 3
    write(folder, "max-retries = 5")
    assert settings(folder).max_retries == 5
    assert settings(folder, HOLDFAST_MAX_RETRIES="7").max_retries == 7
    assert settings(folder, {"max-retries": 9}, HOLDFAST_MAX_RETRIES="7").max_retries == 9
    assert settings(folder, {"max-retries": None}, HOLDFAST_MAX_RETRIES="7").max_retries == 7


def test_each_place_decides_only_the_keys_it_names(folder: Path) -> None:
    write(folder, "timeout = 60\nlease = 30")
    found = settings(folder, {"timeout": "2m"}, HOLDFAST_LEASE="40s")
    assert (found.timeout, found.lease, found.max_retries) == (120.0, 40.0, 3)


def test_the_process_environment_is_asked_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH_LIMIT", "9")
    assert load_settings(find_project(folder)).crash_limit == 9


def test_other_variables_of_ours_are_not_taken_for_settings(folder: Path) -> None:
    assert settings(folder, HOLDFAST_SIGNING_KEY="x" * 40, HOLDFAST_JOB_ID="1", UNRELATED="1") == Settings()


@pytest.mark.parametrize("spelled", ["max-retries", "max_retries", "Max-Retries"])
def test_dashes_and_underscores_mean_the_same(folder: Path, spelled: str) -> None:
    write(folder, f"{spelled} = 8")
    assert settings(folder).max_retries == 8
    assert settings(folder, {spelled: 4}).max_retries == 4


def test_both_spellings_at_once_are_refused(folder: Path) -> None:
    path = write(folder, "max-retries = 8\nmax_retries = 9")
    with pytest.raises(ConfigError, match=f"max-retries is set twice in {path}"):
        settings(folder)


def test_every_key_has_a_default_that_it_would_accept_itself() -> None:
    for key in KEYS.values():
        if key.default not in ("", None):
            assert check_value(key, key.default) == key.default, key.name


def test_every_setting_is_a_key(folder: Path) -> None:
    assert {key.field for key in KEYS.values() if key.in_file} == set(Settings.__struct_fields__)


# What a value may be


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("2h", 7200),
        ("3d", 259_200),
        ("1w", 604_800),
        ("250ms", 0.25),
        ("1 day", 86400),
        ("90 Seconds", 90),
        ("2weeks", 1_209_600),
        (" 5 M ", 300),
        ("0", 0),
        (12, 12),
        (0.5, 0.5),
    ],
)
def test_a_span_is_seconds_or_a_number_with_its_unit(text: object, seconds: float) -> None:
    assert as_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-5", "5 parsecs", "1h30m", "five", "1e3", "nan", "inf", ".5", "5.", "s", True, None, []]
)
def test_what_is_no_span_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        as_seconds(text)


@given(st.text())
def test_no_text_at_all_upsets_the_reading_of_a_span(text: str) -> None:
    try:
        seconds = as_seconds(text)
    except ValueError:
        return
    assert seconds >= 0


RANGES = {
    "max-retries": ("0", "1000", "-1", "1001"),
    "timeout": ("0", "366d", "367d", "99999999999999"),
    "idempotency-ttl": ("1s", "3650d", "999ms", "3651d"),
    "backoff-base": ("0", "86400", "-0.1", "86401"),
    "backoff-multiplier": ("1", "100", "0.9", "101"),
    "backoff-jitter": ("0", "1", "-0.1", "1.01"),
    "lease": ("1s", "1d", "999ms", "25h"),
    "crash-limit": ("1", "100", "0", "101"),
    "breaker-failures": ("1", "1000", "0", "1001"),
    "breaker-cooldown": ("100ms", "1d", "99ms", "25h"),
    "poll-interval": ("10ms", "1h", "9ms", "61m"),
    "reap-interval": ("100ms", "1h", "99ms", "61m"),
    "retain-completed": ("0", "3660d", "3661d", "99999999999"),
    "retain-dead": ("0", "3660d", "3661d", "99999999999"),
    "backoff-max": ("0", "366d", "367d", "99999999999"),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_stays_within_its_range_and_the_refusal_names_key_value_and_range(name: str) -> None:
    key = KEYS[name]
    *good, low, high = RANGES[name]
    for text in good:
        check_value(key, text)
    for text in (low, high):
        with pytest.raises(ConfigError, match=rf"^{name} = {text} in \$X is out of range: it must be between "):
            check_value(key, text, "in $X")


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("max-retries", "0 and 1000"),
        ("backoff-jitter", "0 and 1"),
        ("lease", "1s and 1d"),
        ("poll-interval", "0.01s and 3600s"),
        ("retain-dead", "0 and 3660d"),
    ],
)
def test_a_range_is_told_in_the_way_it_could_be_written(name: str, bounds: str) -> None:
    with pytest.raises(ConfigError, match=f"it must be between {bounds}$"):
        check_value(KEYS[name], 10**12)


def test_every_bounded_key_has_been_tried() -> None:
    assert {name for name, key in KEYS.items() if key.high} == set(RANGES)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", ["backoff-base", "backoff-multiplier", "backoff-jitter"])
def test_no_number_is_endless_or_none(name: str, number: str) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        check_value(KEYS[name], number)


@pytest.mark.parametrize(
    ("name", "raw", "why"),
    [
        ("max-retries", "many", "must be an integer"),
        ("max-retries", "1.5", "must be an integer"),
        ("max-retries", 1.5, "must be an integer"),
        ("max-retries", True, "must be an integer"),
        ("max-retries", "9" * 5000, "must be an integer"),
        ("timeout", "soon", "must be a number of seconds, or a value such as 90s, 15m, 2h or 3d"),
        ("timeout", True, "must be a number"),
        ("backoff-base", "x", "must be a number"),
        ("backoff-base", [], "must be a number"),
        ("verify", "perhaps", "must be true or false"),
        ("installation", "", "use 1 to 64 letters, digits, dashes, underscores or dots"),
        ("installation", "my shop", "use 1 to 64 letters, digits, dashes, underscores or dots"),
        ("installation", "shop\n", "use 1 to 64 letters, digits, dashes, underscores or dots"),
        ("installation", "x" * 65, "use 1 to 64 letters, digits, dashes, underscores or dots"),
        ("installation", 7, "must be a string"),
        ("verify", 1, "must be true or false"),
        (
            "backoff",
            "expnential",
            "'expnential' is not a backoff strategy; did you mean 'exponential'? use none, fixed, linear, exponential, "
            "or a list of delays",
        ),
        ("backoff", {}, "must be a strategy, a delay, or a list of delays"),
        ("backoff", True, "must be a strategy, a delay, or a list of delays"),
        ("backoff", ["1s", "soon"], "must be a number of seconds, or a value such as 90s, 15m, 2h or 3d"),
        ("backoff", "fixed:1s,jitter=5%", "jitter has no effect with fixed; use it with linear or exponential"),
        ("backoff", "exponential:2s,jitter=200%", "backoff jitter must be between 0 and 1, not 2"),
        (
            "backoff",
            "exponential:10m",
            "the backoff base, 600 s, is longer than the max, 300 s; set a longer max, as in exponential:10m,max=2h",
        ),
        ("url", 5, "must be a string"),
        ("allowed-commands", 5, "must be a list of strings"),
        ("allowed-commands", ["sleep", 5], "must be a list of strings"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_the_right_one(name: str, raw: object, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_value(KEYS[name], raw, "in shop.toml")
    assert str(caught.value) == f"{name} = {raw!r} in shop.toml: {why}"


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("verify", "Yes", True),
        ("verify", "off", False),
        ("verify", "0", False),
        ("allowed-commands", " sleep, echo ,,", ("sleep", "echo")),
        ("allowed-commands", ["sleep", " echo "], ("sleep", "echo")),
        ("allowed-commands", "", ()),
        ("max-retries", " 5 ", 5),
        ("backoff", "fixed", "fixed"),
        ("backoff", " linear ", "linear"),
        ("backoff", "1s,5s,1m", "1s,5s,1m"),
        ("backoff", ["1s", 5, "1m"], "1s,5,1m"),
        ("backoff", 0.5, "0.5"),
        ("backoff", "exponential:2s,multiplier=3", "exponential:2s,multiplier=3"),
        ("backoff-base", "2", 2.0),
        ("installation", "Shop-2_eu.west", "Shop-2_eu.west"),
        ("installation", "x" * 64, "x" * 64),
    ],
)
def test_a_value_may_be_written_as_people_write_it(name: str, raw: object, value: object) -> None:
    assert check_value(KEYS[name], raw) == value


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max-retrys", "did you mean 'max-retries'?"),
        ("maxretries", "did you mean 'max-retries'?"),
        ("colour", "known keys: url, app, default-queue, queues, max-retries"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(folder: Path, name: str, hint: str) -> None:
    path = write(folder, f"{name} = 1")
    with pytest.raises(ConfigError) as caught:
        settings(folder)
    assert str(caught.value).startswith(f"there is no setting '{name}' (in {path}:1); {hint}")
    with pytest.raises(ConfigError):
        key_named(name)


def test_an_unknown_flag_is_refused_too(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no setting 'leese' \(on the command line\); did you mean 'lease'"):
        settings(folder, {"leese": 5})


# Signatures are not switched off by accident


def test_verification_is_switched_off_only_by_saying_it_twice(folder: Path) -> None:
    write(folder, "verify = false")
    with pytest.raises(ConfigError, match="also set allow-unsigned = true"):
        settings(folder)
    with pytest.raises(ConfigError, match="allow-unsigned"):
        settings(folder, HOLDFAST_VERIFY="no")
    assert settings(folder, HOLDFAST_ALLOW_UNSIGNED="true").verify is False
    write(folder, "verify = false\nallow_unsigned = true")
    assert settings(folder).verify is False


def test_allowing_unsigned_alone_switches_nothing_off(folder: Path) -> None:
    write(folder, "allow-unsigned = true")
    assert settings(folder).verify is True


# The file


def test_an_allowlist_maps_queues_to_handlers(folder: Path) -> None:
    write(folder, '[allowlist]\nmail = ["send", "digest"]\nnone = []')
    assert settings(folder).allowlist == {"mail": ("send", "digest"), "none": ()}
    assert settings(folder.parent / "home").allowlist is None


def test_limits_map_queues_to_rates(folder: Path) -> None:
    write(folder, '[limits]\nmail = "60/Minute"\nslow = 30\nfree = 0\napi = {rate = "10/s", burst = 20}')
    read = settings(folder)
    assert read.limits == {"mail": "60/min", "slow": "30/min", "free": "0", "api": "10/s,burst=20"}
    assert {queue: rate.burst for queue, rate in read.rates.items()} == {"mail": 1, "slow": 1, "api": 20}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('limits = "60/min"', r"limits in .*: must be a table that maps queues to rates|limits = '60/min'"),
        ('[limits]\nmail = "often"', "the rate limit of queue 'mail' is 'often': write a number and a unit"),
        ("[limits]\nmail = [1]", "the rate limit of queue 'mail' is \\[1\\]: write a number and a unit"),
        ("[limits]\nmail = {burst = 3}", "a table has a rate and may have a burst"),
        ('[limits]\n"No Queue" = 3', "'No Queue' is not a valid queue name"),
    ],
)
def test_limits_of_another_shape_are_refused(folder: Path, text: str, problem: str) -> None:
    write(folder, text)
    with pytest.raises(ConfigError, match=problem):
        settings(folder)


@pytest.mark.parametrize("text", ['allowlist = "mail"', '[allowlist]\nmail = "send"', "[allowlist]\nmail = [1]"])
def test_an_allowlist_of_another_shape_is_refused(folder: Path, text: str) -> None:
    path = write(folder, text)
    with pytest.raises(ConfigError, match=f"in {path}:1: must be a table that maps queues to lists of handler keys"):
        settings(folder)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"max-retries = [", "is not valid TOML"),
        (b"\xff\xfe", "cannot read"),
        (b"max-retries = 1\n" * 2, "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder: Path, content: bytes, why: str) -> None:
    path = folder / "holdfast.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        settings(folder)
    assert str(path) in str(caught.value)


def test_the_nearest_directory_upward_is_the_project(folder: Path) -> None:
    write(folder, "lease = 7")
    inner = folder / "src" / "shop"
    inner.mkdir(parents=True)
    project = find_project(inner)
    assert (project.directory, project.config_file) == (folder, folder / "holdfast.toml")
    assert project.data_directory == folder / ".holdfast"
    write(folder / "src", "lease = 8")
    assert find_project(inner).directory == folder / "src"


def test_outside_any_project_it_is_the_users_own(folder: Path) -> None:
    project = find_project(folder)
    assert project.directory is None
    assert project.config_file == folder.parent / "home/xdg_config_home/holdfast/holdfast.toml"
    assert project.data_directory == folder.parent / "home/xdg_state_home/holdfast"


def test_settings_may_stand_in_pyproject(folder: Path) -> None:
    path = write(folder, '[project]\nname = "shop"\n[tool.holdfast]\nlease = 9\n', "pyproject.toml")
    assert find_project(folder).config_file == path
    assert settings(folder).lease == 9


def test_a_file_of_our_own_wins_over_pyproject(folder: Path) -> None:
    write(folder, "[tool.holdfast]\nlease = 9\n", "pyproject.toml")
    own = write(folder, "lease = 5")
    assert find_project(folder).config_file == own
    assert settings(folder).lease == 5


def test_an_empty_table_in_pyproject_stays_the_place_of_settings(folder: Path) -> None:
    path = write(folder, "[tool.holdfast]\nlease = 9\n", "pyproject.toml")
    unset_setting(path, "lease")
    assert find_project(folder).config_file == path
    assert settings(folder) == Settings()


def test_a_pyproject_that_does_not_mention_us_marks_the_project_and_is_left_alone(folder: Path) -> None:
    path = write(folder, '[project]\nname = "shop"\n[tool.other]\nlease = 9\n', "pyproject.toml")
    project = find_project(folder)
    assert (project.directory, project.config_file) == (folder, folder / "holdfast.toml")
    write_setting(project.config_file, "lease", "5")
    assert path.read_text() == '[project]\nname = "shop"\n[tool.other]\nlease = 9\n'
    assert settings(folder).lease == 5


@pytest.mark.parametrize("text", ["tool = 5", "[tool]\nholdfast = 5", "[[tool.holdfast]]\nlease = 5"])
def test_a_pyproject_with_something_else_in_our_place_is_refused(folder: Path, text: str) -> None:
    path = write(folder, text, "pyproject.toml")
    with pytest.raises(ConfigError, match=rf"\[tool.holdfast\] in {path} is not a table"):
        settings(folder)


@pytest.mark.parametrize("name", ["plain", "with space", "c#", "what?", "100%", "a%20b", "ü"])
def test_the_database_lies_in_the_project_whatever_its_path_is_called(tmp_path: Path, name: str) -> None:
    project = Project(directory=tmp_path, config_file=tmp_path / "holdfast.toml", data_directory=tmp_path / name)
    assert sqlite_path(project.default_url) == tmp_path / name / "jobs.db"


# Writing


TEXT = """\
# How the shop keeps its jobs.

max_retries = 5  # enough for mail
url = "sqlite:///shop.db"

# Who may run what.
[allowlist]
mail = ["send"]  # nothing else
"""


def test_writing_a_setting_keeps_comments_order_and_spelling(folder: Path) -> None:
    path = write(folder, TEXT)
    assert write_setting(path, "max-retries", "7") == 7
    assert path.read_text() == TEXT.replace("5  # enough", "7  # enough")


def test_a_new_setting_does_not_end_up_in_the_last_table(folder: Path) -> None:
    path = write(folder, TEXT)
    write_setting(path, "lease", "90s")
    write_setting(path, "allowed_commands", "sleep,echo")
    assert settings(folder).lease == 90
    assert settings(folder).allowed_commands == ("sleep", "echo")
    assert settings(folder).allowlist == {"mail": ("send",)}
    assert "# nothing else" in path.read_text()


def test_a_setting_in_pyproject_is_written_into_our_table(folder: Path) -> None:
    text = '[project]\nname = "shop"  # ours\n\n[tool.holdfast]\nlease = 9 # nine\n\n[tool.other]\na = 1\n'
    path = write(folder, text, "pyproject.toml")
    write_setting(path, "lease", "10")
    write_setting(path, "max-retries", "2")
    written = tomllib.loads(path.read_text())
    assert written["tool"] == {"holdfast": {"lease": 10.0, "max-retries": 2}, "other": {"a": 1}}
    assert "# ours" in path.read_text()
    assert "# nine" in path.read_text()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_with_a_password_is_its_owners_alone(folder: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_setting(folder / "secret.toml", "url", "postgresql://ada:hunter2@db/shop")
        write_setting(folder / "plain.toml", "url", "sqlite:///jobs.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "secret.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "plain.toml").stat().st_mode) == 0o666 & ~mask


def test_a_file_that_is_not_there_is_made_with_its_directory(folder: Path) -> None:
    path = folder / "config" / "holdfast" / "holdfast.toml"
    write_setting(path, "backoff", "fixed")
    assert tomllib.loads(path.read_text()) == {"backoff": "fixed"}


@pytest.mark.parametrize(
    ("name", "raw", "why"),
    [
        ("max-retries", "1001", "out of range"),
        ("leese", "5", "did you mean 'lease'"),
        ("verify", "so", "true or false"),
        ("url", "postgre://db/shop", "does not name an engine"),
        ("signing-key", "k" * 32, "signing-key does not belong in the configuration file: set HOLDFAST_SIGNING_KEY"),
        ("allowlist", "mail", r"allowlist is a table .*: in .*holdfast.toml, below \[allowlist\], add a line"),
    ],
)
def test_what_is_refused_is_not_written(folder: Path, name: str, raw: str, why: str) -> None:
    path = write(folder, TEXT)
    with pytest.raises(ConfigError, match=why):
        write_setting(path, name, raw)
    assert path.read_text() == TEXT
    assert os.listdir(folder) == ["holdfast.toml"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("holdfast.toml", "max_retries = 5  # enough\n[allowlist]\nmail = []\n"),
        ("pyproject.toml", "[tool.holdfast]\nlease = 1\n[project]\nname = 'shop'\n[tool.other]\na = 1\n"),
        ("pyproject.toml", "[tool]\nholdfast = { lease = 1 }\nother = { a = 1 }\n"),
        ("pyproject.toml", "[tool.holdfast.allowlist]\nmail = ['a']\n[build]\nx = 1\n[tool.other]\na = 1\n"),
        ("pyproject.toml", "tool.holdfast.lease = 1\ntool.other.a = 1\n"),
        ("pyproject.toml", "[tool.a]\nx = 1\n[project]\nname = 's'\n[tool.holdfast]\nlease = 2\n[tool.b]\ny = 1\n"),
    ],
)
def test_a_change_says_what_was_wanted_and_leaves_the_rest(folder: Path, name: str, text: str) -> None:
    path = write(folder, text, name)
    wanted = tomllib.loads(text)
    (wanted["tool"]["holdfast"] if name == "pyproject.toml" else wanted)["crash-limit"] = 9
    write_setting(path, "crash-limit", "9")
    assert tomllib.loads(path.read_text()) == wanted


def test_a_change_that_would_say_something_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(document: object) -> str:
        return "lease = 5\n"

    path = write(folder, TEXT)
    monkeypatch.setattr("tomlkit.dumps", forgetful)
    with pytest.raises(ConfigError, match=f"{path} cannot be changed without losing part of it"):
        write_setting(path, "lease", "5")
    assert path.read_text() == TEXT


@pytest.mark.parametrize("name", ["max-retries", "max_retries"])
def test_unsetting_takes_out_one_line_and_keeps_the_rest(folder: Path, name: str) -> None:
    path = write(folder, TEXT)
    assert unset_setting(path, name)
    assert path.read_text() == TEXT.replace("max_retries = 5  # enough for mail\n", "")
    assert not unset_setting(path, name)


def test_unsetting_takes_out_a_table_or_something_wrong(folder: Path) -> None:
    path = write(folder, TEXT)
    assert unset_setting(path, "allowlist")
    assert settings(folder).allowlist is None
    write(folder, "max-retries = 'many'\nmax_retries = 5\nlease = 5\n")
    assert unset_setting(path, "max-retries")
    assert tomllib.loads(path.read_text()) == {"lease": 5}
    write(folder, f"signing-key = '{'k' * 32}'\n")
    assert unset_setting(path, "signing-key")
    assert path.read_text() == ""


def test_unsetting_in_pyproject_leaves_other_tables_alone(folder: Path) -> None:
    path = write(folder, "[tool.holdfast]\nlease = 5 # five\n\n[tool.other]\nlease = 6 # six\n", "pyproject.toml")
    assert unset_setting(path, "lease")
    assert path.read_text() == "[tool.holdfast]\n\n[tool.other]\nlease = 6 # six\n"


def test_unsetting_makes_no_file_and_knows_no_other_keys(folder: Path) -> None:
    assert not unset_setting(folder / "holdfast.toml", "lease")
    assert os.listdir(folder) == []
    with pytest.raises(ConfigError, match="did you mean 'lease'"):
        unset_setting(folder / "holdfast.toml", "leese")


def test_a_file_that_cannot_be_written_is_named_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(PermissionError) as caught:
        write_setting(folder / "holdfast.toml", "lease", "5")
    assert caught.value.filename == str(folder / "holdfast.toml")


def test_a_broken_file_is_left_as_it_is(folder: Path) -> None:
    path = write(folder, "max-retries = [")
    with pytest.raises(ConfigError, match=f"{path} is not valid TOML"):
        write_setting(path, "lease", "5")
    assert path.read_text() == "max-retries = ["


def test_a_failed_write_leaves_the_old_file_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, TEXT)

    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        write_setting(path, "lease", "5")
    assert path.read_text() == TEXT
    assert os.listdir(folder) == ["holdfast.toml"]


def test_readers_meanwhile_see_a_whole_file(folder: Path) -> None:
    path = write(folder, TEXT)
    done = threading.Event()
    seen: set[object] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(tomllib.loads(path.read_text())["max_retries"])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        write_setting(path, "max-retries", str(number))
    done.set()
    reader.join()
    assert seen <= {5, *range(200)}
    assert seen


def test_the_mode_of_the_file_and_a_link_to_it_stay(folder: Path) -> None:
    real = write(folder, TEXT, "shared.toml")
    real.chmod(0o640)
    link = folder / "holdfast.toml"
    link.symlink_to(real)
    write_setting(link, "lease", "5")
    assert link.is_symlink()
    assert "lease" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_settings_written_at_once_are_all_kept_and_line_ends_stay(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_bytes(b"# ours\r\nmax-retries = 1\r\n")
    names = ["timeout", "lease", "crash-limit", "poll-interval", "reap-interval", "backoff-base", "backoff-max"]
    threads = [threading.Thread(target=write_setting, args=(path, name, "7")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    text = path.read_bytes()
    assert text.startswith(b"# ours\r\nmax-retries = 1\r\n")
    assert all(name.encode() in text for name in names)
