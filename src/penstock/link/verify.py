"""Compares both sides of a link, batch by batch: offsets and the CRC of the content.

Only what both sides have is compared. A compacted topic may be cleaned at other times here than there,
so there the latest value of each key is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from penstock.audit.topic_ids import id_text
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import source
from penstock.model.durability import NAMED, UNKNOWN, Link, partition_subject
from penstock.model.shadow_ids import is_shadow
from penstock.wire.digest import BatchDigest, BatchSpan
from penstock.wire.records import batches, records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from uuid import UUID

    from penstock.audit.intents import Planned
    from penstock.kafka.client import Client
    from penstock.wire.records import Batch

POLLS_WITHOUT_DATA_MAX: Final = 50  # until a partition counts as read


@dataclass(frozen=True, slots=True)
class Ranges:
    """Log start and high watermark of both sides. The mirror's were read first, so a sound one is within."""

    mirror: tuple[int, int]
    source: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The offsets from `start` to `end` of a partition, on both sides."""

    partition: TopicPartition
    topic_id: UUID  # of the mirror
    start: int
    end: int
    source_digest: str
    mirror_digest: str
    ranges: Ranges
    differing: int = UNKNOWN  # the first offset whose batch, or of compacted topics whose record, differs

    @property
    def same(self) -> bool:
        return self.source_digest == self.mirror_digest

    def evidence(self, link: str) -> Planned:
        """What the durability audit judges, about a mirror that has not been promoted."""
        subject = f"{NAMED}{partition_subject(id_text(self.topic_id), self.partition.partition)}"
        (start, end), (source_start, source_end) = self.ranges.mirror, self.ranges.source
        return subject, Link(link, 0, source_start, source_end, start, end, self.differing)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison: a broker that has the partition."""

    client: Client
    broker: int
    place: TopicPartition

    async def batches(self, start: int, end: int) -> AsyncIterator[Batch]:
        """Those from `start` on that begin before `end`, as far as there are any."""
        position, empty = start, 0
        while position < end and empty < POLLS_WITHOUT_DATA_MAX:
            fetched = (
                await source.fetch(self.client, self.broker, {self.place: position}, lane="verify")
            ).get(self.place)
            read = [] if fetched is None else [b for b in batches(fetched.data) if b.last_offset >= position]
            empty = 0 if read else empty + 1
            for batch in read:
                if batch.base_offset >= end:
                    return
                yield batch
                position = batch.last_offset + 1


async def compare(there: Client, here: Client, topic: str) -> list[Comparison]:
    """Every partition of a mirrored topic, over the offsets that both sides have."""
    resource = configs.topic(topic)
    described = results_or_raise(await configs.describe(there, [resource], names=["cleanup.policy"]))[
        resource
    ]
    compacted = "compact" in (described["cleanup.policy"].value or "")
    mirror = results_or_raise(await topics.describe(here, [topic]))[topic]
    leaders = await there.leaders([topic])
    result = []
    for partition in mirror.partitions:
        place = TopicPartition(topic, partition.index)
        replica = next(broker for broker in partition.isr if not is_shadow(broker))
        mirrored = await source.log_range(here, place)
        ranges = Ranges(mirrored, await source.log_range(there, place))
        first, last = ranges.source
        sides = _Side(there, leaders[place], place), _Side(here, replica, place)
        ours, end = await _stored(sides[1], first, last, compacted=compacted)
        theirs, _ = await _stored(sides[0], first, end, compacted=compacted)
        differing = UNKNOWN
        if _digest(ours) != _digest(theirs):
            differing = _first_value(ours, theirs) if compacted else await _first_batch(*sides, first, end)
        result.append(
            Comparison(place, mirror.id, first, end, _digest(theirs), _digest(ours), ranges, differing)
        )
    return result


@dataclass(slots=True)
class _Content:
    """What one side has: the digest of its batches or, compacted, each key's latest offset and value."""

    digest: BatchDigest
    latest: dict[bytes | None, tuple[int, int]]


async def _stored(side: _Side, start: int, end: int, *, compacted: bool) -> tuple[_Content, int]:
    """The content of a stretch of log on one side, and where it ends."""
    content = _Content(BatchDigest(), {})
    position = start
    async for batch in side.batches(start, end):
        if compacted and not batch.is_control:
            content.latest |= {r.key: (r.offset, hash_of(r.value)) for r in records(batch)}
        elif not compacted:
            content.digest.add(_span(batch))
        position = batch.last_offset + 1
    return content, position


async def _first_batch(one: _Side, other: _Side, start: int, end: int) -> int:
    """The first offset whose batch differs. Both sides are read a second time, side by side."""
    theirs = one.batches(start, end)
    async for batch in other.batches(start, end):
        expected = await anext(theirs, None)
        if expected is None or _span(expected) != _span(batch):
            return batch.base_offset if expected is None else min(expected.base_offset, batch.base_offset)
    expected = await anext(theirs, None)
    return UNKNOWN if expected is None else expected.base_offset


def _first_value(ours: _Content, theirs: _Content) -> int:
    """The first offset of a value that only one side has. Tombstones expire when the cleaner likes."""
    differing = _values(ours.latest.values()) ^ _values(theirs.latest.values())
    return min((offset for offset, _ in differing), default=UNKNOWN)


def _values(latest: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    return {each for each in latest if each[1]}


def hash_of(value: bytes | None) -> int:
    """A value as a number for the digest; 0 for a tombstone."""
    return 0 if value is None else crc32c(value)


def _span(batch: Batch) -> BatchSpan:
    return BatchSpan(batch.base_offset, batch.last_offset, batch.crc)


def _digest(content: _Content) -> str:
    digest = BatchDigest(
        BatchSpan(offset, offset, number) for offset, number in sorted(content.latest.values())
    )
    return digest.hexdigest() if content.latest else content.digest.hexdigest()
