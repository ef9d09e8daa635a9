"""Leads the partitions of a restored topic from a backup, through a shadow, until real brokers have it all.

Batches arrive byte for byte: offsets, holes, transaction markers, producer ids and timestamps. Only the
leader epoch, which no CRC covers, becomes the new topic's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.audit import intents
from penstock.kafka.metadata_image import PartitionId
from penstock.link.lineage import lineage_of
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import RestoreStuck
from penstock.model.errors.shadow import PartitionNotLed
from penstock.model.shadow_ids import is_shadow
from penstock.shadow.partition import LedPartition, RawBatch
from penstock.shadow.producer_ids import ProducerIds
from penstock.shadow.responses import Timestamp, Truncation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from penstock.audit.intents import IntentLog
    from penstock.backup.archive import Archive
    from penstock.backup.chain import Chain
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.link.lineage import Lineage
    from penstock.shadow.broker import ShadowBroker
    from penstock.wire.records import Batch

POLL_SECONDS: Final = 0.05
STUCK_SECONDS_MAX: Final = 120.0  # without any progress
PRODUCER_ID_ROUNDS_MAX: Final = 20  # of 200 blocks, and of 3,000 ids on each broker

log = structlog.get_logger()


@dataclass(slots=True)
class ReplayedPartition:
    place: TopicPartition
    chain: Chain
    led: LedPartition
    lineage: Lineage
    source: AsyncIterator[list[Batch]]  # from the end of `led` on

    @property
    def is_complete(self) -> bool:
        """Everything is on every in-sync replica."""
        return self.led.end >= self.chain.end and self.led.high_watermark >= self.chain.end


@dataclass(slots=True)
class Replay:
    restore: str
    shadow: ShadowBroker
    archive: Archive
    brokers: Client
    controllers: Client
    lineage: Callable[[TopicPartition], Mapping[str, Any]]
    write_lineage: Callable[[TopicPartition, Lineage], Awaitable[None]]
    intents: IntentLog
    partitions: dict[TopicPartition, ReplayedPartition] = field(default_factory=dict)

    async def lead(self, place: TopicPartition, chain: Chain) -> None:
        """Lead a partition from where its real replicas end; regain it if a real broker leads."""
        key = await self._known(place)
        self.shadow.forget(key)
        if self.shadow.image.partitions[key].leader != self.shadow.id:
            await self.shadow.regain(place.topic, key)
        start, end = await self._replica_range(place, key)
        if end == 0:
            start = end = chain.start
            actor = f"restore {self.restore}"
            await self.intents.record(intents.log_start(key.topic_id, key.partition, start, actor))
        lineage = lineage_of(self.lineage(place))
        older = self._older(chain)
        led = LedPartition(key, place.topic, start, end, older, epochs=lineage.destination_history(end))
        led.leftover = Truncation(self.shadow.image.partitions[key].leader_epoch - 1, end)
        source = self.archive.batches(chain, end)
        self.partitions[place] = ReplayedPartition(place, chain, led, lineage, source)
        self.shadow.lead(led)

    async def run(self) -> None:
        """Serve until every real in-sync replica has every batch."""
        progress, changed_at = -1, time.monotonic()
        while not all(one.is_complete for one in self.partitions.values()):
            moved = False
            for one in list(self.partitions.values()):
                moved = await self._feed(one) or moved
            done = sum(one.led.high_watermark + one.led.end for one in self.partitions.values())
            if done != progress:
                progress, changed_at = done, time.monotonic()
            elif time.monotonic() - changed_at > STUCK_SECONDS_MAX:
                raise self._stuck()
            if (failure := self.shadow.failure()) is not None:
                raise failure
            await asyncio.sleep(0 if moved else POLL_SECONDS)

    async def burn_producer_ids(self, largest: int) -> None:
        """Returns when no broker gives a restored id to a new producer."""
        ids = ProducerIds(self.shadow, self.brokers, self.controllers)
        ids.saw(largest)
        for _ in range(PRODUCER_ID_ROUNDS_MAX):
            await ids.burn()
            if not ids.below:
                return
        reason = f"brokers {', '.join(map(str, ids.below))} may still give out producer ids up to {largest}"
        raise RestoreStuck(restore=self.restore, seconds=0, reason=reason)

    async def _feed(self, one: ReplayedPartition) -> bool:
        """Append the next batches; false if there is nothing to do now."""
        state = self.shadow.image.partitions.get(one.led.id)
        if state is not None and state.leader != self.shadow.id and not self.shadow.session.fenced:
            log.warning("partition lost", partition=str(one.place), leader=state.leader)
            await self.lead(one.place, one.chain)
            return True
        term = one.led.leadership
        if term is None or not one.led.view().ready or not one.led.has_room or one.led.end >= one.chain.end:
            return False
        epoch = one.led.leader_epoch
        part = await anext(one.source, None)
        for batch in part or ():
            if not one.lineage.continues(batch.leader_epoch, epoch):
                start = max(one.led.end, batch.base_offset)
                lineage = one.lineage.extended(start, batch.leader_epoch, epoch)
                await self.write_lineage(one.place, lineage)
                one.lineage = lineage
            try:
                one.led.append([RawBatch(batch.base_offset, batch.last_offset, batch.raw)], epoch)
            except PartitionNotLed:
                # Another term has begun: this batch is read again, so that none is left out.
                one.source = self.archive.batches(one.chain, one.led.end)
                break
        self.shadow.announce()
        return True

    async def _known(self, place: TopicPartition) -> PartitionId:
        deadline = time.monotonic() + STUCK_SECONDS_MAX
        while place.partition not in self.shadow.image.partitions_of(place.topic):
            if time.monotonic() > deadline:
                raise self._stuck()
            await asyncio.sleep(POLL_SECONDS)
        return PartitionId(self.shadow.image.topics[place.topic], place.partition)

    async def _replica_range(self, place: TopicPartition, key: PartitionId) -> tuple[int, int]:
        """Start and end on the real in-sync replicas, from their own logs."""
        deadline = time.monotonic() + STUCK_SECONDS_MAX
        while time.monotonic() < deadline:
            real = [r for r in self.shadow.image.partitions[key].isr if not is_shadow(r)]
            try:
                ends = [await self.shadow.end_on(r, *place) for r in real]
                starts = [await self.shadow.end_on(r, *place, timestamp=Timestamp.EARLIEST) for r in real]
            except PenstockError as error:
                log.info("replicas not read", partition=str(place), error=str(error))
                ends, starts = [None], [None]
            known = [(s, e) for s, e in zip(starts, ends) if s is not None and e is not None]
            if real and len(known) == len(real):
                return min(s for s, _ in known), max(e for _, e in known)
            await asyncio.sleep(POLL_SECONDS)
        raise self._stuck()

    def _older(self, chain: Chain) -> Callable[[int, int], Awaitable[Sequence[RawBatch]]]:
        async def older(offset: int, bytes_max: int) -> Sequence[RawBatch]:
            result: list[RawBatch] = []
            async for part in self.archive.batches(chain, offset):
                for batch in part:
                    if result and sum(len(one.raw) for one in result) + len(batch.raw) > bytes_max:
                        return result
                    result.append(RawBatch(batch.base_offset, batch.last_offset, batch.raw))
                if result:
                    return result
            return result

        return older

    def _stuck(self) -> RestoreStuck:
        behind = [str(place) for place, one in self.partitions.items() if not one.is_complete]
        reason = f"waiting for {', '.join(behind) or 'the cluster'}"
        return RestoreStuck(restore=self.restore, seconds=STUCK_SECONDS_MAX, reason=reason)
