"""`Announcements`: `NOTIFY` when there is work, and a connection for each waiting thread that listens for it. These are
hints, which may be lost; workers also poll.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

import psycopg

from holdfast.errors import BackendUnavailable
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.statements import PostgresStatements

# A queue is announced at most once in this time: each announcement takes a lock that all commits of the server need.
ANNOUNCE_EVERY_S: Final = 0.02
# How long a worker polls before it tries again to open a connection to listen on.
LISTEN_AGAIN_S: Final = 10.0

log = logging.getLogger("holdfast.postgres")

NOTIFY: Final = "SELECT pg_notify(:channel, queue) FROM unnest(:queues::text[]) AS asked (queue)"


class Announcements:
    """Announces work to the workers that wait for it, on one channel of the installation."""

    def __init__(self, connections: PostgresConnections) -> None:
        self.channel = f"{connections.namespace}_work"
        self._connections = connections
        self._announced_at: dict[str, float] = {}
        self._local = threading.local()
        self._listeners: set[Connection] = set()
        self._polls_until = float("-inf")

    def announce(self, connection: PostgresStatements, queues: Iterable[str]) -> None:
        """Wake the workers that wait for these queues when the transaction commits, unless they were just woken."""
        self.announce_now(connection, self.news(queues))

    def announce_now(self, connection: PostgresStatements, queues: Iterable[str]) -> None:
        """The same, even if the workers were just woken."""
        named = list(queues)
        if named:
            connection.execute(self._connections.sql(NOTIFY), {"channel": self.channel, "queues": named})

    def news(self, queues: Iterable[str]) -> list[str]:
        """The queues that were not announced a moment ago; they count as announced from now on."""
        now = time.monotonic()
        news = [queue for queue in queues if now - self._announced_at.get(queue, -1.0) >= ANNOUNCE_EVERY_S]
        self._announced_at.update(dict.fromkeys(news, now))
        return news

    def listening(self) -> Connection | None:
        """This thread's own connection on which the server announces work. None if it cannot be opened, such as when
        the server has no connection left: polling needs only the others.
        """
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None and not connection.closed:
            return connection
        if connection is not None:
            self._listeners.discard(connection)
        self._local.connection = None
        if time.monotonic() < self._polls_until:
            return None
        self._connections.run(lambda _: None)  # the last free connection is for polling
        try:
            connection = self._connections.open(self._connections.sql(f'LISTEN "{self.channel}"'))
        except BackendUnavailable as problem:
            self._polls_until = time.monotonic() + LISTEN_AGAIN_S
            log.warning("cannot listen for new jobs, polling for the next %g s: %s", LISTEN_AGAIN_S, problem)
            return None
        self._local.connection = connection
        self._listeners.add(connection)
        return connection

    def were_heard(self, listening: Connection, queues: Sequence[str]) -> bool:
        """Whether one of these queues was announced. A lost connection counts as an announcement."""
        try:
            return any(notify.payload in queues for notify in listening.notifies(timeout=0))
        except psycopg.Error:
            listening.close()  # the next wait opens another one
            self._listeners.discard(listening)
            self._local.connection = None
            return True

    def close(self) -> None:
        while self._listeners:
            self._listeners.pop().close()
        self._local = threading.local()
