"""`holdfast config`: settings are shown as they are in force, and written without disturbing the file."""

import tomllib

import pytest
from click.shell_completion import ShellComplete

from holdfast.cli import cli
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
    assert terminal("config", "get", "max-retries", "--json").json["value"] == 7


@pytest.mark.parametrize(
    ("key", "value", "shown", "as_json"),
    [
        ("timeout", "90s", "90", 90.0),
        ("verify", "yes", "true", True),
        ("allowed-commands", "sleep, echo", "sleep,echo", ["sleep", "echo"]),
        ("backoff", "fixed", "fixed", "fixed"),
        ("backoff", "1s,5s,1m", "1s,5s,1m", "1s,5s,1m"),
        ("backoff-multiplier", "2", "2", 2.0),
        ("backoff-jitter", "0.25", "0.25", 0.25),
        ("url", "sqlite:////var/jobs.db", "sqlite:////var/jobs.db", "sqlite:////var/jobs.db"),
    ],
)
def test_what_is_set_is_what_is_got(terminal: Terminal, key: str, value: str, shown: str, as_json: object) -> None:
    answer = terminal("config", "set", key, value)
    assert (answer.code, answer.out) == (0, f"✓ {key} = {shown}\n")
    assert answer.err == f"  written to {terminal.config}; applies to commands and workers started from now on\n"
    assert terminal("config", "get", key).out == f"{shown}\n"
    assert terminal("config", "get", key, "--json").json["value"] == as_json
    assert terminal("config", "set", key, value, "--json").json == {
        "schema": "holdfast.config.set/1",
        "key": key,
        "value": as_json,
        "written": True,
        "file": str(terminal.config),
    }


def test_all_settings_are_shown_with_their_meaning_and_their_place(terminal: Terminal) -> None:
    answer = terminal("config", "get")
    assert [line.split()[0] for line in answer.out.splitlines()] == ["KEY", *KEYS]
    assert "number of retries after the first attempt" in answer.out
    assert answer.err == f"from {terminal.config}\n"
    assert [each["key"] for each in terminal("config", "get", "--json").json] == list(KEYS)


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
        ("max-retries", "some", "max-retries = 'some': must be an integer"),
        ("lease", "0.5", "lease = 0.5 is out of range: it must be between 1s and 1d"),
        (
            "timeout",
            "5 parsecs",
            "timeout = '5 parsecs': must be a number of seconds, or a value such as 90s, 15m, 2h or 3d",
        ),
        ("timeout", "-5", "timeout = '-5': must be a number of seconds"),
        ("backoff", "bogus", "backoff = 'bogus': 'bogus' is not a backoff strategy; use none, fixed, linear"),
        ("backoff", "expnential", "backoff = 'expnential': 'expnential' is not a backoff strategy; did you mean 'expo"),
        ("backoff", "fixed:1s,max=2s", "backoff = 'fixed:1s,max=2s': max has no effect with fixed; use it with linear"),
        ("backoff-multiplier", "0.5", "backoff-multiplier = 0.5 is out of range: it must be between 1 and 100"),
        ("verify", "perhaps", "verify = 'perhaps': must be true or false"),
        ("max-retires", "5", "there is no setting 'max-retires'; did you mean 'max-retries'?"),
        ("colour", "red", "there is no setting 'colour'; known keys: url, app, default-queue"),
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
    assert answer.err.startswith(f"holdfast: max-retries = 9999 in {terminal.config}:1 is out of range")
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
    assert "timeout = 'soon' in $HOLDFAST_TIMEOUT: must be a number of seconds" in answer.err


def test_signatures_cannot_be_switched_off_by_accident(terminal: Terminal) -> None:
    terminal("config", "set", "verify", "false")
    answer = terminal("status")
    assert answer.code == 2
    assert "also set allow-unsigned = true" in answer.err
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


# Looking at all of them


