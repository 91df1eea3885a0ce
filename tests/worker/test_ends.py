"""Every delivery has one end, in every kind of worker: `jobs_fetched` is the sum of the ends.

`Bench.close` and `Running.ended` check this sum after every test of a worker; here, every end occurs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

from holdfast.app import Holdfast
from holdfast.config import Settings
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, JobCancelled, JobFailed
from holdfast.handlers import Cancel, Snooze
from holdfast.metrics import End, InMemoryMetrics
from holdfast.testing import JobKit
from holdfast.values import Entered, Entry, JobEnvelope, JobState, Settlement, Slot, StopOrder, WorkerStatus
from holdfast.worker import shutdown, supervisor

from ..faults.processes import DEADLINE_S, until
from ..servers.mysql import MariadbServer
from ..servers.places import every_engine, place_on
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from ..servers.running import Server, started
from .bench import Bench, wire_of
from .floor import Floor

T = TypeVar("T")


def raises(problem: BaseException) -> Callable[[], object]:
    def handle() -> object:
        raise problem

    return handle


def unavailable(*_: object) -> list[bool]:
    raise BackendUnavailable("nobody is there")


def broken(*_: object) -> list[bool]:
    raise BackendError("the disk is full")


# The worker in this process.


def fail(bench: Bench, max_retries: int) -> None:
    bench.handler(raises(ValueError("no")))
    bench.put(max_retries=max_retries)


def expire(bench: Bench) -> None:
    bench.put(expires=10)
    bench.clock.advance(10)


def forbid(bench: Bench) -> None:
    bench.put("command", {"argv": ["true"]})


def skip(bench: Bench) -> None:
    bench.handler(lambda: None)
    bench.put(idempotency_key="k")
    bench.turn()
    bench.put(idempotency_key="k")
    bench.counts.seen.clear()


def block(bench: Bench) -> None:
    bench.handler(lambda: None)
    bench.put(concurrency_key="a")
    lease = bench.engine.fetch("default")
    assert lease is not None
    bench.engine.enter([Entry(lease=lease, slots=(Slot(name="key:a"),))])
    bench.put(concurrency_key="a")


def lose(bench: Bench) -> None:
    def be_too_slow() -> None:
        bench.clock.advance(bench.engine.policy.lease_s)
        bench.engine.reap_expired()

    bench.handler(be_too_slow)
    bench.put()


def let_settling_fail(bench: Bench, settle: Callable[[Sequence[Settlement]], list[bool]]) -> None:
    bench.handler(lambda: None)
    bench.put()
    bench.engine.settle = settle  # type: ignore[assignment, method-assign]


def let_entering_fail(bench: Bench) -> None:
    def enter(entries: Sequence[Entry]) -> list[Entered]:
        raise KeyError("a bug in the engine")

    bench.handler(lambda: None)
    bench.put(concurrency_key="a")
    bench.engine.enter = enter  # type: ignore[method-assign]


def handle(function: Callable[..., object]) -> Callable[[Bench], None]:
    def prepare(bench: Bench) -> None:
        bench.handler(function)
        bench.put()

    return prepare


PREPARED: list[tuple[Callable[[Bench], object], End]] = [
    (handle(lambda: None), End.SUCCEEDED),
    (skip, End.SKIPPED_IDEMPOTENT),
    (lambda bench: fail(bench, 1), End.REQUEUED),
    (lambda bench: fail(bench, 0), End.FAILED_PERMANENTLY),
    (lambda bench: bench.put_wire(b"garbage"), End.REJECTED_UNDECODABLE),
    (lambda bench: bench.put_wire(wire_of(key="ours:another-key-under-the-name-of-ours")), End.REJECTED_SIGNATURE),
    (lambda bench: bench.put_wire(wire_of(queue="other")), End.REJECTED_WRONG_QUEUE),
    (forbid, End.REJECTED_HANDLER_FORBIDDEN),
    (expire, End.EXPIRED),
    (handle(raises(Cancel())), End.CANCELLED),
    (handle(lambda: Snooze(5)), End.SNOOZED),
    (lambda bench: bench.put("unknown"), End.POSTPONED),
    (lambda bench: handle(bench.worker.interrupt)(bench), End.RELEASED),
    (block, End.BLOCKED),
    (lose, End.LOST_LEASE),
    (lambda bench: let_settling_fail(bench, broken), End.UNSETTLED),
    (lambda bench: let_settling_fail(bench, unavailable), End.UNSETTLED),
    (let_entering_fail, End.UNSETTLED),
]


def test_every_end_is_among_these() -> None:
    assert {end for _, end in PREPARED} == set(End)


@pytest.mark.parametrize(("prepare", "end"), PREPARED, ids=[end.name for _, end in PREPARED])
def test_a_worker_in_this_process_counts_one_end_for_each_delivery(
    bench: Bench, prepare: Callable[[Bench], object], end: End
) -> None:
    prepare(bench)
    status: WorkerStatus | None
    try:
        status = bench.turn().status
    except (HoldfastError, KeyError):
        status = None
    failed = {"jobs_failed default": 1} if end in (End.REQUEUED, End.FAILED_PERMANENTLY) else {}
    assert bench.counts.seen == {"jobs_fetched default": 1, f"{end} default": 1, **failed}
    assert status in (end.status, None if end is End.UNSETTLED else end.status)


def test_a_job_that_is_released_because_the_worker_stops_has_an_end(bench: Bench) -> None:
    bench.handler(lambda: None)
    bench.put()
    assert bench.worker.process_once("default", unless=lambda: True).status is WorkerStatus.RELEASED
    assert bench.counts.seen == {"jobs_fetched default": 1, "jobs_released default": 1}


def test_a_job_that_is_interrupted_by_ctrl_c_has_an_end(bench: Bench) -> None:
    bench.put(concurrency_key="a")
    bench.engine.enter = lambda entries: raises(KeyboardInterrupt())()  # type: ignore[assignment, method-assign, return-value]
    bench.handler(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        bench.turn()
    assert bench.counts.seen == {"jobs_fetched default": 1, "jobs_released default": 1}


# The worker with children.


def put_wire(floor: Floor, id: str, wire: bytes) -> str:
    floor.engine.accept([JobEnvelope(id=id, queue="default", job="quick", priority=5, wire=wire)])
    return id


@every_engine
def test_a_worker_with_children_counts_one_end_for_each_delivery(floor: Floor) -> None:
    lost = floor.put("gated")
    fenced = floor.put("gated", fence=True)
    interrupted = floor.put("gated")
    holder = floor.put("gated", concurrency_key="a")
    worker = floor.start(processes=8)
    for id in (lost, fenced, interrupted, holder):
        floor.noted("start", id)
    ended = [
        floor.put("quick"),
        floor.put("quick", idempotency_key="k"),
        floor.put("fails", max_retries=1),
        floor.put("fails_for_good"),
        put_wire(floor, "undecodable", b"garbage"),
        put_wire(floor, "forged", wire_of(id="forged", key="ours:another-key-under-the-name-of-ours")),
        put_wire(floor, "moved", wire_of(id="moved", queue="other")),
        floor.put("command", {"argv": ["true"]}),
        floor.put("quick", expires=1e-6),
        floor.put("gives_up"),
    ]
    waiting = [
        floor.put("snoozes"),
        floor.put("unknown"),
        floor.put("quick", concurrency_key="a"),
    ]
    for id in ended:
        floor.reached(id, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    for id in waiting:
        floor.reached(id, JobState.SCHEDULED, JobState.BLOCKED)
    floor.reached(floor.put("quick", idempotency_key="k"), JobState.COMPLETED)
    # As if this worker were dead: every lease that it holds is lost, and one job is killed because it is fenced.
    until(lambda: floor.engine.expire_leases([bytes.fromhex(worker.supervisor.id)]), "the leases to expire")
    until(lambda: worker.metrics.total(End.UNSETTLED), "the fenced job to be killed and given up")
    floor.open_gate(lost)
    until(lambda: worker.metrics.total(End.LOST_LEASE), "a settlement to be refused")
    floor.engine.reap_expired()
    for id in (fenced, interrupted, holder):
        floor.noted("start", id, times=2)
    worker.stop(StopOrder.NOW)
    worker.ended()
    missing = [end for end in End if not worker.metrics.total(end)]
    assert not missing
    assert worker.metrics.total("jobs_succeeded", job="quick") >= 2
    assert worker.metrics.total("jobs_postponed", job="unknown") == 0, "it has no handler here"
    assert worker.metrics.total("jobs_failed") == sum(
        worker.metrics.total(end) for end in (End.REQUEUED, End.FAILED_PERMANENTLY)
    )


def test_jobs_whose_process_dies_have_an_end(floor: Floor) -> None:
    ids = [floor.put("dies_at_gate", {"gate": "die"}, max_retries=0) for _ in range(3)]
    worker = floor.start(concurrency=3)
    for id in ids:
        floor.noted("start", id)
    floor.open_gate("die")
    for id in ids:
        floor.reached(id, JobState.DEAD)
    worker.stop()
    worker.ended()
    assert (worker.metrics.total(End.RELEASED), worker.metrics.total(End.FAILED_PERMANENTLY)) == (3, 3)


@pytest.mark.parametrize("verb", ["enter", "settle"])
def test_what_a_worker_cannot_settle_when_it_has_to_exit_has_an_end(floor: Floor, verb: str) -> None:
    id = floor.put("gated", concurrency_key="a")
    if verb == "enter":
        floor.engine.down = {"enter", "exchange", "settle"}
        worker = floor.start()
        until(lambda: floor.engine.calls["enter"], "the worker to ask for the slot")
    else:
        worker = floor.start()
        floor.noted("start", id)
        floor.engine.down = {"exchange", "settle"}
        floor.open_gate(id)
        until(lambda: floor.engine.calls["exchange"] + floor.engine.calls["settle"] > 1, "the worker to try in vain")
    worker.stop(StopOrder.NOW)
    worker.ended()
    assert worker.supervisor.unsettled == worker.metrics.total(End.UNSETTLED) == 1


@pytest.mark.parametrize(("verbs", "given_up"), [(("exchange", "settle"), 2), (("enter",), 1)])
def test_what_a_worker_leaves_to_an_engine_that_hangs_has_an_end(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, verbs: Sequence[str], given_up: int
) -> None:
    for module in (shutdown, supervisor):
        monkeypatch.setattr(module, "FLUSH_S", 0.1)
    is_over, hung, sound = threading.Event(), threading.Event(), floor.engine.shaky

    def shaky(verb: str, call: Callable[[], T]) -> T:
        if verb not in verbs:
            return sound(verb, call)
        hung.set()
        is_over.wait(DEADLINE_S)
        raise BackendUnavailable(f"{verb}: the connection was closed")

    monkeypatch.setattr(floor.engine, "shaky", shaky)
    # The settlement of the first job hangs, so that of the second is never sent; or the first is never admitted.
    first, second = floor.put("gated", concurrency_key="a"), floor.put("gated")
    worker = floor.start(processes=2)
    if "enter" not in verbs:
        for id in (first, second):
            floor.noted("start", id)
        floor.open_gate(first)
    assert hung.wait(DEADLINE_S)
    worker.stop(StopOrder.NOW)
    worker.ended()
    is_over.set()
    assert worker.supervisor.unsettled == worker.metrics.total(End.UNSETTLED) >= given_up


SERVERS: dict[str, Callable[[], Server]] = {
    "postgres": PostgresServer,
    "mysql": MariadbServer,
    "redis": lambda: RedisServer(settings={"appendfsync": "always"}),
}


@pytest.fixture(params=[*SERVERS])
def killed_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A private server, because it is killed."""
    server = started(SERVERS[request.param])
    yield server
    server.close()


