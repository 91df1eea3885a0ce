"""What Prometheus scrapes, checked with the parser of its own client."""

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from prometheus_client import Gauge
from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import ConfigError
from holdfast.metrics import MeasuringCollector
from holdfast.metrics.levels import QueueLevels, WorkerLevels
from holdfast.metrics.prometheus import BUCKETS_S, PrometheusMetrics
from holdfast.values import CircuitState, JobState

ROOT = Path(__file__).parents[3]

Sample = tuple[str, tuple[tuple[str, str], ...]]


def scraped(metrics: PrometheusMetrics) -> dict[Sample, float]:
    document, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=")
    samples: dict[Sample, float] = {}
    for family in text_string_to_metric_families(document.decode()):
        for sample in family.samples:
            # As Prometheus does it: an empty label is a missing one.
            key = (sample.name, tuple(sorted((name, value) for name, value in sample.labels.items() if value)))
            assert key not in samples
            samples[key] = sample.value
    return samples


def of(name: str, **labels: str) -> Sample:
    return name, tuple(sorted(labels.items()))


def test_nothing_is_shown_before_anything_happened() -> None:
    assert scraped(PrometheusMetrics()) == {}


def test_counters_and_durations_are_shown_by_job() -> None:
    metrics = PrometheusMetrics()
    metrics.count("jobs_succeeded", queue="mail", job="send")
    metrics.count("jobs_succeeded", 2, queue="mail", job="resize")
    metrics.count("jobs_succeeded", 4, queue="mail")
    metrics.observe("job_duration_seconds", [1.0], queue="mail", job="send")
    samples = scraped(metrics)
    assert samples[of("holdfast_jobs_succeeded_total", queue="mail", job="send")] == 1
    assert samples[of("holdfast_jobs_succeeded_total", queue="mail", job="resize")] == 2
    assert samples[of("holdfast_jobs_succeeded_total", queue="mail")] == 4
    assert samples[of("holdfast_job_duration_seconds_count", queue="mail", job="send")] == 1


def test_counters_without_a_job_are_shown_by_queue_and_nothing_else() -> None:
    metrics = PrometheusMetrics()
    metrics.count("jobs_fetched", queue="mail")
    metrics.count("jobs_fetched", 4, queue="mail")
    metrics.count("jobs_fetched", queue="slow")
    metrics.count("jobs_failed", queue="mail")
    assert scraped(metrics) == {
        of("holdfast_jobs_fetched_total", queue="mail"): 5,
        of("holdfast_jobs_fetched_total", queue="slow"): 1,
        of("holdfast_jobs_failed_total", queue="mail"): 1,
    }


def test_durations_become_a_cumulative_histogram() -> None:
    metrics = PrometheusMetrics()
    # On a bound, between two, below the first, above the last.
    metrics.observe("job_duration_seconds", [1.0, 0.75], queue="mail")
    metrics.observe("job_duration_seconds", (0.0, 5000.0), queue="mail")
    metrics.observe("job_duration_seconds", [60.0], queue="slow")
    samples = scraped(metrics)
    name = "holdfast_job_duration_seconds"
    buckets = [samples[of(f"{name}_bucket", queue="mail", le=str(bound))] for bound in BUCKETS_S]
    assert buckets == [1 if bound < 1.0 else 3 for bound in BUCKETS_S]
    assert samples[of(f"{name}_bucket", queue="mail", le="+Inf")] == 4
    assert samples[of(f"{name}_count", queue="mail")] == 4
    assert samples[of(f"{name}_sum", queue="mail")] == 5001.75
    assert samples[of(f"{name}_count", queue="slow")] == 1
    assert len(samples) == 2 * (len(BUCKETS_S) + 3)


def test_the_buckets_reach_from_a_millisecond_to_an_hour() -> None:
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.001, 3600.0)
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_names_that_prometheus_would_refuse_are_made_fit() -> None:
    metrics = PrometheusMetrics()
    metrics.count("mails.sent", queue="mail")
    metrics.count("mails-sent", queue="mail")
    assert scraped(metrics) == {of("holdfast_mails_sent_total", queue="mail"): 2}


def test_a_queue_that_is_no_plain_word_stays_one_label() -> None:
    metrics = PrometheusMetrics()
    metrics.count("jobs_reaped", queue='*"\\\n')
    assert scraped(metrics) == {of("holdfast_jobs_reaped_total", queue='*"\\\n'): 1}


def test_every_metric_says_what_it_means() -> None:
    metrics = PrometheusMetrics()
    metrics.count("jobs_fetched", queue="mail")
    metrics.count("mails_sent", queue="mail")
    document = metrics.render()[0].decode()
    assert "# HELP holdfast_jobs_fetched_total Jobs this worker has claimed.\n" in document
    assert "# HELP holdfast_mails_sent_total Mails sent.\n" in document


LEVELS = WorkerLevels(running=3, slots=8, processes_ready=2, verdicts_undelivered=5, engine_unheard_s=0.25)


