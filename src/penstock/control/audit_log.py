"""Reads the audit topic in pages: what operators changed, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.partition_log import bounds, read
from penstock.model.events import AuditEvent

if TYPE_CHECKING:
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client

SCANNED_MAX: Final = 5_000  # offsets read for one page
OFFSETS_PER_EVENT: Final = 3  # a transaction with one event takes two offsets; a guess to start from


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which events: from an offset, from a time, or the last ones. Empty texts match all."""

    offset: int | None = None
    since_ms: int | None = None
    last: int | None = None
    limit: int = 100
    actor: str = ""
    operation: str = ""  # its beginning
    subject: str = ""
    cluster: str = ""

    def matches(self, event: AuditEvent) -> bool:
        return (
            self.actor in ("", event.actor)
            and event.operation.startswith(self.operation)
            and self.subject in ("", event.subject)
            and self.cluster in ("", event.tenant)
        )


@dataclass(frozen=True, slots=True)
class AuditPage:
    events: tuple[AuditEvent, ...]
    next: int  # the offset to continue from
    end: int  # of the log


async def read_audit(client: Client, partition: TopicPartition, query: AuditQuery) -> AuditPage:
    first, end = await bounds(client, partition)
    if query.last is not None:
        return await _last(client, partition, query, first, end)
    start = first if query.offset is None else query.offset
    if query.since_ms is not None and query.offset is None:
        by_time = results_or_raise(await list_offsets(client, {partition: query.since_ms}))[partition].offset
        start = end if by_time < 0 else by_time
    return await _page(client, partition, query, max(start, first), end)


async def _last(
    client: Client, partition: TopicPartition, query: AuditQuery, first: int, end: int
) -> AuditPage:
    """The last events that match: reads further back until there are enough."""
    assert query.last is not None
    span = OFFSETS_PER_EVENT * query.last
    while True:
        start = max(first, end - span)
        events: list[AuditEvent] = []
        position = start
        while position < end:
            page = await _page(client, partition, query, position, end)
            events += page.events
            position = page.next
        if len(events) >= query.last or start == first:
            return AuditPage(tuple(events[-query.last :] if query.last else ()), end, end)
        span *= 4


async def _page(
    client: Client, partition: TopicPartition, query: AuditQuery, start: int, end: int
) -> AuditPage:
    events: list[AuditEvent] = []
    position = start
    while position < end and position - start < SCANNED_MAX and len(events) < query.limit:
        chunk = await read(client, partition, position)
        for record in chunk.records:
            event = AuditEvent.from_bytes(record.value or b"")
            position = record.offset + 1
            if query.matches(event):
                events.append(event)
            if len(events) == query.limit:
                return AuditPage(tuple(events), position, end)
        position = max(chunk.position, position, start + 1)
    return AuditPage(tuple(events), position, end)
