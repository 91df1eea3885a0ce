"""Cuts the connections of one process to a server: the server closes them, and the process lives on."""

import os
from contextlib import suppress
from pathlib import Path

import psycopg
import pymysql

from ..servers.mysql import MariadbServer
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from ..servers.running import Server
from .processes import until

_ESTABLISHED = "01"


def ports_of(pid: int, server: Server) -> set[int]:
    """The local ports of this process's connections to the server."""
    sockets: set[str] = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # it was closed in the meantime
            sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    ports: set[int] = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if state == _ESTABLISHED and _port(remote) == server.port and f"socket:[{inode}]" in sockets:
            ports.add(_port(local))
    return ports


def cut(pid: int, server: Server) -> set[int]:
    """Have the server close all connections of this process, and return their ports. They are closed on return."""
    ports = until(lambda: ports_of(pid, server), f"process {pid} to have a connection")
    if isinstance(server, PostgresServer):
        _cut_postgres(server, ports)
    elif isinstance(server, MariadbServer):
        _cut_mariadb(server, ports)
    else:
        assert isinstance(server, RedisServer)
        _cut_redis(server, ports)
    until(lambda: not ports & ports_of(pid, server), f"the connections of process {pid} to be closed")
    return ports


def _cut_postgres(server: PostgresServer, ports: set[int]) -> None:
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE client_port = ANY(%s)", [list(ports)]
        )


def _cut_mariadb(server: MariadbServer, ports: set[int]) -> None:
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SELECT ID, HOST FROM information_schema.PROCESSLIST")
        for id, host in cursor.fetchall():
            if host.rpartition(":")[2] in map(str, ports):
                with suppress(pymysql.OperationalError):  # it was closed in the meantime
                    cursor.execute("KILL %s", (id,))


def _cut_redis(server: RedisServer, ports: set[int]) -> None:
    with server.client() as admin:
        for one in admin.client_list():
            if int(one["addr"].rpartition(":")[2]) in ports:
                admin.client_kill_filter(_id=one["id"])


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
