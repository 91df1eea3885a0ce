"""Where each value comes from, secrets in files of their own, and what is never shown."""

from pathlib import Path

import pytest

from holdfast.config import KEYS, Origin, Place, Project, Reading, Settings, check_value, load_settings, read_settings
from holdfast.config.reading import lines_of
from holdfast.errors import ConfigError

URL = "postgresql://ada:hunter2@db.example/shop"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(directory=tmp_path, config_file=tmp_path / "holdfast.toml", data_directory=tmp_path / ".holdfast")


def secret(path: Path, text: str = f"{URL}\n", mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def origin(reading: Reading, name: str) -> Origin:
    return reading.of(KEYS[name]).origin


# Where a value comes from


def test_every_value_is_known_with_the_place_that_won(project: Project) -> None:
    project.config_file.write_text("# ours\nlease = 30\ntimeout = 60\n\nmax_retries = 5\n[allowlist]\nmail = []\n")
    reading = read_settings(project, {"timeout": "2m", "url": None}, {"HOLDFAST_MAX_RETRIES": "7"})
    file = str(project.config_file)
    assert origin(reading, "lease") == Origin(place=Place.FILE, name=file, line=2)
    assert origin(reading, "max-retries") == Origin(place=Place.VARIABLE, name="HOLDFAST_MAX_RETRIES")
    assert origin(reading, "timeout") == Origin(place=Place.FLAG, name="--timeout")
    assert origin(reading, "allowlist") == Origin(place=Place.FILE, name=file, line=6)
    assert origin(reading, "crash-limit") == Origin()
    assert [str(origin(reading, name)) for name in ("lease", "max-retries", "timeout", "crash-limit")] == [
        f"{file}:2",
        "$HOLDFAST_MAX_RETRIES",
        "--timeout",
        "default",
    ]


def test_a_default_that_was_written_down_is_set_and_no_default(project: Project) -> None:
    project.config_file.write_text("max-retries = 3\n")
    reading = read_settings(project, environment={})
    assert reading.settings().max_retries == KEYS["max-retries"].default
    assert set(reading.found) == {"max-retries"}
    assert origin(reading, "max-retries").place is Place.FILE


@pytest.mark.parametrize(
    ("text", "table", "lines"),
    [
        ("lease = 1\n\nmax_retries = 2", "", {"lease": 1, "max_retries": 3}),
        ('  "lease" = 1 # so', "", {"lease": 1}),
        ("[allowlist]\nlease = ['x']\n", "", {"allowlist": 1}),
        ("[ tool.holdfast ] # ours\nlease = 1\n[tool.other]\nlease = 2\n", "tool.holdfast", {"lease": 2}),
        (
            "[tool.holdfast]\nlease = 1\n[tool.holdfast.allowlist]\na = []\n",
            "tool.holdfast",
            {"lease": 2, "allowlist": 3},
        ),
        ("[project]\nlease = 1\n", "tool.holdfast", {}),
        ("tool.holdfast.lease = 1\n", "tool.holdfast", {}),
        ('url = """\nlease = 1\n"""\nlease = 2\n', "", {"url": 1}),
    ],
)
def test_a_line_is_told_where_it_is_plain_to_see(text: str, table: str, lines: dict[str, int]) -> None:
    assert lines_of(text, table) == lines


def test_every_problem_is_found_and_the_first_is_the_error(project: Project) -> None:
    project.config_file.write_text('max-retries = 9999\nleese = 5\nbackoff = "bogus"\nlease = 30\n')
    reading = read_settings(project, {"retain-dead": "soon"}, {"HOLDFAST_TIMEOUT": "soon", "HOLDFAST_VERIFY": "no"})
    assert [(problem.key, str(problem.origin)) for problem in reading.problems] == [
        ("max-retries", f"{project.config_file}:1"),
        ("leese", f"{project.config_file}:2"),
        ("backoff", f"{project.config_file}:3"),
        ("timeout", "$HOLDFAST_TIMEOUT"),
        ("retain-dead", "--retain-dead"),
        ("verify", "$HOLDFAST_VERIFY"),
    ]
    assert reading.of(KEYS["lease"]).value == 30
    with pytest.raises(ConfigError) as caught:
        reading.settings()
    assert str(caught.value).startswith(f"max-retries = 9999 in {project.config_file}:1 is out of range: ")
    assert str(caught.value).endswith(" (and 5 more; list them with  holdfast config check)")


def test_a_broken_file_does_not_hide_what_is_wrong_elsewhere(project: Project) -> None:
    project.config_file.write_text("lease = [")
    reading = read_settings(project, environment={"HOLDFAST_LEASE": "soon"})
    assert [problem.key for problem in reading.problems] == [None, "lease"]


# Secrets


def test_a_url_may_stand_in_a_file_of_its_own(project: Project, tmp_path: Path) -> None:
    project.config_file.write_text('url = "sqlite:///shop.db"\n')
    environment = {"HOLDFAST_URL_FILE": secret(tmp_path / "url")}
    assert load_settings(project, environment=environment).url == URL
    reading = read_settings(project, environment=environment)
    assert origin(reading, "url") == Origin(place=Place.SECRET_FILE, name="HOLDFAST_URL_FILE")
    assert load_settings(project, {"url": "memory://"}, environment).url == "memory://"


def test_the_variable_itself_wins_over_the_file_it_could_name(project: Project, tmp_path: Path) -> None:
    environment = {"HOLDFAST_URL": "memory://", "HOLDFAST_URL_FILE": secret(tmp_path / "url")}
    assert load_settings(project, environment=environment).url == "memory://"
    environment["HOLDFAST_URL_FILE"] = "missing"
    assert load_settings(project, environment=environment).url == "memory://"


def test_a_file_may_be_named_from_the_home_directory(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    secret(tmp_path / "url")
    assert load_settings(project, environment={"HOLDFAST_URL_FILE": "~/url"}).url == URL


def test_only_secrets_are_read_from_files(project: Project, tmp_path: Path) -> None:
    environment = {"HOLDFAST_LEASE_FILE": secret(tmp_path / "lease", "5")}
    assert load_settings(project, environment=environment).lease == 60
    assert {key.file_variable for key in KEYS.values()} == {None, "HOLDFAST_URL_FILE", "HOLDFAST_SIGNING_KEY_FILE"}


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "$HOLDFAST_URL_FILE: cannot read the url in {path}: it is empty"),
        (" \n", 0o600, "$HOLDFAST_URL_FILE: cannot read the url in {path}: it is empty"),
        (URL, 0o644, "and others can read it:  chmod 600 {path}"),
        (URL, 0o640, "and others can read it:  chmod 600 {path}"),
        (f"{URL}\n{URL}\n", 0o600, "$HOLDFAST_URL_FILE: {path} has more than one line; it must contain only the url"),
        ("mongo://ada:hunter2@db", 0o600, "url in the file that $HOLDFAST_URL_FILE names: 'mongo://ada:…@db' does not"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained_and_not_quoted(
    project: Project, tmp_path: Path, text: str, mode: int, why: str
) -> None:
    path = secret(tmp_path / "url", text, mode)
    with pytest.raises(ConfigError) as caught:
        load_settings(project, environment={"HOLDFAST_URL_FILE": path})
    assert why.format(path=path) in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_missing_or_not_named_is_explained(project: Project, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(
        ConfigError, match=rf"^\$HOLDFAST_URL_FILE: cannot read the url in {missing}: No such file or directory"
    ):
        load_settings(project, environment={"HOLDFAST_URL_FILE": str(missing)})
    with pytest.raises(
        ConfigError, match=r"\$HOLDFAST_URL_FILE is empty; name the file that contains the url, or unset"
    ):
        load_settings(project, environment={"HOLDFAST_URL_FILE": ""})
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        load_settings(project, environment={"HOLDFAST_URL_FILE": str(tmp_path / "binary")})


@pytest.mark.parametrize("name", ["signing-key", "signing_key"])
def test_signing_keys_are_not_for_the_file(project: Project, name: str) -> None:
    project.config_file.write_text(f'{name} = "{"s3cr3t" * 8}"\n')
    with pytest.raises(ConfigError) as caught:
        load_settings(project, environment={})
    assert str(caught.value) == (
        f"signing-key does not belong in the configuration file (in {project.config_file}:1): set "
        "HOLDFAST_SIGNING_KEY, or set signing-key-file to a file that only you can read"
    )


def test_signing_keys_are_known_by_their_place_alone(project: Project) -> None:
    reading = read_settings(project, environment={"HOLDFAST_SIGNING_KEY": "s3cr3t" * 8})
    found = reading.of(KEYS["signing-key"])
    assert (KEYS["signing-key"].shown(found.value), str(found.origin)) == ("…", "$HOLDFAST_SIGNING_KEY")
    assert "s3cr3t" not in repr(reading.settings())
    assert origin(read_settings(project, environment={"HOLDFAST_SIGNING_KEY": ""}), "signing-key") == Origin()


def test_the_file_with_the_signing_keys_is_a_setting_with_the_variable_of_a_secret() -> None:
    assert KEYS["signing-key"].file_variable == KEYS["signing-key-file"].variable


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (URL, "postgresql://ada:…@db.example/shop"),
        ("redis://db/0?password=hunter2", "redis://db/0?password=…"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(raw: str, shown: str) -> None:
    assert KEYS["url"].shown(raw) == shown


def test_settings_can_be_printed() -> None:
    text = repr(Settings(url=URL, lease=5.0))
    assert text.startswith("Settings(url='postgresql://ada:…@db.example/shop', app='', default_queue='default', ")
    assert "lease=5.0" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("raw", ["mongo://ada:hunter2@db", [URL], {"at": URL}, "postgresql://ada:hunter2@[half"])
def test_an_error_does_not_quote_a_password(raw: object) -> None:
    with pytest.raises(ConfigError, match=r"^url") as caught:
        check_value(KEYS["url"], raw)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite://jobs.db", "sqlite:///jobs.db?cache=1", "postgre://db", "jobs.db"])
def test_a_url_that_no_engine_could_have_is_refused_wherever_it_stands(project: Project, url: str) -> None:
    with pytest.raises(ConfigError, match=r"^url in \$HOLDFAST_URL: "):
        load_settings(project, environment={"HOLDFAST_URL": url})
