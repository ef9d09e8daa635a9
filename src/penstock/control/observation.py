"""Reads a physical cluster as it is: its actual state for the checker, and the load of its cells."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.balance.cell_load import (
    BrokerCapacity,
    BrokerSample,
    Load,
    TenantUsage,
    cell_load,
    tenant_loads,
)
from penstock.balance.cells import TARGET
from penstock.control.checker import ActualState
from penstock.control.cluster_placement import load_key
from penstock.control.kafka_access import TENANT_NAME, read_access
from penstock.control.state_publisher import PARTITION
from penstock.kafka.admin import topics
from penstock.kafka.broker_metrics import Traffic, scrape
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaMissing
from penstock.model.events import RegistryRecord, entity_of
from penstock.model.ids import LogicalClusterId
from penstock.model.tenant_state import TenantState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.control.capacity_units import CapacityUnit
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
    from penstock.kafka.client import Client

SMOOTHING: Final = 0.2  # weight of the newest sample; a short burst does not fill a cell
REPLICAS: Final = 3  # of a partition, with three zones


async def read_actual_state(client: Client, *, sets_client_quotas: bool = True) -> ActualState:
    listed = await topics.describe(client)
    placed = {
        name: frozenset(replica for partition in topic.partitions for replica in partition.replicas)
        for name, topic in listed.items()
        if TENANT_NAME.match(name) and not isinstance(topic, PenstockError)
    }
    return ActualState(
        await read_access(client, sets_client_quotas=sets_client_quotas),
        placed,
        await read_published_states(client),
    )


async def read_published_states(client: Client) -> dict[str, TenantState]:
    """The tenant states on `_penstock.state`, read from its start."""
    states: dict[str, TenantState] = {}
    try:
        position, end = await bounds(client, PARTITION)
    except KafkaMissing:
        return states
    while position < end:
        chunk = await read(client, PARTITION, position)
        for record in chunk.records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind == TenantState.kind:
                states.pop(tenant, None)
                if record.value is not None:
                    with suppress(PenstockError):  # unreadable for gateways, too: it counts as missing
                        states[tenant] = TenantState.from_record(RegistryRecord.from_bytes(record.value))
        position = chunk.position
    return states


@dataclass(frozen=True, slots=True)
class Observation:
    """Loads by `load_key`. A cell without a responding broker is left out."""

    cells: Mapping[str, Load]
    tenants: Mapping[str, Mapping[LogicalClusterId, Load]]


class LoadObserver(Protocol):
    """Measures the load of cells, and each tenant's contribution."""

    async def observe(self, provided: ProvidedCluster, unit: CapacityUnit) -> Observation:
        """The load since the previous observation of this cluster."""
        ...


@dataclass(frozen=True, slots=True)
class _BrokerCounters:
    """One broker's counters, and when they were scraped."""

    time: float
    handler_idle_ratio: float
    replicas: int
    traffic: Traffic
    tenants: Mapping[LogicalClusterId, Traffic]


