"""Turns records of other topics into facts: ack evidence of gateways, and tier metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.audit.topic_ids import id_text
from penstock.model.durability import Acked, Segment, partition_subject
from penstock.model.events import ACKS_ALL, AckRanges
from penstock.wire.logs import TIER, read_framed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.audit.metadata_history import Observation


def acked(records: Iterable[bytes]) -> Iterator[Observation]:
    """One range for each partition, of what was acknowledged with acks=all."""
    ranges: dict[str, Acked] = {}
    for value in records:
        for each in AckRanges.from_bytes(value):
            if each.acks != ACKS_ALL:
                continue
            subject = partition_subject(each.topic_id, each.partition)
            one = Acked(each.first, each.last, each.records, each.bytes, each.max_timestamp_ms)
            before = ranges.get(subject)
            ranges[subject] = one if before is None else _joined(before, one)
    yield from ranges.items()


def _joined(one: Acked, other: Acked) -> Acked:
    return Acked(
        min(one.first, other.first),
        max(one.last, other.last),
        one.records + other.records,
        one.bytes + other.bytes,
        max(one.max_timestamp_ms, other.max_timestamp_ms),
    )


def segments(records: Iterable[bytes]) -> Iterator[Observation]:
    """States of remote segments."""
    for value in records:
        entry = read_framed(TIER, value)
        r = entry.values
        if "RemoteLogSegmentId" not in r:
            continue  # the deletion of a whole partition, which the metadata log shows too
        segment_id = r["RemoteLogSegmentId"]
        partition = segment_id["TopicIdPartition"]
        subject = partition_subject(id_text(partition["Id"]), partition["Partition"])
        name, state = id_text(segment_id["Id"]), r["RemoteLogSegmentState"]
        if "StartOffset" in r:
            yield (
                subject,
                Segment(
                    name,
                    state,
                    r["StartOffset"],
                    r["EndOffset"],
                    r["MaxTimestampMs"],
                    r["SegmentSizeInBytes"],
                ),
            )
        else:
            yield subject, Segment(name, state)
