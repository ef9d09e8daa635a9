"""Reads the history of a partition for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.audit import topics
from penstock.audit.topic_ids import id_text
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.partition_log import bounds, read
from penstock.model.durability import LogEvent, partition_subject
from penstock.model.errors import PenstockError
from penstock.model.errors.audit import SubjectUnknown

if TYPE_CHECKING:
    from penstock.kafka.client import Client


async def subject_of(client: Client, topic: str, partition: int) -> str:
    """The subject of a partition that exists."""
    described = (await kafka_topics.describe(client, [topic]))[topic]
    if isinstance(described, PenstockError):
        raise SubjectUnknown(subject=f"{topic}/{partition}") from described
    return partition_subject(id_text(described.id), partition)


async def read_history(client: Client, cluster: str, subject: str) -> list[LogEvent]:
    """The events of one subject that `_penstock.durability` still has, in order."""
    key = f"{cluster}/{subject}".encode()
    partition = topics.durability_partition(key)
    position, end = await bounds(client, partition)
    events = []
    while position < end:
        fetched = await read(client, partition, position)
        events += [LogEvent.from_bytes(record.value) for record in fetched.records if record.key == key]
        position = max(fetched.position, position)
    if not events:
        raise SubjectUnknown(subject=subject)
    return sorted(events, key=lambda each: each.order)
