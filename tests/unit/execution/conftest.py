"""One attempt of one handler, without a queue."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.codec import JobMessage, encode_payload
from holdfast.execution.output import Output
from holdfast.execution.runtime import JobRuntime
from holdfast.handlers import HandlerRegistry
from holdfast.handlers.registry import Registrable
from holdfast.values import ExecutionResult, JobLease

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Bench:
    """A runtime on a bench: give it a handler and a payload, get the result of one attempt."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry({"closed": []})
        self.runtime = JobRuntime(self.registry)

    def message(self, payload: object = None, **members: Any) -> JobMessage:
        message = JobMessage(
            v=1,
            job="work",
            payload=encode_payload(payload),
            queue="default",
            max_retries=3,
            identifier="job1",
            timeout=30.0,
            created_at=NOW,
        )
        return msgspec.structs.replace(message, **members)

    def lease(self, *, attempts: int = 0) -> JobLease:
        return JobLease(
            id="job1",
            queue="default",
            wire=b"",
            token=1,
            owner_token="owner",
            ttl_s=60.0,
            claimed_at=NOW,
            fence_at=0.0,
            delivery=1,
            attempts=attempts,
        )

    def run(
        self,
        handler: Registrable,
        payload: object = None,
        *,
        attempts: int = 0,
        **members: Any,
    ) -> ExecutionResult:
        self.registry.register("work", handler)
        message = self.message(payload, **members)
        return self.runtime.run(message, self.lease(attempts=attempts))


@contextmanager
def redirected(output: Output) -> Generator[None]:
    """Capture what the block prints, as for a job."""
    token = output.catch()
    try:
        yield
    finally:
        output.let_go(token)


@pytest.fixture
def bench() -> Generator[Bench]:
    bench = Bench()
    yield bench
    bench.runtime.close()


@pytest.fixture
def unconfigured_logging() -> None:
    """Logging as Python starts with: no handler, the root at WARNING. See `pytest_runtest_call`."""


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Take the handlers away that pytest puts on the root logger for each phase of a test; no fixture can."""
    if "unconfigured_logging" not in getattr(item, "fixturenames", ()):
        return (yield)
    names = ("root", "holdfast", "holdfast.job", "shop", "shop.orders")
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).handlers[:]) for name in names}
    for name in names:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.WARNING if name == "root" else logging.NOTSET)
    try:
        return (yield)
    finally:
        for name, (level, handlers) in before.items():
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).handlers[:] = handlers
