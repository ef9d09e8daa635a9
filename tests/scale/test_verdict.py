"""The verdict in scenarios: what happens to a group, and which replicas are requested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.scale.decision.values import NO_COMMIT, Change, GroupState, Memory, PartitionState
from tests.scale.scenarios import POLICY, Scenario, rule

# Four partitions, two members, each member handles 100 records a second.
CALM: dict[str, Any] = {"arrive": 30, "consume": 30}


def warmed_up(policy: object = POLICY, **options: object) -> Scenario:
    scenario = Scenario(policy, **options)  # type: ignore[arg-type]  # fields of Scenario
    return scenario.passes(120, **CALM)


def test_a_group_that_keeps_up_is_left_alone() -> None:
    scenario = Scenario(memory=Memory(capacity=100, measured_at=Scenario().at)).passes(1500, arrive=35)

    assert scenario.changes() == []
    assert set(scenario.last.states.values()) == {PartitionState.KEEPING_UP}


def test_overload_that_lasts_scales_once_to_what_the_load_needs() -> None:
    scenario = warmed_up().passes(200, arrive=60, consume=50)

    assert scenario.changes() == [("up", 4)]
    assert "G4 persistent" in next(v.reason for v in scenario.verdicts if v and v.change is Change.UP)


def test_nothing_is_requested_before_the_sustain_time() -> None:
    scenario = warmed_up().passes(160, arrive=60, consume=50)  # high from the sixtieth second on

    assert scenario.changes() == []
    assert not rule(scenario.last, "G4")


def test_a_scale_up_comes_at_the_sample_nearest_to_the_end_of_the_sustain_time() -> None:
    scenario = warmed_up().passes(230, arrive=60, consume=50)

    raised = next(v.at for v in scenario.verdicts if v and v.change is Change.UP)
    started = scenario.at - 230
    passed_500 = started + 500 / 10  # records a partition gains in a second
    assert abs(raised - passed_500 - POLICY.sustain) <= 5


def flat_at_1000(scenario: Scenario, seconds: float) -> None:
    for index, end in enumerate(scenario.end):
        scenario.end[index] = end + max(0, 1000 - (end - scenario.committed[index]))
    scenario.passes(seconds, arrive=50, consume=50)


def low(scenario: Scenario, seconds: float) -> None:
    scenario.committed = [end - 100 for end in scenario.end]
    scenario.passes(seconds, arrive=50, consume=50)


def test_high_dip_high_is_not_persistent() -> None:
    """The paper's code calls it persistent, since it compares only the first and last high sample."""
    scenario = Scenario(replace(POLICY, objective=3000))
    for _ in range(6):
        flat_at_1000(scenario, 90)
        low(scenario, 30)

    assert scenario.changes() == []


def test_a_dip_of_one_sample_is_smoothed_away() -> None:
    scenario = Scenario(replace(POLICY, objective=3000))
    flat_at_1000(scenario, 80)
    low(scenario, 10)
    flat_at_1000(scenario, 60)

    assert [change for change, _ in scenario.changes()] == ["up"]


def test_falling_lag_requests_nothing() -> None:
    scenario = Scenario(end=[9000] * 4, committed=[1000] * 4).passes(250, arrive=20, consume=50)

    assert scenario.changes() == []
    assert set(scenario.last.states.values()) <= {PartitionState.CATCHING_UP, PartitionState.KEEPING_UP}


def test_a_burst_that_drains_by_itself_requests_nothing() -> None:
    scenario = warmed_up().passes(30, arrive=200, consume=50).passes(400, **CALM | {"consume": 50})

    assert scenario.changes() == []


def test_a_steep_rise_scales_up_before_the_sustain_time() -> None:
    scenario = warmed_up().passes(70, arrive=400, consume=50)

    assert scenario.last.change is Change.UP or scenario.changes()
    up = next(verdict for verdict in scenario.verdicts if verdict and verdict.change is Change.UP)
    assert "G5 steep" in up.reason
    assert not rule(up, "G4")


