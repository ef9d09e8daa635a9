"""Prometheus metrics of the scaler: calls in the service's process, all others in the sampler's.

Metrics of each ScaledObject are computed at the scrape. With ten thousand of them, keeping gauges up
to date would cost more.
"""

from __future__ import annotations

from collections import Counter as StateCounts
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.registry import Collector

from penstock.metric_families import Samples, instrument
from penstock.model.metric_catalogue import SCALE_CALLS, SCALE_ROUNDS, SCALE_WATCHES
from penstock.scale.decision.values import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.scale.watched_groups import Watch, WatchedGroups


# `_created` series double the page, and no rule reads them.
disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations


class CallMetrics:
    """Metrics of the service's process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = instrument(Histogram, SCALE_CALLS, "call_seconds", self.registry)
        self.sampler_up = instrument(Gauge, SCALE_CALLS, "sampler_up", self.registry)
        self.sampler_exits = instrument(Counter, SCALE_CALLS, "sampler_exits", self.registry)


class ScalerMetrics:
    """Metrics of the sampler's process."""

    def __init__(self, watches: WatchedGroups) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_WatchCollector(watches))
        self.changes = instrument(Counter, SCALE_ROUNDS, "changes", self.registry)
        self.rounds = instrument(Histogram, SCALE_ROUNDS, "round_seconds", self.registry)
        self.failures = instrument(Counter, SCALE_ROUNDS, "round_failures", self.registry)

    def count(self, watch: Watch) -> None:
        """Counts the change that the watch's verdict requests."""
        assert watch.verdict is not None
        rule = watch.verdict.reason.split(": ")[1]
        self.changes.labels(*labels_of(watch), watch.verdict.change.value, rule).inc()


class _WatchCollector(Collector):
    """Metrics of the ScaledObjects that are watched now and have a verdict."""

    def __init__(self, watches: WatchedGroups) -> None:
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        samples = Samples(SCALE_WATCHES)
        for watch in self._watches:
            verdict, labels = watch.verdict, labels_of(watch)
            samples.add("sample_failing", watch.failure is not None, *labels)
            if verdict is None:
                continue
            samples.add("replicas", verdict.replicas, *labels)
            samples.add("lag_records", verdict.lag, *labels)
            samples.add("lag_seconds", verdict.lag_seconds, *labels)
            samples.add("active", verdict.active, *labels)
            members = watch.policy.consumers_per_replica
            capacity = (verdict.memory.capacity or 0.0) * members
            samples.add("replica_capacity_records_per_second", capacity, *labels)
            states = StateCounts(verdict.states.values())
            for state in PartitionState:
                samples.add("partitions", states[state], *labels, state.value)
        samples.add("watches", len(self._watches))
        return iter(samples)


def labels_of(watch: Watch) -> tuple[str, str, str]:
    return watch.scaled_object, watch.policy.cluster, watch.policy.group
