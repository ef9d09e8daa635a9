"""What a promotion would find: lag, open transactions, recent producers, active groups; and what prevents it.

Nothing is changed. A promotion closes the source for its producers, so they must be known before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import group_offsets, groups, topics, transactions
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.offsets import OffsetSpec, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import source
from penstock.link.group_sync import INTERNAL_GROUPS, WITHOUT_MEMBERS
from penstock.link.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client

RECENT_SECONDS: Final = 300.0  # since the last record of a producer that counts as running
REPORT_SECONDS_MAX: Final = 30.0  # since the last report of a process that counts as running


@dataclass(frozen=True, slots=True)
class TopicReadiness:
    topic: str
    partitions: int
    lag: int | None  # None: a partition is not mirrored
    open_transactions: int
    recent_producers: int  # idempotent ones; others have no id
    last_record_seconds: float | None  # None: it has no record


@dataclass(frozen=True, slots=True)
class GroupReadiness:
    group: str
    state: str  # on the source
    unread: int  # records up to the end of the source
    blocked: bool  # it has members on the destination, so its offsets cannot be copied


@dataclass(frozen=True, slots=True)
class Readiness:
    topics: tuple[TopicReadiness, ...]
    groups: tuple[GroupReadiness, ...]
    blockers: tuple[str, ...]  # why a promotion would be refused or cancelled; empty: nothing known


async def readiness(there: Client, here: Client, row: Mapping[str, Any]) -> Readiness:
    """`row` is what `commands.show` gives."""
    now_ms = int(time.time() * 1000)
    described = results_or_raise(await topics.describe(there, row["topics"]))
    places = [TopicPartition(one.name, part.index) for one in described.values() for part in one.partitions]
    ends = results_or_raise(
        await list_offsets(there, dict.fromkeys(places, OffsetSpec.LATEST), replica=source.DEBUG_REPLICA)
    )
    starts = results_or_raise(await list_offsets(there, dict.fromkeys(places, OffsetSpec.EARLIEST)))
    last = results_or_raise(await list_offsets(there, dict.fromkeys(places, OffsetSpec.MAX_TIMESTAMP)))
    producers = results_or_raise(await transactions.producers(there, places))
    log_ends = {place: one.offset for place, one in ends.items()}
    rows = tuple(
        topic_readiness(
            name,
            {place: end for place, end in log_ends.items() if place.topic == name},
            {place: row["progress"].get(str(place), {}).get("end") for place in places},
            [one for place in places if place.topic == name for one in producers[place]],
            [last[place].timestamp_ms for place in places if place.topic == name],
            now_ms,
        )
        for name in described
    )
    listed = await _groups(there, here, {one: (starts[one].offset, end) for one, end in log_ends.items()})
    return Readiness(rows, listed, blockers(row, rows, listed, now_ms))


def topic_readiness(
    topic: str,
    ends: Mapping[TopicPartition, int],
    mirrored: Mapping[TopicPartition, int | None],
    producers: Sequence[transactions.Producer],
    timestamps_ms: Sequence[int],
    now_ms: int,
) -> TopicReadiness:
    behind = [
        None if (at := mirrored.get(place)) is None else max(0, end - at) for place, end in ends.items()
    ]
    recent = {one.id for one in producers if now_ms - one.last_timestamp_ms < RECENT_SECONDS * 1000}
    latest = max(timestamps_ms, default=-1)
    return TopicReadiness(
        topic,
        len(ends),
        None if None in behind else sum(one for one in behind if one is not None),
        sum(one.open_since_offset is not None for one in producers),
        len(recent),
        max(0.0, (now_ms - latest) / 1000) if latest >= 0 else None,
    )


def blockers(
    row: Mapping[str, Any],
    rows: Sequence[TopicReadiness],
    listed: Sequence[GroupReadiness],
    now_ms: int,
) -> tuple[str, ...]:
    """Lag and running producers prevent nothing: a promotion closes the source and waits."""
    reasons = []
    if row["state"] != State.MIRRORING:
        reasons.append(f"the link is {row['state']}")
    silent = (now_ms - row["at_ms"]) / 1000
    if silent > REPORT_SECONDS_MAX:
        reasons.append(f"its process has not reported for {silent:.0f} s")
    reasons += [f"{place} has stopped: {reason}" for place, reason in sorted(row["failed"].items())]
    reasons += [f"problem with {what}: {why}" for what, why in sorted(row["problems"].items())]
    reasons += [f"topic {one.topic} is not mirrored completely" for one in rows if one.lag is None]
    reasons += [f"group {one.group} has members on the destination" for one in listed if one.blocked]
    return tuple(reasons)


def unread_records(
    committed: Mapping[TopicPartition, int], ranges: Mapping[TopicPartition, tuple[int, int]]
) -> int | None:
    """Of the topics that a group reads, as far as its offsets show; None if it reads none of them.

    A partition of such a topic without an offset counts from its start."""
    read = {place.topic for place in committed if place in ranges}
    if not read:
        return None
    return sum(
        max(0, end - max(start, committed.get(place, start)))
        for place, (start, end) in ranges.items()
        if place.topic in read
    )


async def _groups(
    there: Client, here: Client, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> tuple[GroupReadiness, ...]:
    """Groups with offsets of these partitions."""
    states = {name: one.state for name, one in (await groups.list_all(here)).items()}
    rows = []
    for name, listing in sorted((await groups.list_all(there)).items()):
        if name.startswith(INTERNAL_GROUPS) or listing.type is GroupType.SHARE:
            continue
        committed = await group_offsets.committed(there, name)
        unread = unread_records({place: one.offset for place, one in committed.items()}, ranges)
        if unread is not None:
            blocked = states.get(name, "") not in WITHOUT_MEMBERS
            rows.append(GroupReadiness(name, listing.state, unread, blocked))
    return tuple(rows)
