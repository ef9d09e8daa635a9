"""Months of faults: the control plane's decisions on simulated brokers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.health.detector import HealthState
from penstock.health.mitigation import Step
from penstock.sim.incident_month import CASES, Scale, calm, detected_share, faults, month, noise, play
from penstock.sim.incidents import Cluster, Roll
from penstock.sim.sick_brokers import EFFECTS, Brokers, Fault, Kind

if TYPE_CHECKING:
    from penstock.sim.incident_month import Case

ONE, SMALL = Scale(clusters=1, days=30.0), Scale(clusters=3, days=30.0)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_scripted_fault_is_named_mitigated_and_undone(case: Case, seed: int) -> None:
    assert play(case, seed).failures == ()


def test_the_same_seed_gives_the_same_month() -> None:
    assert month(3, ONE) == month(3, ONE)


def test_faults_are_detected_nothing_is_done_needlessly_and_clients_get_more() -> None:
    outcome = month(1, SMALL)
    assert outcome.detected
    assert detected_share(outcome) == 1.0
    assert (outcome.needless, outcome.misnamed, outcome.unfinished) == ([], 0, 0)
    assert outcome.failed_seconds < outcome.unattended_seconds


def test_nothing_is_done_on_a_day_without_a_fault() -> None:
    outcome = calm(1, days=0.05)
    assert outcome.ticks == 864
    assert not outcome.actions


def test_a_tenant_that_overloads_a_broker_at_once_is_no_slow_broker() -> None:
    cluster = Cluster(Random(1), 6, 3)
    outcome = cluster.run([Fault(2, Kind.HOT, 60.0, 360.0)], 600.0, every_tick=True)
    assert not outcome.actions
    assert cluster.states == []


def test_a_roll_is_no_fault_and_waits_for_a_sick_broker() -> None:
    """Otherwise two brokers of different zones would be down at the same time."""
    cluster = Cluster(Random(1), 6, 3)
    outcome = cluster.run([Roll(100.0), Fault(2, Kind.CUT, 60.0, 400.0)], 1_200.0)
    assert [take.step for _, take in cluster.steps] == [Step.DEMOTE]
    assert (outcome.needless, outcome.unfinished) == ([], 0)
    assert all(node.stopped[0] > 400.0 for node in cluster.world.nodes.values())


def test_time_that_is_left_out_changes_no_step_and_hardly_what_clients_get() -> None:
    planted = [Fault(2, Kind.HUNG_DISK, 60.0, 2_000.0), Fault(4, Kind.CUT, 3_000.0, 4_500.0)]
    short, whole = Cluster(Random(1), 6, 3), Cluster(Random(1), 6, 3)
    left_out, every = short.run(planted, 6_000.0), whole.run(planted, 6_000.0, every_tick=True)
    assert left_out.ticks < every.ticks / 3
    assert [take.step for _, take in short.steps] == [take.step for _, take in whole.steps]
    assert left_out.unattended_seconds == pytest.approx(every.unattended_seconds, rel=0.02)
    assert left_out.failed_seconds == pytest.approx(every.failed_seconds, rel=0.3)


def test_two_faults_at_once_leave_two_brokers_and_one_intervention() -> None:
    cluster = Cluster(Random(2), 24, 3)
    planted = [Fault(2, Kind.CUT, 60.0, 900.0), Fault(5, Kind.CUT, 120.0, 900.0)]
    outcome = cluster.run(planted, 1_800.0)
    assert {broker for _, broker, _ in cluster.states} == {2, 5}
    assert outcome.unfinished == 0
    assert all(node.leads for node in cluster.world.nodes.values())


def test_a_stuck_follower_delays_its_leaders_only_until_it_leaves_the_isr() -> None:
    brokers = Brokers({number: "abc"[number % 3] for number in range(1, 7)}, Random(1))
    brokers.nodes[3].faults.append(Fault(3, Kind.HUNG_DISK, 0.0, 600.0))
    early, late = brokers.tick(0.0, {})[0], brokers.tick(60.0, {})[0]
    leader = next(iter(early[3].leaders))
    assert early[leader].pair.all_failed
    assert late[leader].pair.succeeded == late[leader].pair.sent
    assert late[3].alone.all_failed


def test_events_are_drawn_within_the_time_and_of_known_kinds() -> None:
    planted = list(faults(Random(1), 24, 30 * 86_400.0))
    assert planted
    assert all(0 <= each.since < each.until <= 30 * 86_400.0 for each in planted)
    assert {each.kind for each in planted} <= EFFECTS.keys()
    assert {type(each).__name__ for each in noise(Random(1), 24, 30 * 86_400.0)} == {
        "Fault", "Roll", "Stall", "Failover",
    }  # fmt: skip


def test_a_broker_that_is_never_healthy_again_is_left_to_operators() -> None:
    cluster = Cluster(Random(1), 6, 3)
    cluster.run([Fault(2, Kind.SLOW_LINK, 60.0, 1e9)], 3_600.0)
    assert cluster.outcome.unfinished == 1
    assert cluster.verdict.brokers[2].state in (HealthState.SLOW, HealthState.RECOVERING)
