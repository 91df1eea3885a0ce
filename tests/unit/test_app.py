"""`Holdfast` wires the layers together: what a producer and a worker of one application see."""

import asyncio
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

import msgspec
import pytest

import holdfast
from holdfast import (
    Backoff,
    BackoffStrategy,
    DeadReason,
    Handler,
    Holdfast,
    Job,
    JobContext,
    JobHandle,
    JobState,
    Snooze,
)
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.errors import (
    CommandForbidden,
    ConfigError,
    DefinitionError,
    HandlerError,
    IdConflict,
    JobCancelled,
    JobFailed,
    PayloadRejected,
    ResultGone,
)
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.extensions import backoff_of
from holdfast.handlers import Cancel
from holdfast.queues.keyfiles import KEY_FACTS
from holdfast.queues.signing import SigningKey
from holdfast.state.facts import Facts
from holdfast.values import ErrorInfo, WorkerStatus

ONE, TWO = "one:" + "1" * 32, "two:" + "2" * 32


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def hf(clock: ManualClock, tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast("memory://", settings=Settings(), clock=clock, directory=tmp_path) as app:
        yield app


def work(hf: Holdfast, queue: str = "default") -> WorkerStatus:
    """One turn of a worker."""
    worker = hf.worker()
    try:
        return worker.process_once(queue).status
    finally:
        worker.close()


# Functions as jobs


def test_a_job_is_called_like_the_function_it_is(hf: Holdfast) -> None:
    @hf.job
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    assert add(1) == 3
    assert (getattr(add, "__name__", None), add.__doc__, add.key) == ("add", "Add two numbers.", "add")
    assert hf.backend().counts() == {}


def test_calling_a_job_needs_no_engine(tmp_path: Path) -> None:
    hf = Holdfast("sqlite:///nowhere/that/exists.db", settings=Settings(), directory=tmp_path)

    @hf.job
    async def double(number: int) -> int:
        return number * 2

    assert asyncio.run(double(4)) == 8
    assert list(tmp_path.iterdir()) == []


def test_the_types_of_a_call_are_those_of_the_function(hf: Holdfast) -> None:
    @hf.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    @hf.job(queue="mail", priority=9)
    async def send(to: str) -> bool:
        return bool(to)

    assert_type(add(1), int)
    assert_type(add.enqueue(1, b=3), JobHandle[int])
    assert_type(asyncio.run(send("ada")), bool)
    assert isinstance(send, Job)
    with pytest.raises(DefinitionError):
        add.enqueue("one")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError):
        add.enqueue()  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    with pytest.raises(DefinitionError):
        send.define(two="ada")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def test_the_key_is_the_functions_name_or_the_one_given(hf: Holdfast) -> None:
    @hf.job(key="mail.send")
    def send() -> None: ...

    assert send.key == "mail.send"
    assert "mail.send" in hf.registry.keys()  # noqa: SIM118 - not a dict
    assert send.define().handler == "mail.send"


def test_a_key_is_given_only_once(hf: Holdfast) -> None:
    def one() -> None: ...

    def other() -> None: ...

    hf.job(key="mail")(one)
    with pytest.raises(DefinitionError, match="handler key 'mail' is already used by"):
        hf.job(key="mail")(other)
    with pytest.raises(DefinitionError, match="'command' is already used"):
        hf.job(key="command")(other)


WRONG_OPTIONS: dict[str, Callable[[Holdfast], object]] = {
    "queue": lambda hf: hf.job(queue="No Good"),
    "priority": lambda hf: hf.job(priority=10),
    "max_retries": lambda hf: hf.job(max_retries=-1),
    "timeout": lambda hf: hf.job(timeout=-1),
    "timeout as a duration": lambda hf: hf.job(timeout=timedelta(seconds=-1)),
    "delay and run_at": lambda hf: hf.job(delay=1, run_at=datetime(2026, 1, 1, tzinfo=UTC)),
    "run_at without a zone": lambda hf: hf.job(run_at=datetime(2026, 1, 1)),
    "name": lambda hf: hf.job(name="\n"),
    "tags": lambda hf: hf.job(tags=["fine", ""]),
    "meta": lambda hf: hf.job(meta={"a": object()}),
    "backoff": lambda hf: hf.job(backoff=[-1]),
    "key": lambda hf: hf.job(key="no good"),
}


