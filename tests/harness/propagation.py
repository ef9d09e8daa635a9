"""Wait until every broker knows about a change: metadata reaches the brokers one after another.

    await wait_for_topics(fleet, "orders")       # the topic, its leaders, and the leaders serve it
    await wait_for_topic_config(fleet, "orders", "max.message.bytes", "1000000")

Without this, a test's next request may reach a broker that has not seen the change yet. A leader
knows its topic before it accepts requests for it, so leadership is checked separately.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.fleet.spec import Listener
from penstock.kafka.admin.configs import ResourceKind
from penstock.kafka.admin.offsets import NOT_A_REPLICA, OffsetSpec
from penstock.kafka.connection import Connection
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.kafka.security import Security
    from tests.harness.fleet import Fleet

SECONDS_MAX = 60.0
SECONDS_BETWEEN = 0.02


async def wait_for_topics(fleet: Fleet, *topics: str) -> None:
    for topic in topics:
        await wait_for_leaders(fleet.bootstrap, fleet.security(), topic)


async def wait_for_topic_config(fleet: Fleet, topic: str, name: str, value: str) -> None:
    resource = {"ResourceType": ResourceKind.TOPIC, "ResourceName": topic, "ConfigurationKeys": [name]}

    async def is_known(broker: Connection) -> bool:
        response = await broker.call("DescribeConfigs", {"Resources": [resource]})
        return any(c["Value"] == value for result in response["Results"] for c in result["Configs"])

    async with asyncio.timeout(SECONDS_MAX):
        for node in fleet.brokers:
            host, port = node.spec.host, node.spec.ports[Listener.INTERNAL]
            async with await Connection.open(host, port, fleet.security(), timeout=SECONDS_MAX) as broker:
                while not await is_known(broker):
                    await asyncio.sleep(SECONDS_BETWEEN)


async def wait_for_leaders(
    bootstrap: str, security: Security, topic: str, partitions: int | None = None
) -> None:
    """Wait until each of these brokers knows every leader of the topic and serves what it leads.

    Give `partitions` for a topic that has grown: exactly that many must be known.
    """
    async with asyncio.timeout(SECONDS_MAX):
        for address in bootstrap.split(","):
            host, port = address.rsplit(":", 1)
            async with await Connection.open(host, int(port), security) as connection:
                while (led := await _led_by(connection, int(port), topic, partitions)) is None:
                    await asyncio.sleep(SECONDS_BETWEEN)
                while led and not await accepts_requests_for(connection, topic, led):
                    await asyncio.sleep(SECONDS_BETWEEN)


async def _led_by(connection: Connection, port: int, topic: str, partitions: int | None) -> list[int] | None:
    """The partitions that the broker at this port leads; None if it does not know all of them yet."""
    response = await connection.call("Metadata", {"Topics": [{"Name": topic}]}, version=9)
    (metadata,) = response["Topics"]
    leaders = {p["PartitionIndex"]: p["LeaderId"] for p in metadata["Partitions"]}
    complete = bool(leaders) if partitions is None else len(leaders) == partitions
    if metadata["ErrorCode"] != Code.NONE or not complete or min(leaders.values()) < 0:
        return None
    node_ids = {broker["NodeId"] for broker in response["Brokers"] if broker["Port"] == port}
    return [index for index, leader in leaders.items() if leader in node_ids]


async def accepts_requests_for(connection: Connection, topic: str, partitions: list[int]) -> bool:
    """Whether the connected broker serves all of these partitions as their leader."""
    requested = [{"PartitionIndex": index, "Timestamp": OffsetSpec.LATEST} for index in partitions]
    body: dict[str, Any] = {
        "ReplicaId": NOT_A_REPLICA,
        "Topics": [{"Name": topic, "Partitions": requested}],
    }
    response = await connection.call("ListOffsets", body, version=7)
    return all(p["ErrorCode"] == Code.NONE for t in response["Topics"] for p in t["Partitions"])


def run_in_thread(wait: Coroutine[Any, Any, None]) -> None:
    """Run a wait from synchronous code, also when an event loop is already running."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, wait).result()
