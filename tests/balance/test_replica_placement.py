"""New replicas go to brokers that take them, in distinct zones, and are led by brokers that may lead."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.cells import Broker
from penstock.balance.replica_placement import PlacementRequest, fits, spread
from penstock.model.ids import BrokerId, LogicalClusterId, Zone


def request(
    brokers: int,
    *,
    replicas: int = 3,
    count: int = 60,
    cordoned: frozenset[int] = frozenset(),
    demoted: frozenset[int] = frozenset(),
) -> PlacementRequest:
    members = tuple(Broker(BrokerId(n), Zone("abc"[n % 3])) for n in range(brokers))
    tenant = LogicalClusterId("lkc-7hq2mz")
    without = (frozenset(map(BrokerId, numbers)) for numbers in (cordoned, demoted))
    return PlacementRequest(tenant, "orders", 0, count, replicas, members, *without)


@given(
    brokers=st.integers(1, 9),
    replicas=st.integers(1, 4),
    cordoned=st.frozensets(st.integers(0, 8), max_size=4),
    demoted=st.frozensets(st.integers(0, 8), max_size=4),
    count=st.integers(1, 300),
)
def test_placement_obeys_broker_states(
    brokers: int, replicas: int, cordoned: frozenset[int], demoted: frozenset[int], count: int
) -> None:
    placement = request(brokers, replicas=replicas, count=count, cordoned=cordoned, demoted=demoted)

    placed = spread(placement)

    able = [broker for broker in placement.brokers if broker.id not in cordoned]
    possible = len(able) >= replicas and any(broker.id not in demoted for broker in able)
    assert (placed is not None) == possible
    if placed is not None:
        assert len(placed) == count
        assert fits(placed, placement.open, placement.demoted)
        assert all(len(each) == replicas for each in placed)


def test_a_demoted_broker_holds_replicas_only_where_the_others_do_not_suffice() -> None:
    spare = spread(request(6, demoted=frozenset({0})))
    needed = spread(request(3, demoted=frozenset({0})))

    assert spare is not None
    assert all(0 not in replicas for replicas in spare)
    assert needed is not None
    assert all(0 in replicas[1:] for replicas in needed)
    leaders = Counter(replicas[0] for replicas in needed)
    assert leaders[BrokerId(1)] == leaders[BrokerId(2)]


def test_a_clients_assignment_may_not_be_led_by_a_demoted_broker() -> None:
    brokers = request(3).brokers

    assert fits([[1, 0, 2]], brokers, demoted={0})
    assert not fits([[0, 1, 2]], brokers, demoted={0})