@pytest.mark.parametrize("decorate", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS.keys())
def test_a_wrong_option_is_refused_where_it_is_written(hf: Holdfast, decorate: Callable[[Holdfast], object]) -> None:
    def send() -> None: ...

    with pytest.raises(DefinitionError):
        decorate(hf)(send)  # type: ignore[operator]


def test_an_option_nobody_knows_is_refused(hf: Holdfast) -> None:
    with pytest.raises((DefinitionError, TypeError)):

        @hf.job(prioritty=9)  # type: ignore[call-overload,untyped-decorator] # pyright: ignore
        def send() -> None: ...


def test_a_refused_decoration_leaves_nothing_behind(hf: Holdfast) -> None:
    def send() -> None: ...

    with pytest.raises(DefinitionError):
        hf.job(priority=10)(send)
    assert "send" not in hf.registry.keys()  # noqa: SIM118 - not a dict


def test_a_call_becomes_a_definition_with_the_options_of_the_decorator(hf: Holdfast) -> None:
    at = datetime(2026, 2, 1, tzinfo=UTC)

    @hf.job(
        name="welcome",
        queue="mail",
        priority=7,
        max_retries=1,
        backoff="fixed",
        timeout=timedelta(minutes=1),
        expires=at,
        tags=["a", "b", "a"],
        meta={"k": "v"},
        trace_id="t-1",
        fence=True,
    )
    def send(to: str, copies: int = 1) -> None: ...

    made = send.define("ada", copies=2)
    assert bytes(made.payload) == b'{"to":"ada","copies":2}'
    assert (made.handler, made.name, made.queue, made.priority, made.max_retries) == ("send", "welcome", "mail", 7, 1)
    assert (made.backoff, made.timeout) == (Backoff(strategy=BackoffStrategy.FIXED), 60.0)
    assert (made.expires_at, made.expires_in, made.tags, made.trace_id) == (at, None, ("a", "b"), "t-1")
    assert (bytes(made.meta), made.fence) == (b'{"k":"v"}', True)


def test_options_make_another_job_and_leave_the_first_alone(hf: Holdfast) -> None:
    @hf.job(queue="mail", priority=7)
    def send(to: str) -> None: ...

    urgent = send.options(priority=9, delay=timedelta(seconds=5)).options(expires=60)
    made = urgent.define("ada")
    assert (made.queue, made.priority, made.delay, made.expires_in) == ("mail", 9, 5.0, 60)
    assert (send.define("ada").priority, send.define("ada").delay) == (7, None)
    assert urgent.key == send.key
    with pytest.raises(DefinitionError):
        send.options(priority=99).enqueue("ada")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "missing a required argument: 'to'"),
        (("ada", 1, 2), "too many positional arguments"),
        ((5,), r"parameter 'to': Expected `str`, got `int`"),
        ((object(),), "parameter 'to' cannot be written as JSON"),
    ],
)
def test_a_call_no_worker_could_make_is_refused_and_nothing_is_kept(
    hf: Holdfast, arguments: tuple[object, ...], why: str
) -> None:
    @hf.job
    def send(to: str, copies: int = 1) -> None: ...

    with pytest.raises(DefinitionError, match=why):
        send.enqueue(*arguments)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    assert hf.backend().counts() == {}


# From enqueueing to the result


def test_what_a_worker_returns_is_what_the_handle_gives(hf: Holdfast) -> None:
    @hf.job
    def add(a: int, b: int) -> dict[str, int]:
        print("adding")
        return {"sum": a + b}

    handle = add.enqueue(1, b=2)
    assert handle.status() is JobState.PENDING
    assert work(hf) is WorkerStatus.ACKED
    assert handle.status() is JobState.COMPLETED
    assert handle.result(timeout=0) == {"sum": 3}
    assert hf.handle(handle.id).result() == {"sum": 3}


def test_a_coroutine_function_is_awaited(hf: Holdfast) -> None:
    @hf.job
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    handle = double.enqueue(21)
    work(hf)
    assert handle.result() == 42


def test_a_job_that_fails_for_good_is_a_job_failed(hf: Holdfast) -> None:
    @hf.job(max_retries=0)
    def boom() -> None:
        raise OSError("disk gone")

    handle = boom.enqueue()
    assert work(hf) is WorkerStatus.DEAD_LETTERED
    with pytest.raises(JobFailed, match=rf"job '{handle.id}' is dead \(failed\): OSError: disk gone"):
        handle.result()


