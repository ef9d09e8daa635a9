"""The topic side: options for Spark's source, and what is asked of the cluster before and after.

Spark commits no offsets, so nobody sees how far it is. The runner commits the end of each batch to
an ordinary group, `penstock-pipeline-<job>`: any tool for groups shows a job's lag, the scaler too.
That is for readers alone; where a job goes on is the checkpoint's and the table's business.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock.kafka import commits, offsets, topics
from penstock.kafka.client import Client
from penstock.kafka.offsets import At, Isolation
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.security import Mechanism
from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import TopicMissing
from penstock.pipeline.ledger import TopicFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Source
    from penstock.pipeline.ledger import Offsets
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
    """Bootstrap, login and trust as Spark's Kafka source and sink take them."""
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
        # Inline: executors elsewhere do not have the file.
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
    """For frames with `value`, and `key` and `headers` if they have them, written to a topic.

    At least once: Spark writes rows of a task that failed again. Give each a key or a header by which
    readers know it.
    """
    return security_options(connection) | {
        "topic": topic,
        "includeHeaders": "true",
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
    }


def records_between(
    session: SparkSession, connection: Connection, source: Source, begin: Offsets, until: Offsets
) -> DataFrame:
    """An exact range, read once and not as a stream. Every partition of the topic must be named."""
    options = source_options(connection, source)
    del options["maxOffsetsPerTrigger"]
    options["startingOffsets"] = offsets_option(source.topic, begin)
    options["endingOffsets"] = offsets_option(source.topic, until)
    return session.read.format("kafka").options(**options).load()


def offsets_option(topic: str, at: Offsets) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(at.items())}})


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def look_at(connection: Connection, topic: str, *, job: str) -> TopicFacts:
    """The topic as it is now. Raises TopicMissing, and what the client says of logins and addresses."""
    async with Client(connection.bootstrap, connection.security()) as client:
        found = (await topics.describe(client, [topic])).get(topic)
        if found is None or isinstance(found, PenstockError):
            raise TopicMissing(job=job, topic=topic, bootstrap=connection.bootstrap)
        partitions = [TopicPartition(topic, partition.index) for partition in found.partitions]
        starts = await offsets.find(client, dict.fromkeys(partitions, At.EARLIEST))
        ends = await offsets.find(
            client, dict.fromkeys(partitions, At.LATEST), isolation=Isolation.READ_COMMITTED
        )
    return TopicFacts(topic, found.id.hex, _plain(starts), _plain(ends))


async def publish_position(connection: Connection, job: str, topic: str, at: Offsets) -> None:
    """Commits where the job is to its group, for everybody to see."""
    async with Client(connection.bootstrap, connection.security()) as client:
        wanted = {TopicPartition(topic, p): commits.Committed(offset) for p, offset in at.items()}
        for refusal in (await commits.commit(client, group_of(job), wanted)).values():
            if refusal is not None:
                raise refusal


async def committed_by(connection: Connection, group: str, topic: str) -> dict[int, int]:
    """What a group has committed of a topic."""
    async with Client(connection.bootstrap, connection.security()) as client:
        found = await commits.committed(client, group)
    return {place.partition: each.offset for place, each in found.items() if place.topic == topic}


def _plain(found: Mapping[TopicPartition, offsets.Offset | PenstockError]) -> dict[int, int]:
    plain = {}
    for place, offset in found.items():
        if isinstance(offset, PenstockError):
            raise offset
        plain[place.partition] = offset.offset
    return plain
