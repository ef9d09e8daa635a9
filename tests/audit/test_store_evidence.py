"""What listings of object stores show."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.audit.rules.facts import apply
from penstock.audit.rules.state import SubjectState
from penstock.audit.store_evidence import (
    FinishedSegment,
    Promise,
    backup_gaps,
    finished_segments,
    object_problems,
)
from penstock.audit.stores import StoreCollector, Stores
from penstock.model.durability import Backup, Placement, Replica, Segment, Stored
from penstock.tier.format import INDEXES, LOG, MANIFEST, SegmentKey
from penstock.tier.store import Store, StoreSettings

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.audit.metadata_history import Observation

SOUND = {LOG: 1000, INDEXES: 40, MANIFEST: 500}
SEGMENT = FinishedSegment("partition/x/0", "s", 1000)
CLUSTER, TOPIC, ID = "A" * 22, "B" * 22, "C" * 22
SUBJECT = f"partition/{TOPIC}/0"


def test_a_whole_segment_is_no_problem() -> None:
    assert object_problems([SEGMENT], {"s": SOUND, "other": {}}) == {}


def test_missing_and_truncated_objects_are_named() -> None:
    without_log = {MANIFEST: 500, INDEXES: 40}

    assert object_problems([SEGMENT], {})["s"][1] == Stored("s", (LOG, INDEXES, MANIFEST))
    assert object_problems([SEGMENT], {"s": without_log})["s"][1] == Stored("s", (LOG,))
    (stored,) = [each for _, each in object_problems([SEGMENT], {"s": SOUND | {LOG: 999}}).values()]
    assert stored == Stored("s", (), (".log has 999 of 1000 bytes",))
    (stored,) = [each for _, each in object_problems([SEGMENT], {"s": SOUND | {MANIFEST: 0}}).values()]
    assert stored == Stored("s", (), (".json is empty",))


def test_only_segments_that_were_finished_before_the_listing_are_expected() -> None:
    state = SubjectState("pkc-000000", SUBJECT)
    state = apply(state, Segment("finished", 1, 0, 9, 0, 100), 1000)
    state = apply(state, Segment("later", 1, 10, 19, 0, 100), 3000)
    state = apply(state, Segment("copying", 0, 20, 29, 0, 100), 1000)

    assert [each.id for each in finished_segments([state], 2000)] == ["finished"]


def test_a_backup_promises_what_follows_its_first_segment() -> None:
    whole = Promise(((0, 9), (5, 19), (20, 29)), (), 30)

    assert backup_gaps(whole, 0) is None
    assert backup_gaps(Promise((), (), 100), 0) is None
    assert backup_gaps(replace(whole, ranges=((0, 9), (20, 29))), 0) == Backup(0, 29, ((10, 19),))
    assert backup_gaps(replace(whole, archived_end=40), 0) == Backup(0, 39, ((30, 39),))


def test_recorded_gaps_and_what_the_log_has_deleted_are_no_promise() -> None:
    holed = Promise(((0, 9), (20, 29)), (), 30)

    assert backup_gaps(replace(holed, recorded_gaps=((10, 19),)), 0) is None
    assert backup_gaps(holed, 20) is None
    assert backup_gaps(holed, 15) == Backup(15, 29, ((15, 19),))


async def collected(collector: StoreCollector, states: dict[bytes, SubjectState]) -> list[Observation]:
    now = time.monotonic()
    assert collector.collect(CLUSTER, states, now) == []
    assert collector.collect(CLUSTER, states, now + collector.period_seconds) == []
    assert collector._task is not None
    await collector._task
    return collector.collect(CLUSTER, states, now)


async def test_an_object_that_is_gone_from_the_store_is_reported(tmp_path: Path) -> None:
    settings = StoreSettings("file", "tier", tmp_path)
    store = Store(settings)
    key = SegmentKey(CLUSTER, TOPIC, 0, 0, ID)
    for suffix in (LOG, INDEXES, MANIFEST):
        await store.create(key.path(suffix), b"x" * 100)
    state = apply(SubjectState("pkc-000000", SUBJECT), Segment(ID, 1, 0, 9, 0, 100), 1000)
    states = {state.key: state}

    assert await collected(StoreCollector(Stores(tier=settings)), states) == []
    await store.delete([key.path(INDEXES)])
    assert await collected(StoreCollector(Stores(tier=settings)), states) == [
        (SUBJECT, Stored(ID, (INDEXES,)))
    ]


async def test_a_store_that_cannot_be_read_reports_nothing(tmp_path: Path) -> None:
    placement = Placement("orders", (1,), (1,), 1, 0, 0)
    state = SubjectState("pkc-000000", SUBJECT, placement=placement)
    state = apply(state, Replica(1, 0, 100), 1000)
    settings = StoreSettings("file", "backup", tmp_path)
    (tmp_path / "backup" / CLUSTER / "catalogue" / "entries").mkdir(parents=True)
    entry = tmp_path / "backup" / CLUSTER / "catalogue" / "entries" / f"{1:020d}.json"
    entry.write_text("{")
    collector = StoreCollector(Stores(backup=settings))
    now = time.monotonic()
    collector.collect(CLUSTER, {state.key: state}, now)
    collector.collect(CLUSTER, {state.key: state}, now + collector.period_seconds)
    task = collector._task
    assert task is not None
    while not task.done():
        await asyncio.sleep(0)

    assert collector.collect(CLUSTER, {state.key: state}, now) == []
    assert "catalogue" in collector.failure
    no_tier, failed = collector.disabled()
    assert no_tier == "tier-object-wrong: the settings name no tier"
    assert failed == f"backup-gap: {collector.failure}"
