"""`check_settings`: a planted mistake of each kind is found, with its place and what to do."""

from pathlib import Path

import pytest

from holdfast.config import Problem, find_project, read_settings
from holdfast.config.checking import check_settings

KEY = "k" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "holdfast.toml").touch()
    return tmp_path


def problems(folder: Path, text: str = "", **environment: str) -> list[Problem]:
    (folder / "holdfast.toml").write_text(text)
    return list(check_settings(read_settings(find_project(folder), environment=environment), environment))


def _whole(problem: Problem) -> str:
    return f"{problem.message} -> {problem.advice}" if problem.advice else problem.message


def said(folder: Path, text: str = "", **environment: str) -> list[tuple[bool, str | None, str]]:
    return [
        (problem.warning, problem.key, _whole(problem).replace(str(folder), ""))
        for problem in problems(folder, text, **environment)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lease = 30\nmax-retries = 5\n",
        'url = "memory://"\n',
        'url = "redis://db/0"\nverify = false\nallow-unsigned = true\n',
        "reap-interval = 30\n",
    ],
)
def test_sound_settings_have_no_errors(folder: Path, text: str) -> None:
    assert [problem for problem in problems(folder, text, PATH="/bin") if not problem.warning] == []


def test_all_that_is_wrong_is_told_at_once_errors_first(folder: Path) -> None:
    found = said(
        folder, "allow-unsigned = true\nlease = 5000000\nleese = 1\n", HOLDFAST_TIMEOUT="soon", HOLDFAST_MAX_RETRY="5"
    )
    assert [(warning, key) for warning, key, _ in found] == [
        (False, "lease"),
        (False, "leese"),
        (False, "timeout"),
        (True, "allow-unsigned"),
        (True, None),
    ]


@pytest.mark.parametrize("url", ["postgresql://db/shop", "mysql://db/shop", "redis://db/0"])
def test_a_server_needs_a_key(folder: Path, url: str) -> None:
    [(warning, key, message)] = said(folder, f'url = "{url}"\n')
    assert (warning, key) == (False, "signing-key")
    assert message.startswith(f"'{url}' is shared with other machines, and all of them need the same signing key: ")
    for place in ("HOLDFAST_SIGNING_KEY,", "HOLDFAST_SIGNING_KEY_FILE", "signing-key-file in the configuration"):
        assert place in message
    assert said(folder, f'url = "{url}"\n', HOLDFAST_SIGNING_KEY=KEY) == []


def test_a_key_that_is_too_short_is_told_without_it(folder: Path) -> None:
    [(warning, key, message)] = said(folder, HOLDFAST_SIGNING_KEY="s3cr3t")
    assert (warning, key) == (False, "signing-key")
    assert message.startswith("signing-key in $HOLDFAST_SIGNING_KEY: a signing key needs at least 32 bytes")
    assert "s3cr3t" not in message


def test_a_key_file_is_read(folder: Path) -> None:
    path = folder / "shop.key"
    [(_, key, message)] = said(folder, 'signing-key-file = "shop.key"\n')
    assert (key, message) == (
        "signing-key-file",
        "signing-key-file in /holdfast.toml:1: cannot read the signing keys in /shop.key: No such file or directory -> "
        "create it; generate one with  python -c 'import secrets; print(secrets.token_hex(32))'",
    )
    path.write_text(KEY)
    path.chmod(0o644)
    [(_, _, message)] = said(folder, HOLDFAST_SIGNING_KEY_FILE=str(path))
    assert message.startswith("signing-key-file in $HOLDFAST_SIGNING_KEY_FILE: /shop.key holds the signing keys")
    path.chmod(0o600)
    assert said(folder, HOLDFAST_SIGNING_KEY_FILE=str(path)) == []


def test_the_key_beside_the_database_is_read_and_none_is_made(folder: Path) -> None:
    path = folder / ".holdfast" / "signing.key"
    assert said(folder) == []
    assert not path.parent.exists()
    path.parent.mkdir()
    path.write_text(KEY)
    path.chmod(0o640)
    [(warning, key, message)] = said(folder)
    assert (warning, key) == (False, "signing-key")
    assert message.endswith("holds the signing keys and others can read it -> chmod 600 /.holdfast/signing.key")
    path.chmod(0o600)
    assert said(folder) == []


def test_a_prefix_that_is_no_name_in_the_engine_is_told(folder: Path) -> None:
    [(warning, key, message)] = said(
        folder, 'table-prefix = "Shop-"\nurl = "postgresql://db/shop"\n', HOLDFAST_SIGNING_KEY=KEY
    )
    assert (warning, key) == (False, "table-prefix")
    assert message.startswith(
        "table-prefix in /holdfast.toml:1: 'Shop-' is not a valid prefix; use up to 40 lower-case"
    )
    [(_, key, _)] = said(folder, 'table-prefix = "Shop-"\nurl = "redis://db/0"\n', HOLDFAST_SIGNING_KEY=KEY)
    assert key == "table-prefix"


