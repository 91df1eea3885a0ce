"""Many workers and producers use one file at the same time, without errors."""

import signal
from collections import Counter

from .processes import Program, until
from .yard import Yard


def test_sixteen_workers_on_one_file_run_each_job_once_and_meet_no_error(yard: Yard) -> None:
    ids = yard.put("quick", 3000)
    workers = [yard.starting(lease_s=10) for _ in range(16)]
    producers = [yard.producer("brief", 300) for _ in range(3)]
    until(lambda: all(len(producer.said_lines()) == 300 for producer in producers), "the producers to be done")
    ids += [id for producer in producers for id in producer.said_lines()]
    until(lambda: yard.are_done(len(ids)), "every job to be completed")
    for worker in workers:
        worker.wait_for("handlers ")
        worker.send(signal.SIGTERM)
    for producer in producers:
        producer.hang_up()
    for program in (*workers, *producers):
        assert program.ended() == 0
    assert yard.ends() == Counter(ids)
    assert [line for worker in workers for line in _complaints(worker)] == []
    assert [producer.complained for producer in producers] == ["", "", ""]


def _complaints(worker: Program) -> list[str]:
    """Its output without the first and last lines: warnings, errors, tracebacks."""
    expected = ("holdfast ", "queues ", "stopping", "stopped ")
    return [line for line in worker.complained.splitlines() if not line.startswith(expected)]
