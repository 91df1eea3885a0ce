"""Every log record of a run names the run."""

import asyncio
import json
import logging
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, JobContext
from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.logs import FORMAT_VARIABLE, JsonFormatter, RunFilter, job_fields, log_to_stderr

log = logging.getLogger("shop")


class Kept(logging.Handler):
    """Keeps each record as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(RunFilter())
        self.setFormatter(JsonFormatter())
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(self.format(record)) for record in self.records]


@pytest.fixture
def kept() -> Generator[Kept]:
    handler = Kept()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def hf(tmp_path: Path) -> Generator[Holdfast]:
    with Holdfast("sync://", settings=Settings(), directory=tmp_path) as app:
        yield app


def test_records_of_a_run_carry_its_job_and_others_do_not(hf: Holdfast, kept: Kept) -> None:
    @hf.job(queue="mail", max_retries=1)
    def send(context: JobContext, to: str) -> None:
        log.warning("sending to %s", to)
        if context.attempt == 1:
            raise ConnectionError("again")

    log.warning("before")
    hf.enqueue(hf.define("send", {"to": "ada"}).queue("mail").definition(), id="one")
    before, first, second = kept.documents()
    assert "job_id" not in before
    run = {"job_id": "one", "job": "send", "queue": "mail", "attempt": 1, "delivery": 1}
    assert first.items() >= {**run, "message": "sending to ada", "level": "WARNING", "logger": "shop"}.items()
    assert second.items() >= {**run, "attempt": 2, "delivery": 2}.items()
    assert kept.records[0].job_id is None  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]


def test_coroutines_side_by_side_are_told_apart(hf: Holdfast, kept: Kept) -> None:
    @hf.job
    async def send() -> None:
        async def inside(name: str) -> None:
            await asyncio.sleep(0)
            log.warning(name)

        await asyncio.gather(inside("a"), asyncio.to_thread(log.warning, "b"))

    hf.enqueue(send.define(), id="one")
    assert {(one["message"], one["job_id"]) for one in kept.documents()} == {("a", "one"), ("b", "one")}


def test_what_the_program_says_itself_stays(hf: Holdfast, kept: Kept) -> None:
    @hf.job
    def send() -> dict[str, object]:
        log.warning("mine", extra={"queue": "theirs", "size": 3, "place": Path("x")})
        return job_fields()

    result = send.options(id="one").enqueue().result()
    assert result == {"job_id": "one", "job": "send", "queue": "default", "attempt": 1, "delivery": 1}
    [document] = kept.documents()
    assert (document["queue"], document["size"], document["place"]) == ("theirs", 3, "x")
    assert (document["job_id"], document["message"]) == ("one", "mine")
    assert job_fields() == {}


def test_a_line_is_json_whatever_was_logged() -> None:
    record = logging.makeLogRecord({"msg": "half \ud800", "args": (), "size": 3, "odd": {1j: ["\ud800"]}})
    document = json.loads(JsonFormatter().format(record))
    assert (document["message"], document["size"]) == ("half \ufffd", 3)


def test_an_exception_is_part_of_its_line(kept: Kept) -> None:
    log.error("failed", exc_info=ValueError("no"))
    [document] = kept.documents()
    assert document["exception"].endswith("ValueError: no")
    assert "\n" not in kept.format(kept.records[0])


@pytest.mark.parametrize("chosen", ["json", "text"])
def test_a_worker_prints_the_format_it_is_told(
    chosen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hf: Holdfast
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv(FORMAT_VARIABLE, chosen)
    log_to_stderr()
    [handler] = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr  # pyright: ignore[reportUnknownMemberType]

    @hf.job
    def send() -> None:
        log.warning("sent")

    send.options(id="one").enqueue()
    printed = capsys.readouterr().err
    if chosen == "json":
        assert json.loads(printed).items() >= {"message": "sent", "job_id": "one", "delivery": 1}.items()
    else:
        assert printed.endswith(" WARNING send one: sent\n")
    log.warning("after all")
    printed = capsys.readouterr().err
    assert printed.endswith(" WARNING after all\n") if chosen == "text" else "job_id" not in printed


def test_a_format_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "xml")
    with pytest.raises(ConfigError, match="HOLDFAST_LOG_FORMAT = 'xml': choose text or json"):
        log_to_stderr()
