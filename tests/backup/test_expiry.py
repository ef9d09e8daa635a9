"""Which objects of a backup expire, and that nothing goes which a restore within `keep_days` needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backup.archive import Archive
from penstock.backup.catalogue import Catalogue
from penstock.backup.expirer import DECIDED, HALFWAY, carry_out, plan_expiry
from penstock.backup.expiry import (
    FRESH_MS,
    HOUR_MS,
    ExpiryFacts,
    Sample,
    StoredEntry,
    StoredGap,
    candidates,
    decide,
    needed_from,
    sampled,
)
from penstock.backup.holds import hold, release
from penstock.backup.layout import entry_key, part_key
from penstock.model.errors.backup import SweepRefused
from penstock.tier.format import LOG, MANIFEST, SegmentKey, encode_manifest, id_text
from penstock.tier.store import Store, StoreSettings
from penstock.tier.sweep import DAY_MS, Hold, SegmentObjects
from penstock.tier.sweeper import CLOCK, RESTORES_CHECKED_EVERY, unless_restoring
from tests.harness.command import ROOT, clean_environment
from tests.tier.segments import CLUSTER, NOW_MS, TOPIC_ID, log_of, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

KEEP_DAYS = 7.0
OTHER_ID = "TopicTopicTopicTopicTw"
LONG_AGO = NOW_MS - 30 * DAY_MS
WHOLE = frozenset({LOG, MANIFEST})


def segment(base: int, number: int = 0, topic: str = TOPIC_ID, stored_ms: int = LONG_AGO) -> SegmentObjects:
    key = SegmentKey(CLUSTER, topic, 0, base, id_text(UUID(int=base * 100 + number + 1)))
    return SegmentObjects(key, WHOLE, stored_ms)


def sample(days_ago: float, **starts: int) -> Sample:
    """`orders=10`: the topic existed, and its log began at offset 10."""
    ids = {"orders": TOPIC_ID, "other": OTHER_ID}
    return Sample(
        NOW_MS - int(days_ago * DAY_MS),
        frozenset(ids[name] for name in starts),
        {(ids[name], 0): start for name, start in starts.items()},
    )


def facts(segments: list[tuple[SegmentObjects, int]], samples: list[Sample], **more: Any) -> ExpiryFacts:
    """Segments with their last offsets."""
    given: dict[str, Any] = {
        "segments": tuple(one for one, _ in segments),
        "last_offsets": {one.key: last for one, last in segments},
        "gaps": (), "samples": tuple(samples), "entries": (), "parts": {}, "last_entries": {}, "holds": (),
        "restore_running": False, "keep_days": KEEP_DAYS,
    }  # fmt: skip
    return ExpiryFacts(**(given | more))


def gone(known: ExpiryFacts) -> list[int]:
    return [one.key.base_offset for one in decide(known, NOW_MS).segments]


LOGS = [(segment(0), 9), (segment(10), 19), (segment(20), 29)]


def test_what_was_below_the_log_start_for_the_whole_window_goes() -> None:
    assert gone(facts(LOGS, [sample(8, orders=10), sample(0, orders=25)])) == [0]


def test_what_was_deleted_within_the_window_stays() -> None:
    assert gone(facts(LOGS, [sample(8, orders=0), sample(6, orders=20), sample(0, orders=30)])) == []


def test_a_topic_goes_once_it_did_not_exist_for_the_whole_window() -> None:
    assert gone(facts(LOGS, [sample(8, orders=0), sample(0, other=0)])) == []
    many = [(segment(n * 10), n * 10 + 9) for n in range(200)]
    assert gone(facts(many, [sample(8, other=0), sample(0, other=0)])) == [0, 10]  # 2 % of the objects


def test_a_log_that_was_restored_in_place_within_the_window_stays() -> None:
    assert gone(facts(LOGS, [sample(8, orders=20), sample(3, orders=0), sample(0, orders=30)])) == []


def test_an_unknown_log_start_keeps_everything() -> None:
    unknown = Sample(NOW_MS - 8 * DAY_MS, frozenset({TOPIC_ID}), {})
    assert gone(facts(LOGS, [unknown, sample(0, orders=30)])) == []


def test_what_was_stored_within_the_window_stays() -> None:
    recent = [(segment(0, stored_ms=NOW_MS - 6 * DAY_MS), 9)]
    assert gone(facts(recent, [sample(8, other=0), sample(0, other=0)])) == []


def test_a_segment_that_overlaps_a_needed_one_stays() -> None:
    """After an unclean election, the chain needs all segments to know which part is valid."""
    overlapping = [(segment(0), 100), (segment(10), 20), (segment(21), 120)]
    assert gone(facts(overlapping, [sample(8, orders=50), sample(0, orders=50)])) == []


def test_the_last_segment_of_a_partition_that_exists_stays() -> None:
    assert gone(facts([(segment(0), 9)], [sample(8, orders=10), sample(0, orders=10)])) == []
    assert gone(facts([(segment(0), 9)], [sample(8, other=0), sample(0, other=0)])) == [0]


def test_nothing_goes_during_a_restore_or_without_a_catalogue_of_the_window() -> None:
    window = [sample(8, orders=10), sample(0, orders=25)]
    for known in (
        facts(LOGS, window, restore_running=True),
        facts(LOGS, []),
        facts(LOGS, [sample(8, orders=10), sample((FRESH_MS + 1000) / DAY_MS, orders=25)]),
    ):
        plan = decide(known, NOW_MS)
        assert plan.refused
        assert not plan.segments


@pytest.mark.parametrize("held", [Hold("audit"), Hold("audit", TOPIC_ID)])
def test_a_hold_keeps_segments_gaps_and_entries(held: Hold) -> None:
    window = [sample(8, orders=10), sample(0, orders=25)]
    gap = StoredGap("gap", (TOPIC_ID, 0), 5, LONG_AGO)
    entries = (
        StoredEntry(LONG_AGO, frozenset("a")),
        *(StoredEntry(one.at_ms, frozenset("b")) for one in window),
    )
    known = facts(LOGS, window, gaps=(gap,), entries=entries, last_entries={TOPIC_ID: LONG_AGO})

    free, kept = (
        decide(replace(known, last_entries={}), NOW_MS),
        decide(replace(known, holds=(held,)), NOW_MS),
    )

    assert (len(free.segments), free.gaps, free.entries) == (1, ("gap",), (LONG_AGO,))
    assert (kept.segments, kept.gaps, kept.entries) == ((), (), ())


def test_an_upload_that_never_ended_goes_after_a_day() -> None:
    key = segment(0).key
    for stored_ms, expected in ((NOW_MS - 2 * DAY_MS, [0]), (NOW_MS - DAY_MS // 2, [])):
        objects = SegmentObjects(key, frozenset({LOG}), stored_ms)
        known = replace(facts([], [sample(8, orders=0), sample(0, orders=0)]), segments=(objects,))
        assert gone(known) == expected


def test_entries_go_when_a_later_one_describes_the_start_of_the_window() -> None:
    window = [sample(8, orders=0), sample(0, orders=0)]
    times = [NOW_MS - days * DAY_MS for days in (20, 10, 8, 5, 0)]
    entries = tuple(StoredEntry(at, frozenset({str(at), "common"})) for at in times)
    parts = {str(at): LONG_AGO for at in times} | {"common": LONG_AGO, "new": NOW_MS - 1000, "lost": LONG_AGO}

    plan = decide(facts(LOGS, window, entries=entries, parts=parts), NOW_MS)
    assert plan.entries == tuple(times[:2])
    assert sorted(plan.parts) == sorted([str(times[0]), str(times[1]), "lost"])

    # The last entry that has an archived topic stays: it has the topic's configs.
    pinned = facts(
        LOGS, window, entries=entries, parts=parts, last_entries={TOPIC_ID: times[0], "x": times[1]}
    )
    assert decide(pinned, NOW_MS).entries == (times[1],)


def test_samples_cover_the_window_from_its_start() -> None:
    window = NOW_MS - int(KEEP_DAYS * DAY_MS)
    times = sorted({window - 5 * HOUR_MS, window - 1, *range(window + 1, NOW_MS, HOUR_MS // 4), NOW_MS})

    chosen = sampled(times, NOW_MS, KEEP_DAYS)

    assert chosen[0] == window - 1
    assert chosen[-1] == NOW_MS
    assert all(b - a <= 2 * HOUR_MS for a, b in pairwise(chosen))
    assert len(chosen) < 24 * 8
    assert sampled([window + 1, NOW_MS], NOW_MS, KEEP_DAYS) == ()


@given(
    segments=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 12), st.booleans()), max_size=40
    ),
    starts=st.lists(st.none() | st.integers(-1, 80), min_size=1, max_size=4),
    held=st.booleans(),
)
def test_nothing_that_a_time_of_the_window_needs_is_deleted(
    segments: list[tuple[int, int, int, bool]], starts: list[int | None], held: bool
) -> None:
    """The starts are those of the samples; none: the topic did not exist then."""
    stored = [
        (segment(base, number, OTHER_ID if other else TOPIC_ID, NOW_MS - days * DAY_MS), base + length)
        for number, (base, length, days, other) in enumerate(segments)
    ]
    samples = [
        sample(8.0 * (len(starts) - 1 - number) / max(1, len(starts) - 1))
        if start is None
        else sample(8.0 * (len(starts) - 1 - number) / max(1, len(starts) - 1), orders=start)
        for number, start in enumerate(starts)
    ]
    holds = (Hold("one", OTHER_ID),) if held else ()
    due = candidates([one for one, _ in stored], samples, holds, NOW_MS, KEEP_DAYS)
    read = {key for keys in due.values() for key in keys}
    known = facts(
        stored, samples, holds=holds, last_offsets={one.key: last for one, last in stored if one.key in read}
    )

    plan = decide(known, NOW_MS)

    lasts = {one.key: last for one, last in stored}
    deleted = {one.key for one in plan.segments}
    for one in plan.segments:
        assert one.modified_ms < NOW_MS - KEEP_DAYS * DAY_MS
        assert lasts[one.key] < needed_from(samples, (one.key.topic_id, 0))
        assert not any(each.covers(one.key) for each in holds)
        lower = [k for k in lasts if k.topic_id == one.key.topic_id and k < one.key]
        assert all(key in deleted for key in lower)


# With a store


async def stored_backup(directory: Path) -> tuple[Store, Catalogue]:
    """Three segments; the log start rose to 4 before the window, and to 8 within it."""
    store = Store(StoreSettings("file", "east", directory / "store"))
    for number, log in enumerate((log_of(0, 2), log_of(4, 6), log_of(8, 10))):
        manifest = manifest_of(log, segment_id=id_text(UUID(int=number + 1)))
        await store.create(manifest.key.path(LOG), log)
        await store.create(manifest.key.path(MANIFEST), encode_manifest(manifest))
    catalogue = Catalogue(store, CLUSTER)
    for days, start in ((20, 0), (8, 4), (3, 8), (0, 8)):
        topics = {TOPIC_ID: {"name": "orders", "partitions": [[3, 0, [1]]], "configs": {"days": str(days)}}}
        parts = {"topics": topics, "logs": {TOPIC_ID: [[3, 12, 12, 0, start]]}}
        await catalogue.write(parts, NOW_MS - days * DAY_MS)
    for path in (directory / "store").rglob("*.*"):
        os.utime(path, (LONG_AGO / 1000, LONG_AGO / 1000))
    return store, catalogue


async def objects(store: Store) -> set[str]:
    return {one.key async for one in store.list("")}


async def offsets(store: Store, start: int) -> list[int]:
    archive = Archive(CLUSTER, [store])
    await archive.load()
    chain = await archive.chain(TOPIC_ID, 3)
    return [batch.base_offset async for part in archive.batches(chain, start) for batch in part]


async def expire(store: Store, *, may_delete: bool = True, restoring: str = "") -> int:
    """`restoring` is a restore that begins after the decision."""

    async def running() -> str:
        return restoring

    plan = await plan_expiry(store, CLUSTER, KEEP_DAYS, restore_running=False, now_ms=NOW_MS)
    return await carry_out(store, CLUSTER, plan, may_delete=unless_restoring(lambda: may_delete, running))


async def test_an_expiry_leaves_what_a_restore_to_the_start_of_the_window_needs(tmp_path: Path) -> None:
    store, catalogue = await stored_backup(tmp_path)
    before = await objects(store)
    first = await catalogue.entry(NOW_MS - 20 * DAY_MS)
    await hold(store, CLUSTER, "audit", None, NOW_MS)
    assert await expire(store) == 0
    await release(store, CLUSTER, "audit", NOW_MS)
    assert await expire(store, may_delete=False) == 0
    assert await expire(store, restoring="orders-1") == 0

    assert await expire(store) > 0

    left = await objects(store)
    assert entry_key(CLUSTER, first.at_ms) not in left
    assert {part_key(CLUSTER, digest) for digest in first.parts.values()}.isdisjoint(left)
    assert sum(key.endswith(LOG) for key in before - left) == 1
    assert await offsets(store, 4) == [4, 6, 8, 10]
    entry = await catalogue.entry_at(NOW_MS - 7 * DAY_MS)
    assert entry is not None
    assert (await catalogue.part(entry, "logs"))[TOPIC_ID][0][4] == 4
    assert (await catalogue.topics())[TOPIC_ID].name == "orders"
    assert await expire(store) == 0


EXPIRE = """
import asyncio, sys
from pathlib import Path
from tests.backup.test_expiry import expire
from penstock.tier.store import Store, StoreSettings
asyncio.run(expire(Store(StoreSettings("file", "east", Path(sys.argv[1])))))
"""


@pytest.mark.parametrize("point", [DECIDED, HALFWAY])
async def test_the_next_expiry_completes_one_that_was_killed(tmp_path: Path, point: str) -> None:
    undisturbed, _ = await stored_backup(tmp_path / "undisturbed")
    await expire(undisturbed)
    store, _ = await stored_backup(tmp_path / "killed")
    command = [sys.executable, "-c", EXPIRE, str(tmp_path / "killed" / "store")]
    environment = clean_environment({"PENSTOCK_FAULT": point})
    killed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=120, check=False)  # noqa: ASYNC221
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    await expire(store)

    assert await objects(store) == await objects(undisturbed)
    assert await offsets(store, 4) == [4, 6, 8, 10]


async def test_a_clock_that_is_days_ahead_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything would be older than the window."""
    store, _ = await stored_backup(tmp_path)
    before = await objects(store)
    now = time.time()
    for days in (8, -8):
        monkeypatch.setattr(time, "time", lambda days=days: now + days * 86_400)
        with pytest.raises(SweepRefused, match=r"691\d{3} s"):
            await expire(store)
    assert await objects(store) == before
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert await expire(store) > 0
    assert not any(key.startswith(CLOCK) for key in await objects(store))


