"""Connections to a Redis or Valkey server: running scripts, waiting for work, and checking whether the server may store
jobs at all.

Every verb is one script, called by its digest, and may be repeated: a script that the server does not know is sent
whole, a call whose connection was lost is sent again, and in a cluster it goes to the node that has our keys.
`lua/common.lua` describes the keys.

A call whose script meets a damaged index repairs it and rebuilds it from the records of all jobs before the script runs
again. That call takes as long as the rebuild; other calls run between its pages of `SCANNED_AT_ONCE` records.
"""

import hashlib
import logging
import os
import re
import ssl
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
    MovedError,
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
# How much longer a wait lasts on the server than in the worker, in case the worker vanishes from the network.
OUTLASTS_S: Final = 1
UNBLOCK_TRIES: Final = 100
# How often one call is sent again: to the node that has the keys, or to the one that the URL names.
HOPS: Final = 2

# The error handler for names that are not UTF-8, so that they can be sent back.
ESCAPED: Final = "surrogateescape"

# Error codes of a server that is a replica, is busy with a script or cannot write its file: call again later. The
# driver strips the code from some errors, and the server puts it in the middle of the error of a script.
PASSING: Final = ("READONLY", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "UNBLOCKED", "MISCONF")
PASSING_ERRORS: Final = (ReadOnlyError, AskError, ClusterDownError, TryAgainError, ConnectionError, TimeoutError)
FULL: Final = "used memory > 'maxmemory'"
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
UNKNOWN: Final = "unknown"
DURABILITY: Final = {
    "appendonly yes, appendfsync always": "process crash and power loss (every write is fsynced)",
    "appendonly yes, appendfsync everysec": (
        "a crash of Holdfast's processes; if the server or the machine crashes, jobs of the last second or two are lost"
    ),
    "appendonly yes, appendfsync no": ("process crash; on power loss, jobs of up to the last 30 seconds are lost"),
    "appendonly no": "a crash of Holdfast's processes; if the server stops, jobs since its last snapshot are lost",
    "maxmemory-policy allkeys-…": "nothing: the server evicts jobs when its memory is full; Holdfast refuses to use it",
    UNKNOWN: "a crash of Holdfast's processes; this user is not permitted to read the server's persistence settings",
}
"""The failures that an accepted job survives, by the settings of the server."""

# The driver's types are incomplete.
_driver: Any = redis
_IN_EVERY_URL: Final = {"host", "port", "path", "db", "username", "password", "connection_class"}
_prefix_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

log = logging.getLogger("holdfast.redis")


class Script:
    """One script, put together from parts."""

    def __init__(self, *parts: str) -> None:
        self.source = "\n".join(_part(name) for name in ("common", *parts)).encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()


@cache
def _part(name: str) -> str:
    return resources.files("holdfast.queues.engines").joinpath(f"redis/lua/{name}.lua").read_text(encoding="utf-8")


PREPARE: Final = Script("prepare")
REPAIR: Final = Script("repair")
REINDEX: Final = Script("ending", "edges", "slots", "reindex")
RECOUNT: Final = Script("recount")
RELIST: Final = Script("relist")
REBUILT: Final = Script("ending", "edges", "rebuilt")
# The errors of a script that meets a key written by another program.
DAMAGED: Final = ("WRONGTYPE", "value is not an integer", "increment or decrement would overflow")
SCANNED_AT_ONCE: Final = 1000


