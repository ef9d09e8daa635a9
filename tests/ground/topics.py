"""New topics: brokers hear of them one after the other, and a leader knows its topic before it leads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.kafka.connection import Connection
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from penstock.kafka.security import Security

SECONDS_MAX = 60.0
SECONDS_BETWEEN = 0.02
LATEST = -1
NO_REPLICA = -1  # what stands for a replica in requests of clients


async def led_everywhere(
    bootstrap: str, security: Security, topic: str, partitions: int | None = None
) -> None:
    """Wait until each of these brokers knows the topic with all its leaders, and leads what it is to lead.

    `partitions` is for a topic that has grown: so many have to be known.
    """
    async with asyncio.timeout(SECONDS_MAX):
        for place in bootstrap.split(","):
            host, port = place.rsplit(":", 1)
            async with await Connection.open(host, int(port), security) as connection:
                while (mine := await _led_by(connection, int(port), topic, partitions)) is None:
                    await asyncio.sleep(SECONDS_BETWEEN)
                while mine and not await leads(connection, topic, mine):
                    await asyncio.sleep(SECONDS_BETWEEN)


async def _led_by(connection: Connection, port: int, topic: str, partitions: int | None) -> list[int] | None:
    """The partitions that the broker at this port leads; None: it does not know all of them yet."""
    answer = await connection.call("Metadata", {"Topics": [{"Name": topic}]}, version=9)
    (found,) = answer["Topics"]
    leaders = {p["PartitionIndex"]: p["LeaderId"] for p in found["Partitions"]}
    enough = bool(leaders) if partitions is None else len(leaders) == partitions
    if found["ErrorCode"] != Code.NONE or not enough or min(leaders.values()) < 0:
        return None
    here = {broker["NodeId"] for broker in answer["Brokers"] if broker["Port"] == port}
    return [index for index, leader in leaders.items() if leader in here]


async def leads(connection: Connection, topic: str, partitions: list[int]) -> bool:
    """Whether the broker at hand takes requests for all of these."""
    asked = [{"PartitionIndex": index, "Timestamp": LATEST} for index in partitions]
    body: dict[str, Any] = {
        "ReplicaId": NO_REPLICA,
        "Topics": [{"Name": topic, "Partitions": asked}],
    }
    answer = await connection.call("ListOffsets", body, version=7)
    return all(p["ErrorCode"] == Code.NONE for t in answer["Topics"] for p in t["Partitions"])
