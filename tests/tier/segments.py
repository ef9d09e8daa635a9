"""Segments of format 1 for tests."""

from __future__ import annotations

from penstock.tier.format import Manifest, Origin, describe_log
from penstock.wire.compression import Compression
from penstock.wire.records import Record, write

CLUSTER = "PenstockPenstockPenstg"
TOPIC_ID = "TopicTopicTopicTopicTg"
SEGMENT_ID = "SegmentSegmentSegmentg"
NOW_MS = 1_790_000_000_000


def batch(base: int, count: int = 2, *, epoch: int = 0, value: bytes = b"value") -> bytes:
    rows = [Record(base + n, NOW_MS + base + n, b"key", value) for n in range(count)]
    return write(rows, compression=Compression.NONE, leader_epoch=epoch)


def log_of(*starts: int, epoch: int = 0, value: bytes = b"value") -> bytes:
    return b"".join(batch(start, epoch=epoch, value=value) for start in starts)


def manifest_of(log: bytes, *, segment_id: str = SEGMENT_ID, base: int | None = None) -> Manifest:
    origin = Origin(CLUSTER, TOPIC_ID, "orders", 3, 2)
    return describe_log(log, origin, segment_id=segment_id, base_offset=base, event_timestamp_ms=NOW_MS)
