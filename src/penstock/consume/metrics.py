"""Prometheus metrics, computed from the consumer's state when they are scraped.

from prometheus_client import REGISTRY
REGISTRY.register(consumer.collector())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from penstock.consume.runner import LATENCY_BOUNDS
from penstock.model.key_names import GROUP, METRIC_PREFIX, PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from penstock.consume.consumer import ParallelConsumer

PREFIX: Final = METRIC_PREFIX + "consume_"

# name, help, field of Counts
COUNTERS: Final = (
    ("received_records", "Records received from Kafka", "received"),
    ("received_bytes", "Bytes of keys and values received", "received_bytes"),
    ("skipped_records", "Records skipped because the offset map lists them as done", "skipped"),
    ("finished_records", "Records handled, filtered out or dead-lettered", "finished"),
    ("failed_attempts", "Handler calls that failed", "failed"),
    ("dead_letter_records", "Records written to the dead-letter topic", "dead_lettered"),
    ("delayed_records", "Records written to a delayed-retry topic", "delayed"),
    ("filtered_records", "Records the filter rejected", "filtered"),
    ("late_results", "Results that arrived after their partition was revoked or lost", "late"),
    ("abandoned_records", "Records started here that no commit covers; they run again", "abandoned"),
    ("commits", "Commits or transactions that succeeded", "commits"),
    ("commit_failures", "Commits that Kafka refused; they are retried", "commit_failures"),
    ("restarts", "Restarts of the consumer after a failure", "restarts"),
)
# name, help, field of PartitionView
GAUGES: Final = (
    ("unfinished_records", "Records in memory that are not finished", "unfinished"),
    ("running_records", "Records being handled", "running"),
    ("queued_behind_key_records", "Records waiting behind another of the same key", "queued_behind_key"),
    ("retrying_records", "Records waiting for their next attempt", "retrying"),
    ("waiting_for_map_records", "Records waiting because the offset map is full", "waiting_for_map"),
    ("offset_map_chars", "Characters of the offset map in the next commit", "map_chars"),
    ("committed_offset", "Offset that Kafka stores for the group", "committed"),
)


class ConsumerCollector:
    """Metrics of one consumer; several may be registered, labelled by group."""

    def __init__(self, consumer: ParallelConsumer) -> None:
        self._consumer = consumer

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        consumer = self._consumer
        seen = consumer.inspect()
        group = consumer.group
        for name, text, field in COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=[GROUP])
            counter.add_metric([group], seen.counts[field])
            yield counter
        for name, text, field in GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=[GROUP, TOPIC, PARTITION])
            for view in seen.partitions:
                gauge.add_metric([group, view.topic, str(view.partition)], getattr(view, field))
            yield gauge
        paused = sum(view.paused is not None for view in seen.partitions)
        for name, text, value in (
            ("paused_partitions", "Partitions paused by back pressure", paused),
            ("memory_bytes", "Bytes of keys and values in memory", seen.bytes_in_memory),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=[GROUP])
            gauge.add_metric([group], value)
            yield gauge
        yield self._latency(group)

    def _latency(self, group: str) -> Metric:
        latency = self._consumer.latency
        family = HistogramMetricFamily(PREFIX + "handler_seconds", "Time in the handler", labels=[GROUP])
        total, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), list(latency.buckets), strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([group], buckets, latency.seconds)
        return family
