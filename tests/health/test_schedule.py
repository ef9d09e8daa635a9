"""When probes are due, and which partitions they use."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.health.schedule import INTERVAL_SECONDS, PINNED, Pinning, due_between, pin, replicas_of
from penstock.model.events import ProbeRole

ZONES = {1: "a", 2: "b", 3: "c"}


def test_each_broker_gets_100_evenly_spaced_probes_a_minute() -> None:
    due = list(due_between([1, 2, 3], 0.0, 60.0))
    for broker in (1, 2, 3):
        times = [each.at for each in due if each.broker == broker]
        assert len(times) == 100
        assert all(abs(b - a - INTERVAL_SECONDS) < 1e-9 for a, b in pairwise(times))
    assert [each.at for each in due] == sorted(each.at for each in due)


@given(cuts=st.lists(st.floats(0, 30), max_size=8))
def test_no_probe_is_due_twice_or_never_however_time_is_cut(cuts: list[float]) -> None:
    points = [0.0, *sorted(cuts), 30.0]
    pieces = [due for since, until in pairwise(points) for due in due_between([1, 2, 5], since, until)]
    assert pieces == list(due_between([1, 2, 5], 0.0, 30.0))


def test_followers_are_in_other_zones_and_form_a_ring() -> None:
    assert [replicas_of(broker, ZONES, ProbeRole.PAIR) for broker in ZONES] == [(1, 2), (2, 3), (3, 1)]
    assert replicas_of(1, {1: "a", 2: "a", 3: "b"}, ProbeRole.PAIR) == (1, 3)
    assert replicas_of(1, {1: "a"}, ProbeRole.PATH) == (1,)


def applied(
    existing: dict[ProbeRole, dict[int, tuple[int, ...]]], pinning: Pinning
) -> dict[ProbeRole, dict[int, tuple[int, ...]]]:
    after = {role: dict(existing.get(role, {})) for role in PINNED}
    for role, repair in pinning.repairs.items():
        after[role] |= dict(repair.reassign)
        for replicas in repair.add:
            after[role][len(after[role])] = replicas
    return after


@given(
    generations=st.lists(st.sets(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    zones=st.lists(st.sampled_from("abc"), min_size=10, max_size=10),
)
def test_whatever_brokers_come_and_go_each_has_its_partitions(
    generations: list[set[int]], zones: list[str]
) -> None:
    existing: dict[ProbeRole, dict[int, tuple[int, ...]]] = {}
    for brokers in generations:
        by_broker = {broker: zones[broker] for broker in brokers}
        pinning = pin(by_broker, existing)
        existing = applied(existing, pinning)
        assert pinning.numbers.keys() == brokers
        assert len(set(pinning.numbers.values())) == len(brokers)
        for broker, number in pinning.numbers.items():
            for role in PINNED:
                assert set(existing[role][number]) == set(replicas_of(broker, by_broker, role))
        assert pin(by_broker, existing).repairs == {}


def test_a_demoted_broker_keeps_its_partitions() -> None:
    existing = applied({}, pin(ZONES, {}))
    reordered = {role: {n: r[1:] + r[:1] for n, r in each.items()} for role, each in existing.items()}
    assert pin(ZONES, reordered) == pin(ZONES, existing)