def test_a_server_killed_under_a_worker_leaves_one_end_for_each_delivery(killed_server: Server) -> None:
    with place_on(killed_server) as place:
        floor = Floor(place)
        try:
            ids = floor.put_many(400, "brief")
            worker = floor.start(processes=2)
            for reached in (50, 200):
                until(lambda: len(floor.ends()) >= reached, "the worker to get on")  # noqa: B023
                killed_server.kill()
                killed_server.start()
            for id in ids:
                floor.reached(id, JobState.COMPLETED)
            worker.stop()
            worker.ended()
            assert worker.metrics.total(End.SUCCEEDED) == len(ids)
        finally:
            floor.close()


# The others.


def test_jobs_that_run_where_they_are_enqueued_have_one_end_for_each_delivery() -> None:
    metrics = InMemoryMetrics()
    ends = {End.SUCCEEDED: 1, End.REQUEUED: 1, End.FAILED_PERMANENTLY: 1, End.SNOOZED: 1, End.CANCELLED: 1}
    with Holdfast("sync://", settings=Settings(), metrics=metrics) as hf:
        _enqueue_each(hf)
    assert {end: metrics.total(end) for end in End if metrics.total(end)} == ends
    assert metrics.total("jobs_fetched") == sum(ends.values())
    assert metrics.total("jobs_snoozed", job="snoozes") == 1


