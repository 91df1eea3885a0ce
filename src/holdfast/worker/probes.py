"""`ProbeServer`: answers orchestrators and scrapers over HTTP, on its own thread.

`/livez` (also `/healthz`) reports whether the worker's loop is running, `/readyz` whether the worker can run jobs,
`/metrics` its counters and gauges; `?verbose` lists every check. h11 parses requests and writes responses. Each
connection serves one request. Readiness and metrics may block, so each runs on a further thread: `/livez` always
responds.
"""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

import h11
from msgspec import Struct

from holdfast.errors import ConfigError

T = TypeVar("T")

Check: TypeAlias = tuple[str, str | None]
"""The name of a check, and its problem if it failed."""

PATIENCE_S: Final = 5.0
MAX_CONNECTIONS: Final = 64
MAX_REQUEST_BYTES: Final = 8192
MAX_PORT: Final = 65535
TEXT: Final = "text/plain; charset=utf-8"
NO_METRICS: Final = "metrics need the package prometheus-client: pip install prometheus-client"

log = logging.getLogger("holdfast.probes")


class Checks(Struct, frozen=True, kw_only=True):
    """The checks behind the probes.

    `live` returns the problem with the worker's loop, if there is one. It must return at once and must not use the
    database, or an outage would restart every worker. `ready` and `metrics` may take their time. `metrics` returns a
    document and its content type; it is None if the extra is not installed.
    """

    live: Callable[[], str | None]
    ready: Callable[[], Sequence[Check]]
    metrics: Callable[[], tuple[bytes, str]] | None = None


class _Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


class ProbeServer:
    """Listens from its creation until `close`. With port 0 the system chooses a free port; see `address`."""

    def __init__(self, host: str, port: int, *, checks: Checks, patience_s: float = PATIENCE_S) -> None:
        self._checks = checks
        self._patience_s = patience_s
        self._ready = _SharedCall(self._check_readiness)
        self._metrics = _SharedCall(self._render_metrics)
        # Oldest first.
        self._connections: dict[asyncio.Task[None], None] = {}
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._is_closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        with suppress(RuntimeError):  # already closed
            self._loop.call_soon_threadsafe(self._is_closing.set)
        self._thread.join(self._patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop.set_exception_handler(_log_error)
        self._loop.add_reader(self._listener, self._accept)
        await self._is_closing.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()  # the runner cancels the open connections

    # Plain sockets: the streams of `asyncio.start_server` leaked connections on Python 3.11.7.
    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Perhaps no file descriptor is free. The clients stay in the backlog; this thread must not spin.
            self._loop.remove_reader(self._listener)
            self._loop.call_later(1.0, self._loop.add_reader, self._listener, self._accept)
            return
        client.setblocking(False)
        if len(self._connections) >= MAX_CONNECTIONS:
            # The oldest client has had time to send its request; the newest may be the orchestrator.
            self._connections.pop(oldest := next(iter(self._connections)))
            oldest.cancel()
        task = self._loop.create_task(self._serve_client(client))
        self._connections[task] = None
        task.add_done_callback(lambda done: self._disconnect(done, client))

    def _disconnect(self, task: asyncio.Task[None], client: socket.socket) -> None:
        # A callback, not a `finally` in the task: a task that is cancelled before its first step never runs one.
        self._connections.pop(task, None)
        client.close()

    async def _serve_client(self, client: socket.socket) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        with suppress(OSError):  # the client disconnected, or was too slow
            async with asyncio.timeout(self._patience_s):
                request = await _receive(connection, client)
            answer = await self._answer(request)
            async with asyncio.timeout(self._patience_s):
                await self._loop.sock_sendall(client, _response(connection, request, answer))
                client.shutdown(socket.SHUT_WR)
                # Closing a socket with unread input resets the connection, and the client would lose the response.
                while await self._loop.sock_recv(client, MAX_REQUEST_BYTES):
                    pass

    async def _answer(self, request: h11.Request | None) -> _Answer:
        if request is None:
            return _text(HTTPStatus.BAD_REQUEST, "not a valid HTTP request, or too long")
        if request.method not in (b"GET", b"HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported")
        try:
            place = urlsplit(request.target.decode())
        except ValueError:
            return _text(HTTPStatus.BAD_REQUEST, "not a valid URL")
        is_verbose = "verbose" in parse_qs(place.query, keep_blank_values=True)
        no_answer = f"no response within {self._patience_s:g} s"
        match place.path:
            case "/livez" | "/healthz":
                return _checked([("loop", self._check_liveness())], is_verbose=is_verbose)
            case "/readyz":
                checks = await self._ready.result(self._patience_s)
                return _checked([("readiness", no_answer)] if checks is None else checks, is_verbose=is_verbose)
            case "/metrics":
                document = await self._metrics.result(self._patience_s)
                return document or _text(HTTPStatus.SERVICE_UNAVAILABLE, no_answer)
            case _:
                return _text(HTTPStatus.NOT_FOUND, "not found; try /livez, /readyz or /metrics")

    def _check_liveness(self) -> str | None:
        try:
            return self._checks.live()
        except Exception as problem:
            return _line(problem)

    def _check_readiness(self) -> Sequence[Check]:
        try:
            return self._checks.ready()
        except BaseException as problem:
            return [("readiness", _line(problem))]

    def _render_metrics(self) -> _Answer:
        if self._checks.metrics is None:
            return _text(HTTPStatus.NOT_IMPLEMENTED, NO_METRICS)
        try:
            document, content_type = self._checks.metrics()
        except BaseException as problem:
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, _line(problem))
        return _Answer(HTTPStatus.OK, document, content_type)


