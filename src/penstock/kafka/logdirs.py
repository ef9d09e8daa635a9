"""Where brokers keep replicas: directories, sizes, and moves between a broker's disks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.partitions import TopicPartition, by_topic
from penstock.kafka.refusals import check
from penstock.kafka.routing import NodeWithId
from penstock.wire.codes import Code, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError


@dataclass(frozen=True, slots=True)
class Replica:
    size_bytes: int
    offset_lag: int  # how far it is behind: a follower the high watermark, a future replica the current one
    is_future: bool  # on its way here from another directory of the same broker


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    error: str | None  # the name of Kafka's error if the directory is offline
    total_bytes: int  # −1: not told
    usable_bytes: int
    cordoned: bool  # takes no new replicas
    replicas: Mapping[TopicPartition, Replica]


async def describe(
    client: Client,
    brokers: Collection[int] | None = None,
    *,
    partitions: Collection[TopicPartition] | None = None,
    timeout: float = CALL_SECONDS,
) -> dict[int, tuple[LogDir, ...]]:
    """Directories by broker: of all brokers that are up, and all partitions, unless given."""
    topics = None
    if partitions is not None:
        topics = [{"Topic": name, "Partitions": ps} for name, ps in by_topic(partitions).items()]

    async def ask(node_id: int) -> tuple[LogDir, ...]:
        body = {"Topics": topics}
        answer = await client.call("DescribeLogDirs", body, to=NodeWithId(node_id), timeout=timeout)
        check("DescribeLogDirs", answer.get("ErrorCode", 0), None, f"broker {node_id}")
        return tuple(
            LogDir(
                path=d["LogDir"],
                error=name_of(d["ErrorCode"]) if d["ErrorCode"] != Code.NONE else None,
                total_bytes=d.get("TotalBytes", -1),
                usable_bytes=d.get("UsableBytes", -1),
                cordoned=d.get("IsCordoned", False),
                replicas={
                    TopicPartition(t["Name"], p["PartitionIndex"]): Replica(
                        p["PartitionSize"], p["OffsetLag"], p["IsFutureKey"]
                    )
                    for t in d["Topics"]
                    for p in t["Partitions"]
                },
            )
            for d in answer["Results"]
        )

    asked = sorted((await client.cluster(renew=True)).nodes) if brokers is None else list(brokers)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked))))


async def move(
    client: Client, broker: int, wanted: Mapping[TopicPartition, str], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, PenstockError | None]:
    """Begin moving a broker's replicas to other directories of the same broker."""
    dirs = []
    for path in sorted(set(wanted.values())):
        mine = by_topic(p for p, target in wanted.items() if target == path)
        dirs.append({"Path": path, "Topics": [{"Name": n, "Partitions": ps} for n, ps in mine.items()]})
    api = "AlterReplicaLogDirs"
    answer = await client.call(api, {"Dirs": dirs}, to=NodeWithId(broker), timeout=timeout)
    results: dict[TopicPartition, PenstockError | None] = {}
    for t in answer["Results"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["TopicName"], p["PartitionIndex"])
            results[key] = outcome(api, p["ErrorCode"], None, f"partition {key}", None)
    return results
