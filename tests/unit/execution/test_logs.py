"""What a job logs is stored with what it prints: once, without configuration, and without other records."""

import asyncio
import logging
import logging.config
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.execution.logs import logs_captured
from holdfast.execution.output import Output
from holdfast.execution.runtime import JobRuntime
from holdfast.handlers import JobContext
from holdfast.handlers.registry import Registrable

from .conftest import redirected

if TYPE_CHECKING:
    from tests.unit.execution.conftest import Bench

theirs = logging.getLogger("shop.orders")


pytestmark = pytest.mark.usefixtures("unconfigured_logging")


@pytest.fixture(params=["entered", "not entered"])
def run(request: pytest.FixtureRequest, bench: "Bench") -> Generator[Callable[..., str]]:
    """The output of one run, in both of the ways a runtime is used."""

    def output(handler: Registrable, payload: object = None, **members: Any) -> str:
        return bench.run(handler, payload, **members).output

    with bench.runtime if request.param == "entered" else nullcontext():
        yield output


Run = Callable[..., str]


class Seen(logging.Handler):
    """A program's own handler."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_what_a_job_logs_is_in_its_output_where_it_was_logged(run: Run) -> None:
    def work(context: JobContext) -> None:
        print("first")
        context.log.info("order %d", 7)
        theirs.warning("slow")
        logging.error("by the root logger")
        print("last")

    expected = "first\nINFO holdfast.job: order 7\nWARNING shop.orders: slow\nERROR root: by the root logger\nlast\n"
    assert run(work) == expected


def test_a_coroutine_and_the_thread_it_asks_are_heard_too(run: Run) -> None:
    async def work() -> None:
        theirs.warning("one")
        await asyncio.create_task(asyncio.to_thread(theirs.warning, "two"))

    assert run(work) == "WARNING shop.orders: one\nWARNING shop.orders: two\n"


def test_a_thread_of_the_job_is_heard_too(run: Run) -> None:
    def work() -> None:
        thread = threading.Thread(target=theirs.warning, args=("from a thread",))
        thread.start()
        thread.join()

    assert run(work) == "WARNING shop.orders: from a thread\n"


def test_an_exception_that_is_logged_is_kept_with_its_traceback(run: Run) -> None:
    def work() -> None:
        try:
            os.environ["STOCK"]
        except KeyError:
            theirs.exception("gave up")

    output = run(work)
    assert output.startswith("ERROR shop.orders: gave up\nTraceback (most recent call last):\n")
    assert output.endswith("KeyError: 'STOCK'\n")


def test_a_record_that_cannot_be_written_fails_nobody(run: Run) -> None:
    def work() -> None:
        theirs.warning("%d items", "many")
        print("went on")

    output = run(work)
    assert "--- Logging error ---" in output
    assert output.endswith("went on\n")


@pytest.mark.parametrize(
    ("configured", "kept"),
    [
        ({}, "INFO WARNING"),
        ({"root": logging.DEBUG}, "DEBUG INFO WARNING"),
        ({"holdfast": logging.DEBUG}, "DEBUG INFO WARNING"),
        ({"holdfast.job": logging.DEBUG}, "DEBUG INFO WARNING"),
        ({"holdfast.job": logging.WARNING}, "WARNING"),
        ({"root": logging.ERROR}, "INFO WARNING"),
    ],
)
def test_the_jobs_logger_keeps_info_unless_told_otherwise(
    bench: "Bench", configured: dict[str, int], kept: str
) -> None:
    def work(context: JobContext) -> None:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            context.log.log(level, "x")

    for name, level in configured.items():
        logging.getLogger(name).setLevel(level)
    output = bench.run(work).output
    assert output.split()[::3] == kept.split()


def test_a_level_configured_after_the_first_run_counts(bench: "Bench") -> None:
    def work(context: JobContext) -> None:
        context.log.debug("now")

    bench.registry.register("work", work)
    assert bench.run(work).output == ""
    logging.getLogger().setLevel(logging.DEBUG)
    assert bench.run(work).output == "DEBUG holdfast.job: now\n"


@pytest.mark.parametrize(("root_level", "seen"), [(logging.WARNING, ["warned"]), (logging.INFO, ["told", "warned"])])
def test_the_programs_own_log_gets_what_it_asked_for_and_no_more(run: Run, root_level: int, seen: list[str]) -> None:
    own = Seen()
    logging.getLogger().addHandler(own)
    logging.getLogger().setLevel(root_level)

    def work(context: JobContext) -> None:
        context.log.info("told")
        context.log.warning("warned")

    assert run(work) == "INFO holdfast.job: told\nWARNING holdfast.job: warned\n"
    assert own.messages == seen


def test_a_handler_of_theirs_on_the_real_stream_writes_there_and_once(
    bench: "Bench", capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    with bench.runtime:
        assert bench.run(lambda: theirs.warning("slow")).output == "WARNING shop.orders: slow\n"
    assert capsys.readouterr().err == "slow\n"


def test_a_handler_of_theirs_on_a_stream_that_is_caught_says_it_in_its_own_words_only(run: Run) -> None:
    def work() -> None:
        handler = logging.StreamHandler(sys.stdout)
        handler.setLevel(logging.ERROR)
        handler.setFormatter(logging.Formatter("<%(message)s>"))
        logging.getLogger("shop").addHandler(handler)
        theirs.error("broken")
        theirs.warning("slow")

    assert run(work) == "<broken>\nWARNING shop.orders: slow\n"


def test_what_is_logged_outside_of_jobs_is_not_kept_and_fares_as_ever(
    bench: "Bench", capsys: pytest.CaptureFixture[str]
) -> None:
    with bench.runtime:
        theirs.warning("nobody's, and no handler")
        theirs.info("nobody's, and not asked for")
        logging.getLogger("holdfast.job").info("nobody's either")
        assert bench.run(lambda: None).output == ""
        own = Seen()
        logging.getLogger().addHandler(own)
        theirs.warning("nobody's, for their handler")
    assert capsys.readouterr().err == "nobody's, and no handler\n"
    assert own.messages == ["nobody's, for their handler"]


def test_what_we_log_on_other_threads_is_not_the_jobs(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        thread = threading.Thread(target=logging.getLogger("holdfast.keeper").warning, args=("cannot renew",))
        thread.start()
        thread.join()

    assert run(work) == ""
    assert capsys.readouterr().err == "cannot renew\n"


def test_with_several_jobs_at_once_each_keeps_its_own(bench: "Bench") -> None:
    both = threading.Barrier(2, timeout=10)

    def work(n: int) -> None:
        both.wait()
        theirs.warning("job %d", n)
        both.wait()

    outputs = ["", ""]
    bench.registry.register("work", work)

    def job(n: int) -> None:
        outputs[n] = bench.run(work, {"n": n}, identifier=f"job{n}").output

    with bench.runtime:
        threads = [threading.Thread(target=job, args=(n,)) for n in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outputs == ["WARNING shop.orders: job 0\n", "WARNING shop.orders: job 1\n"]


def configure_anew() -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "root": {"level": "INFO"}})


def configure_by_force() -> None:
    logging.basicConfig(force=True, handlers=[Seen()])


@pytest.mark.parametrize("configure", [configure_anew, configure_by_force])
def test_a_configuration_made_while_the_runtime_is_entered_does_not_end_it(
    bench: "Bench", configure: Callable[[], None]
) -> None:
    with bench.runtime:
        configure()
        assert bench.run(lambda: theirs.warning("heard")).output == "WARNING shop.orders: heard\n"


def test_the_tee_hears_what_is_logged(bench: "Bench") -> None:
    heard: list[str] = []
    bench.runtime = JobRuntime(bench.registry, tee=heard.append)
    bench.run(lambda: theirs.warning("slow"))
    assert heard == ["WARNING shop.orders: slow\n"]


def test_a_receiver_that_fails_is_not_reported_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    output = Output(tee=broken)
    with logs_captured(), redirected(output):
        print("hello")
    assert output.text() == "hello\n"
    assert "live output stopped" in capsys.readouterr().err
