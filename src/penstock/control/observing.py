"""What a physical cluster has now: the other side of the checker's comparison, and cells' load."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.balance.cells import TARGET
from penstock.balance.load import BrokerCapacity, BrokerSample, Load, Part, cell_load, tenant_loads
from penstock.control.checker import Found
from penstock.control.feeder import PARTITION
from penstock.control.placing import load_key
from penstock.control.rights import TENANT_NAME, present_rights
from penstock.kafka import topics
from penstock.kafka.log import bounds, read
from penstock.kafka.metrics import Traffic, scrape
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaMissing
from penstock.model.events import RegistryRecord, entity_of
from penstock.model.ids import LogicalClusterId
from penstock.model.tenantstate import TenantState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.control.reach import Clusters, Reach
    from penstock.control.units import CapacityUnit
    from penstock.kafka.client import Client

SMOOTHING: Final = 0.2  # weight of the newest sample: a moment of work does not fill a cell
REPLICAS: Final = 3  # of a partition, where there are three zones


async def found(client: Client, *, fused: bool = True) -> Found:
    listed = await topics.describe(client)
    placed = {
        name: frozenset(replica for partition in topic.partitions for replica in partition.replicas)
        for name, topic in listed.items()
        if TENANT_NAME.match(name) and not isinstance(topic, PenstockError)
    }
    return Found(await present_rights(client, fused=fused), placed, await published(client))


async def published(client: Client) -> dict[str, TenantState]:
    """What stands on `_penstock.state`, read from its start."""
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
                    states[tenant] = TenantState.from_record(RegistryRecord.from_bytes(record.value))
        position = chunk.position
    return states


@dataclass(frozen=True, slots=True)
class Observation:
    """Loads by `load_key`. A cell of which no broker answered is left out."""

    cells: Mapping[str, Load]
    tenants: Mapping[str, Mapping[LogicalClusterId, Load]]


class Observing(Protocol):
    """Who says how full cells are, and by whom."""

    async def look(self, reach: Reach, unit: CapacityUnit) -> Observation:
        """Since the last look at this cluster."""
        ...


@dataclass(frozen=True, slots=True)
class _Scraped:
    """One broker's counters, and when they were read."""

    time: float
    handler_idle_ratio: float
    replicas: int
    traffic: Traffic
    tenants: Mapping[LogicalClusterId, Traffic]


