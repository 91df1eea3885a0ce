"""`config check` and `doctor` say the same of the same settings, in the same words."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest

from .terminal import Terminal

KEY = "k" * 32


class Verdict(NamedTuple):
    """What one of the two says of a setting."""

    level: str
    message: str
    advice: str


def checked(terminal: Terminal, *words: str) -> list[Verdict]:
    """What `config check` says; where the message says what to do, there is no advice."""
    return [
        Verdict("warning" if one["warning"] else "error", one["message"], one["advice"])
        for one in terminal("config", "check", "--json", *words).json["problems"]
    ]


def diagnosed(terminal: Terminal, *words: str) -> list[Verdict]:
    """What `doctor` says of settings and keys; of the rest, such as options of workers, the other knows nothing."""
    return [
        Verdict(one["level"], one["message"], one["advice"])
        for one in terminal("doctor", "--kill-after", "1s", "--json", *words).json["findings"]
        if one["check"] in ("settings", "keys") and one["level"] in ("warning", "error")
    ]


def key_file(mode: int, text: str = KEY) -> Callable[[Terminal], None]:
    def plant(terminal: Terminal) -> None:
        terminal.write("shop.key", text).chmod(mode)
        terminal.config.write_text('signing-key-file = "shop.key"\n')

    return plant


def key_beside(terminal: Terminal) -> None:
    terminal("enqueue", "--id", "one", "--job", "add")
    (terminal.database.parent / "signing.key").chmod(0o644)


def ignored_table(terminal: Terminal) -> None:
    terminal.write("pyproject.toml", "[tool.holdfast]\nlease = 5\n")


def missing_directory(terminal: Terminal) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}/typo/app/jobs.db"\n')


def directory_as_a_file(terminal: Terminal) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}"\n')


Plant: TypeAlias = str | dict[str, str] | Callable[[Terminal], None]
PLANTED: dict[str, Plant] = {
    "a value out of range": "lease = 0.5\n",
    "several values": "lease = 0.5\nmax-retries = 9999\n",
    "a name": "leese = 5\n",
    "no TOML": "lease = [",
    "a variable's value": {"HOLDFAST_TIMEOUT": "soon"},
    "a variable's name": {"HOLDFAST_MAX_RETRYS": "5"},
    "a short lease": "lease = 2\n",
    "poll-interval": "poll-interval = 120\n",
    "reap-interval": "reap-interval = 45\n",
    "reap-interval by default": "lease = 15\n",
    "crash-limit": "crash-limit = 1\n",
    "backoff": "backoff-base = 600\n",
    "backoff that is none": 'backoff-base = 600\nbackoff = "none"\n',
    "backoff that is fixed": 'backoff-base = 600\nbackoff = "fixed"\n',
    "backoff that does not grow": "backoff-base = 1\n",
    "backoff in full": 'backoff = "exponential:2s,multiplier=3"\n',
    "signatures switched off": "verify = false\nallow-unsigned = true\n",
    "signatures half switched off": "verify = false\n",
    "allow-unsigned alone": "allow-unsigned = true\n",
    "a short key": {"HOLDFAST_SIGNING_KEY": "s3cr3t"},
    "a key given twice": {"HOLDFAST_SIGNING_KEY": KEY, "HOLDFAST_SIGNING_KEY_FILE": "elsewhere"},
    "a key file that is not there": 'signing-key-file = "nowhere.key"\n',
    "a key file that others read": key_file(0o644),
    "a key file of nonsense": key_file(0o600, "short"),
    "a key beside the jobs that others read": key_beside,
    "a server without a key": 'url = "redis://127.0.0.1:1/0"\n',
    "another server without a key": '[backends]\nmail = "redis://127.0.0.1:1/0"\n',
    "a password that others read": 'url = "redis://:hunter2@127.0.0.1:1/0"\n',
    "another password that others read": '[backends]\nmail = "redis://:hunter2@127.0.0.1:1/0"\n',
    "a directory that is not there": missing_directory,
    "a directory as a file": directory_as_a_file,
    "a file as a directory": 'url = "sqlite:///holdfast.toml/jobs.db"\n',
    "an engine": 'url = "nosql://db/shop"\n',
    "an option of an engine": {"HOLDFAST_URL": "redis://db/shop", "HOLDFAST_SIGNING_KEY": KEY},
    "a prefix": 'table-prefix = "Shop-"\n',
    "a route": '[routes]\nmail = "depot"\n',
    "a backend named like the url": '[backends]\ndefault = "memory://"\n',
    "a handler": 'handlers = ["shout"]\n',
    "a middleware": 'middleware = ["shouting"]\n',
    "a retry policy": 'retry-policy = "patient"\n',
    "a collector": 'metrics = "counting"\n',
    "a table that is not read": ignored_table,
}
QUIET = {"reap-interval by default", "backoff that is fixed", "backoff in full"}


@pytest.mark.parametrize("kind", PLANTED)
def test_both_say_the_same_of_a_planted_mistake(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    plant = PLANTED[kind]
    if callable(plant):
        plant(terminal)
    elif isinstance(plant, str):
        terminal.config.write_text(plant)
    else:
        for name, value in plant.items():
            monkeypatch.setenv(name, value)
    terminal.config.chmod(0o644)
    said = checked(terminal)
    assert bool(said) == (kind not in QUIET)
    assert diagnosed(terminal) == said


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nowhere", "mail", "default", "sqlite:///holdfast.toml/j.db"])
def test_both_say_the_same_of_a_place_on_the_command_line(terminal: Terminal, url: str) -> None:
    terminal.config.write_text(f'url = "sqlite:///{terminal.home}"\n[backends]\nmail = "redis://127.0.0.1:1/x"\n')
    assert diagnosed(terminal, "--url", url) == checked(terminal, "--url", url)


def test_what_the_application_decides_is_judged_by_the_same_rules(terminal: Terminal) -> None:
    terminal.write(
        "shop.py",
        "from holdfast import Holdfast\n"
        "from holdfast.config import Settings\n"
        'hf = Holdfast("sqlite:///holdfast.toml/jobs.db", signing_key="s3cr3t", settings=Settings(lease=1.5))\n',
    )
    terminal.config.write_text("crash-limit = 1\n")
    said = [one.message for one in diagnosed(terminal, "--app", "shop:hf")]
    assert [sentence.partition(":")[0] for sentence in said] == [
        "signing-key in the application",
        "url in the application",
        "lease = 1.5 in the application must be renewed every 0.5s; on a busy machine, leases will expire while their "
        "jobs run",
    ]


def test_an_application_that_cannot_be_imported_hides_no_mistake_in_the_settings(terminal: Terminal) -> None:
    terminal.config.write_text("crash-limit = 1\n")
    broken, *rest = diagnosed(terminal, "--app", "nowhere:hf")[::-1]
    assert "there is no module 'nowhere'" in broken.message
    assert rest == checked(terminal)


def test_what_is_wrong_with_the_settings_is_told_once_of_an_application_that_stumbles_on_it(terminal: Terminal) -> None:
    terminal.write("shop.py", "from holdfast import Holdfast\nhf = Holdfast()\n")
    terminal.config.write_text("lease = 0.5\nmax-retries = 9999\n")
    assert diagnosed(terminal, "--app", "shop:hf") == checked(terminal)


def test_an_engine_that_cannot_be_opened_as_it_is_set_is_told_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY)
    terminal.config.write_text('url = "redis://db/shop"\n')
    found = terminal("doctor", "--json").json["findings"]
    assert [one["check"] for one in found if "is not a Redis database" in one["message"]] == ["settings"]
    assert [one["level"] for one in found if one["check"] == "engine"] == ["note"]
