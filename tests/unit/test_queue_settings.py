"""The default queue and declared queues, from Python."""

import asyncio
from pathlib import Path

import pytest

from holdfast import Holdfast, JobDefinition, Middleware
from holdfast.config import Settings
from holdfast.config.declared import undeclared
from holdfast.errors import DefinitionError
from holdfast.testing import JobKit
from holdfast.values import JobFilter

DECLARED = Settings(queues=("default", "mail"))
MEANT = "queue 'mial' is not declared; did you mean 'mail'?"


def app(settings: Settings, **options: object) -> Holdfast:
    return Holdfast("memory://", settings=settings, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_job_that_names_no_queue_is_on_the_default_queue() -> None:
    with app(Settings(default_queue="mail")) as hf:

        @hf.job
        def send() -> int:
            return 7

        handle = send.enqueue()
        hf.define("other").dispatch()
        hf.enqueue(JobDefinition(handler="plain"))
        hf.enqueue_many([send.define(), JobDefinition(handler="plain", queue="default")])
        assert {queue: sum(states.values()) for queue, states in hf.backend().counts().items()} == {
            "mail": 4,
            "default": 1,
        }
        with hf.worker() as worker:
            loop = hf.loop(worker, max_jobs=1)
            loop.run()
        assert handle.result(0) == 7


def test_the_default_queue_is_where_its_route_leads(tmp_path: Path) -> None:
    with Holdfast(
        f"sqlite:///{tmp_path}/shop.db",
        directory=tmp_path,
        settings=Settings(default_queue="mail"),
        backends={"other": f"sqlite:///{tmp_path}/other.db"},
        routes={"mail": "other"},
    ) as hf:

        @hf.job
        def send() -> None: ...

        made = [send.enqueue(), *hf.dispatch_many([send.define(), send.options(queue="mail").define()])]
        assert [job.queue for job in hf.backend("other").find(JobFilter()).jobs] == ["mail"] * 3
        assert hf.backend().counts() == {}
        assert {send.handle(one.id).status() for one in made} == {hf.handle(made[0].id).status()}


def test_middleware_sees_the_queue_that_the_job_will_be_on() -> None:
    seen: list[str | None] = []

    class Watch(Middleware):
        def before_enqueue(self, definition: JobDefinition) -> None:
            seen.append(definition.queue)

    with app(Settings(default_queue="mail"), middleware=[Watch()]) as hf:
        hf.define("send").dispatch()
        hf.define("send").queue("reports").dispatch()
    assert seen == ["mail", "reports"]


def test_the_testing_kit_uses_the_default_queue() -> None:
    hf = app(Settings(default_queue="mail"))

    @hf.job
    def send() -> None: ...

    with JobKit(hf) as kit:
        send.enqueue()
        kit.assert_enqueued(send, queue="mail")
        assert kit.drain() == {"succeeded": 1}


def test_a_queue_that_is_not_declared_is_refused_with_a_suggestion() -> None:
    with app(DECLARED) as hf:

        @hf.job(queue="mial")
        def send() -> None: ...

        good, bad = send.options(queue="mail"), send.define()
        for enqueue in (
            send.enqueue,
            hf.define("send").queue("mial").dispatch,
            lambda: hf.enqueue(bad),
            lambda: hf.enqueue_many([good.define(), bad]),
            lambda: hf.dispatch_many([bad], ids=["one"]),
            lambda: asyncio.run(send.enqueue_async()),
        ):
            with pytest.raises(DefinitionError, match=f"^{MEANT.replace('?', '[?]')}$"):
                enqueue()
        assert hf.backend().counts() == {}
        good.enqueue()


def test_middleware_cannot_move_a_job_to_a_queue_that_is_not_declared() -> None:
    class Mistake(Middleware):
        def before_enqueue(self, definition: JobDefinition) -> JobDefinition:
            return definition.with_options(queue="mial")

    with app(DECLARED, middleware=[Mistake()]) as hf, pytest.raises(DefinitionError, match="not declared"):
        hf.define("send").dispatch()


@pytest.mark.parametrize(
    ("queue", "declared", "problem"),
    [
        ("mial", (), None),
        ("mail", ("mail",), None),
        ("run-0123456789ab", ("mail",), None),
        ("run-0123456789a", ("mail",), "queue 'run-0123456789a' is not declared; declared queues: mail"),
        ("other", ("default", "mail"), "queue 'other' is not declared; declared queues: default, mail"),
        ("mial", ("default", "mail"), MEANT),
    ],
)
def test_only_declared_and_private_queues_may_be_used(
    queue: str, declared: tuple[str, ...], problem: str | None
) -> None:
    assert undeclared(queue, declared) == problem
