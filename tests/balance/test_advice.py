"""Verdicts on histories: which one, by which number, and that sizes do not oscillate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.balance.advice import (
    DAY_HOURS,
    HISTORY_HOURS,
    PACING,
    Alternative,
    Situation,
    Sized,
    Verdict,
    advise,
    brokers_for,
    carried,
    decide,
)
from penstock.balance.goals import LOAD_FULL

SIX = Situation(brokers=6, zones=3)


def history(days: int, level: float, *, growth: float = 0.0) -> np.ndarray:
    """Hours with a day's rhythm whose peak is `level`, and grows by `growth` a day."""
    at = np.arange(days * DAY_HOURS)
    peak = level + growth * (at // DAY_HOURS)
    return np.asarray(peak * (0.8 + 0.2 * np.sin(2 * np.pi * (at % DAY_HOURS) / DAY_HOURS)))


def test_a_cluster_that_carries_its_work_without_a_zone_is_right_sized() -> None:
    advice = advise(history(28, 2.9), SIX)  # six brokers without two carry 3.2

    assert (advice.verdict, advice.target) == (Verdict.RIGHT_SIZED, 6)
    assert "2.90" in advice.number
    assert "3.20" in advice.changes


def test_work_that_recurs_above_the_capacity_expands_at_once() -> None:
    advice = advise(history(28, 4.0), SIX)

    assert advice.verdict is Verdict.EXPAND
    assert advice.target == 9
    assert advice.due_days == 0
    assert "3.20" in advice.number


def test_growth_expands_before_it_is_needed() -> None:
    advice = advise(history(28, 2.0, growth=0.04), replace(SIX, machine_month=100.0))

    assert advice.verdict is Verdict.EXPAND
    assert 0 < (advice.due_days or 0) <= PACING.lead_days
    assert (advice.month, advice.month_after) == (600, advice.target * 100)


def test_a_surge_does_not_expand_and_prevents_shrinking() -> None:
    work = history(28, 1.0)
    surge = work.copy()
    surge[-100:-97] = 2.8

    assert advise(work, SIX).verdict is Verdict.SHRINK
    assert advise(surge, SIX).verdict is Verdict.RIGHT_SIZED


def test_work_above_the_capacity_for_hours_expands_despite_a_recent_change() -> None:
    work = history(28, 2.0)
    work[-8:] = 4.5

    assert advise(work, replace(SIX, changed_days=0.5)).verdict is Verdict.EXPAND


def test_nothing_shrinks_below_the_highest_hour_of_four_weeks() -> None:
    work = history(28, 3.0)
    work[DAY_HOURS] = 6.0

    advice = advise(work, replace(SIX, brokers=30))

    assert advice.verdict is Verdict.SHRINK
    assert carried(advice.target, 3) >= 6.0


def test_a_cluster_that_just_changed_rests_before_it_shrinks() -> None:
    work = history(28, 1.0)

    assert advise(work, replace(SIX, changed_days=PACING.rest_days - 1)).verdict is Verdict.RIGHT_SIZED
    assert advise(work, replace(SIX, changed_days=PACING.rest_days)).verdict is Verdict.SHRINK


def test_an_unbalanced_cluster_is_balanced_before_it_grows() -> None:
    advice = advise(history(28, 3.0), replace(SIX, imbalance=1.8))

    assert advice.verdict is Verdict.REBALANCE
    assert "1.80" in advice.number


def test_balancing_does_not_help_a_cluster_whose_mean_is_too_high() -> None:
    assert advise(history(28, 4.5), replace(SIX, imbalance=1.8)).verdict is Verdict.EXPAND


def test_cheaper_hardware_is_advised_only_if_it_saves_enough() -> None:
    situation = replace(SIX, machine_month=100.0)
    work = history(28, 2.9)

    cheap = advise(work, replace(situation, alternative=Alternative("small", 9, 400, measured=False)))
    close = advise(work, replace(situation, alternative=Alternative("small", 9, 550, measured=True)))

    assert (cheap.verdict, cheap.profile) == (Verdict.OTHER_PROFILE, "small")
    assert "not been measured" in cheap.number
    assert close.verdict is Verdict.RIGHT_SIZED


def test_the_maximum_and_the_budget_cut_an_expansion_and_are_named() -> None:
    work = history(28, 9.0)

    by_max = advise(work, replace(SIX, brokers_max=9))
    by_budget = advise(work, replace(SIX, machine_month=100.0, budget_month=1000.0))

    assert (by_max.target, by_max.bounded) == (9, "sizes are bounded to 3 to 9 brokers")
    assert by_budget.target == 9
    assert "1000.00" in by_budget.bounded


def test_a_day_of_history_is_enough_for_a_verdict() -> None:
    assert advise(history(1, 4.5), SIX).verdict is Verdict.EXPAND


def test_one_zone_reserves_a_broker_and_three_zones_a_third() -> None:
    assert carried(6, 1) == pytest.approx(5 * LOAD_FULL)
    assert carried(6, 3) == pytest.approx(4 * LOAD_FULL)


@settings(max_examples=50)
@given(work=st.floats(0, 500), zones=st.sampled_from((1, 2, 3)))
def test_the_smallest_size_carries_its_work_and_a_smaller_one_does_not(work: float, zones: int) -> None:
    size = int(brokers_for(np.array([work]), np.array([zones]))[0])

    assert carried(size, zones) >= work - 1e-6
    if size - zones >= 3:
        assert carried(size - zones, zones) < work + 1e-6


@settings(max_examples=15)
@given(
    level=st.floats(0.5, 60),
    swing=st.floats(0, 0.5),
    noise=st.floats(0, 0.15),
    seed=st.integers(0, 1000),
)
def test_steady_work_settles_on_one_size(level: float, swing: float, noise: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    at = np.arange(3 * HISTORY_HOURS)
    work = level * (1 + swing * np.sin(at * 2 * np.pi / 24)) * np.exp(random.normal(0, noise, len(at)))
    brokers, changed, changes = np.array([12]), math.inf, 0

    for hour in range(HISTORY_HOURS, len(at), DAY_HOURS):
        known = work[hour - HISTORY_HOURS : hour][None, :]
        bounds = np.array([3]), np.array([1000])
        target = decide(known, Sized(brokers, np.array([3]), np.array([changed]), *bounds)).target
        changes += int(target[0] != brokers[0])
        changed = 0.0 if target[0] != brokers[0] else changed + 1
        brokers = target

    assert changes <= 4  # in eight weeks, the first fit included
