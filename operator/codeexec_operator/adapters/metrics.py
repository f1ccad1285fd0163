"""What Prometheus reads of the operator.

Counters are moved when an execution is over, so that code never waits for them; the rest is counted when asked.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from codeexec_api import Phase, SessionPhase
from codeexec_operator.core.measures import Census, Measured, PoolCount, pools_by_namespace

_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""In seconds: from code that takes no time in a pod that stands ready, to the default policy's longest block."""
_PATIENCE: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 14_400, 86_400)
"""In seconds: from a program that decides, to the longest that a policy lets an execution wait."""
_NAMESPACE: Final = "sandbox_namespace"
"""Not `namespace`, which Prometheus gives to the pod that it asks."""

SPANS_EXPORTED, SPANS_FAILED, SPANS_DROPPED = "exported", "failed", "dropped"
AUDIT_WRITTEN, AUDIT_FAILED = "written", "failed"
EVENTS_POSTED, EVENTS_FAILED, EVENTS_DROPPED = "posted", "failed", "dropped"


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        Info("codeexec_operator", "The operator.", registry=self.registry).info({"version": version})
        ProcessCollector(registry=self.registry)
        self._executions = self._counter(
            "executions", "Executions that are over.", _NAMESPACE, "phase", "reason", "languages"
        )
        self._accept = self._histogram(
            "accept", "From the creation of an execution until it was accepted, or a human was asked."
        )
        asked = "From when a human was asked to approve an execution until it went on, or was over."
        self._approval = self._histogram("approval", asked, buckets=_PATIENCE)
        self._start = self._histogram("start", "From the creation of an execution until its code started.", "origin")
        self._run = self._histogram("run", "From the start of the code until its end.")
        self._all = self._histogram("complete", "From the creation of an execution until it was over.", "origin")
        self._sessions = self._counter("sessions", "Sessions that are over.", _NAMESPACE, "phase", "reason")
        self._retries = self._counter(
            "api_retries", "Requests to the API server that are made again, by its answer.", "status"
        )
        self.unexpected = self._counter("unexpected_errors", "Errors of the operator itself; see its log.").inc
        """Count an error that nobody has foreseen."""
        self._configuration = self._gauge(
            "configuration_valid",
            "1 if the operator's ConfigMap is in force, 0 if it isn't valid and the one before it still is.",
        )
        self._leader = self._gauge("leader", "1 on the replica that leads, 0 on those that stand by.")
        self._pace = self._gauge(
            "pace_limit", "New work that a namespace with a queue may have under way beside others; below 1, it rests."
        )
        self._tasks = self._gauge("tasks", "Tasks of the operator's event loop.")
        self.spans = self._outcomes("spans", "Spans", SPANS_EXPORTED, SPANS_FAILED, SPANS_DROPPED)
        """Count spans. From any thread."""
        self.audit_lines = self._outcomes("audit_lines", "Lines of the audit log", AUDIT_WRITTEN, AUDIT_FAILED)
        self.events = self._outcomes("events", "Kubernetes Events", EVENTS_POSTED, EVENTS_FAILED, EVENTS_DROPPED)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"codeexec_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"codeexec_{name}", text, registry=self.registry)

    def _outcomes(self, name: str, what: str, *results: str) -> Callable[..., None]:
        """Counts by one of these results, one more or so many."""
        counter = self._counter(name, f"{what}, by what became of them.", "result")
        for result in results:
            counter.labels(result)
        return lambda result, count=1: counter.labels(result).inc(count)

    def _histogram(self, what: str, text: str, *labels: str, buckets: Sequence[float] = _BUCKETS) -> Histogram:
        return Histogram(f"codeexec_execution_{what}_seconds", text, labels, buckets=buckets, registry=self.registry)

    def execution_over(self, measured: Measured) -> None:
        """Count an execution, and how long it took."""
        self._executions.labels(measured.namespace, measured.phase, measured.reason, measured.languages).inc()
        if measured.until_accepted is not None:
            self._accept.observe(measured.until_accepted)
        if measured.deciding is not None:
            self._approval.observe(measured.deciding)
        if measured.until_started is not None:
            self._start.labels(measured.origin).observe(measured.until_started)
        if measured.running is not None:
            self._run.observe(measured.running)
        self._all.labels(measured.origin).observe(measured.until_finished)

    def session_over(self, namespace: str, phase: SessionPhase, reason: str) -> None:
        """Count a session."""
        self._sessions.labels(namespace, phase.value, reason).inc()

    def retried(self, status: int | None) -> None:
        """Count a request that is made again; without a status there was no answer."""
        self._retries.labels(str(status) if status else "none").inc()

    def configured(self, *, valid: bool) -> None:
        """Show whether the ConfigMap that was seen last is in force."""
        self._configuration.set(valid)

    def counts_tasks_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Whenever Prometheus asks."""
        self._tasks.set_function(lambda: len(asyncio.all_tasks(loop)))

    def paced_by(self, limit: Callable[[], float]) -> None:
        """Show this limit whenever Prometheus asks."""
        self._pace.set_function(limit)

    def leads(self, census: Callable[[], Census], served: Callable[[], Mapping[str, bool]]) -> None:
        """This replica works now. From now on tell what there is, too, as these say whenever Prometheus asks."""
        self._leader.set(1)
        self.registry.register(_Now(census, served))


class _Now(Collector):
    """Gauges of what there is. Zeros are told, so that a series doesn't end when nothing waits."""

    def __init__(self, census: Callable[[], Census], served: Callable[[], Mapping[str, bool]]) -> None:
        self._census, self._served = census, served

    def describe(self) -> Iterator[Metric]:
        """Their names, without looking."""
        return self._metrics(Census({}, {}, ()), {})

    def collect(self) -> Iterator[Metric]:
        """Look."""
        return self._metrics(self._census(), self._served())

    def _metrics(self, census: Census, served: Mapping[str, bool]) -> Iterator[Metric]:
        serving = GaugeMetricFamily(
            "codeexec_namespace_served",
            "1 if the operator serves this sandbox namespace, 0 if it is to and can't.",
            labels=[_NAMESPACE],
        )
        for namespace, well in served.items():
            serving.add_metric([namespace], well)
        yield serving
        unfinished: Sequence[tuple[str, Iterable[Phase | SessionPhase], Mapping[Any, int]]] = (
            ("Executions", Phase, census.executions),
            ("Sessions", SessionPhase, census.sessions),
        )
        for what, phases, counts in unfinished:
            text = f"{what} that are not over, by phase."
            gauge = GaugeMetricFamily(f"codeexec_current_{what.lower()}", text, labels=[_NAMESPACE, "phase"])
            for namespace, phase in product(served, (phase for phase in phases if not phase.terminal)):
                gauge.add_metric([namespace, phase.value], counts.get((namespace, phase), 0))
            yield gauge
        pools = pools_by_namespace(census.pools, list(served))
        for name, text, value in _POOL_GAUGES:
            gauge = GaugeMetricFamily(f"codeexec_pool_{name}", text, labels=[_NAMESPACE])
            for namespace, pool in pools.items():
                if (number := value(pool)) is not None:
                    gauge.add_metric([namespace], number)
            yield gauge


_POOL_GAUGES: Final[Sequence[tuple[str, str, Callable[[PoolCount], float | None]]]] = (
    ("wanted_pods", "Pods that should stand ready, in all pools.", lambda pool: pool.wanted),
    ("ready_pods", "Pods that stand ready.", lambda pool: pool.ready),
    ("starting_pods", "Pods that are being started.", lambda pool: pool.starting),
    ("claimed_pods", "Pods of pools that are in use.", lambda pool: pool.claimed),
    ("queued_executions", "Executions that wait for a pod of a pool.", lambda pool: pool.queued),
    (
        "last_refill_seconds",
        "How long the pod took that became ready last; of several pools the slowest.",
        lambda pool: None if pool.last_refill_ms is None else pool.last_refill_ms / 1000,
    ),
)
