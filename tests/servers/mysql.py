"""MariaDB for tests: the system's, or from Debian's packages, unpacked next to the virtual environment.

HOLDFAST_TEST_MYSQL_SERVER=/path/to/mysqld selects another server, which may be MySQL.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pymysql

from .certificates import Certificates
from .debian import Package, libraries, with_libraries
from .running import Server, chosen, started_for_session

# The second package has the program that initialises the data directory.
PACKAGE = Package(
    "mariadb", ("mariadb-server-core", "mariadb-client-core"), ("sbin/mariadbd", "bin/mariadb-install-db")
)

# The tests do not simulate power loss: written data survives the kill of a process.
SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-flush-method": "nosync",
    "innodb-file-per-table": "0",
    "innodb-buffer-pool-size": "64M",
    "max-connections": "200",
    "skip-log-bin": "1",
}
OF_MARIADB = {"innodb-log-file-size": "64M"}
OF_MYSQL = {"innodb-redo-log-capacity": "64M", "mysqlx": "OFF", "secure-file-priv": "NULL"}

# If a test advances the clock by years during a lock, the server believes that the lock was held for years and exits.
PATIENCE = {"loose-innodb-fatal-semaphore-wait-threshold": str(2**32 - 1)}


class MariadbServer(Server):
    """A private server with the database `holdfast` and the user `root`, without a password."""

    name = "MariaDB"

    def __init__(
        self, *, clock: bool = False, settings: dict[str, str] | None = None, tls: Certificates | None = None
    ) -> None:
        self._binary = _binary()
        self._home = self._binary.parents[1]
        self._is_mysql = is_mysql(self._binary)
        super().__init__(clock=clock)
        if clock:
            self.leave_signal = signal.SIGKILL  # while its clock stands still, it does not shut down
        # By default, MySQL generates its own certificates.
        own = OF_MYSQL | ({} if tls else {"tls-version": ""}) if self._is_mysql else OF_MARIADB
        asked = (PATIENCE if clock else {}) | (_with_tls(tls) if tls else {}) | (settings or {})
        self._settings = SETTINGS | own | asked

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/holdfast"

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.directory / "socket"

    def prepare(self) -> None:
        if self._is_mysql:
            init = [str(self._binary), "--no-defaults", "--initialize-insecure"]
        else:
            init = [str(self._home / "bin/mariadb-install-db"), "--no-defaults", "--skip-test-db"]
            init.append("--auth-root-authentication-method=normal")
        done = subprocess.run(
            [*init, *self._place()],
            env={**os.environ, **libraries(self._home)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{Path(init[0]).name} failed:\n{done.stdout}{done.stderr}")

    def command(self) -> Sequence[str]:
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        place = [f"--port={self.port}", f"--socket={self.socket}"]
        server = [str(self._binary), "--no-defaults"]
        return with_libraries(self._home, [*server, *self._place(), *place, *options])

    def answers(self) -> bool:
        try:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE IF NOT EXISTS holdfast")
        except pymysql.OperationalError:
            return False
        return True

    def connect(self, database: str | None = None) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """A connection that is independent of the engine."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True, connect_timeout=2
        )

    def _place(self) -> list[str]:
        place = [f"--basedir={self._home}", f"--datadir={self.directory / 'data'}"]
        # A server that starts deletes the temporary tables that it finds there, even those of another server.
        place.append(f"--tmpdir={self.directory}")
        messages = self._home / "share/mysql"
        return [*place, f"--lc-messages-dir={messages}", *(["--user=root"] if os.geteuid() == 0 else [])]


def _with_tls(tls: Certificates) -> dict[str, str]:
    return {"ssl-ca": str(tls.authority), "ssl-cert": str(tls.certificate), "ssl-key": str(tls.key)}


def _binary() -> Path:
    """The server program; its files are in `bin` and `share` next to it."""
    if (binary := chosen("mysql")) is not None:
        return binary
    for found in (shutil.which("mariadbd"), "/usr/sbin/mariadbd"):
        if found is not None and (home := Path(found).resolve().parents[1]) and PACKAGE.is_home(home):
            return home / "sbin/mariadbd"
    return PACKAGE.home() / "sbin/mariadbd"


@cache
def is_mysql(binary: Path) -> bool:
    """Whether the server is MySQL, not MariaDB."""
    version = with_libraries(binary.parents[1], [str(binary), "--version"])
    return "MariaDB" not in subprocess.run(version, capture_output=True, text=True, check=True).stdout


@cache
def mariadb_for_laws() -> MariadbServer:
    """The server of this process, with a clock that tests control; it stops when the session ends."""
    return started_for_session(lambda: MariadbServer(clock=True))
