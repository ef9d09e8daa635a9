"""What a walk can report on its way: the facts that metering, evidence and the topic map need.

A watched program appends tuples to a list: first the *head*, once a frame (if there is one), then
a *row* for each element of one array. Facts are the broker's side of the matter: the name as the
broker knows it, the error code as it gave it. A field that a version does not have is −1, a topic
that has no name or id in it None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LAST_OFFSET_DELTA: Final = "last_offset_delta"  # of the record batch: offsets it will take, less one
RECORD_BYTES: Final = "record_bytes"
BATCH_HEADER_BYTES: Final = 27  # of a record batch, up to and including lastOffsetDelta
TOPIC: Final = "topic"  # its name, or its id where the version has ids


@dataclass(frozen=True, slots=True)
class Watch:
    head: tuple[str, ...]  # fields of the message itself
    array: str  # path of the array, without the message's name; "" for none
    row: tuple[str, ...]  # fields of its elements, or of the arrays around it
    topic: str = ""  # path of the array whose elements carry the topic


def _topics(array: str, *more: str) -> Watch:
    return Watch((), array, ("Name", "TopicId", "ErrorCode", *more))


WATCHES: Final[dict[str, Watch]] = {
    "ProduceRequest": Watch(
        ("Acks",),
        "TopicData.PartitionData",
        (TOPIC, "Index", RECORD_BYTES, LAST_OFFSET_DELTA),
        "TopicData",
    ),
    "ProduceResponse": Watch(
        (),
        "Responses.PartitionResponses",
        (TOPIC, "Index", "ErrorCode", "BaseOffset", "LogStartOffset"),
        "Responses",
    ),
    "FetchRequest": Watch(("SessionId", "SessionEpoch", "MaxBytes"), "", ()),
    "FetchResponse": Watch(
        ("ErrorCode", "SessionId"),
        "Responses.Partitions",
        (TOPIC, "PartitionIndex", "ErrorCode", RECORD_BYTES, "HighWatermark"),
        "Responses",
    ),
    "ShareFetchResponse": Watch(
        ("ErrorCode",),
        "Responses.Partitions",
        (TOPIC, "PartitionIndex", "ErrorCode", RECORD_BYTES),
        "Responses",
    ),
    "MetadataResponse": _topics("Topics"),
    "CreateTopicsResponse": _topics("Topics", "NumPartitions"),
    "DeleteTopicsResponse": _topics("Responses"),
    "DescribeTopicPartitionsResponse": _topics("Topics"),
}
