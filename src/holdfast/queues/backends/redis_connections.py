"""Redis or Valkey, spoken to: connections, scripts, waiting to be woken, and whether the server may keep jobs at all.

Every verb is one script, called by its digest. A server that forgot its scripts is given them again, one that was
restarted is called again once: every verb may be repeated. `redis.py` says what the scripts do.
"""

import hashlib
import logging
import os
import re
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

from holdfast.clock import Clock
from holdfast.errors import BackendError, BackendUnavailable, ConfigError, SchemaTooNew
from holdfast.queues.contract import EngineInfo

SCHEMA: Final = 1
MIN_VERSION: Final = (6, 2)
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 10.0
# How much longer than its worker a wait lasts on the server, should the worker vanish from the network.
OUTLASTS_S: Final = 1
UNBLOCK_TRIES: Final = 100

# What a server says that is a replica, busy with a script, or cannot write its file: call again later. The driver has
# cut the code off some of these, and a server puts it in the middle of what it says of a script.
PASSING: Final = ("READONLY", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "UNBLOCKED", "MISCONF")
PASSING_ERRORS: Final = (ReadOnlyError, AskError, ClusterDownError, TryAgainError, ConnectionError, TimeoutError)
FULL: Final = "used memory > 'maxmemory'"
UNKNOWN: Final = "unknown"
DURABILITY: Final = {
    "appendonly yes, appendfsync always": "the end of any process, and of the machine: each write is synced",
    "appendonly yes, appendfsync everysec": (
        "the end of Holdfast's processes; of the server or the machine, but for what was accepted in the last second "
        "or two"
    ),
    "appendonly yes, appendfsync no": (
        "the end of any process; of the machine, but for what its system had not written yet, up to half a minute"
    ),
    "appendonly no": "the end of Holdfast's processes; of the server, no more than its last snapshot holds",
    "maxmemory-policy allkeys-…": "nothing the server chooses to evict when its memory is full: Holdfast refuses it",
    UNKNOWN: "the end of Holdfast's processes; how the server keeps its data, it does not tell this user",
}
"""What an accepted job survives, by how the server is set up."""

# The driver's types tell but half.
_driver: Any = redis
_prefix_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

log = logging.getLogger("holdfast.redis")


class Script:
    """One script, made of the parts it needs."""

    def __init__(self, *parts: str) -> None:
        self.source = "\n".join(_part(name) for name in ("common", *parts)).encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()


@cache
def _part(name: str) -> str:
    return resources.files("holdfast.queues.backends").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


PREPARE: Final = Script("prepare")


