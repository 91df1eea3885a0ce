"""A worker that is monitored: by systemd through its socket, by probes, and by its heartbeats."""

import re
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.faults.processes import DEADLINE_S, Program, until

from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobState
from holdfast.worker import caretaker

from .floor import Floor


@pytest.fixture
def systemd(floor: Floor) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(DEADLINE_S)
        receiver.bind(str(floor.directory / "notify"))
        yield receiver


def heard_until(receiver: socket.socket, word: str) -> list[str]:
    said: list[str] = []
    while word not in said:
        said += receiver.recv(65536).decode().split("\n")
    return said


def test_systemd_hears_that_the_worker_is_ready_alive_and_leaving(floor: Floor, systemd: socket.socket) -> None:
    address = str(floor.directory / "notify")
    worker = floor.process(NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
    assert "READY=1" in heard_until(systemd, "READY=1")
    assert not any(word.startswith("STOPPING") for word in heard_until(systemd, "WATCHDOG=1"))
    running = floor.put("gated")
    floor.noted("start", running)
    worker.send(signal.SIGTERM)
    heard_until(systemd, "STOPPING=1")
    heard_until(systemd, "WATCHDOG=1")
    floor.open_gate(running)
    assert worker.ended() == 0


class Probe:
    """Asks the probes of a worker."""

    def __init__(self, worker: Program) -> None:
        worker.wait_for("probes at http://")
        # The whole number is there when something comes after it.
        found = until(lambda: re.search(r"probes at http://([\d.]+):(\d+)\s", worker.complained), "the port")
        assert found is not None
        self._host, self._port = found[1], int(found[2])

    def __call__(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection(self._host, self._port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def gauge(self, name: str, **labels: str) -> float | None:
        """The value of a gauge, if it is there."""
        for family in text_string_to_metric_families(self("/metrics")[1]):
            if (family.name, family.type) == (f"holdfast_{name}", "gauge"):
                return next((sample.value for sample in family.samples if sample.labels == labels), None)
        return None


def test_probes_tell_how_the_worker_is_and_what_it_has_done(floor: Floor) -> None:
    worker = floor.process("--probe-port", "0")
    probe = Probe(worker)
    until(lambda: probe("/readyz")[0] == 200, "the worker to be ready")
    assert probe("/livez") == (200, "ok\n")
    done, running = floor.put("brief"), floor.put("gated")
    floor.noted("start", running)
    counted = 'holdfast_jobs_succeeded_total{job="brief",queue="default"} 1.0'
    until(lambda: counted in probe("/metrics")[1], f"{done} to be counted")
    worker.send(signal.SIGTERM)
    worker.wait_for("stopping")
    draining = (503, "draining: the worker is shutting down\n")
    until(lambda: probe("/readyz") == draining, "the worker to report that it is draining")
    assert probe("/livez")[0] == 200
    floor.open_gate(running)
    assert worker.ended() == 0


def test_metrics_tell_how_the_worker_stands_and_what_waits(floor: Floor) -> None:
    first, second, _ = [floor.put("gated") for _ in range(3)]
    floor.put("gated", queue="forgotten")
    probe = Probe(floor.process("--probe-port", "0", "--concurrency", "2"))
    for id in (first, second):
        floor.noted("start", id)
    until(lambda: probe.gauge("jobs", queue="default", state="pending") == 1, "the third to be counted as waiting")
    assert probe.gauge("jobs", queue="default", state="processing") == 2
    assert probe.gauge("jobs", queue="default", state="dead") == 0
    until(lambda: probe.gauge("queue_workers", queue="default") == 1, "the worker to be counted")
    assert probe.gauge("queue_workers", queue="forgotten") == 0
    for queue in ("default", "forgotten"):
        assert (probe.gauge("queue_oldest_wait_seconds", queue=queue) or 0.0) > 0.0
    assert (probe.gauge("worker_jobs_running"), probe.gauge("worker_slots")) == (2, 2)
    assert probe.gauge("worker_processes_ready") == 1
    assert probe.gauge("worker_verdicts_undelivered") == 0
    silences = [probe.gauge("engine_unheard_seconds") or 0.0]

    def is_heard() -> bool:
        silences.append(probe.gauge("engine_unheard_seconds") or 0.0)
        return silences[-1] < silences[-2]

    until(is_heard, "the engine to be heard, though there is nothing to fetch or to settle")


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_metrics_say_how_long_a_server_has_stood_still_and_which_verdicts_wait_for_it(floor: Floor) -> None:
    id = floor.put("gated")
    probe = Probe(floor.process("--probe-port", "0"))
    floor.noted("start", id)
    assert floor.place.server is not None
    with floor.place.server.standing_still():
        floor.open_gate(id)
        until(lambda: probe.gauge("worker_verdicts_undelivered") == 1, "the verdict to wait")
        known = probe.gauge("engine_unheard_seconds") or 0.0
        until(lambda: (probe.gauge("engine_unheard_seconds") or 0.0) > known + 1, "the silence to grow")
        assert probe.gauge("worker_jobs_running") == 0
    floor.reached(id, JobState.COMPLETED)
    until(lambda: probe.gauge("worker_verdicts_undelivered") == 0, "the verdict to be confirmed")
    until(lambda: (probe.gauge("engine_unheard_seconds") or 0.0) < known + 1, "the engine to be heard again")


def test_a_worker_whose_engine_is_another_now_is_alive_but_not_ready(floor: Floor) -> None:
    worker = floor.process("--probe-port", "0")
    probe = Probe(worker)
    until(lambda: probe("/readyz")[0] == 200, "the worker to be ready")
    with floor.stranger() as connection:
        connection.execute("INSERT INTO holdfast_schema VALUES (99, 0)")
    status, why = probe("/readyz")
    assert (status, probe("/livez")[0]) == (503, 200)
    assert "schema 99" in why


def test_a_port_in_use_is_said_before_any_job_is_taken(floor: Floor) -> None:
    id = floor.put("brief")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = floor.process("--probe-port", str(taken.getsockname()[1]), is_greeted=False)
        assert worker.ended() != 0
        assert str(taken.getsockname()[1]) in worker.complained
    assert floor.view(id).deliveries == 0


def test_a_heartbeat_follows_when_the_number_of_running_jobs_changes(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "BEAT_EVERY_S", 3600.0)
    floor.start()
    registry = WorkerRegistry(floor.engine.state)

    def running() -> list[int]:
        return [worker.report.running for worker in registry.all()]

    until(lambda: running() == [0], "the first heartbeat")
    job = floor.put("gated")
    floor.noted("start", job)
    until(lambda: running() == [1], "a heartbeat with the running job")
    floor.open_gate(job)
    until(lambda: running() == [0], "a heartbeat without it")
