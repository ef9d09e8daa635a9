"""Facts from ack evidence and tier metadata."""

from __future__ import annotations

from uuid import UUID

from penstock.audit.evidence import acked, segments
from penstock.audit.topic_ids import id_text
from penstock.model.durability import Acked, Segment, partition_subject
from penstock.model.events import ACKS_ALL, ACKS_LEADER, AckRanges
from penstock.model.ids import PhysicalClusterId
from penstock.wire.logs import Entry, write_framed

TOPIC, SEGMENT = UUID(int=5), UUID(int=6)


def test_ranges_of_a_partition_are_joined_and_those_of_acks_1_left_out() -> None:
    ranges = {
        "T": (
            (0, ACKS_ALL, 10, 5, 5, 100, 7, 0),
            (0, ACKS_ALL, 15, 5, 4, 200, 9, 0),
            (0, ACKS_LEADER, 50, 1, 1, 10, 1, 0),
            (1, ACKS_LEADER, 50, 1, 1, 10, 1, 0),
        )
    }
    record = AckRanges(PhysicalClusterId("pkc-000000"), "gw-1", "i1", 0, 0, 1, ranges)

    assert list(acked([record.to_bytes()])) == [("partition/T/0", Acked(10, 19, 9, 300, 9))]


def test_states_of_remote_segments() -> None:
    segment_id = {
        "TopicIdPartition": {"Name": "orders", "Id": TOPIC, "Partition": 3},
        "Id": SEGMENT,
    }
    copied = {
        "RemoteLogSegmentId": segment_id, "StartOffset": 0, "EndOffset": 99, "BrokerId": 1,
        "MaxTimestampMs": 7,
        "EventTimestampMs": 8, "SegmentLeaderEpochs": [{"LeaderEpoch": 0, "Offset": 0}],
        "SegmentSizeInBytes": 1000, "CustomMetadata": None, "RemoteLogSegmentState": 0,
        "TxnIndexEmpty": False,
    }  # fmt: skip
    updated = {
        "RemoteLogSegmentId": segment_id, "BrokerId": 1, "EventTimestampMs": 9, "CustomMetadata": None,
        "RemoteLogSegmentState": 1,
    }  # fmt: skip
    values = [
        write_framed(Entry("RemoteLogSegmentMetadataRecord", 0, copied)),
        write_framed(Entry("RemoteLogSegmentMetadataUpdateRecord", 0, updated)),
    ]
    subject = partition_subject(id_text(TOPIC), 3)

    assert list(segments(values)) == [
        (subject, Segment(id_text(SEGMENT), 0, 0, 99, 7, 1000)),
        (subject, Segment(id_text(SEGMENT), 1)),
    ]
