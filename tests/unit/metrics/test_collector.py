"""Counters: by name and queue, from many threads, and nothing is lost."""

import threading

from holdfast.metrics import InMemoryMetrics, MetricsCollector


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
