"""`Notifier`: messages to systemd, if the environment asks for them; `SystemdStatus`: when a worker sends them.

The protocol is sd_notify(3): lines `NAME=value` in one datagram to the socket that NOTIFY_SOCKET names.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

# Children that inherited these would speak for the worker.
ENVIRONMENT_NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

# systemd drops a whole message that is longer than 4096 bytes.
MAX_STATUS_CHARACTERS: Final = 800
STATUS_EVERY_S: Final = 5.0
_NEVER_USEC: Final = 2**64 - 1


class Notifier:
    """Speaks to systemd. It never waits and never raises, and says nothing when nobody asked.

    What could not be delivered, because the socket was full or away, goes out with the next message.
    """

    def __init__(self, address: str | None = None, *, watchdog_interval_s: float | None = None) -> None:
        self._address = address
        self._lock = threading.RLock()
        self._unsent: dict[str, str] = {}
        self.watchdog_interval_s = watchdog_interval_s

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The notifier that a service's environment asks for; one that does nothing if it asks for none."""
        address = _address(environment.get("NOTIFY_SOCKET", ""))
        return cls(address, watchdog_interval_s=_watchdog_interval_s(environment) if address else None)

    def ready(self) -> None:
        """The worker is up: what waited for it may start."""
        self._send("READY", "1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS", " ".join(text.split())[:MAX_STATUS_CHARACTERS])

    def stopping(self) -> None:
        """The worker has begun to leave."""
        self._send("STOPPING", "1")

    def beat(self) -> None:
        """The worker is alive; to be said every `watchdog_interval_s` seconds, or systemd restarts it."""
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
    """What a loop has to tell as it turns: once that it is ready, and every so often its status and that it lives."""

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
    """The socket's address: a path, or a name of Linux's abstract namespace, which is written with an @."""
    if len(named) < 2 or named[0] not in "/@":
        return None
    return "\0" + named[1:] if named[0] == "@" else named


def _watchdog_interval_s(environment: Mapping[str, str]) -> float | None:
    """Half of what systemd waits, so that one late beat is not the end."""
    try:
        span_usec = int(environment.get("WATCHDOG_USEC", ""))
        pid = int(environment.get("WATCHDOG_PID", os.getpid()))
    except ValueError:
        return None
    return span_usec / 2_000_000 if 0 < span_usec < _NEVER_USEC and pid == os.getpid() else None
