"""Describe the log directories of brokers: replica sizes and disk space."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kafka.admin.partitions import listed, partition_responses
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import NodeWithId
from penstock.wire.error_codes import Code, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client


@dataclass(frozen=True, slots=True)
class Replica:
    size_bytes: int
    offset_lag: int  # behind the high watermark; a future replica: behind the current one
    is_future: bool  # being moved here from another directory of the same broker


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    error: str | None  # the name of Kafka's error if the directory is offline
    total_bytes: int  # −1: not reported
    usable_bytes: int
    cordoned: bool  # receives no new replicas
    replicas: Mapping[TopicPartition, Replica]


async def describe(
    client: Client,
    brokers: Collection[int] | None = None,
    *,
    partitions: Collection[TopicPartition] | None = None,
    timeout: float = CALL_SECONDS,
) -> dict[int, tuple[LogDir, ...]]:
    """Log directories by broker; by default of all live brokers and with all partitions."""
    body = {"Topics": listed(partitions, "Topic", "Partitions")}

    async def describe_on(node_id: int) -> tuple[LogDir, ...]:
        response = await client.call("DescribeLogDirs", body, to=NodeWithId(node_id), timeout=timeout)
        check("DescribeLogDirs", response.get("ErrorCode", 0), None, f"broker {node_id}")
        return tuple(
            LogDir(
                path=d["LogDir"],
                error=name_of(d["ErrorCode"]) if d["ErrorCode"] != Code.NONE else None,
                total_bytes=d.get("TotalBytes", -1),
                usable_bytes=d.get("UsableBytes", -1),
                cordoned=d.get("IsCordoned", False),
                replicas={
                    key: Replica(p["PartitionSize"], p["OffsetLag"], p["IsFutureKey"])
                    for key, _, _, p in partition_responses(d)
                },
            )
            for d in response["Results"]
        )

    node_ids = (await client.cluster(refresh=True)).real_nodes if brokers is None else list(brokers)
    return dict(zip(node_ids, await asyncio.gather(*map(describe_on, node_ids))))
