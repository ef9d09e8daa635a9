"""Describe and set the offsets of share groups (KIP-932)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.admin.partitions import listed, partition_errors, partition_responses, with_fields
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import group_coordinator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError


@dataclass(frozen=True, slots=True)
class ShareOffset:
    start: int  # the share-partition start offset; −1: the group has not read the partition yet
    lag: int  # −1: not reported
    leader_epoch: int


async def describe(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, ShareOffset | PenstockError]:
    """The offsets of a group, for these partitions or for all it reads."""
    topics = listed(partitions, "TopicName", "Partitions")
    api = "DescribeShareGroupOffsets"
    body = {"Groups": [{"GroupId": group, "Topics": topics}]}
    response = await client.call(api, body, to=group_coordinator(group), timeout=timeout)
    described = response["Groups"][0]
    check(api, described["ErrorCode"], described["ErrorMessage"], f"group {group!r}")
    results: dict[TopicPartition, ShareOffset | PenstockError] = {}
    for key, code, message, p in partition_responses(described, name="TopicName"):
        offset = ShareOffset(p["StartOffset"], p.get("Lag", -1), p["LeaderEpoch"])
        results[key] = outcome(api, code, message, f"partition {key} of group {group!r}", offset)
    return results


async def alter(
    client: Client, group: str, starts: Mapping[TopicPartition, int], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, PenstockError | None]:
    """Set the start offsets of a share group without members."""
    topics = with_fields({partition: {"StartOffset": at} for partition, at in starts.items()}, "TopicName")
    api = "AlterShareGroupOffsets"
    body = {"GroupId": group, "Topics": topics}
    response = await client.call(api, body, to=group_coordinator(group), timeout=timeout)
    check(api, response["ErrorCode"], response["ErrorMessage"], f"group {group!r}")
    responses = partition_responses(response, "Responses", "TopicName")
    return partition_errors(api, responses, f" of group {group!r}")