class RedisConnections:
    """The server of a URL, and the keys of one installation on it. Threads and forked children may share it."""

    def __init__(self, url: str, *, clock: Clock, prefix: str) -> None:
        if not _prefix_pattern.fullmatch(prefix):
            raise ConfigError(f"{prefix!r} is not a valid key prefix; use up to 40 letters, digits and '_'")
        try:
            options: dict[str, Any] = _driver.connection.parse_url(url)
        except ValueError:
            # The parser's own message may quote part of the password.
            raise ConfigError(
                "the URL of the Redis server is invalid: write redis://host:6379/0, rediss://… or unix:///path, and "
                "escape special characters in the password"
            ) from None
        _check_database(url)
        self.place = _place(options)
        self._given = options.keys() - _IN_EVERY_URL
        self.base = f"{{{prefix}}}:"
        self._clock = clock
        self._options: dict[str, Any] = {
            "socket_timeout": ANSWER_TIMEOUT_S,
            **_network_defaults(options),
            **options,
            # Replies are bytes, and only we decide which calls are repeated.
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
        }
        self._first_options = self._options
        self._start()
        self._check_options()

    def _check_options(self) -> None:
        """Refuse options that can never connect, without connecting."""
        pool = self._client.connection_pool
        try:
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, RedisError):
            # The driver's own message may quote a value.
            named = ", ".join(sorted(self._given)) or "none"
            raise ConfigError(
                f"the URL of {self.place} has invalid options (given: {named}): use prefix and the options of "
                "redis-py; those that start with ssl_ need rediss://"
            ) from None
        _check_certificates(self.place, self._options)

    def _start(self) -> None:
        """Start without connections: those of a parent process are not used here."""
        self._pid = os.getpid()
        self._local = threading.local()
        self._bells: weakref.WeakSet[Bell] = weakref.WeakSet()
        self._is_open = False
        self._client: Any = _driver.Redis(connection_pool=_driver.ConnectionPool(**self._options))

    def run(
        self, script: Script, *arguments: bytes | str | int, repeats: bool = True, kinds: Sequence[str] = ()
    ) -> Any:
        """Run a script and return its reply. Without `repeats`, a lost connection is an error: the script may have run
        already, and must not run twice. If the script meets an index of another type, that index is set aside and
        rebuilt, and the script runs again; `kinds` are the kinds of cells that it uses.
        """
        try:
            return self._run(script, *arguments, repeats=repeats)
        except BackendError as problem:
            if not any(code in str(problem) for code in DAMAGED):
                raise
            self.repair(kinds)  # or another process did: the script runs again in any case
        return self._run(script, *arguments, repeats=repeats)

    def _run(self, script: Script, *arguments: bytes | str | int, repeats: bool = True) -> Any:
        return self.call("EVALSHA", script.digest, 1, self.base, *arguments, source=script.source, repeats=repeats)

    def repair(self, kinds: Sequence[str] = ()) -> None:
        """Rename indexes of the wrong type, and rebuild those that were renamed."""
        names: list[bytes] = self._run(REPAIR, *kinds)
        if names:
            listed = ", ".join(name.decode(errors="replace") for name in names)
            log.error("%s: keys of the wrong type were renamed to '%sdamaged:…': %s", self.place, self.base, listed)
        self._rebuild()

    def _rebuild(self) -> None:
        """Rebuild the indexes that were set aside from the records of all jobs, a page at a time."""
        notes: dict[bytes, bytes] = self.call("HGETALL", f"{self.base}rebuild")
        if not notes:
            return
        jobs, cursor = f"{self.base}job:", 0
        while True:
            cursor, keys = self.call("SCAN", cursor, "MATCH", f"{jobs}*", "COUNT", SCANNED_AT_ONCE)
            self._run(REINDEX, *(key[len(jobs) :] for key in keys))
            if not cursor:
                break
        if any(name.startswith((b"completed:", b"completions")) for name in notes):
            self._run(RECOUNT)
        if b"used" in notes:
            self._run(RELIST)
        self._run(REBUILT, *(word for note in notes.items() for word in note))
        log.warning("%s: indexes rebuilt from job records: %s", self.place, b", ".join(notes).decode(errors="replace"))

    def call(self, *words: bytes | str | int, source: bytes | None = None, repeats: bool = True) -> Any:
        """Send a command and return its reply. A script that the server does not know is sent whole."""
        self._ready()
        try:
            return self._send(*words, source=source, repeats=repeats)
        except RedisError as problem:
            raise self._translated(problem) from problem

    def _send(self, *words: bytes | str | int, source: bytes | None = None, repeats: bool = True) -> Any:
        client = self._own_client()
        for _ in range(HOPS):
            try:
                return _answer(client, words, source)
            except (AuthenticationError, BusyLoadingError):
                raise
            except TimeoutError:
                self._at_home()
                raise
            except ConnectionError:
                # If the server was restarted, the other idle connections are lost as well.
                client.connection_pool.disconnect(inuse_connections=False)
                client = self._at_home()
                if not repeats:
                    raise
            except MovedError as problem:
                client = self._moved(problem)
        return _answer(client, words, source)

    def _at_home(self) -> Any:
        """A client of the node that the URL names: the current one may be gone, and another may have our keys."""
        if self._options is not self._first_options:
            self._options = self._first_options
            self._start()
        return self._client

    def _moved(self, problem: Any) -> Any:
        """A client of the node of a cluster that has our keys now, as named in this reply."""
        if "path" in self._options:
            raise problem
        # A node that does not know its own name omits it.
        node = (problem.host or self._options.get("host", "localhost"), problem.port)
        if node != (self._options.get("host"), self._options.get("port")):
            log.info("%s: the keys '%s…' have moved to %s:%d", self.place, self.base, *node)
            self._client.connection_pool.disconnect(inuse_connections=False)
            self._options = {**self._first_options, "host": node[0], "port": node[1]}
            self._start()
        return self._client

    def _ready(self) -> Any:
        """A client of this process, for a server that may store jobs."""
        client = self._own_client()
        if not self._is_open:
            self.create_schema()
        return client

    def _own_client(self) -> Any:
        if self._pid != os.getpid():
            self._start()
        return self._client

    def check_schema(self) -> None:
        self.create_schema()

    def create_schema(self) -> None:
        """Check that the server may store jobs, and that its layout is the one this program knows."""
        try:
            # In a cluster, this leads to the node that has our keys, which is the one to check.
            self._send("EXISTS", f"{self.base}schema")
            self._check_server()
            version = int(self._send("EVALSHA", PREPARE.digest, 1, self.base, SCHEMA, source=PREPARE.source))
        except RedisError as problem:
            raise self._translated(problem) from problem
        if version > SCHEMA:
            raise SchemaTooNew(
                f"{self.place} has layout {version} under '{self.base}', written by a newer Holdfast; this program "
                f"supports up to {SCHEMA}: upgrade Holdfast here"
            )
        self._is_open = True

    def describe(self) -> EngineInfo:
        """Describe the server and our layout on it. Nothing is created."""
        try:
            layout = self._send("GET", f"{self.base}schema")
            facts = self._facts("INFO")
            fsync = self._facts("CONFIG GET", "appendfsync").get("appendfsync", UNKNOWN)
            clock_us = self._clock_us()
        except RedisError as problem:
            raise self._translated(problem) from problem
        is_valkey = "valkey_version" in facts
        version = facts.get("valkey_version" if is_valkey else "redis_version", "(version unknown)")
        settings = {
            "appendonly": {"1": "yes", "0": "no"}.get(str(facts.get("aof_enabled")), UNKNOWN),
            "appendfsync": str(fsync),
            "maxmemory-policy": str(facts.get("maxmemory_policy", UNKNOWN)),
        }
        return EngineInfo(
            server=f"{'Valkey' if is_valkey else 'Redis'} {version}",
            names=f"{self.base}…",
            schema=int(layout or 0),
            known_schema=SCHEMA,
            settings=settings,
            survives=_survives(settings),
            clock_us=clock_us,
        )

    def _clock_us(self) -> int | None:
        """The server's clock, if this user may read it."""
        try:
            seconds, fraction = self._send("TIME")
        except ResponseError:
            return None
        return int(seconds) * 1_000_000 + int(fraction)

    def _facts(self, *words: str) -> dict[str, Any]:
        """The reply of a command about the server; nothing if it refuses this user, or does not know the command."""
        try:
            facts: dict[str, Any] = self._send(*words)
        except ResponseError:
            return {}
        return facts

    def _check_server(self) -> None:
        facts = self._facts("INFO")
        if not facts:
            self._warn(
                "%s: this user may not run INFO, so it is unknown whether jobs can be evicted or are stored on disk"
            )
            return
        version = tuple(int(part) for part in str(facts["redis_version"]).split(".")[:2])
        if version < MIN_VERSION:
            raise BackendError(
                f"{self.place} is Redis {facts['redis_version']}; Holdfast needs 6.2 or newer, or Valkey"
            )
        policy = str(facts.get("maxmemory_policy", "noeviction"))
        # The policies that evict only keys with a time to live do not affect jobs: no key of a job has one.
        if policy.startswith("allkeys"):
            raise BackendError(
                f"{self.place} would evict jobs when its memory is full (maxmemory-policy {policy}): set it to "
                "noeviction, or use a separate server for Holdfast"
            )
        if not facts.get("aof_enabled"):
            self._warn("%s has no append-only file (appendonly no): if it stops, jobs since its last snapshot are lost")

    def _warn(self, problem: str) -> None:
        """Log a warning when the server is opened, but not at each later check."""
        if not self._is_open:
            log.warning(problem, self.place)

    def wait(self, queues: Sequence[str], seconds: float, wake: int | None) -> bool:
        """Wait for a hint that one of the queues has work, or until `wake` is readable. Returns whether `wake` is."""
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
        """Close every connection of this process, except those in use: they close when their call returns."""
        if self._pid == os.getpid():
            self._is_open = False
            self._client.connection_pool.disconnect(inuse_connections=False)
            self._local = threading.local()
            for bell in list(self._bells):
                bell.close()

    def _translated(self, problem: RedisError) -> BackendError:
        message = str(problem)
        if isinstance(problem, AuthenticationError | NoPermissionError):
            return BackendError(
                f"{self.place} refused access: {message}; check the user, the password and its permissions"
            )
        if UNTRUSTED in message:
            return BackendUnavailable(
                f"the certificate of {self.place} is not trusted: {message}; set ssl_ca_certs to the CA that "
                "signed it, and use the host name in the certificate"
            )
        if isinstance(problem, TimeoutError) and _has_tls(self._options):
            # A port without TLS takes the handshake for the start of a line, and waits for the rest of it.
            return BackendUnavailable(
                f"{self.place} did not respond: {message}; if that port has no TLS, use the TLS port or redis://"
            )
        if isinstance(problem, MovedError):
            return BackendUnavailable(f"{self.place}: the cluster is moving the keys '{self.base}…': {message}")
        if FULL in message:
            return BackendUnavailable(f"the memory of {self.place} is full; nothing was changed: raise its maxmemory")
        if isinstance(problem, PASSING_ERRORS) or any(code in message for code in PASSING):
            return BackendUnavailable(f"{self.place} cannot be used now: {message}")
        return BackendError(f"{self.place}: {message}")


