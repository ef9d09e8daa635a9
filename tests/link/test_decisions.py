"""States, lineage, checks of batches, placement and group offsets of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.admin.configs import Entry, Source
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link.group_sync import MirrorRange, group_commits
from penstock.link.lineage import Lineage, has_diverged, lineage_of
from penstock.link.mirror_topics import check_names, matching, synced_configs
from penstock.link.mirrored_batches import checked, runs_of_epochs, starts_above
from penstock.link.placement import mirror_assignment
from penstock.link.states import TRANSITIONS, Action, State, Step, diagram, next_state, steps_left
from penstock.model.errors.link import BrokersTooFew, LinkStateConflict, MirrorTopicInvalid, SourceUnusable
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.epoch_history import EpochStart
from penstock.wire.records import Producer, Record, write

PLACE = TopicPartition("orders", 0)


def batch(base: int, epoch: int, count: int = 2) -> bytes:
    rows = [Record(base + i, 1, None, b"v") for i in range(count)]
    return write(rows, leader_epoch=epoch, producer=Producer(7, 0, 0))


@pytest.mark.parametrize(("before", "after"), TRANSITIONS.items(), ids=lambda one: str(one))
def test_every_transition_of_the_table_is_possible(before: tuple[State, Action], after: State) -> None:
    assert next_state("east", *before) is after
    assert f"{before[0]} --> {after}: {before[1]}".replace("failing-over", "failing_over") in diagram()


def test_any_other_transition_is_refused_and_names_the_possible_ones() -> None:
    with pytest.raises(LinkStateConflict, match="failover, pause, promote"):
        next_state("east", State.MIRRORING, Action.RESUME)
    with pytest.raises(LinkStateConflict, match="nothing"):
        next_state("east", State.ACTIVE, Action.PROMOTE)


def test_a_promotion_continues_after_its_last_recorded_step() -> None:
    assert steps_left(State.PROMOTING, None)[0] is Step.FENCED
    assert steps_left(State.PROMOTING, Step.STEPPED_DOWN) == (Step.ABORTED, Step.OPENED, Step.REMOVED)
    assert steps_left(State.FAILING_OVER, None)[0] is Step.STEPPED_DOWN
    assert steps_left(State.FAILING_OVER, Step.FENCED)[0] is Step.STEPPED_DOWN
    assert steps_left(State.PROMOTING, Step.REMOVED) == ()


def test_a_lineage_maps_epochs_of_both_sides() -> None:
    lineage = Lineage().extended(0, 3, 0).extended(10, 4, 0).extended(20, 4, 2)
    assert lineage.destination_history(30).entries == (EpochStart(0, 0), EpochStart(2, 20))
    assert lineage.destination_history(20).entries == (EpochStart(0, 0),)
    assert (lineage.source_epoch_at(0), lineage.source_epoch_at(10), lineage.source_epoch_at(11)) == (
        -1,
        3,
        4,
    )
    assert lineage.continues(4, 2)
    assert not lineage.continues(5, 2)
    assert lineage_of(lineage.as_json()) == lineage


def test_an_entry_whose_records_never_arrived_is_replaced() -> None:
    assert Lineage().extended(0, 3, 0).extended(10, 3, 2).extended(10, 3, 4).as_json()["entries"] == [
        [0, 3, 0],
        [10, 3, 4],
    ]


@pytest.mark.parametrize(
    ("end", "there", "diverged"),
    [(20, EpochStart(3, 25), False), (20, EpochStart(3, 15), True), (20, EpochStart(2, 25), True)],
    ids=["the source has it all", "the source truncated", "the source lacks the epoch"],
)
def test_a_source_that_truncated_is_recognized_by_its_epochs(
    end: int, there: EpochStart, *, diverged: bool
) -> None:
    assert has_diverged(end, there, 3) is diverged


def test_batches_of_a_fetch_begin_at_the_position() -> None:
    fetched = checked(batch(0, 3) + batch(2, 3) + batch(9, 4), 2, 3)
    assert [(one.batch.base_offset, one.epoch, one.producer_id) for one in fetched] == [(2, 3, 7), (9, 4, 7)]
    assert [(epoch, len(run)) for epoch, run in runs_of_epochs(fetched)] == [(3, 1), (4, 1)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (batch(2, 2), "leader epoch 2"),
        (batch(2, 3)[:-1] + b"x", "CRC"),
        (batch(2, 3, 4) + batch(4, 3), "overlaps"),
        (batch(2, 3)[:16] + b"\x01" + batch(2, 3)[17:], "1"),
    ],
    ids=["older epoch", "damaged", "overlap", "old format"],
)
def test_a_source_that_cannot_be_mirrored_stops_the_partition(data: bytes, reason: str) -> None:
    with pytest.raises(SourceUnusable, match=reason):
        checked(data, 2, 3)


def test_a_position_that_the_source_has_deleted_is_explained() -> None:
    assert "starts at 9, above" in str(starts_above(5, 9))


@given(st.integers(2, 9), st.integers(1, 30), st.integers(1, 4))
def test_replicas_are_distinct_real_brokers_after_the_shadow(brokers: int, count: int, zones: int) -> None:
    racks: dict[int, str | None] = {broker: f"z{broker % zones}" for broker in range(1, brokers + 1)}
    racks[SHADOW_IDS[1]] = None
    for replicas in mirror_assignment(range(count), racks, SHADOW_IDS[0]).values():
        assert replicas[0] == SHADOW_IDS[0]
        assert len(set(replicas)) == len(replicas) == 1 + min(3, brokers)
        assert set(replicas[1:]) <= set(range(1, brokers + 1))


def test_replicas_are_in_distinct_zones_and_leaders_rotate() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    assignment = mirror_assignment(range(2), racks, SHADOW_IDS[0])
    assert assignment == {0: (SHADOW_IDS[0], 1, 3, 5), 1: (SHADOW_IDS[0], 3, 5, 2)}


def test_one_broker_is_too_few() -> None:
    with pytest.raises(BrokersTooFew):
        mirror_assignment(range(1), {1: None}, SHADOW_IDS[0])


def test_patterns_match_whole_names_and_never_internal_topics() -> None:
    names = ["orders", "orders-eu", "__consumer_offsets", "_penstock.links", "payments"]
    assert matching(["orders.*", ".*"], names) == ["orders", "orders-eu", "payments"]
    assert matching(["order"], names) == []
    for wrong in ("__consumer_offsets", "(", "_penstock.state"):
        with pytest.raises(MirrorTopicInvalid):
            check_names([wrong])


def test_configs_follow_the_table() -> None:
    def entry(name: str, value: str, origin: Source) -> Entry:
        return Entry(name, value, origin, read_only=False, sensitive=False)

    entries = [
        entry("retention.ms", "1000", Source.DEFAULT),
        entry("segment.bytes", "77", Source.TOPIC),
        entry("segment.ms", "5", Source.DEFAULT),
        entry("min.insync.replicas", "2", Source.TOPIC),
    ]
    assert synced_configs({one.name: one for one in entries}) == {
        "retention.ms": "1000",
        "segment.bytes": "77",
    }


def test_group_offsets_are_copied_without_an_epoch() -> None:
    ranges = {PLACE: MirrorRange(0, 50)}
    commits = group_commits({PLACE: CommittedOffset(20, 9, "note")}, {}, ranges, state_here="")
    assert commits.offsets == {PLACE: CommittedOffset(20, -1, "note")}
    assert commits.clamped == 0


def test_an_offset_that_is_not_mirrored_yet_is_clamped_to_the_end() -> None:
    commits = group_commits(
        {PLACE: CommittedOffset(90)},
        {PLACE: CommittedOffset(10)},
        {PLACE: MirrorRange(0, 50)},
        state_here="Empty",
    )
    assert (commits.offsets[PLACE].offset, commits.clamped) == (50, 1)


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "Assigning"])
def test_a_group_with_members_here_is_left_alone(state: str) -> None:
    commits = group_commits({PLACE: CommittedOffset(20)}, {}, {PLACE: MirrorRange(0, 50)}, state_here=state)
    assert commits.offsets == {}


def test_unchanged_offsets_and_other_topics_are_not_committed() -> None:
    other = TopicPartition("other", 0)
    source = {PLACE: CommittedOffset(20), other: CommittedOffset(3)}
    commits = group_commits(
        source, {PLACE: CommittedOffset(20)}, {PLACE: MirrorRange(0, 50)}, state_here="Empty"
    )
    assert commits.offsets == {}
