"""The plan of a tenant's move, followed on an in-memory cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.cells import Broker
from penstock.balance.move_plan import (
    Bounds,
    Done,
    ElectLeaders,
    PartitionState,
    Progress,
    StartBatch,
    Target,
    Transfer,
    Wait,
    next_batch,
    next_step,
    progress,
    transfers,
)
from penstock.model.errors.balance import MoveImpossible
from penstock.model.ids import BrokerId, LogicalClusterId, Zone

TENANT = LogicalClusterId("lkc-aaaaaa")
OLD = tuple(Broker(BrokerId(n), Zone("abc"[n % 3])) for n in range(3))
NEW = tuple(Broker(BrokerId(n), Zone("abc"[n % 3])) for n in range(3, 9))
ALIVE = {broker.id for broker in (*OLD, *NEW)}
TARGET = Target(TENANT, NEW)


def partition_state(
    topic: str, number: int, size: int = 0, replicas: tuple[int, ...] = (0, 1, 2)
) -> PartitionState:
    placed = tuple(BrokerId(replica) for replica in replicas)
    return PartitionState((topic, number), placed, placed[0], size)


def all_batches(remaining: tuple[Transfer, ...], bounds: Bounds) -> list[tuple[Transfer, ...]]:
    batches = []
    while remaining:
        batch = next_batch(remaining, bounds)
        remaining = tuple(each for each in remaining if each not in batch)
        batches.append(batch)
    return batches


def test_partitions_go_to_the_target_cell_with_replicas_in_distinct_zones() -> None:
    planned = transfers([partition_state("orders", n) for n in range(12)], TARGET)

    zone_of = {broker.id: broker.zone for broker in NEW}
    assert len(planned) == 12
    assert all(len({zone_of[broker] for broker in each.target}) == 3 for each in planned)
    assert {each.target[0] for each in planned} == set(zone_of)  # leaders are spread over all brokers


def test_a_partition_already_in_the_target_cell_stays_as_it_is() -> None:
    inside, outside = partition_state("orders", 0, replicas=(3, 4, 5)), partition_state("orders", 1)

    assert [each.partition for each in transfers([inside, outside], TARGET)] == [("orders", 1)]


def test_a_partition_with_one_replica_outside_is_still_moved() -> None:
    assert len(transfers([partition_state("orders", 0, replicas=(3, 4, 2))], TARGET)) == 1


def test_more_replicas_than_brokers_cannot_be_moved() -> None:
    with pytest.raises(MoveImpossible) as refused:
        transfers([partition_state("orders", 4)], replace(TARGET, brokers=NEW[:2]))

    assert refused.value.facts["partition"] == "orders-4"


def test_no_batch_exceeds_the_bounds_of_a_broker() -> None:
    remaining = transfers([partition_state("orders", n, size=400) for n in range(12)], TARGET)

    batches = all_batches(remaining, Bounds(partitions_max=5, broker_bytes_max=1000))

    assert sum(map(len, batches)) == 12
    for batch in batches:
        received = {b: sum(each.size_bytes for each in batch if b in each.adding) for b in ALIVE}
        assert len(batch) <= 5
        assert max(received.values()) <= 1000


def test_a_partition_larger_than_a_batch_goes_alone() -> None:
    remaining = transfers(
        [partition_state("large", 0, size=5000), partition_state("small", 0, size=1)], TARGET
    )

    batches = all_batches(remaining, Bounds(broker_bytes_max=1000))

    assert [each.partition for batch in batches for each in batch] == [("large", 0), ("small", 0)]
    assert len(batches) == 2


def test_no_batch_starts_while_another_is_running() -> None:
    state = [replace(partition_state("orders", 0), reassigning=True), partition_state("orders", 1)]

    assert isinstance(next_step(state, TARGET, ALIVE), Wait)


def test_a_partition_that_lists_old_and_new_replicas_is_waited_for() -> None:
    both = partition_state("orders", 0, replicas=(3, 4, 5, 0, 1, 2, 6))

    assert isinstance(next_step([replace(both, reassigning=True)], TARGET, ALIVE), Wait)


def test_no_batch_starts_while_a_broker_of_the_target_is_down() -> None:
    step = next_step([partition_state("orders", 0)], TARGET, ALIVE - {BrokerId(5)})

    assert step == Wait("broker 5 of the target cell is down")


def test_preferred_leaders_are_elected_once_all_replicas_are_in_place() -> None:
    state = [replace(partition_state("orders", 0, replicas=(3, 4, 5)), leader=BrokerId(4))]

    assert next_step(state, TARGET, ALIVE) == ElectLeaders((("orders", 0),))


def test_a_tenant_without_topics_has_moved() -> None:
    assert next_step([], TARGET, ALIVE) == Done()
    assert progress([], TARGET).ratio == 1.0


def test_progress_counts_what_the_slowest_new_replica_has() -> None:
    state = [
        partition_state("orders", 0, size=100, replicas=(3, 4, 5)),
        replace(partition_state("orders", 1, size=100), reassigning=True),
        partition_state("orders", 2, size=100),
    ]

    actual = progress(state, TARGET, {("orders", 1): 50})

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
    target = replace(TARGET, bounds=Bounds(partitions_max=limit, broker_bytes_max=15_000))
    start = [partition_state(f"topic-{n % 3}", n, size) for n, size in enumerate(sizes)]
    whole = {each.partition: each.target for each in transfers(start, target)}
    cluster = {
        one.partition: replace(one, replicas=whole[one.partition], leader=whole[one.partition][0])
        if n in done
        else one
        for n, one in enumerate(start)
    }
    for _ in range(len(sizes) + 1):
        step = next_step(list(cluster.values()), target, ALIVE)
        if not isinstance(step, StartBatch):
            break
        for each in step.batch:
            cluster[each.partition] = replace(
                cluster[each.partition], replicas=each.target, leader=each.target[0]
            )

    assert step == Done()
    assert {partition: one.replicas for partition, one in cluster.items()} == whole