def test_a_job_that_fails_waits_for_its_retry_and_the_handle_for_the_job(hf: Holdfast, clock: ManualClock) -> None:
    runs: list[int] = []

    @hf.job
    def flaky(context: JobContext) -> str:
        runs.append(context.attempt)
        if context.attempt == 1:
            raise OSError("not yet")
        return "at last"

    handle = hf.handle(hf.define(flaky.key).backoff([10]).dispatch())
    assert work(hf) is WorkerStatus.REQUEUED
    with pytest.raises(TimeoutError, match="is still failed after 1 s"):
        handle.result(timeout=1)
    assert work(hf) is WorkerStatus.EMPTY
    clock.advance(10)
    assert work(hf) is WorkerStatus.ACKED
    assert handle.result() == "at last"
    assert runs == [1, 2]


def test_an_exception_listed_as_hopeless_is_not_retried(hf: Holdfast) -> None:
    @hf.job(no_retry=[KeyError])
    def look() -> None:
        raise KeyError("gone")

    handle = look.enqueue()
    work(hf)
    with pytest.raises(JobFailed, match="no-retry"):
        handle.result()


def test_a_job_that_cancels_itself_is_a_job_cancelled(hf: Holdfast) -> None:
    @hf.job
    def give_up() -> object:
        return Cancel("no such customer")

    handle = give_up.enqueue()
    assert work(hf) is WorkerStatus.CANCELLED
    with pytest.raises(JobCancelled, match="no such customer"):
        handle.result()


def test_a_job_cancelled_before_it_ran_never_runs(hf: Holdfast) -> None:
    @hf.job
    def send() -> None:
        raise AssertionError("it ran")

    handle = send.enqueue()
    handle.cancel("ordered twice")
    assert work(hf) is WorkerStatus.EMPTY
    with pytest.raises(JobCancelled, match="ordered twice"):
        handle.result()


def test_a_snooze_costs_no_attempt(hf: Holdfast, clock: ManualClock) -> None:
    @hf.job
    def wait(context: JobContext) -> object:
        return Snooze(30) if hf.handle(context.id).view().deliveries < 3 else "awake"

    handle = hf.handle(hf.define(wait.key).max_retries(0).dispatch())
    for _ in range(2):
        assert work(hf) is WorkerStatus.RELEASED
        assert handle.status() is JobState.SCHEDULED
        clock.advance(30)
    work(hf)
    assert handle.result() == "awake"
    assert handle.view().attempts == 0


def test_a_result_too_large_to_keep_is_gone_but_the_job_is_done(hf: Holdfast) -> None:
    @hf.job
    def report() -> str:
        return "x" * 70_000

    handle = report.enqueue()
    assert work(hf) is WorkerStatus.ACKED
    with pytest.raises(ResultGone, match="completed, but the result was not stored: it has 70,002 bytes"):
        handle.result()


def test_a_job_that_expired_is_not_started(hf: Holdfast, clock: ManualClock) -> None:
    @hf.job(expires=5)
    def send() -> None:
        raise AssertionError("it ran")

    handle = send.enqueue()
    clock.advance(5)
    assert work(hf) is WorkerStatus.CANCELLED
    with pytest.raises(JobCancelled, match="expired"):
        handle.result()


