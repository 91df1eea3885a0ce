"""Counters and measurements: by name and queue, from many threads, and nothing is lost."""

import threading
from collections.abc import Sequence

from holdfast.metrics import End, InMemoryMetrics, MeasuringCollector, MetricsCollector, labelling
from holdfast.values import WorkerStatus


class Tally:
    """A collector of a user's own, which knows nothing of measurements."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, int, str]] = []

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        self.counted.append((name, value, queue))


def test_a_counter_starts_at_nothing() -> None:
    assert InMemoryMetrics().total("jobs_fetched") == 0


def test_counts_add_up_by_name_and_queue() -> None:
    metrics = InMemoryMetrics()
    metrics.count("jobs_fetched", queue="mail")
    metrics.count("jobs_fetched", 4, queue="mail")
    metrics.count("jobs_fetched", queue="slow")
    metrics.count("jobs_failed", queue="mail")
    assert metrics.total("jobs_fetched") == 6
    assert metrics.total("jobs_fetched", "mail") == 5
    assert metrics.total("jobs_fetched", "slow") == 1
    assert metrics.total("jobs_fetched", "other") == 0
    assert metrics.total("jobs_failed", "mail") == 1


def test_the_collector_out_of_the_box_keeps_the_contract() -> None:
    collector: MetricsCollector = InMemoryMetrics()
    collector.count("jobs_fetched", 2, queue="mail")


def test_measurements_add_up_by_name_and_queue() -> None:
    metrics = InMemoryMetrics()
    assert metrics.observed("job_duration_seconds", "mail") == (0, 0.0)
    metrics.observe("job_duration_seconds", [0.5, 1.5], queue="mail")
    metrics.observe("job_duration_seconds", (), queue="mail")
    metrics.observe("job_duration_seconds", (4.0,), queue="mail")
    metrics.observe("job_duration_seconds", [8.0], queue="slow")
    metrics.observe("job_wait_seconds", [16.0], queue="mail")
    assert metrics.observed("job_duration_seconds", "mail") == (3, 6.0)
    assert metrics.observed("job_duration_seconds", "slow") == (1, 8.0)


def test_counts_and_measurements_add_up_by_job() -> None:
    metrics = InMemoryMetrics()
    metrics.count("jobs_succeeded", 2, queue="mail", job="send")
    metrics.count("jobs_succeeded", 3, queue="mail", job="resize")
    metrics.count("jobs_succeeded", 4, queue="mail")
    assert (metrics.total("jobs_succeeded"), metrics.total("jobs_succeeded", job="send")) == (9, 2)
    assert metrics.total("jobs_succeeded", "slow", "send") == 0
    metrics.observe("job_duration_seconds", [1.0, 2.0], queue="mail", job="send")
    metrics.observe("job_duration_seconds", [4.0], queue="mail", job="resize")
    assert metrics.observed("job_duration_seconds", "mail") == (3, 7.0)
    assert metrics.observed("job_duration_seconds", "mail", "send") == (2, 3.0)


def test_a_collector_that_only_counts_is_spared_the_measurements_and_the_names_of_jobs() -> None:
    tally = Tally()
    collector = labelling(tally)
    collector.count("jobs_fetched", 2, queue="mail")
    collector.count("jobs_succeeded", queue="mail", job="send")
    collector.observe("job_duration_seconds", [1.0], queue="mail", job="send")
    assert tally.counted == [("jobs_fetched", 2, "mail"), ("jobs_succeeded", 1, "mail")]


def test_a_collector_that_measures_is_spared_the_names_of_jobs_if_it_does_not_take_them() -> None:
    class Measuring(Tally):
        def observe(self, name: str, values: Sequence[float], *, queue: str) -> None:
            self.counted.append((name, len(values), queue))

    measuring = Measuring()
    assert isinstance(measuring, MeasuringCollector)
    labelling(measuring).observe("job_duration_seconds", [1.0, 2.0], queue="mail", job="send")
    assert measuring.counted == [("job_duration_seconds", 2, "mail")]


def test_a_collector_receives_the_names_of_jobs_if_it_takes_them() -> None:
    metrics = InMemoryMetrics()
    assert isinstance(metrics, MeasuringCollector)
    labelling(metrics).count("jobs_succeeded", 2, queue="mail", job="send")
    labelling(metrics).observe("job_duration_seconds", [1.0], queue="mail", job="send")
    assert metrics.total("jobs_succeeded", job="send") == 2
    assert metrics.observed("job_duration_seconds", "mail", "send") == (1, 1.0)


def test_a_collector_that_takes_anything_receives_everything() -> None:
    seen: list[dict[str, object]] = []

    class Anything:
        def count(self, name: str, value: int = 1, **labels: str) -> None:
            seen.append({"name": name, **labels})

    labelling(Anything()).count("jobs_succeeded", queue="mail", job="send")
    assert seen == [{"name": "jobs_succeeded", "queue": "mail", "job": "send"}]


def test_every_end_has_its_own_counter_and_a_status() -> None:
    assert len({end.value for end in End}) == len({end.meaning for end in End}) == len(End)
    assert all(end.value.startswith("jobs_") and isinstance(end.status, WorkerStatus) for end in End)


def test_counting_from_many_threads_loses_nothing() -> None:
    metrics = InMemoryMetrics()
    barrier = threading.Barrier(8)

    def work(queue: str) -> None:
        barrier.wait()
        for _ in range(2000):
            metrics.count("jobs_fetched", queue=queue)
            metrics.total("jobs_fetched")

    threads = [threading.Thread(target=work, args=(f"q{number % 4}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.total("jobs_fetched") == 16_000
    assert metrics.total("jobs_fetched", "q1") == 4000
