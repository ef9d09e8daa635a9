"""Snapshots under random interleavings of a bank: whole payments, and causes before effects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.payments.bank import ACCOUNTS as STATE
from examples.payments.views import LINES, STATEMENTS, Line
from penstock.olep.event import Event
from penstock.olep.position import Position
from penstock.olep.view import digest
from penstock.olep.view.snapshot_position import CausalityTracker
from tests.olep.bank_simulation import OVERDRAFT, PARTITIONS, BankSimulation, FollowingView
from tests.olep.memory_cluster import TOPIC_ID


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_snapshots_show_whole_payments_and_causes_before_effects(seed: int) -> None:
    simulation = BankSimulation(seed)
    before = Position()
    for _ in range(120):
        simulation.step()
        position = simulation.consistent_position()
        assert position.covers(before), "a session of snapshots never goes back"
        before = position
        shown = simulation.statements.balances(position)
        assert shown == simulation.cache.balances(position), "two views at one position agree"
        with simulation.statements.store.reading(position) as reader:
            lines = [Line(*line) for _, line in reader.rows(LINES)]
        opened = sum(line.amount for line in lines if line.kind == "opened")
        assert sum(shown.values()) == opened, "money is conserved: no half of a payment is shown"
        assert min(shown.values(), default=0) >= -OVERDRAFT, "no account spends money that has not arrived"


def test_snapshots_reach_the_views_once_all_requests_are_final() -> None:
    simulation = BankSimulation(7)
    for _ in range(300):
        simulation.step()
    simulation.cluster.settle()
    for view in (simulation.statements, simulation.cache):
        for partition in range(PARTITIONS):
            view.step(partition, 10_000)
    assert simulation.consistent_position() == Position({TOPIC_ID: simulation.limit()})
    state = {row[0]: row[1] for task in simulation.cluster.tasks for row in task.store.scan(STATE)}
    shown = simulation.cache.balances()
    assert {name: cents for name, cents in shown.items() if name in state} == state


def test_read_skew_occurs_without_snapshots() -> None:
    """The anomaly that snapshots prevent is real: plain reads of two views disagree."""
    simulation = BankSimulation(1)
    differs = False
    for _ in range(300):
        simulation.step()
        differs = differs or simulation.statements.balances() != simulation.cache.balances()
    assert differs


def test_half_a_payment_is_visible_if_each_side_has_a_separate_event() -> None:
    """Why both sides are made from one event: at no position can two events be promised together."""
    simulation = BankSimulation(2)
    for partition in range(PARTITIONS):
        simulation.halves.step(partition, 10_000)
    whole = sum(simulation.halves.balances().values())
    totals = set()
    for _ in range(300):
        simulation.step()
        totals.add(sum(simulation.halves.balances().values()))
    assert totals - {whole}, "money seems to vanish, or to appear"


def test_without_causality_tracking_an_account_may_appear_below_its_limit() -> None:
    """Why a common position is not enough: the payment that fed another one may be missing."""
    for seed in range(203, 600):  # the first ones do not show it, and take a while
        simulation = BankSimulation(seed)
        for _ in range(120):
            simulation.step()
            shown = simulation.statements.balances(Position({TOPIC_ID: simulation.limit()}))
            if min(shown.values(), default=0) < -OVERDRAFT:
                return
    pytest.fail("no interleaving shows it: the follower would not be needed")


def test_a_request_without_outcome_delays_snapshots_only_for_the_patience() -> None:
    causes = CausalityTracker(TOPIC_ID, {"done"}, patience=1.0)
    stream = f"=bank:{TOPIC_ID}"
    causes.observe(
        Event(f"{stream}.1.5.0", "arrived", {}, cause="x", request="r1", partition=0, offset=3), 10.0
    )
    causes.observe(Event(f"{stream}.0.4.0", "done", {}, cause="y", request="r2", partition=0, offset=6), 10.0)
    assert causes.greatest_consistent({0: 9, 1: 9}, 10.5) == {0: 6, 1: 9}
    assert causes.greatest_consistent({0: 9, 1: 9}, 11.5) == {0: 9, 1: 9}


def test_events_caused_by_another_log_delay_nothing() -> None:
    causes = CausalityTracker(TOPIC_ID, {"done"})
    stream, other = f"=bank:{TOPIC_ID}", "=shop:BAAAAAAAAAAAAAAAAAAAAA"
    causes.observe(
        Event(f"{other}.1.5.0", "arrived", {}, cause="x", request="r1", partition=0, offset=3), 0.0
    )
    causes.observe(
        Event(f"{other}.0.5.0", "arrived", {}, cause="x", request="r1", partition=0, offset=4), 0.0
    )
    causes.observe(Event("=nonsense", "arrived", {}, cause="x", request="r1", partition=0, offset=5), 0.0)
    causes.observe(Event(f"{stream}.0.5.0", "done", {}, cause="y", request="r2", partition=0, offset=6), 0.0)
    assert causes.greatest_consistent({0: 9, 1: 9}, 0.0) == {0: 9, 1: 9}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_division_into_batches_does_not_change_the_result(size: int) -> None:
    simulation = BankSimulation(11)
    for _ in range(200):
        simulation.step()
    simulation.cluster.settle()
    digests = set()
    for step in (size, 7):
        view = FollowingView(simulation.cluster, STATEMENTS)
        while view.at != {p: len(records) for p, records in enumerate(simulation.cluster.records)}:
            for partition in range(PARTITIONS):
                view.step(partition, step)
        with view.store.reading() as reader:
            digests.add(digest(reader, STATEMENTS))
    assert len(digests) == 1
