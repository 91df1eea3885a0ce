"""The statements that an engine sends when many jobs are enqueued, recorded once and repeated by the bare driver,
without encoding them again and without processing the replies.
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

# The driver's types are incomplete.
_redis: Any = redis


@contextmanager
def heard(place: Place) -> Generator[list[Any]]:
    """Record what is sent to the server of this place during the block."""
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
    """The function of the driver that sends everything, and which of its arguments to record."""
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
    """The time that the driver needs to send all of it, in seconds; each call is one transaction."""
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
