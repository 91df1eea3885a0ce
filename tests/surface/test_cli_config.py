"""`holdfast config`: settings are shown as they are in force, and written without disturbing the file."""

import tomllib

import pytest

from holdfast.config import KEYS

from .terminal import Terminal

FILE = """\
# How the shop keeps its jobs.
max_retries = 5  # enough

[allowlist]
mail = ["send"]  # nothing else
"""


def test_a_setting_is_shown_as_it_is_in_force(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal("config", "get", "max-retries").out == "3\n"
    terminal.config.write_text("max-retries = 5\n")
    assert terminal("config", "get", "max_retries").out == "5\n"
    monkeypatch.setenv("HOLDFAST_MAX_RETRIES", "7")
    assert terminal("config", "get", "max-retries").out == "7\n"
    assert terminal("config", "get", "max-retries", "--json").json == {"key": "max-retries", "value": 7}


@pytest.mark.parametrize(
    ("key", "value", "shown", "as_json"),
    [
        ("timeout", "90s", "90", 90.0),
        ("verify", "yes", "true", True),
        ("allowed-commands", "sleep, echo", "sleep,echo", ["sleep", "echo"]),
        ("backoff", "fixed", "fixed", "fixed"),
        ("backoff-jitter", "0.25", "0.25", 0.25),
        ("url", "sqlite:////var/jobs.db", "sqlite:////var/jobs.db", "sqlite:////var/jobs.db"),
    ],
)
def test_what_is_set_is_what_is_got(terminal: Terminal, key: str, value: str, shown: str, as_json: object) -> None:
    answer = terminal("config", "set", key, value)
    assert (answer.code, answer.out) == (0, f"✓ {key} = {shown}\n")
    assert answer.err == f"  written to {terminal.config}; it counts for whatever starts from now on\n"
    assert terminal("config", "get", key).out == f"{shown}\n"
    assert terminal("config", "get", key, "--json").json["value"] == as_json
    assert terminal("config", "set", key, value, "--json").json == {
        "key": key,
        "value": as_json,
        "file": str(terminal.config),
    }


def test_all_settings_are_shown_with_their_meaning_and_their_place(terminal: Terminal) -> None:
    answer = terminal("config", "get")
    assert [line.split()[0] for line in answer.out.splitlines()] == ["KEY", *KEYS]
    assert "retries after the first run" in answer.out
    assert answer.err == f"from {terminal.config}\n"
    assert list(terminal("config", "get", "--json").json) == list(KEYS)


def test_writing_keeps_comments_order_and_the_rest(terminal: Terminal) -> None:
    terminal.config.write_text(FILE)
    assert terminal("config", "set", "max-retries", "7").code == 0
    assert terminal.config.read_text() == FILE.replace("5  # enough", "7  # enough")
    assert terminal("config", "set", "lease", "2m").code == 0
    assert tomllib.loads(terminal.config.read_text()) == {
        "max_retries": 7,
        "lease": 120.0,
        "allowlist": {"mail": ["send"]},
    }
    assert "# nothing else" in terminal.config.read_text()


def test_what_is_set_is_used(terminal: Terminal) -> None:
    terminal("config", "set", "max-retries", "9")
    terminal("enqueue", '{"job": "x"}')
    assert terminal.jobs()[0]["max_retries"] == 9


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("max-retries", "1001", "max-retries = 1001 is out of range: it must be between 0 and 1000"),
        ("max-retries", "-1", "max-retries = -1 is out of range: it must be between 0 and 1000"),
        ("max-retries", "some", "max-retries = 'some': write a whole number"),
        ("lease", "0.5", "lease = 0.5 is out of range: it must be between 1s and 1d"),
        ("timeout", "5 parsecs", "timeout = '5 parsecs': write a time span as seconds or like 90s, 15m, 2h, 3d"),
        ("timeout", "-5", "timeout = '-5': write a time span"),
        ("backoff", "bogus", "backoff = 'bogus': choose one of none, fixed, linear, exponential"),
        ("verify", "perhaps", "verify = 'perhaps': write true or false"),
        ("max-retires", "5", "there is no setting 'max-retires'; did you mean 'max-retries'?"),
        ("colour", "red", "there is no setting 'colour'; known keys: url, max-retries"),
    ],
)
def test_a_wrong_value_is_refused_by_key_value_and_range_and_not_written(
    terminal: Terminal, key: str, value: str, why: str
) -> None:
    terminal.config.write_text(FILE)
    answer = terminal("config", "set", key, value)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"holdfast: {why}")
    assert terminal.config.read_text() == FILE
    assert terminal("config", "set", key, value, "--json").error["code"] == "ConfigError"


