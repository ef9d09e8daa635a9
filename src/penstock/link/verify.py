"""Compares both sides of a link, batch by batch: offsets and the CRC of the content.

Only what both sides have is compared. A compacted topic may be cleaned at other times here than there,
so there the latest value of each key is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import source
from penstock.model.shadow_ids import is_shadow
from penstock.wire.digest import BatchDigest, BatchSpan
from penstock.wire.records import batches, records

if TYPE_CHECKING:
    from penstock.kafka.client import Client

POLLS_WITHOUT_DATA_MAX: Final = 50  # until a partition counts as read


@dataclass(frozen=True, slots=True)
class Comparison:
    partition: TopicPartition
    start: int
    end: int
    source_digest: str
    mirror_digest: str

    @property
    def same(self) -> bool:
        return self.source_digest == self.mirror_digest


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
        first, last = await source.log_range(there, place)
        mirrored = await _stored(here, replica, place, first, last, compacted=compacted)
        original = await _stored(there, leaders[place], place, first, mirrored[1], compacted=compacted)
        result.append(Comparison(place, first, mirrored[1], original[0], mirrored[0]))
    return result


async def _stored(
    client: Client, broker: int, place: TopicPartition, start: int, end: int, *, compacted: bool
) -> tuple[str, int]:
    """The digest of a stretch of log on one broker, and where it ends."""
    digest = BatchDigest()
    latest: dict[bytes | None, tuple[int, int]] = {}
    position, empty = start, 0
    while position < end and empty < POLLS_WITHOUT_DATA_MAX:
        fetched = (await source.fetch(client, broker, {place: position}, lane="verify")).get(place)
        read = [] if fetched is None else [b for b in batches(fetched.data) if b.last_offset >= position]
        empty = 0 if read else empty + 1
        for batch in read:
            if batch.base_offset >= end:
                return _result(digest, latest, position)
            digest_span = BatchSpan(batch.base_offset, batch.last_offset, batch.crc)
            if compacted and not batch.is_control:
                latest |= {r.key: (r.offset, hash_of(r.value)) for r in records(batch)}
            elif not compacted:
                digest.add(digest_span)
            position = batch.last_offset + 1
    return _result(digest, latest, position)


def hash_of(value: bytes | None) -> int:
    """A value as a number for the digest; 0 for a tombstone."""
    return 0 if value is None else crc32c(value)


def _result(digest: BatchDigest, latest: dict[bytes | None, tuple[int, int]], end: int) -> tuple[str, int]:
    for offset, number in sorted(latest.values()):
        digest.add(BatchSpan(offset, offset, number))
    return digest.hexdigest(), end
