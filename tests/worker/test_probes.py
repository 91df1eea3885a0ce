"""The probes over real connections; no client and no check can keep `/livez` from responding."""

import asyncio
import errno
import http.client
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from holdfast.errors import ConfigError
from holdfast.worker.probes import MAX_CONNECTIONS, Check, Checks, ProbeServer

from ..faults.processes import DEADLINE_S, until

WELL: tuple[Check, ...] = (("backend", None), ("schema", None))


class Answer(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]


class Site:
    """The probe servers of one test; by default, all checks pass."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def serve(
        self,
        *,
        live: Callable[[], str | None] = lambda: None,
        ready: Callable[[], Sequence[Check]] = lambda: WELL,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        patience_s: float = DEADLINE_S,
    ) -> ProbeServer:
        checks = Checks(live=live, ready=ready, metrics=metrics)
        return self._open.enter_context(ProbeServer("127.0.0.1", 0, checks=checks, patience_s=patience_s))

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def ask(server: ProbeServer, target: str, method: str = "GET", body: bytes | None = None) -> Answer:
    connection = http.client.HTTPConnection(*server.address, timeout=DEADLINE_S)
    try:
        connection.request(method, target, body)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(), dict(response.getheaders()))
    finally:
        connection.close()


def connected(server: ProbeServer) -> socket.socket:
    return socket.create_connection(server.address, timeout=DEADLINE_S)


@pytest.mark.parametrize("target", ["/livez", "/healthz", "/readyz", "/livez?", "/readyz?pretty"])
def test_a_worker_that_is_well_says_ok(site: Site, target: str) -> None:
    assert ask(site.serve(), target)[:2] == (200, "ok\n")


def test_a_loop_that_does_not_turn_is_not_live(site: Site) -> None:
    server = site.serve(live=lambda: "has not turned for 42 s")
    assert ask(server, "/livez")[:2] == (503, "loop: has not turned for 42 s\n")
    assert ask(server, "/healthz").status == 503
    assert ask(server, "/readyz").status == 200


def test_each_failing_check_has_its_line(site: Site) -> None:
    server = site.serve(ready=lambda: [("backend", "not\nreached"), ("schema", None), ("children", "")])
    assert ask(server, "/readyz")[:2] == (503, "backend: not reached\nchildren: failed\n")
    assert ask(server, "/livez").status == 200


def test_verbose_lists_every_check(site: Site) -> None:
    server = site.serve(ready=lambda: [("backend", "gone"), ("schema", None)])
    assert ask(server, "/readyz?verbose")[:2] == (503, "backend: gone\nschema: ok\n")
    assert ask(server, "/readyz?verbose=1").body == "backend: gone\nschema: ok\n"
    assert ask(server, "/livez?verbose")[:2] == (200, "loop: ok\n")


def test_readiness_is_asked_for_anew_each_time(site: Site) -> None:
    problems: list[str | None] = [None, "draining"]
    server = site.serve(ready=lambda: [("intake", problems.pop(0))])
    assert ask(server, "/readyz").status == 200
    assert ask(server, "/readyz").status == 503


@pytest.mark.parametrize("problem", [ValueError("broken\nbadly"), SystemExit("broken badly")])
def test_a_check_that_raises_fails(site: Site, problem: BaseException) -> None:
    def broken() -> Sequence[Check]:
        raise problem

    server = site.serve(ready=broken)
    for _ in range(2):
        assert ask(server, "/readyz")[:2] == (503, f"readiness: {type(problem).__name__}: broken badly\n")


def test_a_liveness_check_that_raises_fails(site: Site) -> None:
    def broken() -> str | None:
        raise ValueError("broken")

    assert ask(site.serve(live=broken), "/livez")[:2] == (503, "loop: ValueError: broken\n")


def test_a_readiness_check_that_hangs_is_asked_once_and_leaves_liveness_answering(site: Site) -> None:
    release = threading.Event()
    asked: list[int] = []

    def hanging() -> Sequence[Check]:
        asked.append(1)
        release.wait(DEADLINE_S)
        return WELL

    server = site.serve(ready=hanging, patience_s=0.2)
    for _ in range(3):
        assert ask(server, "/readyz")[:2] == (503, "readiness: no response within 0.2 s\n")
        assert ask(server, "/livez").status == 200
    assert len(asked) == 1
    release.set()
    until(lambda: ask(server, "/readyz").status == 200, "the check to answer")


def test_metrics_come_with_their_content_type(site: Site) -> None:
    server = site.serve(metrics=lambda: (b"jobs 3\n", "text/plain; version=1.0.0"))
    answer = ask(server, "/metrics")
    assert answer[:2] == (200, "jobs 3\n")
    assert answer.headers["Content-Type"] == "text/plain; version=1.0.0"


def test_a_large_document_arrives_whole_although_the_client_has_said_all_it_will(site: Site) -> None:
    document = b"jobs 3\n" * 500_000
    server = site.serve(metrics=lambda: (document, "text/plain"))
    with connected(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: worker\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert everything(client).endswith(b"\r\n\r\n" + document)


def test_metrics_without_their_package_say_how_to_install_it(site: Site) -> None:
    answer = ask(site.serve(), "/metrics")
    assert answer.status == 501
    assert "pip install prometheus-client" in answer.body


def test_metrics_that_raise_are_an_error_of_the_server(site: Site) -> None:
    def broken() -> tuple[bytes, str]:
        raise ValueError("broken")

    assert ask(site.serve(metrics=broken), "/metrics")[:2] == (500, "ValueError: broken\n")


def test_head_answers_like_get_without_the_body(site: Site) -> None:
    server = site.serve(ready=lambda: [("backend", "gone")])
    whole, head = ask(server, "/readyz"), ask(server, "/readyz", "HEAD")
    assert head == (whole.status, "", whole.headers)
    assert head.headers["Content-Length"] == str(len(whole.body))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_other_methods_are_not_allowed(site: Site, method: str) -> None:
    # The body is larger than the kernel's buffers: the server must read all of it, or the answer is lost.
    answer = ask(site.serve(), "/livez", method, b"x" * 20_000_000)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("target", ["/", "/livez/", "/metricsx", "*", "/..%2f"])
def test_other_places_are_not_found(site: Site, target: str) -> None:
    assert ask(site.serve(), target).status == 404


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez SMTP\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: worker\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: worker\r\nHost: other\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: worker\r\nX : y\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nX: " + b"x" * 70_000,
    ],
)
def test_what_is_no_request_is_refused(site: Site, request_bytes: bytes) -> None:
    server = site.serve()
    with connected(server) as client:
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        assert everything(client).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_request_of_http_1_0_needs_no_host(site: Site) -> None:
    with connected(site.serve()) as client:
        client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok\n")


def test_a_content_type_cannot_add_headers(site: Site) -> None:
    server = site.serve(metrics=lambda: (b"jobs 3\n", "text/plain\r\nSet-Cookie: a=b"))
    with connected(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: worker\r\n\r\n")
        assert b"Set-Cookie" not in everything(client)
    assert ask(server, "/livez").status == 200


def test_nothing_is_said_about_the_program_that_answers(site: Site) -> None:
    headers = ask(site.serve(), "/livez").headers
    assert set(headers) == {"Content-Type", "Content-Length", "Cache-Control", "Connection"}


def test_a_client_that_never_finishes_its_request_is_sent_away(site: Site) -> None:
    server = site.serve(patience_s=0.2)
    with connected(server) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n")
        assert everything(client) == b""


def test_clients_that_only_hold_connections_open_cannot_keep_others_out(site: Site) -> None:
    server = site.serve(patience_s=10 * DEADLINE_S)
    threads = threading.active_count()
    with ExitStack() as crowd:
        clients = [crowd.enter_context(connected(server)) for _ in range(3 * MAX_CONNECTIONS)]
        assert ask(server, "/livez").status == 200
        assert ask(server, "/readyz").status == 200
        # The first ones had to make room.
        for client in clients[: 2 * MAX_CONNECTIONS]:
            assert everything(client) == b""
        assert threading.active_count() <= threads + 1


def test_requests_are_not_logged(
    site: Site, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    server = site.serve()
    for target in ("/livez", "/readyz", "/metrics", "/nowhere"):
        ask(server, target)
    with connected(server) as client:
        client.sendall(b"nonsense")
    server.close()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_closing_frees_the_port_ends_the_thread_and_may_be_repeated(site: Site) -> None:
    threads = threading.active_count()
    server = site.serve()
    assert ask(server, "/livez").status == 200
    with connected(server) as waiting:
        until(lambda: ask(server, "/livez").status == 200, "the server to answer")
        server.close()
        server.close()
        assert everything(waiting) == b""
    assert threading.active_count() == threads
    with ProbeServer(*server.address, checks=Checks(live=lambda: None, ready=lambda: WELL)) as successor:
        assert successor.address == server.address
        assert ask(successor, "/livez").status == 200


def test_closing_does_not_wait_for_a_check_that_hangs(site: Site) -> None:
    asked, release = threading.Event(), threading.Event()

    def hanging() -> Sequence[Check]:
        asked.set()
        release.wait(DEADLINE_S)
        return WELL

    server = site.serve(ready=hanging)
    with connected(server) as client:
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: worker\r\n\r\n")
        assert asked.wait(DEADLINE_S)
        server.close()
        assert not any(thread.name == "holdfast-probes" for thread in threading.enumerate())
    release.set()
    until(lambda: not any(thread.name == "holdfast-probe" for thread in threading.enumerate()), "its thread to end")


def test_a_port_in_use_is_a_clear_error(site: Site) -> None:
    port = site.serve().address[1]
    with pytest.raises(ConfigError, match=rf"probe port {port} .* another program is using it; choose another port"):
        ProbeServer("127.0.0.1", port, checks=Checks(live=lambda: None, ready=lambda: WELL))


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", 70_000, "probe port 70000: .* numbers from 0 to 65535"),
        ("127.0.0.1", -1, "probe port -1: .* numbers from 0 to 65535"),
        ("192.0.2.1", 0, "on '192.0.2.1': this machine does not have that address"),
        ("no.such.host.invalid", 0, "on 'no.such.host.invalid': .*; choose another address"),
    ],
)
def test_a_place_that_cannot_be_listened_on_is_a_clear_error(host: str, port: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ProbeServer(host, port, checks=Checks(live=lambda: None, ready=lambda: WELL))


def test_a_forbidden_port_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether low ports are forbidden depends on who runs the tests, and where.
    def forbidden(*_: object, **__: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", forbidden)
    with pytest.raises(ConfigError, match=r"probe port 80 .* this user may not open it; choose a port above 1023"):
        ProbeServer("127.0.0.1", 80, checks=Checks(live=lambda: None, ready=lambda: WELL))


def test_it_serves_beside_an_event_loop_of_the_worker(site: Site) -> None:
    server = site.serve()

    async def beside() -> int:
        return (await asyncio.to_thread(ask, server, "/readyz")).status

    assert asyncio.run(beside()) == 200


def everything(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection, which is a reset if it has not read everything."""
    received = bytearray()
    try:
        while chunk := client.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return bytes(received)
