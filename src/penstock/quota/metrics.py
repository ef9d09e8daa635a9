"""A coordinator's Prometheus metrics, computed when they are scraped.

By tenant and dimension: use, demand, granted shares and throttled time, all per second. The number of
labels is bounded: beyond `TENANTS_SHOWN_MAX` tenants, those with the most traffic are exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.model.key_names import CLUSTER, METRIC_PREFIX, TENANT
from penstock.quota.summary import demand, total_over_gateways

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.quota.coordinator import Coordinator

TENANTS_SHOWN_MAX: Final = 2_000
_AREA: Final = METRIC_PREFIX + "quota_"


class CoordinatorMetrics:
    def __init__(self, coordinators: Mapping[str, Coordinator]) -> None:
        self._coordinators = coordinators

    def collect(self) -> Iterator[Metric]:
        used = _gauge("used", "Use per second.", TENANT, "dimension")
        demands = _gauge("demand", "Estimated demand per second.", TENANT, "dimension")
        granted = _gauge("granted", "Sum of all gateways' shares per second.", TENANT, "dimension")
        text = "Share of time throttled, summed over gateways."
        throttled = _gauge("throttled_ratio", text, TENANT, "dimension")
        owned = _gauge("partitions_owned", "Partitions of the usage topic owned.", CLUSTER)
        decisions = CounterMetricFamily(_AREA + "decisions", "Shares published.", labels=[CLUSTER])
        text = "Processor time spent on decisions."
        spent = CounterMetricFamily(_AREA + "decide_seconds", text, labels=[CLUSTER])
        for name, coordinator in self._coordinators.items():
            owned.add_metric([name], len(coordinator.owned))
            decisions.add_metric([name], coordinator.decisions)
            spent.add_metric([name], coordinator.decide_seconds)
            for shares in _most_active(coordinator.shares.latest):
                for dimension in shares.quota:
                    values = [shares.tenant, dimension]
                    used.add_metric(values, total_over_gateways(shares.used, dimension))
                    demands.add_metric(values, demand(shares, dimension))
                    granted.add_metric(values, total_over_gateways(shares.shares, dimension))
                    throttled.add_metric(values, total_over_gateways(shares.throttled, dimension))
        yield from (used, demands, granted, throttled, owned, decisions, spent)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_AREA + name, text, labels=labels)


def _most_active(latest: Mapping[LogicalClusterId, QuotaShares]) -> list[QuotaShares]:
    most_first = sorted(latest.values(), key=lambda one: -total_over_gateways(one.used, "ingress_bytes"))
    return most_first[:TENANTS_SHOWN_MAX]
