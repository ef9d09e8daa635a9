"""Entries of Kafka's own logs."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from penstock.model.errors.wire import ResponseMalformed
from penstock.wire.codec import encode
from penstock.wire.logs import (
    GROUPS,
    METADATA,
    TIER,
    TRANSACTIONS,
    Entry,
    read_coordinated,
    read_framed,
    write_framed,
)


@pytest.mark.parametrize(
    ("artifact", "entry"),
    [
        (METADATA, Entry("TopicRecord", 0, {"Name": "orders", "TopicId": UUID(int=9)})),
        (METADATA, Entry("RemoveTopicRecord", 0, {"TopicId": UUID(int=9)})),
        (
            TIER,
            Entry(
                "RemotePartitionDeleteMetadataRecord",
                0,
                {
                    "TopicIdPartition": {"Name": "orders", "Id": UUID(int=9), "Partition": 3},
                    "BrokerId": 1,
                    "EventTimestampMs": 2,
                    "RemotePartitionDeleteState": 1,
                },
            ),
        ),
    ],
)
def test_framed_entries_round_trip(artifact: str, entry: Entry) -> None:
    data = write_framed(entry)

    assert read_framed(artifact, data) == entry


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"\x01\x02", "truncated"),
        (b"\x07\x02\x00", "frame version 7"),
        (b"\x01\x7f\x00", "record type 127"),
        (b"\x01\x02\x00\x05ab", "truncated"),
    ],
)
def test_a_malformed_framed_entry_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ResponseMalformed, match=reason):
        read_framed(METADATA, data)


def test_a_commit_is_read_from_the_offsets_topic() -> None:
    key = struct.pack(">h", 1) + encode(
        "OffsetCommitKey", 0, {"Group": "payments", "Topic": "orders", "Partition": 3}
    )
    value = struct.pack(">h", 3) + encode("OffsetCommitValue", 3, {"Offset": 7, "Metadata": "half way"})

    read_key, read_value = read_coordinated(GROUPS, key, value)
    _, deleted = read_coordinated(GROUPS, key, None)

    assert read_key == Entry("OffsetCommitKey", 0, {"Group": "payments", "Topic": "orders", "Partition": 3})
    assert read_value is not None
    assert (read_value.name, read_value.version, read_value.values["Offset"]) == ("OffsetCommitValue", 3, 7)
    assert deleted is None


def test_a_transaction_is_read_from_its_topic() -> None:
    key = struct.pack(">h", 0) + encode("TransactionLogKey", 0, {"TransactionalId": "till"})
    value = struct.pack(">h", 1) + encode(
        "TransactionLogValue", 1, {"ProducerId": 5, "PreviousProducerId": 4}
    )

    _, read = read_coordinated(TRANSACTIONS, key, value)

    assert read is not None
    assert (read.values["ProducerId"], read.values["PreviousProducerId"]) == (5, 4)


@pytest.mark.parametrize(("key", "value"), [(b"", b"\0\0"), (b"\0\x01", b"\0"), (b"\x63\0", b"\0\0")])
def test_a_malformed_record_of_a_coordinator_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(ResponseMalformed):
        read_coordinated(GROUPS, key, value)