class Observer:
    """Looks at brokers' metrics. Replicas are counted by tenant only when a cell gets full: to list
    every topic of a cluster is much to ask of it each few seconds."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._before: dict[tuple[str, int], _Scraped] = {}
        self._replicas: dict[str, Counter[tuple[int, LogicalClusterId]]] = {}

    async def look(self, reach: Reach, unit: CapacityUnit) -> Observation:
        answers = await asyncio.gather(*(_scraped(host, port) for _, host, port in reach.metrics))
        now = {where[0]: one for where, one in zip(reach.metrics, answers) if one is not None}
        then = {broker: self._before.get((reach.id, broker), one) for broker, one in now.items()}
        self._before |= {(reach.id, broker): one for broker, one in now.items()}
        samples = {broker: _sample(then[broker], now[broker]) for broker in now}
        cells: dict[str, Load] = {}
        for cell in reach.cells:
            known = [samples[broker] for broker in cell.brokers if broker in samples]
            if known:
                cells[load_key(reach.id, cell.id)] = cell_load(known, capacity_of(unit, len(cell.brokers)))
        if any(load.highest >= TARGET for load in cells.values()):
            self._replicas[reach.id] = await _replicas(self._clusters.client(reach.id))
        counted = self._replicas.get(reach.id, Counter())
        tenants = {}
        for cell in reach.cells:
            key = load_key(reach.id, cell.id)
            if key in cells:
                parts = _parts([b for b in cell.brokers if b in now], then, now, counted)
                size = len(cell.brokers)
                tenants[key] = tenant_loads(parts, cells[key], size, capacity_of(unit, size))
        return Observation(cells, tenants)


async def _scraped(host: str, port: int) -> _Scraped | None:
    try:
        seen = (await scrape(host, port)).broker
    except PenstockError:
        return None
    tenants: dict[LogicalClusterId, Traffic] = {}
    for topic, traffic in seen.topics.items():
        if (found := TENANT_NAME.match(topic)) is not None:
            tenant = LogicalClusterId(found[1])
            sofar = tenants.get(tenant, Traffic())
            tenants[tenant] = Traffic(sofar.bytes_in + traffic.bytes_in, sofar.bytes_out + traffic.bytes_out)
    return _Scraped(time.monotonic(), seen.handler_idle_ratio, int(seen.replicas), seen.traffic, tenants)


def _sample(then: _Scraped, now: _Scraped) -> BrokerSample:
    return BrokerSample(now.handler_idle_ratio, now.replicas, *_rates(then, now, then.traffic, now.traffic))


def _rates(then: _Scraped, now: _Scraped, before: Traffic, after: Traffic) -> tuple[float, float]:
    """Bytes a second in and out. Counters begin anew with their broker, or with a deleted topic."""
    seconds = max(now.time - then.time, 1.0)
    return (
        max(0.0, after.bytes_in - before.bytes_in) / seconds,
        max(0.0, after.bytes_out - before.bytes_out) / seconds,
    )


def _parts(
    brokers: Sequence[int],
    then: Mapping[int, _Scraped],
    now: Mapping[int, _Scraped],
    replicas: Counter[tuple[int, LogicalClusterId]],
) -> dict[LogicalClusterId, Part]:
    """What each tenant takes of these brokers together."""
    parts: dict[LogicalClusterId, Part] = {}
    for broker in brokers:
        one = now[broker]
        for tenant, after in one.tenants.items():
            # A tenant that was not there at the last look has no rate yet.
            before = then[broker].tenants.get(tenant, after)
            ingress, egress = _rates(then[broker], one, before, after)
            sofar = parts.get(tenant, Part())
            parts[tenant] = Part(sofar.ingress + ingress, sofar.egress + egress)
    for (broker, tenant), count in replicas.items():
        if broker in brokers:
            sofar = parts.get(tenant, Part())
            parts[tenant] = replace(sofar, replicas=sofar.replicas + count)
    return parts


async def _replicas(client: Client) -> Counter[tuple[int, LogicalClusterId]]:
    """How many replicas each tenant has on each broker."""
    counted: Counter[tuple[int, LogicalClusterId]] = Counter()
    for name, topic in (await topics.describe(client)).items():
        found = TENANT_NAME.match(name)
        if found is not None and not isinstance(topic, PenstockError):
            tenant = LogicalClusterId(found[1])
            counted.update((replica, tenant) for part in topic.partitions for replica in part.replicas)
    return counted


class Averages:
    """Loads smoothed over a minute, beginning at idle; a cell that was not measured keeps its own."""

    def __init__(self) -> None:
        self.cells: dict[str, Load] = {}
        self.tenants: dict[str, dict[LogicalClusterId, Load]] = {}

    def take(self, seen: Observation) -> None:
        for cell, load in seen.cells.items():
            self.cells[cell] = self.cells.get(cell, Load()).mixed(load, SMOOTHING)
        for cell, parts in seen.tenants.items():
            before = self.tenants.get(cell, {})
            self.tenants[cell] = {
                tenant: before.get(tenant, Load()).mixed(load, SMOOTHING) for tenant, load in parts.items()
            }


def capacity_of(unit: CapacityUnit, brokers: int) -> BrokerCapacity:
    """A cell supports the largest logical cluster that is allowed on it; its brokers share that."""
    part = unit.units_max / brokers
    return BrokerCapacity(
        max(1, int(part * unit.partitions * REPLICAS)), part * unit.ingress_bytes, part * unit.egress_bytes
    )
