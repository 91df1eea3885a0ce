"""Copies of dead letters: one for each job that dies, with everything that is known and nothing unverified."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Unpack

import msgspec
import pytest

from holdfast import DeadLetter, Holdfast
from holdfast.config import Settings
from holdfast.dead_letters import DEAD_LETTER_KEY, DeadLetterQueues, copy_id
from holdfast.definition import JobOptions, definition_of
from holdfast.errors import BackendUnavailable
from holdfast.handlers import Cancel, JobContext
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.values import DeadReason, JobFilter, JobLease, JobState, JobView, Put, Release, WorkerStatus
from holdfast.worker.dead_letters import IDS_KNOWN, KIND, LOOK_BACK, DeadLetterCopies, UnsettledDeaths
from holdfast.worker.maintenance import Maintenance

from ..faults.processes import until
from ..servers.places import every_engine
from .bench import Bench, wire_of
from .floor import Floor

TO = "failed_jobs"
SETTINGS = Settings(dead_letter_to=TO, dead_letter_queues={"noise": "", "mail": "failed_mail"}, max_retries=0)
TO_FAILED = DeadLetterQueues(default=TO)
NONE = DeadLetterQueues()


@pytest.fixture
def copying() -> Iterator[Bench]:
    with Bench(settings=SETTINGS) as bench:
        yield bench


def letter_of(copy: JobView) -> DeadLetter:
    assert copy.job == DEAD_LETTER_KEY
    return msgspec.json.decode(copy.payload, type=dict[str, DeadLetter])["letter"]


def copies(engine: Engine, queue: str = TO) -> dict[str | None, DeadLetter]:
    """The letters in a queue, by the id of the job that died."""
    letters = [letter_of(copy) for copy in engine.find(JobFilter(queue=queue), limit=1000).jobs]
    assert len({letter.id for letter in letters}) == len(letters), "a job was copied twice"
    return {letter.id: letter for letter in letters}


def fail() -> None:
    raise ValueError("the row is empty")


def fail_at(row: int) -> None:
    assert row
    fail()


def test_a_copy_has_all_that_is_known_about_the_dead_letter(copying: Bench) -> None:
    copying.handler(fail_at)
    id = copying.put(payload={"row": 7}, tags=("import", "nightly"), trace_id="trace-1", meta={"tenant": "acme"})
    assert copying.turn().status is WorkerStatus.DEAD_LETTERED
    dead, copy = copying.history(id), copying.view(copy_id(id, 1))
    assert (copy.queue, copy.state, copy.trace_id, copy.tags) == (
        TO,
        JobState.PENDING,
        "trace-1",
        ("import", "nightly"),
    )
    assert copying.engine.dead_letters().jobs == (dead.job,)
    assert letter_of(copy) == DeadLetter(
        id=id,
        job="job",
        queue="default",
        payload={"row": 7},
        reason="failed",
        error=dead.attempts[0].record.error,
        attempts=1,
        dead_at=dead.attempts[0].record.ended_at,
        trace_id="trace-1",
        tags=("import", "nightly"),
        meta={"tenant": "acme"},
    )


def test_a_handler_of_the_application_gets_the_letter(copying: Bench) -> None:
    received: list[tuple[str, DeadLetter]] = []

    def on_death(context: JobContext, letter: DeadLetter) -> None:
        received.append((context.id, letter))

    copying.handler(fail_at)
    copying.handler(on_death, DEAD_LETTER_KEY)
    id = copying.put(payload={"row": 7})
    copying.turn()
    assert copying.turn(TO).status is WorkerStatus.ACKED
    [(copy, letter)] = received
    assert (copy, letter.id, letter.payload, letter.reason) == (copy_id(id, 1), id, {"row": 7}, DeadReason.FAILED)
    assert letter.error is not None
    assert letter.error.line == "ValueError: the row is empty"


def test_a_copy_whose_id_is_taken_does_not_make_the_dead_job_run_again(copying: Bench) -> None:
    copying.handler(fail)
    for life in (1, 2):
        copying.put(id="nightly")
        copying.clock.advance(life)
        assert copying.turn().status is WorkerStatus.DEAD_LETTERED
        assert copying.view("nightly").dead_reason is DeadReason.FAILED
        if life == 1:
            copying.engine.discard("nightly")
            copying.clock.advance(7200)
            copying.engine.prune()
    assert set(copies(copying.engine)) == {"nightly"}


def test_a_queue_and_a_job_can_name_another_queue(copying: Bench) -> None:
    copying.handler(fail)
    mail = copying.put(queue="mail")
    noise = copying.put(queue="noise")
    own = [copying.put(queue=queue, dead_letter_to="own") for queue in ("default", "noise", "mail")]
    for _ in range(2):
        for queue in ("default", "mail", "noise"):
            copying.turn(queue)
    assert list(copies(copying.engine, "failed_mail")) == [mail]
    assert set(copies(copying.engine, "own")) == set(own)
    assert copies(copying.engine) == {}
    assert copying.view(noise).state is JobState.DEAD


def test_only_a_death_is_copied(copying: Bench) -> None:
    def run(how: str) -> object:
        if how == "cancel":
            return Cancel("enough")
        if how == "fail":
            raise ValueError
        return None

    copying.handler(run)
    copying.put(payload={"how": "return"})
    copying.put(payload={"how": "cancel"})
    retried = copying.put(payload={"how": "fail"}, max_retries=1)
    copying.put(payload={"how": "return"}, expires=1)
    copying.clock.advance(2)
    for _ in range(4):
        copying.turn()
    copying.engine.cancel(retried)
    copying.engine.cancel(copying.put(payload={"how": "return"}))
    assert copying.engine.counts()["default"] == {JobState.COMPLETED: 1, JobState.CANCELLED: 4}
    assert copies(copying.engine) == {}


def test_each_death_of_a_replayed_job_is_copied(copying: Bench) -> None:
    copying.handler(fail)
    id = copying.put()
    for _ in range(2):
        copying.turn()
        copying.engine.replay(id)
    found = copying.engine.find(JobFilter(queue=TO)).jobs
    assert sorted(copy.id for copy in found) == [copy_id(id, 1), copy_id(id, 2)]


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (wire_of(key="theirs:another-key-than-that-of-the-tests", kid="ours"), DeadReason.BAD_SIGNATURE),
        (b"no message", DeadReason.UNDECODABLE),
        (wire_of(queue="elsewhere"), DeadReason.WRONG_QUEUE),
        (wire_of(id="another"), DeadReason.WRONG_QUEUE),
        (wire_of(key="theirs:another-key-than-that-of-the-tests", kid="ours", dead_letter_to="x"), "bad-signature"),
    ],
)
def test_nothing_unverified_is_signed(copying: Bench, wire: bytes, reason: str) -> None:
    copying.put_wire(wire)
    assert copying.turn().status is WorkerStatus.REJECTED
    letter = copies(copying.engine)["smuggled"]
    dead_at = copying.records("smuggled")[0].ended_at
    assert letter == DeadLetter(
        id="smuggled", queue="default", reason=reason, attempts=0, dead_at=dead_at, partial=True
    )


def test_a_forbidden_handler_is_verified(copying: Bench) -> None:
    with Bench(settings=SETTINGS, allowlist={"default": ()}) as bench:
        id = bench.put(payload={"row": 7})
        assert bench.turn().status is WorkerStatus.REJECTED
        assert copies(bench.engine)[id].payload == {"row": 7}


def test_a_message_of_another_program_with_an_invalid_queue_is_dead_all_the_same(
    copying: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    copying.handler(fail)
    copying.put_wire(wire_of(dead_letter_to="No Queue!", max_retries=0))
    assert copying.turn().status is WorkerStatus.DEAD_LETTERED
    assert copying.view("smuggled").state is JobState.DEAD
    assert "job smuggled: its dead letter could not be copied to queue 'No Queue!'" in caplog.text
    assert copying.engine.counts().keys() == {"default"}


def nested(depth: int) -> object:
    value: object = "deep"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("payload", [{"text": "x" * 1_048_000}, {"value": nested(31)}], ids=["large", "deep"])
def test_what_does_not_fit_into_a_copy_is_left_out(copying: Bench, payload: dict[str, object]) -> None:
    copying.handler(fail_with_text if "text" in payload else fail_with_value)
    id = copying.put(payload=payload, tags=("import",), trace_id="trace-1")
    assert copying.turn().status is WorkerStatus.DEAD_LETTERED
    letter = copies(copying.engine)[id]
    assert (letter.partial, letter.payload, letter.tags, letter.job) == (True, None, ("import",), "job")
    assert letter.error is not None
    assert (letter.error.line, letter.error.traceback) == ("ValueError: the row is empty", "")
    assert copying.view(copy_id(id, 1)).trace_id == "trace-1"


def fail_with_text(text: str) -> None:
    assert text
    fail()


def fail_with_value(value: object) -> None:
    assert value
    fail()


def test_the_copy_of_a_copy_would_never_end(copying: Bench) -> None:
    def on_death(letter: DeadLetter) -> None:
        raise ValueError(letter.id)

    copying.handler(fail)
    copying.handler(on_death, DEAD_LETTER_KEY)
    id = copying.put()
    by_itself = copying.put(DEAD_LETTER_KEY, {"letter": {}}, dead_letter_to=TO)
    for queue in ("default", "default", TO):
        copying.turn(queue)
    assert copying.view(copy_id(id, 1)).state is JobState.DEAD
    assert copying.view(by_itself).state is JobState.DEAD
    assert list(copies(copying.engine)) == [id]
    # A copy that can no longer be verified is not copied either.
    copying.put_wire(b"no message", queue=TO)
    assert copying.turn(TO).status is WorkerStatus.REJECTED
    assert copying.engine.counts()[TO] == {JobState.DEAD: 2}


def test_a_copy_without_a_handler_is_postponed(copying: Bench) -> None:
    copying.handler(fail)
    id = copying.put()
    copying.turn()
    assert copying.turn(TO).status is WorkerStatus.RELEASED
    assert copying.view(copy_id(id, 1)).state is JobState.SCHEDULED


def test_the_settings_of_the_worker_count_when_the_job_dies(copying: Bench) -> None:
    with Bench(settings=Settings()) as without:
        without.handler(fail)
        without.put(max_retries=0)
        without.turn()
        assert without.engine.counts() == {"default": {JobState.DEAD: 1}}
        waiting = without.put(max_retries=0)
        without.app.engines.get()
        with Holdfast("memory://", settings=SETTINGS, signing_key="unused:" + "x" * 32) as other:
            opened = without.app.engines.get()
            other.registry.register("job", without.app.registry.resolve("job"))
            with other.workers.worker(opened) as worker:
                worker.process_once("default")
        assert list(copies(without.engine)) == [waiting]


# Jobs that die without a settlement.


def deaths(engine: Engine, ring: Any, queues: DeadLetterQueues = TO_FAILED) -> UnsettledDeaths:
    return UnsettledDeaths(engine, DeadLetterCopies(engine.envelopes, ring, queues))


def let_die(engine: Engine, *ids: str, **options: Unpack[JobOptions]) -> None:
    """Let the reaper dead-letter these jobs, as if their worker had died too often."""
    engine.accept([engine.envelopes.make(definition_of("job", {"row": 7}, options), id=id) for id in ids])
    session = new_session()
    for _ in range(engine.policy.crash_limit):
        left = set(ids)
        while left:  # a job that has crashed before is claimed alone
            left -= {lease.id for lease in engine.claim("default", 10, owner_token=new_owner_token(session))}
        engine.expire_leases([session])
        engine.reap_expired()
    assert {job.id for job in engine.dead_letters(limit=1000).jobs} >= {*ids}


@every_engine
def test_a_job_that_the_reaper_ended_is_copied_once(floor: Floor) -> None:
    engine = floor.open(crash_limit=2)
    let_die(engine, "a", "b", tags=("import",))
    for _ in range(2):
        deaths(engine, engine.ring).check()
    found = copies(engine)
    assert found.keys() == {"a", "b"}
    dead = floor.view("a")
    assert dead.finished_at is not None
    assert found["a"] == DeadLetter(
        id="a",
        job="job",
        queue="default",
        payload={"row": 7},
        reason=DeadReason.CRASH_LOOP,
        error=floor.records("a")[-1].error,
        attempts=0,
        dead_at=dead.finished_at,
        tags=("import",),
    )
    assert [copy.id for copy in engine.find(JobFilter(ids=(copy_id("a", 2),))).jobs] == ["a:dead:2"]


@every_engine
def test_workers_that_copy_at_the_same_time_copy_each_job_once(floor: Floor) -> None:
    engine = floor.open(crash_limit=1)
    ids = [f"job-{number}" for number in range(12)]
    let_die(engine, *ids)
    others = [deaths(handle, handle.ring) for handle in (floor.open(crash_limit=1) for _ in range(4))]
    start = threading.Barrier(len(others))

    def copy(one: UnsettledDeaths) -> None:
        start.wait()
        one.copy()

    threads = [threading.Thread(target=copy, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert copies(engine).keys() == {*ids}


@every_engine
@pytest.mark.parametrize("verb", ["accept", "get", "find"])
def test_what_a_failing_engine_prevents_is_done_later(floor: Floor, verb: str) -> None:
    """Whether the call failed or only its answer was lost."""
    engine = floor.open(crash_limit=1)
    let_die(engine, "a", "b")
    failing = deaths(engine, engine.ring)
    engine.down.add(verb)
    with pytest.raises(BackendUnavailable):
        failing.check()
    engine.down.clear()
    engine.lost_answers[verb] = 1
    with pytest.raises(BackendUnavailable):
        failing.check()
    failing.check()
    assert copies(engine).keys() == {"a", "b"}


@every_engine
def test_a_worker_copies_what_it_reaps(floor: Floor) -> None:
    floor.open(lease_s=1.0, crash_limit=1)
    id = floor.put("quick", id="robbed")
    assert floor.engine.claim("default", 1, owner_token=new_owner_token())
    worker = floor.start(dead_letters=TO_FAILED, reap_interval_s=0.1)
    until(lambda: copies(floor.engine), "the copy")
    worker.stop()
    worker.ended()
    assert copies(floor.engine)[id].reason == DeadReason.CRASH_LOOP


@every_engine
def test_a_failed_job_is_copied_once_though_the_answers_are_lost(floor: Floor) -> None:
    ids = [floor.put("fails", max_retries=0) for _ in range(3)]
    floor.engine.lost_answers.update({"exchange": 2, "settle": 2})
    floor.work(dead_letters=TO_FAILED)
    assert copies(floor.engine).keys() == {*ids}
    assert {letter.reason for letter in copies(floor.engine).values()} == {DeadReason.FAILED}


@pytest.fixture
def dying(bench: Bench) -> Callable[..., None]:
    """Lets jobs of the bench die in the reaper."""
    return lambda *ids, **options: let_die(bench.engine, *ids, **options)


def of(bench: Bench, queues: DeadLetterQueues = TO_FAILED) -> UnsettledDeaths:
    return deaths(bench.engine, bench.app.engines.get().signer, queues)


def test_the_option_of_a_job_is_enough(bench: Bench, dying: Callable[..., None]) -> None:
    watcher = of(bench, NONE)
    watcher.check()
    dying("plain")
    dying("own", dead_letter_to="own")
    watcher.reaped([bench.view("own")])
    assert list(copies(bench.engine, "own")) == ["own"]
    assert bench.engine.counts().keys() == {"default", "own"}


def test_a_worker_finds_what_a_killed_one_left_behind(bench: Bench, dying: Callable[..., None]) -> None:
    dying("own", dead_letter_to="own")
    bench.clock.advance(LOOK_BACK.total_seconds() - 1)
    of(bench, NONE).check()
    assert list(copies(bench.engine, "own")) == ["own"]


def test_without_a_queue_there_is_one_check_and_nothing_is_written(
    bench: Bench, dying: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = of(bench, NONE)
    watcher.check()
    dying("plain")

    def find(*_: object, **__: object) -> None:
        pytest.fail("the engine was asked")

    monkeypatch.setattr(bench.engine, "find", find)
    watcher.check()
    watcher.reaped([bench.view("plain")])
    assert bench.engine.state.read(KIND) == []


def test_a_job_with_the_option_that_was_settled_makes_later_checks_necessary(bench: Bench) -> None:
    """Its process died with others, so the engine may have dead-lettered it, and no worker knows."""
    copying = DeadLetterCopies(bench.engine.envelopes, bench.app.engines.get().signer, NONE)
    watcher = UnsettledDeaths(bench.engine, copying)
    watcher.check()
    id = bench.put(dead_letter_to="own")
    for _ in range(bench.engine.policy.crash_limit):
        lease = bench.engine.fetch("default")
        assert lease is not None
        message = bench.app.engines.get().signer.open(lease.wire)
        bench.engine.settle([copying.carried_by(Release(lease=lease, crashed=True), message)])
    assert bench.view(id).dead_reason is DeadReason.CRASH_LOOP
    watcher.check()
    assert list(copies(bench.engine, "own")) == [id]


def test_a_record_that_the_engine_found_damaged_is_copied(bench: Bench) -> None:
    id = bench.put()
    lease = bench.engine.fetch("default")
    assert lease is not None
    bench.engine.abandon(lease, DeadReason.UNDECODABLE)
    of(bench).check()
    assert copies(bench.engine)[id].reason == DeadReason.UNDECODABLE


@pytest.mark.parametrize(
    "wire",
    [
        wire_of(key="theirs:another-key-than-that-of-the-tests", kid="ours", dead_letter_to="own"),
        wire_of(id="another", dead_letter_to="own"),
        wire_of(queue="elsewhere", dead_letter_to="own"),
    ],
    ids=["forged", "of another job", "of another queue"],
)
def test_nothing_unverified_is_signed_for_a_job_that_the_reaper_ended(bench: Bench, wire: bytes) -> None:
    bench.put_wire(wire)
    session = new_session()
    for _ in range(bench.engine.policy.crash_limit):
        assert bench.engine.claim("default", 1, owner_token=new_owner_token(session))
        bench.engine.expire_leases([session])
        bench.engine.reap_expired()
    of(bench).check()
    letter = copies(bench.engine)["smuggled"]
    assert (letter.partial, letter.payload, letter.job, letter.error) == (True, None, None, None)
    assert bench.engine.counts().keys() == {"default", TO}


def test_a_worker_that_reaps_copies_at_once(bench: Bench) -> None:
    copying = DeadLetterCopies(bench.engine.envelopes, bench.app.engines.get().signer, TO_FAILED)
    maintenance = Maintenance(bench.engine, copying, reap_interval_s=10, on_reaped=lambda _: None)
    maintenance.run_due()
    id, session = bench.put(), new_session()
    for _ in range(bench.engine.policy.crash_limit):
        assert copies(bench.engine) == {}
        assert bench.engine.claim("default", 1, owner_token=new_owner_token(session))
        bench.engine.expire_leases([session])
        bench.clock.advance(12)
        maintenance.run_due()
    assert copies(bench.engine).keys() == {id}


def test_a_job_that_is_replayed_before_it_is_copied_is_left_alone(
    bench: Bench, dying: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dying("a")
    real = bench.engine.get

    def get(job_id: str) -> Any:
        bench.engine.replay(job_id)
        return real(job_id)

    monkeypatch.setattr(bench.engine, "get", get)
    of(bench).check()
    assert copies(bench.engine) == {}


def test_deaths_after_the_first_start_are_copied_whenever_a_worker_starts_again(
    bench: Bench, dying: Callable[..., None]
) -> None:
    of(bench).check()
    dying("a")
    bench.clock.advance(2 * LOOK_BACK.total_seconds())
    of(bench).check()
    assert copies(bench.engine).keys() == {"a"}


def forget(bench: Bench, id: str) -> None:
    """Delete a job, and let its id be forgotten."""
    bench.engine.cancel(id)
    assert bench.engine.discard(id, states=(JobState.CANCELLED,))
    bench.clock.advance(3601)
    bench.engine.prune()


def test_a_death_is_not_copied_again_when_its_copy_is_forgotten(bench: Bench, dying: Callable[..., None]) -> None:
    dying("old")
    of(bench).check()
    forget(bench, "old:dead:3")
    of(bench).check()
    assert copies(bench.engine) == {}
    dying("new")
    of(bench).check()
    assert copies(bench.engine).keys() == {"new"}


def test_a_worker_that_stood_still_copies_nothing_twice(
    bench: Bench, dying: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops just before it stores the copies, and goes on when their ids are forgotten."""
    dying("a", "b")
    accept, is_first = bench.engine.accept, True

    def stand_still(*args: Any, **options: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            of(bench).check()
            for id in ("a:dead:3", "b:dead:3"):
                forget(bench, id)
        return accept(*args, **options)

    monkeypatch.setattr(bench.engine, "accept", stand_still)
    of(bench).check()
    assert copies(bench.engine) == {}


def test_many_deaths_are_copied_in_batches(bench: Bench, dying: Callable[..., None]) -> None:
    ids = [f"job-{number:03}" for number in range(120)]
    dying(*ids)
    of(bench).check()
    assert copies(bench.engine).keys() == {*ids}


def test_a_batch_that_was_not_stored_is_copied_later(
    bench: Bench, dying: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of both batches died at the same time, and it takes long until a worker starts."""
    ids = [f"job-{number:03}" for number in range(60)]
    dying(*ids)
    real = bench.engine.accept

    def accept(*args: Any, **options: Any) -> Any:
        if copies(bench.engine):
            raise BackendUnavailable("accept: nobody is there")
        return real(*args, **options)

    with monkeypatch.context() as failing:
        failing.setattr(bench.engine, "accept", accept)
        with pytest.raises(BackendUnavailable):
            of(bench).check()
    assert 0 < len(copies(bench.engine)) < 60
    bench.clock.advance(IDS_KNOWN.total_seconds() + 1)
    of(bench).check()
    assert copies(bench.engine).keys() == {*ids}


def test_a_worker_continues_after_another_one_was_faster(
    bench: Bench, dying: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    of(bench).check()
    dying("a")
    real, calls = bench.engine.accept, 0

    def accept(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        [cell] = bench.engine.state.read(KIND)
        if calls == 1:
            bench.engine.state.write([Put(kind=KIND, key=cell.key, value=cell.value)])
        return real(*args, **options)

    monkeypatch.setattr(bench.engine, "accept", accept)
    of(bench).check()
    assert copies(bench.engine).keys() == {"a"}
    assert calls == 2


def test_workers_with_other_settings_copy_no_job_twice(bench: Bench, dying: Callable[..., None]) -> None:
    dying("a")
    of(bench, DeadLetterQueues(default="elsewhere")).check()
    dying("b")
    of(bench).check()
    assert copies(bench.engine, "elsewhere").keys() == {"a"}
    assert copies(bench.engine).keys() == {"b"}


def test_deaths_from_before_the_setting_are_not_copied(bench: Bench, dying: Callable[..., None]) -> None:
    dying("old")
    bench.clock.advance(LOOK_BACK.total_seconds() + 1)
    of(bench).check()
    dying("new")
    of(bench).check()
    assert copies(bench.engine).keys() == {"new"}


def test_a_job_that_becomes_visible_late_is_copied(bench: Bench, dying: Callable[..., None]) -> None:
    """Its transaction took longer than that of a job that died after it."""
    dying("late")
    assert isinstance(bench.engine, MemoryEngine)
    late = bench.engine.store.records.pop("late")
    bench.clock.advance(60)
    dying("first")
    of(bench).check()
    bench.engine.store.records["late"] = late
    of(bench).check()
    assert copies(bench.engine).keys() == {"first", "late"}


def test_deaths_are_copied_although_the_clock_was_set_back(bench: Bench, dying: Callable[..., None]) -> None:
    dying("first")
    of(bench).check()
    bench.clock.set_back(timedelta(hours=2).total_seconds())
    dying("second")
    of(bench).check()
    assert copies(bench.engine).keys() == {"first", "second"}


def test_a_job_that_cannot_be_copied_does_not_stop_the_others(
    bench: Bench, dying: Callable[..., None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying("a", "bad", "c")
    real = bench.engine.get

    def get(job_id: str) -> Any:
        if job_id == "bad":
            raise ZeroDivisionError("a bug in the engine")
        return real(job_id)

    monkeypatch.setattr(bench.engine, "get", get)
    of(bench).check()
    assert copies(bench.engine).keys() == {"a", "c"}
    assert "job bad: its dead letter could not be copied" in caplog.text


def test_a_worker_in_this_process_copies_what_it_reaps(copying: Bench) -> None:
    id = copying.put()
    for _ in range(copying.engine.policy.crash_limit - 1):
        copying.let_its_worker_die()
        copying.engine.reap_expired()
    copying.let_its_worker_die()
    copying.app.loop(copying.worker, burst=True).run()
    assert copies(copying.engine)[id].reason == DeadReason.CRASH_LOOP


def test_a_lease_that_was_lost_copies_nothing(copying: Bench) -> None:
    taken: list[JobLease] = []

    def lose(context: JobContext) -> None:
        copying.clock.advance(copying.engine.policy.lease_s)
        copying.engine.reap_expired()
        taken.extend(copying.engine.claim("default", 1, owner_token=new_owner_token()))
        raise ValueError(context.id)

    copying.handler(lose)
    copying.put()
    assert copying.turn().status is WorkerStatus.LOST_LEASE
    assert taken
    assert copies(copying.engine) == {}
