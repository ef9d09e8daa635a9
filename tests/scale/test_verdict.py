"""The scaler's stories: what happens to a group, and what is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.scale.values import Change, GroupState, Memory, PartitionState
from tests.scale.stories import POLICY, Story, rule

# Four partitions, two members, each member handles 100 records a second.
CALM: dict[str, Any] = {"arrive": 30, "consume": 30}
OVERLOAD = {"arrive": 80, "consume": 50}  # each member's two partitions take all it can do


def warmed_up(policy: object = POLICY, **options: object) -> Story:
    story = Story(policy, **options)  # type: ignore[arg-type]  # fields of Story
    return story.passes(120, **CALM)


def test_a_group_that_keeps_up_is_left_alone() -> None:
    story = Story(memory=Memory(capacity=100, learned_at=Story().at)).passes(1500, arrive=35)

    assert story.changes() == []
    assert set(story.last.states.values()) == {PartitionState.KEEPING_UP}


def test_overload_that_lasts_scales_once_to_what_the_load_needs() -> None:
    story = warmed_up().passes(200, arrive=60, consume=50)

    assert story.changes() == [("up", 4)]
    assert "G4 persistent" in next(v.reason for v in story.verdicts if v and v.change is Change.UP)


def test_nothing_is_asked_before_the_sustain_time() -> None:
    story = warmed_up().passes(160, arrive=60, consume=50)  # high from the sixtieth second on

    assert story.changes() == []
    assert not rule(story.last, "G4")


def test_the_sustain_time_ends_at_the_sample_nearest_to_it() -> None:
    story = warmed_up().passes(230, arrive=60, consume=50)

    raised = next(v.at for v in story.verdicts if v and v.change is Change.UP)
    begun = story.at - 230
    passed_500 = begun + 500 / 10  # records a partition gains in a second
    assert abs(raised - passed_500 - POLICY.sustain) <= 5


def flat_at_1000(story: Story, seconds: float) -> None:
    for index, end in enumerate(story.end):
        story.end[index] = end + max(0, 1000 - (end - story.committed[index]))
    story.passes(seconds, arrive=50, consume=50)


def low(story: Story, seconds: float) -> None:
    story.committed = [end - 100 for end in story.end]
    story.passes(seconds, arrive=50, consume=50)


def test_high_dip_high_is_not_persistent() -> None:
    """The paper's own code calls it persistent: it looks at the first and last high sample only."""
    story = Story(replace(POLICY, objective=3000))
    for _ in range(6):
        flat_at_1000(story, 90)
        low(story, 30)

    assert story.changes() == []


def test_a_dip_of_one_sample_is_smoothed_away() -> None:
    story = Story(replace(POLICY, objective=3000))
    flat_at_1000(story, 80)
    low(story, 10)
    flat_at_1000(story, 60)

    assert [change for change, _ in story.changes()] == ["up"]


def test_lag_that_falls_asks_for_nothing() -> None:
    story = Story(end=[9000] * 4, committed=[1000] * 4).passes(250, arrive=20, consume=50)

    assert story.changes() == []
    assert set(story.last.states.values()) <= {PartitionState.CATCHING_UP, PartitionState.KEEPING_UP}


def test_a_burst_that_drains_by_itself_asks_for_nothing() -> None:
    story = warmed_up().passes(30, arrive=200, consume=50).passes(400, **CALM | {"consume": 50})

    assert story.changes() == []


def test_a_steep_rise_is_answered_before_the_sustain_time() -> None:
    story = warmed_up().passes(70, arrive=400, consume=50)

    assert story.last.change is Change.UP or story.changes()
    up = next(verdict for verdict in story.verdicts if verdict and verdict.change is Change.UP)
    assert "G5 steep" in up.reason
    assert not rule(up, "G4")


def test_a_stuck_partition_is_reported_and_never_asks_for_more() -> None:
    story = warmed_up().passes(900, arrive=30, consume=[30, 0, 30, 30])

    assert not [change for change in story.changes() if change[0] == "up"]
    assert [str(key) for key in story.last.stuck] == ["orders/1"]
    assert story.last.states[story.last.stuck[0]] is PartitionState.STALLED