def test_an_option_of_a_server_that_cannot_be_is_told(folder: Path) -> None:
    (folder / "holdfast.toml").chmod(0o600)
    [(warning, key, message)] = said(folder, 'url = "redis://:hunter2@db/shop"\n', HOLDFAST_SIGNING_KEY=KEY)
    assert (warning, key) == (False, "url")
    assert message.startswith("url in /holdfast.toml:1: 'shop' is not a Redis database")
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "allow-unsigned = true\n",
            "allow-unsigned",
            "allow-unsigned = true in /holdfast.toml:1 has no effect without verify = false -> remove it",
        ),
        (
            "verify = false\nallow_unsigned = true\n",
            "verify",
            "verify = false in /holdfast.toml:1 disables signatures: "
            "anyone who can write to the database can run any registered handler -> "
            "remove verify = false and allow-unsigned = true",
        ),
        (
            "lease = 1.5\n",
            "lease",
            "lease = 1.5 in /holdfast.toml:1 must be renewed every 0.5s; on a busy machine, leases will expire "
            "while their jobs run -> use a longer lease:  holdfast config set lease 60s",
        ),
        (
            "poll-interval = 120\n",
            "poll-interval",
            "poll-interval = 120 in /holdfast.toml:1 is longer than lease (60s): "
            "requeued jobs of a dead worker wait that long for the next poll -> "
            "use a shorter interval:  holdfast config set poll-interval 1s",
        ),
        (
            "crash-limit = 1\n",
            "crash-limit",
            "crash-limit = 1 in /holdfast.toml:1 dead-letters every job whose worker is killed or loses its "
            "connection to the engine -> let a job survive a crash of its worker:  holdfast config set crash-limit 3",
        ),
        (
            "lease = 10\nreap-interval = 6\n",
            "reap-interval",
            "reap-interval = 6 in /holdfast.toml:2 is longer than half the lease; 5s is used instead -> "
            "use a shorter interval or a longer lease:  holdfast config set reap-interval 5s",
        ),
        (
            "backoff-max = 1\n",
            "backoff-max",
            "backoff-max = 1 in /holdfast.toml:1 conflicts with backoff-base = 2: every delay is limited to 1s -> "
            "use a longer backoff-max or a shorter backoff-base",
        ),
        (
            "backoff-base = 400\n",
            "backoff-base",
            "backoff-base = 400 in /holdfast.toml:1 conflicts with backoff-max = 300: every delay is limited to 300s "
            "-> use a longer backoff-max or a shorter backoff-base",
        ),
        (
            'backoff = "linear"\nbackoff-base = 400\n',
            "backoff-base",
            "backoff-base = 400 in /holdfast.toml:2 conflicts with backoff-max = 300: every delay is limited to 300s "
            "-> use a longer backoff-max or a shorter backoff-base",
        ),
        (
            'backoff = "fixed"\nbackoff-max = 60\n',
            "backoff-max",
            "backoff-max = 60 in /holdfast.toml:2 has no effect with backoff = fixed -> "
            "remove it, or set backoff to linear or exponential",
        ),
        (
            'backoff = "linear"\nbackoff-multiplier = 2\n',
            "backoff-multiplier",
            "backoff-multiplier = 2 in /holdfast.toml:2 has no effect with backoff = linear -> "
            "remove it, or set backoff to exponential",
        ),
        (
            'backoff = ["1s", "5s"]\nbackoff-jitter = 0.5\n',
            "backoff-jitter",
            "backoff-jitter = 0.5 in /holdfast.toml:2 has no effect with backoff = 1s,5s -> "
            "remove it, or set backoff to linear or exponential",
        ),
        (
            "backoff-multiplier = 1\n",
            "backoff-multiplier",
            "backoff-multiplier = 1 in /holdfast.toml:1 makes every delay equal to backoff-base -> "
            "use a larger multiplier:  holdfast config set backoff-multiplier 2",
        ),
        (
            "backoff-base = 0.5\n",
            "backoff-base",
            "backoff-base = 0.5 in /holdfast.toml:1 is also the multiplier, because backoff-multiplier is not set, so "
            "the delays do not grow -> use a larger multiplier:  holdfast config set backoff-multiplier 2",
        ),
    ],
)
def test_what_is_hardly_meant_is_a_warning(folder: Path, text: str, key: str, message: str) -> None:
    assert said(folder, text) == [(True, key, message)]


