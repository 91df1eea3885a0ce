"""Counters and measurements: by name and queue, from many threads, and nothing is lost."""

import threading

from holdfast.metrics import InMemoryMetrics, MeasuringCollector, MetricsCollector, measuring


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


def test_a_collector_that_only_counts_is_spared_the_measurements() -> None:
    tally = Tally()
    collector = measuring(tally)
    collector.count("jobs_fetched", 2, queue="mail")
    collector.observe("job_duration_seconds", [1.0], queue="mail")
    assert tally.counted == [("jobs_fetched", 2, "mail")]


def test_a_collector_that_measures_is_asked_directly() -> None:
    metrics = InMemoryMetrics()
    assert isinstance(metrics, MeasuringCollector)
    assert measuring(metrics) is metrics


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