class MetricsObserver:
    """Scrapes brokers' metrics.

    Replicas are counted by tenant only when a cell gets full: listing every topic of a cluster every few
    seconds would be too expensive.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._before: dict[tuple[str, int], _BrokerCounters] = {}
        self._replicas: dict[str, Counter[tuple[int, LogicalClusterId]]] = {}

    async def observe(self, provided: ProvidedCluster, unit: CapacityUnit) -> Observation:
        scraped = await asyncio.gather(*(_scrape(host, port) for _, host, port in provided.metrics))
        now = {where[0]: one for where, one in zip(provided.metrics, scraped) if one is not None}
        then = {broker: self._before.get((provided.id, broker), one) for broker, one in now.items()}
        self._before |= {(provided.id, broker): one for broker, one in now.items()}
        samples = {broker: _sample(then[broker], now[broker]) for broker in now}
        cells: dict[str, Load] = {}
        for cell in provided.cells:
            known = [samples[broker] for broker in cell.brokers if broker in samples]
            if known:
                cells[load_key(provided.id, cell.id)] = cell_load(
                    known, broker_capacity(unit, len(cell.brokers))
                )
        if any(load.highest >= TARGET for load in cells.values()):
            self._replicas[provided.id] = await _count_replicas(self._clusters.client(provided.id))
        counted = self._replicas.get(provided.id, Counter())
        tenants = {}
        for cell in provided.cells:
            key = load_key(provided.id, cell.id)
            if key in cells:
                usage = _tenant_usage([b for b in cell.brokers if b in now], then, now, counted)
                size = len(cell.brokers)
                tenants[key] = tenant_loads(usage, cells[key], size, broker_capacity(unit, size))
        return Observation(cells, tenants)


async def _scrape(host: str, port: int) -> _BrokerCounters | None:
    try:
        observed = (await scrape(host, port)).broker
    except PenstockError:
        return None
    tenants: dict[LogicalClusterId, Traffic] = {}
    for topic, traffic in observed.topics.items():
        if (match := TENANT_NAME.match(topic)) is not None:
            tenant = LogicalClusterId(match[1])
            total = tenants.get(tenant, Traffic())
            tenants[tenant] = Traffic(total.bytes_in + traffic.bytes_in, total.bytes_out + traffic.bytes_out)
    return _BrokerCounters(
        time.monotonic(), observed.handler_idle_ratio, int(observed.replicas), observed.traffic, tenants
    )


def _sample(then: _BrokerCounters, now: _BrokerCounters) -> BrokerSample:
    return BrokerSample(now.handler_idle_ratio, now.replicas, *_rates(then, now, then.traffic, now.traffic))


def _rates(
    then: _BrokerCounters, now: _BrokerCounters, before: Traffic, after: Traffic
) -> tuple[float, float]:
    """Bytes per second in and out. Counters restart with their broker, or with a recreated topic."""
    seconds = max(now.time - then.time, 1.0)
    return (
        max(0.0, after.bytes_in - before.bytes_in) / seconds,
        max(0.0, after.bytes_out - before.bytes_out) / seconds,
    )


def _tenant_usage(
    brokers: Sequence[int],
    then: Mapping[int, _BrokerCounters],
    now: Mapping[int, _BrokerCounters],
    replicas: Counter[tuple[int, LogicalClusterId]],
) -> dict[LogicalClusterId, TenantUsage]:
    """Each tenant's usage of these brokers together."""
    usage: dict[LogicalClusterId, TenantUsage] = {}
    for broker in brokers:
        one = now[broker]
        for tenant, after in one.tenants.items():
            # A tenant without a previous sample has no rate yet.
            before = then[broker].tenants.get(tenant, after)
            ingress, egress = _rates(then[broker], one, before, after)
            total = usage.get(tenant, TenantUsage())
            usage[tenant] = TenantUsage(total.ingress + ingress, total.egress + egress)
    for (broker, tenant), count in replicas.items():
        if broker in brokers:
            total = usage.get(tenant, TenantUsage())
            usage[tenant] = replace(total, replicas=total.replicas + count)
    return usage


async def _count_replicas(client: Client) -> Counter[tuple[int, LogicalClusterId]]:
    """How many replicas each tenant has on each broker."""
    counted: Counter[tuple[int, LogicalClusterId]] = Counter()
    for name, topic in (await topics.describe(client)).items():
        match = TENANT_NAME.match(name)
        if match is not None and not isinstance(topic, PenstockError):
            tenant = LogicalClusterId(match[1])
            counted.update((replica, tenant) for part in topic.partitions for replica in part.replicas)
    return counted


class LoadAverages:
    """Loads smoothed over a minute, starting at idle; a cell without a new measurement keeps its value."""

    def __init__(self) -> None:
        self.cells: dict[str, Load] = {}
        self.tenants: dict[str, dict[LogicalClusterId, Load]] = {}

    def add(self, observed: Observation) -> None:
        for cell, load in observed.cells.items():
            self.cells[cell] = self.cells.get(cell, Load()).smoothed(load, SMOOTHING)
        for cell, usage in observed.tenants.items():
            before = self.tenants.get(cell, {})
            self.tenants[cell] = {
                tenant: before.get(tenant, Load()).smoothed(load, SMOOTHING) for tenant, load in usage.items()
            }


def broker_capacity(unit: CapacityUnit, brokers: int) -> BrokerCapacity:
    """The capacity of one broker of a cell that can carry the largest allowed logical cluster."""
    units = unit.units_max / brokers
    return BrokerCapacity(
        max(1, int(units * unit.partitions * REPLICAS)), units * unit.ingress_bytes, units * unit.egress_bytes
    )
