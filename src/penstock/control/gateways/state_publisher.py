"""Publishes tenants' states to the gateways of one physical cluster, on its `_penstock.state` topic.

It follows the registry, compares the desired states with the topic, and writes the difference. What is
published is known from the topic alone, so it can be killed anywhere and restarted by a successor. Its
transactional id fences the predecessor.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.control.call_batching import BatchedCall
from penstock.control.desired_state import tenant_state
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer, ensure_topic
from penstock.model import fault_points, key_names
from penstock.model.entities import LogicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NoneActive, NotActive
from penstock.model.errors.wire import ConnectionLost
from penstock.model.events import RegistryRecord, entity_of, registry_key
from penstock.model.tenant_state import TenantState

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
PARTITION: Final = TopicPartition(key_names.STATE_TOPIC, 0)

log = structlog.get_logger("penstock.control")

BEFORE_PUBLISH = fault_points.declare(
    "control.state.before-publish", "a change is committed in the registry, and not published to gateways"
)


class StatePublisher:
    """The publisher of one physical cluster; owned by a leadership term."""

    def __init__(
        self, client: Client, cluster: str, registry: Callable[[], Registry], is_owner: Callable[[], bool]
    ) -> None:
        self.cluster = cluster
        self._client = client
        self._registry = registry
        self._is_owner = is_owner
        self._producer = TransactionalProducer(client, TRANSACTIONAL_ID)
        self._published: dict[str, TenantState] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._batched = BatchedCall[str](self._flush)
        self._follower = CompactedTopicReader(
            client, PARTITION, apply=self._apply_records, reset=self._published.clear
        )
        self._failure: PenstockError | None = None
        self.ready = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Runs until cancelled. Compares every tenant once, then those given to `mark_changed`."""
        try:
            await self._run()
        finally:
            self._ended.set()

    async def _run(self) -> None:
        await ensure_topic(self._client, NewTopic(key_names.STATE_TOPIC, 1, configs=COMPACTED))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follower.run())
            await self._producer.init()
            await self._follower.wait_until_caught_up()
            self.ready.set()
            self.mark_changed(self._tenants() | set(self._published))
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                changed, self._changed = self._changed, set()
                for tenant in sorted(changed):
                    group.create_task(self._publish_change(tenant))

    async def _publish_change(self, tenant: str) -> None:
        """A state that cannot be published delays its own tenant."""
        try:
            await self._batched.submit(tenant)
        except NotActive:
            raise
        except PenstockError as failure:
            facts = {key_names.CLUSTER: self.cluster, key_names.TENANT: tenant, key_names.ERROR: str(failure)}
            log.warning("state not published", **facts)

    def mark_changed(self, tenants: set[str]) -> None:
        self._changed |= tenants
        self._wake.set()

    async def publish(self, tenant: str) -> None:
        """Returns when the topic has the tenant's state as the registry declares it.

        Raises if this publisher ends before: what waits for it would never learn of its successor.
        """
        publishing = asyncio.create_task(self._publish(tenant))
        ending = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({publishing, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not publishing.done():
                raise ConnectionLost(address=self.cluster, reason="its publisher has ended")
            publishing.result()
        finally:
            publishing.cancel()
            ending.cancel()
            await asyncio.gather(publishing, ending, return_exceptions=True)

    async def _publish(self, tenant: str) -> None:
        await self.ready.wait()
        await self._batched.submit(tenant)

    def _tenants(self) -> set[str]:
        return {c.id for c in self._registry().all(LogicalCluster) if c.cluster == self.cluster}

    async def _flush(self, tenants: Sequence[str]) -> None:
        records = []
        now = int(time.time() * 1000)
        for tenant in dict.fromkeys(tenants):
            desired = self._desired(tenant)
            before = self._published.get(tenant)
            if (desired and desired.content()) == (before and before.content()):
                continue
            if desired is None:
                records.append(ProducerRecord(PARTITION, registry_key(TenantState.kind, tenant), None))
            else:
                version = before.version + 1 if before is not None else 1
                desired = replace(desired, version=version, changed_ms=now)
                record = desired.to_record()
                records.append(ProducerRecord(PARTITION, record.key, record.to_bytes()))
        if not records:
            return
        if not self._is_owner():
            raise NoneActive
        fault_points.reach(BEFORE_PUBLISH)
        try:
            written = await self._producer.commit(records)
        except PenstockError as failure:
            # It is unknown what was written: the next publisher starts from the topic.
            self._failure = failure
            self._wake.set()
            raise
        await self._follower.wait_for_offset(written[PARTITION])

    def _desired(self, tenant: str) -> TenantState | None:
        registry = self._registry()
        cluster = registry.get(LogicalCluster, tenant)
        if cluster is None or cluster.cluster != self.cluster:
            return None
        return tenant_state(registry, tenant)

    def _apply_records(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind != TenantState.kind:
                continue
            self._published.pop(tenant, None)
            if record.value is None:
                continue
            try:
                self._published[tenant] = TenantState.from_record(RegistryRecord.from_bytes(record.value))
            except PenstockError as failure:  # counts as not published, so it is replaced
                facts = {key_names.TENANT: tenant, key_names.ERROR: str(failure)}
                log.warning("published state not understood", **facts)
