"""Interventions: what may be open on a physical cluster at the same time."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.health.interventions import (
    close_intervention,
    conflict,
    obstacles_to,
    open_intervention,
    open_interventions,
    zones_of,
)
from penstock.model.entities import Actor, Intervention, OpenIntervention, PhysicalCluster
from penstock.model.errors.fleet import InterventionRefused
from penstock.model.ids import BrokerId, Zone
from tests.control.in_memory_control import PHYSICAL, InMemoryControl


def intervention(
    actor: Actor, key: str = "1", brokers: str = "", zones: str = "", partitions: str = "", until_ms: int = 0
) -> OpenIntervention:
    return OpenIntervention(
        actor,
        key,
        f"{actor} {key}",
        0,
        tuple(BrokerId(int(broker)) for broker in brokers.split()),
        tuple(Zone(zone) for zone in zones.split()),
        tuple(partitions.split()),
        until_ms,
    )


def opened(memory: InMemoryControl, request: OpenIntervention) -> None:
    memory.accept(open_intervention(memory.registry, memory.context(), PHYSICAL, request))


def closed(memory: InMemoryControl, actor: Actor, key: str = "1") -> None:
    memory.accept(close_intervention(memory.registry, memory.context(), PHYSICAL, actor, key))


def current(memory: InMemoryControl) -> list[str]:
    return [each.reason for each in open_interventions(memory.registry, PHYSICAL, memory.now_ms)]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (intervention(Actor.ROLL), intervention(Actor.ROLL, "2"), "a roll is under way"),
        (intervention(Actor.ROLL, zones="a"), intervention(Actor.BALANCE), "a roll is under way"),
        (intervention(Actor.BALANCE), intervention(Actor.ROLL), "balance moves partitions"),
        (intervention(Actor.LINK), intervention(Actor.ROLL), "link moves partitions"),
        (
            intervention(Actor.HEALTH, brokers="1", zones="a"),
            intervention(Actor.ROLL, brokers="2", zones="b"),
            "health has brokers down in zone a",
        ),
        (
            intervention(Actor.ROLL, brokers="1", zones="a"),
            intervention(Actor.HEALTH, brokers="1", zones="a"),
            "roll has taken broker 1",
        ),
        (
            intervention(Actor.HEALTH, brokers="1 2", zones="a"),
            intervention(Actor.BALANCE, brokers="2 3"),
            "health has taken broker 2",
        ),
        (
            intervention(Actor.RESTORE, partitions="orders-0 orders-1"),
            intervention(Actor.LINK, partitions="orders-1 orders-2"),
            "restore works on partition orders-1",
        ),
    ],
)
def test_what_would_collide_is_refused(
    first: OpenIntervention, second: OpenIntervention, reason: str
) -> None:
    memory = InMemoryControl.with_cells()
    opened(memory, first)

    with pytest.raises(InterventionRefused) as caught:
        opened(memory, second)

    assert caught.value.message == f"{second.actor} may not intervene in {PHYSICAL} now: {reason}"
    assert first.reason in caught.value.advice
    assert caught.value.retriable
    assert current(memory) == [first.reason]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            intervention(Actor.HEALTH, brokers="1", zones="a"),
            intervention(Actor.ROLL, brokers="2", zones="a"),
        ),
        (intervention(Actor.BALANCE, brokers="1"), intervention(Actor.HEALTH, brokers="1", zones="a")),
        (intervention(Actor.HEALTH, brokers="1", zones="a"), intervention(Actor.BALANCE, brokers="3")),
        (intervention(Actor.RESTORE, partitions="a-0"), intervention(Actor.LINK, partitions="b-0")),
        (intervention(Actor.ROLL), intervention(Actor.HEALTH, brokers="2", zones="b")),  # between two batches
        (intervention(Actor.HEALTH, brokers="2", zones="b"), intervention(Actor.ROLL)),  # of controllers
    ],
)
def test_what_does_not_collide_is_open_at_the_same_time(
    first: OpenIntervention, second: OpenIntervention
) -> None:
    memory = InMemoryControl.with_cells()

    opened(memory, first)
    opened(memory, second)

    assert current(memory) == [first.reason, second.reason]


def test_an_intervention_is_opened_again_with_another_extent_and_keeps_its_start() -> None:
    memory = InMemoryControl.with_cells()
    opened(memory, intervention(Actor.ROLL, zones="a"))
    since = open_interventions(memory.registry, PHYSICAL, memory.now_ms)[0].since_ms

    opened(memory, intervention(Actor.ROLL, zones="b"))

    (after,) = open_interventions(memory.registry, PHYSICAL, memory.now_ms)
    assert after.zones == ("b",)
    assert after.since_ms == since


def test_the_record_exists_while_anything_is_open_and_closing_can_be_repeated() -> None:
    memory = InMemoryControl.with_cells()
    opened(memory, intervention(Actor.HEALTH, brokers="1", zones="a"))
    opened(memory, intervention(Actor.BALANCE))

    closed(memory, Actor.BALANCE)
    closed(memory, Actor.BALANCE)
    assert current(memory) == ["health 1"]
    closed(memory, Actor.HEALTH)
    closed(memory, Actor.HEALTH)

    assert memory.registry.get(Intervention, PHYSICAL) is None


def test_one_that_lapsed_is_not_in_the_way() -> None:
    memory = InMemoryControl.with_cells()
    opened(memory, intervention(Actor.LINK, until_ms=memory.now_ms + 2))
    memory.now_ms += 10

    opened(memory, intervention(Actor.ROLL))

    assert current(memory) == ["roll 1"]


def test_an_actor_that_moves_partitions_sees_what_is_in_its_way() -> None:
    memory = InMemoryControl.with_cells()
    opened(memory, intervention(Actor.HEALTH, brokers="1", zones="a"))
    opened(memory, intervention(Actor.ROLL, brokers="4", zones="a"))

    def obstacles(*brokers: int) -> tuple[str, ...]:
        return obstacles_to(memory.registry, PHYSICAL, Actor.BALANCE, memory.now_ms, brokers)

    assert obstacles() == ("a roll is under way (roll 1)",)
    assert obstacles(1, 2) == ("health has taken broker 1", "a roll is under way (roll 1)")


def test_the_zones_of_brokers_are_those_of_the_physical_cluster() -> None:
    physical = InMemoryControl.with_cells().registry.need(PhysicalCluster, PHYSICAL)

    assert zones_of(physical, [1, 3]) == ("a", "c")


def test_too_many_interventions_are_refused() -> None:
    memory = InMemoryControl.with_cells()
    for number in range(100):
        opened(memory, intervention(Actor.LINK, str(number)))

    with pytest.raises(InterventionRefused, match="100 interventions are open already"):
        opened(memory, intervention(Actor.LINK, "one more"))


requests = st.builds(
    OpenIntervention,
    actor=st.sampled_from(Actor),
    key=st.sampled_from("12"),
    reason=st.just("why"),
    since_ms=st.just(0),
    brokers=st.sets(st.integers(1, 6).map(BrokerId)).map(tuple),
    partitions=st.sets(st.sampled_from(["a-0", "a-1", "b-0"])).map(tuple),
).map(lambda each: replace(each, zones=tuple(sorted({Zone("abc"[broker % 3]) for broker in each.brokers}))))


@given(st.lists(requests, max_size=12))
def test_whatever_is_requested_brokers_are_taken_in_one_zone_and_partitions_by_one_actor(
    attempted: list[OpenIntervention],
) -> None:
    memory = InMemoryControl.with_cells()
    for request in attempted:
        try:
            opened(memory, request)
        except InterventionRefused:
            continue

    now_open = open_interventions(memory.registry, PHYSICAL, memory.now_ms)
    taking = [each for each in now_open if each.actor is Actor.ROLL]
    beside = [each for each in now_open if each.actor is Actor.HEALTH] if taking else []
    assert len(taking) <= 1
    assert len({zone for each in (*taking, *beside) for zone in each.zones}) <= max(
        (len(each.zones) for each in (*taking, *beside)), default=1
    )
    for one, other in combinations(now_open, 2):
        movers = {one.actor, other.actor} <= {Actor.BALANCE, Actor.RESTORE, Actor.LINK}
        assert not (movers and set(one.partitions) & set(other.partitions))
        assert conflict(other, [one]) is None or other.actor is Actor.HEALTH or one.actor is Actor.HEALTH
