"""Prometheus metrics, computed from the consumer's state when they are scraped.

from prometheus_client import REGISTRY
REGISTRY.register(consumer.collector())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.consume.runner import LATENCY_BOUNDS
from penstock.metric_families import Samples
from penstock.model.metric_catalogue import CONSUME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from penstock.consume.consumer import ParallelConsumer

# Metric → field of Counts.
COUNTERS: Final = {
    "received_records": "received",
    "received_bytes": "received_bytes",
    "skipped_records": "skipped",
    "finished_records": "finished",
    "failed_attempts": "failed",
    "dead_letter_records": "dead_lettered",
    "delayed_records": "delayed",
    "filtered_records": "filtered",
    "late_results": "late",
    "abandoned_records": "abandoned",
    "commits": "commits",
    "commit_failures": "commit_failures",
    "restarts": "restarts",
}
# Metric → field of PartitionView.
GAUGES: Final = {
    "unfinished_records": "unfinished",
    "running_records": "running",
    "queued_behind_key_records": "queued_behind_key",
    "retrying_records": "retrying",
    "waiting_for_map_records": "waiting_for_map",
    "offset_map_chars": "map_chars",
    "committed_offset": "committed",
}


class ConsumerCollector:
    """Metrics of one consumer; several may be registered, labelled by group."""

    def __init__(self, consumer: ParallelConsumer) -> None:
        self._consumer = consumer

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seen, group, samples = self._consumer.inspect(), self._consumer.group, Samples(CONSUME)
        for name, field in COUNTERS.items():
            samples.add(name, seen.counts[field], group)
        for view in seen.partitions:
            for name, field in GAUGES.items():
                samples.add(name, getattr(view, field), group, view.topic, str(view.partition))
        paused = sum(view.paused is not None for view in seen.partitions)
        samples.add("paused_partitions", paused, group)
        samples.add("memory_bytes", seen.bytes_in_memory, group)
        latency = self._consumer.latency
        total, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), list(latency.buckets), strict=True):
            total += count
            buckets.append((bound, total))
        samples.add_histogram("handler_seconds", buckets, latency.seconds, group)
        return iter(samples)
