"""Splitting a quota: the promises, for any use and any silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quota.sharing import RULES, Rules, Use, even_split, fill, limits, peaks, share_out

EPSILON = 1e-9
QUOTA = 120.0


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], Use, np.ndarray[Any, Any]]:
    """Some tenants with any use, throttling and silence, whose shares so far summed to the quota."""
    tenants, points = draw(st.integers(1, 4)), draw(st.integers(1, 6))

    def grid(elements: st.SearchStrategy[Any]) -> np.ndarray[Any, Any]:
        row = st.lists(elements, min_size=points, max_size=points)
        return np.array(draw(st.lists(row, min_size=tenants, max_size=tenants)))

    amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))
    quota = np.array(draw(st.lists(st.floats(1.0, 1e6), min_size=tenants, max_size=tenants)))
    members = grid(st.booleans())
    members[:, 0] = True
    used = grid(amounts)
    use = Use(used, np.maximum(used, grid(amounts)), grid(st.booleans()), members, grid(st.booleans()))
    start = even_split(quota, members)
    once = grid(amounts)
    earlier = Use(once, once, grid(st.booleans()), members, np.zeros_like(members))
    return quota, use, share_out(quota, earlier, start)


@given(situations())
def test_shares_sum_to_at_most_the_quota(situation: Any) -> None:
    quota, use, previous = situation

    shares = share_out(quota, use, previous)

    assert (shares.sum(axis=1) <= quota * (1 + EPSILON)).all()
    assert not shares[~use.members].any()


@given(situations())
def test_no_point_of_a_tenant_starves(situation: Any) -> None:
    quota, use, previous = situation

    shares = share_out(quota, use, previous)

    floor = even_split(quota, use.members) * RULES.floor
    assert (shares[use.members] >= floor[use.members] * (1 - EPSILON)).all()


@given(situations())
def test_points_that_were_not_heard_of_may_keep_what_they_had(situation: Any) -> None:
    """Nothing is promised twice: with the old shares of the silent ones the sum is within the quota."""
    quota, use, previous = situation

    shares = share_out(quota, use, previous)

    enforced = np.where(use.silent, previous, shares)
    assert (enforced.sum(axis=1) <= quota * (1 + EPSILON)).all()


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(situation: Any, chance: Any) -> None:
    quota, use, previous = situation
    order = list(range(previous.shape[1]))
    chance.shuffle(order)

    straight = share_out(quota, use, previous)
    turned = share_out(
        quota,
        Use(
            use.used[:, order],
            use.peak[:, order],
            use.throttled[:, order],
            use.members[:, order],
            use.silent[:, order],
        ),
        previous[:, order],
    )

    assert np.allclose(straight[:, order], turned, rtol=1e-9)


@given(situations(), st.integers(0, 5))
def test_a_point_that_was_quiet_has_all_that_is_free_after_one_interval(situation: Any, which: int) -> None:
    """Whatever shares were before: the only point that throttles gets what the others do not use."""
    quota, use, previous = situation
    point = which % previous.shape[1]
    hungry = np.zeros_like(use.members)
    hungry[:, point] = True
    members = use.members | hungry
    use = Use(use.used, use.used, hungry, members, np.zeros_like(members))

    shares = share_out(quota, use, previous)

    floor = even_split(quota, members) * RULES.floor
    others = np.where(members & ~hungry, np.maximum(use.used * (1 + RULES.headroom), floor), 0.0).sum(axis=1)
    even = quota / members.sum(axis=1)
    expected = np.maximum(quota - others, even)
    assert (shares[:, point] >= expected * (1 - EPSILON)).all()


@given(situations())
def test_being_lazy_costs_at_most_what_is_stated(situation: Any) -> None:
    quota, use, previous = situation
    shares = share_out(quota, use, previous)

    bounds = limits(quota, shares, use)

    total = np.where(use.members, np.where(use.silent, shares, use.used), 0.0).sum(axis=1)
    allowance = np.maximum(quota - total, 0.0) * use.members.sum(axis=1)
    assert (bounds >= shares).all()
    assert (bounds.sum(axis=1) <= (quota + allowance) * (1 + EPSILON)).all()
    busy = total > (RULES.lazy_below or 0) * quota
    assert (bounds[busy] == shares[busy]).all()


def row(*values: float) -> np.ndarray[Any, Any]:
    return np.array([values], dtype=float)


def use_of(
    used: tuple[float, ...],
    throttled: tuple[int, ...] = (),
    silent: tuple[int, ...] = (),
    peak: tuple[float, ...] = (),
) -> Use:
    points = range(len(used))
    return Use(
        row(*used),
        row(*(peak or used)),
        np.array([[p in throttled for p in points]]),
        np.ones((1, len(used)), dtype=bool),
        np.array([[p in silent for p in points]]),
    )


def test_a_lopsided_tenant_has_nearly_all_of_its_quota_where_it_works() -> None:
    shares = share_out(row(QUOTA)[0], use_of((40.0, 0.0, 0.0), throttled=(0,)), row(40, 40, 40))

    assert shares[0, 0] >= 0.95 * QUOTA
    assert shares[0, 1] == shares[0, 2] > 0


def test_points_that_throttle_share_alike_what_the_others_leave() -> None:
    shares = share_out(row(QUOTA)[0], use_of((30.0, 30.0, 8.0), throttled=(0, 1)), row(30, 30, 60))

    assert shares[0].tolist() == pytest.approx([55.0, 55.0, 10.0])


def test_what_is_left_over_follows_use_as_far_as_the_quota_is_used() -> None:
    shares = share_out(row(QUOTA)[0], use_of((24.0, 8.0, 8.0)), row(40, 40, 40))

    part, rest = 40 / QUOTA, QUOTA - 40
    assert shares[0, 0] == pytest.approx(24 + part * rest * 24 / 40 + (1 - part) * rest / 3)
    assert shares[0, 1] == pytest.approx(8 + part * rest * 8 / 40 + (1 - part) * rest / 3)


def test_a_point_that_wavers_keeps_what_it_used_at_most_if_there_is_room() -> None:
    calm, wavering = use_of((10.0, 10.0, 10.0)), use_of((10.0, 10.0, 10.0), peak=(40.0, 10.0, 10.0))
    crowded = use_of((50.0, 30.0, 30.0), peak=(90.0, 30.0, 30.0))

    first, second, third = (
        share_out(row(QUOTA)[0], use, row(40, 40, 40))[0, 0] for use in (calm, wavering, crowded)
    )

    assert second > first + 15
    assert third == pytest.approx(60.0)  # all that is left, and no more


def test_the_highest_use_is_forgotten_bit_by_bit() -> None:
    assert peaks(row(100, 10), row(20, 20)).tolist() == [[90.0, 20.0]]


def test_small_changes_are_not_made() -> None:
    before = row(44, 38, 38)

    shares = share_out(row(QUOTA)[0], use_of((10.2, 8.0, 8.1)), before)

    assert shares.tolist() == before.tolist()


def test_a_lowered_quota_is_obeyed_at_once_even_if_changes_are_small() -> None:
    shares = share_out(row(119.0)[0], use_of((10.0, 8.0, 8.0)), row(44, 38, 38))

    assert shares.sum() <= 119.0 * (1 + EPSILON)


def test_while_there_is_plenty_a_point_may_take_all_that_nobody_uses() -> None:
    shares = row(40, 40, 40)

    bounds = limits(row(QUOTA)[0], shares, use_of((10.0, 20.0, 0.0)))

    assert bounds[0].tolist() == [120.0, 120.0, 120.0]


def test_nobody_is_lazy_when_told_not_to_be() -> None:
    shares = row(40, 40, 40)

    bounds = limits(row(QUOTA)[0], shares, use_of((1.0, 1.0, 1.0)), Rules(lazy_below=None))

    assert bounds.tolist() == shares.tolist()


def test_what_a_silent_point_may_be_using_is_not_given_to_others() -> None:
    bounds = limits(row(QUOTA)[0], row(40, 40, 40), use_of((1.0, 1.0, 1.0), silent=(2,)))

    assert bounds[0].tolist() == [118.0, 118.0, 118.0]


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=8),
    st.floats(0, 300),
)
def test_filling_gives_everything_or_satisfies_everybody(wanted: list[float], free: float) -> None:
    given_ = fill(np.array([free]), np.array([wanted]), np.ones((1, len(wanted)), dtype=bool))[0]

    assert given_.sum() == pytest.approx(min(free, sum(wanted)), abs=1e-6)
    assert (given_ <= np.array(wanted) + EPSILON).all()
    level = max(given_)
    assert all(g == pytest.approx(min(w, level), abs=1e-6) for g, w in zip(given_, wanted))
