"""How full a cell is: the largest of broker load, replica utilisation and bandwidth utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.model.ids import LogicalClusterId


@dataclass(frozen=True, slots=True)
class BrokerSample:
    """One broker, averaged over the last minute."""

    load: float  # of `broker_load`
    replicas: int
    ingress: float  # bytes a second from clients
    egress: float  # bytes a second to clients


@dataclass(frozen=True, slots=True)
class BrokerCapacity:
    """What one broker can carry, as benchmarks measured it."""

    replicas_max: int
    ingress_max: float  # bytes a second
    egress_max: float


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of a cell's capacity in use, each from 0 to about 1."""

    broker: float = 0.0
    replicas: float = 0.0
    bandwidth: float = 0.0

    @property
    def highest(self) -> float:
        return max(self.broker, self.replicas, self.bandwidth)

    def plus(self, other: Load) -> Load:
        return Load(
            self.broker + other.broker, self.replicas + other.replicas, self.bandwidth + other.bandwidth
        )

    def minus(self, other: Load) -> Load:
        return Load(
            max(0.0, self.broker - other.broker),
            max(0.0, self.replicas - other.replicas),
            max(0.0, self.bandwidth - other.bandwidth),
        )

    def times(self, factor: float) -> Load:
        return Load(self.broker * factor, self.replicas * factor, self.bandwidth * factor)


UNKNOWN: Final = Load(1.0, 1.0, 1.0)  # for placement among measured cells: a cell without measurements


def cell_load(samples: Sequence[BrokerSample], capacity: BrokerCapacity) -> Load:
    """The load of a cell, all of whose brokers are known (Kora §5.3)."""
    count = len(samples)
    ingress = sum(sample.ingress for sample in samples) / (count * capacity.ingress_max)
    egress = sum(sample.egress for sample in samples) / (count * capacity.egress_max)
    return Load(
        broker=sum(sample.load for sample in samples) / count,
        replicas=sum(sample.replicas for sample in samples) / (count * capacity.replicas_max),
        bandwidth=max(ingress, egress),
    )


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """One tenant's traffic and replicas, counted on the brokers of its cell."""

    ingress: float = 0.0  # bytes a second
    egress: float = 0.0
    replicas: int = 0


def tenant_loads(
    usage: Mapping[LogicalClusterId, TenantUsage], cell: Load, brokers: int, capacity: BrokerCapacity
) -> dict[LogicalClusterId, Load]:
    """Each tenant's contribution to a cell's load.

    Kafka counts replicas and bytes by tenant, but not the time of request handlers. That is attributed
    by bytes: exact if requests are alike, too low for tenants with many small requests.
    """
    total = sum(one.ingress + one.egress for one in usage.values())
    return {
        tenant: Load(
            broker=cell.broker * (one.ingress + one.egress) / total if total else 0.0,
            replicas=one.replicas / (brokers * capacity.replicas_max),
            bandwidth=max(one.ingress / capacity.ingress_max, one.egress / capacity.egress_max) / brokers,
        )
        for tenant, one in usage.items()
    }