def test_a_group_that_stands_still_as_a_whole_asks_for_nothing() -> None:
    story = warmed_up().passes(900, arrive=30, consume=0)

    assert story.changes() == []
    assert len(story.last.stuck) == 4


def test_a_partition_alone_on_its_member_cannot_be_helped_and_does_not_ask() -> None:
    story = (
        Story(partitions=2, members=2).passes(120, arrive=20).passes(500, arrive=[150, 20], consume=[100, 20])
    )

    assert story.changes() == []
    assert PartitionState.FALLING_BEHIND in story.last.states.values()


def test_a_rebalance_settles_before_anything_is_decided() -> None:
    story = warmed_up().passes(160, arrive=60, consume=50)
    story.generation += 1
    story.passes(60, arrive=60, consume=50)
    assert story.changes() == []
    assert story.last.findings[-2].rule == "G3 settled"

    story.passes(10, arrive=60, consume=50)

    assert story.changes() == [("up", 4)]


def test_during_a_rebalance_everything_is_held() -> None:
    story = warmed_up()
    story.state = GroupState.REBALANCING
    story.passes(300, arrive=60, consume=0)

    assert story.changes() == []
    assert story.last.reason == "hold: G1 group at rest: group is Rebalancing"


def test_scale_ups_keep_their_distance() -> None:
    policy = replace(POLICY, up_interval=600)
    story = warmed_up(policy, partitions=8, members=1).passes(400, arrive=15, consume=12.5)
    story.members = story.last.replicas
    asked_first = story.changes()
    story.passes(500, arrive=100, consume=40)

    assert len(asked_first) == 1
    assert story.changes() == asked_first


def test_what_was_asked_must_arrive_before_more_is_asked_on_the_same_evidence() -> None:
    story = warmed_up(partitions=8, members=2).passes(260, arrive=30, consume=25)
    first = story.changes()

    story.passes(500, arrive=30, consume=25)  # the pods do not come
    assert len(first) == 1
    assert story.changes() == first

    story.passes(400, arrive=30, consume=25)  # nor do they after a cool-down

    assert len(story.changes()) == 2


def test_sustained_low_scales_down_once_to_what_the_load_needs() -> None:
    memory = Memory(capacity=100, learned_at=Story().at)
    story = Story(members=4, memory=memory).passes(1200, arrive=20)

    assert story.changes() == [("down", 1)]


def test_spare_capacity_is_kept_when_scaling_down() -> None:
    memory = Memory(capacity=100, learned_at=Story().at)
    story = Story(members=4, memory=memory).passes(1200, arrive=48)  # 96 of 100 on two members: too tight

    assert story.changes() == []


def test_scaling_down_waits_for_the_cool_down() -> None:
    memory = Memory(capacity=100, learned_at=Story().at, asked=4, raised_at=Story().at)
    story = Story(members=4, memory=memory).passes(600, arrive=20)
    assert story.changes() == []

    story.passes(10, arrive=20)

    assert story.changes() == [("down", 1)]


def test_an_unknown_capacity_is_tried_one_rung_at_a_time() -> None:
    story = Story(partitions=12, members=12).passes(610, arrive=20)
    assert story.changes() == [("down", 6)]

    story.members = 6
    story.passes(700, arrive=20)

    assert story.changes() == [("down", 6), ("down", 4)]


def test_between_the_two_thresholds_nothing_changes() -> None:
    memory = Memory(capacity=100, learned_at=Story().at)
    story = Story(members=4, memory=memory, end=[1400] * 4, committed=[1000] * 4).passes(1000, arrive=20)

    assert story.changes() == []
    assert not rule(story.last, "G8")


def test_replicas_never_pass_the_partitions() -> None:
    story = warmed_up(partitions=5, members=1).passes(300, arrive=4000, consume=20)

    assert {replicas for _, replicas in story.changes()} == {5}


