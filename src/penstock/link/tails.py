"""What only the old source of a link has: found, and saved, before it is truncated.

A failover leaves records on the source that were not mirrored, and clients may have written more there since.
Such a tail begins where both logs stop being the same, which their leader epochs show, and ends with the
log. Its batches are saved as they are, in the format of Kafka's log segments.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import source
from penstock.link.lineage import Lineage, shared_end
from penstock.model.errors.link import SourceUnusable, TailNotSettled
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.tier.store import Store

OBJECT_BYTES_MAX: Final = 64 << 20  # an object ends with the batch that reaches this
SETTLED_SECONDS_MAX: Final = 60.0
SETTLED_LOOKS: Final = 2  # in a row, so that requests accepted before the ACL have been appended
LOOK_SECONDS: Final = 0.5
EMPTY_FETCHES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Tail:
    """The records of a partition from `start` to `end`, which the active side does not have."""

    start: int
    end: int
    kept: int  # the mirror keeps what is below, and continues here
    emptied: bool  # nothing is shared any more: the mirror begins where the active side does
    batches: int = 0
    saved: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def tail_of(document: Mapping[str, Any]) -> Tail:
    return Tail(**document)


def tail_between(shared: int | None, here: tuple[int, int], there: tuple[int, int]) -> Tail:
    """From what both logs share, and the starts and ends of the old source and of the active side."""
    start = here[0] if shared is None else min(max(here[0], shared), here[1])
    if shared is None or shared <= there[0]:
        return Tail(start, here[1], there[0], emptied=True)
    return Tail(start, here[1], shared, emptied=False)


async def find_tail(active: Client, old: Client, place: TopicPartition, lineage: Lineage, end: int) -> Tail:
    """`lineage` is that of the link back, `end` where the log of the old source ends."""
    shared = await _shared(active, old, place, lineage)
    start, _ = await source.log_range(old, place)
    return tail_between(shared, (start, end), await source.log_range(active, place))


async def _shared(active: Client, old: Client, place: TopicPartition, lineage: Lineage) -> int | None:
    """Up to where both logs are the same; None if nothing is."""
    below: int | None = None
    for entry in reversed(lineage.entries):
        there = await source.epoch_end(active, place, entry.source_epoch)
        here = await source.epoch_end(old, place, entry.destination_epoch)
        end = shared_end(entry, below, there, here)
        if end is not None:
            return end
        below = entry.start
    return None


async def settled_ends(client: Client, names: Sequence[str]) -> dict[TopicPartition, int]:
    """The ends of closed partitions, once nothing is appended to them and no transaction is open."""
    described = results_or_raise(await topics.describe(client, names))
    places = [TopicPartition(one.name, part.index) for one in described.values() for part in one.partitions]
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    before: dict[TopicPartition, int | None] = {}
    looks = 0
    while True:
        ends = await source.log_ends(client, places)
        settled = {place: end for place, end in ends.items() if end is not None}
        looks = looks + 1 if ends == before and len(settled) == len(places) else 1
        if looks >= SETTLED_LOOKS:
            return settled
        if time.monotonic() > deadline:
            raise TailNotSettled(count=len(places) - len(settled), seconds=SETTLED_SECONDS_MAX)
        before = ends
        await asyncio.sleep(LOOK_SECONDS)


async def save(store: Store, old: Client, prefix: str, place: TopicPartition, tail: Tail) -> Tail:
    """Write its batches to the store. To save the same tail again writes the same objects."""
    directory = f"{prefix}/{place.topic}/{place.partition}/{tail.start}-{tail.end}"
    position, base, size, count, empty = tail.start, tail.start, 0, 0, 0
    parts: list[bytes | memoryview] = []
    while position < tail.end:
        leader = (await old.leaders([place.topic], strict=False)).get((place.topic, place.partition), -1)
        fetched = (
            (await source.fetch(old, leader, {place: position}, lane="tail")).get(place)
            if leader >= 0
            else None
        )
        read = [] if fetched is None else [b for b in batches(fetched.data) if b.last_offset >= position]
        empty = 0 if read else empty + 1
        if empty > EMPTY_FETCHES_MAX:
            raise SourceUnusable(reason=f"{place} does not give its records from offset {position} on")
        for batch in read:
            if batch.base_offset >= tail.end:
                position = tail.end
                break
            if not batch.is_intact:
                raise SourceUnusable(reason=f"the CRC of the batch at {place} {batch.base_offset} is wrong")
            parts.append(bytes(batch.raw))
            size, count, position = size + len(batch.raw), count + 1, batch.last_offset + 1
            if size >= OBJECT_BYTES_MAX:
                await store.create(f"{directory}/{base:020d}.log", b"".join(parts))
                parts, base, size = [], position, 0
    if parts:
        await store.create(f"{directory}/{base:020d}.log", b"".join(parts))
    return replace(tail, batches=count, saved=True)
