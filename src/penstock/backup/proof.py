"""Compares every replica of a restored topic with the backup, batch by batch."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.backup import raw_fetch
from penstock.backup.raw_fetch import LogId
from penstock.model.errors.backup import RestoreStuck
from penstock.wire.digest import BatchDigest, BatchSpan
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.backup.archive import Archive
    from penstock.backup.chain import Chain
    from penstock.kafka.admin.topics import Topic
    from penstock.kafka.client import Client

READ_SECONDS_MAX: Final = 120.0  # without any progress
POLL_SECONDS: Final = 0.05


class ExpectedLog(NamedTuple):
    """What a partition must have after its restore."""

    start: int
    end: int
    digest: str
    producer_id: int  # the largest; −1: none


@dataclass(frozen=True, slots=True)
class ReplicaProof:
    partition: int
    broker: int
    digest: str
    end: int
    same: bool


async def expected_log(archive: Archive, chain: Chain) -> ExpectedLog:
    """The digest of a chain, and the largest producer id, from the stored batches."""
    digest, producer_id = BatchDigest(), -1
    async for part in archive.batches(chain, chain.start):
        for batch in part:
            digest.add(BatchSpan(batch.base_offset, batch.last_offset, batch.crc))
            producer_id = max(producer_id, batch.producer.id)
    return ExpectedLog(chain.start, chain.end, digest.hexdigest(), producer_id)


async def prove(client: Client, topic: Topic, expected: Mapping[int, ExpectedLog]) -> list[ReplicaProof]:
    """Read every replica of every partition back from its own broker."""
    proofs = []
    for partition in topic.partitions:
        log = expected.get(partition.index)
        if log is None:
            continue
        for broker in partition.replicas:
            digest, end = await replica_digest(client, broker, LogId(topic.id, partition.index), log)
            proofs.append(ReplicaProof(partition.index, broker, digest, end, digest == log.digest))
    return proofs


async def replica_digest(client: Client, broker: int, log: LogId, expected: ExpectedLog) -> tuple[str, int]:
    """The digest of what a replica has below the expected end, and where that ends."""
    digest = BatchDigest()
    position, changed_at = expected.start, time.monotonic()
    while position < expected.end:
        fetched = (await raw_fetch.fetch(client, broker, {log: position}, lane="proof")).get(log)
        before = position
        for batch in batches(fetched.data) if fetched is not None else ():
            if batch.last_offset >= position and batch.base_offset < expected.end:
                digest.add(BatchSpan(batch.base_offset, batch.last_offset, batch.crc))
                position = batch.last_offset + 1
        if position > before:
            changed_at = time.monotonic()
        elif fetched is not None and fetched.high_watermark >= expected.end and len(fetched.data) == 0:
            break  # the replica has no more batches: its log ends with a hole
        elif time.monotonic() - changed_at > READ_SECONDS_MAX:
            reason = f"replica {broker} of partition {log.partition} is at offset {position}"
            raise RestoreStuck(restore=str(log.topic_id), seconds=READ_SECONDS_MAX, reason=reason)
        else:
            await asyncio.sleep(POLL_SECONDS)
    return digest.hexdigest(), position
