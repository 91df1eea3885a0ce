"""`JobKit`: what a test of an application enqueues, lets run, and learns of it."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import pytest

from holdfast import Cancel, Handler, Holdfast, JobContext, JobState, Snooze
from holdfast.config import Settings
from holdfast.definition import JobDefinition
from holdfast.errors import (
    DefinitionError,
    HandlerForbidden,
    HoldfastError,
    JobFailed,
    NotSupported,
    PayloadRejected,
    UniqueConflict,
)
from holdfast.middleware import Middleware
from holdfast.testing import Drained, JobKit
from holdfast.values import CancelAnswer

RAN: list[object] = []


class Refused(Exception):
    """Of the tests' own jobs."""


@dataclass
class Address:
    street: str
    city: str


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    """An application as a module would have it: on a file, which no test may make."""
    RAN.clear()
    return Holdfast("sqlite:///real/jobs.db", settings=Settings(), directory=tmp_path)


@pytest.fixture
def kit(app: Holdfast) -> Iterator[JobKit]:
    with JobKit(app) as kit:
        yield kit


# Standing in


def test_the_application_is_on_memory_only_within_the_kit(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/jobs.db", settings=Settings(), directory=tmp_path)

    @hf.job
    def add(a: int) -> int:
        return a + 1

    with hf:
        before = add.enqueue(1)
        opened = hf.backend()
        with JobKit(hf) as kit:
            add.enqueue(2)
            assert kit.drain() == {"succeeded": 1}
            assert hf.backend() is not opened
        assert hf.backend() is opened
        assert hf.backend().counts() == {"default": {JobState.PENDING: 1}}
        assert before.status() is JobState.PENDING


def test_an_application_that_was_never_opened_stays_so(app: Holdfast, tmp_path: Path) -> None:
    job = app.job(noted)
    with JobKit(app):
        job.enqueue()
    assert list(tmp_path.iterdir()) == []


def noted() -> None:
    RAN.append("ran")


def test_closing_the_application_within_the_kit_loses_nothing_and_opens_nothing_else(kit: JobKit) -> None:
    job = kit.app.job(noted)
    with kit.app:
        job.enqueue()
    job.enqueue()
    assert kit.drain() == {"succeeded": 2}


def test_all_is_put_back_also_when_the_test_fails(app: Holdfast) -> None:
    with pytest.raises(Refused), JobKit(app):
        raise Refused
    assert app.deployment.url() == "sqlite:///real/jobs.db"


def test_kits_stand_within_each_other(app: Holdfast) -> None:
    job = app.job(noted)
    with JobKit(app) as outer:
        job.enqueue()
        with JobKit(app) as inner:
            inner.refute_enqueued()
            job.enqueue()
        outer.assert_enqueued(job, count=1)


def test_a_kit_outside_its_block_raises(app: Holdfast) -> None:
    kit = JobKit(app)
    with pytest.raises(RuntimeError, match="with JobKit"):
        kit.drain()
    with kit, pytest.raises(RuntimeError, match="already"):
        kit.__enter__()
    with pytest.raises(TypeError, match="takes a Holdfast application, not 'shop'"):
        JobKit("shop")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_settings_and_policies_are_the_applications_own(tmp_path: Path) -> None:
    settings = Settings(max_retries=1, backoff="fixed", backoff_base=90, backoff_jitter=0)
    hf = Holdfast("sqlite:///real/jobs.db", settings=settings, directory=tmp_path, allowlist={"mail": ["other"]})
    fail = hf.job(failing)
    with JobKit(hf) as kit:
        start = kit.now()
        fail.enqueue()
        fail.options(queue="mail").enqueue()
        assert kit.drain() == {"retried": 1, "dead": 2}
        assert timedelta(seconds=90) <= kit.now() - start < timedelta(seconds=180)


def failing() -> None:
    RAN.append("failing")
    raise Refused("no")


# Manual mode and draining


def test_a_job_waits_for_drain(kit: JobKit) -> None:
    handle = kit.app.job(noted).enqueue()
    assert (RAN, handle.status()) == ([], JobState.PENDING)
    assert kit.drain() == {"succeeded": 1}
    assert (RAN, handle.status()) == (["ran"], JobState.COMPLETED)
    assert kit.drain() == {}


def test_scheduled_jobs_run_in_the_order_of_their_time_and_no_time_is_spent(kit: JobKit) -> None:
    @kit.app.job
    def note(name: str) -> None:
        RAN.append(name)

    start = kit.now()
    note.options(delay=timedelta(days=2)).enqueue("late")
    note.options(run_at=start + timedelta(hours=1), queue="other").enqueue("soon")
    note.enqueue("now")
    assert kit.drain() == {"succeeded": 3}
    assert RAN == ["now", "soon", "late"]
    assert timedelta(days=2) <= kit.now() - start < timedelta(days=2, minutes=5)


def test_retried_snoozed_and_recursive_jobs_are_drained(kit: JobKit) -> None:
    @kit.app.job(max_retries=2)
    def flaky() -> int:
        RAN.append("flaky")
        if RAN.count("flaky") < 3:
            raise Refused("not yet")
        return 3

    @kit.app.job
    def patient() -> object:
        RAN.append("patient")
        return Snooze(3600) if RAN.count("patient") < 3 else None

    @kit.app.job
    def countdown(number: int) -> None:
        if number:
            countdown.options(delay=60).enqueue(number - 1)

    handle = flaky.enqueue()
    patient.enqueue()
    countdown.enqueue(3)
    assert kit.drain() == {"retried": 2, "succeeded": 6, "snoozed": 2}
    assert handle.result() == 3


def test_within_a_drain_time_only_moves_to_the_next_job(kit: JobKit) -> None:
    seen: list[datetime] = []

    @kit.app.job
    def patient() -> object:
        seen.append(kit.now())
        return Snooze(3600) if len(seen) < 3 else None

    patient.enqueue()
    kit.drain()
    assert [later - seen[0] for later in seen] == [timedelta(hours=hours) for hours in range(3)]
    assert kit.now() > seen[-1]


def test_every_end_is_counted(kit: JobKit) -> None:
    @kit.app.job
    def stop() -> object:
        return Cancel("not needed")

    stop.enqueue()
    kit.app.job(failing).options(max_retries=0).enqueue()
    kit.app.job(noted).options(expires=60, delay=120).enqueue()
    kit.app.define("elsewhere").dispatch()
    drained = kit.drain()
    assert drained == {"cancelled": 2, "dead": 1, "unknown": 1}
    assert drained["succeeded"] == 0
    assert drained.errors[0] == f"failing: {Refused.__module__}.Refused: no"
    assert "no handler 'elsewhere'" in drained.errors[1]
    assert "Refused: no" in repr(drained)
    assert_type(drained, Drained)


def test_a_drain_can_be_of_some_queues_and_of_some_time(kit: JobKit) -> None:
    job = kit.app.job(noted)
    for changed in (
        job.options(queue="mail"),
        job.options(queue="slow"),
        job.options(delay=60),
        job.options(delay=3600),
    ):
        changed.enqueue()
    assert kit.drain(queue="mail") == {"succeeded": 1}
    assert kit.drain(queue=["slow", "unknown"], within=0) == {"succeeded": 1}
    assert kit.drain(within=timedelta(minutes=5)) == {"succeeded": 1}
    assert kit.drain(within=30) == {}
    assert kit.drain() == {"succeeded": 1}


def test_a_paused_queue_is_left_alone(kit: JobKit) -> None:
    kit.app.job(noted).enqueue()
    kit.app.backend().pause("default")
    assert kit.drain() == {}
    kit.app.backend().resume("default")
    assert kit.drain() == {"succeeded": 1}


def test_a_job_that_never_ends_is_named(kit: JobKit) -> None:
    @kit.app.job
    def again() -> None:
        again.enqueue()

    @kit.app.job
    def sleepy() -> object:
        return Snooze(1)

    again.enqueue()
    sleepy.enqueue()
    with pytest.raises(AssertionError, match=r"still waiting after 50 runs: .*'again' succeeded \d+ times.*forever\?"):
        kit.drain(limit=50)


def test_errors_are_raised_on_request_from_the_jobs_own(kit: JobKit) -> None:
    kit.app.job(max_retries=1)(failing).enqueue()
    kit.app.job(noted).options(delay=9999).enqueue()
    with pytest.raises(JobFailed, match=r"\(failing\) is dead: .*Refused: no") as caught:
        kit.drain(raise_errors=True)
    assert isinstance(caught.value.__cause__, Refused)
    assert RAN == ["failing", "failing", "ran"]


def test_a_job_cannot_drain(kit: JobKit) -> None:
    @kit.app.job(max_retries=0)
    def greedy() -> None:
        kit.drain()

    greedy.enqueue()
    with pytest.raises(JobFailed, match="a job cannot call drain"):
        kit.drain(raise_errors=True)


@pytest.mark.parametrize("options", [{"queue": "No Good"}, {"within": -1}, {"limit": 0}])
def test_wrong_options_of_a_drain_are_refused(kit: JobKit, options: dict[str, object]) -> None:
    with pytest.raises((DefinitionError, ValueError)):
        kit.drain(**options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_waiting_for_a_job_that_never_runs_raises(kit: JobKit) -> None:
    handle = kit.app.job(noted).enqueue()
    with pytest.raises(TimeoutError, match="still pending after 5 s"):
        handle.result(timeout=5)
    with pytest.raises(TimeoutError, match=r"call drain\(\) before you ask for the result"):
        handle.result()
    kit.drain()
    assert handle.result() is None


def test_what_a_job_prints_is_the_tests_to_see(kit: JobKit, capsys: pytest.CaptureFixture[str]) -> None:
    @kit.app.job
    def speak() -> None:
        print("hello")

    speak.enqueue()
    kit.drain()
    kit.perform(speak)
    assert capsys.readouterr().out == "hello\nhello\n"


def test_a_cancelled_job_does_not_run(kit: JobKit) -> None:
    assert kit.app.job(noted).enqueue().cancel() is CancelAnswer.CANCELLED
    assert kit.drain() == {}


def test_clearing_forgets_everything(kit: JobKit) -> None:
    kit.app.job(noted).enqueue()
    kit.clear()
    kit.refute_enqueued()
    assert kit.drain() == {}
    assert kit.app.backend().counts() == {}


def test_what_is_enqueued_after_clearing_runs(kit: JobKit) -> None:
    job = kit.app.job(noted)
    job.enqueue()
    kit.clear()
    handle = job.enqueue()
    kit.drain()
    assert handle.status() is JobState.COMPLETED


def test_time_passes_when_the_test_lets_it(kit: JobKit) -> None:
    handle = kit.app.job(noted).options(delay=60).enqueue()
    assert handle.status() is JobState.SCHEDULED
    kit.advance("1m")
    assert handle.status() is JobState.PENDING
    kit.clock.travel_to(datetime(2100, 1, 1, tzinfo=UTC))
    assert kit.now().year == 2100
    with pytest.raises(ValueError, match="cannot be advanced"):
        kit.advance(-1)


# Inline mode


def test_inline_a_job_runs_where_it_is_enqueued(app: Holdfast) -> None:
    @app.job
    def double(number: int) -> int:
        return number * 2

    with JobKit(app, inline=True) as kit:
        assert double.enqueue(4).result() == 8
        assert app.enqueue_many([double.define(1), double.options(delay=99).define(2)])
        kit.assert_enqueued(double, count=3)
        with kit.manual():
            assert double.enqueue(5).status() is JobState.PENDING


def test_inline_what_a_job_enqueues_follows_it(kit: JobKit) -> None:
    @kit.app.job
    def inner() -> None:
        RAN.append("inner")

    @kit.app.job
    def outer() -> None:
        inner.enqueue()
        RAN.append("outer")

    with kit.inline():
        outer.enqueue()
        assert RAN == ["outer", "inner"]
        kit.perform(outer)
    assert RAN == ["outer", "inner", "outer", "inner"]


def test_inline_a_dead_job_is_raised_unless_it_is_not_to_be(kit: JobKit) -> None:
    job = kit.app.job(failing)
    with kit.inline():
        with pytest.raises(JobFailed) as caught:
            job.enqueue()
        assert isinstance(caught.value.__cause__, Refused)
        assert len(RAN) == 4
        with pytest.raises(JobFailed, match=r"cannot run here: .*no handler 'elsewhere'"):
            kit.app.define("elsewhere").dispatch()
    with kit.inline(raise_errors=False):
        assert job.enqueue().status() is JobState.DEAD


def test_inline_a_job_of_an_open_transaction_waits(kit: JobKit) -> None:
    job = kit.app.job(noted)
    with kit.inline():
        assert job.enqueue(tx=object()).status() is JobState.PENDING
        assert kit.drain() == {"succeeded": 1}


def test_inline_from_another_thread(kit: JobKit) -> None:
    job = kit.app.job(noted)
    with kit.inline():
        thread = threading.Thread(target=job.enqueue)
        thread.start()
        thread.join()
    assert RAN == ["ran"]


# Performing one job


def test_performing_a_job_returns_what_it_returns(kit: JobKit) -> None:
    @kit.app.job
    def ship(to: Address, on: datetime, parts: tuple[int, ...] = (1, 2)) -> Address:
        assert isinstance(to, Address)
        assert isinstance(on, datetime)
        assert parts == (1, 2)
        return to

    @kit.app.job
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    shipped = kit.perform(ship, Address("Main Street", "Ghent"), on=datetime.now(UTC))
    assert_type(shipped, Address)
    assert shipped == Address("Main Street", "Ghent")
    doubled = kit.perform(double, 4)
    assert_type(doubled, int)
    assert doubled == 8
    kit.refute_enqueued()


def test_performing_gives_the_handler_what_the_wire_makes_of_it(kit: JobKit) -> None:
    @kit.app.job
    def loose(value: object) -> object:
        return value

    assert kit.perform(loose, (1, 2)) == [1, 2]
    with pytest.raises(PayloadRejected, match="parameter 'value'"):
        kit.perform(loose, object())


def test_performing_raises_what_the_job_raises_and_retries_nothing(kit: JobKit) -> None:
    with pytest.raises(Refused, match="no"):
        kit.perform(kit.app.job(failing))
    assert RAN == ["failing"]

    @kit.app.job
    def later() -> None:
        raise Snooze(60)

    @kit.app.job
    def never() -> Cancel:
        return Cancel("not needed")

    with pytest.raises(Snooze):
        kit.perform(later)
    assert kit.perform(never).reason == "not needed"


def test_perform_applies_the_jobs_timeout(kit: JobKit) -> None:
    @kit.app.job(timeout=0.01)
    def endless() -> None:
        threading.Event().wait(60)

    with pytest.raises(TimeoutError, match="job 'endless' was stopped"):
        kit.perform(endless)


def test_performing_a_definition_can_be_any_attempt(kit: JobKit) -> None:
    @kit.app.handler("mail.send")
    class Send(Handler):
        payload_type = Address

        def handle(self, context: JobContext) -> object:
            return context.payload.city, context.attempt

    builder = kit.app.define("mail.send", {"street": "s", "city": "Ghent"})
    assert kit.perform(builder) == ("Ghent", 1)
    assert kit.perform(builder.definition(), attempt=3) == ("Ghent", 3)
    with pytest.raises(DefinitionError, match="the payload does not fit"):
        kit.perform(kit.app.define("mail.send", {"street": 1}))
    with pytest.raises(TypeError, match="only attempt="):
        kit.perform(builder.definition(), 3)  # type: ignore[call-overload] # pyright: ignore
    with pytest.raises(ValueError, match="attempt must be 1 or more, not 0"):
        kit.perform(builder.definition(), attempt=0)
    assert Send.payload_type is Address


def test_performing_a_job_that_has_an_id_runs_it_under_that_id(kit: JobKit) -> None:
    @kit.app.job
    def who(context: JobContext) -> str:
        return context.id

    assert kit.perform(who.options(id="one")) == "one"
    assert kit.perform(kit.app.define(who.key, {}).id("two")) == "two"


def test_performing_obeys_the_allowlist(tmp_path: Path) -> None:
    hf = Holdfast("memory://", settings=Settings(), directory=tmp_path, allowlist={"default": []})
    with JobKit(hf) as kit, pytest.raises(HandlerForbidden):
        kit.perform(hf.job(noted))


def test_a_handler_that_uses_a_transaction_raises_with_advice(kit: JobKit) -> None:
    @kit.app.handler("write")
    class Write(Handler):
        def handle(self, context: JobContext) -> object:
            return context.transaction()

    with pytest.raises(NotSupported, match="on its own engine"):
        kit.perform(kit.app.define("write"))
    assert Write.is_async is False


# Async tests


def test_async_jobs_share_the_loop_of_the_test(kit: JobKit) -> None:
    @kit.app.job
    async def where() -> bool:
        await asyncio.sleep(0)
        RAN.append(asyncio.get_running_loop())
        return True

    plain = kit.app.job(noted)

    async def test() -> None:
        where.enqueue()
        plain.enqueue()
        assert await kit.drain_async() == {"succeeded": 2}
        assert_type(await kit.perform_async(where), bool)
        await kit.perform_async(plain)
        loop = asyncio.get_running_loop()
        assert [ran == "ran" or ran is loop for ran in RAN] == [True] * 4

    asyncio.run(test())


def test_an_async_drain_raises_like_the_other(kit: JobKit) -> None:
    @kit.app.job(max_retries=1)
    async def broken() -> None:
        raise Refused("no")

    broken.enqueue()
    with pytest.raises(JobFailed) as caught:
        asyncio.run(kit.drain_async(raise_errors=True))
    assert isinstance(caught.value.__cause__, Refused)
    with pytest.raises(Refused):
        asyncio.run(kit.perform_async(broken))


def test_a_plain_drain_within_a_loop_runs_async_jobs_all_the_same(kit: JobKit) -> None:
    @kit.app.job
    async def where() -> None:
        await asyncio.sleep(0)

    async def test() -> Drained:
        where.enqueue()
        return kit.drain()

    assert asyncio.run(test()) == {"succeeded": 1}


def test_inline_jobs_of_coroutines_follow_them(kit: JobKit) -> None:
    @kit.app.job
    async def outer() -> None:
        await asyncio.to_thread(inner.enqueue)
        RAN.append("outer")

    @kit.app.job
    def inner() -> None:
        RAN.append("inner")

    async def test() -> None:
        with kit.inline():
            await kit.perform_async(outer)

    asyncio.run(test())
    assert RAN == ["outer", "inner"]


def test_a_job_of_another_application_is_refused(kit: JobKit, tmp_path: Path) -> None:
    other = Holdfast("memory://", settings=Settings(), directory=tmp_path)
    with pytest.raises(DefinitionError, match="job 'noted' does not belong to the application"):
        kit.perform(other.job(noted))


# Ownership


def test_a_completed_idempotency_key_skips_the_next_job_of_its_handler(kit: JobKit, app: Holdfast) -> None:
    @app.job
    def charge(order: str) -> str:
        RAN.append(order)
        return f"paid {order}"

    first = charge.options(idempotency_key="order-7").enqueue("7")
    second = charge.options(idempotency_key="order-7").enqueue("7 again")
    other = charge.options(idempotency_key="order-8").enqueue("8")
    assert kit.drain() == {"succeeded": 2, "skipped": 1}
    assert RAN == ["7", "8"]
    assert [handle.result() for handle in (first, second, other)] == ["paid 7", "paid 7", "paid 8"]
    kit.assert_enqueued(charge, {"order": "8"}, idempotency_key="order-8")


def test_a_failed_run_does_not_complete_its_idempotency_key(kit: JobKit, app: Holdfast) -> None:
    @app.job(max_retries=1, idempotency_key="k")
    def flaky() -> str:
        RAN.append("run")
        if len(RAN) == 1:
            raise Refused
        return "done"

    flaky.enqueue()
    assert kit.drain() == {"retried": 1, "succeeded": 1}
    flaky.enqueue()
    assert kit.drain() == {"skipped": 1}


def test_a_held_key_blocks_the_job_until_it_is_free(kit: JobKit, app: Holdfast) -> None:
    @app.job(concurrency_key="customer-7")
    def sync(context: JobContext) -> int:
        return context.fence

    with kit.held("key:customer-7"):
        handle = sync.enqueue()
        assert kit.drain() == {"blocked": 1}
        assert (handle.status(), handle.view().blocked_on) == (JobState.BLOCKED, "key:customer-7")
        with pytest.raises(HoldfastError, match="the key 'key:customer-7' is already held"), kit.held("key:customer-7"):
            pass
    with pytest.raises(DefinitionError, match="'customer-7' is not a key; write key:NAME"), kit.held("customer-7"):
        pass
    assert kit.drain() == {"succeeded": 1}
    assert handle.result() > 0
    kit.assert_enqueued(sync, concurrency_key="customer-7")
    kit.refute_enqueued(sync, concurrency_key="customer-8")


def test_a_unique_job_is_enqueued_once_and_says_so(kit: JobKit, app: Holdfast) -> None:
    @app.job(unique=True)
    def rebuild(index: str, deep: bool = False) -> None:
        RAN.append(index)

    first, again, other = rebuild.enqueue("a"), rebuild.enqueue("a"), rebuild.enqueue("b")
    assert [handle.outcome for handle in (first, again, other)] == ["created", "existing", "created"]
    assert again.id == first.id
    kit.assert_enqueued(rebuild, count=2, unique=True)
    assert kit.drain() == {"succeeded": 2}
    assert rebuild.enqueue("a").outcome == "created"


def test_a_replaced_job_runs_once_with_its_latest_arguments(kit: JobKit, app: Holdfast) -> None:
    @app.job(unique="index", unique_for="waiting", on_conflict="replace", delay=60)
    def rebuild(version: int) -> None:
        RAN.append(version)

    handles = [rebuild.enqueue(version) for version in (1, 2, 3)]
    assert [handle.outcome for handle in handles] == ["created", "replaced", "replaced"]
    assert len({handle.id for handle in handles}) == 1
    assert kit.drain() == {"succeeded": 1}
    assert RAN == [3]
    kit.assert_enqueued(rebuild, unique="index", unique_for="waiting", on_conflict="replace")
    kit.refute_enqueued(rebuild, unique="other")


def test_a_running_job_is_not_replaced(kit: JobKit, app: Holdfast) -> None:
    outcomes: list[object] = []

    @app.job(unique="index", on_conflict="replace")
    def rebuild(version: int) -> None:
        if version == 1:
            outcomes.append(rebuild.enqueue(2).outcome)

    rebuild.enqueue(1)
    assert kit.drain() == {"succeeded": 1}
    assert outcomes == ["existing"]


def test_a_rejected_job_names_the_one_that_has_the_key(kit: JobKit, app: Holdfast) -> None:
    @app.job(unique="index", on_conflict="reject")
    def rebuild() -> None: ...

    first = rebuild.enqueue()
    with pytest.raises(UniqueConflict, match=f"job '{first.id}' already has the unique key 'rebuild/index'"):
        rebuild.enqueue()
    many = app.dispatch_many(
        [rebuild.options(unique=key, on_conflict="ignore").define() for key in ("index", "x", "x")]
    )
    assert [handle.outcome for handle in many] == ["existing", "created", "existing"]


def test_hooks_get_the_ids_of_the_jobs_that_exist(app: Holdfast) -> None:
    ids: list[str] = []

    class Noting(Middleware):
        def after_enqueue(self, definition: JobDefinition, job_id: str) -> None:
            ids.append(job_id)

    hf = Holdfast("memory://", settings=Settings(), middleware=[Noting()])
    send = hf.job(key="send", unique="k")(lambda: None)
    first, second = send.enqueue(), send.enqueue()
    assert ids == [first.id, second.id] == [first.id, first.id]


def test_a_limited_queue_delays_its_jobs_and_no_others(app: Holdfast) -> None:
    hf = Holdfast("memory://", settings=Settings(limits={"mail": "60/min"}))
    times: list[tuple[str, float]] = []
    with JobKit(hf) as kit:
        began = kit.now()

        @hf.job
        def note(name: str) -> None:
            times.append((name, round((kit.now() - began).total_seconds())))

        for number in range(3):
            note.options(queue="mail").enqueue(f"mail {number}")
        note.options(delay=1.5).enqueue("other")
        assert kit.drain(within=1.7) == {"succeeded": 3}
        assert times == [("mail 0", 0), ("mail 1", 1), ("other", 2)]
        assert kit.drain() == {"succeeded": 1}
        assert times[-1] == ("mail 2", 2)
        assert hf.limiter(queue="mail").usage().available == 0


def test_a_job_with_a_rate_limit_is_put_off_to_its_time(kit: JobKit, app: Holdfast) -> None:
    @app.job(rate_limit="1/h", rate_key="tenant-3")
    def sync(number: int) -> None:
        RAN.append(number)

    began = kit.now()
    for number in range(3):
        sync.enqueue(number)
    assert kit.drain() == {"succeeded": 3, "rate_limited": 2}
    assert RAN == [0, 1, 2]
    assert (kit.now() - began).total_seconds() == pytest.approx(7200, abs=60)
    kit.assert_enqueued(sync, count=3, rate_limit="1/h", rate_key="tenant-3")
    kit.refute_enqueued(sync, rate_limit="2/h")


def test_a_limit_of_ones_own_code_snoozes_the_job(kit: JobKit, app: Holdfast) -> None:
    maps = app.limiter("maps", "60/min")

    @app.job
    def locate() -> None:
        maps.throttle()

    for _ in range(2):
        locate.enqueue()
    assert kit.drain() == {"succeeded": 2, "snoozed": 1}


def test_inline_jobs_wait_for_their_limit_in_simulated_time(app: Holdfast) -> None:
    hf = Holdfast("sync://", settings=Settings(limits={"mail": "1/h"}))
    send = hf.job(queue="mail", key="send")(lambda: RAN.append("sent"))
    with hf:
        for _ in range(3):
            send.enqueue()
    assert RAN == ["sent"] * 3


# Dependencies


def test_a_drain_runs_parents_before_their_children(app: Holdfast, kit: JobKit) -> None:
    @app.job
    def step(context: JobContext) -> str:
        RAN.append((context.id, dict(context.results)))
        return context.id

    parents = {"d": ["b", "c"], "c": ["a"], "b": ["a"], "a": []}
    app.enqueue_many([step.options(after=after).define() for after in parents.values()], ids=parents)
    kit.assert_enqueued(step, count=2, after=["a"])
    kit.assert_enqueued(step, id="d", after=[app.handle("c"), "b"])
    kit.refute_enqueued(step, after=["c"])
    assert kit.drain() == {"succeeded": 4}
    assert RAN == [("a", {}), ("c", {"a": "a"}), ("b", {"a": "a"}), ("d", {"b": "b", "c": "c"})]


def test_a_parent_that_dies_cancels_its_children(app: Holdfast, kit: JobKit) -> None:
    @app.job(max_retries=1)
    def fails() -> None:
        raise Refused

    @app.job
    def step() -> None: ...

    parent = fails.enqueue()
    child = step.options(after=[parent]).enqueue()
    last = step.options(after=[child]).enqueue()
    other = step.options(after=[parent], on_parent_failure="run").enqueue()
    assert kit.drain() == {"retried": 1, "dead": 1, "succeeded": 1}
    states = [handle.status() for handle in (child, last, other)]
    assert states == [JobState.CANCELLED, JobState.CANCELLED, JobState.COMPLETED]


def test_inline_a_child_finds_its_parent_completed(app: Holdfast, kit: JobKit) -> None:
    @app.job
    def double(context: JobContext, number: int = 0) -> int:
        return 2 * (number or sum(context.results.values()))

    with kit.inline():
        first = double.enqueue(1)
        assert double.options(after=[first]).enqueue().result() == 4
    assert kit.perform(double.options(after=[first]).define()) == 4
