"""Calls as users write them. Where a line ends with `# wrong`, and nowhere else, every type checker finds an error."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_type

from holdfast import AsyncJobHandle, Backoff, Holdfast, JobContext, JobHandle

hf = Holdfast("memory://")


@dataclass
class Receipt:
    order: int


@hf.job
def charge(order: int, amount: float = 1.0, *, at: datetime | None = None) -> Receipt:
    return Receipt(order)


@hf.job(queue="mail", max_retries=5)
async def send(to: str, copies: Sequence[str] = ()) -> int:
    return len(copies)


@hf.job(key="tidy")
def tidy() -> None: ...


def plain_calls() -> None:
    assert_type(charge(1), Receipt)
    charge("1")  # wrong
    charge()  # wrong
    charge(1, currency="EUR")  # wrong


def enqueued() -> None:
    assert_type(charge.enqueue(1, 2.5, at=datetime.now()), JobHandle[Receipt])
    assert_type(charge.enqueue(1).result(), Receipt)
    assert_type(send.enqueue("ada").result(timeout=1), int)
    assert_type(tidy.enqueue().result(), None)
    charge.enqueue("1")  # wrong
    charge.enqueue(1, amount="much")  # wrong
    charge.enqueue(1, at="now")  # wrong
    charge.enqueue()  # wrong
    send.enqueue(to="ada", copies=[1])  # wrong
    tidy.enqueue(1)  # wrong


def with_options() -> None:
    assert_type(charge.options(delay=5, priority=9).enqueue(1), JobHandle[Receipt])
    charge.options(delay=5).enqueue("1")  # wrong
    charge.options(delays=5)  # wrong
    charge.options(priority="high")  # wrong
    charge.options(timeout="5m", delay=timedelta(hours=1), expires="2d", idempotency_key="k", idempotency_ttl=60)
    charge.options(timeout=[5])  # wrong
    charge.options(backoff=0.05).options(backoff=timedelta(minutes=1)).options(backoff="fixed:10s")
    charge.options(backoff=[1, "5s", timedelta(minutes=1)]).options(backoff=Backoff(base=3))
    charge.options(backoff={"base": 5})  # wrong
    hf.define("mail").timeout("5m").delay("1h").backoff(0.05).unique("k", unique_for="10m")
    hf.define("mail").timeout(datetime.now())  # wrong
    hf.define("mail").after(tidy.enqueue(), "import-7", on_parent_failure="wait").after("b")
    hf.define("mail").after(7)  # wrong
    hf.enqueue_many([charge.define(1), send.define("ada")])
    charge.define("1")  # wrong


def after_other_jobs(waiting: AsyncJobHandle[int]) -> None:
    parts = [charge.enqueue(1), charge.enqueue(2)]
    assert_type(tidy.options(after=parts).enqueue(), JobHandle[None])
    tidy.options(after=[*parts, waiting, "import-7"], on_parent_failure="run").options(after=("a", "b"))
    tidy.options(after=parts[0])  # wrong
    tidy.options(after=[7])  # wrong
    tidy.options(after=parts, on_parent_failure="retry")  # wrong


async def asynchronously() -> None:
    assert_type(await send("ada"), int)
    handle = await send.enqueue_async("ada")
    assert_type(handle, AsyncJobHandle[int])
    assert_type(await handle.result(), int)
    await send.enqueue_async(1)  # wrong
    await charge.enqueue_async(order="1")  # wrong


def in_a_transaction(connection: object) -> None:
    assert_type(charge.enqueue(1, tx=connection).result(), Receipt)


@hf.job
def with_context(context: JobContext, order: int) -> Receipt:
    return Receipt(order)


@hf.job(queue="mail")
async def async_with_context(context: JobContext, to: str) -> int:
    return 1


def the_context_is_not_part_of_the_call(context: JobContext) -> None:
    assert_type(with_context.enqueue(1).result(), Receipt)
    assert_type(with_context.options(delay=5).enqueue(order=1), JobHandle[Receipt])
    assert_type(async_with_context.enqueue("ada").result(), int)
    assert_type(with_context(context, 1), Receipt)
    with_context.enqueue("1")  # wrong
    with_context.enqueue(context, 1)  # wrong
    with_context.define()  # wrong
    async_with_context.enqueue(to=1)  # wrong
    with_context(1)  # wrong


@hf.job
def loose(value: object, times: int = 1) -> str:
    return str(value)


def what_takes_anything_takes_anything() -> None:
    assert_type(loose.enqueue(1, times=2).result(), str)
    loose.enqueue(value="x")
    loose(5)