def test_the_same_id_with_the_same_content_is_one_job(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    once = send.options(id="mail-1")
    assert once.enqueue("ada").id == once.enqueue("ada").id == "mail-1"
    assert hf.backend().counts() == {"default": {JobState.PENDING: 1}}
    with pytest.raises(IdConflict, match="job 'mail-1' already exists with different content, so nothing was enqueued"):
        once.enqueue("eve")


def test_many_jobs_are_kept_together_or_not_at_all(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    ids = hf.enqueue_many(send.define(f"customer {number}") for number in range(50))
    assert len(set(ids)) == 50
    assert hf.backend().counts() == {"default": {JobState.PENDING: 50}}

    def some_wrong() -> Iterator[holdfast.JobDefinition]:
        yield send.define("ada")
        yield send.define(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    with pytest.raises(DefinitionError):
        hf.enqueue_many(some_wrong())
    assert hf.backend().counts() == {"default": {JobState.PENDING: 50}}
    assert hf.enqueue_many([]) == []


def test_a_definition_has_no_id_and_says_where_to_give_it(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    refused = (
        "a definition has no id, so 'mail-1' would be lost; pass it to "
        "hf.enqueue(definition, id=...), or several to hf.enqueue_many(definitions, ids=[...])"
    )
    with pytest.raises(DefinitionError) as problem:
        send.options(id="mail-1").define("ada")
    assert str(problem.value) == refused
    with pytest.raises(DefinitionError) as problem:
        hf.define("send", {"to": "ada"}).id("mail-1").definition()
    assert str(problem.value) == refused


def test_many_jobs_are_kept_under_the_ids_that_were_given(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    definitions = [send.define(to) for to in ("ada", "bob", "eve")]
    first, new, last = hf.enqueue_many(definitions, ids=iter(["mail-1", None, "mail-3"]))
    assert (first, last) == ("mail-1", "mail-3")
    assert new not in ("mail-1", "mail-3")
    # Again: what is there already is not added.
    assert asyncio.run(hf.enqueue_many_async(definitions[::2], ids=["mail-1", "mail-3"])) == ["mail-1", "mail-3"]
    assert hf.backend().counts() == {"default": {JobState.PENDING: 3}}
    with pytest.raises(IdConflict, match="mail-3"):
        hf.enqueue_many(definitions, ids=["mail-1", "mail-3", "mail-4"])
    with pytest.raises(DefinitionError, match="2 ids for 3 definitions; pass one for each"):
        hf.enqueue_many(definitions, ids=["mail-1", "mail-2"])
    with pytest.raises(DefinitionError, match="is not a valid job id"):
        hf.enqueue_many(definitions, ids=["mail-1", "mail-3", "-"])
    assert hf.backend().counts() == {"default": {JobState.PENDING: 3}}


def test_ids_in_one_text_are_refused(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    definitions = [send.define("ada"), send.define("bob")]
    refused = r"^ids must be a list with one id for each definition, like \['xy'\], not a string$"
    with pytest.raises(DefinitionError, match=refused):
        hf.enqueue_many(definitions, ids="xy")
    with pytest.raises(DefinitionError, match=refused):
        asyncio.run(hf.enqueue_many_async(definitions, ids="xy"))
    assert hf.backend().counts() == {}


def test_what_is_no_definition_is_refused_with_how_to_make_one(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    def refusal(call: Callable[..., object], *given: Any) -> str:
        with pytest.raises(DefinitionError) as problem:
            call(*given)
        return str(problem.value)

    def many_async(definitions: Any) -> object:
        return asyncio.run(hf.enqueue_many_async(definitions))

    for call in (hf.enqueue_many, many_async):
        assert refusal(call, [send]) == "send is not a job definition; pass send.define(...)"
        assert refusal(call, [send.define("ada"), 1]) == (
            "1 is not a job definition; pass job.define(...) or builder.definition()"
        )
        assert refusal(call, send.define("ada")) == (
            "pass a list of definitions, like [job.define(...), ...], not one JobDefinition"
        )
    assert refusal(hf.enqueue, send) == "send is not a job definition; pass send.define(...)"
    assert hf.backend().counts() == {}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("delay", "send.enqueue(...)"),
        ("send", "send.enqueue(...)"),
        ("kiq", "await send.enqueue_async(...)"),
        ("apply_async", "send.options(delay=...).enqueue(...)"),
        ("using", "send.options(...)"),
        ("enqueue_many", "hf.enqueue_many([send.define(...), ...])"),
    ],
)
def test_a_method_of_another_job_queue_is_answered_with_ours(hf: Holdfast, name: str, instead: str) -> None:
    @hf.job(key="mail.send")
    def send(to: str) -> None: ...

    assert not hasattr(send, name)
    with pytest.raises(AttributeError) as problem:
        getattr(send, name)
    assert str(problem.value) == f"'Job' object has no attribute '{name}'; write  {instead}"


@pytest.mark.parametrize("name", ["task", "actor", "shared_task"])
def test_a_decorator_of_another_job_queue_is_answered_with_ours(hf: Holdfast, name: str) -> None:
    assert not hasattr(hf, name)
    with pytest.raises(AttributeError, match=f"^'Holdfast' object has no attribute '{name}'; write  @hf.job$"):
        getattr(hf, name)


def test_other_attributes_are_missing_without_a_hint_and_jobs_can_be_copied(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    with pytest.raises(AttributeError, match=r"^'Job' object has no attribute 'enqueu'$"):
        send.enqueu  # type: ignore[attr-defined] # noqa: B018 # pyright: ignore
    with pytest.raises(AttributeError, match=r"^'Holdfast' object has no attribute 'queu'$"):
        hf.queu  # type: ignore[attr-defined] # noqa: B018 # pyright: ignore
    assert copy(send).define("ada") == send.define("ada")


def test_a_job_option_among_the_arguments_is_answered_with_how_to_set_it(hf: Holdfast) -> None:
    @hf.job
    def send(to: str, priority: int = 0) -> None: ...

    with pytest.raises(
        DefinitionError,
        match=r"'delay'.*; to set job options, write  send\.options\(delay=\.\.\.\)\.enqueue\(\.\.\.\)$",
    ):
        send.enqueue("ada", delay=5)  # type: ignore[call-overload] # pyright: ignore
    with pytest.raises(DefinitionError) as problem:
        send.enqueue(priority=1)  # type: ignore[call-overload] # pyright: ignore
    assert "job options" not in str(problem.value)


def test_the_decorator_takes_options_one_by_one(hf: Holdfast) -> None:
    mail = hf.job(queue="mail", max_retries=1)
    send = mail(max_retries=2, key="send-twice")(lambda to: None)  # pyright: ignore[reportUnknownLambdaType]
    assert (send.key, send.template.queue, send.template.max_retries) == ("send-twice", "mail", 2)
    assert hf.jobs["send-twice"] is send


def test_a_backoff_is_written_for_a_function_as_on_the_command_line(hf: Holdfast) -> None:
    @hf.job(backoff="fixed:1s")
    def send(to: str) -> None: ...

    assert send.define("ada").backoff == Backoff(strategy=BackoffStrategy.FIXED, base=1)
    assert send.options(backoff="1s,1m").define("ada").backoff == Backoff(delays=(1, 60))


def test_an_id_must_be_text(hf: Holdfast) -> None:
    @hf.job
    def send(to: str) -> None: ...

    with pytest.raises(DefinitionError, match=r"^a job id must be a string, like 'mail-7', not 7$"):
        send.options(id=7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match=r"^a job id must be a string, like 'mail-7', not 7$"):
        hf.enqueue_many([send.define("ada")], ids=[7])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]


def test_a_definition_can_be_enqueued_again_and_again(hf: Holdfast) -> None:
    definition = hf.define("mail.send", {"to": "ada"}).priority(8).definition()
    assert hf.enqueue(definition) != hf.enqueue(definition)
    assert hf.enqueue(definition, id="mine") == "mine"


def test_the_fluent_way_ends_in_dispatch(hf: Holdfast) -> None:
    job_id = hf.define("mail.send", {"to": "ada"}).queue("mail").id("job1").dispatch()
    assert job_id == "job1"
    assert hf.handle(job_id).view().queue == "mail"


# Classes as handlers, and who may run what


def test_a_handler_class_is_registered_under_its_key(hf: Holdfast) -> None:
    @hf.handler("shout")
    class Shout(Handler):
        payload_type = list[str]

        def handle(self, context: JobContext) -> object:
            return [word.upper() for word in context.payload]

    assert Shout.__name__ == "Shout"
    job_id = hf.define("shout", ["a", "b"]).dispatch()
    assert work(hf) is WorkerStatus.ACKED
    assert hf.handle(job_id).result() == ["A", "B"]


def test_a_handler_nobody_has_here_waits_for_a_worker_that_has_it(hf: Holdfast) -> None:
    job_id = hf.define("unknown").dispatch()
    assert work(hf) is WorkerStatus.RELEASED
    assert hf.handle(job_id).status() is JobState.SCHEDULED
    assert hf.handle(job_id).view().attempts == 0


@pytest.mark.parametrize("where", ["argument", "settings"])
def test_a_queue_runs_only_what_its_allowlist_names(tmp_path: Path, where: str) -> None:
    listed = {"mail": ("send",), "closed": ()}
    settings = Settings(allowlist=listed if where == "settings" else {"mail": ()})
    allowlist = listed if where == "argument" else None
    with Holdfast("memory://", settings=settings, allowlist=allowlist, directory=tmp_path) as hf:
        for name in ("send", "other"):
            hf.registry.register(name, lambda: None)
        expected = {
            ("send", "mail"): JobState.COMPLETED,
            ("other", "mail"): JobState.DEAD,
            ("send", "closed"): JobState.DEAD,
            ("other", "default"): JobState.COMPLETED,
        }
        for (name, queue), state in expected.items():
            job_id = hf.define(name).queue(queue).dispatch()
            work(hf, queue)
            view = hf.handle(job_id).view()
            assert (name, queue, view.state) == (name, queue, state)
            assert state is JobState.COMPLETED or view.dead_reason is DeadReason.HANDLER_FORBIDDEN
        with pytest.raises(HandlerError):
            hf.registry.resolve_for("other", "mail")


@pytest.mark.parametrize("where", ["argument", "settings"])
def test_commands_are_forbidden_until_they_are_allowed(tmp_path: Path, where: str) -> None:
    settings = Settings(allowed_commands=("true",) if where == "settings" else ("false",))
    allowed = ["true"] if where == "argument" else None
    with Holdfast("memory://", settings=settings, allowed_commands=allowed, directory=tmp_path) as hf:
        good = hf.define("command", {"argv": ["true"]}).dispatch()
        forbidden = hf.define("command", {"argv": ["rm"]})
        with pytest.raises(CommandForbidden, match="holdfast config set allowed-commands true,rm"):
            forbidden.dispatch()
        with pytest.raises(CommandForbidden):
            hf.enqueue_many([hf.define("command", {"argv": ["true"]}).definition(), forbidden.definition()])
        with pytest.raises(DefinitionError, match="a command job needs a payload like"):
            hf.define("command", {"command": "true"}).dispatch()
        bad = hf.backend().enqueue(forbidden.definition())  # from elsewhere, where it was allowed
        assert (work(hf), work(hf)) == (WorkerStatus.ACKED, WorkerStatus.REJECTED)
        assert hf.handle(good).result() == {"exit_code": 0}
        view = hf.handle(bad).view()
        assert view.dead_reason is DeadReason.HANDLER_FORBIDDEN
        assert "holdfast config set allowed-commands true,rm" in (view.last_error or "")


# The settings at work


def test_the_settings_are_the_defaults_of_jobs(tmp_path: Path) -> None:
    settings = Settings(max_retries=7, timeout=12.0, lease=9.0, crash_limit=2, retain_completed=5.0, retain_dead=0.0)
    with Holdfast("memory://", settings=settings, directory=tmp_path) as hf:
        view = hf.handle(hf.define("mail").dispatch()).view()
        assert (view.max_retries, view.timeout) == (7, 12.0)
        policy = hf.backend().policy
        assert (policy.lease_s, policy.crash_limit, policy.retain_completed_s) == (9.0, 2, 5.0)
        assert policy.retain_dead_s is None


@pytest.mark.parametrize(
    ("settings", "delays"),
    [
        (Settings(), [2, 4, 8, 16]),
        (Settings(backoff_base=5), [5, 25, 125, 300]),
        (Settings(backoff_base=5, backoff_multiplier=2), [5, 10, 20, 40]),
        (Settings(backoff_base=0.5), [0.5, 0.5, 0.5, 0.5]),
        (Settings(backoff="linear", backoff_base=10, backoff_max=25), [10, 20, 25, 25]),
        (Settings(backoff="fixed", backoff_base=600), [600, 600, 600, 600]),
        (Settings(backoff="none"), [0, 0, 0, 0]),
        (Settings(backoff="1s,5s,1m"), [1, 5, 60, 60]),
        (Settings(backoff="10m", backoff_base=5), [600, 600, 600, 600]),
        (Settings(backoff="exponential:5s,max=30s", backoff_max=7), [5, 10, 20, 30]),
    ],
)
def test_the_settings_of_the_backoff_give_these_delays(settings: Settings, delays: list[float]) -> None:
    policy = BackoffPolicy(msgspec.structs.replace(backoff_of(settings), jitter=0))
    assert [policy.delay(attempt) for attempt in range(2, 6)] == delays


def test_the_base_of_the_backoff_is_also_its_multiplier() -> None:
    settings = Settings(backoff="linear", backoff_base=3.0, backoff_max=50.0, backoff_jitter=0.0)
    assert backoff_of(settings) == Backoff(
        strategy=BackoffStrategy.LINEAR, base=3.0, multiplier=3.0, max=50.0, jitter=0.0
    )
    assert backoff_of(Settings(backoff_base=0.5)).multiplier == 1.0


def test_a_policy_of_ones_own_decides_about_retries(tmp_path: Path, clock: ManualClock) -> None:
    class Hourly:
        def delay(self, attempt: int, error: ErrorInfo | None) -> float:
            return 3600.0

    policy: RetryPolicy = Hourly()
    with Holdfast("memory://", settings=Settings(), retry_policy=policy, clock=clock, directory=tmp_path) as hf:

        @hf.job
        def boom() -> None:
            raise OSError

        handle = boom.enqueue()
        work(hf)
        assert handle.view().due_at == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_what_workers_do_is_counted(hf: Holdfast) -> None:
    metrics = holdfast.InMemoryMetrics()
    with Holdfast("memory://", settings=Settings(), metrics=metrics) as counted:

        @counted.job(queue="mail")
        def send() -> None: ...

        send.enqueue()
        work(counted, "mail")
    assert metrics.total("jobs_fetched", "mail") == metrics.total("jobs_succeeded", "mail") == 1


def test_the_project_of_a_directory_says_where_the_jobs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    (tmp_path / "holdfast.toml").write_text("max-retries = 9\n")
    with Holdfast(directory=tmp_path) as hf:
        assert hf.deployment.location() == str(tmp_path / ".holdfast" / "jobs.db")
        assert hf.settings.max_retries == 9
    (tmp_path / "holdfast.toml").write_text('url = "memory://"\n')
    assert Holdfast(directory=tmp_path).deployment.url() == "memory://"
    assert Holdfast("sync://", directory=tmp_path).deployment.url() == "sync://"


def test_the_location_is_the_path_of_the_file(tmp_path: Path) -> None:
    project = tmp_path / "c#"
    project.mkdir()
    (project / "holdfast.toml").touch()
    assert Holdfast(directory=project).deployment.location() == str(project / ".holdfast" / "jobs.db")


def test_a_password_is_not_part_of_the_location(tmp_path: Path) -> None:
    hf = Holdfast("postgres://ada:hunter2@host/db", settings=Settings(), directory=tmp_path)
    assert hf.deployment.location() == "postgres://ada:…@host/db"


def test_closing_lets_go_and_the_next_use_opens_again(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/jobs.db", settings=Settings(), directory=tmp_path)
    hf.close()
    hf.define("mail").id("job1").dispatch()
    first = hf.backend()
    assert hf.backend() is first
    hf.close()
    assert hf.handle("job1").status() is JobState.PENDING
    assert hf.backend() is not first
    hf.close()


def test_the_schema_can_be_prepared_beforehand(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/jobs.db", settings=Settings(), directory=tmp_path)
    hf.create_schema()
    hf.create_schema()
    assert (tmp_path / "jobs.db").stat().st_size > 0


# Signing keys


def shop(path: Path, signing_key: str | None = None, settings: Settings | None = None) -> Holdfast:
    return Holdfast(
        f"sqlite:///{path}/jobs.db", settings=settings or Settings(), signing_key=signing_key, directory=path
    )


def test_another_key_than_the_queues_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with shop(tmp_path, ONE) as hf:
        hf.define("mail").dispatch()
    with pytest.raises(ConfigError, match=r"signed with another key, .*\(HOLDFAST_SIGNING_KEY=new,old\)"):
        shop(tmp_path, TWO).backend()


def test_a_key_with_which_nothing_was_signed_binds_nobody(tmp_path: Path) -> None:
    with shop(tmp_path, ONE) as hf:
        assert hf.backend().counts() == {}
    with shop(tmp_path, TWO) as hf:
        hf.define("mail").dispatch()


def test_a_new_key_before_the_old_one_takes_over(tmp_path: Path) -> None:
    def send() -> None: ...

    with shop(tmp_path, ONE) as hf:
        old = hf.define("send").dispatch()
    with shop(tmp_path, f"{TWO},{ONE}") as hf:
        hf.job(send)
        new = hf.define("send").dispatch()
        assert work(hf) is WorkerStatus.ACKED
        assert hf.handle(old).status() is JobState.COMPLETED
        assert Facts(hf.backend().state).of(KEY_FACTS) == {SigningKey.parse(key).fingerprint for key in (ONE, TWO)}
    with shop(tmp_path, TWO) as hf:
        hf.job(send)
        assert work(hf) is WorkerStatus.ACKED
        assert hf.handle(new).status() is JobState.COMPLETED


@pytest.mark.parametrize("key", [ONE, None], ids=["given", "beside the file"])
def test_another_installation_name_is_refused_like_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.delenv("HOLDFAST_SIGNING_KEY", raising=False)
    production, staging = Settings(installation="production"), Settings(installation="staging")
    with shop(tmp_path, key, production) as hf:
        hf.define("mail").dispatch()
    message = r"for an installation other than 'staging'.*the jobs were signed for \(HOLDFAST_INSTALLATION\)"
    with pytest.raises(ConfigError, match=message):
        shop(tmp_path, key, staging).backend()
    with shop(tmp_path, key, production) as hf:
        assert hf.backend().counts()


def test_a_job_of_another_installation_with_the_same_key_is_never_run(tmp_path: Path) -> None:
    for name in ("production", "staging"):
        (tmp_path / name).mkdir()
    runs: list[str] = []

    def mail() -> None:
        runs.append("ran")

    with (
        shop(tmp_path / "production", ONE, Settings(installation="production")) as production,
        shop(tmp_path / "staging", ONE, Settings(installation="staging")) as staging,
    ):
        production.job(mail)
        moved = staging.backend().envelopes.make(holdfast.JobDefinition(handler="mail"), id="moved")
        production.backend().accept([moved])
        assert work(production) is WorkerStatus.REJECTED
        view = production.handle("moved").view()
        assert (view.state, view.dead_reason, runs) == (JobState.DEAD, DeadReason.BAD_SIGNATURE, [])


def test_only_the_key_that_signs_is_remembered(tmp_path: Path) -> None:
    with shop(tmp_path, f"{ONE},{TWO}") as hf:
        assert Facts(hf.backend().state).of(KEY_FACTS) == {SigningKey.parse(ONE).fingerprint}


def test_the_key_made_beside_the_file_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_SIGNING_KEY", raising=False)
    for _ in range(2):
        with shop(tmp_path) as hf:
            hf.define("mail").dispatch()
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", ONE)
    with pytest.raises(ConfigError, match="another key"):
        shop(tmp_path).backend()


def test_a_key_file_of_the_settings_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_SIGNING_KEY", raising=False)
    key_file = tmp_path / "shop.key"
    key_file.write_text(TWO)
    key_file.chmod(0o600)
    with shop(tmp_path, settings=Settings(signing_key_file=str(key_file))) as hf:
        assert Facts(hf.backend().state).of(KEY_FACTS) == {SigningKey.parse(TWO).fingerprint}
    assert not (tmp_path / "signing.key").exists()


def test_unsigned_jobs_are_dead_as_soon_as_signatures_count(tmp_path: Path) -> None:
    with shop(tmp_path, settings=Settings(verify=False, allow_unsigned=True)) as hf:
        job_id = hf.define("mail").dispatch()
    with shop(tmp_path, ONE) as hf:
        assert work(hf) is WorkerStatus.REJECTED
        assert hf.handle(job_id).view().dead_reason is DeadReason.BAD_SIGNATURE


# Jobs that run where they are enqueued


@pytest.fixture
def sync(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast("sync://", settings=Settings(), directory=tmp_path) as app:
        yield app


def test_a_sync_job_has_run_when_enqueue_returns(sync: Holdfast) -> None:
    @sync.job(delay=timedelta(days=1))
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.enqueue(1, 2)
    assert handle.id.startswith("sync-")
    assert handle.result(timeout=0) == 3


def test_a_sync_job_is_retried_without_waiting(sync: Holdfast) -> None:
    runs: list[int] = []

    @sync.job
    def flaky(context: JobContext) -> int:
        runs.append(context.attempt)
        if context.attempt < 4:
            raise OSError("not yet")
        return context.attempt

    job_id = sync.define(flaky.key).max_retries(4).backoff([3600]).dispatch()
    assert sync.handle(job_id).result() == 4
    assert runs == [1, 2, 3, 4]


def test_a_sync_job_that_fails_is_reported_to_the_caller(sync: Holdfast) -> None:
    @sync.job(max_retries=1)
    def boom() -> None:
        raise OSError("disk gone")

    with pytest.raises(JobFailed, match="OSError: disk gone"):
        boom.enqueue()


def test_a_payload_that_cannot_travel_is_refused_in_sync_too(sync: Holdfast) -> None:
    @sync.job
    def send(to: object) -> None: ...

    with pytest.raises(PayloadRejected):
        send.enqueue(object())


# The package


def test_every_public_name_is_there_and_no_other_is_made_up() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Holdfest'"):
        holdfast.Holdfest  # noqa: B018


def test_an_option_that_is_none_is_answered_with_the_nearest() -> None:
    hf = Holdfast("memory://")
    options: dict[str, Any] = {"max_retry": 3}
    with pytest.raises(DefinitionError, match=r"did you mean 'max_retries'\? known options: .*key, .*no_retry, "):
        hf.job(**options)(print)
    with pytest.raises(DefinitionError, match=r"'countdown' is not a job option; did you mean 'delay'\?"):
        hf.job(countdown=3)(print)  # type: ignore[call-overload] # pyright: ignore
    job = hf.job(key="say")(lambda: None)
    with pytest.raises(DefinitionError, match=r"did you mean 'max_retries'\? known options: after, backoff, "):
        job.options(**options)
