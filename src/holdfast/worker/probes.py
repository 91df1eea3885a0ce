"""`ProbeServer`: what an orchestrator or a scraper asks a worker over HTTP, answered on a thread of its own.

`/livez` (also `/healthz`) says whether the worker's loop turns, `/readyz` whether it can work, `/metrics` what it has
counted and how it stands; `?verbose` lists every check. One request per connection. Readiness and metrics may have to
wait for something: each is asked for on one further thread, so that whatever hangs there leaves `/livez` answering.
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

from msgspec import Struct

from holdfast.errors import ConfigError

T = TypeVar("T")

# Something that must be well, by name, and what is wrong with it.
Check: TypeAlias = tuple[str, str | None]

PATIENCE_S: Final = 5.0
MAX_CONNECTIONS: Final = 64
MAX_REQUEST_BYTES: Final = 8192
MAX_PORT: Final = 65535
TEXT: Final = "text/plain; charset=utf-8"
NO_METRICS: Final = "metrics need the package prometheus-client: pip install prometheus-client"

log = logging.getLogger("holdfast.probes")


class Checks(Struct, frozen=True, kw_only=True):
    """Whom the probes ask.

    `live` says what is wrong with the worker's loop, if anything; it has to answer at once and must not ask the
    database, or an outage would restart every worker. `ready` and `metrics` may take their time. `metrics` returns a
    document and its content type; it is None where the extra is not installed.
    """

    live: Callable[[], str | None]
    ready: Callable[[], Sequence[Check]]
    metrics: Callable[[], tuple[bytes, str]] | None = None


class _Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


class ProbeServer:
    """Listens from its creation until `close`. Port 0 is any free port: `address` has the one that was chosen."""

    def __init__(self, host: str, port: int, *, checks: Checks, patience_s: float = PATIENCE_S) -> None:
        self._checks = checks
        self._patience_s = patience_s
        self._ready = _Question(self._ask_ready)
        self._metrics = _Question(self._ask_metrics)
        # The oldest first.
        self._connections: dict[asyncio.Task[None], None] = {}
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._is_closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        with suppress(RuntimeError):  # it is closed already
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
        self._loop.set_exception_handler(_note)
        self._loop.add_reader(self._listener, self._welcome)
        await self._is_closing.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()  # the runner cancels the open connections

    def _welcome(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # No descriptor may be free: clients go on waiting, and this thread must not spin in the meantime.
            self._loop.remove_reader(self._listener)
            self._loop.call_later(1.0, self._loop.add_reader, self._listener, self._welcome)
            return
        client.setblocking(False)
        if len(self._connections) >= MAX_CONNECTIONS:
            # The oldest client has had time to send its request; the newest may be the orchestrator.
            self._connections.pop(oldest := next(iter(self._connections)))
            oldest.cancel()
        task = self._loop.create_task(self._converse(client))
        self._connections[task] = None
        task.add_done_callback(lambda done: self._part(done, client))

    def _part(self, task: asyncio.Task[None], client: socket.socket) -> None:
        # A callback and not a `finally` in the task: one that is cancelled before its first step never gets there.
        self._connections.pop(task, None)
        client.close()

    async def _converse(self, client: socket.socket) -> None:
        with suppress(OSError):  # the client has left, or took too long
            async with asyncio.timeout(self._patience_s):
                method, target = await _request(client)
            answer = await self._answer(method, target)
            async with asyncio.timeout(self._patience_s):
                await self._loop.sock_sendall(client, _response(answer, with_body=method != "HEAD"))
                client.shutdown(socket.SHUT_WR)
                # Unread input would make the kernel drop the response together with the connection.
                while await self._loop.sock_recv(client, MAX_REQUEST_BYTES):
                    pass

    async def _answer(self, method: str, target: str) -> _Answer:
        if not method:
            return _text(HTTPStatus.BAD_REQUEST, "this is no HTTP request, or too long a one")
        if method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered here")
        try:
            place = urlsplit(target)
        except ValueError:
            return _text(HTTPStatus.BAD_REQUEST, "this is no address")
        is_verbose = "verbose" in parse_qs(place.query, keep_blank_values=True)
        silence = f"no answer within {self._patience_s:g} s"
        match place.path:
            case "/livez" | "/healthz":
                return _checks_answer([("loop", self._ask_live())], is_verbose=is_verbose)
            case "/readyz":
                checks = await self._ready.answer(self._patience_s)
                return _checks_answer([("readiness", silence)] if checks is None else checks, is_verbose=is_verbose)
            case "/metrics":
                document = await self._metrics.answer(self._patience_s)
                return document or _text(HTTPStatus.SERVICE_UNAVAILABLE, silence)
            case _:
                return _text(HTTPStatus.NOT_FOUND, "there are /livez, /readyz and /metrics")

    def _ask_live(self) -> str | None:
        try:
            return self._checks.live()
        except Exception as problem:
            return _line(problem)

    def _ask_ready(self) -> Sequence[Check]:
        try:
            return self._checks.ready()
        except BaseException as problem:
            return [("readiness", _line(problem))]

    def _ask_metrics(self) -> _Answer:
        if self._checks.metrics is None:
            return _text(HTTPStatus.NOT_IMPLEMENTED, NO_METRICS)
        try:
            document, content_type = self._checks.metrics()
        except BaseException as problem:
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, _line(problem))
        return _Answer(HTTPStatus.OK, document, content_type)


class _Question(Generic[T]):
    """A question that may hang. Clients that ask it in the meantime wait for the same answer, so that threads cannot
    pile up. `ask` must not raise: without an answer, the question would never be asked again.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._pending: asyncio.Future[T] | None = None

    async def answer(self, within_s: float) -> T | None:
        """The answer, or None if it takes longer than that."""
        pending = self._pending
        if pending is None or pending.done():
            pending = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._run, args=(pending,), name="holdfast-probe", daemon=True).start()
            self._pending = pending
        await asyncio.wait([pending], timeout=within_s)
        return pending.result() if pending.done() else None

    def _run(self, pending: asyncio.Future[T]) -> None:
        answer = self._ask()
        with suppress(RuntimeError):  # the server is closed
            pending.get_loop().call_soon_threadsafe(pending.set_result, answer)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"probe port {port} cannot be opened: ports are numbers from 0 to {MAX_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as problem:
        raise ConfigError(f"probe port {port} cannot be opened on '{host}': {_advice(problem)}") from problem


