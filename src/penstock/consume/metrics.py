"""Prometheus metrics, read from the consumer when they are scraped; recording costs nothing.

from prometheus_client import REGISTRY
REGISTRY.register(consumer.collector())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from penstock.consume.running import LATENCY_BOUNDS
from penstock.model.keys import GROUP, METRIC_PREFIX, PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from penstock.consume.consumer import ParallelConsumer

PREFIX: Final = METRIC_PREFIX + "consume_"

# name, help, field of Counts
COUNTERS: Final = (
    ("received_records", "Records received from Kafka", "received"),
    ("received_bytes", "Bytes of keys and values received", "received_bytes"),
    ("skipped_records", "Records done before a restart, by the offset map", "skipped"),
    ("finished_records", "Records handled, filtered out or dead-lettered", "finished"),
    ("failed_attempts", "Attempts of the handler that failed", "failed"),
    ("dead_letter_records", "Records written to the dead-letter topic", "dead_lettered"),
    ("filtered_records", "Records that the filter did not want", "filtered"),
    ("late_results", "Results that came after their partition had gone", "late"),
    ("abandoned_records", "Records started here whose result no commit covers: they run again", "abandoned"),
    ("commits", "Commits or transactions that Kafka took", "commits"),
    ("commit_failures", "Commits that Kafka refused, tried again", "commit_failures"),
    ("restarts", "Times the whole was restarted after a failure", "restarts"),
)
# name, help, field of PartitionView
GAUGES: Final = (
    ("unfinished_records", "Records in memory, not finished", "unfinished"),
    ("running_records", "Records being handled", "running"),
    ("behind_key_records", "Records that wait behind another of their key", "behind_their_key"),
    ("retrying_records", "Records that wait for their next attempt", "retrying"),
    ("held_records", "Records held back because the offset map is full", "held_for_map"),
    ("offset_map_chars", "Length of the offset map in the next commit", "map_chars"),
    ("committed_offset", "Offset that Kafka has for the group", "committed"),
)


class ConsumerCollector:
    """For one consumer; several may be registered, their groups tell them apart."""

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
        paused = GaugeMetricFamily(
            PREFIX + "paused_partitions", "Partitions not fetched from", labels=[GROUP]
        )
        paused.add_metric([group], sum(view.paused is not None for view in seen.partitions))
        yield paused
        memory = GaugeMetricFamily(
            PREFIX + "memory_bytes", "Bytes of keys and values in memory", labels=[GROUP]
        )
        memory.add_metric([group], seen.bytes_in_memory)
        yield memory
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