def test_seconds_of_lag_can_be_the_threshold() -> None:
    policy = replace(POLICY, lag_threshold=0, lag_seconds_threshold=20)
    story = warmed_up(policy).passes(270, arrive=60, consume=50)

    assert story.changes() == [("up", 4)]


def test_a_small_topic_and_a_large_one_have_the_same_threshold_in_seconds() -> None:
    policy = replace(POLICY, lag_threshold=0, lag_seconds_threshold=20)
    small = warmed_up(policy).passes(400, arrive=1.2, consume=1.0)
    large = warmed_up(policy).passes(400, arrive=1200, consume=1000)

    first = [next(v.at for v in each.verdicts if v and v.change is Change.UP) for each in (small, large)]
    assert abs(first[0] - first[1]) <= 20


def test_the_first_verdict_holds_what_is_there() -> None:
    story = Story(members=3)
    verdict = story.look()

    assert verdict is not None
    assert (verdict.change, verdict.replicas, verdict.value) == (Change.HOLD, 3, 3.0)
    assert verdict.findings[-2].rule == "G2 warmed up"


@pytest.mark.parametrize("state", [GroupState.EMPTY, GroupState.REBALANCING, GroupState.DEAD])
def test_nothing_is_said_while_there_is_nothing_to_hold(state: GroupState) -> None:
    assert Story(members=0, state=state).look() is None


def test_a_workload_at_zero_wakes_with_the_first_record() -> None:
    policy = replace(POLICY, replicas_min=0)
    story = Story(policy, members=0, state=GroupState.EMPTY).passes(100)
    assert not story.last.active

    story.end[0] += 1
    story.passes(10)

    assert story.last.active
    assert story.last.replicas == 1


def test_a_workload_sleeps_after_the_idle_time_and_not_before() -> None:
    policy = replace(POLICY, replicas_min=0)
    story = Story(policy).passes(60, arrive=10).passes(290)
    assert story.last.active

    story.passes(20)

    assert not story.last.active


def test_a_stuck_partition_keeps_a_workload_awake() -> None:
    policy = replace(POLICY, replicas_min=0)
    story = Story(policy).passes(120, arrive=[1, 1, 1, 1], consume=[1, 0, 1, 1]).passes(900)

    assert story.last.active


def test_offsets_set_back_restart_the_judgement_of_that_partition_only() -> None:
    story = warmed_up()
    story.committed[0] -= 3000
    story.passes(10, **CALM)
    states = {str(key): state for key, state in story.last.states.items()}

    assert states["orders/0"] is PartitionState.UNKNOWN
    assert states["orders/1"] is PartitionState.KEEPING_UP


def test_a_clock_set_back_does_not_lock_the_scaler() -> None:
    memory = Memory(asked=4, raised_at=Story().at + 10**6, capacity=100, learned_at=Story().at)
    story = Story(members=4, memory=memory).passes(1300, arrive=20)

    assert story.changes() == [("down", 1)]


def test_the_same_samples_give_the_same_verdicts() -> None:
    """Two instances, one of which starts from the other's memory and the stored samples."""
    told = warmed_up().passes(200, arrive=60, consume=50)
    other = warmed_up()
    again = Story(memory=other.memory, end=other.end, committed=other.committed, at=other.at)
    again.window = other.window
    again.passes(200, arrive=60, consume=50)

    assert again.verdicts == told.verdicts[-len(again.verdicts) :]


def test_a_share_group_may_have_more_members_than_partitions() -> None:
    policy = replace(POLICY, group_type="share", topics=("orders",), replicas_max=50)
    story = Story(policy, partitions=2, members=2, owned=False).passes(120, arrive=40)
    story.passes(300, arrive=150, consume=100)

    assert story.changes()[0] == ("up", 4)


def test_a_share_group_of_unknown_capacity_is_tried_a_quarter_at_a_time() -> None:
    policy = replace(POLICY, group_type="share", topics=("orders",), replicas_max=50)
    story = Story(policy, partitions=2, members=8, owned=False).passes(620, arrive=100)

    assert story.changes() == [("down", 6)]
