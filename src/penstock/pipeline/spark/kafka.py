"""Kafka for Spark jobs: options of Spark's source and sink, topic offsets, and committed progress.

Spark commits no offsets, so its lag would be invisible. The runner commits the end of each batch to the
consumer group `penstock-pipeline-<job>`, where any tool, and the scaler, can read the job's lag. These
commits are informational: a job resumes from its checkpoint and its table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin import group_offsets, offsets, topics
from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.security import Mechanism
from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import TopicMissing
from penstock.pipeline.lake.ledger import TopicOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Source
    from penstock.pipeline.lake.ledger import Offsets
    from penstock.pipeline.settings import Connection

GROUP_PREFIX: Final = "penstock-pipeline-"
FETCH_BYTES_MAX: Final = 50 << 20
PARTITION_FETCH_BYTES_MAX: Final = 8 << 20
POLL_RECORDS_MAX: Final = 20_000
_LOGIN_MODULES: Final = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def group_of(job: str) -> str:
    return GROUP_PREFIX + job


def security_options(connection: Connection) -> dict[str, str]:
    """Bootstrap servers, login and CA as options of Spark's Kafka source and sink."""
    options = {
        "kafka.bootstrap.servers": connection.bootstrap,
        "kafka.security.protocol": connection.security().protocol,
    }
    if connection.user is not None:
        login = f"username={_quoted(connection.user)} password={_quoted(connection.password)}"
        options["kafka.sasl.mechanism"] = connection.mechanism
        options["kafka.sasl.jaas.config"] = f"{_LOGIN_MODULES[connection.mechanism]} required {login};"
    if connection.authority is not None:
        options["kafka.ssl.truststore.type"] = "PEM"
        # Inline, because executors on other hosts do not have the file.
        options["kafka.ssl.truststore.certificates"] = connection.authority.read_text()
    return options


def source_options(connection: Connection, source: Source, *, accept_loss: bool = False) -> dict[str, str]:
    return security_options(connection) | {
        "subscribe": source.topic,
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false" if accept_loss else "true",
        "includeHeaders": "true" if source.headers else "false",
        "maxOffsetsPerTrigger": str(source.batch_offsets_max),
        "kafka.fetch.max.bytes": str(FETCH_BYTES_MAX),
        "kafka.max.partition.fetch.bytes": str(PARTITION_FETCH_BYTES_MAX),
        "kafka.max.poll.records": str(POLL_RECORDS_MAX),
    }


def sink_options(connection: Connection, topic: str) -> dict[str, str]:
    """Options for writing a frame with `value`, and optionally `key` and `headers`, to a topic.

    Delivery is at least once: Spark repeats the rows of a failed task. Give each row a key or header by
    which readers can drop duplicates."""
    return security_options(connection) | {
        "topic": topic,
        "includeHeaders": "true",
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
    }


def records_between(
    session: SparkSession, connection: Connection, source: Source, begin: Offsets, until: Offsets
) -> DataFrame:
    """An exact range of offsets as a batch read. Every partition of the topic must be listed."""
    options = source_options(connection, source)
    del options["maxOffsetsPerTrigger"]
    options["startingOffsets"] = offsets_option(source.topic, begin)
    options["endingOffsets"] = offsets_option(source.topic, until)
    return session.read.format("kafka").options(**options).load()


def offsets_option(topic: str, position: Offsets) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(position.items())}})


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def describe_topic(connection: Connection, topic: str, *, job: str) -> TopicOffsets:
    """The topic's id and current offsets. Raises TopicMissing, and the client's connection errors."""
    async with Client(connection.bootstrap, connection.security()) as client:
        described = (await topics.describe(client, [topic])).get(topic)
        if described is None or isinstance(described, PenstockError):
            raise TopicMissing(job=job, topic=topic, bootstrap=connection.bootstrap)
        partitions = [TopicPartition(topic, partition.index) for partition in described.partitions]
        starts = await offsets.list_offsets(client, dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        ends = await offsets.list_offsets(
            client, dict.fromkeys(partitions, OffsetSpec.LATEST), isolation=IsolationLevel.READ_COMMITTED
        )
    return TopicOffsets(topic, described.id.hex, _by_partition(starts), _by_partition(ends))


async def topic_names(connection: Connection) -> list[str]:
    """The topics that this login may describe."""
    async with Client(connection.bootstrap, connection.security()) as client:
        return sorted(await topics.describe(client))


async def commit_progress(connection: Connection, job: str, topic: str, position: Offsets) -> None:
    """Commits the job's position to its consumer group."""
    async with Client(connection.bootstrap, connection.security()) as client:
        commits = {
            TopicPartition(topic, p): group_offsets.CommittedOffset(offset) for p, offset in position.items()
        }
        results_or_raise(await group_offsets.commit(client, group_of(job), commits))


async def committed_offsets(connection: Connection, group: str, topic: str) -> dict[int, int]:
    """The offsets that a group has committed for a topic."""
    async with Client(connection.bootstrap, connection.security()) as client:
        committed = await group_offsets.committed(client, group)
    return {at.partition: each.offset for at, each in committed.items() if at.topic == topic}


def _by_partition(results: Mapping[TopicPartition, offsets.Offset | PenstockError]) -> dict[int, int]:
    return {at.partition: offset.offset for at, offset in results_or_raise(results).items()}
