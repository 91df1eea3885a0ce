"""MariaDB for tests: the system's, or Debian's own packages, unpacked without being root beside this environment."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pymysql

from .running import Missing, Server

SERVER_PACKAGE = "mariadb-server-core"
SERVER_PACKAGES = (SERVER_PACKAGE, "mariadb-client-core")  # the second has what the first prepares its files with
_UNPACKED = Path(sys.prefix) / "share" / "holdfast-servers"
_DOWNLOAD_WITHIN_S = 120.0

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

    def __init__(self, *, clock: bool = False, settings: dict[str, str] | None = None) -> None:
        self._home = _home()
        super().__init__(clock=clock)
        self._settings = SETTINGS | (PATIENCE if clock else {}) | (settings or {})

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/holdfast"

    def prepare(self) -> None:
        init = [self._home / "bin/mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal"]
        done = subprocess.run(
            [*map(str, init), "--skip-test-db", *self._place()],
            env={**os.environ, **self._libraries()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")

    def command(self) -> Sequence[str]:
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        place = [f"--port={self.port}", f"--socket={self.directory / 'socket'}"]
        # With `env`, and not for the tests' own process: the libraries are for the server alone.
        libraries = [f"{name}={value}" for name, value in self._libraries().items()]
        server = str(self._home / "sbin/mariadbd")
        return ["env", *libraries, server, "--no-defaults", *self._place(), *place, *options]

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

    def _libraries(self) -> dict[str, str]:
        if not self._home.is_relative_to(_UNPACKED):
            return {}
        folders = sorted({str(library.parent) for library in self._home.glob("lib/**/*.so.*")})
        return {"LD_LIBRARY_PATH": ":".join(folders)}


def _home() -> Path:
    """Where the server's `bin`, `sbin` and `share` are."""
    for found in (shutil.which("mariadbd"), "/usr/sbin/mariadbd"):
        if found is not None and (home := Path(found).resolve().parents[1]) and _is_home(home):
            return home
    for home in sorted(_UNPACKED.glob("mariadb-*/usr"), reverse=True):
        if _is_home(home):
            return home
    return _unpack()


def _is_home(home: Path) -> bool:
    return (home / "sbin/mariadbd").exists() and (home / "bin/mariadb-install-db").exists()


def _unpack() -> Path:
    """Unpack the packages beside this environment; of several processes that do it at once, one has its way."""
    if not all(shutil.which(tool) for tool in ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query")):
        raise Missing("the system has no mariadbd, nor Debian's tools to fetch it: install the MariaDB server")
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=_UNPACKED) as workshop:
        packages = _downloaded(Path(workshop))
        [server] = (package for package in packages if package.name.startswith(f"{SERVER_PACKAGE}_"))
        version = _output(["dpkg-deb", "--field", str(server), "Version"]).partition(":")[2].strip()
        draft, made = Path(workshop) / "tree", _UNPACKED / f"mariadb-{version}"
        for package in packages:
            _output(["dpkg-deb", "--extract", str(package), str(draft)])
        try:
            os.rename(draft, made)
        except OSError:
            if not _is_home(made / "usr"):
                raise
    return made / "usr"


def _downloaded(workshop: Path) -> list[Path]:
    """The packages and those of their libraries that are not installed, by the system's lists or by new ones."""
    try:
        _download(workshop, [])
    except subprocess.CalledProcessError:
        private = _private_lists(workshop)
        try:
            _output(["apt-get", *private, "update"])
            _download(workshop, private)
        except subprocess.CalledProcessError as problem:
            reason = (problem.stderr or problem.stdout).strip()
            raise Missing(f"the system has no mariadbd, and Debian's packages cannot be had: {reason}") from problem
    return sorted(workshop.glob("*.deb"))


def _download(workshop: Path, options: Sequence[str]) -> None:
    needed = _output(["apt-cache", *options, "depends", "--important", SERVER_PACKAGE])
    names = {line.split()[1] for line in needed.splitlines() if line.strip().startswith("Depends:")}
    missing = sorted(name for name in names if name.startswith("lib") and not _is_installed(name))
    _output(["apt-get", *options, "download", *SERVER_PACKAGES, *missing], workshop)


def _is_installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.startswith("installed")


def _private_lists(workshop: Path) -> list[str]:
    """Options with which apt keeps its lists here, so that it may be asked by somebody who is not root."""
    state, cache = workshop / "state", workshop / "cache"
    for folder in (state / "lists/partial", cache / "archives/partial"):
        folder.mkdir(parents=True)
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": cache,
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _output(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=_DOWNLOAD_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout
