"""`Notifier`: sends messages to systemd, if the environment asks for them; `SystemdStatus`: decides when.

The protocol is sd_notify(3): lines `NAME=value` in one datagram to the socket that NOTIFY_SOCKET names.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

# Not inherited by children: they would send messages in the worker's name.
ENVIRONMENT_NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

# systemd drops a whole message that is longer than 4096 bytes.
MAX_STATUS_CHARACTERS: Final = 800
STATUS_EVERY_S: Final = 5.0
_NEVER_USEC: Final = 2**64 - 1


class Notifier:
    """Never blocks and never raises. Without an address, it does nothing.

    A message that could not be delivered, because the socket was full or missing, is sent with the next one.
    """

    def __init__(self, address: str | None = None, *, watchdog_interval_s: float | None = None) -> None:
        self._address = address
        self._lock = threading.RLock()
        self._unsent: dict[str, str] = {}
        self.watchdog_interval_s = watchdog_interval_s

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The notifier for this environment; outside of systemd, one that does nothing."""
        address = _address(environment.get("NOTIFY_SOCKET", ""))
        return cls(address, watchdog_interval_s=_watchdog_interval_s(environment) if address else None)

    def ready(self) -> None:
        """Report that the worker is ready."""
        self._send("READY", "1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send("STATUS", " ".join(text.split())[:MAX_STATUS_CHARACTERS])

    def stopping(self) -> None:
        """Report that the worker is shutting down."""
        self._send("STOPPING", "1")

    def beat(self) -> None:
        """Reset the watchdog; due every `watchdog_interval_s` seconds, or systemd restarts the worker."""
        if self.watchdog_interval_s is not None:
            self._send("WATCHDOG", "1")

    def _send(self, name: str, value: str) -> None:
        if self._address is None:
            return
        with self._lock:
            self._unsent[name] = value
            message = "\n".join(f"{name}={value}" for name, value in self._unsent.items())
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    sender.setblocking(False)
                    sender.sendto(message.encode(errors="replace"), self._address)
            except OSError:
                return
            self._unsent.clear()


class SystemdStatus:
    """Reports once that the loop is ready, and its status and the watchdog at intervals."""

    def __init__(self, notifier: Notifier, *, is_ready: Callable[[], bool], status: Callable[[], str]) -> None:
        self._notifier = notifier
        self._is_ready = is_ready
        self._status = status
        self._is_announced = False
        self._status_at = 0.0
        self._beat_at = 0.0

    def turn(self, now: float) -> None:
        if not self._is_announced and self._is_ready():
            self._is_announced = True
            self._notifier.ready()
        if now >= self._status_at:
            self._status_at = now + STATUS_EVERY_S
            self._notifier.status(self._status())
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is not None and now >= self._beat_at:
            self._beat_at = now + interval_s
            self._notifier.beat()


def _address(named: str) -> str | None:
    """The socket's address: a path, or a name in Linux's abstract namespace, which starts with an @."""
    if len(named) < 2 or named[0] not in "/@":
        return None
    return "\0" + named[1:] if named[0] == "@" else named


def _watchdog_interval_s(environment: Mapping[str, str]) -> float | None:
    """Half of systemd's timeout, so that one late message does not cause a restart."""
    try:
        timeout_usec = int(environment.get("WATCHDOG_USEC", ""))
        pid = int(environment.get("WATCHDOG_PID", os.getpid()))
    except ValueError:
        return None
    return timeout_usec / 2_000_000 if 0 < timeout_usec < _NEVER_USEC and pid == os.getpid() else None
