"""Sweeps a tier store: reads what the decision needs, then deletes what it allows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import ManifestInvalid, SweepRefused
from penstock.model.fault_points import declare, reach
from penstock.tier.format import TOMBSTONE, decode_tombstone, joined, parse_key
from penstock.tier.metadata import TOPIC, TierMetadata
from penstock.tier.sweep import Facts, Hold, SegmentObjects, SweepPlan, decide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.kafka.client import Client
    from penstock.tier.format import SegmentKey, Tombstone
    from penstock.tier.store import Store

    MayDelete = Callable[[], Awaitable[bool]]

RESTORES_CHECKED_EVERY: Final = 50  # objects: a restore reads what the decision has not kept for it
CLOCK: Final = "clock"  # objects that show the store's time, for a moment
CLOCK_SKEW_MS_MAX: Final = 300_000
DECIDED: Final = declare("tier.sweep.decided", "the sweeper has decided, and deleted nothing")
HALFWAY: Final = declare("tier.sweep.halfway", "half of the objects of a sweep are deleted")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SweepSettings:
    keep_days: float
    holds: tuple[Hold, ...] = ()
    restore_running: bool = False


async def read_metadata(client: Client) -> TierMetadata:
    """Every partition of `__remote_log_metadata`, to its present end."""
    folded = TierMetadata()
    described = (await topics.describe(client, [TOPIC]))[TOPIC]
    if isinstance(described, PenstockError):
        raise described
    for partition in described.partitions:
        place = TopicPartition(TOPIC, partition.index)
        position, end = await bounds(client, place)
        while position < end:
            fetched = await read(client, place, position, lane="sweep", wait_ms=500)
            for record in fetched.records:
                if record.value is not None:
                    folded.apply(record.value)
            position = fetched.position
    return folded


async def stored_segments(store: Store, cluster: str) -> list[SegmentObjects]:
    """What the store has of each segment, with its tombstone."""
    suffixes: dict[SegmentKey, dict[str, int]] = {}
    async for one in store.list(cluster):
        parsed = parse_key(one.key)
        if parsed is not None:
            suffixes.setdefault(parsed[0], {})[parsed[1]] = one.modified_ms
    result = []
    for key, named in sorted(suffixes.items()):
        tombstone: Tombstone | None = None
        if TOMBSTONE in named:
            try:
                tombstone = decode_tombstone(await store.read(key.path(TOMBSTONE)), key)
            except ManifestInvalid as error:
                log.warning("tombstone not readable", segment=key.path(TOMBSTONE), error=str(error))
        result.append(SegmentObjects(key, frozenset(named), max(named.values()), tombstone))
    return result


async def plan_sweep(client: Client, store: Store, settings: SweepSettings) -> SweepPlan:
    """What a sweep would delete now. The store is listed before the metadata is read: an upload that
    finishes in between is live in the metadata, not an orphan."""
    cluster = (await client.cluster()).id or ""
    segments = await stored_segments(store, cluster)
    metadata = await read_metadata(client)
    facts = Facts(
        tuple(segments),
        metadata.segments,
        metadata_complete=True,
        restore_running=settings.restore_running,
        holds=settings.holds,
        keep_days=settings.keep_days,
    )
    return decide(facts, int(time.time() * 1000))


def unless_restoring(leads: Callable[[], bool], restoring: Callable[[], Awaitable[object]]) -> MayDelete:
    """Whether the next object may be deleted: this process leads, and no restore has begun meanwhile."""
    number, stopped = 0, False

    async def may_delete() -> bool:
        nonlocal number, stopped
        if not stopped and number % RESTORES_CHECKED_EVERY == 0:
            stopped = bool(await restoring())
        number += 1
        return not stopped and leads()

    return may_delete


async def require_same_clock(store: Store) -> None:
    """Raise unless the store's clock is like ours: one that is days ahead would make everything old."""
    now_ms = int(time.time() * 1000)
    key = joined(CLOCK, f"{now_ms:020d}")
    await store.create(key, b"")
    probes = {one.key: one.modified_ms async for one in store.list(CLOCK)}
    await store.delete(list(probes))  # also what a run that was killed has left
    skew_ms = abs(probes.get(key, 0) - now_ms)
    if skew_ms > CLOCK_SKEW_MS_MAX:
        reason = f"the clocks of this process and of {store.name} differ by {skew_ms / 1000:.0f} s"
        raise SweepRefused(reason=reason)


async def carry_out(store: Store, plan: SweepPlan, *, may_delete: MayDelete) -> int:
    """Delete what a plan has, for as long as this process may; the number of objects. A run that is killed is
    continued by the next."""
    reach(DECIDED)
    keys = plan.keys
    if keys:
        await require_same_clock(store)
    for number, (key, suffix) in enumerate(keys):
        if not await may_delete():
            return number
        if number == len(keys) // 2:
            reach(HALFWAY)
        await store.delete([key.path(suffix)])
        log.info("object deleted", key=key.path(suffix))
    return len(keys)
