"""PgBouncer for tests: the system's, or from Debian's package, unpacked next to the virtual environment."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import psycopg

from .debian import Package, with_libraries
from .postgres import PostgresServer, as_nobody
from .running import Server

PACKAGE = Package("pgbouncer", ("pgbouncer",), ("sbin/pgbouncer",))
SESSIONS = 4
"""How many sessions of the server all clients share."""


class PgBouncer(Server):
    """A pooler in front of a server, which assigns each transaction another session (transaction mode)."""

    name = "PgBouncer"

    def __init__(self, behind: PostgresServer) -> None:
        self._home = _home()
        super().__init__()
        self._behind = behind

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        (self.directory / "users").write_text('"postgres" ""\n')
        (self.directory / "settings").write_text(
            f"""[databases]
postgres = host=127.0.0.1 port={self._behind.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self.directory / "users"}
admin_users = postgres
pool_mode = transaction
default_pool_size = {SESSIONS}
server_round_robin = 1
max_client_conn = 500
"""
        )

    def command(self) -> Sequence[str]:
        server = [str(self._home / "sbin/pgbouncer"), str(self.directory / "settings")]
        return as_nobody(with_libraries(self._home, server))

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _home() -> Path:
    for found in (shutil.which("pgbouncer"), "/usr/sbin/pgbouncer"):
        if found is not None and os.path.exists(found):
            return Path(found).resolve().parents[1]
    return PACKAGE.home()
