"""A mirrored partition, and how it is attached: from where its real replicas end, by its lineage.

If the source has truncated records that are mirrored, they must go here too. The lineage shows up to where
both logs agree. The truncation is recorded, the partition gets a new leader epoch, and every replica
truncates to that point before anything is appended: in the old epoch a slow replica's records could be
mistaken for those that follow.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from penstock.link import source
from penstock.link.lineage import Lineage, agreed_end, has_diverged
from penstock.model.errors import PenstockError
from penstock.model.errors.link import SourceUnusable
from penstock.model.errors.shadow import PartitionNotLed
from penstock.model.shadow_ids import is_shadow
from penstock.shadow.responses import NO_OFFSET, Timestamp
from penstock.wire.records import batches

if TYPE_CHECKING:
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.kafka.metadata_image import PartitionId
    from penstock.shadow.broker import ShadowBroker
    from penstock.shadow.partition import LedPartition

POLL_SECONDS: Final = 0.05
RANGE_SECONDS_MAX: Final = 60.0

log = structlog.get_logger()


@dataclass(slots=True)
class MirrorPartition:
    place: TopicPartition
    led: LedPartition
    lineage: Lineage
    source_end: int = -1  # the source's high watermark at the last fetch
    failed: str = ""
    unverified: str = ""  # why it is not known yet that both logs agree: it is served, and nothing is fetched

    held_start: int | None = None  # of the source: it has stopped because nothing explains it
    accepted_start: int = NO_OFFSET  # by the operator
    start_checked_at: float = -math.inf  # monotonic

    @property
    def lag(self) -> int | None:
        """Offsets that are not on every in-sync replica here; None if it is not known."""
        return None if self.source_end < 0 else max(0, self.source_end - self.led.high_watermark)

    @property
    def is_ready(self) -> bool:
        """Whether the shadow leads it, knows its high watermark, and that its log is the source's."""
        return not self.unverified and self.led.leadership is not None and self.led.view().ready

    @property
    def is_due(self) -> bool:
        """Whether records may be fetched for it now."""
        return not self.failed and self.is_ready and not self.led.truncating and self.led.has_room


async def replica_range(shadow: ShadowBroker, place: TopicPartition, key: PartitionId) -> tuple[int, int]:
    """Start and end of the mirror on its real in-sync replicas."""
    deadline = time.monotonic() + RANGE_SECONDS_MAX
    while True:
        state = shadow.image.partitions.get(key)
        real = [r for r in state.isr if not is_shadow(r)] if state is not None else []
        try:
            ends = [await shadow.end_on(r, *place) for r in real]
            starts = [await shadow.end_on(r, *place, timestamp=Timestamp.EARLIEST) for r in real]
            known_ends = [end for end in ends if end is not None]
            known_starts = [start for start in starts if start is not None]
            if real and len(known_ends) == len(known_starts) == len(real):
                return min(known_starts), max(known_ends)
        except PenstockError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise PartitionNotLed(partition=place, epoch=-1)
        await asyncio.sleep(POLL_SECONDS)


async def diverged_at(client: Client, place: TopicPartition, lineage: Lineage, end: int) -> int | None:
    """Up to where both logs agree, if the source has truncated below `end`; None if it has not."""
    epoch = lineage.source_epoch_at(end)
    if epoch < 0:
        return None
    there = await source.epoch_end(client, place, epoch)
    if not has_diverged(end, there, epoch):
        return None
    agreed, certain = agreed_end(lineage, end, epoch, there)
    while not certain:
        epoch = lineage.source_epoch_at(agreed)
        if epoch < 0:
            raise SourceUnusable(reason=f"no record below the mirror's end {end} is on the source any more")
        agreed, certain = agreed_end(lineage, agreed, epoch, await source.epoch_end(client, place, epoch))
    return agreed


async def unrecorded_at(
    brokers: Client, replica: int, place: TopicPartition, lineage: Lineage, offsets: tuple[int, int]
) -> int | None:
    """The first offset of a replica, up to its high watermark, whose leader epoch the lineage does not have.

    Then the lineage is older than the mirror, since records of `_penstock.links` were lost: it would have
    records truncated that the source has."""
    start, end = offsets
    history = lineage.destination_history(end)
    position = start
    while position < end:
        fetched = (await source.fetch(brokers, replica, {place: position}, wait_ms=0, lane="lineage")).get(
            place
        )
        stored = [one for one in batches(fetched.data) if one.last_offset >= position] if fetched else []
        for batch in stored:
            offset = max(batch.base_offset, start)
            if offset < end and history.at(offset) != batch.leader_epoch:
                return offset
            position = batch.last_offset + 1
        if not stored:
            return None
    return None


async def new_epoch_for(shadow: ShadowBroker, place: TopicPartition, key: PartitionId, epoch: int) -> None:
    """Lead in a later epoch than this one."""
    state = shadow.image.partitions[key]
    if state.leader != shadow.id:
        await shadow.regain(place.topic, key)
    elif state.leader_epoch <= epoch:
        await shadow.renew_epoch(place.topic, key)
