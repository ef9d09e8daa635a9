"""The topics of the audit: `_penstock.durability`, `_penstock.findings` and `_penstock.audit-state`."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import BROKER_DEFAULT, NewTopic
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.model.key_names import AUDIT_STATE_TOPIC, DURABILITY_TOPIC, FINDINGS_TOPIC
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.client import Client

PARTITIONS: Final = 6
COPIES_MAX: Final = 3
RETENTION_MS: Final = 30 * 24 * 3600 * 1000
COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20)}
FINDINGS: Final = TopicPartition(FINDINGS_TOPIC, 0)
STATE: Final = TopicPartition(AUDIT_STATE_TOPIC, 0)


def durability_partition(key: bytes) -> TopicPartition:
    return TopicPartition(DURABILITY_TOPIC, zlib.crc32(key) % PARTITIONS)


async def ensure_durability_topic(client: Client) -> None:
    await _ensure(client, DURABILITY_TOPIC, PARTITIONS, {"retention.ms": str(RETENTION_MS)})


async def ensure_topics(client: Client) -> None:
    await ensure_durability_topic(client)
    await _ensure(client, FINDINGS_TOPIC, 1, COMPACTED)
    await _ensure(client, AUDIT_STATE_TOPIC, 1, COMPACTED)


async def _ensure(client: Client, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    replicas = real_replicas((await client.cluster(refresh=True)).nodes, partitions)
    count = BROKER_DEFAULT if replicas else partitions
    await ensure_topic(client, NewTopic(name, count, replicas=replicas, configs=configs))


def real_replicas(nodes: Collection[int], partitions: int) -> dict[int, list[int]]:
    """Replicas on real brokers, if a shadow is registered: Kafka would place some on it, and it stores
    nothing. Empty: Kafka may place them."""
    real = sorted(node for node in nodes if not is_shadow(node))
    if not real or len(real) == len(nodes):
        return {}
    turns = (number % len(real) for number in range(partitions))
    return {number: (real[turn:] + real[:turn])[:COPIES_MAX] for number, turn in enumerate(turns)}


async def read_compacted(client: Client, partition: TopicPartition) -> dict[bytes, bytes]:
    """The newest value of every key."""
    position, end = await bounds(client, partition)
    values: dict[bytes, bytes] = {}
    while position < end:
        fetched = await read(client, partition, position)
        for record in fetched.records:
            key = record.key or b""
            if record.value is None:
                values.pop(key, None)
            else:
                values[key] = record.value
        position = max(fetched.position, position)
    return values
