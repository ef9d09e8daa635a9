"""A coordinator's figures for Prometheus, read when somebody asks.

By tenant and dimension: what it uses, what it would use, what it was granted, how much of the time it
waits; all a second. Labels are bounded: of more than `TENANTS_SHOWN_MAX` tenants, those who use most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.model.keys import CLUSTER, METRIC_PREFIX, TENANT
from penstock.quota.summary import demand, summed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.quota.coordinator import Coordinator

TENANTS_SHOWN_MAX: Final = 2_000
_AREA: Final = METRIC_PREFIX + "quota_"


class Figures:
    def __init__(self, coordinators: Mapping[str, Coordinator]) -> None:
        self._coordinators = coordinators

    def collect(self) -> Iterator[Metric]:
        labels = [TENANT, "dimension"]
        used = GaugeMetricFamily(_AREA + "used", "What tenants use, a second.", labels=labels)
        asked = GaugeMetricFamily(_AREA + "demand", "What tenants would use, a second.", labels=labels)
        granted = GaugeMetricFamily(_AREA + "granted", "Shares of all gateways, a second.", labels=labels)
        waiting = GaugeMetricFamily(
            _AREA + "throttled_ratio", "Part of the time throttled, summed over gateways.", labels=labels
        )
        owned = GaugeMetricFamily(_AREA + "parts_owned", "Parts of the tenants it has.", labels=[CLUSTER])
        decided = CounterMetricFamily(_AREA + "decisions", "Splits of a quota told.", labels=[CLUSTER])
        spent = CounterMetricFamily(_AREA + "decide_seconds", "Processor time for them.", labels=[CLUSTER])
        for name, coordinator in self._coordinators.items():
            owned.add_metric([name], len(coordinator.owned))
            decided.add_metric([name], coordinator.decided)
            spent.add_metric([name], coordinator.decide_seconds)
            for told in _greatest(coordinator.told.last):
                for dimension in told.quota:
                    of = [told.tenant, dimension]
                    used.add_metric(of, summed(told.used, dimension))
                    asked.add_metric(of, demand(told, dimension))
                    granted.add_metric(of, summed(told.shares, dimension))
                    waiting.add_metric(of, summed(told.throttled, dimension))
        yield from (used, asked, granted, waiting, owned, decided, spent)


def _greatest(told: Mapping[LogicalClusterId, QuotaShares]) -> list[QuotaShares]:
    every = list(told.values())
    if len(every) <= TENANTS_SHOWN_MAX:
        return every
    return sorted(every, key=lambda one: -summed(one.used, "ingress_bytes"))[:TENANTS_SHOWN_MAX]
