"""Which leaders return, and when."""

from __future__ import annotations

from dataclasses import replace

from penstock.balance.executing import Budget, Memory, Observation, PartitionState, TopicPartition, decide
from penstock.balance.leader_return import CAUGHT_UP_SECONDS, caught_up, returning
from penstock.balance.plan_job import LeaderReturnJob

LED_BY_TWO = PartitionState("t", (1, 2, 3), (1, 2, 3), 2)
LONG_AGO = {1: 0.0, 2: 0.0, 3: 0.0}
NOW = 1000.0


def seen(partitions: dict[TopicPartition, PartitionState], *alive: int) -> Observation:
    return Observation(partitions, frozenset(alive or (1, 2, 3)))


def test_leadership_returns_to_the_preferred_broker() -> None:
    moves = returning(seen({("orders", 0): LED_BY_TWO}), LONG_AGO, NOW)

    assert [(move.name, move.before, move.after) for move in moves] == [("orders-0", (1, 2, 3), (1, 2, 3))]


def test_a_broker_that_is_not_caught_up_gets_nothing() -> None:
    behind = {("orders", 0): LED_BY_TWO, ("other", 0): replace(LED_BY_TWO, isr=(2, 3))}

    since = caught_up(seen(behind), {1: 0.0, 2: 0.0}, NOW)

    assert set(since) == {2, 3}
    assert returning(seen(behind), since, NOW) == []


def test_a_broker_leads_again_only_after_it_has_kept_up_for_a_while() -> None:
    cluster = seen({("orders", 0): LED_BY_TWO})
    since = caught_up(cluster, {}, NOW)

    assert returning(cluster, since, NOW + CAUGHT_UP_SECONDS - 1) == []
    assert len(returning(cluster, caught_up(cluster, since, NOW + 1), NOW + CAUGHT_UP_SECONDS)) == 1


def test_a_replica_that_is_being_added_does_not_count_as_behind() -> None:
    adding = PartitionState("t", (1, 2, 3), (2, 3), 2, adding=(1,), reassigning=True)

    assert 1 in caught_up(seen({("orders", 0): adding}), {}, NOW)


def test_dead_brokers_and_those_that_may_not_lead_get_nothing() -> None:
    partitions: dict[TopicPartition, PartitionState] = {("orders", 0): LED_BY_TWO}

    assert returning(seen(partitions, 2, 3), LONG_AGO, NOW) == []
    assert returning(seen(partitions), LONG_AGO, NOW, may_lead=lambda broker: broker != 1) == []


def test_a_partition_that_moves_is_left_alone() -> None:
    moving = {("orders", 0): replace(LED_BY_TWO, reassigning=True)}

    assert returning(seen(moving), LONG_AGO, NOW) == []


def test_internal_topics_come_last() -> None:
    names = ["__consumer_offsets", "_penstock.registry", "lkc-aaaaaa_orders", "zebra"]

    moves = returning(seen({(name, 0): LED_BY_TWO for name in names}), LONG_AGO, NOW)

    assert [m.topic for m in moves] == [
        "lkc-aaaaaa_orders",
        "zebra",
        "__consumer_offsets",
        "_penstock.registry",
    ]


def test_leaders_return_gradually_and_the_last_one_ends_the_job() -> None:
    partitions = {("orders", n): LED_BY_TWO for n in range(25)}
    job = LeaderReturnJob(returning(seen(partitions), LONG_AGO, NOW))
    budget, memory, rounds = Budget(leader_changes_per_second=10), Memory(), 0
    while True:
        rounds += 1
        now = seen(partitions)
        decided = decide([job.work(now)], now, budget, memory, NOW + rounds)
        memory = decided.memory
        job.report(now, decided.standings[0], decided)
        assert len(decided.elect) <= 10
        assert not decided.start
        if decided.done:
            break
        for key in decided.elect:
            partitions[key] = replace(partitions[key], leader=1)

    assert rounds == 4
    assert {state.leader for state in partitions.values()} == {1}


def test_a_broker_that_dies_meanwhile_does_not_keep_the_job_from_ending() -> None:
    partitions = {("orders", 0): LED_BY_TWO}
    job = LeaderReturnJob(returning(seen(partitions), LONG_AGO, NOW))
    dead = seen({("orders", 0): replace(LED_BY_TWO, isr=(2, 3))}, 2, 3)

    assert decide([job.work(dead)], dead, Budget(), Memory(), NOW).done
