"""The model has each replica where Kafka has it, and attributes bytes and handler time to replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.balance.actions import Purpose, Request
from penstock.balance.cluster_model import BrokerFacts, ClusterFacts, Traffic, build
from penstock.balance.model import ABSENT, ANYWHERE, Resource
from penstock.balance.planner import plan
from penstock.kafka.admin.topics import Partition

BROKERS = tuple(BrokerFacts(n, "abc"[n % 3], "cell-1" if n < 4 else "cell-2", load=0.3) for n in range(1, 7))


def partition(index: int, *replicas: int, leader: int | None = None, isr: tuple[int, ...] = ()) -> Partition:
    return Partition(index, replicas[0] if leader is None else leader, 0, replicas, isr or replicas, ())


def test_a_topics_bytes_are_split_by_the_growth_of_its_logs_else_evenly() -> None:
    topics = {"a": (partition(0, 1, 2, 3), partition(1, 1, 3, 2), partition(2, 2, 3, 1))}
    traffic = {("a", 1): Traffic(90.0, 300.0), ("a", 2): Traffic(10.0, 20.0)}
    growth = {("a", 0): 20.0, ("a", 1): 10.0}

    even = build(ClusterFacts(BROKERS, topics, {}, traffic)).model.costs.leader
    grown = build(ClusterFacts(BROKERS, topics, {}, traffic, growth)).model.costs.leader

    assert even[:, Resource.LEADER_INGRESS].tolist() == [45.0, 45.0, 10.0]
    assert grown[:, Resource.LEADER_INGRESS].tolist() == [60.0, 30.0, 10.0]
    assert grown[:, Resource.EGRESS].tolist() == [200.0 + 120.0, 100.0 + 60.0, 20.0 + 20.0]


def test_broker_load_goes_to_replicas_and_the_rest_is_the_base() -> None:
    topics = {"a": (partition(0, 1, 2, 3), partition(1, 2, 3, 1))}
    busy = tuple(
        BrokerFacts(n, "abc"[n % 3], "cell-1", load=load) for n, load in ((1, 0.6), (2, 0.2), (3, 0.1))
    )
    facts = ClusterFacts(busy, topics, {}, {("a", 1): Traffic(100.0, 0.0), ("a", 2): Traffic(100.0, 0.0)})

    named = build(facts)

    totals, base = named.model.totals[:, Resource.LOAD], named.model.brokers.base[:, Resource.LOAD]
    assert named.measured
    assert totals.sum() == pytest.approx(0.9)
    assert totals[0] == pytest.approx(totals[1])
    assert base[0] == pytest.approx(0.6 - totals[0])
    assert base[1:].tolist() == [0.0, 0.0]
    assert totals[2] < totals[0]  # it leads nothing


def test_without_every_brokers_load_there_is_none() -> None:
    topics = {"a": (partition(0, 1, 2, 3),)}
    some = (*BROKERS[:5], BrokerFacts(6, "a", "cell-2"))

    named = build(ClusterFacts(some, topics, {}, {("a", 1): Traffic(100.0, 0.0)}))

    assert not named.measured
    assert not named.model.totals[:, Resource.LOAD].any()


def test_cells_tenants_states_and_disks_are_as_reported() -> None:
    brokers = (
        *BROKERS[:5],
        BrokerFacts(6, "a", None, takes_load=False, disk_bytes=100.0, disk_free_bytes=30),
    )
    topics = {
        "lkc-000001_a": (partition(0, 1, 2, leader=2), partition(1, 2, isr=(2,))),
        "__offsets": (partition(0, 4, 6, leader=-1, isr=(4,)),),
        "elsewhere": (partition(0, 9),),
    }
    sizes = {1: {("lkc-000001_a", 0): 5}, 2: {("lkc-000001_a", 0): 7}, 6: {("__offsets", 0): 20}}
    named = build(
        ClusterFacts(
            brokers,
            topics,
            sizes,
            cell_of=lambda name: "cell-1" if name.startswith("lkc") else None,
            tenant_of=lambda name: name.partition("_")[0] if name.startswith("lkc") else "",
            pinned={"__offsets"},
        )
    )

    model = named.model
    assert [named.topics[topic] for topic in model.topics] == ["__offsets", "lkc-000001_a", "lkc-000001_a"]
    assert model.cells.tolist() == [ANYWHERE, 0, 0]
    assert model.brokers.cells.tolist() == [0, 0, 0, 1, 1, 2]
    assert model.replicas.tolist() == [[3, 5], [0, 1], [1, ABSENT]]
    assert model.leaders.tolist() == [ABSENT, 1, 0]
    assert model.in_sync.tolist() == [[True, False], [True, True], [True, False]]
    assert model.pinned.tolist() == [True, False, False]
    assert model.costs.leader[:, Resource.DISK].tolist() == [20.0, 7.0, 0.0]
    assert model.brokers.capacity[5, Resource.DISK] == 100.0
    assert model.brokers.base[5, Resource.DISK] == 50.0
    assert named.tenants == ("", "lkc-000001")


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_a_plan_of_a_built_model_names_existing_partitions_and_brokers(seed: int) -> None:
    dice = np.random.default_rng(seed)
    topics = {
        f"t{n}": tuple(partition(p, *map(int, dice.permutation([1, 2, 3])[:2])) for p in range(4))
        for n in range(6)
    }
    brokers = (*BROKERS[:3], BrokerFacts(4, "a", "cell-1", joining=True, load=0.0))
    sizes = {b: {(t, p): int(dice.integers(1, 100)) for t in topics for p in range(4)} for b in (1, 2, 3)}
    named = build(ClusterFacts(brokers, topics, sizes, cell_of=lambda _: "cell-1"))

    done = plan(named.model, Request(Purpose.FILL), metrics=named.measured)

    for action in done.actions:
        topic, number = named.partition(action)
        ids = named.model.brokers.ids
        assert tuple(int(ids[each]) for each in action.before) == topics[topic][number].replicas
        assert 4 in [int(ids[each]) for each in action.after]
