"""What systemd receives on a real datagram socket, and that a broken socket cannot disturb the worker."""

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.worker.systemd import ENVIRONMENT_NAMES, MAX_STATUS_CHARACTERS, Notifier

DEADLINE_S = 20.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path that is short enough for a socket wherever the tests run."""
    monkeypatch.chdir(tmp_path)
    return f"/proc/self/cwd/{uuid.uuid4().hex}" if len(str(tmp_path)) > 60 else str(tmp_path / "notify")


@pytest.fixture
def systemd(path: str) -> Iterator[socket.socket]:
    with listening(path) as receiver:
        yield receiver


def listening(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(DEADLINE_S)
    receiver.bind(address)
    return receiver


def heard(receiver: socket.socket) -> list[str]:
    return receiver.recv(65536).decode().split("\n")


def asked(path: str, **more: str) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": path, **more})


def test_each_message_is_one_datagram(systemd: socket.socket, path: str) -> None:
    notifier = asked(path, WATCHDOG_USEC="30000000")
    notifier.ready()
    assert heard(systemd) == ["READY=1"]
    notifier.status("3 running, 214 waiting")
    assert heard(systemd) == ["STATUS=3 running, 214 waiting"]
    notifier.beat()
    assert heard(systemd) == ["WATCHDOG=1"]
    notifier.stopping()
    assert heard(systemd) == ["STOPPING=1"]


def test_an_abstract_socket_is_found_by_its_name() -> None:
    name = f"holdfast-{uuid.uuid4().hex}"
    with listening(f"\0{name}") as receiver:
        asked(f"@{name}").ready()
        assert heard(receiver) == ["READY=1"]


def test_a_status_stays_one_line_and_short(systemd: socket.socket, path: str) -> None:
    notifier = asked(path)
    notifier.status("two\nMAINPID=1\r\nlines \udcff")
    assert heard(systemd) == ["STATUS=two MAINPID=1 lines ?"]
    notifier.status("é" * 5000)
    assert heard(systemd) == [f"STATUS={'é' * MAX_STATUS_CHARACTERS}"]


@pytest.mark.parametrize("address", ["", "/", "@", "relative", "vsock:2:1234"])
def test_nothing_is_said_to_an_address_that_is_none(address: str) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    say_everything(notifier)
    assert notifier.watchdog_interval_s is None


def test_nothing_is_said_when_the_environment_asks_for_nothing() -> None:
    notifier = Notifier.from_environment({})
    say_everything(notifier)
    assert notifier.watchdog_interval_s is None


@pytest.mark.parametrize("address", ["/nowhere/notify", "/" + "x" * 300, "@" + "x" * 300])
def test_a_socket_that_cannot_be_reached_is_no_trouble(address: str) -> None:
    say_everything(asked(address, WATCHDOG_USEC="1000000"))


def test_what_found_no_socket_is_delivered_once_there_is_one(path: str) -> None:
    notifier = asked(path)
    notifier.ready()
    notifier.status("old")
    with listening(path) as receiver:
        notifier.status("new")
        assert heard(receiver) == ["READY=1", "STATUS=new"]
        notifier.status("newer")
        assert heard(receiver) == ["STATUS=newer"]


def test_a_full_socket_holds_nobody_up(systemd: socket.socket, path: str) -> None:
    notifier = asked(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        filler.connect(path)
        filled = fill(filler)
    notifier.ready()
    for _ in range(filled):
        assert heard(systemd) == ["filler"]
    notifier.status("up")
    assert heard(systemd) == ["READY=1", "STATUS=up"]


def fill(filler: socket.socket) -> int:
    sent = 0
    try:
        while True:
            filler.send(b"filler")
            sent += 1
    except BlockingIOError:
        return sent


def test_the_watchdog_is_fed_twice_in_its_time(path: str) -> None:
    assert asked(path, WATCHDOG_USEC="30000000").watchdog_interval_s == 15.0
    assert asked(path, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid())).watchdog_interval_s == 15.0


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": str(2**64 - 1)},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": ""},
    ],
)
def test_no_beat_is_sent_that_nobody_waits_for(systemd: socket.socket, path: str, environment: dict[str, str]) -> None:
    notifier = asked(path, **environment)
    assert notifier.watchdog_interval_s is None
    notifier.beat()
    notifier.ready()
    assert heard(systemd) == ["READY=1"]


def test_the_names_that_children_must_not_inherit_are_the_ones_that_are_read(path: str) -> None:
    environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    kept = {name: value for name, value in environment.items() if name not in ENVIRONMENT_NAMES}
    assert kept == {"HOME": "/"}


def say_everything(notifier: Notifier) -> None:
    notifier.ready()
    notifier.status("working")
    notifier.beat()
    notifier.stopping()
