"""A coordinator: decides for the tenants that it owns how their quotas are split over the gateways.

Tenants are spread over the partitions of `_penstock.usage` by a hash, partitions over the coordinators
that live by their group. A coordinator reads the reports in its partitions, decides once an interval,
and tells all gateways. When it dies, the group gives its partitions to others within a session; they
go on from what it told last. Meanwhile gateways keep what they were told.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.appending import append
from penstock.kafka.following import Follower
from penstock.kafka.log import bounds, read
from penstock.kafka.membership import SESSION_SECONDS, Membership
from penstock.kafka.offsets import find
from penstock.kafka.partitions import TopicPartition
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import PlaceLost
from penstock.model.events import RegistryRecord, UsageReport, entity_of
from penstock.model.ids import LogicalClusterId
from penstock.model.tenantstate import TenantState
from penstock.quota.reports import GONE_SECONDS, INTERVAL_SECONDS
from penstock.quota.sharing import RULES, Rules
from penstock.quota.tenants import Tenants
from penstock.quota.told import Told
from penstock.quota.topics import QUOTA, USAGE_PARTITIONS, ensure_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.events import QuotaShares
    from penstock.wire.records import Record

PAUSE_SECONDS: Final = 0.5  # after a failed read
WAIT_MS: Final = 1000
TOLD_AT_ONCE: Final = 200  # tenants in one batch, each with a kilobyte or two
STATE: Final = TopicPartition(keys.STATE_TOPIC, 0)

log = structlog.get_logger("penstock.quota")


class Coordinator:
    """Of one physical cluster."""

    def __init__(
        self,
        client: Client,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        session_seconds: float = SESSION_SECONDS,
        rules: Rules = RULES,
    ) -> None:
        self._client = client
        self._interval = interval_seconds
        self._session_seconds = session_seconds
        self._rules = rules
        self._quotas: dict[LogicalClusterId, Mapping[str, float]] = {}
        self._parts: dict[int, Tenants] = {}  # owned, and their reports of late are read
        self._reading: dict[int, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self.told = Told(client)
        self.decided = 0
        self.decide_seconds = 0.0

    @property
    def owned(self) -> frozenset[int]:
        """The parts that it decides for."""
        return frozenset(self._parts)

    async def run(self) -> None:
        """Until cancelled; then others take over at once."""
        await ensure_topics(self._client)
        state = Follower(self._client, STATE, take=self._take_state, reset=self._quotas.clear)
        member = Membership(
            self._client,
            keys.COORDINATORS_GROUP,
            keys.USAGE_TOPIC,
            partitions=USAGE_PARTITIONS,
            changed=self._assigned,
            session_seconds=self._session_seconds,
        )
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(state.run())
                group.create_task(self.told.follower.run())
                await state.until_caught_up()
                await self.told.follower.until_caught_up()
                group.create_task(member.run())
                group.create_task(self._decide_always(member))
        finally:
            self._assigned(frozenset())

    def _assigned(self, owned: frozenset[int]) -> None:
        for part in self._reading.keys() - owned:
            self._reading.pop(part).cancel()
            self._parts.pop(part, None)
        for part in owned - self._reading.keys():
            assert self._group is not None
            self._reading[part] = self._group.create_task(self._read(part))
        log.info("tenants' parts", owned=sorted(owned))

    # Reading

    async def _read(self, part: int) -> None:
        """The reports of one part. What is older than it is of use is not read."""
        partition = TopicPartition(keys.USAGE_TOPIC, part)
        tenants = Tenants(max(self.told.epoch + 1, int(time.time() * 1000)), self._rules)
        position: int | None = None
        while True:
            try:
                if position is None:
                    position = await self._place(partition)
                chunk = await read(
                    self._client, partition, position, wait_ms=WAIT_MS, lane=f"read {partition}"
                )
            except PlaceLost:
                position = None
                continue
            except PenstockError as failure:
                log.warning("reports not read", **{keys.PARTITION: part, keys.ERROR: str(failure)})
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            position = chunk.position
            for record in chunk.records:
                self._take_report(tenants, record)
            if chunk.caught_up:
                self._parts[part] = tenants

    async def _place(self, partition: TopicPartition) -> int:
        since = int((time.time() - GONE_SECONDS) * 1000)
        found = (await find(self._client, {partition: since}))[partition]
        if isinstance(found, PenstockError):
            raise found
        return found.offset if found.offset >= 0 else (await bounds(self._client, partition))[1]

    def _take_report(self, tenants: Tenants, record: Record) -> None:
        try:
            report = UsageReport.from_bytes(record.value)
        except PenstockError as failure:
            log.warning("report not understood", **{keys.ERROR: str(failure)})
            return
        tenants.take(report, self.told.last.get(report.tenant))

    def _take_state(self, records: Sequence[Record]) -> None:
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
                log.warning("quota not taken over", **{keys.TENANT: tenant, keys.ERROR: str(failure)})

    # Deciding

    async def _decide_always(self, member: Membership) -> None:
        while True:
            await asyncio.sleep(self._interval)
            began = time.process_time()
            now_ms = int(time.time() * 1000)
            owned = member.owned()
            shares = [
                each
                for part, tenants in self._parts.items()
                if part in owned
                for each in tenants.decide(self._quotas, now_ms)
            ]
            self.told.forget(now_ms - int(GONE_SECONDS * 1000))
            self.decide_seconds += time.process_time() - began
            if shares:
                await self._tell(shares)

    async def _tell(self, shares: Sequence[QuotaShares]) -> None:
        try:
            async with asyncio.timeout(self._interval):
                for start in range(0, len(shares), TOLD_AT_ONCE):
                    some = shares[start : start + TOLD_AT_ONCE]
                    await append(self._client, QUOTA, [(each.key, each.to_bytes()) for each in some])
            self.decided += len(shares)
        except (PenstockError, TimeoutError) as failure:
            # The next ones replace them; meanwhile gateways keep what they have.
            log.warning("shares not told", **{keys.ERROR: str(failure) or "it took too long"})