def test_jobs_of_the_testing_kit_have_one_end_for_each_delivery() -> None:
    metrics = InMemoryMetrics()
    ends = {End.SUCCEEDED: 1, End.REQUEUED: 1, End.FAILED_PERMANENTLY: 1, End.SNOOZED: 1, End.CANCELLED: 1}
    with Holdfast("memory://", settings=Settings(), metrics=metrics) as hf, JobKit(hf) as kit:
        _enqueue_each(hf)
        kit.drain()
        hf.define("unknown").dispatch()
        hf.define("gives_up").concurrency_key("a").dispatch()
        with kit.held("key:a"):
            kit.drain()
    ends |= {End.POSTPONED: 1, End.BLOCKED: 1}
    assert {end: metrics.total(end) for end in End if metrics.total(end)} == ends
    assert metrics.total("jobs_fetched") == sum(ends.values())


def _enqueue_each(hf: Holdfast) -> None:
    """Enqueue jobs that are delivered once or twice, each time with another end. `sync` raises for two of them."""
    snoozed: list[str] = []

    def snoozes() -> object:
        snoozed.append("once")
        return Snooze(60) if len(snoozed) == 1 else None

    def fails() -> None:
        raise ValueError("no luck")

    def gives_up() -> Cancel:
        return Cancel("not wanted any more")

    for handler in (snoozes, fails, gives_up):
        hf.registry.register(handler.__name__, handler)
    hf.define("snoozes").dispatch()
    for job in (hf.define("fails").max_retries(1), hf.define("gives_up")):
        with suppress(JobFailed, JobCancelled):
            job.dispatch()
