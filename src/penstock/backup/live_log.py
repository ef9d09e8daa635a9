"""The log of a partition that is restored in place: what it lost from the backup, the rest from its replicas.

Both parts are the same log, so batches keep their leader epochs. They meet at the log start of the replicas;
where the backup reaches further, its batches must be those of the replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.backup import raw_fetch
from penstock.link.source import epoch_end
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import BackupDiffers
from penstock.shadow.epoch_history import EpochHistory, EpochStart
from penstock.shadow.partition import RawBatch
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.backup.archive import Archive
    from penstock.backup.chain import Chain
    from penstock.backup.raw_fetch import LogId
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.wire.records import Batch

EPOCHS_MAX: Final = 10_000  # of one log
NO_RECORDS: Final = EpochStart(-1, -1)
SEAM_BATCHES_MAX: Final = 1000  # compared where backup and replicas meet


@dataclass(slots=True)
class LiveLog:
    """Reads a log that starts with its backup."""

    client: Client
    archive: Archive
    chain: Chain
    log: LogId
    boundary: int  # the highest log start of the replicas
    brokers: tuple[int, ...]  # in-sync replicas that have everything from there on
    epochs: EpochHistory  # as responses to followers have it
    _ahead: list[RawBatch] = field(default_factory=list)  # consecutive, read already

    async def older(self, offset: int, bytes_max: int) -> Sequence[RawBatch]:
        """Batches from `offset` on: at least one, if a replica has one below its high watermark."""
        while self._ahead and self._ahead[0].last_offset < offset:
            self._ahead.pop(0)
        if not self._ahead or self._ahead[0].base_offset > offset:
            self._ahead = await self._read(offset)
        result: list[RawBatch] = []
        size = 0
        for batch in self._ahead:
            size += len(batch.raw)
            if result and size > bytes_max:
                break
            result.append(batch)
        return result

    async def _read(self, offset: int) -> list[RawBatch]:
        if offset < self.boundary:
            async for part in self.archive.batches(self.chain, offset):
                return self._checked([one for one in part if one.base_offset < self.boundary], offset)
            raise BackupDiffers(log=self.log, reason=f"the backup ends below offset {offset}")
        for broker in self.brokers:
            try:
                fetched = await raw_fetch.fetch(self.client, broker, {self.log: offset}, lane="in-place")
            except PenstockError:
                continue  # it is away: another one has the same
            row = fetched.get(self.log)
            if row is not None and not row.out_of_range and row.data:
                return self._checked([one for one in batches(row.data) if one.last_offset >= offset], offset)
        return []  # their high watermarks are not there yet

    def _checked(self, some: list[Batch], offset: int) -> list[RawBatch]:
        """A follower must get each batch as it was written, from an offset where one begins."""
        for number, batch in enumerate(some):
            if number == 0 and batch.base_offset < offset != self.chain.start:
                reason = f"offset {offset} is within a batch of the replicas"
                raise BackupDiffers(log=self.log, reason=reason)
            known = self.epochs.at(max(batch.base_offset, self.chain.start))
            if batch.leader_epoch != known:
                reason = f"offset {batch.base_offset} has epoch {batch.leader_epoch}, not {known}"
                raise BackupDiffers(log=self.log, reason=reason)
        return [RawBatch(one.base_offset, one.last_offset, one.raw) for one in some]


async def check_seam(
    client: Client, archive: Archive, chain: Chain, log: LogId, start: int, end: int, leader: int
) -> None:
    """Raises unless the backup reaches the log start, and has the batches of the leader from there on."""
    if not chain.pieces or chain.end < start:
        raise BackupDiffers(log=log, reason=f"it ends at offset {chain.end}, and the log starts at {start}")
    if chain.end > end:
        raise BackupDiffers(log=log, reason=f"it ends at offset {chain.end}, and the log at {end}")
    stored: dict[int, tuple[int, int, int]] = {}
    async for part in archive.batches(chain, start):
        stored |= {batch.base_offset: _identity(batch) for batch in part if batch.last_offset >= start}
        if len(stored) >= SEAM_BATCHES_MAX:
            break
    if start == end:
        return
    fetched = (await raw_fetch.fetch(client, leader, {log: start}, lane="in-place")).get(log)
    live = [] if fetched is None else [one for one in batches(fetched.data) if one.last_offset >= start]
    if not live:
        raise BackupDiffers(log=log, reason=f"broker {leader} returns no records from offset {start} on")
    last_epoch = chain.epochs.at(start - 1)
    if live[0].leader_epoch < last_epoch:
        reason = f"epoch {live[0].leader_epoch} at offset {start} follows epoch {last_epoch} of the backup"
        raise BackupDiffers(log=log, reason=reason)
    covered = max(stored, default=-1)
    for batch in live:
        if batch.base_offset <= covered and stored.get(batch.base_offset) != _identity(batch):
            raise BackupDiffers(log=log, reason=f"the batch at offset {batch.base_offset} is another one")


async def epochs_of(client: Client, place: TopicPartition, leader_epoch: int, start: int) -> EpochHistory:
    """The leader epochs from the log start on, asked of the leader from the last one down."""
    entries: list[EpochStart] = []
    epoch = leader_epoch
    for _ in range(EPOCHS_MAX):
        known, end = await epoch_end(client, place, epoch) if epoch >= 0 else NO_RECORDS
        if known < 0 or end < 0:
            break
        if entries:
            # An epoch starts where the one before ends.
            entries[-1] = EpochStart(entries[-1].epoch, end)
            if end <= start:
                break
            if len(entries) > 1 and entries[-2].offset == end:
                entries.pop()  # below its first epoch, Kafka returns the requested one, without records
                break
        entries.append(EpochStart(known, start))
        epoch = known - 1
    return EpochHistory(tuple(reversed(entries)))


def joined_history(backup: EpochHistory, live: EpochHistory, boundary: int, end: int) -> EpochHistory:
    """One history: of the backup below the boundary, of the replicas from there on."""
    history = backup.truncated(boundary)
    for entry in live.truncated(end).entries:
        if entry.epoch > history.latest:
            history = history.begun(entry.epoch, max(entry.offset, boundary))
    return history


def _identity(batch: Batch) -> tuple[int, int, int]:
    return batch.last_offset, batch.crc, batch.leader_epoch
