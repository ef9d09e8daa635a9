"""The places that a scrub reads: replicas on brokers, and segments in object stores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from crc32c import crc32c

from penstock.audit.scrub.comparison import Scanned
from penstock.backup.raw_fetch import fetch
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import SegmentDamaged
from penstock.model.errors.wire import BatchCorrupt, BatchTooLarge, BatchTooOld
from penstock.wire.error_codes import Code
from penstock.wire.records import CRC_FROM, batches, records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.backup.archive import Archive
    from penstock.backup.chain import Chain
    from penstock.backup.raw_fetch import LogId
    from penstock.kafka.client import Client
    from penstock.wire.records import Batch

LANE: Final = "audit scrub"
ATTEMPTS_MAX: Final = 3
PAUSE_SECONDS: Final = 1.0
STORE_BYTES: Final = 4 << 20  # of an object store, at once


class Status(Enum):
    READ = auto()
    CORRUPT = auto()  # what follows is no batch
    GONE = auto()  # the log starts later by now
    LATER = auto()  # nothing to read yet
    LOST = auto()  # the place does not respond, or does not have the log any more


@dataclass(frozen=True, slots=True)
class Reading:
    status: Status
    batches: list[Scanned] = field(default_factory=list)
    next_offset: int = -1
    size: int = 0  # bytes


class Place(Protocol):
    """Something that has a part of a log."""

    @property
    def name(self) -> str: ...

    @property
    def first(self) -> int:
        """It is compared from this offset on."""

    @property
    def end(self) -> int:
        """It is compared up to this offset, exclusive."""

    @property
    def checks_holes(self) -> bool:
        """Whether it must have every offset in between."""

    async def read(self, offset: int) -> Reading:
        """What it has from an offset on, up to some megabytes."""


@dataclass(slots=True)
class ReplicaPlace:
    """A replica: any broker serves consumers from its own log (KIP-392), up to its high watermark."""

    client: Client
    broker: int
    log: LogId
    first: int
    end: int
    by_record: bool = False
    checks_holes: bool = True

    @property
    def name(self) -> str:
        return f"broker {self.broker}"

    async def read(self, offset: int) -> Reading:
        for attempt in range(ATTEMPTS_MAX):
            try:
                result = (await fetch(self.client, self.broker, {self.log: offset}, lane=LANE)).get(self.log)
                break
            except PenstockError as error:
                if error.facts.get("error_code") == Code.CORRUPT_MESSAGE:
                    return Reading(Status.CORRUPT)
                if attempt + 1 == ATTEMPTS_MAX:
                    return Reading(Status.LOST)
                await asyncio.sleep(PAUSE_SECONDS)
        if result is None:
            return Reading(Status.LATER)
        if result.out_of_range:
            return Reading(Status.GONE)
        return scan(result.data, offset, by_record=self.by_record)


@dataclass(slots=True)
class StorePlace:
    """The segments of a partition in a tier or a backup. Their holes are checked by other rules."""

    name: str
    archive: Archive
    chain: Chain
    by_record: bool = False
    checks_holes: bool = False

    @property
    def first(self) -> int:
        return self.chain.start

    @property
    def end(self) -> int:
        return self.chain.end

    async def read(self, offset: int) -> Reading:
        read: list[Batch] = []
        size, corrupt = 0, False
        try:
            async for some in self.archive.batches(self.chain, offset):
                read += some
                size += sum(len(batch.raw) for batch in some)
                if size >= STORE_BYTES:
                    break
        except SegmentDamaged:
            corrupt = True
        except PenstockError:
            return Reading(Status.LOST)
        reading = _scanned(read, offset, by_record=self.by_record, corrupt=corrupt, size=size)
        return Reading(Status.LOST) if reading.status is Status.LATER else reading


def scan(data: bytes | memoryview, offset: int, *, by_record: bool = False) -> Reading:
    """The batches from an offset on, with the CRC of what was read."""
    read: list[Batch] = []
    corrupt = False
    try:
        for batch in batches(data):
            if batch.last_offset < offset and not read:
                continue
            expected = read[-1].last_offset + 1 if read else 0
            if batch.base_offset < expected:
                # One of two base offsets is wrong: the one before, if it left offsets out.
                if len(read) > 1 and read[-1].base_offset != read[-2].last_offset + 1:
                    read.pop()
                corrupt = True
                break
            read.append(batch)
    except (BatchCorrupt, BatchTooOld):
        corrupt = True
    return _scanned(read, offset, by_record=by_record, corrupt=corrupt, size=len(data))


def _scanned(read: Iterable[Batch], offset: int, *, by_record: bool, corrupt: bool, size: int) -> Reading:
    result: list[Scanned] = []
    next_offset = offset
    for batch in read:
        if by_record:
            result += _records(batch, offset)
        else:
            crc = crc32c(batch.raw[CRC_FROM:])
            id_, epoch, sequence = batch.producer.id, batch.producer.epoch, batch.producer.sequence
            intact = crc == batch.crc
            result.append(
                Scanned(
                    batch.base_offset, batch.last_offset, crc, intact, id_, epoch, sequence, batch.is_control
                )
            )
        next_offset = batch.last_offset + 1
    if corrupt and result and not result[-1].intact and not by_record:
        next_offset = result.pop().base  # its length may be wrong
    status = Status.CORRUPT if corrupt else Status.READ if next_offset > offset else Status.LATER
    return Reading(status, result, next_offset, size)


def _records(batch: Batch, offset: int) -> list[Scanned]:
    """Key and value of each record. Markers are left out: each cleaner removes them when it likes."""
    try:
        content = records(batch)
    except (BatchCorrupt, BatchTooLarge):
        return [Scanned(batch.base_offset, batch.last_offset, 0, intact=False)]
    if batch.is_control:
        return []
    return [
        Scanned(each.offset, each.offset, crc32c(each.value or b"", crc32c(each.key or b"")))
        for each in content
        if each.offset >= offset
    ]