class Bell:
    """A connection of one thread, on which it waits for hints. A hint is never a job."""

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
            # A late reply would be taken for that of the next command.
            self._drop()
            raise
        finally:
            self._is_used = False

    def _wait(self, keys: Sequence[str], seconds: float, wake: int | None, client: Any) -> bool:
        if not self._id:
            self._connection.send_command("CLIENT", "ID")
            self._id = int(self._connection.read_response())
        self._connection.send_command("BLPOP", *keys, int(seconds) + OUTLASTS_S)
        descriptor: int = self._connection._sock.fileno()
        readable = self._clock.wait(seconds, [descriptor] if wake is None else [descriptor, wake])
        if descriptor in readable or self._unblock(client):
            self._connection.read_response()
        else:
            self._drop()
        return wake in readable

    def _unblock(self, client: Any) -> bool:
        """Make the server stop waiting, so that the next hint goes to another client. Returns whether it did."""
        try:
            # The server may receive UNBLOCK before it receives BLPOP.
            for _ in range(UNBLOCK_TRIES):
                if self._connection.can_read(0):
                    return True
                client.execute_command("CLIENT", "UNBLOCK", self._id)
        except NoPermissionError:
            pass
        return False

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
    except UnicodeEncodeError:
        # Raised before anything was sent.
        escaped = [word.encode(errors=ESCAPED) if isinstance(word, str) else word for word in words]
        return _answer(client, escaped, source)