async def test_a_restore_that_begins_in_the_middle_of_a_run_ends_it() -> None:
    """It reads every segment of its log, also those that the run has chosen before."""
    restores = ["", "", "orders-1", ""]

    async def running() -> str:
        return restores.pop(0)

    may_delete = unless_restoring(lambda: True, running)
    allowed = [await may_delete() for _ in range(4 * RESTORES_CHECKED_EVERY)]
    assert allowed == [True] * (2 * RESTORES_CHECKED_EVERY) + [False] * (2 * RESTORES_CHECKED_EVERY)
    assert restores == [""], "once ended, it stays so"


def test_a_clock_that_is_behind_the_catalogue_deletes_nothing() -> None:
    ahead = Sample(NOW_MS + 2 * FRESH_MS, frozenset(), {})
    assert "ahead of this clock" in decide(facts([], [ahead]), NOW_MS).refused


async def test_a_part_that_an_expiry_deleted_is_stored_again_by_the_next_entry(tmp_path: Path) -> None:
    store, catalogue = await stored_backup(tmp_path)
    old = await catalogue.entry(NOW_MS - 20 * DAY_MS)
    logs = {TOPIC_ID: [[3, 12, 12, 0, 0]]}  # as twenty days ago
    await catalogue.write({"topics": {}, "logs": logs}, NOW_MS + 1)
    await store.delete([part_key(CLUSTER, old.parts["logs"])])  # by one that had not seen the new entry

    await catalogue.write({"topics": {}, "logs": logs}, NOW_MS + 2)

    entry = await catalogue.entry(NOW_MS + 1)
    assert await catalogue.part(entry, "logs") == logs