def test_the_list_tells_where_each_value_comes_from(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.config.write_text("# ours\nmax_retries = 5\n")
    monkeypatch.setenv("HOLDFAST_LEASE", "40s")
    answer = terminal("config", "list", "--show-origin", "--url", "memory://")
    assert answer.code == 0
    rows = [line.split(maxsplit=2) for line in answer.out.splitlines()]
    assert rows[0] == ["KEY", "VALUE", "ORIGIN"]
    assert [row[0] for row in rows[1:]] == list(KEYS)
    assert ["url", "memory://", "--url"] in rows
    assert ["max-retries", "5", f"{terminal.config}:2"] in rows
    assert ["lease", "40", "$HOLDFAST_LEASE"] in rows
    assert ["timeout", "300", "default"] in rows
    assert answer.err == f"from {terminal.config}\n"


def test_the_list_without_origins_is_that_of_get(terminal: Terminal) -> None:
    assert terminal("config", "list") == terminal("config", "get")


def test_the_list_as_json_has_all_that_the_table_says(terminal: Terminal) -> None:
    terminal.config.write_text("lease = 30\n")
    document = {each["key"]: each for each in terminal("config", "list", "--json").json}
    assert list(document) == list(KEYS)
    assert document["lease"] == {
        "schema": "holdfast.config.setting/1",
        "key": "lease",
        "value": 30.0,
        "origin": {"place": "file", "name": str(terminal.config), "line": 1},
        "default": 60.0,
        "kind": "duration",
        "range": [1.0, 86400.0],
        "choices": [],
        "applies": "start",
        "secret": False,
        "variable": "HOLDFAST_LEASE",
        "meaning": KEYS["lease"].meaning,
    }
    assert document["max-retries"]["applies"] == "enqueue"
    assert document["backoff"]["choices"] == ["none", "fixed", "linear", "exponential"]
    assert document["timeout"]["origin"] == {"place": "default", "name": "", "line": None}
    assert (document["allowlist"]["value"], document["allowlist"]["variable"]) == (None, None)


def test_a_table_is_shown(terminal: Terminal) -> None:
    terminal.config.write_text('[allowlist]\nmail = ["send", "digest"]\nnone = []\n')
    assert terminal("config", "get", "allowlist").out == "mail=send,digest; none=\n"
    assert terminal("config", "get", "allowlist", "--json").json["value"] == {"mail": ["send", "digest"], "none": []}


def test_no_secret_is_shown_wherever_it_comes_from(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    path = terminal.write("url", "postgresql://ada:hunter2@db.example/shop\n")
    path.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_URL_FILE", str(path))
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "hunter2" * 8)
    for words in (
        ["get"],
        ["get", "--json"],
        ["get", "url"],
        ["get", "signing-key"],
        ["list", "--show-origin"],
        ["list", "--json"],
        ["check"],
        ["check", "--json"],
        ["set", "url", "postgresql://ada:hunter2@db.example/other"],
        ["unset", "url"],
        ["set", "url", "mongo://ada:hunter2@db.example/other"],
        ["set", "signing-key", "hunter2" * 8],
    ):
        answer = terminal("config", *words)
        assert "hunter2" not in answer.out + answer.err, words
    assert terminal("config", "get", "signing-key").out == "…\n"
    assert "the file that $HOLDFAST_URL_FILE names" in terminal("config", "list", "--show-origin").out


# Changing


def test_unsetting_leaves_what_is_in_force_then(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.config.write_text(FILE)
    answer = terminal("config", "unset", "max-retries")
    assert (answer.code, answer.out) == (0, "✓ max-retries unset\n")
    assert answer.err == f"  removed from {terminal.config}; now in effect: 3 (default)\n"
    assert terminal.config.read_text() == FILE.replace("max_retries = 5  # enough\n", "")
    monkeypatch.setenv("HOLDFAST_MAX_RETRIES", "7")
    answer = terminal("config", "unset", "max-retries")
    assert (answer.code, answer.out) == (0, f"• max-retries was not set in {terminal.config}\n")
    assert answer.err == "  in effect: 7 ($HOLDFAST_MAX_RETRIES)\n"
    assert terminal("config", "unset", "max-retries", "--json").json == {
        "key": "max-retries",
        "removed": False,
        "value": 7,
        "origin": {"place": "variable", "name": "HOLDFAST_MAX_RETRIES", "line": None},
        "file": str(terminal.config),
        "schema": "holdfast.config.unset/1",
    }


def test_what_is_in_force_without_a_value_is_the_default(terminal: Terminal) -> None:
    assert terminal("config", "unset", "url").err == "  in effect: the default\n"


def test_unsetting_mends_a_file_that_is_refused(terminal: Terminal) -> None:
    terminal.config.write_text("max-retries = 9999\nlease = 5\n")
    assert terminal("config", "unset", "max-retries").code == 0
    assert terminal("config", "get", "lease").out == "5\n"


def test_what_is_set_but_overruled_is_said(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE", "40s")
    answer = terminal("config", "set", "lease", "5")
    assert (answer.code, answer.out) == (0, "✓ lease = 5\n")
    assert answer.err.splitlines()[1:] == ["  but $HOLDFAST_LEASE takes precedence here: lease = 40"]


def test_what_is_set_but_refused_as_a_whole_is_said(terminal: Terminal) -> None:
    answer = terminal("config", "set", "verify", "false")
    assert answer.code == 0
    sentence = f"✗ commands and workers will not start: verify = false in {terminal.config}:1 lets anyone"
    assert sentence in answer.err
    assert "also set allow-unsigned = true" in answer.err


@pytest.mark.parametrize("order", [("verify", "allow-unsigned"), ("allow-unsigned", "verify")])
def test_disabling_signatures_is_warned_of(terminal: Terminal, order: tuple[str, str]) -> None:
    values = {"verify": "false", "allow-unsigned": "true"}
    warned = [terminal("config", "set", key, values[key]).err for key in order]
    sentence = "disables signatures: anyone who can write to the database can run any registered handler"
    assert [sentence in text for text in warned] == [False, True]
    assert warned[1].splitlines()[-1] == "  → remove verify = false and allow-unsigned = true"
    assert sentence not in terminal("config", "set", "max-retries", "5").err, "only the change that disables them"


def test_a_password_set_where_others_can_read_it_is_said(terminal: Terminal) -> None:
    terminal.config.chmod(0o644)
    answer = terminal("config", "set", "url", "postgresql://ada:hunter2@db.example/shop")
    assert f"  other users can read that file: chmod 600 {terminal.config}, or set HOLDFAST_URL" in answer.err
    terminal.config.chmod(0o600)
    assert "others can read" not in terminal("config", "set", "url", "postgresql://ada:hunter2@db.example/shop").err


@pytest.mark.parametrize(
    ("words", "begun", "offered"),
    [
        (["config", "get"], "max", ["max-retries"]),
        (["config", "unset"], "retain_", ["retain-completed", "retain-dead"]),
        (["config", "set"], "", list(KEYS)),
        (["config", "set", "backoff"], "", ["none", "fixed", "linear", "exponential"]),
        (["config", "set", "allow_unsigned"], "t", ["true"]),
        (["config", "set", "lease"], "", []),
        (["config", "set", "leese"], "", []),
    ],
)
def test_a_shell_completes_names_and_choices(words: list[str], begun: str, offered: list[str]) -> None:
    shell = ShellComplete(cli, {}, "holdfast", "_HOLDFAST_COMPLETE")
    assert [item.value for item in shell.get_completions(words, begun)] == offered


# Paths and checks


def test_the_path_is_that_of_the_file_in_use(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal("config", "path") == (0, f"{terminal.config}\n", "")
    assert terminal("config", "path", "--json").json == {
        "file": str(terminal.config),
        "schema": "holdfast.config.path/1",
        "exists": True,
        "project": str(terminal.project),
    }
    monkeypatch.chdir(terminal.home)
    own = terminal.home / "config" / "holdfast" / "holdfast.toml"
    answer = terminal("config", "path")
    assert answer == (0, f"{own}\n", "it does not exist;  holdfast config set  creates it\n")
    assert terminal("config", "path", "--json").json["exists"] is False


def test_the_path_is_told_even_of_a_file_that_is_refused(terminal: Terminal) -> None:
    terminal.config.write_text("max-retries = 9999\n")
    assert terminal("config", "path").out == f"{terminal.config}\n"


def test_a_check_finds_nothing_wrong_with_sound_settings(terminal: Terminal) -> None:
    terminal.config.write_text("lease = 30\n")
    answer = terminal("config", "check")
    assert (answer.code, answer.out) == (0, f"✓ no problems found: 1 of {len(KEYS)} settings are set\n")
    assert answer.err == f"  checked: {terminal.config}, the environment\n"
    assert terminal("config", "check", "--strict").code == 0
    assert terminal("config", "check", "--json").json == {
        "schema": "holdfast.config.check/1",
        "ok": True,
        "file": str(terminal.config),
        "problems": [],
    }
    assert not terminal.database.exists()


def test_a_check_reports_everything_at_once(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.config.write_text("max-retries = 9999\nallow-unsigned = true\nleese = 5\n")
    monkeypatch.setenv("HOLDFAST_TIMEOUT", "soon")
    answer = terminal("config", "check")
    assert answer.code == 2
    assert answer.out.splitlines() == [
        f"✗ max-retries = 9999 in {terminal.config}:1 is out of range: it must be between 0 and 1000",
        f"✗ there is no setting 'leese' (in {terminal.config}:3); did you mean 'lease'?",
        "✗ timeout = 'soon' in $HOLDFAST_TIMEOUT: must be a number of seconds, or a value such as 90s, 15m, 2h or 3d",
        f"⚠ allow-unsigned = true in {terminal.config}:2 has no effect without verify = false",
        "  → remove it",
    ]
    assert answer.err == f"3 errors, 1 warning; checked: {terminal.config}, the environment\n"
    answer = terminal("config", "check", "--json")
    assert (answer.code, answer.err, answer.json["ok"]) == (2, "", False)
    assert [(one["warning"], one["key"]) for one in answer.json["problems"]] == [
        (False, "max-retries"),
        (False, "leese"),
        (False, "timeout"),
        (True, "allow-unsigned"),
    ]
    assert answer.json["problems"][2]["origin"] == {"place": "variable", "name": "HOLDFAST_TIMEOUT", "line": None}


def test_warnings_fail_a_check_only_if_asked(terminal: Terminal) -> None:
    terminal.config.write_text("allow-unsigned = true\n")
    assert terminal("config", "check").code == 0
    assert terminal("config", "check", "--strict").code == 1
    assert terminal("config", "check", "--strict", "--json").json["ok"] is False


def test_a_check_of_another_place(terminal: Terminal) -> None:
    answer = terminal("config", "check", "--url", "redis://127.0.0.1:1/0")
    assert answer.code == 2
    assert "'redis://127.0.0.1:1/0' is shared with other machines" in answer.out


def test_a_check_of_a_backend_by_its_name(terminal: Terminal) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}"\n[backends]\nmail = "sqlite:///mail.db"\n')
    assert terminal("config", "check").code == 2
    assert terminal("config", "check", "--url", "default").code == 2
    assert terminal("config", "check", "--url", "mail").code == 0
    [url, *_] = terminal("config", "list", "--url", "mail", "--json").json
    assert url["value"] == f"sqlite:///{terminal.project}/mail.db"


def test_a_broken_file_can_be_checked(terminal: Terminal) -> None:
    terminal.config.write_text("max-retries = [")
    answer = terminal("config", "check")
    assert answer.code == 2
    assert answer.out.startswith(f"✗ {terminal.config} is not valid TOML: ")


def test_a_url_in_a_file_is_used(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    path = terminal.write("url", f"sqlite:///{terminal.home}/other.db\n")
    path.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_URL_FILE", str(path))
    assert terminal("enqueue", '{"job": "x"}').code == 0
    assert (terminal.home / "other.db").exists()
    path.chmod(0o644)
    answer = terminal("status")
    assert (answer.code, answer.out) == (2, "")
    assert f"chmod 600 {path}" in answer.err


# The schema


def test_the_schema_is_json_for_editors(terminal: Terminal) -> None:
    answer = terminal("schema", "config")
    assert (answer.code, answer.err) == (0, "")
    assert list(answer.json["properties"]) == [key.name for key in KEYS.values() if key.in_file]


def test_a_schema_that_does_not_exist_is_not_found_but_the_nearest(terminal: Terminal) -> None:
    answer = terminal("schema", "confg")
    assert (answer.code, answer.out) == (3, "")
    assert "did you mean 'config'?" in answer.err


# Rehearsals


def test_what_is_only_tried_is_not_written(terminal: Terminal) -> None:
    terminal.config.write_text("lease = 30\n")
    answer = terminal("config", "set", "lease", "20", "--dry-run")
    assert (answer.code, answer.out) == (0, "would set lease = 20\n")
    assert terminal("config", "set", "lease", "0", "--dry-run").code == 2
    answer = terminal("config", "unset", "lease", "--dry-run")
    assert (answer.code, answer.out) == (0, f"would unset lease in {terminal.config}\n")
    assert terminal("config", "unset", "timeout", "--dry-run").out.startswith("• timeout was not set")
    assert terminal.config.read_text() == "lease = 30\n"


# Signs


def test_a_terminal_without_our_signs_gets_others(terminal: Terminal) -> None:
    answer = terminal.program("config", "set", "lease", "20", PYTHONIOENCODING="ascii")
    assert answer.out == "* lease = 20\n"
    answer = terminal.program("config", "check", "--url", "redis://db/0", PYTHONIOENCODING="ascii")
    assert answer.out.startswith("x 'redis://db/0' is shared")
