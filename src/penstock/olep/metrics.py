"""Prometheus metrics of an executor, read when they are scraped; recording costs nothing.

    from prometheus_client import REGISTRY
    REGISTRY.register(ExecutorCollector(executor))

Lag is not among them: it is the log's end minus `position_offset`, and whoever watches the log
(`penstock scale`, any lag exporter on the executor's group) knows its end already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.errors.settings import ExtraMissing
from penstock.model.keys import GROUP, METRIC_PREFIX, PARTITION, TOPIC

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:  # an executor does without
    raise ExtraMissing(what="metrics", module="prometheus_client", extra="olep") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from penstock.olep.executor import Executor

PREFIX: Final = METRIC_PREFIX + "olep_"

# name, help, field of Figures
COUNTERS: Final = (
    ("decided_events", "Events that were decided and applied", "decided"),
    ("repeated_events", "Events that were applied before, suppressed", "repeated"),
    ("rejected_events", "Events that were listed and not applied", "rejected"),
    ("sent_events", "Events that decisions emitted, handed to the client", "sent"),
    ("commits", "Transactions that the stores took", "commits"),
)


class ExecutorCollector:
    """For one executor; several may be registered, their groups tell them apart."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        executor = self._executor
        names = [executor.group, executor.log.topic]
        for name, text, field in COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=[GROUP, TOPIC])
            counter.add_metric(names, getattr(executor.figures, field))
            yield counter
        labels = [GROUP, TOPIC, PARTITION]
        position = GaugeMetricFamily(
            PREFIX + "position_offset",
            "Next offset to be applied, as stored",
            labels=labels,
        )
        waiting = GaugeMetricFamily(
            PREFIX + "unacknowledged_events", "Emitted events that no broker has taken yet",
            labels=labels,
        )  # fmt: skip
        for lane in executor.lanes():
            place = [*names, str(lane.partition)]
            position.add_metric(place, lane.position)
            waiting.add_metric(place, lane.unacknowledged)
        yield position
        yield waiting
