"""The quarter of sizing: policies on one population, from a seed."""

from __future__ import annotations

import numpy as np

from penstock.balance.advice import carried
from penstock.sim.sizing import ORACLE, Scale, compare, oracle, quarter

SMALL = Scale(clusters=40, days=30)  # the goals are for 90 days: `bench.sizing`


def test_ours_costs_little_more_than_the_oracle_and_much_less_than_static_sizes() -> None:
    outcomes = {each.policy: each for each in compare(1, SMALL)}

    ours, fixed = outcomes["ours"], outcomes["static peak"]
    assert ours.broker_hours <= 1.15 * outcomes[ORACLE].broker_hours
    assert ours.broker_hours <= 0.8 * fixed.broker_hours
    assert ours.changes_month <= 2
    assert ours.overloaded_hours < outcomes["reactive"].overloaded_hours


def test_the_same_seed_gives_the_same_quarter() -> None:
    assert list(compare(3, Scale(10, 5))) == list(compare(3, Scale(10, 5)))


def test_the_oracle_carries_every_hour_without_a_zone_and_rests_between_changes() -> None:
    known = quarter(2, SMALL)

    sizes = oracle(known)

    peaks = known.work[:, known.start :].reshape(len(sizes), -1, 24).max(axis=2)
    assert (carried(sizes, np.full_like(sizes, 3)) >= peaks - 1e-6).all()
    for row in sizes:
        changes = np.nonzero(np.diff(row))[0]
        assert (np.diff(changes) >= 15).all()