class RedisConnections:
    """The server of a URL, and the keys of one installation on it. Threads may share it; so may a forked child."""

    def __init__(self, url: str, *, clock: Clock, prefix: str) -> None:
        if not _prefix_pattern.fullmatch(prefix):
            raise ConfigError(f"{prefix!r} cannot be a key prefix: use letters, digits and '_', at most 40")
        try:
            options: dict[str, Any] = _driver.connection.parse_url(url)
        except ValueError:
            # What the parser says could quote a piece of a password.
            raise ConfigError(
                "the URL of the Redis server cannot be read: write redis://host:6379/0, rediss://… or unix:///path, "
                "and escape special characters of the password"
            ) from None
        self.place = _place(options)
        self.base = f"{{{prefix}}}:"
        self._clock = clock
        self._options: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": ANSWER_TIMEOUT_S,
            "socket_keepalive": True,
            **options,
            # Answers are bytes, and nobody but us decides what is called again.
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
        }
        self._start()

    def _start(self) -> None:
        """Begin without connections: those of a parent process are not used here."""
        self._pid = os.getpid()
        self._local = threading.local()
        self._bells: weakref.WeakSet[Bell] = weakref.WeakSet()
        self._is_open = False
        self._client: Any = _driver.Redis(connection_pool=_driver.ConnectionPool(**self._options))

    def run(self, script: Script, *arguments: bytes | str | int) -> Any:
        """What the script answers."""
        return self.call("EVALSHA", script.digest, 1, self.base, *arguments, source=script.source)

    def call(self, *words: bytes | str | int, source: bytes | None = None) -> Any:
        """What a command answers; a script that is not known there is sent whole."""
        client = self._ready()
        try:
            return self._send(client, words, source)
        except RedisError as problem:
            raise self._translated(problem) from problem

    def _send(self, client: Any, words: Sequence[bytes | str | int], source: bytes | None) -> Any:
        try:
            return _answer(client, words, source)
        except (AuthenticationError, BusyLoadingError):
            raise
        except ConnectionError:
            # The server was restarted, perhaps: then the other idle connections are worth no more than this one.
            client.connection_pool.disconnect(inuse_connections=False)
            return _answer(client, words, source)

    def _ready(self) -> Any:
        """A client of this process, of a server that may keep jobs."""
        client = self._own_client()
        if not self._is_open:
            self.prepare()
        return client

    def _own_client(self) -> Any:
        if self._pid != os.getpid():
            self._start()
        return self._client

    def prepare(self) -> None:
        """Look whether the server keeps what it is given, and whether its layout is the one this program knows."""
        client = self._own_client()
        try:
            self._look_at_server(client)
            version = int(self._send(client, ("EVALSHA", PREPARE.digest, 1, self.base, SCHEMA), PREPARE.source))
        except RedisError as problem:
            raise self._translated(problem) from problem
        if version > SCHEMA:
            raise SchemaTooNew(
                f"{self.place} has layout {version} under '{self.base}', written by a newer Holdfast; this program "
                f"knows up to {SCHEMA}: upgrade Holdfast here"
            )
        self._is_open = True

    def describe(self) -> EngineInfo:
        """What the server is, and what of ours is there; nothing is made by asking."""
        client = self._own_client()
        try:
            said = self._told(client, "INFO")
            fsync = self._told(client, "CONFIG GET", "appendfsync").get("appendfsync", UNKNOWN)
            layout = self._send(client, ("GET", f"{self.base}schema"), None)
        except RedisError as problem:
            raise self._translated(problem) from problem
        is_valkey = "valkey_version" in said
        version = said.get("valkey_version" if is_valkey else "redis_version", "of a version it does not tell")
        settings = {
            "appendonly": {"1": "yes", "0": "no"}.get(str(said.get("aof_enabled")), UNKNOWN),
            "appendfsync": str(fsync),
            "maxmemory-policy": str(said.get("maxmemory_policy", UNKNOWN)),
        }
        return EngineInfo(
            server=f"{'Valkey' if is_valkey else 'Redis'} {version}",
            names=f"{self.base}…",
            schema=int(layout or 0),
            known_schema=SCHEMA,
            settings=settings,
            survives=_survives(**{name.replace("-", "_"): value for name, value in settings.items()}),
        )

    def _told(self, client: Any, *words: str) -> dict[str, Any]:
        """What the server says of itself, as far as it lets this user know; some do not know the command at all."""
        try:
            told: dict[str, Any] = self._send(client, words, None)
        except ResponseError:
            return {}
        return told

    def _look_at_server(self, client: Any) -> None:
        try:
            said: dict[str, Any] = client.info()
        except NoPermissionError:
            self._warn("%s does not tell this user (INFO) whether it may evict jobs, or keeps them on disk")
            return
        version = tuple(int(part) for part in str(said["redis_version"]).split(".")[:2])
        if version < MIN_VERSION:
            raise BackendError(f"{self.place} is Redis {said['redis_version']}; Holdfast needs 6.2 or newer, or Valkey")
        policy = str(said.get("maxmemory_policy", "noeviction"))
        # Those that evict only what has a time to live do not touch jobs: none of them has one.
        if policy.startswith("allkeys"):
            raise BackendError(
                f"{self.place} would throw jobs away when its memory is full (maxmemory-policy {policy}): "
                "set it to noeviction, or give Holdfast a server of its own"
            )
        if not said.get("aof_enabled"):
            self._warn(
                "%s keeps no append-only file (appendonly no): jobs accepted since its last snapshot, if it makes any, "
                "are lost when it stops"
            )

    def _warn(self, problem: str) -> None:
        """Say it when the server is opened, not each time it is looked at."""
        if not self._is_open:
            log.warning(problem, self.place)

    def wait(self, queues: Sequence[str], seconds: float, wake: int | None) -> bool:
        """Wait for a hint that one of the queues has work, or until `wake` is readable; whether that was it."""
        client = self._ready()
        bell: Bell | None = getattr(self._local, "bell", None)
        if bell is None:
            pool = client.connection_pool
            bell = self._local.bell = Bell(pool.connection_class(**pool.connection_kwargs), self._clock)
            self._bells.add(bell)
        try:
            return bell.wait([f"{self.base}wake:{queue}" for queue in queues], seconds, wake, client)
        except RedisError as problem:
            raise self._translated(problem) from problem

    def close(self) -> None:
        """Close every connection of this process. One in use closes with the call that uses it."""
        if self._pid == os.getpid():
            self._is_open = False
            self._client.connection_pool.disconnect(inuse_connections=False)
            self._local = threading.local()
            for bell in list(self._bells):
                bell.close()

    def _translated(self, problem: RedisError) -> BackendError:
        said = str(problem)
        if isinstance(problem, AuthenticationError | NoPermissionError):
            return BackendError(f"{self.place} does not let us in: {said}")
        if FULL in said:
            return BackendUnavailable(f"the memory of {self.place} is full; nothing was changed: raise its maxmemory")
        if isinstance(problem, PASSING_ERRORS) or any(code in said for code in PASSING):
            return BackendUnavailable(f"{self.place} cannot be used now: {said}")
        return BackendError(f"{self.place}: {said}")


