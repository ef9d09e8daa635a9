"""Scrubs a cluster: reads every place of each partition, compares, and writes events and its position.

Events and the position that they reach are one transaction, so a scrub that was killed continues without gap
or repeat. Two at the same time are not possible: the later one fences the earlier.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit import topics as audit_topics
from penstock.audit.scrub.comparison import Copy, Part, Scanned, compare, span_of
from penstock.audit.scrub.places import Place, ReplicaPlace, Status, StorePlace
from penstock.audit.scrub.progress import PREFIX, Progress, in_order, is_due, progress_key
from penstock.audit.scrub.sequences import SequenceTracker
from penstock.audit.sweep import ANY_REPLICA, list_own_offsets
from penstock.audit.topic_ids import id_text
from penstock.backup.raw_fetch import LogId
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.offsets import NOT_A_REPLICA, IsolationLevel, OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer
from penstock.link.limits import RateLimit
from penstock.model import fault_points
from penstock.model.durability import LogEvent, Scrubbed, What, members_of, partition_subject
from penstock.model.errors import PenstockError
from penstock.model.shadow_ids import is_shadow
from penstock.wire.digest import BatchDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from penstock.backup.archive import Archive
    from penstock.kafka.client import Client

HALFWAY: Final = fault_points.declare("audit.scrub.halfway", "read and compared, position not yet stored")
TRANSACTIONAL_ID: Final = "_penstock.audit-scrub"
SOURCE: Final = "scrub"
BYTES_PER_SECOND: Final = 5_000_000
WITHIN_MS: Final = 7 * 24 * 3600 * 1000
STORE_SECONDS: Final = 10.0  # at most this much work is repeated
POLLS_MAX: Final = 50  # until a replica that has nothing to read yet is left out
POLL_SECONDS: Final = 0.1
CONFIGS: Final = ("cleanup.policy", "remote.storage.enable")

log = structlog.get_logger("penstock.audit")


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

    @property
    def complete(self) -> bool:
        return not self.left_out


@dataclass(slots=True)
class _Reader:
    """What was read of a place and not compared yet."""

    place: Place
    buffer: list[Scanned] = field(default_factory=list)
    next_offset: int = -1  # of what is to be read
    corrupt: bool = False

    def holds(self, offset: int) -> bool:
        return self.place.first <= offset < self.place.end

    def is_read(self, offset: int) -> bool:
        return self.next_offset > offset

    def forget(self, offset: int) -> None:
        self.buffer, self.next_offset, self.corrupt = [], offset, False

    def take(self, last: int) -> list[Scanned]:
        count = 0
        while count < len(self.buffer) and self.buffer[count].last <= last:
            count += 1
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken


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


@dataclass(frozen=True, slots=True)
class _Partition:
    log: LogId
    topic: str
    leader: int
    isr: tuple[int, ...]
    by_record: bool
    tiered: bool

    @property
    def key(self) -> bytes:
        return progress_key(id_text(self.log.topic_id), self.log.partition)

    @property
    def subject(self) -> str:
        return partition_subject(id_text(self.log.topic_id), self.log.partition)


class Scrubber:
    """Scrubs what is due in one cluster. `archives` are places beside the replicas, by name."""

    def __init__(
        self,
        cluster: str,
        client: Client,
        *,
        archives: Mapping[str, Archive] | None = None,
        bytes_per_second: float | None = BYTES_PER_SECOND,
        within_ms: int = WITHIN_MS,
        only: Collection[str] = (),
        report: Callable[[Result, int, int], None] = lambda *_: None,
    ) -> None:
        self.cluster = cluster
        self._client = client
        self._archives = archives or {}
        self._rate = RateLimit(bytes_per_second)
        self._within_ms = within_ms
        self._only = only
        self._report = report
        self._producer = TransactionalProducer(client, TRANSACTIONAL_ID)
        self._sequence = 0
        self._time_ms = 0

    async def run(self) -> list[Result]:
        """One pass over every partition that is due."""
        await audit_topics.ensure_topics(self._client)
        await self._producer.init()
        stored = await audit_topics.read_compacted(self._client, audit_topics.STATE)
        known = {key: Progress.from_bytes(value) for key, value in stored.items() if key.startswith(PREFIX)}
        partitions = await self._partitions()
        await self._forget(known.keys() - partitions.keys())
        for archive in self._archives.values():
            await archive.load()
        now_ms = self._now_ms()
        selected = {k for k, each in partitions.items() if not self._only or each.topic in self._only}
        due = in_order((k for k in selected if is_due(known.get(k), now_ms, self._within_ms)), known)
        results = []
        for number, key in enumerate(due):
            result = await self._scrub(partitions[key], known.get(key))
            results.append(result)
            self._report(result, number + 1, len(due))
        return results

    async def _partitions(self) -> dict[bytes, _Partition]:
        described = [
            each for each in (await topics.describe(self._client)).values() if isinstance(each, topics.Topic)
        ]
        resources = {configs.topic(each.name): each for each in described}
        values = await configs.describe(self._client, list(resources), names=CONFIGS)
        result = {}
        for resource, topic in resources.items():
            settings = values[resource]
            if isinstance(settings, PenstockError):
                continue  # deleted meanwhile
            compacted = "compact" in (settings["cleanup.policy"].value or "")
            tiered = settings["remote.storage.enable"].value == "true"
            for each in topic.partitions:
                one = _Partition(
                    LogId(topic.id, each.index), topic.name, each.leader, each.isr, compacted, tiered
                )
                result[one.key] = one
        return result

    async def _forget(self, keys: Iterable[bytes]) -> None:
        """Topics that exist no more."""
        records = [ProducerRecord(audit_topics.STATE, key, None) for key in sorted(keys)]
        if records:
            await self._producer.commit(records)

    async def _scrub(self, partition: _Partition, progress: Progress | None) -> Result:
        result = Result(partition.topic, partition.log.partition)
        places = await self._places(partition, result)
        if progress is None or progress.finished:
            progress = Progress(self._now_ms(), min((each.first for each in places), default=0))
        end = max((each.end for each in places if isinstance(each, ReplicaPlace)), default=0)
        one = _Pass(self, partition, progress, [_Reader(each) for each in places], end, result)
        await one.run()
        return result

    async def _places(self, partition: _Partition, result: Result) -> list[Place]:
        """The replicas in the ISR, from their local start to the high watermark, and the stores."""
        brokers = sorted(each for each in partition.isr if not is_shadow(each))
        first = OffsetSpec.EARLIEST_LOCAL if partition.tiered else OffsetSpec.EARLIEST
        end = await self._own_offset(partition, partition.leader, OffsetSpec.LATEST, NOT_A_REPLICA)
        starts = await asyncio.gather(
            *(self._own_offset(partition, each, first, ANY_REPLICA) for each in brokers)
        )
        places: list[Place] = []
        for broker, start in zip(brokers, starts):
            if start is None or end is None:
                result.left_out.add(f"broker {broker}")
                continue
            places.append(ReplicaPlace(self._client, broker, partition.log, start, end, partition.by_record))
        topic_id = id_text(partition.log.topic_id)
        for name, archive in self._archives.items():
            chain = await archive.chain(topic_id, partition.log.partition)
            if chain.pieces and not any(each.manifest.encryption for each in chain.pieces):
                places.append(StorePlace(name, archive, chain, partition.by_record))
        return places

    async def _own_offset(
        self, partition: _Partition, broker: int, spec: OffsetSpec, replica: int
    ) -> int | None:
        place = TopicPartition(partition.topic, partition.log.partition)
        try:
            listed = await list_own_offsets(
                self._client, broker, [place], spec, replica=replica,
                isolation=IsolationLevel.READ_UNCOMMITTED,
            )  # fmt: skip
        except PenstockError:
            return None
        return listed[place][0] if place in listed else None

    async def starts_of(self, partition: _Partition, readers: Sequence[_Reader]) -> None:
        """Read again where logs start: retention or a client has deleted something."""
        spec = OffsetSpec.EARLIEST_LOCAL if partition.tiered else OffsetSpec.EARLIEST
        for reader in readers:
            if isinstance(reader.place, ReplicaPlace):
                start = await self._own_offset(partition, reader.place.broker, spec, ANY_REPLICA)
                if start is not None:
                    reader.place.first = start

    async def spend(self, size: int) -> None:
        """Wait until the rate allows another read."""
        now = time.monotonic()
        self._rate.spend(size, now)
        if (pause := self._rate.wait_seconds(now)) > 0:
            await asyncio.sleep(pause)

    async def commit(
        self, partition: _Partition, rows: Iterable[Scrubbed], run: int, progress: Progress
    ) -> None:
        records = []
        for row in rows:
            self._sequence = max(self._sequence + 1, time.time_ns())
            event = LogEvent(
                self.cluster, partition.subject, SOURCE, self._sequence, self._later_ms(), What.SCRUBBED,
                members_of(replace(row, run=run)),
            )  # fmt: skip
            where = audit_topics.durability_partition(event.key)
            records.append(ProducerRecord(where, event.key, event.to_bytes()))
        records.append(ProducerRecord(audit_topics.STATE, partition.key, progress.to_bytes()))
        await self._producer.commit(records)

    def _now_ms(self) -> int:
        self._time_ms = max(self._time_ms, int(time.time() * 1000))
        return self._time_ms

    def _later_ms(self) -> int:
        """A different time for each event: of two findings with one id the later one is more complete."""
        self._time_ms = max(self._time_ms + 1, int(time.time() * 1000))
        return self._time_ms


@dataclass(slots=True)
class _Pass:
    """One pass over one partition."""

    scrubber: Scrubber
    partition: _Partition
    progress: Progress
    readers: list[_Reader]
    end: int
    result: Result
    clean: _Clean = field(default_factory=_Clean)
    sequences: SequenceTracker = field(default_factory=SequenceTracker)
    stored_at: float = field(default_factory=time.monotonic)
    narrow: int = 1  # batches of a stretch that some place cannot read; doubles until it can

    async def run(self) -> None:
        offset = self.result.first = self.progress.next_offset
        while offset < self.end:
            active = [each for each in self.readers if each.holds(offset)]
            if not active:
                later = [each.place.first for each in self.readers if each.place.first > offset]
                if not later:
                    break
                offset = min(later)
                continue
            if not await self._read(active, offset):
                continue  # places were left out, or their logs start later by now
            offset = await self._compare(active, offset)
            self.result.last = offset - 1
        await self._store([], offset, finished=True)

    async def _read(self, active: list[_Reader], offset: int) -> bool:
        """Have something of every active place; false if they have changed."""
        await asyncio.gather(*(self._fill(each, offset) for each in active))
        gone = [each for each in active if each.next_offset < 0]
        if gone:
            await self.scrubber.starts_of(self.partition, self.readers)
            for reader in gone:
                reader.forget(offset)
                if reader.place.first <= offset:  # it does not have what it should have
                    self._leave_out(reader)
        return not gone and all(each in self.readers for each in active)

    async def _fill(self, reader: _Reader, offset: int) -> None:
        if reader.is_read(offset) or reader.corrupt:
            return
        for _ in range(POLLS_MAX):
            reading = await reader.place.read(offset)
            self.result.size += reading.size
            await self.scrubber.spend(reading.size)
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
        if readable and not self.partition.by_record:
            last = _whole_batches(readable, last)
        copies = [
            Copy(each.place.name, each.take(last), checks_holes=each.place.checks_holes) for each in readable
        ]
        copies += [Copy(each.place.name, unreadable=True) for each in unreadable]
        for reader in unreadable:
            reader.forget(last + 1)
        self.narrow = self.narrow * 2 if unreadable else 1
        parts = compare(copies, offset, last, by_record=self.partition.by_record)
        await self._add(parts, last + 1)
        return last + 1

    def _last(self, readable: list[_Reader], offset: int) -> int:
        return min((each.next_offset - 1 for each in readable), default=self.end - 1)

    def _narrowed(self, readable: list[_Reader], last: int) -> int:
        buffer = max((each.buffer for each in readable), key=len)
        return buffer[min(self.narrow, len(buffer)) - 1].last if buffer else last

    async def _add(self, parts: list[Part], offset: int) -> None:
        rows: list[Scrubbed] = []
        for part in parts:
            if not part.clean or not self.clean.accepts(part):
                rows += self._flushed()
            if part.clean:
                self.clean.add(part)
            else:
                rows += part.rows
                self.result.problems += [row for row in part.rows if row.holes or row.damaged]
                self.result.problems += _differing(part)
            errors = self._sequence_errors(part)
            rows += errors
            self.result.problems += errors
        due = time.monotonic() - self.stored_at >= STORE_SECONDS
        if rows or due:
            await self._store(rows, offset)

    def _sequence_errors(self, part: Part) -> list[Scrubbed]:
        """Judged by what most places have, so that damage of one place is not reported twice."""
        if self.partition.by_record or not part.rows:
            return []
        return [
            Scrubbed(part.rows[0].place, each.base, each.last, "", sequence_errors=(error,))
            for each in part.agreed
            if (error := self.sequences.error(each))
        ]

    def _flushed(self) -> list[Scrubbed]:
        rows = self.clean.rows() if self.clean.first >= 0 else []
        self.clean = _Clean()
        return rows

    async def _store(self, rows: list[Scrubbed], offset: int, *, finished: bool = False) -> None:
        run = self.progress.began_ms
        # A partition of which a place did not respond is due again at the next run.
        began_ms = 0 if finished and self.result.left_out else run
        fault_points.reach(HALFWAY)
        await self.scrubber.commit(
            self.partition, [*rows, *self._flushed()], run, Progress(began_ms, offset, finished)
        )
        self.stored_at = time.monotonic()


def _whole_batches(readable: list[_Reader], last: int) -> int:
    """The end of a stretch that divides no batch."""
    ends = [each.last for reader in readable for each in reader.buffer if each.last <= last]
    if ends:
        return max(ends)
    return min((reader.buffer[0].last for reader in readable if reader.buffer), default=last)


def _differing(part: Part) -> list[Scrubbed]:
    """Rows of places that do not have what most have, apart from holes and damage."""
    digests = [row.digest for row in part.rows if row.digest and not row.damaged]
    return (
        [row for row in part.rows if row.digest not in ("", digests[0]) and not row.damaged]
        if digests
        else []
    )
