"""Plans are differences that break no hard goal, help the goal they name and explain what is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.balance.actions import Action, ActionKind, Plan, Purpose, Request, executed
from penstock.balance.goals import GOALS, TOPIC_SPREAD, TopicSpread, bounds_of, excess, imbalance, violations
from penstock.balance.model import ABSENT, RESOURCES, Brokers, ClusterModel, Costs, Resource
from penstock.balance.planner import plan

FACTOR = 3
GOALS_WITHOUT_FLOOR = tuple(replace(goal, floor=0.0) for goal in GOALS)


def cluster(
    seed: int, *, brokers: int = 9, partitions: int = 300, zones: int = 3, cells: int = 1
) -> ClusterModel:
    """Skewed: some brokers were given several times as many replicas as others, sizes follow a power law."""
    dice = np.random.default_rng(seed)
    size = np.minimum(dice.pareto(1.5, partitions) + 0.1, 8.0)
    rate = np.minimum(dice.pareto(1.5, partitions) + 0.1, 8.0)
    leader, follower = np.zeros((partitions, RESOURCES)), np.zeros((partitions, RESOURCES))
    leader[:, Resource.DISK] = follower[:, Resource.DISK] = size * 1e9
    leader[:, Resource.INGRESS] = follower[:, Resource.INGRESS] = rate * 1e6
    leader[:, Resource.EGRESS] = rate * 4e6
    leader[:, Resource.LOAD], follower[:, Resource.LOAD] = rate * 1e-3, rate * 2e-4
    leader[:, Resource.LEADER_INGRESS] = rate * 1e6
    leader[:, Resource.LEADERS] = leader[:, Resource.REPLICAS] = follower[:, Resource.REPLICAS] = 1
    zone = np.arange(brokers, dtype=np.int32) % zones
    cell = (np.arange(brokers, dtype=np.int32) // (brokers // cells)).astype(np.int32)
    cell_of = dice.integers(0, cells, partitions).astype(np.int32)
    weight = np.minimum(dice.pareto(1.2, brokers) + 1, 5)
    replicas = np.full((partitions, FACTOR), ABSENT, np.int32)
    for partition in range(partitions):
        for position, where in enumerate(dice.permutation(zones)[:FACTOR]):
            members = np.flatnonzero((zone == where) & (cell == cell_of[partition]))
            replicas[partition, position] = dice.choice(members, p=weight[members] / weight[members].sum())
    flags = [np.full(brokers, value) for value in (True, True, True, False, False)]
    table = Brokers(
        np.arange(brokers, dtype=np.int32), zone, cell, np.full((brokers, RESOURCES), np.inf),
        np.zeros((brokers, RESOURCES)), *flags,
    )  # fmt: skip
    numbers = np.arange(partitions, dtype=np.int32)
    return ClusterModel(
        table, Costs(leader, follower), numbers // 10, numbers % 7, cell_of, replicas,
        np.zeros(partitions, np.int32), np.ones((partitions, FACTOR), np.bool_),
        np.zeros(partitions, np.bool_),
    )  # fmt: skip


def with_brokers(model: ClusterModel, **flags: list[int]) -> ClusterModel:
    """The same cluster with these brokers leaving, joining, not alive…"""
    changed = {}
    for name, numbers in flags.items():
        column = getattr(model.brokers, name).copy()
        column[numbers] = not column[0] if name in {"alive", "receives", "leads"} else True
        changed[name] = column
    return replace(model, brokers=replace(model.brokers, **changed))


def made(model: ClusterModel, request: Request | None = None, **more: object) -> Plan:
    return plan(model, request or Request(), goals=GOALS_WITHOUT_FLOOR, **more)  # type: ignore[arg-type]  # options


def check_hard_goals(model: ClusterModel, done: Plan) -> None:
    """No partition twice; distinct brokers of the right cell that take replicas; no fewer zones."""
    assert max(Counter(action.partition for action in done.actions).values(), default=1) == 1
    zones, cells = model.brokers.zones, model.brokers.cells
    for action in done.actions:
        before = tuple(int(broker) for broker in model.replicas[action.partition] if broker != ABSENT)
        assert action.before == before
        assert len(set(action.after)) == len(action.after) == len(before)
        assert len({zones[broker] for broker in action.after}) >= len({zones[broker] for broker in before})
        assert all(cells[broker] == model.cells[action.partition] for broker in action.after)
        new = set(action.after) - set(before)
        assert all(model.brokers.receives[broker] and not model.brokers.leaving[broker] for broker in new)
        if action.kind is ActionKind.LEADERSHIP:
            assert not new
            assert action.bytes == 0
            assert model.brokers.leads[action.after[0]]
    np.testing.assert_allclose(executed(model, done.actions).totals, done.totals, rtol=1e-6, atol=1e-3)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), cells=st.sampled_from([1, 2]))
def test_a_plan_breaks_no_hard_goal_and_worsens_no_soft_one(seed: int, cells: int) -> None:
    model = cluster(seed, brokers=12, partitions=120, cells=cells)

    done = made(model)

    check_hard_goals(model, done)
    bounds = bounds_of(model, GOALS_WITHOUT_FLOOR)
    for goal in GOALS_WITHOUT_FLOOR:
        before = excess(model.totals, bounds, goal.resource)
        assert excess(done.totals, bounds, goal.resource) <= before + 1e-6 * max(before, 1.0), goal.name
    assert all(action.carried_after < action.carried_before for action in done.actions)


def steps_of(actions: tuple[Action, ...]) -> list[tuple[Action, ...]]:
    """One action each, but the two of a swap together."""
    steps: list[tuple[Action, ...]] = []
    rest = list(actions)
    while rest:
        count = 2 if rest[0].kind is ActionKind.SWAP else 1
        steps.append(tuple(rest[:count]))
        del rest[:count]
    return steps


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), cells=st.sampled_from([1, 2]))
def test_every_step_reduces_the_excess_of_its_goal_and_breaks_no_hard_one(seed: int, cells: int) -> None:
    model = cluster(seed, brokers=12, partitions=120, cells=cells)
    capacity = model.brokers.capacity.copy()
    capacity[:, Resource.DISK] = model.totals[:, Resource.DISK].max() * 1.3  # none is too full before
    model = replace(model, brokers=replace(model.brokers, capacity=capacity))
    bounds = bounds_of(model, GOALS_WITHOUT_FLOOR)
    resources = {goal.name: goal.resource for goal in GOALS_WITHOUT_FLOOR}

    done = made(model)

    combined = any(action.leadership is not None for action in done.actions)
    now = model
    for step in steps_of(done.actions):
        # The leadership of a moved partition changes later than its follower moves.
        alone = [
            replace(
                each,
                leadership=None,
                after=tuple(each.destination if one == each.source else one for one in each.before),
            )
            if each.leadership is not None
            else each
            for each in step
        ]
        then = executed(now, alone)
        assert (then.totals <= np.maximum(bounds.hard, now.totals) * (1 + 1e-9)).all()
        goal = step[0].goal
        if goal == TOPIC_SPREAD:
            assert TopicSpread(then).excess() < TopicSpread(now).excess()
        elif not combined or resources[goal] in (Resource.DISK, Resource.INGRESS, Resource.REPLICAS):
            before = excess(now.totals, bounds, resources[goal])
            assert excess(then.totals, bounds, resources[goal]) < before, step
        now = then
    for action in done.actions:
        reason = action.leadership
        if reason is not None:
            assert reason.after < reason.before
            assert reason.before > bounds.target[reason.broker, resources[reason.goal]]
        if action.goal in resources and action.kind is not ActionKind.SWAP:
            assert action.carried_before > bounds.target[action.source, resources[action.goal]]


def test_the_spread_of_topics_gets_better_and_other_goals_do_not_worsen_it() -> None:
    model = cluster(11, partitions=600)
    crowded = model.replicas.copy()
    crowded[:40, 0] = model.brokers.ids[model.brokers.zones[crowded[:40, 0]]]  # on the first of each zone
    model = replace(model, replicas=crowded)
    before = TopicSpread(model).excess()

    done = made(model)

    check_hard_goals(model, done)
    assert TopicSpread(executed(model, done.actions)).excess() <= before
    assert TOPIC_SPREAD in done.goals_run


def test_a_partition_whose_follower_moves_may_be_led_elsewhere_in_the_same_action() -> None:
    plans = [(model, made(model)) for model in (cluster(seed, partitions=1000) for seed in range(3))]

    combined = [(model, action) for model, done in plans for action in done.actions if action.leadership]

    assert combined
    for model, action in combined:
        leader = int(model.replicas[action.partition, model.leaders[action.partition]])
        assert action.source != leader
        assert action.after[0] != leader
        assert action.after[0] in action.before  # it is in sync already


def test_two_partitions_that_no_broker_has_room_for_are_led_by_different_ones() -> None:
    model = cluster(2, brokers=12, partitions=600)
    heavy = model.costs.leader[:, Resource.EGRESS].sum() / 12 * 1.5  # more than a broker's share
    leader, replicas = model.costs.leader.copy(), model.replicas.copy()
    leader[:2, Resource.EGRESS] = heavy
    replicas[:2] = [[0, 1, 2], [0, 4, 5]]
    model = replace(model, costs=Costs(leader, model.costs.follower), replicas=replicas)

    done = made(model)

    after = executed(model, done.actions)
    assert len({int(after.replicas[one, after.leaders[one]]) for one in (0, 1)}) == 2
    assert after.totals[:, Resource.EGRESS].max() < 2 * heavy


def test_violations_of_triggering_goals_start_a_round() -> None:
    model = cluster(1, partitions=3000)

    violated = violations(model, GOALS_WITHOUT_FLOOR)

    assert {each.goal for each in violated} == {"disk", "ingress", "egress", "load"}
    assert all(each.carried > each.tolerated for each in violated)
    assert {each.goal for each in violations(model, GOALS_WITHOUT_FLOOR, metrics=False)} == {"disk"}
    assert violations(executed(model, made(model).actions), GOALS_WITHOUT_FLOOR) == ()
    assert violations(model, [replace(goal, floor=1e18) for goal in GOALS]) == ()


def test_a_shortfall_names_the_brokers_that_would_cover_it() -> None:
    model = with_brokers(cluster(12), leaving=[0, 3, 6])  # all of one zone
    capacity = model.brokers.capacity.copy()
    capacity[:, Resource.DISK] = model.totals[:, Resource.DISK].mean() * 1.2
    small = replace(model, brokers=replace(model.brokers, capacity=capacity))

    zones = made(model, Request(Purpose.EMPTY)).shortfalls
    disk = {each.what: each for each in made(small, Request(Purpose.EMPTY)).shortfalls}["disk"]

    assert [(each.what, each.brokers) for each in zones] == [("zones", 1)]
    room = 0.85 * capacity[0, Resource.DISK]
    assert disk.missing == pytest.approx(model.totals[:, Resource.DISK].sum() - 6 * room)
    assert (disk.brokers - 1) * room < disk.missing <= disk.brokers * room
    assert made(cluster(12)).shortfalls == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_skewed_cluster_becomes_even(seed: int) -> None:
    model = cluster(seed, brokers=9, partitions=3000)

    done = made(model)

    check_hard_goals(model, done)
    for goal in GOALS_WITHOUT_FLOOR:
        assert imbalance(model, model.totals, goal.resource) > 1.25
        assert imbalance(model, done.totals, goal.resource) <= 1.10
    assert done == made(model)  # nothing is random


def test_after_a_plan_no_goal_is_violated() -> None:
    model = cluster(1, partitions=3000)
    bounds = bounds_of(model, GOALS_WITHOUT_FLOOR)
    assert all(bounds.violated(model.totals, goal.resource).any() for goal in GOALS_WITHOUT_FLOOR)

    totals = made(model).totals

    assert not any(bounds.violated(totals, goal.resource).any() for goal in GOALS_WITHOUT_FLOOR)


def test_leaving_and_dead_brokers_are_emptied_and_nothing_else_moves() -> None:
    model = with_brokers(cluster(2), leaving=[0, 4], alive=[4])

    done = made(model, Request(Purpose.EMPTY))

    check_hard_goals(model, done)
    after = executed(model, done.actions).replicas
    assert not np.isin(after, [0, 4]).any()
    untouched = ~np.isin(model.replicas, [0, 4]).any(axis=1)
    assert (after[untouched] == model.replicas[untouched]).all()
    assert not done.remainders


def test_what_cannot_leave_is_explained() -> None:
    model = cluster(3, brokers=3)  # one broker in each zone: there is no other for its replicas
    model = with_brokers(model, leaving=[1])

    done = made(model, Request(Purpose.EMPTY))

    assert done.actions == ()
    (left,) = done.remainders
    assert (left.broker, left.goal) == (1, "empty")
    assert left.refused == {"zones-and-brokers": len(model.on_broker(1))}


def test_only_joining_brokers_receive_and_no_more_than_their_share() -> None:
    model = cluster(4, brokers=12, partitions=2000)
    keep = model.replicas.copy()
    keep[np.isin(keep, [9, 10, 11])] -= 9  # they are empty: same zones, other brokers
    model = with_brokers(replace(model, replicas=keep), joining=[9, 10, 11])

    done = made(model, Request(Purpose.FILL))

    check_hard_goals(model, done)
    assert {action.destination for action in done.actions} <= {9, 10, 11}
    fair = done.totals[:, Resource.LOAD].mean()
    assert (done.totals[9:, Resource.LOAD] >= 0.9 * fair).all()
    assert (done.totals[9:, Resource.LOAD] <= 1.01 * fair).all()
    moved = np.cumsum([action.bytes for action in done.actions])
    load = np.cumsum([action.carried_before - action.carried_after for action in done.actions])
    half = int(np.searchsorted(load, load[-1] / 2))
    assert moved[half] <= 0.4 * moved[-1]  # the densest first


def with_empty_brokers(seed: int, **more: int) -> ClusterModel:
    """The last three of twelve brokers are joining and hold nothing."""
    model = cluster(seed, brokers=12, partitions=more.get("partitions", 2000))
    keep = model.replicas.copy()
    keep[np.isin(keep, [9, 10, 11])] -= 9
    return with_brokers(replace(model, replicas=keep), joining=[9, 10, 11])


def test_joining_brokers_get_the_replicas_that_carry_most_first() -> None:
    model = with_empty_brokers(5)

    done = made(model, Request(Purpose.FILL))

    size = model.costs.leader[:, Resource.DISK].mean()
    density = [(each.carried_before - each.carried_after) / (each.bytes + size + 1) for each in done.actions]
    tenth = len(density) // 10
    assert tenth > 5
    assert sum(density[:tenth]) > 3 * sum(density[-tenth:])


def test_a_small_cluster_without_metrics_is_filled_by_bytes_and_then_by_count() -> None:
    """No floor applies: a new broker that gets nothing would be of no use."""
    model = with_empty_brokers(6, partitions=60)
    costs = model.costs
    for table in (costs.leader, costs.follower):
        table[:, : Resource.LEADERS] = 0.0
        table[:20, Resource.DISK] = 1_000.0
    base = model.brokers.base.copy()
    base[:, Resource.DISK] = np.linspace(1e9, 2e9, 12)  # other things on the same volumes
    model = replace(model, brokers=replace(model.brokers, base=base))

    done = plan(model, Request(Purpose.FILL), metrics=False)

    check_hard_goals(model, done)
    counts = done.totals[:, Resource.REPLICAS]
    assert counts.sum() == 180
    assert (counts[9:] >= 0.6 * 15).all()
    assert (counts[9:] <= 15).all()


def test_one_broker_is_relieved_and_no_other() -> None:
    model = cluster(5, partitions=1500)
    heaviest = int(np.argmax(model.totals[:, Resource.DISK]))

    done = made(model, Request(Purpose.RELIEVE, broker=heaviest))

    check_hard_goals(model, done)
    assert {action.source for action in done.actions if action.kind is not ActionKind.SWAP} == {heaviest}
    bounds = bounds_of(model, GOALS_WITHOUT_FLOOR)
    assert done.totals[heaviest, Resource.DISK] <= bounds.target[heaviest, Resource.DISK] * 1.001


def test_a_demoted_broker_leads_nothing() -> None:
    model = with_brokers(cluster(6), leads=[2])

    done = made(model, Request(Purpose.DEMOTE))

    assert {action.kind for action in done.actions} == {ActionKind.LEADERSHIP}
    assert {action.source for action in done.actions} == {2}
    after = executed(model, done.actions)
    leaders = after.replicas[np.arange(len(after.leaders)), after.leaders]
    assert not (leaders == 2).any()


def test_excluded_topics_tenants_and_pinned_partitions_stay() -> None:
    model = cluster(7)
    pinned = np.zeros(300, np.bool_)
    pinned[:50] = True
    model = replace(model, pinned=pinned)

    done = made(model, Request(topics_excluded=frozenset({9}), tenants_excluded=frozenset({3})))

    assert done.actions
    for action in done.actions:
        assert not pinned[action.partition]
        assert model.topics[action.partition] != 9
        assert model.tenants[action.partition] != 3


def test_limits_and_the_deadline_end_a_plan_early() -> None:
    model, looks = cluster(8, partitions=2000), count()

    assert len(made(model, Request(actions_max=5)).actions) == 5
    few = made(model, Request(bytes_max=20e9))
    assert few.partial
    assert 0 < few.bytes <= 20e9
    late = made(model, expired=lambda: next(looks) > 2)
    assert late.partial
    check_hard_goals(model, late)
    assert 0 < len(late.actions) < len(made(model).actions)


def test_without_metrics_only_goals_of_the_admin_api_run() -> None:
    done = made(cluster(9), metrics=False)

    assert done.goals_run == ("disk", "leaders", "replicas", "topic-spread")
    assert done.goals_skipped == ("ingress", "egress", "load", "leader-ingress")
    assert {action.goal for action in done.actions} <= set(done.goals_run)
