"""Expires a backup: reads what the decision needs, then deletes what it allows. Only the holder of the right
to delete runs it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.backup.archive import Archive
from penstock.backup.catalogue import Catalogue
from penstock.backup.expiry import (
    ExpiryFacts,
    ExpiryPlan,
    Sample,
    StoredEntry,
    StoredGap,
    candidates,
    decide,
    needed_from,
    sampled,
    segments_max,
)
from penstock.backup.holds import holds
from penstock.backup.layout import CATALOGUE, GAPS, PARTS, entry_key, parse_gap, part_key
from penstock.model.fault_points import declare, reach
from penstock.tier.format import joined
from penstock.tier.sweeper import require_same_clock, stored_segments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from penstock.backup.expiry import Place
    from penstock.tier.format import SegmentKey
    from penstock.tier.store import Store
    from penstock.tier.sweeper import MayDelete

DECIDED: Final = declare("backup.expiry.decided", "an expiry has decided, and deleted nothing")
HALFWAY: Final = declare("backup.expiry.halfway", "half of the objects of an expiry are deleted")

log = structlog.get_logger()


async def plan_expiry(
    store: Store, cluster: str, keep_days: float, *, restore_running: bool, now_ms: int | None = None
) -> ExpiryPlan:
    """What an expiry would delete now. Segments are listed first: what is stored meanwhile is not judged."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    segments = tuple(await stored_segments(store, cluster))
    catalogue = Catalogue(store, cluster)
    times = await catalogue.times()
    entries = await catalogue.entries(times)
    samples = [await _sample(catalogue, at) for at in sampled(times, now_ms, keep_days)]
    held = tuple(await holds(store, cluster))
    due = candidates(segments, samples, held, now_ms, keep_days) if samples else {}
    facts = ExpiryFacts(
        segments,
        await _last_offsets(store, cluster, due, samples, segments_max(segments)),
        tuple([gap async for gap in _gaps(store, cluster)]),
        tuple(samples),
        tuple(StoredEntry(entry.at_ms, frozenset(entry.parts.values())) for entry in entries),
        {
            one.key.rpartition("/")[2].removesuffix(".json"): one.modified_ms
            async for one in store.list(joined(cluster, CATALOGUE, PARTS))
        },
        {topic_id: history.last_ms for topic_id, history in (await catalogue.history(entries)).items()},
        held,
        restore_running,
        keep_days,
    )
    return decide(facts, now_ms)


async def carry_out(store: Store, cluster: str, plan: ExpiryPlan, *, may_delete: MayDelete) -> int:
    """Delete what a plan has, for as long as this process may; the number of objects. A run that is killed is
    continued by the next."""
    reach(DECIDED)
    keys = [*plan.keys, *plan.gaps, *(entry_key(cluster, at) for at in plan.entries)]
    deleted = 0
    if keys or plan.parts:
        await require_same_clock(store)
    for number, key in enumerate(keys):
        if not await may_delete():
            return deleted
        if number == len(keys) // 2:
            reach(HALFWAY)
        await store.delete([key])
        deleted += 1
    return deleted + await _delete_parts(store, cluster, plan, may_delete)


async def _delete_parts(store: Store, cluster: str, plan: ExpiryPlan, may_delete: MayDelete) -> int:
    """Parts go last, and none that an entry uses which was written meanwhile."""
    catalogue, deleted = Catalogue(store, cluster), 0
    if not plan.parts:
        return 0
    times = await catalogue.times()
    used = set((await catalogue.entry(times[-1])).parts.values()) if times else set()
    for digest in plan.parts:
        if not await may_delete():
            break
        if digest not in used:
            await store.delete([part_key(cluster, digest)])
            deleted += 1
    return deleted


async def _sample(catalogue: Catalogue, at_ms: int) -> Sample:
    entry = await catalogue.entry(at_ms)
    topics = await catalogue.part(entry, "topics") or {}
    logs = await catalogue.part(entry, "logs") or {}
    starts: dict[Place, int] = {
        (topic_id, row[0]): row[4] for topic_id, rows in logs.items() for row in rows if len(row) > 4
    }
    return Sample(at_ms, frozenset(topics), starts)


async def _last_offsets(
    store: Store,
    cluster: str,
    due: Mapping[Place, list[SegmentKey]],
    samples: list[Sample],
    count_max: int,
) -> dict[SegmentKey, int]:
    """The last offsets of segments that may go: of each partition up to the first one that may not."""
    archive = Archive(cluster, [store])
    if due:
        await archive.load()
    offsets: dict[SegmentKey, int] = {}
    for place, keys in due.items():
        needed = needed_from(samples, place)
        for key in keys:
            if len(offsets) >= count_max:
                return offsets
            last = (await archive.manifest(key)).end_offset
            if last >= needed:
                break
            offsets[key] = last
    return offsets


async def _gaps(store: Store, cluster: str) -> AsyncIterator[StoredGap]:
    async for one in store.list(joined(cluster, GAPS)):
        if (gap := parse_gap(one.key)) is not None:
            yield StoredGap(one.key, (gap.topic_id, gap.partition), gap.last, one.modified_ms)
