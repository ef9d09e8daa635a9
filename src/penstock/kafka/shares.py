"""Offsets of share groups (KIP-932): where they start, how far they are behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.partitions import TopicPartition, by_topic
from penstock.kafka.refusals import check
from penstock.kafka.routing import group_coordinator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError


@dataclass(frozen=True, slots=True)
class ShareOffset:
    start: int  # the first offset not yet settled; −1: the group has not begun here
    lag: int  # −1: not told
    leader_epoch: int


async def describe(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, ShareOffset | PenstockError]:
    """Of every partition the group reads, unless some are given."""
    topics = None
    if partitions is not None:
        topics = [{"TopicName": name, "Partitions": ps} for name, ps in by_topic(partitions).items()]
    api = "DescribeShareGroupOffsets"
    body = {"Groups": [{"GroupId": group, "Topics": topics}]}
    answer = await client.call(api, body, to=group_coordinator(group), timeout=timeout)
    found = answer["Groups"][0]
    check(api, found["ErrorCode"], found["ErrorMessage"], f"group {group!r}")
    results: dict[TopicPartition, ShareOffset | PenstockError] = {}
    for t in found["Topics"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["TopicName"], p["PartitionIndex"])
            offset = ShareOffset(p["StartOffset"], p.get("Lag", -1), p["LeaderEpoch"])
            said = (p["ErrorCode"], p["ErrorMessage"])
            results[key] = outcome(api, *said, f"partition {key} of group {group!r}", offset)
    return results


async def alter(
    client: Client, group: str, starts: Mapping[TopicPartition, int], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, PenstockError | None]:
    """Set where a share group without members starts."""
    topics = [
        {
            "TopicName": name,
            "Partitions": [
                {"PartitionIndex": i, "StartOffset": starts[TopicPartition(name, i)]} for i in indexes
            ],
        }
        for name, indexes in by_topic(starts).items()
    ]
    api = "AlterShareGroupOffsets"
    body = {"GroupId": group, "Topics": topics}
    answer = await client.call(api, body, to=group_coordinator(group), timeout=timeout)
    check(api, answer["ErrorCode"], answer["ErrorMessage"], f"group {group!r}")
    results: dict[TopicPartition, PenstockError | None] = {}
    for t in answer["Responses"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["TopicName"], p["PartitionIndex"])
            said = (p["ErrorCode"], p["ErrorMessage"])
            results[key] = outcome(api, *said, f"partition {key} of group {group!r}", None)
    return results


async def forget(
    client: Client, group: str, topics: Sequence[str], *, timeout: float = CALL_SECONDS
) -> dict[str, PenstockError | None]:
    """Delete what a share group without members knows of these topics."""
    api = "DeleteShareGroupOffsets"
    body = {"GroupId": group, "Topics": [{"TopicName": name} for name in topics]}
    answer = await client.call(api, body, to=group_coordinator(group), timeout=timeout)
    check(api, answer["ErrorCode"], answer["ErrorMessage"], f"group {group!r}")
    return {
        t["TopicName"]: outcome(
            api, t["ErrorCode"], t["ErrorMessage"], f"topic {t['TopicName']!r} of group {group!r}", None
        )
        for t in answer["Responses"]
    }
