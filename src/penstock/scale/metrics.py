"""What the scaler shows of itself to Prometheus. Names and labels in one place.

The service's process counts calls, the sampler's everything else. Numbers of watches are read when
the page is asked for, not kept up to date: with ten thousand of them that would cost more than a
scrape does.
"""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.model import keys
from penstock.scale.values import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.scale.watches import Watch, Watches

PREFIX: Final = keys.METRIC_PREFIX + "scale"
OBJECT: Final = "scaled_object"
OF_WATCH: Final = (OBJECT, keys.CLUSTER, keys.GROUP)
ROUND_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0)


class CallMetrics:
    """The service's process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Histogram(
            f"{PREFIX}_call_seconds", "calls answered", (keys.API, keys.ERROR),
            buckets=CALL_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.sampler_up = Gauge(
            f"{PREFIX}_sampler_up", "1 while the sampler's process runs", registry=self.registry
        )
        self.sampler_ends = Counter(
            f"{PREFIX}_sampler_ends_total",
            "times the sampler's process ended by itself",
            registry=self.registry,
        )


class ScalerMetrics:
    """The sampler's process."""

    def __init__(self, watches: Watches) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_OfWatches(watches))
        self.changes = Counter(
            f"{PREFIX}_changes_total",
            "changes asked for",
            (*OF_WATCH, "direction", "rule"),
            registry=self.registry,
        )
        self.rounds = Histogram(
            f"{PREFIX}_round_seconds", "one look at all groups of a cluster", (keys.CLUSTER,),
            buckets=ROUND_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.failures = Counter(
            f"{PREFIX}_round_failures_total",
            "looks that failed",
            (keys.CLUSTER, keys.ERROR),
            registry=self.registry,
        )

    def count(self, watch: Watch) -> None:
        """A change that was just asked for."""
        assert watch.verdict is not None
        rule = watch.verdict.reason.split(": ")[1]
        self.changes.labels(*labels_of(watch), watch.verdict.change.value, rule).inc()


class _OfWatches(Collector):
    """Series of what is watched now and has a verdict: no stale number is shown."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    def collect(self) -> Iterator[GaugeMetricFamily]:
        def gauge(name: str, text: str, labels: tuple[str, ...] = OF_WATCH) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)

        replicas = gauge("replicas", "replicas asked for")
        lag = gauge("lag_records", "records that wait, all partitions")
        lag_seconds = gauge("lag_seconds", "age of the oldest waiting record, partitions that are not stuck")
        active = gauge("active", "1 while there is work, 0 while the workload may be at zero")
        capacity = gauge("replica_capacity_records_per_second", "what one replica is believed to handle")
        partitions = gauge("partitions", "partitions by state", (*OF_WATCH, "state"))
        for watch in self._watches:
            verdict, labels = watch.verdict, labels_of(watch)
            if verdict is None:
                continue
            replicas.add_metric(labels, verdict.replicas)
            lag.add_metric(labels, verdict.lag)
            lag_seconds.add_metric(labels, verdict.lag_seconds)
            active.add_metric(labels, verdict.active)
            capacity.add_metric(labels, verdict.memory.capacity or 0.0)
            states = Tally(verdict.states.values())
            for state in PartitionState:
                partitions.add_metric((*labels, state.value), states[state])
        yield from (replicas, lag, lag_seconds, active, capacity, partitions)
        watched = gauge("watches", "ScaledObjects watched", ())
        watched.add_metric((), len(self._watches))
        yield watched


def labels_of(watch: Watch) -> tuple[str, str, str]:
    return watch.scaled_object, watch.policy.cluster, watch.policy.group
