"""Middleware, metrics, retry policy and handlers of an application, given in code or named by its settings."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import cast

from holdfast import plugins
from holdfast.config import Settings
from holdfast.definition.backoff import parse_backoff
from holdfast.errors import ConfigError
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.handlers import Handler, HandlerRegistry
from holdfast.job import AnyJob, Job
from holdfast.metrics import InMemoryMetrics, MetricsCollector
from holdfast.middleware import Middleware, around_enqueue, checked, named_middleware
from holdfast.values import Backoff, BackoffStrategy


class Extensions:
    """Loads what the settings name when it is first needed: it may be in the module that creates the application."""

    def __init__(
        self,
        settings: Settings,
        directory: Path | None,
        *,
        middleware: Sequence[Middleware] = (),
        metrics: MetricsCollector | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._middleware = checked(middleware)
        self._metrics = metrics
        self._retry_policy = retry_policy
        self._are_handlers_loaded = False

    @cached_property
    def middleware(self) -> tuple[Middleware, ...]:
        """The hooks around every job, outermost first: those the settings name, then those given in code."""
        return (*named_middleware(self._settings.middleware, self._directory), *self._middleware)

    @cached_property
    def enqueue_hooks(self) -> tuple[Middleware, ...]:
        """The middleware with enqueue hooks."""
        return around_enqueue(self.middleware)

    @property
    def metrics(self) -> MetricsCollector:
        """The collector of metrics; in memory by default."""
        if self._metrics is None:
            self._metrics = self._named_metrics() if self._settings.metrics else InMemoryMetrics()
        return self._metrics

    def count_for_prometheus(self) -> None:
        """Use prometheus-client, if it is installed and the application does not have its own collector."""
        if type(self.metrics) is InMemoryMetrics:
            with suppress(ConfigError):  # if the extra is not installed, /metrics reports it
                from holdfast.metrics.prometheus import PrometheusMetrics

                self._metrics = PrometheusMetrics()

    def _named_metrics(self) -> MetricsCollector:
        named = plugins.make(plugins.METRICS, self._settings.metrics, self._directory)
        if not callable(getattr(named, "count", None)):
            raise ConfigError(f"{named!r} is not a metrics collector; it needs a method  count(name, value, *, queue)")
        return cast("MetricsCollector", named)

    @cached_property
    def retry_policy(self) -> RetryPolicy:
        """Decides when a failed job without its own backoff runs again."""
        if self._retry_policy is not None or not self._settings.retry_policy:
            return self._retry_policy or BackoffPolicy(backoff_of(self._settings))
        named = plugins.make(plugins.RETRY_POLICIES, self._settings.retry_policy, self._directory)
        if not callable(getattr(named, "delay", None)):
            raise ConfigError(f"{named!r} is not a retry policy; it needs a method  delay(attempt, error) -> seconds")
        return cast("RetryPolicy", named)

    def load(self, registry: HandlerRegistry, jobs: Mapping[str, AnyJob]) -> None:
        """Load everything that the settings name, and register the handlers in addition to the application's jobs.

        A worker calls this before it claims a job, so that a name that cannot be resolved is reported at once.
        """
        _ = self.middleware, self.metrics, self.retry_policy
        if not self._are_handlers_loaded:
            for named in self._settings.handlers:
                self._register(named, registry, jobs)
            self._are_handlers_loaded = True

    @property
    def handler_keys(self) -> frozenset[str]:
        """The keys of the handlers that the settings name. Nothing is imported."""
        return frozenset(_key_and_name(named)[0] for named in self._settings.handlers)

    def _register(self, named: str, registry: HandlerRegistry, jobs: Mapping[str, AnyJob]) -> None:
        """Register a handler that the settings name: `KEY=MODULE:NAME`, or the name of an entry point."""
        key, name = _key_and_name(named)
        found = plugins.load(plugins.HANDLERS, name, self._directory)
        if isinstance(found, Job):
            if jobs.get(key) is not found:  # it belongs to another application
                registry.register(key, found.handler_for(key, registry.overrides))
        elif callable(found) or isinstance(found, Handler):
            registry.register(key, found)
        else:
            raise ConfigError(f"handler '{name}' must be a function or a Handler, not {found!r}")


def _key_and_name(named: str) -> tuple[str, str]:
    key, _, name = named.rpartition("=")
    return key or name.rpartition(":")[2].rpartition(".")[2], name


def backoff_of(settings: Settings) -> Backoff:
    """The delays between the attempts of jobs without their own backoff."""
    if settings.backoff not in list(BackoffStrategy):
        return parse_backoff(settings.backoff)
    base, multiplier = settings.backoff_base, settings.backoff_multiplier
    return Backoff(
        strategy=BackoffStrategy(settings.backoff),
        base=base,
        multiplier=max(1.0, base) if multiplier is None else multiplier,
        max=settings.backoff_max,
        jitter=settings.backoff_jitter,
    )