def _advice(problem: OSError) -> str:
    match problem.errno:
        case errno.EADDRINUSE:
            return "another program has it; choose another one, or 0 for any that is free"
        case errno.EACCES:
            return "it is not open to this user; choose one above 1023, or 0 for any that is free"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have that address; 0.0.0.0 means all it has"
        case _:
            return f"{problem.strerror or problem}; choose another address or port"


async def _request(client: socket.socket) -> tuple[str, str]:
    """Method and target; both empty if it is not a request."""
    head = b""
    while b"\r\n\r\n" not in head:
        received = await asyncio.get_running_loop().sock_recv(client, MAX_REQUEST_BYTES)
        head += received
        if not received or len(head) > MAX_REQUEST_BYTES:
            return "", ""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1]


def _response(answer: _Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head + answer.body if with_body else head


def _checks_answer(checks: Sequence[Check], *, is_verbose: bool) -> _Answer:
    is_well = all(problem is None for _, problem in checks)
    lines = [
        f"{name}: {'ok' if problem is None else ' '.join(problem.split()) or 'failed'}"
        for name, problem in checks
        if is_verbose or problem is not None
    ]
    return _text(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines) or "ok")


def _text(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, f"{text}\n".encode(errors="replace"))


def _line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.debug("a probe failed: %s", context["message"], exc_info=context.get("exception"))