class Bell:
    """A connection of one thread on which it can be woken: what comes on it is a hint, never a job."""

    def __init__(self, connection: Any, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._id = 0
        self._is_used = False

    def wait(self, keys: Sequence[str], seconds: float, wake: int | None, client: Any) -> bool:
        self._is_used = True
        try:
            return self._wait(keys, seconds, wake, client)
        except BaseException:
            # Its answer may come yet, and would be taken for that of the next question.
            self._drop()
            raise
        finally:
            self._is_used = False

    def _wait(self, keys: Sequence[str], seconds: float, wake: int | None, client: Any) -> bool:
        if not self._id:
            self._id = int(self._ask("CLIENT", "ID"))
        self._connection.send_command("BLPOP", *keys, int(seconds) + OUTLASTS_S)
        descriptor: int = self._connection._sock.fileno()
        readable = self._clock.wait(seconds, [descriptor] if wake is None else [descriptor, wake])
        if descriptor in readable or self._unblock(client):
            self._connection.read_response()
        else:
            self._drop()
        return wake in readable

    def _unblock(self, client: Any) -> bool:
        """Whether the server has stopped waiting: the next hint is for somebody who still does."""
        try:
            # The server may hear of the end of the wait before it hears of the wait.
            for _ in range(UNBLOCK_TRIES):
                if self._connection.can_read(0):
                    return True
                client.execute_command("CLIENT", "UNBLOCK", self._id)
        except NoPermissionError:
            pass
        return False

    def _ask(self, *words: str) -> Any:
        self._connection.send_command(*words)
        return self._connection.read_response()

    def close(self) -> None:
        if not self._is_used:
            self._drop()

    def _drop(self) -> None:
        self._id = 0
        self._connection.disconnect()


def _answer(client: Any, words: Sequence[bytes | str | int], source: bytes | None) -> Any:
    try:
        return client.execute_command(*words)
    except NoScriptError:
        return client.execute_command("EVAL", source, *words[2:])


def _survives(*, appendonly: str, appendfsync: str, maxmemory_policy: str) -> str:
    if maxmemory_policy.startswith("allkeys"):
        return DURABILITY["maxmemory-policy allkeys-…"]
    if appendonly == "no":
        return DURABILITY["appendonly no"]
    return DURABILITY.get(f"appendonly {appendonly}, appendfsync {appendfsync}", DURABILITY[UNKNOWN])


def _place(options: dict[str, Any]) -> str:
    """Where the server is, for messages: never with a password."""
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"
