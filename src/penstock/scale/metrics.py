"""What the scaler shows of itself to Prometheus. Names and labels in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock.model import keys
from penstock.scale.values import Change, PartitionState

if TYPE_CHECKING:
    from penstock.scale.watches import Watch

OBJECT: Final = "scaled_object"
OF_WATCH: Final = (OBJECT, keys.CLUSTER, keys.GROUP)
ROUND_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0)


class ScalerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = keys.METRIC_PREFIX + "scale"

        def gauge(name: str, text: str, labels: tuple[str, ...] = OF_WATCH) -> Gauge:
            return Gauge(f"{prefix}_{name}", text, labels, registry=self.registry)

        self.replicas = gauge("replicas", "replicas asked for")
        self.lag = gauge("lag_records", "records that wait, all partitions")
        self.lag_seconds = gauge(
            "lag_seconds", "age of the oldest waiting record, partitions that are not stuck"
        )
        self.active = gauge("active", "1 while there is work, 0 while the workload may be at zero")
        self.capacity = gauge("replica_capacity_records_per_second", "what one replica is believed to handle")
        self.partitions = gauge("partitions", "partitions by state", (*OF_WATCH, "state"))
        self.watches = gauge("watches", "ScaledObjects watched", ())
        self.changes = Counter(
            f"{prefix}_changes_total",
            "changes asked for",
            (*OF_WATCH, "direction", "rule"),
            registry=self.registry,
        )
        self.rounds = Histogram(
            f"{prefix}_round_seconds", "one look at all groups of a cluster", (keys.CLUSTER,),
            buckets=ROUND_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.failures = Counter(
            f"{prefix}_round_failures_total",
            "looks that failed",
            (keys.CLUSTER, keys.ERROR),
            registry=self.registry,
        )
        self.calls = Histogram(
            f"{prefix}_call_seconds", "calls answered", (keys.API, keys.ERROR),
            buckets=CALL_BUCKETS, registry=self.registry,
        )  # fmt: skip

    def show(self, watch: Watch) -> None:
        """The newest verdict of one watch; nothing where there is none."""
        labels = labels_of(watch)
        verdict = watch.verdict
        if verdict is None:
            self.forget(watch)
            return
        self.replicas.labels(*labels).set(verdict.replicas)
        self.lag.labels(*labels).set(verdict.lag)
        self.lag_seconds.labels(*labels).set(verdict.lag_seconds)
        self.active.labels(*labels).set(verdict.active)
        self.capacity.labels(*labels).set(verdict.memory.capacity or 0.0)
        for state in PartitionState:
            count = sum(1 for each in verdict.states.values() if each is state)
            self.partitions.labels(*labels, state.value).set(count)
        if verdict.change is not Change.HOLD:
            rule = verdict.reason.split(": ")[1]
            self.changes.labels(*labels, verdict.change.value, rule).inc()

    def forget(self, watch: Watch) -> None:
        """Series of a watch that is gone, or cannot be told: no stale number is shown."""
        labels = labels_of(watch)
        for family in (self.replicas, self.lag, self.lag_seconds, self.active, self.capacity):
            _remove(family, labels)
        for state in PartitionState:
            _remove(self.partitions, (*labels, state.value))


def labels_of(watch: Watch) -> tuple[str, str, str]:
    return watch.scaled_object, watch.policy.cluster, watch.policy.group


def _remove(family: Gauge, labels: tuple[str, ...]) -> None:
    try:
        family.remove(*labels)
    except KeyError:
        return  # never shown
