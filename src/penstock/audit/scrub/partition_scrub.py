"""Reads and compares every place of one partition, stretch by stretch."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.audit.scrub.comparison import Copy, Part, Scanned, compare, span_of
from penstock.audit.scrub.places import Place, Status
from penstock.audit.scrub.progress import Progress
from penstock.audit.scrub.sequences import SequenceTracker
from penstock.model import fault_points
from penstock.model.durability import Scrubbed
from penstock.wire.digest import BatchDigest

if TYPE_CHECKING:
    from collections.abc import Sequence

HALFWAY: Final = fault_points.declare("audit.scrub.halfway", "read and compared, position not yet stored")
STORE_SECONDS: Final = 10.0  # at most this much work is repeated
POLLS_MAX: Final = 50  # until a replica that has nothing to read yet is left out
POLL_SECONDS: Final = 0.1
OPEN_BATCHES_MAX: Final = 100_000  # of one problem; beyond, it is divided


class Host(Protocol):
    """What a partition's scrub needs of the cluster's."""

    async def spend(self, size: int) -> None:
        """Wait until the rate allows another read."""

    async def update_starts(self, places: Sequence[Place]) -> None:
        """Read again where the logs of places start."""

    async def commit(self, rows: Sequence[Scrubbed], run: int, progress: Progress) -> None:
        """Write events and the position in one transaction."""


@dataclass(slots=True)
class Result:
    """One partition of a run."""

    topic: str
    partition: int
    first: int = -1
    last: int = -1
    size: int = 0  # bytes read, of all places
    places: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)  # places that did not respond
    problems: list[Scrubbed] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """What was read of a place and not compared yet."""

    place: Place
    buffer: list[Scanned] = field(default_factory=list)
    next_offset: int = -1  # of the next read
    corrupt: bool = False

    def holds(self, offset: int) -> bool:
        return self.place.first <= offset < self.place.end

    def is_read(self, offset: int) -> bool:
        return self.next_offset > offset

    def forget(self, offset: int) -> None:
        self.buffer, self.next_offset, self.corrupt = [], offset, False

    def take(self, last: int) -> tuple[Scanned, ...]:
        count = 0
        while count < len(self.buffer) and self.buffer[count].last <= last:
            count += 1
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return tuple(taken)


@dataclass(slots=True)
class _Clean:
    """Stretches without a problem, joined to one event for each place."""

    first: int = -1
    last: int = -1
    places: tuple[str, ...] = ()
    digest: BatchDigest = field(default_factory=BatchDigest)

    def accepts(self, part: Part) -> bool:
        places = tuple(row.place for row in part.rows)
        return self.first < 0 or (self.places == places and part.first == self.last + 1)

    def add(self, part: Part) -> None:
        if self.first < 0:
            self.first, self.places = part.first, tuple(row.place for row in part.rows)
        self.last = part.last
        for batch in part.agreed:
            self.digest.add(span_of(batch))

    def rows(self) -> list[Scrubbed]:
        digest = self.digest.hexdigest()
        return [Scrubbed(place, self.first, self.last, digest) for place in self.places]


@dataclass(slots=True)
class PartitionScrub:
    """One pass over one partition, up to `end`."""

    host: Host
    progress: Progress
    places: Sequence[Place]
    end: int
    result: Result
    by_record: bool = False
    readers: list[_Reader] = field(init=False)
    clean: _Clean = field(default_factory=_Clean)
    sequences: SequenceTracker = field(default_factory=SequenceTracker)
    stored_at: float = field(default_factory=time.monotonic)
    open: Part | None = None  # a problem that may continue in the next stretch
    narrow: int = 1  # batches of a stretch that some place cannot read; doubles until it can

    def __post_init__(self) -> None:
        self.readers = [_Reader(each) for each in self.places]

    async def run(self) -> None:
        offset = self.result.first = self.progress.next_offset
        while offset < self.end:
            active = [each for each in self.readers if each.holds(offset)]
            if not active:
                later = [each.place.first for each in self.readers if each.place.first > offset]
                if not later:
                    break
                offset = min(later)
                self.sequences = SequenceTracker()  # what is in between is gone
                continue
            if not await self._read(active, offset):
                continue  # places were left out, or their logs start later by now
            offset = await self._compare(active, offset)
            self.result.last = offset - 1
        await self._store(self._closed(), offset, finished=True)

    async def _read(self, active: list[_Reader], offset: int) -> bool:
        """Have something of every active place; false if they have changed."""
        await asyncio.gather(*(self._fill(each, offset) for each in active))
        gone = [each for each in active if each.next_offset < 0]
        if gone:
            await self.host.update_starts([each.place for each in self.readers])
            for reader in gone:
                reader.forget(offset)
                if reader.place.first <= offset:  # it does not have what it should have
                    self._leave_out(reader)
        return not gone and all(each in self.readers for each in active)

    async def _fill(self, reader: _Reader, offset: int) -> None:
        if reader.is_read(offset) or reader.corrupt:
            reader.take(offset - 1)  # what was read before the log's start rose
            return
        for _ in range(POLLS_MAX):
            reading = await reader.place.read(offset)
            self.result.size += reading.size
            await self.host.spend(reading.size)
            if reading.status is not Status.LATER:
                break
            await asyncio.sleep(POLL_SECONDS)
        match reading.status:
            case Status.READ | Status.CORRUPT:
                reader.buffer = [each for each in reading.batches if each.base < self.end]
                reader.next_offset = max(offset, reading.next_offset)
                reader.corrupt = reading.status is Status.CORRUPT
                self.result.places.add(reader.place.name)
            case Status.GONE:
                reader.next_offset = -1
            case _:
                self._leave_out(reader)

    def _leave_out(self, reader: _Reader) -> None:
        if reader in self.readers:
            self.readers.remove(reader)
            self.result.left_out.add(reader.place.name)

    async def _compare(self, active: list[_Reader], offset: int) -> int:
        """Compare what every active place has from an offset on; returns where the next stretch begins."""
        unreadable = [each for each in active if not each.is_read(offset)]
        readable = [each for each in active if each not in unreadable]
        last = self._last(readable, offset)
        if unreadable and readable:
            last = min(last, self._narrowed(readable, last))
        joining = [each.place.first for each in self.readers if offset < each.place.first <= last]
        if joining:
            last = min(joining) - 1
        if readable and not self.by_record:
            last = _whole_batches(readable, last)
        copies = [
            Copy(each.place.name, each.take(last), checks_holes=each.place.checks_holes) for each in readable
        ]
        copies += [Copy(each.place.name, unreadable=True) for each in unreadable]
        for reader in unreadable:
            reader.forget(last + 1)
        self.narrow = self.narrow * 2 if unreadable else 1
        parts = compare(copies, offset, last, by_record=self.by_record)
        await self._add(parts, last + 1)
        return last + 1

    def _last(self, readable: list[_Reader], offset: int) -> int:
        return min((each.next_offset - 1 for each in readable), default=self.end - 1)

    def _narrowed(self, readable: list[_Reader], last: int) -> int:
        buffer = max((each.buffer for each in readable), key=len)
        return buffer[min(self.narrow, len(buffer)) - 1].last if buffer else last

    async def _add(self, parts: list[Part], offset: int) -> None:
        """A problem at the end of a stretch waits: it may continue in the next one."""
        rows: list[Scrubbed] = []
        for part in parts:
            if self.open is not None:
                joined = self.open.followed_by(part)
                if joined is not None and len(joined.agreed) <= OPEN_BATCHES_MAX:
                    self.open = joined
                    continue
            rows += self._closed()
            if not part.clean:
                rows += self._flushed()
                self.open = part
                continue
            if not self.clean.accepts(part):
                rows += self._flushed()
            self.clean.add(part)
            rows += self._sequence_errors(part)
        if rows or time.monotonic() - self.stored_at >= STORE_SECONDS:
            await self._store(rows, offset if self.open is None else self.open.first)

    def _closed(self) -> list[Scrubbed]:
        """The rows of a problem that does not continue."""
        part, self.open = self.open, None
        if part is None:
            return []
        self.result.problems += [row for row in part.rows if row.holes or row.damaged]
        self.result.problems += _differing(part)
        return [*part.rows, *self._sequence_errors(part)]

    def _sequence_errors(self, part: Part) -> list[Scrubbed]:
        """Judged by what most places have, so that damage of one place is not reported twice."""
        if self.by_record or not part.rows:
            return []
        if not is_complete(part):
            self.sequences = SequenceTracker()  # what is lost is reported already
            return []
        errors = [
            Scrubbed(part.rows[0].place, each.base, each.last, "", sequence_errors=(error,))
            for each in part.agreed
            if (error := self.sequences.error(each))
        ]
        self.result.problems += errors
        return errors

    def _flushed(self) -> list[Scrubbed]:
        rows = self.clean.rows() if self.clean.first >= 0 else []
        self.clean = _Clean()
        return rows

    async def _store(self, rows: list[Scrubbed], offset: int, *, finished: bool = False) -> None:
        run = self.progress.began_ms
        # A partition of which a place did not respond is due again at the next run.
        began_ms = 0 if finished and self.result.left_out else run
        fault_points.reach(HALFWAY)
        await self.host.commit([*rows, *self._flushed()], run, Progress(began_ms, offset, finished))
        self.stored_at = time.monotonic()


def _whole_batches(readable: list[_Reader], last: int) -> int:
    """The end of a stretch that divides no batch."""
    ends = [each.last for reader in readable for each in reader.buffer if each.last <= last]
    if ends:
        return max(ends)
    return min((reader.buffer[0].last for reader in readable if reader.buffer), default=last)


def is_complete(part: Part) -> bool:
    """Whether most places have every offset of a part, undamaged."""
    expected = part.first
    for batch in part.agreed:
        if batch.base > expected or not batch.intact:
            return False
        expected = batch.last + 1
    return expected > part.last


def _differing(part: Part) -> list[Scrubbed]:
    """Rows of places that do not have what most have, apart from holes and damage."""
    sound = [row for row in part.rows if row.digest and not row.damaged]
    return [row for row in sound if row.digest != sound[0].digest]
