"""MariaDB for tests: the system's, or Debian's own packages, unpacked without being root beside this environment."""

import atexit
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pymysql

from .certificates import Certificates
from .debian import Package, libraries, with_libraries
from .running import Server, started

# The second package has what the server of the first prepares its files with.
PACKAGE = Package(
    "mariadb", ("mariadb-server-core", "mariadb-client-core"), ("sbin/mariadbd", "bin/mariadb-install-db")
)

# Nobody pulls the plug on these tests: what a process has written survives its being killed.
SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-flush-method": "nosync",
    "innodb-file-per-table": "0",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "64M",
    "max-connections": "200",
    "skip-log-bin": "1",
}

# By its own clock, a lock that is held while a test lets years pass is held for years: it would end itself.
PATIENCE = {"innodb-fatal-semaphore-wait-threshold": str(2**32 - 1)}


class MariadbServer(Server):
    """A server of its own, with the user `root` who needs no password, and the database `holdfast`."""

    name = "MariaDB"

    def __init__(
        self, *, clock: bool = False, settings: dict[str, str] | None = None, tls: Certificates | None = None
    ) -> None:
        self._home = _home()
        super().__init__(clock=clock)
        self._settings = SETTINGS | (PATIENCE if clock else {}) | (_with_tls(tls) if tls else {}) | (settings or {})

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/holdfast"

    @property
    def socket(self) -> Path:
        """Where it can be reached without a network."""
        return self.directory / "socket"

    def prepare(self) -> None:
        init = [self._home / "bin/mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal"]
        done = subprocess.run(
            [*map(str, init), "--skip-test-db", *self._place()],
            env={**os.environ, **libraries(self._home)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")

    def command(self) -> Sequence[str]:
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        place = [f"--port={self.port}", f"--socket={self.socket}"]
        server = [str(self._home / "sbin/mariadbd"), "--no-defaults"]
        return with_libraries(self._home, [*server, *self._place(), *place, *options])

    def answers(self) -> bool:
        try:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE IF NOT EXISTS holdfast")
        except pymysql.OperationalError:
            return False
        return True

    def connect(self, database: str | None = None) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """A connection that has nothing to do with the engine's."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True, connect_timeout=2
        )

    def _place(self) -> list[str]:
        place = [f"--basedir={self._home}", f"--datadir={self.directory / 'data'}"]
        messages = self._home / "share/mysql"
        return [*place, f"--lc-messages-dir={messages}", *(["--user=root"] if os.geteuid() == 0 else [])]


def _with_tls(tls: Certificates) -> dict[str, str]:
    return {"ssl-ca": str(tls.authority), "ssl-cert": str(tls.certificate), "ssl-key": str(tls.key)}


def _home() -> Path:
    """Where the server's `bin`, `sbin` and `share` are."""
    for found in (shutil.which("mariadbd"), "/usr/sbin/mariadbd"):
        if found is not None and (home := Path(found).resolve().parents[1]) and PACKAGE.is_home(home):
            return home
    return PACKAGE.home()


@cache
def mariadb_for_laws() -> MariadbServer:
    """One for this process, under a clock that obeys; it ends with the process."""
    server = started(lambda: MariadbServer(clock=True))
    atexit.register(server.close)
    return server