def test_an_unknown_key_is_refused_when_it_is_asked_for(terminal: Terminal) -> None:
    answer = terminal("config", "get", "max-retry")
    assert answer.code == 2
    assert "there is no setting 'max-retry'; did you mean 'max-retries'?" in answer.err


@pytest.mark.parametrize("words", [["set"], ["set", "lease"], ["set", "lease", "1", "2"], ["get", "a", "b"], ["sett"]])
def test_a_command_with_too_little_or_too_much_is_refused(terminal: Terminal, words: list[str]) -> None:
    assert terminal("config", *words).code == 2


COMMANDS = [
    ["status"],
    ["list"],
    ["show", "x"],
    ["enqueue", '{"job": "x"}'],
    ["run", "--", "true"],
    ["worker", "start", "--burst"],
    ["dlq", "list"],
    ["backend", "info"],
    ["migrate"],
    ["config", "get"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_wrong_file_stops_every_command_with_its_name(terminal: Terminal, words: list[str]) -> None:
    terminal.config.write_text("max-retries = 9999\n")
    answer = terminal(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"holdfast: max-retries = 9999 in {terminal.config} is out of range")
    assert not terminal.database.exists()


def test_a_broken_file_is_neither_read_nor_written(terminal: Terminal) -> None:
    terminal.config.write_text("max-retries = [")
    for words in (["config", "get"], ["config", "set", "lease", "5"], ["status"]):
        answer = terminal(*words)
        assert answer.code == 2
        assert f"{terminal.config} is not valid TOML" in answer.err
    assert terminal.config.read_text() == "max-retries = ["


def test_a_wrong_variable_is_named(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TIMEOUT", "soon")
    answer = terminal("status")
    assert answer.code == 2
    assert "timeout = 'soon' in $HOLDFAST_TIMEOUT: write a time span" in answer.err


def test_signatures_cannot_be_switched_off_by_accident(terminal: Terminal) -> None:
    terminal("config", "set", "verify", "false")
    answer = terminal("status")
    assert answer.code == 2
    assert "set allow-unsigned = true beside it" in answer.err
    assert terminal("config", "set", "allow-unsigned", "true").code == 0
    assert terminal("status").code == 0


def test_settings_of_a_pyproject_are_written_there(terminal: Terminal) -> None:
    terminal.config.unlink()
    pyproject = terminal.write("pyproject.toml", '[project]\nname = "shop"  # ours\n\n[tool.holdfast]\nlease = 9\n')
    assert terminal("config", "set", "max-retries", "4").err.startswith(f"  written to {pyproject};")
    assert tomllib.loads(pyproject.read_text())["tool"]["holdfast"] == {"lease": 9, "max-retries": 4}
    assert "# ours" in pyproject.read_text()
    assert terminal("config", "get", "lease").out == "9\n"


def test_outside_any_project_the_users_own_file_is_written(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(terminal.home)
    own = terminal.home / "config" / "holdfast" / "holdfast.toml"
    assert terminal("config", "get").err == f"{own} does not exist\n"
    terminal("config", "set", "lease", "5")
    assert tomllib.loads(own.read_text()) == {"lease": 5.0}
    assert terminal("config", "get", "lease").out == "5\n"
    assert terminal("config", "get").err == f"from {own}\n"


def test_the_password_of_a_url_is_written_and_never_shown(terminal: Terminal) -> None:
    url = "postgresql://ada:hunter2@db.example/shop"
    answers = [
        terminal("config", "set", "url", url),
        terminal("config", "set", "url", url, "--json"),
        terminal("config", "get", "url"),
        terminal("config", "get", "url", "--json"),
        terminal("config", "get"),
        terminal("config", "get", "--json"),
    ]
    assert f'url = "{url}"' in terminal.config.read_text()
    for answer in answers:
        assert answer.code == 0
        assert "postgresql://ada:…@db.example/shop" in answer.out
        assert "hunter2" not in answer.out + answer.err
