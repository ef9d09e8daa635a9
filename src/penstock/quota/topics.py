"""The topics that quotas go over: `_penstock.usage` upwards, `_penstock.quota` downwards; and pressure.

A tenant's reports are all in one partition of the former; whoever owns that partition decides for it.
The latter has one partition, which every gateway follows; nothing in it is of use for long. What
gateways see of brokers under pressure goes to `_penstock.pressure`, for whoever moves load.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from penstock.kafka.log import ensure_topic
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.topics import NewTopic
from penstock.model.keys import PRESSURE_TOPIC, QUOTA_TOPIC, USAGE_TOPIC

if TYPE_CHECKING:
    from penstock.kafka.client import Client

USAGE_PARTITIONS: Final = 8  # so many coordinators at most have work
USAGE_RETENTION_MS: Final = 14 * 24 * 3600 * 1000  # metering reads it by the hour, and may be late
QUOTA_RETENTION_MS: Final = 10 * 60 * 1000
QUOTA_SEGMENT_MS: Final = 5 * 60 * 1000
PRESSURE_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
QUOTA: Final = TopicPartition(QUOTA_TOPIC, 0)
PRESSURE: Final = TopicPartition(PRESSURE_TOPIC, 0)


def usage_partition(tenant: bytes) -> TopicPartition:
    return TopicPartition(USAGE_TOPIC, zlib.crc32(tenant) % USAGE_PARTITIONS)


async def ensure_topics(client: Client) -> None:
    usage = {"retention.ms": str(USAGE_RETENTION_MS)}
    quota = {"retention.ms": str(QUOTA_RETENTION_MS), "segment.ms": str(QUOTA_SEGMENT_MS)}
    await ensure_topic(client, NewTopic(USAGE_TOPIC, USAGE_PARTITIONS, configs=usage))
    await ensure_topic(client, NewTopic(QUOTA_TOPIC, 1, configs=quota))
    pressure = {"retention.ms": str(PRESSURE_RETENTION_MS)}
    await ensure_topic(client, NewTopic(PRESSURE_TOPIC, 1, configs=pressure))
