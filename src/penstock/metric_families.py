"""Builds Prometheus metrics from the catalogue (`model.metric_catalogue`).

`Samples` is for collectors that compute their values at the scrape; `instrument` for values that are kept.
Either way every metric of the table is exported, even without a sample, and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from penstock.model.metric_catalogue import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client import Metric as Family

    from penstock.model.metric_catalogue import Metric, Table


class Samples:
    """The samples of one scrape, by metric of a table."""

    def __init__(self, table: Table) -> None:
        self._metrics = table.metrics
        self._families = {name: _family(metric) for name, metric in table.metrics.items()}

    def add(self, name: str, value: float, *labels: str) -> None:
        family = self._families[name]
        assert not isinstance(family, HistogramMetricFamily)
        self._check(name, labels)
        family.add_metric(labels, value)

    def add_histogram(
        self, name: str, buckets: Sequence[tuple[str, float]], total: float, *labels: str
    ) -> None:
        """`buckets` are cumulative counts by upper bound, the last of which is `+Inf`."""
        family = self._families[name]
        assert isinstance(family, HistogramMetricFamily)
        self._check(name, labels)
        family.add_metric(labels, buckets, total)

    def _check(self, name: str, labels: Sequence[str]) -> None:
        expected = self._metrics[name].labels
        assert len(labels) == len(expected), f"{name}: labels {[label.name for label in expected]}"

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    labels = [label.name for label in metric.labels]
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=labels)
    if metric.kind is Kind.GAUGE:
        return GaugeMetricFamily(metric.name, metric.help, labels=labels)
    return HistogramMetricFamily(metric.name, metric.help, labels=labels)


@overload
def instrument(kind: type[Counter], table: Table, name: str, registry: CollectorRegistry) -> Counter: ...
@overload
def instrument(kind: type[Gauge], table: Table, name: str, registry: CollectorRegistry) -> Gauge: ...
@overload
def instrument(kind: type[Histogram], table: Table, name: str, registry: CollectorRegistry) -> Histogram: ...
def instrument(
    kind: type[Counter | Gauge | Histogram], table: Table, name: str, registry: CollectorRegistry
) -> Counter | Gauge | Histogram:
    """A metric whose value is kept and updated."""
    metric = table.metrics[name]
    assert kind.__name__.lower() == metric.kind
    labels = [label.name for label in metric.labels]
    if kind is Histogram:
        return Histogram(metric.name, metric.help, labels, buckets=metric.buckets, registry=registry)
    return kind(metric.name, metric.help, labels, registry=registry)
