"""Tasks of every kind, found by their module's name."""

import asyncio
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django_tasks import TaskContext, task

from holdfast import Cancel, Snooze

ran: list[Any] = []
"""What has run in this process."""


@task()
def add(a: int, b: int = 0) -> int:
    ran.append((a, b))
    return a + b


@task(queue_name="mail", priority=10)
def mail(to: str) -> str:
    ran.append(to)
    return to


@task()
def fail(message: str) -> None:
    ran.append(message)
    raise ValueError(message)


@task(max_retries=0, timeout=5)
def fail_once() -> None:
    raise KeyError("once")


@task()
def unwritable() -> object:
    ran.append("unwritable")
    return object()


@task()
def large() -> str:
    return "x" * 70_000


@task(backend="slow")
def pass_on(a: int) -> str:
    return add.enqueue(a).id


@task()
def shapes() -> dict[str, Any]:
    return {"tuple": (1, 2), "bytes": b"text", "none": None}


@task(takes_context=True)
def told(context: TaskContext, fails: int) -> list[Any]:
    ran.append((context.attempt, context.task_result.id, str(context.task_result.status)))
    if context.attempt <= fails:
        raise RuntimeError("not yet")
    return [context.attempt, context.task_result.task.name]


@task()
async def asks_the_database() -> int:
    def ask() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 6 * 7")
            answer: int = cursor.fetchone()[0]
        return answer

    return await sync_to_async(ask)()


@task()
async def fails_async() -> None:
    raise LookupError("async")


@task(timeout=0.1, max_retries=0)
def takes_too_long() -> None:
    threading.Event().wait(30)


@task(timeout=0.1, max_retries=0)
async def awaits_too_long() -> None:
    await asyncio.sleep(30)


@task()
def query() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connection.connection is not None


@task()
def cancel() -> None:
    raise Cancel("nobody wants it")


@task()
def return_cancel() -> Cancel:
    return Cancel("nobody wants it")


@task()
def snooze() -> Snooze | str:
    ran.append("snoozed")
    return Snooze(0) if len(ran) == 1 else "awake"
