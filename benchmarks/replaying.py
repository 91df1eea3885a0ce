"""What an engine says to its server when many jobs are enqueued, heard once and said again by the bare driver: the very
statements, made beforehand, and nothing made of the answers.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import psycopg
import pymysql
import redis

from servers import MariadbPlace, Place, PostgresPlace, RedisPlace

# The driver's types tell but half.
_redis: Any = redis


@contextmanager
def heard(place: Place) -> Generator[list[Any]]:
    """What is said to the server of this place meanwhile."""
    said: list[Any] = []
    owner, name, note = _ear(place)
    real = getattr(owner, name)

    @wraps(real)
    def listening(self: Any, *words: Any, **options: Any) -> Any:
        said.append(note(words, options))
        return real(self, *words, **options)

    setattr(owner, name, listening)
    try:
        yield said
    finally:
        setattr(owner, name, real)


def _ear(place: Place) -> tuple[Any, str, Callable[[Any, Any], Any]]:
    """Where everything that is said passes by, and what of it to note."""
    match place:
        case PostgresPlace():
            return psycopg.Connection, "execute", lambda words, options: (words, options)
        case MariadbPlace():
            return pymysql.connections.Connection, "_execute_command", lambda words, _: words[1]
        case RedisPlace():
            return _redis.connection.Connection, "send_packed_command", lambda words, _: words[0]
        case _:
            raise AssertionError(place)


def said_again(place: Place, calls: Sequence[Sequence[Any]]) -> float:
    """Seconds that the driver takes to say all of it; each call is one transaction."""
    match place:
        case PostgresPlace():
            return _by_psycopg(place, calls)
        case MariadbPlace():
            return _by_pymysql(place, calls)
        case RedisPlace():
            return _by_redis(place, calls)
        case _:
            raise AssertionError(place)


def _by_psycopg(place: PostgresPlace, calls: Sequence[Sequence[Any]]) -> float:
    with psycopg.connect(place.url, autocommit=True, prepare_threshold=None) as connection:
        began = time.perf_counter()
        for call in calls:
            with connection.transaction():
                for words, options in call:
                    connection.execute(*words, **options)
        return time.perf_counter() - began


def _by_pymysql(place: MariadbPlace, calls: Sequence[Sequence[Any]]) -> float:
    with place.connect() as connection:
        began = time.perf_counter()
        for call in calls:
            for statement in filter(None, call):
                connection.query(statement)
        return time.perf_counter() - began


def _by_redis(place: RedisPlace, calls: Sequence[Sequence[Any]]) -> float:
    connection = _redis.Connection(host="127.0.0.1", port=place.server.port)
    connection.connect()
    began = time.perf_counter()
    for call in calls:
        for packed in call:
            connection.send_packed_command(packed)
            connection.read_response()
    taken_s = time.perf_counter() - began
    connection.disconnect()
    return taken_s
