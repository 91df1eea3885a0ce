"""Observing drivers from outside: at the sockets of those written in Python, and through a proxy for libpq."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Self
from weakref import WeakKeyDictionary

import pytest

from .protocols import ClientStream, PostgresStream

_CHUNK_BYTES = 256 * 1024


class SocketListener:
    """Counts what this process sends on sockets, in the order of the program: no count depends on timing.

    A round trip is a read that follows something sent on the same socket.
    """

    def __init__(self, make_stream: Callable[[Counter[str]], ClientStream]) -> None:
        self.counts = Counter[str]()
        self._make_stream = make_stream
        self._streams = WeakKeyDictionary[socket.socket, ClientStream]()
        self._unanswered = set[int]()
        self._is_listening = False

    @contextmanager
    def installed(self) -> Generator[Self]:
        """Replace the methods of sockets that drivers use."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("send", "sendall"):
                patch.setattr(socket.socket, name, self._sending(getattr(socket.socket, name)), raising=False)
            for name in ("recv", "recv_into"):
                patch.setattr(socket.socket, name, self._receiving(getattr(socket.socket, name)), raising=False)
            yield self

    @contextmanager
    def listening(self) -> Generator[None]:
        """Count inside the block; no request may be in flight when it begins."""
        self._streams.clear()
        self._unanswered.clear()
        self._is_listening = True
        try:
            yield
        finally:
            self._is_listening = False

    @contextmanager
    def not_listening(self) -> Generator[None]:
        """Ignore the test's own requests inside the block."""
        was_listening, self._is_listening = self._is_listening, False
        try:
            yield
        finally:
            self._is_listening = was_listening

    def _sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(connection: socket.socket, data: Any, *rest: Any) -> Any:
            if self._is_listening:
                stream = self._streams.get(connection)
                if stream is None:
                    stream = self._streams[connection] = self._make_stream(self.counts)
                if stream.feed(data):
                    self._unanswered.add(connection.fileno())
            return send(connection, data, *rest)

        return counted

    def _receiving(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        def counted(connection: socket.socket, *rest: Any) -> Any:
            if self._is_listening and connection.fileno() in self._unanswered:
                self._unanswered.discard(connection.fileno())
                self.counts["round_trips"] += 1
            return receive(connection, *rest)

        return counted


class PostgresProxy:
    """A loopback port that forwards to a server. libpq is written in C: its sockets cannot be replaced.

    What a client sends is counted before it reaches the server, and so before the client can have its answer.
    """

    def __init__(self, port: int) -> None:
        self.counts = Counter[str]()
        self._server = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._sockets: list[socket.socket] = [self._door]
        self._threads: list[threading.Thread] = []
        self._start(self._welcome)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _welcome(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._server)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += (client, server)
                self._start(self._pass_on, client, server, PostgresStream(self.counts))
                self._start(self._pass_on, server, client, None)

    def _pass_on(self, source: socket.socket, target: socket.socket, stream: ClientStream | None) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if stream is not None:
                    stream.feed(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()
