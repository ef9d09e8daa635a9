"""What a physical cluster has now: the other side of the checker's comparison, and cells' load."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from penstock.balance.load import BrokerCapacity, BrokerSample, cell_load
from penstock.control.checker import Found
from penstock.control.feeder import PARTITION
from penstock.control.placing import load_key
from penstock.control.rights import TENANT_NAME, present_rights
from penstock.kafka import topics
from penstock.kafka.log import bounds, read
from penstock.kafka.metrics import scrape
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaMissing
from penstock.model.events import RegistryRecord, entity_of
from penstock.model.tenantstate import TenantState

if TYPE_CHECKING:
    from penstock.control.reach import Reach
    from penstock.control.units import CapacityUnit
    from penstock.kafka.client import Client
    from penstock.kafka.metrics import Traffic

REPLICAS: Final = 3  # of a partition, where there are three zones


async def found(client: Client) -> Found:
    listed = await topics.describe(client)
    placed = {
        name: frozenset(replica for partition in topic.partitions for replica in partition.replicas)
        for name, topic in listed.items()
        if TENANT_NAME.match(name) and not isinstance(topic, PenstockError)
    }
    return Found(await present_rights(client), placed, await published(client))


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


class Observer:
    """Looks at brokers' metrics, and tells how full each cell is since it looked before."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[float, Traffic]] = {}

    async def loads(self, reach: Reach, unit: CapacityUnit) -> dict[str, float]:
        """By `load_key`; a cell of which no broker answered is left out."""
        answers = await asyncio.gather(*(self._sample(reach.id, *where) for where in reach.metrics))
        samples = {where[0]: sample for where, sample in zip(reach.metrics, answers) if sample is not None}
        found = {}
        for cell in reach.cells:
            known = [samples[broker] for broker in cell.brokers if broker in samples]
            if known:
                capacity = capacity_of(unit, len(cell.brokers))
                found[load_key(reach.id, cell.id)] = cell_load(known, capacity).highest
        return found

    async def _sample(self, cluster: str, broker: int, host: str, port: int) -> BrokerSample | None:
        try:
            seen = (await scrape(host, port)).broker
        except PenstockError:
            return None
        now = time.monotonic()
        then, traffic = self._before.get((cluster, broker), (now, seen.traffic))
        self._before[cluster, broker] = now, seen.traffic
        seconds = max(now - then, 1.0)
        return BrokerSample(
            seen.handler_idle_ratio,
            int(seen.replicas),
            max(0.0, seen.traffic.bytes_in - traffic.bytes_in) / seconds,
            max(0.0, seen.traffic.bytes_out - traffic.bytes_out) / seconds,
        )


def capacity_of(unit: CapacityUnit, brokers: int) -> BrokerCapacity:
    """A cell supports the largest logical cluster that is allowed on it; its brokers share that."""
    part = unit.units_max / brokers
    return BrokerCapacity(
        max(1, int(part * unit.partitions * REPLICAS)), part * unit.ingress_bytes, part * unit.egress_bytes
    )
