"""A coordinator: decides how the quotas of the tenants it owns are split over the gateways.

Tenants are hashed over the partitions of `_penstock.usage`, and a consumer group assigns the partitions
to the live coordinators. A coordinator reads the reports in its partitions, decides once an interval,
and publishes the shares to all gateways. When it dies, the group assigns its partitions to others within
a session; they continue from its last published shares. Until then gateways keep their shares.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.membership import SESSION_SECONDS, GroupMembership
from penstock.kafka.partition_log import bounds, read
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import OffsetOutOfRange
from penstock.model.events import RegistryRecord, UsageReport, entity_of
from penstock.model.ids import LogicalClusterId
from penstock.model.tenant_state import TenantState
from penstock.quota.share_follower import ShareFollower
from penstock.quota.sharing import DEFAULT_POLICY, SharingPolicy
from penstock.quota.tenant_usage import OwnedTenants
from penstock.quota.topics import QUOTA, USAGE_PARTITIONS, ensure_topics
from penstock.quota.usage_reports import GATEWAY_EXPIRY_SECONDS, INTERVAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.events import QuotaShares
    from penstock.wire.records import Record

PAUSE_SECONDS: Final = 0.5  # after a failed read
WAIT_MS: Final = 1000
BATCH_TENANTS_MAX: Final = 200  # in one record batch, each with a kilobyte or two
STATE: Final = TopicPartition(key_names.STATE_TOPIC, 0)

log = structlog.get_logger("penstock.quota")


class Coordinator:
    """The coordinator of one physical cluster."""

    def __init__(
        self,
        client: Client,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        session_seconds: float = SESSION_SECONDS,
        policy: SharingPolicy = DEFAULT_POLICY,
    ) -> None:
        self._client = client
        self._interval = interval_seconds
        self._session_seconds = session_seconds
        self._policy = policy
        self._quotas: dict[LogicalClusterId, Mapping[str, float]] = {}
        self._tenants: dict[int, OwnedTenants] = {}  # by owned partition, once recent reports are read
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._member: GroupMembership | None = None
        self.shares = ShareFollower(client)
        self.decisions = 0
        self.decide_seconds = 0.0

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that it decides for."""
        return frozenset(self._tenants)

    def not_ready(self) -> str:
        """Why it does not decide: it is ready while it is a member of its group and has read its topics."""
        if self._member is None:
            return "the quotas and their shares are not read"
        return "" if self._member.is_confirmed() else "it is no member of its group"

    async def run(self) -> None:
        """Runs until cancelled; then other coordinators take over at once."""
        await ensure_topics(self._client)
        state = CompactedTopicReader(self._client, STATE, apply=self._apply_state, reset=self._quotas.clear)
        member = GroupMembership(
            self._client,
            key_names.COORDINATORS_GROUP,
            key_names.USAGE_TOPIC,
            partitions=USAGE_PARTITIONS,
            changed=self._assigned,
            session_seconds=self._session_seconds,
        )
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(state.run())
                group.create_task(self.shares.follower.run())
                await state.wait_until_caught_up()
                await self.shares.follower.wait_until_caught_up()
                self._member = member
                group.create_task(member.run())
                group.create_task(self._decide_periodically(member))
        finally:
            self._assigned(frozenset())

    def _assigned(self, owned: frozenset[int]) -> None:
        for number in self._readers.keys() - owned:
            self._readers.pop(number).cancel()
            self._tenants.pop(number, None)
        for number in owned - self._readers.keys():
            assert self._group is not None
            self._readers[number] = self._group.create_task(self._read(number))
        log.info("usage partitions assigned", owned=sorted(owned))

    # Reading

    async def _read(self, number: int) -> None:
        """Reads the reports of one partition, from the oldest one that still counts."""
        partition = TopicPartition(key_names.USAGE_TOPIC, number)
        tenants = OwnedTenants(max(self.shares.epoch + 1, int(time.time() * 1000)), self._policy)
        position: int | None = None
        while True:
            try:
                if position is None:
                    position = await self._start_offset(partition)
                lane = f"read {partition}"
                chunk = await read(self._client, partition, position, wait_ms=WAIT_MS, lane=lane)
            except OffsetOutOfRange:
                position = None
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except PenstockError as failure:
                facts = {key_names.PARTITION: number, key_names.ERROR: str(failure)}
                log.warning("reports not read", **facts)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            position = chunk.position
            for record in chunk.records:
                self._add_report(tenants, record)
            if chunk.caught_up:
                self._tenants[number] = tenants

    async def _start_offset(self, partition: TopicPartition) -> int:
        since = int((time.time() - GATEWAY_EXPIRY_SECONDS) * 1000)
        result = (await list_offsets(self._client, {partition: since}))[partition]
        if isinstance(result, PenstockError):
            raise result
        return result.offset if result.offset >= 0 else (await bounds(self._client, partition))[1]

    def _add_report(self, tenants: OwnedTenants, record: Record) -> None:
        try:
            report = UsageReport.from_bytes(record.value)
            # One from the future would stay the newest: of a clock that is ahead, or of a stolen credential.
            report = replace(report, time_ms=min(report.time_ms, int(time.time() * 1000)))
            # A stolen gateway credential can invent tenants. A new one's next report counts.
            if report.tenant in self._quotas:
                tenants.add_report(report, self.shares.latest.get(report.tenant))
        except PenstockError as failure:
            log.warning("report not understood", **{key_names.ERROR: str(failure)})

    def _apply_state(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind != TenantState.kind:
                continue
            if record.value is None:
                self._quotas.pop(LogicalClusterId(tenant), None)
                continue
            try:
                state = TenantState.from_record(RegistryRecord.from_bytes(record.value))
                self._quotas[LogicalClusterId(tenant)] = state.quota
            except PenstockError as failure:
                facts = {key_names.TENANT: tenant, key_names.ERROR: str(failure)}
                log.warning("quota not understood", **facts)

    # Deciding

    async def _decide_periodically(self, member: GroupMembership) -> None:
        while True:
            await asyncio.sleep(self._interval)
            began = time.process_time()
            now_ms = int(time.time() * 1000)
            owned = member.owned()
            deciding = [tenants for number, tenants in self._tenants.items() if number in owned]
            shares = [each for tenants in deciding for each in tenants.decide(self._quotas, now_ms)]
            self.shares.forget(now_ms - int(GATEWAY_EXPIRY_SECONDS * 1000))
            self.decide_seconds += time.process_time() - began
            if shares:
                await self._publish(shares)

    async def _publish(self, shares: Sequence[QuotaShares]) -> None:
        try:
            async with asyncio.timeout(self._interval):
                for start in range(0, len(shares), BATCH_TENANTS_MAX):
                    batch = shares[start : start + BATCH_TENANTS_MAX]
                    await append(self._client, QUOTA, [(each.key, each.to_bytes()) for each in batch])
            self.decisions += len(shares)
        except (PenstockError, TimeoutError) as failure:
            # The next decision replaces them; until then gateways keep their shares.
            log.warning("shares not published", **{key_names.ERROR: str(failure) or "timed out"})
