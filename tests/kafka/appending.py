"""Appending a batch to a partition, whose leader may take a moment to know that it leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kafka.routing import LeaderOf
from penstock.wire.codes import STALE_METADATA
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.kafka.client import Client

BY_NAME_LAST = 12  # the last version of Produce that names topics


async def append(client: Client, topic: str, partition: int, batch: bytes) -> int:
    """The offset of the first record."""
    data = {"Name": topic, "PartitionData": [{"Index": partition, "Records": batch}]}
    body = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [data]}

    async def appended() -> tuple[int] | None:
        answer = await client.call("Produce", body, to=LeaderOf(topic, partition), newest=BY_NAME_LAST)
        result = answer["Responses"][0]["PartitionResponses"][0]
        assert result["ErrorCode"] in (0, *STALE_METADATA), result
        return (result["BaseOffset"],) if not result["ErrorCode"] else None

    return (await eventually(appended))[0]