def test_a_stuck_partition_is_reported_and_never_scales_up() -> None:
    scenario = warmed_up().passes(900, arrive=30, consume=[30, 0, 30, 30])

    assert not [change for change in scenario.changes() if change[0] == "up"]
    assert [str(key) for key in scenario.last.stuck] == ["orders/1"]
    assert scenario.last.states[scenario.last.stuck[0]] is PartitionState.STALLED


def test_a_group_that_is_stuck_as_a_whole_requests_nothing() -> None:
    scenario = warmed_up().passes(900, arrive=30, consume=0)

    assert scenario.changes() == []
    assert len(scenario.last.stuck) == 4


def test_a_partition_alone_on_its_member_never_scales_up() -> None:
    scenario = (
        Scenario(partitions=2, members=2)
        .passes(120, arrive=20)
        .passes(500, arrive=[150, 20], consume=[100, 20])
    )

    assert scenario.changes() == []
    assert PartitionState.FALLING_BEHIND in scenario.last.states.values()


def test_a_rebalance_settles_before_anything_is_decided() -> None:
    scenario = warmed_up().passes(160, arrive=60, consume=50)
    scenario.generation += 1
    scenario.passes(60, arrive=60, consume=50)
    assert scenario.changes() == []
    assert scenario.last.rule_results[-2].rule == "G3 settled"

    scenario.passes(10, arrive=60, consume=50)

    assert scenario.changes() == [("up", 4)]


