"""Prometheus metrics of the scaler: calls in the service's process, all others in the sampler's.

Metrics of each ScaledObject are computed at the scrape. With ten thousand of them, keeping gauges up
to date would cost more.
"""

from __future__ import annotations

from collections import Counter as StateCounts
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.model import key_names
from penstock.scale.decision.values import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.scale.watched_groups import Watch, WatchedGroups

PREFIX: Final = key_names.METRIC_PREFIX + "scale"
OBJECT: Final = "scaled_object"
WATCH_LABELS: Final = (OBJECT, key_names.CLUSTER, key_names.GROUP)
ROUND_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0)


class CallMetrics:
    """Metrics of the service's process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Histogram(
            f"{PREFIX}_call_seconds", "calls from KEDA", (key_names.API, key_names.ERROR),
            buckets=CALL_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.sampler_up = Gauge(
            f"{PREFIX}_sampler_up", "1 while the sampler process runs", registry=self.registry
        )
        self.sampler_exits = Counter(
            f"{PREFIX}_sampler_exits_total", "unexpected exits of the sampler process", registry=self.registry
        )


class ScalerMetrics:
    """Metrics of the sampler's process."""

    def __init__(self, watches: WatchedGroups) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_WatchCollector(watches))
        self.changes = Counter(
            f"{PREFIX}_changes_total",
            "scale-ups and scale-downs requested",
            (*WATCH_LABELS, "direction", "rule"),
            registry=self.registry,
        )
        self.rounds = Histogram(
            f"{PREFIX}_round_seconds", "one sampling round over a cluster", (key_names.CLUSTER,),
            buckets=ROUND_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.failures = Counter(
            f"{PREFIX}_round_failures_total",
            "sampling rounds that failed",
            (key_names.CLUSTER, key_names.ERROR),
            registry=self.registry,
        )

    def count(self, watch: Watch) -> None:
        """Counts the change that the watch's verdict requests."""
        assert watch.verdict is not None
        rule = watch.verdict.reason.split(": ")[1]
        self.changes.labels(*labels_of(watch), watch.verdict.change.value, rule).inc()


class _WatchCollector(Collector):
    """Metrics of the ScaledObjects that are watched now and have a verdict."""

    def __init__(self, watches: WatchedGroups) -> None:
        self._watches = watches

    def collect(self) -> Iterator[GaugeMetricFamily]:
        def gauge(name: str, text: str, labels: tuple[str, ...] = WATCH_LABELS) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)

        replicas = gauge("replicas", "replicas requested")
        lag = gauge("lag_records", "waiting records, all partitions")
        lag_seconds = gauge(
            "lag_seconds", "age of the oldest waiting record in partitions that are not stuck"
        )
        active = gauge("active", "1 while there is work, 0 while the workload may scale to zero")
        capacity = gauge("replica_capacity_records_per_second", "records a second that one replica handles")
        partitions = gauge("partitions", "partitions by state", (*WATCH_LABELS, "state"))
        failing = gauge("sample_failing", "1 while the group cannot be sampled")
        for watch in self._watches:
            verdict, labels = watch.verdict, labels_of(watch)
            failing.add_metric(labels, watch.failure is not None)
            if verdict is None:
                continue
            replicas.add_metric(labels, verdict.replicas)
            lag.add_metric(labels, verdict.lag)
            lag_seconds.add_metric(labels, verdict.lag_seconds)
            active.add_metric(labels, verdict.active)
            members = watch.policy.consumers_per_replica
            capacity.add_metric(labels, (verdict.memory.capacity or 0.0) * members)
            states = StateCounts(verdict.states.values())
            for state in PartitionState:
                partitions.add_metric((*labels, state.value), states[state])
        yield from (replicas, lag, lag_seconds, active, capacity, partitions, failing)
        watched = gauge("watches", "ScaledObjects watched", ())
        watched.add_metric((), len(self._watches))
        yield watched


def labels_of(watch: Watch) -> tuple[str, str, str]:
    return watch.scaled_object, watch.policy.cluster, watch.policy.group
