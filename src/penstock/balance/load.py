"""How full a cell is: the largest of broker load, replica utilisation and bandwidth utilisation.

What a broker's load is stands behind `LoadMetric`. Until the balancer has its own metric it is
`handler_busy`, the part of their time in which the broker's request handlers work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.model.ids import LogicalClusterId


@dataclass(frozen=True, slots=True)
class BrokerSample:
    """What was measured of one broker over the last window."""

    handler_idle_ratio: float
    replicas: int
    ingress: float  # bytes a second from clients
    egress: float  # bytes a second to clients


@dataclass(frozen=True, slots=True)
class BrokerCapacity:
    """What one broker may carry, found by benchmarking it."""

    replicas_max: int
    ingress_max: float  # bytes a second
    egress_max: float


class LoadMetric(Protocol):
    """0: idle, 1: all it can. Values above 1 are taken for 1."""

    def __call__(self, sample: BrokerSample, /) -> float: ...


def handler_busy(sample: BrokerSample, /) -> float:
    # Nodes that are controllers, too, told up to 2.0 before KIP-1207.
    return 1.0 - min(1.0, max(0.0, sample.handler_idle_ratio))


@dataclass(frozen=True, slots=True)
class Load:
    """Parts of a cell's capacity in use, each from 0 to about 1."""

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

    def mixed(self, newest: Load, weight: float) -> Load:
        """An exponential average: `weight` is what the newest counts."""
        return self.times(1 - weight).plus(newest.times(weight))


UNKNOWN: Final = Load(1.0, 1.0, 1.0)  # a cell nobody measured is no place for anybody


def cell_load(
    samples: Sequence[BrokerSample], capacity: BrokerCapacity, metric: LoadMetric = handler_busy
) -> Load:
    """Of the brokers that report. A dead broker's work shows on those that took it over."""
    if not samples:
        return UNKNOWN
    count = len(samples)
    ingress = sum(sample.ingress for sample in samples) / (count * capacity.ingress_max)
    egress = sum(sample.egress for sample in samples) / (count * capacity.egress_max)
    return Load(
        broker=sum(min(1.0, metric(sample)) for sample in samples) / count,
        replicas=sum(sample.replicas for sample in samples) / (count * capacity.replicas_max),
        bandwidth=max(ingress, egress),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """What one tenant takes of a cell, as counted on the cell's brokers."""

    ingress: float = 0.0  # bytes a second
    egress: float = 0.0
    replicas: int = 0


def tenant_loads(
    parts: Mapping[LogicalClusterId, Part], whole: Load, brokers: int, capacity: BrokerCapacity
) -> dict[LogicalClusterId, Load]:
    """Each tenant's part of a cell's load.

    Replicas and bytes are counted by tenant. Request handlers' time is not, so it is laid on tenants
    by their part of the bytes: right where requests are alike, too little for many small ones.
    """
    total = sum(part.ingress + part.egress for part in parts.values())
    return {
        tenant: Load(
            broker=whole.broker * (part.ingress + part.egress) / total if total else 0.0,
            replicas=part.replicas / (brokers * capacity.replicas_max),
            bandwidth=max(
                part.ingress / (brokers * capacity.ingress_max), part.egress / (brokers * capacity.egress_max)
            ),
        )
        for tenant, part in parts.items()
    }
