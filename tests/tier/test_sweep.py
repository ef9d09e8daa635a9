"""Which objects the sweeper deletes, and which it never does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tier.format import INDEXES, LOG, MANIFEST, TOMBSTONE, SegmentKey, Tombstone, id_of, id_text
from penstock.tier.metadata import SegmentState, TierMetadata
from penstock.tier.sweep import DAY_MS, OBJECTS_MAX, Facts, Hold, SegmentObjects, decide
from penstock.wire.logs import Entry, write_framed
from tests.tier.segments import CLUSTER, NOW_MS, TOPIC_ID

WHOLE = frozenset({LOG, INDEXES, MANIFEST})
KEEP_DAYS = 7
LONG_AGO = Tombstone(NOW_MS - 8 * DAY_MS, "retention", "DELETE_SEGMENT_STARTED")


def segment_id(number: int) -> str:
    return id_text(UUID(int=number + 1))


def segment(
    number: int, tombstone: Tombstone | None = LONG_AGO, suffixes: frozenset[str] = WHOLE
) -> SegmentObjects:
    key = SegmentKey(CLUSTER, TOPIC_ID, 0, number * 10, segment_id(number))
    marked = suffixes | {TOMBSTONE} if tombstone else suffixes
    return SegmentObjects(key, marked, NOW_MS - 2 * DAY_MS, tombstone)


def started(number: int, state: SegmentState = SegmentState.STARTED) -> bytes:
    place = {"Name": "orders", "Id": id_of(TOPIC_ID), "Partition": 0}
    values: dict[str, Any] = {
        "RemoteLogSegmentId": {"TopicIdPartition": place, "Id": id_of(segment_id(number))},
        "StartOffset": number * 10, "EndOffset": number * 10 + 9, "BrokerId": 1, "MaxTimestampMs": NOW_MS,
        "EventTimestampMs": NOW_MS, "SegmentLeaderEpochs": [{"LeaderEpoch": 0, "Offset": number * 10}],
        "SegmentSizeInBytes": 100, "CustomMetadata": None, "RemoteLogSegmentState": state,
        "TxnIndexEmpty": True,
    }  # fmt: skip
    return write_framed(Entry("RemoteLogSegmentMetadataRecord", 0, values))


def updated(number: int, state: SegmentState) -> bytes:
    place = {"Name": "orders", "Id": id_of(TOPIC_ID), "Partition": 0}
    values: dict[str, Any] = {
        "RemoteLogSegmentId": {"TopicIdPartition": place, "Id": id_of(segment_id(number))},
        "BrokerId": 1, "EventTimestampMs": NOW_MS, "CustomMetadata": b"\x01", "RemoteLogSegmentState": state,
    }  # fmt: skip
    return write_framed(Entry("RemoteLogSegmentMetadataUpdateRecord", 0, values))


def folded(*values: bytes) -> TierMetadata:
    metadata = TierMetadata()
    for value in values:
        metadata.apply(value)
    return metadata


def facts(*segments: SegmentObjects, live: TierMetadata | None = None) -> Facts:
    metadata = live.segments if live else {}
    return Facts(segments, metadata, True, False, (), KEEP_DAYS)


def test_metadata_follows_the_life_of_a_segment() -> None:
    metadata = folded(started(0), updated(0, SegmentState.FINISHED))
    live = metadata.segments[segment_id(0)]
    assert (live.state, live.custom_metadata) == (SegmentState.FINISHED, b"\x01")
    assert (live.started, live.finished) == (started(0), updated(0, SegmentState.FINISHED))
    assert live.key(CLUSTER) == segment(0).key
    metadata.apply(updated(0, SegmentState.DELETE_STARTED))
    assert segment_id(0) in metadata.segments
    metadata.apply(updated(0, SegmentState.DELETE_FINISHED))
    assert metadata.segments == {}
    assert metadata.deleted == {segment_id(0)}
    metadata.apply(started(0))
    assert metadata.deleted == set()


def test_a_deleted_partition_is_remembered() -> None:
    place = {"Name": "orders", "Id": id_of(TOPIC_ID), "Partition": 2}
    values = {"BrokerId": 1, "EventTimestampMs": 1, "RemotePartitionDeleteState": 1}
    name = "RemotePartitionDeleteMetadataRecord"
    metadata = folded(write_framed(Entry(name, 0, {"TopicIdPartition": place, **values})))
    assert metadata.deleted_partitions == {(TOPIC_ID, 2)}


def test_a_segment_deleted_long_ago_goes_manifest_first_and_tombstone_last() -> None:
    plan = decide(facts(segment(0)), NOW_MS)
    assert [suffix for _, suffix in plan.keys] == [MANIFEST, LOG, INDEXES, TOMBSTONE]


@pytest.mark.parametrize("state", [SegmentState.STARTED, SegmentState.FINISHED, SegmentState.DELETE_STARTED])
def test_a_live_segment_stays(state: SegmentState) -> None:
    plan = decide(facts(segment(0), live=folded(started(0), updated(0, state))), NOW_MS)
    assert plan.delete == ()
    assert plan.kept == {"live": 1}


def test_a_segment_deleted_recently_stays() -> None:
    recent = replace(LONG_AGO, at_ms=NOW_MS - KEEP_DAYS * DAY_MS)
    assert decide(facts(segment(0, recent)), NOW_MS).kept == {"deleted recently": 1}


@pytest.mark.parametrize(("topic_id", "kept"), [(None, 1), (TOPIC_ID, 1), ("another", 0)])
def test_a_hold_keeps_what_it_covers(topic_id: str | None, kept: int) -> None:
    plan = decide(replace(facts(segment(0)), holds=(Hold("audit", topic_id),)), NOW_MS)
    assert plan.kept.get("held", 0) == kept
    assert len(plan.delete) == 1 - kept


def test_nothing_goes_while_a_restore_runs_or_the_metadata_is_not_complete() -> None:
    running = decide(replace(facts(segment(0)), restore_running=True), NOW_MS)
    unread = decide(replace(facts(segment(0)), metadata_complete=False), NOW_MS)
    assert (running.delete, unread.delete) == ((), ())
    assert running.refused
    assert unread.refused


def test_an_orphan_is_only_reported() -> None:
    plan = decide(facts(segment(0, None)), NOW_MS)
    assert (plan.delete, plan.orphans) == ((), (segment(0).key,))


def test_a_missing_object_is_reported() -> None:
    live = folded(started(0), updated(0, SegmentState.FINISHED), started(1))
    plan = decide(facts(segment(0, None, frozenset({MANIFEST})), live=live), NOW_MS)
    assert [one.segment_id for one in plan.missing] == [segment_id(0)]


def test_an_upload_without_a_manifest_goes_after_a_day() -> None:
    old = segment(0, None, frozenset({LOG}))
    new = replace(segment(1, None, frozenset({LOG})), modified_ms=NOW_MS - DAY_MS)
    plan = decide(facts(old, new), NOW_MS)
    assert plan.delete == (old,)
    assert plan.kept == {"upload under way": 1}


def test_an_unreadable_tombstone_keeps_its_segment() -> None:
    unreadable = segment(0, None, WHOLE | {TOMBSTONE})
    assert decide(facts(unreadable), NOW_MS).kept == {"unreadable tombstone": 1}


def test_a_run_deletes_one_percent_of_the_objects() -> None:
    plan = decide(facts(*map(segment, range(400))), NOW_MS)
    assert (len(plan.keys), plan.postponed) == (16, 396)


def test_a_run_deletes_a_thousand_objects_at_most() -> None:
    plan = decide(facts(*map(segment, range(30_000))), NOW_MS)
    assert len(plan.keys) == OBJECTS_MAX


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-20, 1)), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_whatever_goes_fulfils_all_conditions(
    rows: list[tuple[bool, bool, int]], complete: bool, restoring: bool
) -> None:
    segments = [
        segment(number, replace(LONG_AGO, at_ms=NOW_MS + days * DAY_MS) if marked else None)
        for number, (marked, _, days) in enumerate(rows)
    ]
    live = folded(*(started(number) for number, row in enumerate(rows) if row[1]))
    given_facts = Facts(tuple(segments), live.segments, complete, restoring, (), KEEP_DAYS)
    for one in decide(given_facts, NOW_MS).delete:
        assert complete
        assert not restoring
        assert one.key.segment_id not in live.segments
        assert one.tombstone is not None
        assert NOW_MS - one.tombstone.at_ms > KEEP_DAYS * DAY_MS
