"""Snapshots of a bank whose every interleaving a test chooses: whole payments, causes before effects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.payments.bank import ACCOUNTS as STATE
from examples.payments.views import LINES, STATEMENTS
from penstock.olep.event import Event
from penstock.olep.position import Position
from penstock.olep.view import digest
from penstock.olep.view.cut import Causes
from tests.olep.watched import HALVES, OVERDRAFT, PARTITIONS, Ground, Watched
from tests.olep.world import TOPIC_ID


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_snapshots_show_whole_payments_and_causes_before_effects(seed: int) -> None:
    ground = Ground(seed)
    before = Position()
    for _ in range(120):
        ground.step()
        cut = ground.cut()
        assert cut.covers(before), "a session of snapshots never goes back"
        before = cut
        shown = ground.statements.balances(cut)
        assert shown == ground.cache.balances(cut), "two views at one position agree"
        with ground.statements.store.reading(cut) as reader:
            lines = [line for _, line in reader.rows(LINES)]
        opened = sum(line[5] for line in lines if line[3] == "opened")
        assert sum(shown.values()) == opened, "money is conserved: no half of a payment is shown"
        assert min(shown.values(), default=0) >= -OVERDRAFT, "nobody spends what has not arrived"


def test_a_snapshot_keeps_up_with_the_views_once_requests_are_answered() -> None:
    ground = Ground(7)
    for _ in range(300):
        ground.step()
    ground.world.settle()
    for view in (ground.statements, ground.cache):
        for partition in range(PARTITIONS):
            view.step(partition, 10_000)
    assert ground.cut() == Position({TOPIC_ID: ground.limit()})
    state = {row[0]: row[1] for lane in ground.world.lanes for row in lane.store.scan(STATE)}
    shown = ground.cache.balances()
    assert {name: cents for name, cents in shown.items() if name in state} == state


def test_read_skew_without_snapshots_two_views_show_two_moments() -> None:
    """The anomaly that snapshots prevent is real: plain reads of two views disagree."""
    ground = Ground(1)
    assert any(ground.step() or ground.statements.balances() != ground.cache.balances() for _ in range(300))


def test_read_skew_half_a_payment_shows_where_each_side_has_its_own_event() -> None:
    """Why both sides are made from one event: at no cut can two events be promised together."""
    ground = Ground(2)
    for partition in range(PARTITIONS):
        ground.halves.step(partition, 10_000)
    whole = sum(ground.halves.balances(table=HALVES).values())
    totals = set()
    for _ in range(300):
        ground.step()
        totals.add(sum(ground.halves.balances(table=HALVES).values()))
    assert totals - {whole}, "money seems to vanish, or to appear"


def test_without_causes_one_position_for_all_may_show_an_account_below_its_limit() -> None:
    """Why a common position is not enough: the payment that fed another one may be missing."""
    for seed in range(203, 600):  # the first ones do not show it, and take a while
        ground = Ground(seed)
        for _ in range(120):
            ground.step()
            shown = ground.statements.balances(Position({TOPIC_ID: ground.limit()}))
            if min(shown.values(), default=0) < -OVERDRAFT:
                return
    pytest.fail("no interleaving shows it: the follower would not be needed")


def test_a_request_that_is_never_answered_holds_snapshots_back_only_so_long() -> None:
    causes = Causes(TOPIC_ID, {"done"}, patience=1.0)
    stream = f"=bank:{TOPIC_ID}"
    causes.see(Event(f"{stream}.1.5.0", "arrived", {}, cause="x", request="r1", partition=0, offset=3), 10.0)
    causes.see(Event(f"{stream}.0.4.0", "done", {}, cause="y", request="r2", partition=0, offset=6), 10.0)
    assert causes.greatest({0: 9, 1: 9}, 10.5) == {0: 6, 1: 9}
    assert causes.greatest({0: 9, 1: 9}, 11.5) == {0: 9, 1: 9}


def test_what_was_decided_on_another_log_holds_nothing_back() -> None:
    causes = Causes(TOPIC_ID, {"done"})
    stream, other = f"=bank:{TOPIC_ID}", "=shop:BAAAAAAAAAAAAAAAAAAAAA"
    causes.see(Event(f"{other}.1.5.0", "arrived", {}, cause="x", request="r1", partition=0, offset=3), 0.0)
    causes.see(Event(f"{other}.0.5.0", "arrived", {}, cause="x", request="r1", partition=0, offset=4), 0.0)
    causes.see(Event("=nonsense", "arrived", {}, cause="x", request="r1", partition=0, offset=5), 0.0)
    causes.see(Event(f"{stream}.0.5.0", "done", {}, cause="y", request="r2", partition=0, offset=6), 0.0)
    assert causes.greatest({0: 9, 1: 9}, 0.0) == {0: 9, 1: 9}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_how_records_are_cut_into_batches_does_not_show(size: int) -> None:
    ground = Ground(11)
    for _ in range(200):
        ground.step()
    ground.world.settle()
    digests = set()
    for step in (size, 7):
        view = Watched(ground.world, STATEMENTS)
        while view.at != {p: len(records) for p, records in enumerate(ground.world.records)}:
            for partition in range(PARTITIONS):
                view.step(partition, step)
        with view.store.reading() as reader:
            digests.add(digest(reader, STATEMENTS))
    assert len(digests) == 1
