"""Append a record batch to a partition that brokers may not know yet, nor its leader that it leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kafka.routing import LeaderOf
from penstock.model.errors.wire import KafkaMissing
from penstock.wire.error_codes import STALE_METADATA
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.kafka.client import Client

BY_NAME_LAST = 12  # the last version of Produce that names topics


async def append_batch(client: Client, topic: str, partition: int, batch: bytes) -> int:
    """Append; returns the offset of the first record."""
    data = {"Name": topic, "PartitionData": [{"Index": partition, "Records": batch}]}
    body = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [data]}

    async def appended() -> tuple[int] | None:
        try:
            response = await client.call(
                "Produce", body, to=LeaderOf(topic, partition), version_max=BY_NAME_LAST
            )
        except KafkaMissing:
            return None
        result = response["Responses"][0]["PartitionResponses"][0]
        assert result["ErrorCode"] in (0, *STALE_METADATA), result
        return (result["BaseOffset"],) if not result["ErrorCode"] else None

    return (await eventually(appended))[0]
