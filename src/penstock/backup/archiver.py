"""Archives untiered data: raw batches from followers, in format 1, every few seconds.

It keeps no state: where it continues is the end of the last stored segment of each topic id and partition.
A segment counts once its manifest is stored. If retention was faster, the gap is recorded before anything
after it is stored. A failure belongs to the partition or broker that has it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import structlog

from penstock.backup import raw_fetch
from penstock.backup.archive import Archive
from penstock.backup.layout import Gap, canonical
from penstock.backup.raw_fetch import LogId
from penstock.backup.sources import Replicas, choose_sources
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.offsets import OffsetSpec, list_offsets
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link.source import epoch_end, log_range
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import ObjectExists, SegmentDamaged
from penstock.model.fault_points import declare, reach
from penstock.tier.format import LOG, MANIFEST, Origin, describe_log, encode_manifest, id_text
from penstock.tier.metadata import TOPIC as TIER_METADATA
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.kafka.client import Client
    from penstock.tier.store import Store

SEGMENT_BYTES: Final = 8 << 20  # a buffer of this size is stored at once
BUFFERED_BYTES_MAX: Final = 64 << 20
PARTITIONS_PER_FETCH: Final = 500
UPLOADED: Final = declare(
    "backup.archive.uploaded", "the log of an archived segment is stored, and its manifest is not"
)

log = structlog.get_logger()


@dataclass(slots=True)
class ArchivedLog:
    """Progress of one partition."""

    place: TopicPartition
    position: int  # the next offset to fetch
    epoch: int  # leader epoch of the last archived batch; −1: none
    stored: int  # everything below is stored
    end: int = -1  # the high watermark at the last fetch
    start: int = -1  # the log start at the last fetch; −1: not known
    buffer: bytearray = field(default_factory=bytearray)
    problem: str = ""

    @property
    def lag(self) -> int:
        return max(0, self.end - self.stored)


@dataclass(slots=True)
class Totals:
    segments: int = 0
    log_bytes: int = 0
    gaps: int = 0
    failures: int = 0


class Archiver:
    """Call `resume` once, then `round` again and again."""

    def __init__(
        self,
        client: Client,
        store: Store,
        *,
        selects: Callable[[str], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._store = store
        self._selects = selects
        self._now = now
        self.cluster = ""
        self.logs: dict[LogId, ArchivedLog] = {}
        self.totals = Totals()
        self.last_round_at = 0.0  # Unix time at which everything due was stored
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}  # from the store: next offset and epoch
        self._avoided: set[int] = set()

    async def resume(self) -> None:
        """Learn from the store where each partition ends. A segment that cannot be read is fetched again."""
        self.cluster = (await self._client.cluster()).id or ""
        archive = Archive(self.cluster, [self._store])
        await archive.load()
        for manifest in await archive.last_manifests():
            epoch = manifest.leader_epochs[-1][0] if manifest.leader_epochs else -1
            self._ends[manifest.topic_id, manifest.partition] = (manifest.end_offset + 1, epoch)

    async def round(self) -> None:
        """Store everything below the present high watermarks."""
        described = await topics.describe(self._client)
        present: dict[LogId, Replicas] = {}
        for name, topic in described.items():
            if isinstance(topic, PenstockError) or not self._selects(name):
                continue
            for partition in topic.partitions:
                key = LogId(topic.id, partition.index)
                present[key] = Replicas(partition.leader, partition.isr)
                if key not in self.logs:
                    await self._add(key, TopicPartition(name, partition.index))
        for key in [key for key in self.logs if key not in present]:
            await self._flush(key)
            del self.logs[key]
        known = {key: replicas for key, replicas in present.items() if key in self.logs}
        for key in known:
            self.logs[key].problem = ""
        live = (await self._client.cluster(refresh=True)).nodes
        sources = choose_sources(known, live, avoid=self._avoided)
        self._avoided = set()
        by_broker: dict[int, list[LogId]] = {}
        for key, broker in sources.items():
            by_broker.setdefault(broker, []).append(key)
        await asyncio.gather(*(self._archive_from(broker, keys) for broker, keys in by_broker.items()))
        if not any(one.problem for one in self.logs.values()) and not self._avoided:
            self.last_round_at = self._now()

    async def _add(self, key: LogId, place: TopicPartition) -> None:
        known = self._ends.get((id_text(key.topic_id), key.partition))
        try:
            start = known[0] if known else await self._first_offset(place)
        except PenstockError as error:
            log.warning("partition not archived yet", partition=str(place), error=str(error))
            self.totals.failures += 1
            return
        self.logs[key] = ArchivedLog(place, start, known[1] if known else -1, start)

    async def _first_offset(self, place: TopicPartition) -> int:
        """The log start; of a tiered topic, where the part begins that is not uploaded."""
        resource = configs.topic(place.topic)
        described = (await configs.describe(self._client, [resource], names=["remote.storage.enable"]))[
            resource
        ]
        if isinstance(described, PenstockError):
            raise described
        tiered = described.get("remote.storage.enable")
        if tiered is not None and tiered.value == "true":
            pending = (await list_offsets(self._client, {place: OffsetSpec.EARLIEST_PENDING_UPLOAD}))[place]
            if not isinstance(pending, PenstockError) and pending.offset >= 0:
                return pending.offset
        start, _ = await log_range(self._client, place)
        return start

    async def _archive_from(self, broker: int, keys: list[LogId]) -> None:
        """Everything that one broker has of these partitions."""
        for at in range(0, len(keys), PARTITIONS_PER_FETCH):
            due = keys[at : at + PARTITIONS_PER_FETCH]
            while due:
                positions = {key: self.logs[key].position for key in due}
                try:
                    fetched = await raw_fetch.fetch(self._client, broker, positions)
                except PenstockError as error:
                    log.warning("broker not fetched from", broker=broker, error=str(error))
                    self.totals.failures += 1
                    self._avoided.add(broker)
                    break
                due = [key for key in due if key in fetched and await self._take(key, fetched[key], broker)]
            for key in keys[at : at + PARTITIONS_PER_FETCH]:
                await self._flush(key, broker)

    async def _take(self, key: LogId, fetched: raw_fetch.RawLog, broker: int) -> bool:
        """Buffer what was fetched; true if there may be more."""
        one = self.logs[key]
        try:
            if fetched.out_of_range:
                return await self._reposition(key, one, broker)
            one.end, one.start = max(one.end, fetched.high_watermark), fetched.start
            taken = await self._buffer(key, one, fetched, broker)
        except PenstockError as error:
            self._failed(one, error)
            return False
        buffered = sum(len(other.buffer) for other in self.logs.values())
        if len(one.buffer) >= SEGMENT_BYTES or buffered > BUFFERED_BYTES_MAX:
            await self._flush(key, broker)
        return taken and not one.problem and one.position < one.end

    async def _buffer(self, key: LogId, one: ArchivedLog, fetched: raw_fetch.RawLog, broker: int) -> bool:
        taken = False
        for batch in batches(fetched.data):
            if batch.last_offset < one.position or batch.base_offset >= fetched.high_watermark:
                continue
            if not batch.is_intact:
                raise SegmentDamaged(segment=f"{one.place} at {batch.base_offset}", reason="its CRC is wrong")
            if one.epoch not in (-1, batch.leader_epoch) and await self._has_diverged(
                one, batch.leader_epoch
            ):
                return await self._rewind(key, one, broker)
            one.buffer += batch.raw
            one.position, one.epoch = batch.last_offset + 1, batch.leader_epoch
            taken = True
        return taken

    async def _has_diverged(self, one: ArchivedLog, epoch: int) -> bool:
        """Whether the log of our last epoch ends below what is archived: an unclean election."""
        if epoch < one.epoch:
            return True
        there = await epoch_end(self._client, one.place, one.epoch)
        return there.epoch != one.epoch or there.offset < one.position

    async def _reposition(self, key: LogId, one: ArchivedLog, broker: int) -> bool:
        """A broker does not have our position: deleted, truncated, or this replica is behind."""
        start, end = await log_range(self._client, one.place)
        if one.position < start:
            await self._flush(key, broker)
            gap = Gap(id_text(key.topic_id), key.partition, one.stored, start - 1)
            await self.record_gap(gap)
            one.position = one.stored = one.start = start
            return True
        if one.position > end:
            return await self._rewind(key, one, broker)
        # This replica is behind for a moment. If it stays so, the round must not count as complete.
        one.problem = f"broker {broker} does not have offset {one.position}, and the leader has it"
        return False

    async def _rewind(self, key: LogId, one: ArchivedLog, broker: int) -> bool:
        """Continue from where the leader's log and the archived one part; true."""
        await self._flush(key, broker)
        topic_id = id_text(key.topic_id)
        archive = Archive(self.cluster, [self._store])
        await archive.load(topic_id)
        lineage = (await archive.chain(topic_id, key.partition)).epochs
        end = one.stored
        while (epoch := lineage.truncated(end).latest) >= 0:
            there = await epoch_end(self._client, one.place, epoch)
            ours = lineage.truncated(end).end_of(there.epoch, end)
            end = min(ours.offset, there.offset) if ours.epoch >= 0 else 0
            if ours.epoch == there.epoch:
                break
        start, _ = await log_range(self._client, one.place)
        if end < start:
            await self.record_gap(Gap(topic_id, key.partition, end, start - 1))
            end = start
        log.warning("archived log truncated", partition=str(one.place), archived=one.stored, end=end)
        one.position = one.stored = end
        one.epoch = lineage.truncated(end).latest
        return True

    async def record_gap(self, gap: Gap) -> None:
        """Record offsets that were deleted before they were archived; again is harmless."""
        document = {"format": 1, **gap._asdict(), "at_ms": int(self._now() * 1000), "reason": "deleted"}
        try:
            if await self._store.create(gap.key(self.cluster), canonical(document)):
                self.totals.gaps += 1
                log.error("gap in the archive", topic_id=gap.topic_id, first=gap.first, last=gap.last)
        except ObjectExists:
            return

    async def _flush(self, key: LogId, broker: int = -1) -> None:
        """Store the buffer of a partition; it stays buffered if that fails."""
        one = self.logs[key]
        if not one.buffer:
            return
        data = bytes(one.buffer)
        origin = Origin(self.cluster, id_text(key.topic_id), one.place.topic, key.partition, broker)
        try:
            manifest = describe_log(
                data,
                origin,
                segment_id=id_text(uuid4()),
                base_offset=one.stored,
                event_timestamp_ms=int(self._now() * 1000),
            )
            await self._store.create(manifest.key.path(LOG), data)
            reach(UPLOADED)
            await self._store.create(manifest.key.path(MANIFEST), encode_manifest(manifest))
        except PenstockError as error:
            self._failed(one, error)
            # Fetched again from where the store ends: a buffer that cannot be stored must not grow.
            one.buffer.clear()
            one.position = one.stored
            return
        one.buffer.clear()
        one.stored = manifest.end_offset + 1
        self._ends[origin.topic_id, key.partition] = (one.stored, one.epoch)
        self.totals.segments += 1
        self.totals.log_bytes += manifest.log_bytes

    def _failed(self, one: ArchivedLog, error: PenstockError) -> None:
        self.totals.failures += 1
        one.problem = str(error)
        log.warning("partition not archived", partition=str(one.place), error=str(error))

    def progress(self) -> Mapping[LogId, ArchivedLog]:
        return self.logs


def selector(include: Callable[[str], bool], exclude: Callable[[str], bool]) -> Callable[[str], bool]:
    """Which topics are archived. The tier's metadata always is; other internal topics never are."""

    def selects(name: str) -> bool:
        if name == TIER_METADATA:
            return True
        internal = name.startswith(("__", "_penstock."))
        return not internal and include(name) and not exclude(name)

    return selects
