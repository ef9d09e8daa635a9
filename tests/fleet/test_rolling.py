"""Decisions of a roll: order, safety, pauses; and a simulated cluster that is rolled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.fleet.rolls.roll_batches import Partition, at_risk, harm_of, zone_cap
from penstock.fleet.rolls.rolling import (
    Bounds,
    Desired,
    Done,
    Elect,
    Member,
    NodeSeen,
    Observation,
    Pause,
    QuorumSeen,
    Start,
    Step,
    Stop,
    Wait,
    next_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

OLD = NodeSeen(alive=True, ready=True)
NEW = NodeSeen(alive=True, ready=True, current=True, ordered=True)
DEAD = NodeSeen(alive=False, ready=False)
ORDERED = replace(OLD, ordered=True)
ZONES = "abc"
BROKERS = tuple(Member(n, ZONES[(n - 1) % 3]) for n in range(1, 7))
CONTROLLERS = tuple(Member(1000 + n, ZONES[n], broker=False, controller=True) for n in range(3))
ALL = BROKERS + CONTROLLERS
BOUNDS = Bounds()
QUORUM = QuorumSeen(1001, frozenset((1000, 1001, 1002)), frozenset((1000, 1001, 1002)))


def partition(*replicas: int, isr: Iterable[int] | None = None, leader: int | None = None) -> Partition:
    in_sync = frozenset(replicas if isr is None else isr)
    return Partition(replicas, in_sync, replicas[0] if leader is None else leader, min_isr=2)


HEALTHY = {
    ("orders", 0): partition(1, 2, 3),
    ("orders", 1): partition(5, 6, 4),
    ("orders", 2): partition(3, 4, 5),
}


def step(
    nodes: dict[int, NodeSeen] | None = None,
    *,
    members: tuple[Member, ...] = ALL,
    scope: Iterable[int] | None = None,
    bounds: Bounds = BOUNDS,
    allow_downtime: bool = False,
    **observed: Any,
) -> Step:
    seen = {member.id: OLD for member in members} | (nodes or {})
    chosen = frozenset(m.id for m in members) if scope is None else frozenset(scope)
    values: dict[str, Any] = {"partitions": HEALTHY, "quorum": QUORUM} | observed
    observation = Observation(seen, **values)
    return next_step(Desired(members, chosen, allow_downtime), observation, bounds)


def done(*nodes: int) -> dict[int, NodeSeen]:
    return dict.fromkeys(nodes, NEW)


# Order


def test_controllers_come_first_and_the_active_one_last() -> None:
    assert step() == Stop((1000,))
    assert step(done(1000)) == Stop((1002,))
    assert step(done(1000, 1002)) == Stop((1001,))


def test_brokers_follow_zone_by_zone() -> None:
    controllers = (1000, 1001, 1002)
    assert step(done(*controllers)) == Stop((1,))
    assert step(done(*controllers, 1)) == Stop((4,))
    assert step(done(*controllers, 1, 4)) == Stop((2,))
    assert step(done(*(m.id for m in ALL))) == Done()


def test_a_zone_that_has_begun_is_finished_first() -> None:
    assert step(done(1000, 1001, 1002, 3)) == Stop((6,))


def test_only_nodes_in_scope_are_restarted() -> None:
    assert step(scope=[2]) == Stop((2,))
    assert step(done(2), scope=[2]) == Done()


def test_combined_nodes_stop_one_by_one_with_the_active_controller_last() -> None:
    members = tuple(Member(n, ZONES[n - 1], controller=True) for n in (1, 2, 3))
    quorum = QuorumSeen(1, frozenset((1, 2, 3)), frozenset((1, 2, 3)))
    partitions = {("orders", 0): partition(1, 2, 3)}
    assert step(members=members, quorum=quorum, partitions=partitions) == Stop((2,))
    assert step(done(2, 3), members=members, quorum=quorum, partitions=partitions) == Stop((1,))


def test_a_node_that_is_down_is_started_before_any_other_stops() -> None:
    assert step({5: DEAD}) == Start((5,))


def test_a_live_node_that_is_not_ready_is_never_stopped() -> None:
    stepped = step({5: NodeSeen(alive=True, ready=False)})
    assert isinstance(stepped, Wait)
    assert "recovering" in stepped.reason


# Safety


def test_no_broker_stops_while_one_is_down_in_another_zone() -> None:
    starting = replace(NEW, ready=False)
    assert isinstance(step(done(1000, 1001, 1002) | {1: starting}), Wait)


def test_a_broker_does_not_stop_if_a_partition_would_fall_below_its_minimum() -> None:
    partitions = HEALTHY | {("orders", 3): partition(1, 2, 3, isr=(1, 2))}
    stepped = step(scope=[1], partitions=partitions)
    assert stepped == Wait("broker 1 cannot stop: orders-3 would have 1 in-sync replicas, its minimum is 2")


def test_a_replica_out_of_sync_does_not_stop_either_if_its_partition_is_below_the_minimum() -> None:
    partitions = {("orders", 3): partition(2, 1, 3, isr=(2,))}
    assert isinstance(step(scope=[1], partitions=partitions), Wait)


def test_the_isr_counts_only_brokers_that_are_up() -> None:
    """The controller fences a dead broker only after its session."""
    partitions = {("orders", 0): partition(1, 2, 4)}
    down = step({4: DEAD}, scope=[1, 4], partitions=partitions)
    assert down == Start((4,))
    ready = frozenset((1, 2))
    assert harm_of(frozenset((1,)), partitions, ready) == {
        ("orders", 0): "would have 1 in-sync replicas, its minimum is 2"
    }


def test_replicas_that_a_reassignment_removes_do_not_count() -> None:
    moving = replace(partition(4, 1, 2, 3, isr=(1, 2, 3)), adding=frozenset((4,)), removing=frozenset((3,)))
    assert isinstance(step(scope=[1], partitions={("orders", 0): moving}), Wait)


def test_partitions_that_cannot_be_kept_available_are_listed_and_do_not_block() -> None:
    single = {("logs", 0): Partition((1,), frozenset((1,)), 1, min_isr=1)}
    tight = {("tight", 0): Partition((1, 2), frozenset((1, 2)), 1, min_isr=2)}
    partitions = HEALTHY | single | tight
    assert step(scope=[1], partitions=partitions) == Stop((1,))
    assert at_risk(partitions) == (("logs", 0), ("tight", 0))
    assert at_risk(partitions, [3]) == ()
    assert step(done(1), scope=[1], partitions=partitions) == Done((("logs", 0), ("tight", 0)))


def test_a_controller_stops_only_if_a_majority_without_it_is_caught_up() -> None:
    lagging = replace(QUORUM, caught_up=frozenset((1000, 1001)))
    assert isinstance(step(scope=[1000], quorum=lagging), Wait)
    assert step(scope=[1002], quorum=lagging) == Stop((1002,))


def test_the_only_controller_restarts_only_by_flag() -> None:
    alone = QuorumSeen(1000, frozenset((1000,)), frozenset((1000,)))
    assert isinstance(step(scope=[1000], quorum=alone), Wait)
    assert step(scope=[1000], quorum=alone, allow_downtime=True) == Stop((1000,))


def test_no_controller_stops_without_a_described_quorum() -> None:
    assert isinstance(step(quorum=None), Wait)


def test_brokers_that_health_has_taken_are_left_to_it() -> None:
    assert step(scope=[1, 4], taken=frozenset((1,))) == Stop((4,))
    assert isinstance(step(done(4), scope=[1, 4], taken=frozenset((1,))), Wait)


# After a restart


def test_a_broker_that_health_holds_stopped_does_not_keep_its_zone_from_being_rolled() -> None:
    assert step({1: DEAD}, scope=[1, 4], taken=frozenset((1,))) == Stop((4,))


def test_an_ordered_restart_is_awaited() -> None:
    assert step({1000: ORDERED}) == Wait("node 1000 restarts")


def test_the_next_batch_waits_until_every_replica_is_in_sync() -> None:
    behind = HEALTHY | {("orders", 0): partition(1, 2, 3, isr=(2, 3), leader=2)}
    assert step(done(1), scope=[1, 4], partitions=behind) == Wait(
        "1 partition not in sync yet, orders-0 among them"
    )


def test_the_next_batch_waits_until_probes_of_the_restarted_broker_show_no_fault() -> None:
    sick = {1: "slow: 20 times as slow as others"}
    waits = step(done(1), scope=[1, 4], sick=sick)
    assert waits == Wait("broker 1 is restarted: slow: 20 times as slow as others")
    assert step(done(1), scope=[1, 4], sick=sick, taken=frozenset((1,))) == Stop((4,))  # health repairs it
    assert step(done(1), scope=[1, 4], sick={2: "slow"}) == Stop((4,))  # not because of the roll

    late = {1: replace(NEW, ordered_seconds=BOUNDS.start_seconds_max + 1)}
    paused = step(late, scope=[1, 4], sick=sick)
    assert paused == Pause("broker 1 is sick since its restart", (sick[1],))


def test_leadership_returns_before_the_next_batch() -> None:
    led = HEALTHY | {("orders", 0): partition(1, 2, 3, leader=2)}
    assert step(done(1), scope=[1, 4], partitions=led) == Elect((1,), (("orders", 0),))


def test_leadership_does_not_return_to_a_broker_that_others_have_demoted() -> None:
    led = HEALTHY | {("orders", 0): partition(1, 2, 3, leader=2)}
    assert step(done(1), scope=[1, 4], partitions=led, demoted=frozenset((1,))) == Stop((4,))


# Pauses


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        ({"burning": "the error budget of orders burns"}, "the error budget of orders burns"),
        ({"slow": "p99 of produce is 9 times its baseline"}, "p99 of produce is 9 times its baseline"),
        ({"now": 11.0, "bounds": Bounds(deadline=10.0)}, "the deadline has passed"),
        ({"nodes": {2: DEAD}, "scope": [1, 4]}, "broker 2 is down, and not because of this roll"),
        ({"nodes": {1: replace(NEW, wrong="it runs 4.2.1")}}, "node 1 came back wrong"),
        ({"nodes": {1: replace(DEAD, ordered=True, ordered_seconds=301)}}, "node 1 is not back after 300 s"),
    ],
)
def test_the_roll_pauses(observed: dict[str, Any], reason: str) -> None:
    stepped = step(**observed)
    assert isinstance(stepped, Pause)
    assert stepped.reason == reason
    assert stepped.evidence


def test_a_finished_roll_does_not_pause() -> None:
    assert step(done(1), scope=[1], burning="burns", bounds=Bounds(deadline=-1.0)) == Done()


# The cap


def cap(zone_size: int, **changes: float) -> int:
    values: dict[str, Any] = {
        "brokers": 3 * zone_size,
        "left": 3 * zone_size,
        "load": 0.0,
        "batch_seconds": 30.0,
    }
    values |= {"seconds_left": 8 * 3600.0, "load_max": 0.8} | changes
    return zone_cap(zone_size=zone_size, **values)


def test_one_broker_at_a_time_and_a_tenth_of_a_zone_from_ten_on() -> None:
    assert [cap(size) for size in (1, 9, 10, 25, 100)] == [1, 1, 1, 2, 10]


def test_more_at_once_if_the_roll_would_take_too_long() -> None:
    assert cap(100, seconds_left=900.0) == 10
    assert cap(100, seconds_left=450.0) == 20


def test_fewer_if_the_remaining_brokers_could_not_carry_the_load() -> None:
    assert cap(100, load=234.0) == 7
    assert cap(100, load=300.0) == 1


# A cluster that is rolled


@dataclass
class Cluster:
    """A cluster with failures: the watcher checks what must never happen."""

    random: Random
    members: tuple[Member, ...]
    partitions: dict[tuple[str, int], Partition]
    seen: dict[int, NodeSeen] = field(default_factory=dict)
    leader: int = 0
    lagging: set[int] = field(default_factory=set)
    crashed: set[int] = field(default_factory=set)
    planned: set[int] = field(default_factory=set)  # down because of the roll

    def observation(self) -> Observation:
        voters = frozenset(m.id for m in self.members if m.controller)
        up = {v for v in voters if self.seen[v].ready}
        if self.leader not in up:
            self.leader = min(up)
        quorum = QuorumSeen(self.leader, voters, frozenset(up - self.lagging) | {self.leader})
        return Observation(dict(self.seen), dict(self.partitions), quorum)

    def stop(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.seen[node] = NodeSeen(alive=False, ready=False, ordered=True)
            self.planned.add(node)
            self._leave(node)

    def _leave(self, node: int) -> None:
        for key, p in self.partitions.items():
            if node in p.isr:
                isr = p.isr - {node} or p.isr
                leader = min(isr - {node}, default=None) if p.leader == node else p.leader
                self.partitions[key] = replace(p, isr=isr, leader=leader)

    def progress(self) -> None:
        for node, seen in list(self.seen.items()):
            if self.random.random() < 0.5:
                continue
            if seen.ordered and not seen.alive:
                self.seen[node] = replace(NEW, ready=False)
            elif not seen.ready and node not in self.crashed:
                self.seen[node] = replace(seen, ready=True)
                self.planned.discard(node)
            elif seen.ready:
                self._join(node)
        self.lagging = {m.id for m in self.members if m.controller and self.random.random() < 0.2}

    def _join(self, node: int) -> None:
        for key, p in self.partitions.items():
            if node in p.replicas and self.random.random() < 0.7:
                leader = node if p.leader is None else p.leader
                self.partitions[key] = replace(p, isr=p.isr | {node}, leader=leader)

    def elect(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            p = self.partitions[key]
            assert p.replicas[0] in p.isr
            self.partitions[key] = replace(p, leader=p.replicas[0])

    def watch(self) -> None:
        zone_of = {m.id: m.zone for m in self.members}
        brokers = {m.id for m in self.members if m.broker}
        zones = {zone_of[n] for n in self.planned & brokers}
        assert len(zones) <= 1, zones
        for key, p in self.partitions.items():
            up = {b for b in p.isr if self.seen[b].ready}
            unavailable = not p.is_at_risk and len(up) < p.min_isr
            assert not (unavailable and self.planned & set(p.replicas)), (key, p)
        voters = {m.id for m in self.members if m.controller}
        assert len([v for v in voters if self.seen[v].ready]) > len(voters) // 2


def cluster_of(random: Random, brokers: int, zones: int, controllers: int) -> Cluster:
    members = tuple(Member(n, f"z{n % zones}") for n in range(brokers))
    members += tuple(
        Member(1000 + n, f"z{n % zones}", broker=False, controller=True) for n in range(controllers)
    )
    partitions = {}
    for number in range(random.randint(1, 30)):
        factor = min(random.choice((1, 2, 3, 3, 3)), brokers)
        replicas = tuple(random.sample(range(brokers), factor))
        least = random.choice((1, max(1, factor - 1), factor))
        partitions["t", number] = Partition(replicas, frozenset(replicas), replicas[0], least)
    return Cluster(random, members, partitions, {m.id: OLD for m in members}, leader=1000)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    brokers=st.integers(1, 12),
    zones=st.integers(1, 3),
    controllers=st.sampled_from((3, 5)),
)
def test_a_roll_finishes_and_never_takes_two_zones_the_minimum_isr_or_the_majority(
    seed: int, brokers: int, zones: int, controllers: int
) -> None:
    random = Random(seed)
    cluster = cluster_of(random, brokers, zones, controllers)
    desired = Desired(cluster.members, frozenset(m.id for m in cluster.members))
    stopped: list[int] = []
    for _ in range(200 + 60 * len(cluster.members)):
        observation = cluster.observation()
        active = cluster.leader
        stepped = next_step(desired, observation, Bounds())
        assert next_step(desired, observation, Bounds()) == stepped
        match stepped:
            case Done():
                break
            case Stop(nodes):
                if active in nodes:
                    followers = {m.id for m in cluster.members if m.controller} - {active}
                    assert all(cluster.seen[node].current for node in followers)
                stopped += nodes
                cluster.stop(nodes)
            case Start(nodes):
                raise AssertionError(nodes)
            case Elect(_, keys):
                cluster.elect(keys)
            case Pause():
                raise AssertionError(stepped)
            case Wait():
                cluster.progress()
        cluster.watch()
    else:
        raise AssertionError(f"not done: {stepped}")
    assert sorted(stopped) == sorted(m.id for m in cluster.members)
