"""Ack evidence: which offsets brokers acknowledged through this gateway.

The data path adds each acknowledged batch to the open range of its partition. Contiguous batches merge.
Every ten seconds `take` turns open ranges into `AckRanges` records, the oldest first, as long as they fit
into half a percent of the bytes received. Ranges that do not fit stay open and merge further. Batches that
find no room at all are counted as lost, and every later record carries that count.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from penstock.model.events import ACKS_ALL, ACKS_LEADER, AckRanges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.gateway.limits.metering import Source

RANGES_OPEN_MAX: Final = 50_000  # about 150 bytes each
PIECES_MAX: Final = 16  # open ranges of one partition before the holes between them are bridged
MERGE_MS: Final = 10_000
HEARTBEAT_MS: Final = 60_000  # an idle gateway writes a record without ranges this often
RANGES_PER_RECORD_MAX: Final = 1_000  # about 60 KB; also the work of one `take`
INGRESS_SHARE_MAX: Final = 0.005  # of the bytes received
BYTES_PER_SECOND_MIN: Final = 100  # may be used however little is received
RECORD_BYTES: Final = 250  # estimates of what a record and each of its ranges take
RANGE_BYTES: Final = 90
CLOSED: Final = -2  # the last offset of a range that no batch may extend any more


class OpenRange:
    """Acknowledged offsets of one partition.

    A holder may extend it by a batch that starts at `last` + 1, which no batch does once it is closed.
    """

    __slots__ = ("bytes", "first", "holes", "last", "log_start", "max_timestamp")

    def __init__(self, first: int, last: int, size: int, max_timestamp: int, log_start: int) -> None:
        self.first = first
        self.last = last
        self.bytes = size
        self.max_timestamp = max_timestamp
        self.log_start = log_start
        self.holes = 0  # offsets between first and last that were not acknowledged here

    def absorb(self, other: OpenRange) -> None:
        """Extend this range over another one, and over the offsets between the two."""
        if other.first >= self.first and other.last <= self.last and not self.holes:
            return  # an idempotent producer sent the batch again
        between = max(other.first - self.last, self.first - other.last) - 1
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.holes = min(self.holes + other.holes + max(between, 0), self.last - self.first)
        self.bytes += other.bytes
        self.max_timestamp = max(self.max_timestamp, other.max_timestamp)
        self.log_start = max(self.log_start, other.log_start)

    def joins(self, other: OpenRange) -> bool:
        return other.first <= self.last + 1 and other.last >= self.first - 1


class OpenPartition:
    """The open ranges of one partition for one value of `acks`."""

    __slots__ = ("pieces", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.pieces: list[OpenRange] = []

    def merge(self, *, bridge: bool) -> None:
        """Join ranges that touch each other; with `bridge`, all of them."""
        if len(self.pieces) < 2:
            return
        self.pieces.sort(key=_first)
        merged = [self.pieces[0]]
        for piece in self.pieces[1:]:
            if bridge or merged[-1].joins(piece):
                merged[-1].absorb(piece)
                piece.last = CLOSED
            else:
                merged.append(piece)
        self.pieces = merged


def _first(piece: OpenRange) -> int:
    return piece.first


class Acks:
    """All open ranges of one gateway, and the records made of them."""

    __slots__ = (
        "began_ms", "lost", "next_ms", "now_ms", "open", "partitions", "sequence", "spent_bytes",
    )  # fmt: skip

    def __init__(self, now_ms: int = 0) -> None:
        # By topic id, partition and acks, in the order they were opened.
        self.partitions: dict[tuple[bytes, int, int], OpenPartition] = {}
        self.open = 0  # ranges in `partitions`
        self.lost = 0  # batches without room and ranges of records that were never written
        self.now_ms = now_ms  # set by the gateway once a second
        self.began_ms = now_ms
        self.next_ms = now_ms  # when the next record is due
        self.sequence = 0
        self.spent_bytes = 0  # of records so far

    def add(self, topic_id: bytes, partition: int, acks: int, batch: OpenRange) -> OpenRange | None:
        """Add a batch; returns the range that includes it, or None without room."""
        key = (topic_id, partition, acks)
        opened = self.partitions.get(key)
        if opened is not None:
            for piece in reversed(opened.pieces):
                if piece.joins(batch):
                    piece.absorb(batch)
                    return piece
        if opened is None:
            if self.open >= RANGES_OPEN_MAX:
                self.lost += 1
                return None
            opened = self.partitions[key] = OpenPartition(self.now_ms)
        opened.pieces.append(batch)
        self.open += 1
        if len(opened.pieces) > (PIECES_MAX if self.open < RANGES_OPEN_MAX // 2 else 1):
            self._merge(opened, bridge=True)
            return opened.pieces[0]
        return batch

    def record(
        self,
        acks: int,
        sent: list[tuple[Any, ...]],
        responded: list[tuple[Any, ...]],
        ids: Mapping[bytes, bytes] | None,
    ) -> None:
        """Record a Produce request and its response; `ids` maps names to ids, None if rows carry ids.

        Rows are those of `wire.field_observer`: (topic, partition, bytes, last offset delta, largest
        timestamp) and (topic, partition, error, base offset, append time, log start).
        """
        batches = {(row[0], row[1]): row for row in sent} if len(sent) > 1 else {}
        for topic, partition, error, base, append_time, log_start in responded:
            row = batches.get((topic, partition)) if batches else sent[0]
            if error or base < 0 or row is None or row[3] < 0:
                continue
            topic_id = topic if ids is None else ids.get(topic)
            if topic_id is not None:
                timestamp = row[4] if append_time < 0 else append_time
                batch = OpenRange(base, base + row[3], row[2], timestamp, max(log_start, 0))
                self.add(topic_id, partition, acks, batch)

    def take(self, source: Source, ingress_bytes: int) -> AckRanges | None:
        """The next record, if one is due; `ingress_bytes` is what was received since the start."""
        now = self.now_ms
        if now < self.next_ms:
            return None
        allowed = INGRESS_SHARE_MAX * ingress_bytes + BYTES_PER_SECOND_MIN * (now - self.began_ms) / 1000
        idle = not self.partitions
        if self.sequence and idle and now < self.next_ms - MERGE_MS + HEARTBEAT_MS:
            return None
        record = self._record(source, allowed - self.spent_bytes - RECORD_BYTES)
        if self.sequence and not record.ranges and not idle:
            self.next_ms = now + MERGE_MS  # nothing fits yet
            return None
        if sum(map(len, record.ranges.values())) < RANGES_PER_RECORD_MAX:
            self.next_ms = now + MERGE_MS
        return self._numbered(record)

    def last(self, source: Source) -> list[AckRanges]:
        """All that is open, and the end of this incarnation."""
        records = []
        while self.partitions:
            records.append(self._numbered(self._record(source, float("inf"))))
        records.append(self._numbered(self._record(source, 0.0, final=True)))
        return records

    def _numbered(self, record: AckRanges) -> AckRanges:
        self.sequence += 1
        self.spent_bytes += len(record.to_bytes())
        return record

    def _record(self, source: Source, bytes_max: float, *, final: bool = False) -> AckRanges:
        """Remove what fits, the oldest ranges first."""
        ranges: dict[str, list[tuple[int, ...]]] = {}
        since_ms, count, keys = self.now_ms, 0, []
        for key, opened in self.partitions.items():
            self._merge(opened, bridge=False)
            if len(opened.pieces) * RANGE_BYTES > bytes_max:
                self._merge(opened, bridge=True)
            size = len(opened.pieces)
            if size * RANGE_BYTES > bytes_max or count + size > RANGES_PER_RECORD_MAX:
                break
            bytes_max -= size * RANGE_BYTES
            count += size
            since_ms = min(since_ms, opened.since_ms)
            topic_id, partition, acks = key
            rows = ranges.setdefault(base64.urlsafe_b64encode(topic_id).decode().rstrip("="), [])
            level = ACKS_ALL if acks < 0 else ACKS_LEADER
            for piece in opened.pieces:
                offsets = piece.last - piece.first + 1
                row = (partition, level, piece.first, offsets, offsets - piece.holes)
                rows.append((*row, piece.bytes, piece.max_timestamp, piece.log_start))
                piece.last = CLOSED
            keys.append(key)
        for key in keys:
            self.open -= len(self.partitions.pop(key).pieces)
        return AckRanges(
            cluster=source.cluster,
            gateway=source.gateway,
            incarnation=source.incarnation,
            sequence=self.sequence,
            since_ms=since_ms,
            time_ms=self.now_ms,
            ranges={topic_id: tuple(rows) for topic_id, rows in ranges.items()},
            lost=self.lost,
            final=final,
        )

    def _merge(self, opened: OpenPartition, *, bridge: bool) -> None:
        before = len(opened.pieces)
        opened.merge(bridge=bridge)
        self.open -= before - len(opened.pieces)
