"""Generators with known results: gateway usage reports and health probes, from a seed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from penstock.model.events import HealthProbe, Probe, UsageReport
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

CLUSTER = PhysicalClusterId("pkc-000000")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 1_699_833_600_000  # a Monday, midnight


@dataclass
class Gateways:
    """Gateways that count, report, restart and lose reports; `used` is the expected usage per hour."""

    chance: random.Random
    tenants: Sequence[LogicalClusterId]
    used: dict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))

    def reports(self, *, gateways: int, hours: int, every_ms: int) -> Iterator[UsageReport]:
        """Reports in order; usage counts towards the hour of the report that first shows it."""
        for gateway in range(gateways):
            incarnation, sequence = 0, 0
            counters: dict[tuple[str, str], int] = defaultdict(int)
            reported: dict[tuple[str, str], int] = defaultdict(int)
            for time_ms in range(BEGIN_MS + every_ms, BEGIN_MS + hours * HOUR_MS, every_ms):
                if self.chance.random() < 0.05:  # killed: unreported usage is lost, in the tenant's favour
                    incarnation, sequence = incarnation + 1, 0
                    counters, reported = defaultdict(int), defaultdict(int)
                sequence += 1
                lost = self.chance.random() < 0.1
                for tenant in self.tenants:
                    for dimension in ("ingress_bytes", "requests"):
                        counters[tenant, dimension] += self.chance.randrange(1000)
                    if lost:
                        continue
                    for dimension in ("ingress_bytes", "requests"):
                        rise = counters[tenant, dimension] - reported[tenant, dimension]
                        reported[tenant, dimension] = counters[tenant, dimension]
                        self.used[tenant, dimension, time_ms // HOUR_MS * HOUR_MS] += rise
                    yield UsageReport(
                        cluster=CLUSTER,
                        gateway=f"g{gateway}",
                        incarnation=f"g{gateway}-{incarnation}",
                        sequence=sequence,
                        tenant=tenant,
                        time_ms=time_ms,
                        used={d: counters[tenant, d] for d in ("ingress_bytes", "requests")},
                        levels={"connections": 1},
                    )


def nearest_rank(values: Sequence[float], fraction: float) -> float:
    """The definition, independent of Spark."""
    ordered = sorted(values)
    return ordered[max(ceil(fraction * len(ordered)), 1) - 1]


@dataclass
class Checkers:
    """Health checkers; `minutes` holds the latencies by (week, cluster, minute, broker)."""

    chance: random.Random
    minutes: dict[tuple[int, str, int, int], list[int | None]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def probes(
        self, *, clusters: int, brokers: int, weeks: int, minutes: int, each: int
    ) -> Iterator[HealthProbe]:
        for week in range(weeks):
            for cluster in range(clusters):
                for broker in range(brokers):
                    for minute in range(minutes):
                        for turn in range(each):
                            yield self._probe(week, cluster, broker, minute, turn, minutes * 100)

    def _probe(
        self, week: int, cluster: int, broker: int, minute: int, turn: int, per_week: int
    ) -> HealthProbe:
        name = PhysicalClusterId(f"pkc-00000{cluster}")
        failed = self.chance.random() < 0.02 * (cluster + 1)
        latency = None if failed else int(self.chance.lognormvariate(9 + 0.1 * cluster, 0.5))
        self.minutes[week, name, minute, broker].append(latency)
        return HealthProbe(
            cluster=name,
            broker=BrokerId(broker),
            zone=Zone("a"),
            partition=broker,
            probe=Probe.CONSUME,
            checker="h1",
            sequence=(week * per_week) + minute * 100 + turn,
            time_ms=BEGIN_MS + week * 7 * DAY_MS + minute * 60_000 + turn * 100,
            latency_us=latency,
            error="REQUEST_TIMED_OUT" if failed else None,
        )

    def cluster_metrics(self) -> dict[tuple[int, str], tuple[float, float]]:
        """(week, cluster) → (latency P99, unavailability P99), as the paper defines them."""
        worst: dict[tuple[int, str, int], tuple[float, float]] = {}
        for (week, cluster, minute, _), measured in self.minutes.items():
            good = [value for value in measured if value is not None]
            latency = nearest_rank(good, 0.99) if good else 0
            missing = (len(measured) - len(good)) / len(measured)
            before = worst.get((week, cluster, minute), (0.0, 0.0))
            worst[week, cluster, minute] = max(before[0], latency), max(before[1], missing)
        minutes_by_week: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        for (week, cluster, _), pair in worst.items():
            minutes_by_week[week, cluster].append(pair)
        return {
            key: (nearest_rank([a for a, _ in pairs], 0.99), nearest_rank([b for _, b in pairs], 0.99))
            for key, pairs in minutes_by_week.items()
        }
