"""Proves a restore in place: every replica equals the backup, and beyond it the other replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.backup.proof import ExpectedLog, replica_digest
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.link.source import log_range
from penstock.wire.digest import BatchDigest, BatchSpan

if TYPE_CHECKING:
    from penstock.backup.archive import Archive
    from penstock.backup.chain import Chain
    from penstock.backup.raw_fetch import LogId
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client


@dataclass(frozen=True, slots=True)
class InPlaceProof:
    same: tuple[int, ...]  # brokers
    differing: tuple[int, ...]


async def prove_in_place(
    client: Client, archive: Archive, chain: Chain, place: TopicPartition, log: LogId
) -> InPlaceProof:
    """Read every replica from its own broker, up to where the log ends now."""
    topic = results_or_raise(await topics.describe(client, [place.topic]))[place.topic]
    replicas = next(one.replicas for one in topic.partitions if one.index == place.partition)
    # What retention or DeleteRecords took again since is on no replica.
    first, end = await log_range(client, place)
    start, boundary = max(chain.start, first), max(chain.end, first)
    stored = BatchDigest()
    async for part in archive.batches(chain, start):
        for batch in part:
            stored.add(BatchSpan(batch.base_offset, batch.last_offset, batch.crc))
    expected = ExpectedLog(start, boundary, stored.hexdigest(), -1)
    rest = ExpectedLog(boundary, end, "", -1)
    digests = {}
    for broker in replicas:
        restored, _ = await replica_digest(client, broker, log, expected)
        after, _ = await replica_digest(client, broker, log, rest)
        digests[broker] = (restored, after)
    common = digests[replicas[0]][1]
    same = tuple(b for b in replicas if digests[b] == (expected.digest, common))
    return InPlaceProof(same, tuple(b for b in replicas if b not in same))
