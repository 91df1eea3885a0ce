"""`config set` refuses every value that the next command would refuse, for every key."""

from shutil import rmtree
from typing import Final

import pytest

from holdfast.config import KEYS

from .terminal import Terminal

# All paths are in the project: a worker may create the directory for sessions, and the tests may run as root.
HOSTILE: Final = (
    *("", " ", ",", "'", '"', "\n", "\x1b[2J", "\udcff", "x" * 300, "ü", "A B", "a;drop", "--help", "..", "."),
    *("-1", "0", "0.0001", "1e999", "nan", "inf", "99999999999", "5 parsecs", "true", "false", "none"),
    *("nowhere", "nowhere:hf", "json:nowhere", ":hf", "./shop", "os.path:", "a,b", "mail=nowhere:handler"),
    *("no/such/file", "holdfast.toml", "holdfast.toml/file", "/dev/null", "/dev/null/file"),
    *("sqlite:", "sqlite:///", "sqlite://jobs.db", "sqlite:///no/such/jobs.db", "sqlite:////dev/null/jobs.db"),
    *("sqlite:///jobs.db?mode=ro", "sqlite:///jobs.db?prefix=a;b", "sqlite:////", "file:jobs.db", "ftp://host/jobs"),
    *("postgresql://[", "redis://127.0.0.1:1/0?nowhere=1", "redis://127.0.0.1:1/x", "mysql://u@h:port/db"),
)
# What is written although a command refuses it: `allow-unsigned` must follow.
ALLOWED: Final = (("verify", "false"), ("verify", "0"))
# Applications and plugins are not imported: of these, only the module is looked up.
NOT_IMPORTED: Final = ("json:nowhere", "holdfast.toml")
# The settings that only a worker uses.
OF_WORKERS: Final = ("app", "handlers", "middleware", "metrics", "retry-policy", "session-dir")
REFUSED: Final = 2


@pytest.mark.parametrize("name", KEYS)
def test_what_the_next_command_would_refuse_is_not_written(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY" if name == "url" else "OTHER", "k" * 32)
    commands: list[tuple[str, ...]] = [("config", "check"), ("enqueue", '{"job": "x"}'), ("status",)]
    if name in OF_WORKERS:
        commands.append(("worker", "start", "--burst"))
    for value in HOSTILE:
        terminal.config.write_text("# ours\n")
        rmtree(terminal.project / ".holdfast", ignore_errors=True)
        answer = terminal("config", "set", "--", name, value)
        dry = terminal("config", "set", "--dry-run", "--", name, value)
        assert answer.code in (0, REFUSED), (value, answer)
        if answer.code == REFUSED:
            assert terminal.config.read_text() == "# ours\n", value
            assert dry.code == REFUSED, value
            assert answer.err, value
        elif (name, value) in ALLOWED:
            assert "commands and workers will not start" in answer.err, value
        elif name not in OF_WORKERS or value not in NOT_IMPORTED:
            assert dry.code == 0, value
            refused = [words for words in commands if terminal(*words).code == REFUSED]
            assert not refused, f"{name} = {value!r} was written, but {refused} refuse it"


def test_the_url_of_a_server_is_written_before_its_key_with_a_note(terminal: Terminal) -> None:
    answer = terminal("config", "set", "url", "redis://127.0.0.1:1/0")
    assert answer.code == 0
    assert "✗ commands and workers will not start: 'redis://127.0.0.1:1/0' is shared with other machines" in answer.err


def test_a_value_is_refused_even_where_a_variable_hides_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TABLE_PREFIX", "fine_")
    answer = terminal("config", "set", "table-prefix", "a;drop")
    assert (answer.code, answer.out, terminal.config.read_text()) == (2, "", "")
    assert str(terminal.config) not in answer.err  # nothing is wrong in the file


def test_a_setting_can_be_mended_while_another_is_wrong(terminal: Terminal) -> None:
    terminal.config.write_text('table-prefix = "a;drop"\napp = "nowhere:hf"\n')
    assert terminal("config", "set", "lease", "90s").code == 0
    assert terminal("config", "set", "app", "nowhere:other").code == 2
    assert terminal("config", "set", "app", "json:hf").code == 0
    assert terminal("config", "set", "table-prefix", "b_").code == 0
    assert terminal("config", "check").code == 0


def test_a_setting_that_breaks_another_is_refused(terminal: Terminal) -> None:
    terminal.config.write_text("verify = false\nallow-unsigned = true\n")
    assert terminal("config", "set", "allow-unsigned", "false").code == 2
    assert terminal.config.read_text() == "verify = false\nallow-unsigned = true\n"
