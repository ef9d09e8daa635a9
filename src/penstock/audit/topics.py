"""The topics of the audit: `_penstock.durability`, `_penstock.findings` and `_penstock.audit-state`."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.model.key_names import AUDIT_STATE_TOPIC, DURABILITY_TOPIC, FINDINGS_TOPIC

if TYPE_CHECKING:
    from penstock.kafka.client import Client

PARTITIONS: Final = 6
RETENTION_MS: Final = 30 * 24 * 3600 * 1000
COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20)}
FINDINGS: Final = TopicPartition(FINDINGS_TOPIC, 0)
STATE: Final = TopicPartition(AUDIT_STATE_TOPIC, 0)


def durability_partition(key: bytes) -> TopicPartition:
    return TopicPartition(DURABILITY_TOPIC, zlib.crc32(key) % PARTITIONS)


async def ensure_durability_topic(client: Client) -> None:
    configs = {"retention.ms": str(RETENTION_MS)}
    await ensure_topic(client, NewTopic(DURABILITY_TOPIC, PARTITIONS, configs=configs))


async def ensure_topics(client: Client) -> None:
    await ensure_durability_topic(client)
    await ensure_topic(client, NewTopic(FINDINGS_TOPIC, 1, configs=COMPACTED))
    await ensure_topic(client, NewTopic(AUDIT_STATE_TOPIC, 1, configs=COMPACTED))


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
