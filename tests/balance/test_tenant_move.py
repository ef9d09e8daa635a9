"""The moves of a tenant to another cell, followed on an in-memory cluster."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.cells import Broker
from penstock.balance.execute import TenantMove
from penstock.balance.executing import (
    Budget,
    Memory,
    Observation,
    PartitionState,
    Round,
    Status,
    TopicPartition,
    decide,
)
from penstock.balance.tenant_move import Progress, Target, tenant_progress, tenant_work
from penstock.model.errors.balance import MoveImpossible, MoveStalled
from penstock.model.ids import BrokerId, LogicalClusterId, Zone

if TYPE_CHECKING:
    from penstock.balance.plan_document import PlannedMove

TENANT = LogicalClusterId("lkc-aaaaaa")
OLD = tuple(Broker(BrokerId(n), Zone("abc"[n % 3])) for n in range(3))
NEW = tuple(Broker(BrokerId(n), Zone("abc"[n % 3])) for n in range(3, 9))
ALIVE = frozenset(int(broker.id) for broker in (*OLD, *NEW))
TARGET = Target(TENANT, NEW)

Partitions = dict[TopicPartition, PartitionState]


def state(size: int = 0, replicas: tuple[int, ...] = (0, 1, 2)) -> PartitionState:
    return PartitionState("id", replicas, replicas, replicas[0], size)


def copying(size: int = 0) -> PartitionState:
    """From the old cell to the new one."""
    replicas = (3, 4, 5, 0, 1, 2)
    return PartitionState("id", replicas, (0, 1, 2), 0, size, (3, 4, 5), (0, 1, 2), reassigning=True)


def numbered(count: int, size: int = 0) -> Partitions:
    return {("orders", n): state(size) for n in range(count)}


def transfers(partitions: Partitions, target: Target = TARGET) -> list[PlannedMove]:
    return [move for move in tenant_work(partitions, target).moves if move.before != move.after]


def next_round(
    partitions: Partitions,
    target: Target = TARGET,
    alive: frozenset[int] = ALIVE,
    budget: Budget | None = None,
    memory: Memory | None = None,
    now: float = 100.0,
) -> Round:
    moving = frozenset(key for key, each in partitions.items() if each.reassigning)
    seen = Observation(partitions, alive, moving)
    return decide([tenant_work(partitions, target)], seen, budget or Budget(), memory or Memory(), now)


def all_batches(partitions: Partitions, budget: Budget) -> list[tuple[PlannedMove, ...]]:
    batches: list[tuple[PlannedMove, ...]] = []
    memory, now = Memory(), 100.0
    while True:
        step = next_round(partitions, budget=budget, memory=memory, now=now)
        if not step.start:
            return batches
        batches.append(step.start)
        memory, now = step.memory, now + 10
        for move in step.start:
            key = (move.topic, move.partition)
            after = move.after
            partitions = {**partitions, key: replace(partitions[key], replicas=after, isr=after)}


def test_partitions_go_to_the_target_cell_with_replicas_in_distinct_zones() -> None:
    planned = transfers(numbered(12))

    zone_of = {int(broker.id): broker.zone for broker in NEW}
    assert len(planned) == 12
    assert all(len({zone_of[broker] for broker in each.after}) == 3 for each in planned)
    assert {each.after[0] for each in planned} == set(zone_of)  # leaders are spread over all brokers


def test_a_partition_already_in_the_target_cell_stays_as_it_is() -> None:
    partitions = {("orders", 0): state(replicas=(3, 4, 5)), ("orders", 1): state()}

    assert [each.name for each in transfers(partitions)] == ["orders-1"]


def test_a_partition_with_one_replica_outside_is_still_moved() -> None:
    partitions = {("orders", 0): state(replicas=(3, 4, 2))}

    first = next_round(partitions)
    later = next_round(partitions, memory=first.memory, now=200.0)

    assert len(transfers(partitions)) == 1
    assert not first.start  # it may also be a reassignment that has just ended
    assert len(later.start) == 1


def test_more_replicas_than_brokers_cannot_be_moved() -> None:
    with pytest.raises(MoveImpossible) as refused:
        transfers({("orders", 4): state()}, replace(TARGET, brokers=NEW[:2]))

    assert refused.value.facts["partition"] == "orders-4"


def test_no_batch_exceeds_the_bounds_of_a_broker() -> None:
    budget = Budget(broker_partitions_max=5, broker_bytes_max=1000)

    batches = all_batches(numbered(12, size=400), budget)

    assert sum(map(len, batches)) == 12
    for batch in batches:
        received = {b: sum(each.bytes for each in batch if b in each.adding) for b in ALIVE}
        assert len(batch) <= 5  # all of them are sent by one broker
        assert max(received.values()) <= 1000


def test_a_partition_larger_than_a_batch_goes_alone() -> None:
    partitions = {("large", 0): state(5000), ("small", 0): state(1)}

    batches = all_batches(partitions, Budget(broker_bytes_max=1000))

    assert [each.name for batch in batches for each in batch] == ["large-0", "small-0"]
    assert len(batches) == 2


def test_no_batch_starts_while_another_uses_up_the_budget() -> None:
    partitions = {("orders", 0): copying(), ("orders", 1): state()}

    step = next_round(partitions, budget=Budget(broker_partitions_max=1))

    assert not step.start
    assert not step.done


def test_a_partition_that_lists_old_and_new_replicas_is_waited_for() -> None:
    both = {("orders", 0): state(replicas=(3, 4, 5, 0, 1, 2, 6))}

    assert not next_round({("orders", 0): copying()}).start
    assert not next_round(both).start  # of a broker that lags behind the controller


def test_no_batch_starts_while_a_broker_of_the_target_is_down() -> None:
    step = next_round({("orders", 0): state()}, alive=ALIVE - {5})

    assert not step.start
    assert step.waiting == "broker 5 of the target cell is down"


def test_preferred_leaders_are_elected_once_all_replicas_are_in_place() -> None:
    placed = {("orders", 0): replace(state(replicas=(3, 4, 5)), leader=4)}

    assert next_round(placed).elect == (("orders", 0),)


def test_a_tenant_without_topics_has_moved() -> None:
    assert next_round({}).done
    assert tenant_progress({}, TARGET).ratio == 1.0


def test_progress_counts_what_the_slowest_new_replica_has() -> None:
    partitions = {
        ("orders", 0): state(100, replicas=(3, 4, 5)),
        ("orders", 1): replace(copying(100), copied_bytes=50),
        ("orders", 2): state(100),
    }

    actual = tenant_progress(partitions, TARGET)

    assert actual == Progress(partitions=3, partitions_done=1, bytes=300, bytes_done=150)
    assert actual.ratio == 0.5


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    done=st.sets(st.integers(0, 39)),
    limit=st.integers(1, 20),
)
def test_a_move_interrupted_anywhere_ends_like_an_undisturbed_one(
    sizes: list[int], done: set[int], limit: int
) -> None:
    """A successor that finds any subset of the partitions moved starts the remaining ones only."""
    budget = Budget(broker_partitions_max=limit, broker_bytes_max=15_000)
    start = {(f"topic-{n % 3}", n): state(size) for n, size in enumerate(sizes)}
    whole = {(each.topic, each.partition): each.after for each in transfers(start)}
    cluster = {
        key: replace(one, replicas=whole[key], isr=whole[key], leader=whole[key][0]) if n in done else one
        for n, (key, one) in enumerate(start.items())
    }
    memory, now = Memory(), 100.0
    for _ in range(len(sizes) + 1):
        step = next_round(cluster, budget=budget, memory=memory, now=now)
        memory, now = step.memory, now + 1
        if not step.start:
            break
        for move in step.start:
            key, after = (move.topic, move.partition), move.after
            cluster[key] = replace(cluster[key], replicas=after, isr=after, leader=after[0])

    assert step.done
    assert {each.status for each in step.standings[0]} == {Status.DONE}
    assert {key: one.replicas for key, one in cluster.items()} == whole


def test_a_copy_that_writers_outrun_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes grow all the time, but what it lacks does not become less."""
    now = 0.0
    monkeypatch.setattr("penstock.balance.execute.time", SimpleNamespace(monotonic=lambda: now))
    job, key = TenantMove(TARGET, 1e6, lambda _: None, stalled_seconds=60.0), (f"{TENANT}_orders", 0)

    def report(size: int, copied: int) -> None:
        seen = Observation({key: replace(copying(size), copied_bytes=copied)}, ALIVE, frozenset({key}))
        round_ = decide([job.work(seen)], seen, Budget(), Memory(), now)
        job.report(seen, round_.standings[0], round_)

    for now in (0.0, 50.0, 100.0, 150.0):
        report(2000 + int(now) * 10, copied=int(now) * 11)
    now = 205.0
    report(5000, copied=3000)
    now = 212.0
    with pytest.raises(MoveStalled, match="not faster than records are written"):
        report(6000, copied=4000)