def test_how_a_worker_stands_is_asked_for_at_each_reading() -> None:
    metrics = PrometheusMetrics()
    levels = [LEVELS, msgspec.structs.replace(LEVELS, running=4)]
    queues: list[dict[str, QueueLevels] | None] = [
        {
            "mail": QueueLevels(jobs={JobState.PENDING: 7, JobState.DEAD: 0}, oldest_wait_s=1.5, workers=2),
            "b": QueueLevels(jobs={JobState.DEAD: 1}, workers=1),
            "forgotten": QueueLevels(oldest_wait_s=60.0),
        },
        None,
    ]
    circuits = {"stripe": CircuitState.OPEN, "maps": CircuitState.HALF_OPEN, "queue_mail": CircuitState.CLOSED}
    metrics.follow(lambda: levels.pop(0), lambda: queues.pop(0), lambda: circuits)
    assert scraped(metrics) == {
        of("holdfast_jobs", queue="mail", state="pending"): 7,
        of("holdfast_jobs", queue="mail", state="dead"): 0,
        of("holdfast_jobs", queue="b", state="dead"): 1,
        of("holdfast_queue_oldest_wait_seconds", queue="mail"): 1.5,
        of("holdfast_queue_oldest_wait_seconds", queue="b"): 0,
        of("holdfast_queue_oldest_wait_seconds", queue="forgotten"): 60,
        of("holdfast_queue_workers", queue="mail"): 2,
        of("holdfast_queue_workers", queue="b"): 1,
        of("holdfast_queue_workers", queue="forgotten"): 0,
        of("holdfast_circuit_state", circuit="stripe"): 2,
        of("holdfast_circuit_state", circuit="maps"): 1,
        of("holdfast_circuit_state", circuit="queue_mail"): 0,
        of("holdfast_worker_jobs_running"): 3,
        of("holdfast_worker_slots"): 8,
        of("holdfast_worker_processes_ready"): 2,
        of("holdfast_worker_verdicts_undelivered"): 5,
        of("holdfast_engine_unheard_seconds"): 0.25,
    }
    again = scraped(metrics)
    assert again[of("holdfast_worker_jobs_running")] == 4
    shared = ("holdfast_jobs", "holdfast_circuit_state")
    assert not any(name in shared for name, _ in again), "what is not known is not told"


def test_every_gauge_of_a_worker_has_its_type_and_is_told_by_the_page() -> None:
    metrics = PrometheusMetrics()
    circuits = lambda: {"stripe": CircuitState.OPEN}  # noqa: E731
    metrics.follow(lambda: LEVELS, lambda: {"mail": QueueLevels(jobs={JobState.PENDING: 7})}, circuits)
    families = list(text_string_to_metric_families(metrics.render()[0].decode()))
    page = (ROOT / "docs" / "cli.md").read_text()
    for family in families:
        assert family.type == "gauge"
        labels = ", ".join(family.samples[0].labels)
        name = f"{family.name}{{{labels}}}" if labels else family.name
        assert f"| `{name}` | {family.documentation}" in page
    assert len(families) == sum(line.startswith("| `holdfast_") and "_total" not in line for line in page.splitlines())


def test_an_application_may_add_its_own_metrics() -> None:
    metrics = PrometheusMetrics()
    Gauge("shop_open", "Whether it is.", registry=metrics.registry).set(1)
    assert scraped(metrics) == {of("shop_open"): 1}


def test_two_collectors_share_nothing() -> None:
    first, second = PrometheusMetrics(), PrometheusMetrics()
    first.count("jobs_fetched", queue="mail")
    first.observe("job_duration_seconds", [1.0], queue="mail")
    assert scraped(second) == {}


def test_it_takes_counters_and_measurements() -> None:
    metrics = PrometheusMetrics()
    collector: MeasuringCollector = metrics
    collector.observe("job_duration_seconds", [1.0], queue="mail")


def test_working_while_being_scraped_loses_nothing() -> None:
    metrics = PrometheusMetrics()
    barrier = threading.Barrier(4)

    def work(queue: str) -> None:
        barrier.wait()
        for number in range(500):
            metrics.count("jobs_fetched", queue=f"{queue}{number % 50}")
            metrics.observe("job_duration_seconds", [0.01] * 4, queue=queue)

    threads = [threading.Thread(target=work, args=(queue,)) for queue in "aab"]
    for thread in threads:
        thread.start()
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        metrics.render()
    samples = scraped(metrics)
    assert sum(value for (name, _), value in samples.items() if name == "holdfast_jobs_fetched_total") == 1500
    assert samples[of("holdfast_job_duration_seconds_count", queue="a")] == 4000
    assert samples[of("holdfast_job_duration_seconds_count", queue="b")] == 2000


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "holdfast.metrics.prometheus")
    with pytest.raises(ConfigError, match=r"pip install prometheus-client"):
        __import__("holdfast.metrics.prometheus")


def test_nothing_else_loads_the_package() -> None:
    modules = "holdfast.metrics, holdfast.app, holdfast.worker, holdfast.worker.probes, holdfast.cli"
    program = f"import sys, {modules}; print('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"