@pytest.mark.parametrize(
    "text",
    [
        "lease = 15\n",
        'backoff-base = 400\nbackoff = "fixed"\n',
        "backoff-base = 5\nbackoff-multiplier = 2\n",
        'backoff = "exponential:10m,max=1h"\n',
        "lease = 3\n",
    ],
)
def test_what_nobody_has_set_or_would_notice_is_no_warning(folder: Path, text: str) -> None:
    assert said(folder, text) == []


def test_a_place_that_cannot_be_a_file_is_told(folder: Path) -> None:
    assert said(folder, f'url = "sqlite:///{folder}"\n[backends]\nmail = "sqlite:///holdfast.toml/jobs.db"\n') == [
        (False, "url", "url in /holdfast.toml:1:  is a directory -> name a file in it"),
        (
            False,
            "backends",
            "backends.mail in /holdfast.toml:2: /holdfast.toml is not a directory, so the database cannot be created "
            "-> name another file",
        ),
    ]


def test_a_place_below_a_directory_that_is_not_there_is_told(folder: Path) -> None:
    assert said(folder, f'url = "sqlite:///{folder}/typo/app/jobs.db"\n') == [
        (
            False,
            "url",
            "url in /holdfast.toml:1: the directory /typo does not exist -> "
            "name another file, or create it with  mkdir -p /typo",
        )
    ]
    assert said(folder, f'url = "sqlite:///{folder}/app/jobs.db"\n') == []


def test_a_secret_that_is_given_twice_is_a_warning(folder: Path) -> None:
    both = {"HOLDFAST_SIGNING_KEY": KEY, "HOLDFAST_SIGNING_KEY_FILE": "elsewhere"}
    message = (
        "$HOLDFAST_SIGNING_KEY and $HOLDFAST_SIGNING_KEY_FILE are both set; the first takes precedence -> unset one"
    )
    assert said(folder, **both) == [(True, "signing-key", message)]


def test_a_variable_that_is_nearly_a_setting_is_a_warning_and_others_are_none(folder: Path) -> None:
    assert said(folder, HOLDFAST_MAX_RETRYS="5") == [
        (True, None, "$HOLDFAST_MAX_RETRYS is not a setting and is ignored; did you mean $HOLDFAST_MAX_RETRIES?")
    ]
    assert said(folder, HOLDFAST_JOB_ID="1", HOLDFAST_QUEUE="mail", HOLDFAST_TEST_REDIS_SERVER="x", URL="y") == []


def test_a_table_that_is_not_read_is_a_warning(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.holdfast]\nlease = 5\n")
    [(warning, _, message)] = said(folder, "lease = 6\n")
    assert warning
    assert message == (
        "[tool.holdfast] in /pyproject.toml is ignored, because /holdfast.toml exists -> "
        "move its settings to that file, and remove the table"
    )


def test_a_password_in_a_file_that_others_can_read_is_a_warning(folder: Path) -> None:
    text, file = 'url = "postgresql://ada:hunter2@db/shop"\n', folder / "holdfast.toml"
    file.chmod(0o644)
    [(warning, key, message)] = said(folder, text, HOLDFAST_SIGNING_KEY=KEY)
    assert (warning, key) == (True, "url")
    assert message == (
        "url = postgresql://ada:…@db/shop in /holdfast.toml:1 contains a password, and other users can read the file "
        "-> chmod 600 /holdfast.toml, or set HOLDFAST_URL, or name a file with it in HOLDFAST_URL_FILE"
    )
    file.chmod(0o600)
    assert said(folder, text, HOLDFAST_SIGNING_KEY=KEY) == []
    file.chmod(0o644)
    assert said(folder, 'url = "sqlite:///jobs.db"\n') == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('dead-letter-to = "Failed"', (False, "dead-letter-to", "'Failed' is not a valid queue name")),
        ('[dead-letter-queues]\nmail = "no!"', (False, "dead-letter-queues", "'no!' is not a valid queue name")),
        (
            'dead-letter-to = "failed"\n[backends]\nreports = "memory://"\n[routes]\nnightly = "reports"',
            (False, "dead-letter-to", "in dead-letter-queues, set nightly to a queue in 'reports'"),
        ),
    ],
)
def test_a_queue_for_dead_letters_is_valid_and_in_the_same_backend(
    folder: Path, text: str, problem: tuple[bool, str, str]
) -> None:
    [(warning, key, message)] = said(folder, text)
    assert (warning, key) == problem[:2]
    assert message.startswith(f"{key} in /holdfast.toml:1: ")
    assert problem[2] in message


def test_queues_for_dead_letters_can_differ_by_backend(folder: Path) -> None:
    tables = '[backends]\nreports = "memory://"\n[routes]\nnightly = "reports"\n[dead-letter-queues]\nnightly = ""'
    assert said(folder, f'dead-letter-to = "failed"\n{tables}') == []