def _survives(settings: dict[str, str]) -> str:
    if settings["maxmemory-policy"].startswith("allkeys"):
        return DURABILITY["maxmemory-policy allkeys-…"]
    if settings["appendonly"] == "no":
        return DURABILITY["appendonly no"]
    file = "appendonly {appendonly}, appendfsync {appendfsync}".format_map(settings)
    return DURABILITY.get(file, DURABILITY[UNKNOWN])


def _network_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a connection over a network. One through a socket in the file system does not have them."""
    if "path" in options:
        return {}
    defaults = {"socket_connect_timeout": CONNECT_TIMEOUT_S, "socket_keepalive": True}
    # The name in a certificate is checked by default, as older drivers do not do.
    is_checked = _has_tls(options) and options.get("ssl_cert_reqs") != "none"
    return {**defaults, "ssl_check_hostname": True} if is_checked else defaults


def _has_tls(options: dict[str, Any]) -> bool:
    return options.get("connection_class") is _driver.connection.SSLConnection


def _check_certificates(place: str, options: dict[str, Any]) -> None:
    """Refuse files that cannot be read: the driver would report that the server cannot be reached."""
    authorities, certificate = options.get("ssl_ca_certs"), options.get("ssl_certfile")
    try:
        if authorities is not None:
            ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), options.get("ssl_password", ""))
    except OSError as problem:
        raise ConfigError(
            f"the certificates for {place} cannot be used ({problem}): ssl_ca_certs, ssl_certfile and ssl_keyfile must "
            "be readable files in PEM format"
        ) from problem


def _check_database(url: str) -> None:
    """Refuse a path that is not a number: the driver would use database 0 without notice."""
    scheme, _, rest = url.partition("://")
    database = rest.partition("?")[0].partition("/")[2]
    if scheme != "unix" and database and not database.isdecimal():
        raise ConfigError(
            f"{database!r} is not a Redis database, which is a number: write redis://host:6379/0, and give each "
            "installation its own prefix (?prefix=shop_)"
        )


def _place(options: dict[str, Any]) -> str:
    """The address of the server for messages, without the password."""
    if "path" in options:
        return f"unix://{options['path']}"
    scheme = "rediss" if _has_tls(options) else "redis"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"
