"""Reads the events of one day from `_penstock.durability`, and reports on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.audit import topics
from penstock.audit.day import LEAD_IN_MS, SETTLED_MS, DayFold, report
from penstock.audit.finding_reader import FindingReader
from penstock.audit.rules.state import SubjectState
from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import bounds, read
from penstock.model.durability import LogEvent
from penstock.model.key_names import DURABILITY_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.audit.day import Day
    from penstock.kafka.client import Client


async def read_report(client: Client, cluster: str, day: Day) -> dict[str, Any]:
    """What the audit of one cluster has observed on a day."""
    fold = DayFold(day)
    for number in range(topics.PARTITIONS):
        async for event in _events(client, TopicPartition(DURABILITY_TOPIC, number), day):
            if event.cluster in (cluster, ""):  # gateways do not know what the audit calls the cluster
                fold.add(event)
    fold.name_topics(await _topics(client))
    return report(fold, cluster, (await FindingReader(client).read()).current())


async def _events(client: Client, partition: TopicPartition, day: Day) -> AsyncIterator[LogEvent]:
    """Events from some time before the day to its end; one that was written late included."""
    since_ms, until_ms = day.begin_ms - LEAD_IN_MS, day.end_ms + SETTLED_MS
    start, end = await bounds(client, partition)
    by_time = results_or_raise(await list_offsets(client, {partition: since_ms}))[partition].offset
    position = end if by_time < 0 else max(start, by_time)
    while position < end:
        fetched = await read(client, partition, position)
        for record in fetched.records:
            yield LogEvent.from_bytes(record.value)
        if fetched.records and fetched.records[0].timestamp_ms > until_ms:
            return
        position = max(fetched.position, position)
        await asyncio.sleep(0)  # parsing megabytes must not starve the client's other tasks


async def _topics(client: Client) -> dict[str, str]:
    """Names of topics by subject, from the states of the audit."""
    stored = await topics.read_compacted(client, topics.STATE)
    states = (SubjectState.from_bytes(value) for key, value in stored.items() if b"/" in key)
    return {state.subject: state.topic_name for state in states if state.topic_name}
