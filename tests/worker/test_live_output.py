"""What jobs print can be read while they run, and after their worker has crashed."""

import os
import signal
import time
from collections.abc import Sequence

import pytest

from holdfast.errors import BackendUnavailable
from holdfast.execution.output import Output
from holdfast.queues.contract import LIVE_OUTPUT_BYTES
from holdfast.values import JobLease, JobState, LiveOutput, Outcome
from holdfast.worker.executors.process import Flight
from holdfast.worker.live_output import SHOWN_AFTER_S, LiveOutputs

from ..faults.processes import until
from ..servers.places import every_engine
from .bench import Bench
from .floor import Floor
from .test_settlements import flight

LINES = 20_000
LAST = f"line {LINES - 1}\n"
ALL = len("".join(f"line {number}\n" for number in range(LINES)))


@every_engine
def test_what_a_job_has_printed_is_seen_while_it_runs_and_then_in_its_record(floor: Floor) -> None:
    id = floor.put("prints", {"lines": 2})
    floor.start()
    assert seen(floor, id) == LiveOutput(text="line 0\nline 1\n")
    floor.open_gate(id)
    floor.reached(id, JobState.COMPLETED)
    assert floor.history(id).live_output is None
    assert floor.records(id)[0].output == "line 0\nline 1\n"


def test_of_a_job_that_prints_very_much_the_end_is_seen(floor: Floor) -> None:
    id = floor.put("prints", {"lines": LINES})
    floor.start()
    output = until(lambda: end_of(floor, id), "the last line")
    assert output is not None
    assert output.end == ALL
    assert LIVE_OUTPUT_BYTES - 3 <= len(output.text) <= LIVE_OUTPUT_BYTES


def test_a_child_that_dies_leaves_the_beginning_and_the_end_of_what_it_had_printed(floor: Floor) -> None:
    id = floor.put("prints", {"lines": LINES}, max_retries=0)
    floor.start()
    until(lambda: end_of(floor, id), "the last line")
    os.kill(floor.ledger("start")[0].pid, signal.SIGKILL)
    floor.reached(id, JobState.DEAD)
    (record,) = floor.records(id)
    assert record.outcome is Outcome.CRASHED
    assert record.output.startswith("line 0\nline 1\n")
    assert record.output.endswith(LAST)
    assert " bytes cut …" in record.output


@every_engine
def test_a_worker_that_dies_leaves_what_its_job_had_printed(floor: Floor) -> None:
    id = floor.put("prints", {"lines": 2})
    worker = floor.process(lease_s=3)
    seen(floor, id)
    worker.kill()
    floor.process(lease_s=60)
    until(lambda: len(floor.ledger("start")) == 2, "a second worker to start the job")
    (crash,) = floor.records(id)
    assert (crash.outcome, crash.output) == (Outcome.CRASHED, "line 0\nline 1\n")


def seen(floor: Floor, id: str) -> LiveOutput:
    """What the job has printed, as soon as anything is seen."""
    output = until(lambda: floor.history(id).live_output, "the output")
    assert output is not None
    assert floor.state(id) is JobState.PROCESSING
    return output


def end_of(floor: Floor, id: str) -> LiveOutput | None:
    output = floor.history(id).live_output
    return output if output is not None and output.text.endswith(LAST) else None


# What is reported to the engine, and when.


class Told:
    """Records what is reported to the engine, and fails when a test wants it to."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: list[list[tuple[str, str]]] = []
        self.problem: Exception | None = None
        self.flights: list[Flight] = []
        monkeypatch.setattr(bench.engine, "report_output", self._report)
        self.outputs = LiveOutputs(bench.engine, lambda: self.flights)

    def _report(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        if self.problem is not None:
            raise self.problem
        self.words.append([(lease.id, output.text) for lease, output in reports])
        return [True] * len(reports)

    def runs(self, number: int, text: str, since_s: float) -> Flight:
        """One more job that is running."""
        one = flight(number)
        one.started_at = time.monotonic() - since_s
        if text:
            one.has_printed(text, 0)
        self.flights.append(one)
        return one


@pytest.fixture
def told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(bench, monkeypatch)


def test_only_what_has_run_for_a_while_and_printed_something_is_told_of(told: Told) -> None:
    told.runs(1, "short\n", 0.0)
    told.runs(2, "", SHOWN_AFTER_S)
    told.outputs.report()
    assert told.words == []
    told.runs(3, "three\n", SHOWN_AFTER_S)
    told.runs(4, "four\n", SHOWN_AFTER_S)
    told.outputs.report()
    assert told.words == [[("job3", "three\n"), ("job4", "four\n")]]


def test_what_has_printed_nothing_more_is_not_told_of_again(told: Told) -> None:
    told.runs(1, "a\n", SHOWN_AFTER_S)
    second = told.runs(2, "b\n", SHOWN_AFTER_S)
    told.outputs.report()
    second.has_printed("c\n", 0)
    told.outputs.report()
    told.outputs.report()
    assert told.words[1:] == [[("job2", "b\nc\n")]]


def test_what_the_engine_did_not_hear_is_told_again(told: Told) -> None:
    told.runs(1, "a\n", SHOWN_AFTER_S)
    told.problem = BackendUnavailable("nobody is there")
    with pytest.raises(BackendUnavailable):
        told.outputs.report()
    told.problem = None
    told.outputs.report()
    assert told.words == [[("job1", "a\n")]]


def test_what_nobody_knows_of_an_output_is_counted_and_marked(told: Told) -> None:
    one = told.runs(1, "a" * 40_000, SHOWN_AFTER_S)
    one.has_printed("the end", 1000)
    assert isinstance(one.printed, Output)
    assert one.printed.total == 41_007
    assert one.printed.latest(100) == LiveOutput(text="the end", start=41_000)
    assert one.printed.text().endswith("\nthe end")
