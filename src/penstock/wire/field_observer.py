"""Which values a splicer reports from the frames it rewrites: for metering, ack evidence and topic ids.

An observing program appends tuples to a list: first the *head*, once per frame if there is one, then a *row*
for each element of one array. Names and error codes are reported as the broker knows them. A field that the
version lacks is −1; a missing topic name or id is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LAST_OFFSET_DELTA: Final = "last_offset_delta"  # of the record batch: its number of offsets, less one
RECORD_BYTES: Final = "record_bytes"
MAX_TIMESTAMP: Final = "max_timestamp"  # of the record batch
BATCH_HEADER_BYTES: Final = 43  # of a record batch, up to and including maxTimestamp
TOPIC: Final = "topic"  # its name, or its id in versions with ids


@dataclass(frozen=True, slots=True)
class ObservedFields:
    """The values reported from one kind of message."""

    head: tuple[str, ...]  # fields of the message itself
    array: str  # path of the array, without the message's name; "" for none
    row: tuple[str, ...]  # fields of its elements, or of the elements around it
    topic: str = ""  # path of the array whose elements carry the topic


def _topics(array: str, *more: str) -> ObservedFields:
    return ObservedFields((), array, ("Name", "TopicId", "ErrorCode", *more))


OBSERVED_FIELDS: Final[dict[str, ObservedFields]] = {
    "ProduceRequest": ObservedFields(
        ("Acks",),
        "TopicData.PartitionData",
        (TOPIC, "Index", RECORD_BYTES, LAST_OFFSET_DELTA, MAX_TIMESTAMP),
        "TopicData",
    ),
    "ProduceResponse": ObservedFields(
        (),
        "Responses.PartitionResponses",
        (TOPIC, "Index", "ErrorCode", "BaseOffset", "LogAppendTimeMs", "LogStartOffset"),
        "Responses",
    ),
    "FetchRequest": ObservedFields(("SessionId", "SessionEpoch", "MaxBytes"), "", ()),
    "FetchResponse": ObservedFields(
        ("ErrorCode", "SessionId"),
        "Responses.Partitions",
        (TOPIC, "PartitionIndex", "ErrorCode", RECORD_BYTES, "HighWatermark"),
        "Responses",
    ),
    "ShareFetchResponse": ObservedFields(
        ("ErrorCode",),
        "Responses.Partitions",
        (TOPIC, "PartitionIndex", "ErrorCode", RECORD_BYTES),
        "Responses",
    ),
    "MetadataResponse": _topics("Topics"),
    "CreateTopicsResponse": _topics("Topics", "NumPartitions"),
    "DeleteTopicsResponse": _topics("Responses"),
    "DeleteRecordsResponse": ObservedFields(
        (), "Topics.Partitions", (TOPIC, "PartitionIndex", "ErrorCode", "LowWatermark"), "Topics"
    ),
    "DescribeTopicPartitionsResponse": _topics("Topics"),
}