def flapping(scenario: Scenario, seconds: int, **rates: float) -> Scenario:
    """One member comes and goes every 50 s."""
    for number in range(seconds // 50):
        scenario.members = 3 if number % 2 else 2
        scenario.generation += 1
        scenario.passes(50, **rates)
    return scenario


def test_a_group_whose_member_comes_and_goes_scales_up_under_pressure_that_lasts() -> None:
    scenario = flapping(warmed_up(partitions=12), 3600, arrive=30, consume=10)

    assert scenario.changes()[0][0] == "up"
    assert scenario.last.replicas == 12

    scenario.members = 12
    scenario.passes(1800, arrive=10, consume=1000)
    steady = Scenario(partitions=12, members=12, memory=scenario.memory, at=scenario.at)
    steady.passes(1800, arrive=10)

    assert scenario.passes(1800, arrive=10).last.replicas == steady.last.replicas


def test_a_group_whose_member_comes_and_goes_is_left_alone_without_pressure() -> None:
    memory = Memory(capacity=1000, measured_at=Scenario().at)

    assert flapping(Scenario(partitions=12, memory=memory), 1800, arrive=30).changes() == []


def trimmed(scenario: Scenario, seconds: int, **rates: float) -> Scenario:
    """Retention deletes what is older than about two minutes, every 50 s."""
    for _ in range(seconds // 50):
        scenario.passes(50, **rates)
        for index, end in enumerate(scenario.end):
            scenario.start[index] = max(scenario.start[index], end - 120 * round(rates["arrive"]))
            if rates["consume"]:  # a consumer that is overtaken continues at the start of the log
                scenario.committed[index] = max(scenario.committed[index], scenario.start[index])
    return scenario


def test_a_group_that_retention_overtakes_again_and_again_scales_up() -> None:
    scenario = trimmed(warmed_up(partitions=12), 900, arrive=100, consume=20)

    assert set(scenario.last.states.values()) == {PartitionState.FALLING_BEHIND}
    assert [change for change, _ in scenario.changes()][:1] == ["up"]

    scenario.members = scenario.last.replicas
    scenario.passes(600, arrive=100, consume=1000)

    assert set(scenario.last.states.values()) == {PartitionState.KEEPING_UP}
    assert not scenario.last.lag


def test_a_partition_that_only_loses_records_is_reported_stuck() -> None:
    scenario = trimmed(warmed_up(partitions=12), 900, arrive=100, consume=0)

    assert set(scenario.last.states.values()) == {PartitionState.STALLED}
    assert len(scenario.last.stuck) == 12
    assert scenario.changes() == []


def test_during_a_rebalance_everything_is_held() -> None:
    scenario = warmed_up()
    scenario.state = GroupState.REBALANCING
    scenario.passes(300, arrive=60, consume=0)

    assert scenario.changes() == []
    assert scenario.last.reason == "hold: G1 not rebalancing: group is Rebalancing"


def test_scale_ups_respect_their_interval() -> None:
    policy = replace(POLICY, up_interval=600)
    scenario = warmed_up(policy, partitions=8, members=1).passes(400, arrive=15, consume=12.5)
    scenario.members = scenario.last.replicas
    first_changes = scenario.changes()
    scenario.passes(500, arrive=100, consume=40)

    assert len(first_changes) == 1
    assert scenario.changes() == first_changes


def test_requested_replicas_must_arrive_before_more_are_requested() -> None:
    scenario = warmed_up(partitions=8, members=2).passes(260, arrive=30, consume=25)
    first = scenario.changes()

    scenario.passes(500, arrive=30, consume=25)  # the pods do not come
    assert len(first) == 1
    assert scenario.changes() == first

    scenario.passes(400, arrive=30, consume=25)  # nor do they after a cool-down

    assert len(scenario.changes()) == 2


def test_sustained_low_scales_down_once_to_what_the_load_needs() -> None:
    memory = Memory(capacity=100, measured_at=Scenario().at)
    scenario = Scenario(members=4, memory=memory).passes(1200, arrive=20)

    assert scenario.changes() == [("down", 1)]


def test_spare_capacity_is_kept_when_scaling_down() -> None:
    memory = Memory(capacity=100, measured_at=Scenario().at)
    scenario = Scenario(members=4, memory=memory).passes(1200, arrive=48)

    assert scenario.changes() == []  # two members would run at 96 of 100: too tight


def test_scaling_down_waits_for_the_cool_down() -> None:
    memory = Memory(capacity=100, measured_at=Scenario().at, requested=4, scaled_up_at=Scenario().at)
    scenario = Scenario(members=4, memory=memory).passes(600, arrive=20)
    assert scenario.changes() == []

    scenario.passes(10, arrive=20)

    assert scenario.changes() == [("down", 1)]


def test_with_unknown_capacity_scaling_down_goes_to_the_next_useful_count() -> None:
    scenario = Scenario(partitions=12, members=12).passes(610, arrive=20)
    assert scenario.changes() == [("down", 6)]

    scenario.members = 6
    scenario.passes(700, arrive=20)

    assert scenario.changes() == [("down", 6), ("down", 4)]


def test_between_the_two_thresholds_nothing_changes() -> None:
    memory = Memory(capacity=100, measured_at=Scenario().at)
    scenario = Scenario(members=4, memory=memory, end=[1400] * 4, committed=[1000] * 4).passes(
        1000, arrive=20
    )

    assert scenario.changes() == []
    assert not rule(scenario.last, "G8")


def test_replicas_never_pass_the_partitions() -> None:
    scenario = warmed_up(partitions=5, members=1).passes(300, arrive=4000, consume=20)

    assert {replicas for _, replicas in scenario.changes()} == {5}


def test_seconds_of_lag_can_be_the_threshold() -> None:
    policy = replace(POLICY, lag_threshold=0, lag_seconds_threshold=20)
    scenario = warmed_up(policy).passes(270, arrive=60, consume=50)

    assert scenario.changes() == [("up", 4)]


def test_a_small_topic_and_a_large_one_have_the_same_threshold_in_seconds() -> None:
    policy = replace(POLICY, lag_threshold=0, lag_seconds_threshold=20)
    small = warmed_up(policy).passes(400, arrive=1.2, consume=1.0)
    large = warmed_up(policy).passes(400, arrive=1200, consume=1000)

    first = [next(v.at for v in each.verdicts if v and v.change is Change.UP) for each in (small, large)]
    assert abs(first[0] - first[1]) <= 20


def test_the_first_verdict_holds_what_is_there() -> None:
    scenario = Scenario(members=3)
    verdict = scenario.observe()

    assert verdict is not None
    assert (verdict.change, verdict.replicas, verdict.value) == (Change.HOLD, 3, 3.0)
    assert verdict.rule_results[-2].rule == "G2 warmed up"


@pytest.mark.parametrize("state", [GroupState.EMPTY, GroupState.REBALANCING, GroupState.DEAD])
def test_there_is_no_verdict_while_no_replica_count_is_known(state: GroupState) -> None:
    assert Scenario(members=0, state=state).observe() is None


def test_a_workload_at_zero_becomes_active_with_the_first_record() -> None:
    policy = replace(POLICY, replicas_min=0)
    scenario = Scenario(policy, members=0, state=GroupState.EMPTY).passes(100)
    before = scenario.last

    scenario.end[0] += 1
    scenario.passes(10)

    assert (before.active, scenario.last.active) == (False, True)
    assert scenario.last.replicas == 1


@pytest.mark.parametrize("state", [GroupState.EMPTY, GroupState.DEAD])
@pytest.mark.parametrize("reset_policy", ["latest", "earliest"])
def test_records_that_wait_for_a_group_without_commits_activate_it_until_they_are_read(
    state: GroupState, reset_policy: str
) -> None:
    """Offsets expired, or it never committed: at zero replicas no member would ever commit."""
    policy = replace(POLICY, replicas_min=0, reset_policy=reset_policy)
    scenario = Scenario(policy, members=0, state=state, committed=[NO_COMMIT] * 4).passes(400)
    expired = scenario.last

    scenario.members, scenario.state, scenario.generation = 1, GroupState.STABLE, 2
    scenario.committed = list(scenario.end)
    scenario.passes(120, arrive=10).passes(310)

    assert (expired.active, expired.replicas) == (True, 1)
    assert not scenario.last.active


def test_a_partition_without_a_commit_and_without_records_does_not_keep_a_workload_active() -> None:
    policy = replace(POLICY, replicas_min=0)
    scenario = Scenario(policy, end=[9, 9, 9, 9], start=[9, 0, 0, 0], committed=[NO_COMMIT, 9, 9, 9])

    assert not scenario.passes(400).last.active


def test_a_workload_becomes_inactive_after_the_idle_time() -> None:
    policy = replace(POLICY, replicas_min=0)
    scenario = Scenario(policy).passes(60, arrive=10).passes(290)
    assert scenario.last.active

    scenario.passes(20)

    assert not scenario.last.active


def test_a_stuck_partition_keeps_a_workload_active() -> None:
    policy = replace(POLICY, replicas_min=0)
    scenario = Scenario(policy).passes(120, arrive=[1, 1, 1, 1], consume=[1, 0, 1, 1]).passes(900)

    assert scenario.last.active


def test_rewound_offsets_restart_the_history_of_that_partition_only() -> None:
    scenario = warmed_up()
    scenario.committed[0] -= 3000
    scenario.passes(10, **CALM)
    states = {str(key): state for key, state in scenario.last.states.items()}

    assert states["orders/0"] is PartitionState.UNKNOWN
    assert states["orders/1"] is PartitionState.KEEPING_UP


def test_a_clock_set_back_does_not_block_the_scaler() -> None:
    memory = Memory(requested=4, scaled_up_at=Scenario().at + 10**6, capacity=100, measured_at=Scenario().at)
    scenario = Scenario(members=4, memory=memory).passes(1300, arrive=20)

    assert scenario.changes() == [("down", 1)]


def test_the_same_samples_give_the_same_verdicts() -> None:
    """Two instances, one of which starts from the other's memory and the stored samples."""
    original = warmed_up().passes(200, arrive=60, consume=50)
    other = warmed_up()
    again = Scenario(memory=other.memory, end=other.end, committed=other.committed, at=other.at)
    again.window = other.window
    again.passes(200, arrive=60, consume=50)

    assert again.verdicts == original.verdicts[-len(again.verdicts) :]


def test_a_share_group_may_have_more_members_than_partitions() -> None:
    policy = replace(POLICY, group_type="share", topics=("orders",), replicas_max=50)
    scenario = Scenario(policy, partitions=2, members=2, owned=False).passes(120, arrive=40)
    scenario.passes(300, arrive=150, consume=100)

    assert scenario.changes()[0] == ("up", 4)


def test_a_share_group_of_unknown_capacity_scales_down_by_a_quarter() -> None:
    policy = replace(POLICY, group_type="share", topics=("orders",), replicas_max=50)
    scenario = Scenario(policy, partitions=2, members=8, owned=False).passes(620, arrive=100)

    assert scenario.changes() == [("down", 6)]
