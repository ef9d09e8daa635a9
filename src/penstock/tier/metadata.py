"""Which segments are live, folded from the records of `__remote_log_metadata`.

A segment goes from STARTED to FINISHED to DELETE_STARTED, and is gone after DELETE_FINISHED. Everything
before that counts as live: its objects must stay. The raw values are kept, since a restore publishes them
again as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.tier.format import SegmentKey, id_text
from penstock.wire.logs import TIER, read_framed

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC: Final = "__remote_log_metadata"


class SegmentState(IntEnum):
    STARTED = 0
    FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    topic: str
    topic_id: str
    partition: int
    segment_id: str
    base_offset: int
    end_offset: int
    log_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    state: SegmentState
    custom_metadata: bytes | None
    started: bytes  # the raw value of its first record
    finished: bytes | None = None  # of the update to FINISHED

    def key(self, cluster: str) -> SegmentKey:
        return SegmentKey(cluster, self.topic_id, self.partition, self.base_offset, self.segment_id)


class TierMetadata:
    """The state after the values applied so far."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}  # live ones, by segment id
        self.deleted: set[str] = set()  # ids after DELETE_FINISHED
        self.deleted_partitions: set[tuple[str, int]] = set()  # marked, or being deleted, or deleted

    def apply(self, value: bytes) -> None:
        entry = read_framed(TIER, value)
        if entry.name == "RemoteLogSegmentMetadataRecord":
            segment = _segment(entry.values, value)
            self.segments[segment.segment_id] = segment
            self.deleted.discard(segment.segment_id)
        elif entry.name == "RemoteLogSegmentMetadataUpdateRecord":
            self._update(entry.values, value)
        elif entry.name == "RemotePartitionDeleteMetadataRecord":
            place = entry.values["TopicIdPartition"]
            self.deleted_partitions.add((id_text(place["Id"]), place["Partition"]))

    def _update(self, values: Mapping[str, Any], raw: bytes) -> None:
        segment_id = id_text(values["RemoteLogSegmentId"]["Id"])
        state = SegmentState(values["RemoteLogSegmentState"])
        before = self.segments.get(segment_id)
        if state is SegmentState.DELETE_FINISHED:
            self.segments.pop(segment_id, None)
            self.deleted.add(segment_id)
        elif before is not None:
            custom = values["CustomMetadata"]
            self.segments[segment_id] = replace(
                before,
                state=state,
                custom_metadata=before.custom_metadata if custom is None else bytes(custom),
                finished=raw if state is SegmentState.FINISHED else before.finished,
            )


def _segment(values: Mapping[str, Any], raw: bytes) -> Segment:
    place = values["RemoteLogSegmentId"]["TopicIdPartition"]
    custom = values["CustomMetadata"]
    return Segment(
        topic=place["Name"],
        topic_id=id_text(place["Id"]),
        partition=place["Partition"],
        segment_id=id_text(values["RemoteLogSegmentId"]["Id"]),
        base_offset=values["StartOffset"],
        end_offset=values["EndOffset"],
        log_bytes=values["SegmentSizeInBytes"],
        leader_epochs=tuple((e["LeaderEpoch"], e["Offset"]) for e in values["SegmentLeaderEpochs"]),
        state=SegmentState(values["RemoteLogSegmentState"]),
        custom_metadata=None if custom is None else bytes(custom),
        started=raw,
    )
