"""Tells a physical cluster's gateways what they need, through its `_penstock.state`.

It follows the registry, compares what should stand there with what does, and writes the
difference. So it can be killed anywhere and begun anew by anybody; its transactional id keeps a
predecessor from writing after that. What stands there it knows from the topic alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.control.coalescing import Coalesced
from penstock.control.wanted import tenant_state
from penstock.kafka.following import Follower
from penstock.kafka.log import Appender, Row, ensure_topic
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.topics import NewTopic
from penstock.model import faults
from penstock.model.entities import LogicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NotActive
from penstock.model.events import RegistryRecord, entity_of, registry_key
from penstock.model.keys import STATE_TOPIC
from penstock.model.tenantstate import TenantState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.control.registry import Registry
    from penstock.kafka.client import Client
    from penstock.wire.records import Record

TRANSACTIONAL_ID: Final = "_penstock.state"
DELETIONS_KEPT_MS: Final = 7 * 24 * 3600 * 1000
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(DELETIONS_KEPT_MS),
    "segment.ms": str(3600 * 1000),
    "min.cleanable.dirty.ratio": "0.3",
}
PARTITION: Final = TopicPartition(STATE_TOPIC, 0)

WRITE_BEFORE = faults.declare(
    "control.state.before", "a change is committed in the registry, and no gateway was told"
)


class Feeder:
    def __init__(
        self, client: Client, cluster: str, registry: Callable[[], Registry], holds: Callable[[], bool]
    ) -> None:
        self.cluster = cluster
        self._client = client
        self._registry = registry
        self._holds = holds
        self._appender = Appender(client, TRANSACTIONAL_ID)
        self._published: dict[str, TenantState] = {}
        self._dirty: set[str] = set()
        self._woken = asyncio.Event()
        self._write = Coalesced[str](self._flush)
        self._follower = Follower(client, PARTITION, take=self._take, reset=self._published.clear)
        self._failure: PenstockError | None = None
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. Everything is compared once, then what `mark` names."""
        await ensure_topic(self._client, NewTopic(STATE_TOPIC, 1, configs=COMPACTED))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follower.run())
            await self._appender.begin()
            await self._follower.until_caught_up()
            self.ready.set()
            self.mark(self._tenants() | set(self._published))
            while True:
                await self._woken.wait()
                self._woken.clear()
                if self._failure is not None:
                    raise self._failure
                dirty, self._dirty = self._dirty, set()
                for tenant in sorted(dirty):
                    self._write_soon(group, tenant)

    def mark(self, tenants: set[str]) -> None:
        self._dirty |= tenants
        self._woken.set()

    async def tell(self, tenant: str) -> None:
        """Returns when what the registry says of this tenant stands on the topic."""
        await self.ready.wait()
        await self._write.ask(tenant)

    def published(self) -> dict[str, TenantState]:
        return dict(self._published)

    def _write_soon(self, group: asyncio.TaskGroup, tenant: str) -> None:
        group.create_task(self._write.ask(tenant))

    def _tenants(self) -> set[str]:
        return {c.id for c in self._registry().all(LogicalCluster) if c.cluster == self.cluster}

    async def _flush(self, tenants: Sequence[str]) -> None:
        rows = []
        now = int(time.time() * 1000)
        for tenant in dict.fromkeys(tenants):
            wanted = self._wanted(tenant)
            before = self._published.get(tenant)
            if (wanted and wanted.says()) == (before and before.says()):
                continue
            if wanted is None:
                rows.append(Row(PARTITION, registry_key(TenantState.kind, tenant), None))
            else:
                version = before.version + 1 if before is not None else 1
                wanted = replace(wanted, version=version, changed_ms=now)
                record = wanted.to_record()
                rows.append(Row(PARTITION, record.key, record.to_bytes()))
        if not rows:
            return
        if not self._holds():
            raise NotActive(url="not known")
        faults.reach(WRITE_BEFORE)
        try:
            written = await self._appender.commit(rows)
        except PenstockError as failure:
            # Nobody knows what of it was written: whoever comes next begins anew, and looks.
            self._failure = failure
            self._woken.set()
            raise
        await self._follower.until(written[PARTITION])

    def _wanted(self, tenant: str) -> TenantState | None:
        registry = self._registry()
        cluster = registry.get(LogicalCluster, tenant)
        if cluster is None or cluster.cluster != self.cluster:
            return None
        return tenant_state(registry, tenant)

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind != TenantState.kind:
                continue
            if record.value is None:
                self._published.pop(tenant, None)
            else:
                told = TenantState.from_record(RegistryRecord.from_bytes(record.value))
                self._published[tenant] = told
