"""Prometheus metrics of an executor, collected when they are scraped.

    from prometheus_client import REGISTRY
    REGISTRY.register(ExecutorCollector(executor))

Lag is not among them: it is the log's end minus `position_offset`. `penstock scale`, or any lag exporter on
the executor's group, reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.errors.settings import ExtraMissing
from penstock.model.key_names import GROUP, METRIC_PREFIX, PARTITION, TOPIC

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:  # optional for an executor
    raise ExtraMissing(what="metrics", module="prometheus_client", extra="olep") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from penstock.olep.executor import Executor

PREFIX: Final = METRIC_PREFIX + "olep_"

# name, help, field of ExecutorCounters
COUNTERS: Final = (
    ("decided_events", "Events decided and applied", "decided"),
    ("repeated_events", "Repeated events, suppressed", "repeated"),
    ("rejected_events", "Events rejected: listed and not applied", "rejected"),
    ("sent_events", "Events emitted by decisions and queued in the Kafka client", "sent"),
    ("commits", "Transactions committed to the stores", "commits"),
)


class ExecutorCollector:
    """Metrics of one executor. Several can be registered; the `group` label distinguishes them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        executor = self._executor
        names = [executor.group, executor.log.topic]
        for name, text, field in COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=[GROUP, TOPIC])
            counter.add_metric(names, getattr(executor.counters, field))
            yield counter
        labels = [GROUP, TOPIC, PARTITION]
        text = "Next offset to apply, as stored"
        position = GaugeMetricFamily(PREFIX + "position_offset", text, labels=labels)
        text = "Emitted events that no broker has acknowledged"
        waiting = GaugeMetricFamily(PREFIX + "unacknowledged_events", text, labels=labels)
        for task in executor.tasks():
            labels_of_partition = [*names, str(task.partition)]
            position.add_metric(labels_of_partition, task.position)
            waiting.add_metric(labels_of_partition, task.unacknowledged)
        yield position
        yield waiting
        text = "Partitions that wait because their store is unavailable"
        suspended = GaugeMetricFamily(PREFIX + "suspended_partitions", text, labels=[GROUP, TOPIC])
        suspended.add_metric(names, len(executor.suspended()))
        yield suspended
