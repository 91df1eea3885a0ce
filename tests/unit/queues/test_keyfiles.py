"""Where keys come from, and that the one made beside a database is made once and read by nobody else."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.errors import BackendUnavailable, ConfigError
from holdfast.queues.keyfiles import find_keyring, keyring_next_to, read_keyring
from holdfast.queues.signing import SigningKey

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32


def key_file(path: Path, text: str = f"filed:{THREE}\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def kid(explicit: str | None = None, configured_file: str = "", **environment: str) -> str | None:
    ring = find_keyring(explicit, installation="shop", environment=environment, configured_file=configured_file)
    return None if ring is None else ring.kid


def test_the_argument_wins_over_the_variable_and_that_over_the_files(tmp_path: Path) -> None:
    named = str(key_file(tmp_path / "named.key", f"named:{TWO}"))
    configured = str(key_file(tmp_path / "configured.key", f"configured:{THREE}"))
    everything = {"HOLDFAST_SIGNING_KEY": f"variable:{ONE}", "HOLDFAST_SIGNING_KEY_FILE": named}
    assert kid(f"argument:{ONE}", configured, **everything) == "argument"
    assert kid(None, configured, **everything) == "variable"
    del everything["HOLDFAST_SIGNING_KEY"]
    assert kid(None, configured, **everything) == "named"
    assert kid(None, configured) == "configured"
    assert kid() is None


def test_every_key_is_derived_for_the_installation(tmp_path: Path) -> None:
    path = key_file(tmp_path / "signing.key", THREE)
    for name in ("shop", "staging"):
        fingerprint = SigningKey.parse(THREE, installation=name).fingerprint
        rings = [
            find_keyring(THREE, installation=name),
            find_keyring(installation=name, environment={"HOLDFAST_SIGNING_KEY": THREE}),
            find_keyring(installation=name, environment={"HOLDFAST_SIGNING_KEY_FILE": str(path)}),
            find_keyring(installation=name, environment={}, configured_file=str(path)),
            read_keyring(path, installation=name),
            keyring_next_to(tmp_path / "jobs.db", installation=name),
        ]
        assert [ring and ring.keys[0].fingerprint for ring in rings] == [fingerprint] * 6


def test_an_empty_variable_is_not_a_key() -> None:
    assert kid(HOLDFAST_SIGNING_KEY="", HOLDFAST_SIGNING_KEY_FILE="") is None


def test_the_process_environment_is_asked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", f"here:{ONE}")
    ring = find_keyring(installation="shop")
    assert ring is not None
    assert ring.kid == "here"


def test_a_key_file_may_be_named_from_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    key_file(tmp_path / "shop.key")
    assert kid(configured_file="~/shop.key") == "filed"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_file_others_can_touch_is_refused_with_how_to_mend_it(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path / "open.key", mode=mode)
    with pytest.raises(ConfigError, match=f"others can read it:  chmod 600 {path}"):
        read_keyring(path, installation="shop")
    path.chmod(0o600)
    assert read_keyring(path, installation="shop").kid == "filed"


def test_a_file_that_another_user_provides_to_our_group_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = key_file(tmp_path / "handed.key", mode=0o440)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert read_keyring(path, installation="shop").kid == "filed"
    for mode in (0o444, 0o460, 0o640 | stat.S_IWGRP):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="others can read it"):
            read_keyring(path, installation="shop")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_only_its_owner_can_read_is_read(tmp_path: Path, mode: int) -> None:
    assert read_keyring(key_file(tmp_path / "own.key", mode=mode), installation="shop").kid == "filed"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.key"
    with pytest.raises(ConfigError, match=f"cannot read the signing keys in {missing}"):
        read_keyring(missing, installation="shop")
    binary = tmp_path / "binary.key"
    binary.write_bytes(b"\xff" * 64)
    binary.chmod(0o600)
    with pytest.raises(ConfigError, match=f"cannot read the signing keys in {binary}"):
        read_keyring(binary, installation="shop")


def test_an_error_in_a_file_does_not_quote_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keyring(key_file(tmp_path / "short.key", "short:not32bytes"), installation="shop")
    assert "not32bytes" not in str(caught.value)


def test_the_key_next_to_a_database_is_generated_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    database = tmp_path / "new" / "folder" / "jobs.db"
    before = os.umask(0)
    try:
        first = keyring_next_to(database, installation="shop")
    finally:
        os.umask(before)
    path = database.parent / "signing.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700
    assert len(bytes.fromhex(path.read_text())) == 32
    assert keyring_next_to(database, installation="shop").keys[0].fingerprint == first.keys[0].fingerprint
    assert os.listdir(database.parent) == ["signing.key"]


def test_a_key_that_is_there_already_is_used(tmp_path: Path) -> None:
    key_file(tmp_path / "signing.key")
    assert keyring_next_to(tmp_path / "jobs.db", installation="shop").kid == "filed"


def test_threads_that_need_a_key_at_once_get_the_same_one(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    fingerprints: list[str] = []

    def open_together() -> None:
        barrier.wait()
        fingerprints.append(keyring_next_to(tmp_path / "jobs.db", installation="shop").keys[0].fingerprint)

    threads = [threading.Thread(target=open_together) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fingerprints) == 8
    assert len(set(fingerprints)) == 1
    assert os.listdir(tmp_path) == ["signing.key"]


def test_a_process_that_comes_second_takes_the_key_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The race, made certain: between looking for the file and linking ours, another process has linked its own.
    real_link = os.link

    def link_after_another(source: str | Path, target: str | Path) -> None:
        key_file(tmp_path / "another", f"another:{ONE}")
        real_link(tmp_path / "another", target)
        real_link(source, target)

    monkeypatch.setattr(os, "link", link_after_another)
    assert keyring_next_to(tmp_path / "jobs.db", installation="shop").kid == "another"
    assert sorted(os.listdir(tmp_path)) == ["another", "signing.key"]


OPEN_WHEN_TOLD = """
import pathlib, sys
from holdfast.queues.keyfiles import keyring_next_to
print("ready", flush=True)
sys.stdin.readline()
print(keyring_next_to(pathlib.Path(sys.argv[1]), installation="shop").keys[0].fingerprint)
"""


def test_processes_that_need_a_key_at_once_get_the_same_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN_WHEN_TOLD, str(tmp_path / "jobs.db")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    fingerprints = [process.communicate()[0] for process in processes]
    assert len(set(fingerprints)) == 1
    assert fingerprints[0]
    assert os.listdir(tmp_path) == ["signing.key"]


def test_a_place_where_no_key_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BackendUnavailable, match=r"/file"):
        keyring_next_to(tmp_path / "file" / "jobs.db", installation="shop")