class _SharedCall(Generic[T]):
    """A call that may hang, made on its own thread. Clients that arrive while it runs share its result, so threads
    cannot pile up. `call` must not raise: without a result, it would never be made again.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._pending: asyncio.Future[T] | None = None

    async def result(self, within_s: float) -> T | None:
        """The result, or None if it takes longer than that."""
        pending = self._pending
        if pending is None or pending.done():
            pending = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._run, args=(pending,), name="holdfast-probe", daemon=True).start()
            self._pending = pending
        await asyncio.wait([pending], timeout=within_s)
        return pending.result() if pending.done() else None

    def _run(self, pending: asyncio.Future[T]) -> None:
        result = self._call()
        with suppress(RuntimeError):  # the server is closed
            pending.get_loop().call_soon_threadsafe(pending.set_result, result)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"cannot open probe port {port}: ports are numbers from 0 to {MAX_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as problem:
        raise ConfigError(f"cannot open probe port {port} on '{host}': {_advice(problem)}") from problem


def _advice(problem: OSError) -> str:
    match problem.errno:
        case errno.EADDRINUSE:
            return "another program is using it; choose another port, or 0 for any free one"
        case errno.EACCES:
            return "this user may not open it; choose a port above 1023, or 0 for any free one"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have that address; 0.0.0.0 listens on all of its addresses"
        case _:
            return f"{problem.strerror or problem}; choose another address or port"


async def _receive(connection: h11.Connection, client: socket.socket) -> h11.Request | None:
    """The client's request, or None if it sent something else."""
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await asyncio.get_running_loop().sock_recv(client, MAX_REQUEST_BYTES))
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


def _response(connection: h11.Connection, request: h11.Request | None, answer: _Answer) -> bytes:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    head = h11.Response(status_code=answer.status, reason=answer.status.phrase, headers=headers)
    has_body = request is None or request.method != b"HEAD"
    body = [h11.Data(data=answer.body)] if has_body else []
    return b"".join(connection.send(event) or b"" for event in (head, *body, h11.EndOfMessage()))


def _checked(checks: Sequence[Check], *, is_verbose: bool) -> _Answer:
    """200 if every check passed, else 503; with a line for each failed check, or for every check."""
    has_passed = all(problem is None for _, problem in checks)
    lines = [
        f"{name}: {'ok' if problem is None else ' '.join(problem.split()) or 'failed'}"
        for name, problem in checks
        if is_verbose or problem is not None
    ]
    return _text(HTTPStatus.OK if has_passed else HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines) or "ok")


def _text(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, f"{text}\n".encode(errors="replace"))


def _line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _log_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.debug("probe failed: %s", context["message"], exc_info=context.get("exception"))
