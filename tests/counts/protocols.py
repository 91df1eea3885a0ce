"""Counting the requests in what a client sends to a server: just enough of each protocol to find where one ends."""

import struct
from abc import ABC, abstractmethod
from collections import Counter

POSTGRES_ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSLRequest and GSSENCRequest
MYSQL_QUIT = 1


class ClientStream(ABC):
    """The bytes that a client sends on one connection, cut into messages; the totals go to `counts`."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._pending = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> bool:
        """Count these bytes. Returns True if a counted request begins or ends in them."""
        self._pending += data
        is_counted = False
        while (length := self._message_length()) and length <= len(self._pending):
            message = bytes(self._pending[:length])
            del self._pending[:length]
            if self._count(message):
                self._counts["bytes_sent"] += length
                is_counted = True
        return is_counted or bool(self._pending)

    @abstractmethod
    def _message_length(self) -> int:
        """The length of the message at the beginning of what is pending; 0 if it is not known yet."""

    @abstractmethod
    def _count(self, message: bytes) -> bool:
        """Count a message; returns False if it does not count."""


class PostgresStream(ClientStream):
    """Messages of PostgreSQL's frontend. The server sends its answers at a Query, a Sync or a Flush: a round trip."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(counts)
        self._has_started = False
        self._is_asking = False

    def _message_length(self) -> int:
        head = 1 if self._has_started else 0
        if len(self._pending) < head + 4:
            return 0
        length: int = struct.unpack_from(">I", self._pending, head)[0]
        return head + length

    def _count(self, message: bytes) -> bool:
        if not self._has_started:
            self._has_started = struct.unpack_from(">I", message, 4)[0] not in POSTGRES_ENCRYPTION_REQUESTS
            return True
        kind = message[:1]
        self._counts["statements"] += kind in (b"Q", b"E")
        # At the end of a pipeline, the driver sends a Flush after the Sync unless all answers are there by then.
        if kind == b"H" and not self._is_asking:
            return False
        self._counts["round_trips"] += kind in (b"Q", b"S", b"H")
        self._is_asking = kind not in (b"Q", b"S", b"H")
        return True


class MysqlStream(ClientStream):
    """Packets of MySQL's client. A command is the first packet of an exchange."""

    def _message_length(self) -> int:
        return 4 + int.from_bytes(self._pending[:3], "little") if len(self._pending) >= 4 else 0

    def _count(self, message: bytes) -> bool:
        is_command = message[3] == 0 and message[4] != MYSQL_QUIT
        self._counts["statements"] += is_command
        return True


class RedisStream(ClientStream):
    """Commands of Redis's client, each an array of strings."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(counts)
        self._latest = b""

    def _message_length(self) -> int:
        """The length of the whole array."""
        place = self._pending.find(b"\r\n")
        if place < 0:
            return 0
        words, place = int(self._pending[1:place]), place + 2
        for _ in range(words):
            end = self._pending.find(b"\r\n", place)
            if end < 0:
                return 0
            place = end + 2 + int(self._pending[place + 1 : end]) + 2
        return place

    def _count(self, message: bytes) -> bool:
        # UNBLOCK is repeated until the blocked connection has been answered: how often is a matter of timing. It names
        # the connection by a number that grows with every connection to the server, so the digits do not count.
        is_unblock = b"\r\nUNBLOCK\r\n" in message
        is_repeated = is_unblock and message == self._latest
        self._latest = message
        if is_unblock and not is_repeated:
            self._counts["bytes_sent"] -= len(message.split(b"\r\n")[-2])
        self._counts["statements"] += not is_repeated
        return not is_repeated
