"""A coordinator's Prometheus metrics, computed when they are scraped.

By tenant and dimension: use, demand, granted shares and throttled time, all per second. The number of
labels is bounded: beyond `TENANTS_SHOWN_MAX` tenants, those with the most traffic are exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metric_families import Samples
from penstock.model.metric_catalogue import QUOTA, TENANTS_SHOWN_MAX
from penstock.quota.summary import demand, total_over_gateways

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.quota.coordinator import Coordinator


class CoordinatorMetrics:
    def __init__(self, coordinators: Mapping[str, Coordinator]) -> None:
        self._coordinators = coordinators

    def collect(self) -> Iterator[Metric]:
        samples = Samples(QUOTA)
        for name, coordinator in self._coordinators.items():
            samples.add("partitions_owned", len(coordinator.owned), name)
            samples.add("decisions", coordinator.decisions, name)
            samples.add("decide_seconds", coordinator.decide_seconds, name)
            for shares in _most_active(coordinator.shares.latest):
                for dimension in shares.quota:
                    labels = (shares.tenant, dimension)
                    samples.add("used", total_over_gateways(shares.used, dimension), *labels)
                    samples.add("demand", demand(shares, dimension), *labels)
                    samples.add("granted", total_over_gateways(shares.shares, dimension), *labels)
                    throttled = total_over_gateways(shares.throttled, dimension)
                    samples.add("throttled_ratio", throttled, *labels)
        return iter(samples)


def _most_active(latest: Mapping[LogicalClusterId, QuotaShares]) -> list[QuotaShares]:
    most_first = sorted(latest.values(), key=lambda one: -total_over_gateways(one.used, "ingress_bytes"))
    return most_first[:TENANTS_SHOWN_MAX]
