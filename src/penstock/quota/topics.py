"""The topics of gateways: `_penstock.usage`, `_penstock.quota`, `_penstock.pressure`, `_penstock.acks`,
`_penstock.durability` and `_penstock.gateways`.

All usage reports of a tenant are in one partition, whose owner decides for it. Shares go to a single
partition that every gateway follows. Gateways also report brokers under pressure, and acknowledged offsets.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from penstock.audit.topics import ensure_durability_topic
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.partition_log import ensure_topic
from penstock.model.key_names import ACKS_TOPIC, GATEWAYS_TOPIC, PRESSURE_TOPIC, QUOTA_TOPIC, USAGE_TOPIC

if TYPE_CHECKING:
    from penstock.kafka.client import Client

USAGE_PARTITIONS: Final = 8  # the maximum number of coordinators with work
USAGE_RETENTION_MS: Final = 14 * 24 * 3600 * 1000  # the hourly metering job may be late
QUOTA_RETENTION_MS: Final = 10 * 60 * 1000
QUOTA_SEGMENT_MS: Final = 5 * 60 * 1000
PRESSURE_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
ACKS_PARTITIONS: Final = 6
ACKS_RETENTION_MS: Final = 30 * 24 * 3600 * 1000  # as long as the durability audit looks back
# Appended times decide which gateway has a name (`model.gateway_names`), and the order must not be compacted
# away meanwhile. A gateway that has been gone for a week is forgotten.
GATEWAYS_CONFIGS: Final = {
    "cleanup.policy": "compact,delete",
    "message.timestamp.type": "LogAppendTime",
    "min.compaction.lag.ms": str(3600 * 1000),
    "segment.ms": str(3600 * 1000),
    "retention.ms": str(7 * 24 * 3600 * 1000),
}
QUOTA: Final = TopicPartition(QUOTA_TOPIC, 0)
PRESSURE: Final = TopicPartition(PRESSURE_TOPIC, 0)


def usage_partition(tenant: bytes) -> TopicPartition:
    return TopicPartition(USAGE_TOPIC, zlib.crc32(tenant) % USAGE_PARTITIONS)


def acks_partition(incarnation: bytes) -> TopicPartition:
    return TopicPartition(ACKS_TOPIC, zlib.crc32(incarnation) % ACKS_PARTITIONS)


async def ensure_acks_topic(client: Client) -> None:
    configs = {"retention.ms": str(ACKS_RETENTION_MS)}
    await ensure_topic(client, NewTopic(ACKS_TOPIC, ACKS_PARTITIONS, configs=configs))


async def ensure_topics(client: Client) -> None:
    usage = {"retention.ms": str(USAGE_RETENTION_MS)}
    quota = {"retention.ms": str(QUOTA_RETENTION_MS), "segment.ms": str(QUOTA_SEGMENT_MS)}
    await ensure_topic(client, NewTopic(USAGE_TOPIC, USAGE_PARTITIONS, configs=usage))
    await ensure_topic(client, NewTopic(QUOTA_TOPIC, 1, configs=quota))
    await ensure_topic(client, NewTopic(GATEWAYS_TOPIC, 1, configs=GATEWAYS_CONFIGS))
    pressure = {"retention.ms": str(PRESSURE_RETENTION_MS)}
    await ensure_topic(client, NewTopic(PRESSURE_TOPIC, 1, configs=pressure))
    await ensure_acks_topic(client)
    await ensure_durability_topic(client)
