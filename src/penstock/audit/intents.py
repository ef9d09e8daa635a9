"""What the platform itself intends to delete or weaken, recorded before it acts.

Without its intent, a legal change looks like a loss: the log start of a mirror follows its source, a restored
topic begins where its backup does, a link copies a lower retention. An intent is committed when `record`
returns, and only then may its effect follow. To record one again changes nothing, so a process that takes
over does both again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.audit.topic_ids import id_text
from penstock.audit.topics import durability_partition, ensure_durability_topic
from penstock.kafka.append import append
from penstock.model.durability import (
    NAMED,
    Deleted,
    Intent,
    LogEvent,
    What,
    members_of,
    named_subject,
    partition_subject,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.model.durability import Facts

Planned = tuple[str, "Facts"]  # the subject of an intent, and what is intended


def config_change(topics: Iterable[str], actor: str) -> list[Planned]:
    """Configurations of these topics are about to change; `EVERY_TOPIC`: the cluster's defaults."""
    return [(named_subject(topic), Intent("config", actor)) for topic in topics]


def topic_deletion(topics: Iterable[str], actor: str) -> list[Planned]:
    """These topics are about to be deleted."""
    return [(named_subject(topic), Intent("topic-delete", actor)) for topic in topics]


def topic_restore(topic: str, actor: str) -> list[Planned]:
    """A topic of this name is about to be created, with records of a backup or of another cluster."""
    return [(named_subject(topic), Intent("topic-restore", actor))]


def restore_in_place(topics: Iterable[str], actor: str, until_ms: int) -> list[Planned]:
    """Logs of these topics are about to start at earlier offsets again, until then."""
    return [(named_subject(topic), Intent("restore", actor, until_ms)) for topic in topics]


def log_start(topic_id: UUID, partition: int, start: int, actor: str) -> list[Planned]:
    """A partition is about to start at this offset; nothing if that is its beginning."""
    subject = f"{NAMED}{partition_subject(id_text(topic_id), partition)}"
    return [(subject, Deleted(start, actor))] if start > 0 else []


class IntentLog:
    """Writes intents to `_penstock.durability` of one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ready = False

    async def record(self, planned: Iterable[Planned]) -> None:
        """Write intents. They are committed when this returns."""
        rows: dict[TopicPartition, list[tuple[bytes, bytes]]] = {}
        for event in events_of(planned, time.time_ns()):
            rows.setdefault(durability_partition(event.key), []).append((event.key, event.to_bytes()))
        if rows and not self._ready:
            await ensure_durability_topic(self._client)
            self._ready = True
        for partition, some in rows.items():
            await append(self._client, partition, some)


def events_of(planned: Iterable[Planned], now_ns: int) -> list[LogEvent]:
    """Intents as events, each with a different sequence number."""
    return [
        LogEvent(
            "", subject, "platform", now_ns + number, now_ns // 1_000_000, what_of(facts), members_of(facts)
        )
        for number, (subject, facts) in enumerate(planned)
    ]


def what_of(facts: Facts) -> What:
    return What(type(facts).__name__.lower())
