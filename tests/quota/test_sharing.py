"""Splitting a quota: the promises hold for any usage and any silent gateways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quota.sharing import (
    DEFAULT_POLICY,
    IntervalUsage,
    SharingPolicy,
    even_split,
    lazy_limits,
    max_min_fair,
    peaks,
    share_out,
)

EPSILON = 1e-9
QUOTA = 120.0


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], IntervalUsage, np.ndarray[Any, Any]]:
    """Tenants with any usage, throttling and silence, whose previous shares summed to the quota."""
    tenants, gateways = draw(st.integers(1, 4)), draw(st.integers(1, 6))

    def grid(elements: st.SearchStrategy[Any]) -> np.ndarray[Any, Any]:
        row = st.lists(elements, min_size=gateways, max_size=gateways)
        return np.array(draw(st.lists(row, min_size=tenants, max_size=tenants)))

    amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))
    quota = np.array(draw(st.lists(st.floats(1.0, 1e6), min_size=tenants, max_size=tenants)))
    members = grid(st.booleans())
    members[:, 0] = True
    used = grid(amounts)
    usage = IntervalUsage(
        used, np.maximum(used, grid(amounts)), grid(st.booleans()), members, grid(st.booleans())
    )
    start = even_split(quota, members)
    once = grid(amounts)
    earlier = IntervalUsage(once, once, grid(st.booleans()), members, np.zeros_like(members))
    return quota, usage, share_out(quota, earlier, start)


@given(situations())
def test_shares_sum_to_at_most_the_quota(situation: Any) -> None:
    quota, usage, previous = situation

    shares = share_out(quota, usage, previous)

    assert (shares.sum(axis=1) <= quota * (1 + EPSILON)).all()
    assert not shares[~usage.members].any()


@given(situations())
def test_no_gateway_of_a_tenant_starves(situation: Any) -> None:
    quota, usage, previous = situation

    shares = share_out(quota, usage, previous)

    floor = even_split(quota, usage.members) * DEFAULT_POLICY.floor
    assert (shares[usage.members] >= floor[usage.members] * (1 - EPSILON)).all()


@given(situations())
def test_silent_gateways_may_keep_their_previous_shares(situation: Any) -> None:
    """Nothing is granted twice: with the previous shares of silent gateways the sum is within the quota."""
    quota, usage, previous = situation

    shares = share_out(quota, usage, previous)

    enforced = np.where(usage.silent, previous, shares)
    assert (enforced.sum(axis=1) <= quota * (1 + EPSILON)).all()


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_gateways_does_not_matter(situation: Any, chance: Any) -> None:
    quota, usage, previous = situation
    order = list(range(previous.shape[1]))
    chance.shuffle(order)

    straight = share_out(quota, usage, previous)
    shuffled = share_out(
        quota,
        IntervalUsage(
            usage.used[:, order],
            usage.peak[:, order],
            usage.throttled[:, order],
            usage.members[:, order],
            usage.silent[:, order],
        ),
        previous[:, order],
    )

    assert np.allclose(straight[:, order], shuffled, rtol=1e-9)


@given(situations(), st.integers(0, 5))
def test_a_gateway_that_throttles_has_all_that_is_free_after_one_interval(situation: Any, which: int) -> None:
    """Whatever the previous shares: the only throttling gateway gets what the others do not usage."""
    quota, usage, previous = situation
    gateway = which % previous.shape[1]
    throttled = np.zeros_like(usage.members)
    throttled[:, gateway] = True
    members = usage.members | throttled
    usage = IntervalUsage(usage.used, usage.used, throttled, members, np.zeros_like(members))

    shares = share_out(quota, usage, previous)

    floor = even_split(quota, members) * DEFAULT_POLICY.floor
    others = np.where(
        members & ~throttled, np.maximum(usage.used * (1 + DEFAULT_POLICY.headroom), floor), 0.0
    ).sum(axis=1)
    even = quota / members.sum(axis=1)
    expected = np.maximum(quota - others, even)
    assert (shares[:, gateway] >= expected * (1 - EPSILON)).all()


@given(situations())
def test_lazy_limits_exceed_the_quota_by_at_most_the_documented_amount(situation: Any) -> None:
    quota, usage, previous = situation
    shares = share_out(quota, usage, previous)

    bounds = lazy_limits(quota, shares, usage)

    total = np.where(usage.members, np.where(usage.silent, shares, usage.used), 0.0).sum(axis=1)
    allowance = np.maximum(quota - total, 0.0) * usage.members.sum(axis=1)
    assert (bounds >= shares).all()
    assert (bounds.sum(axis=1) <= (quota + allowance) * (1 + EPSILON)).all()
    busy = total > (DEFAULT_POLICY.lazy_below or 0) * quota
    assert (bounds[busy] == shares[busy]).all()


def row(*values: float) -> np.ndarray[Any, Any]:
    return np.array([values], dtype=float)


def usage_of(
    used: tuple[float, ...],
    throttled: tuple[int, ...] = (),
    silent: tuple[int, ...] = (),
    peak: tuple[float, ...] = (),
) -> IntervalUsage:
    gateways = range(len(used))
    return IntervalUsage(
        row(*used),
        row(*(peak or used)),
        np.array([[p in throttled for p in gateways]]),
        np.ones((1, len(used)), dtype=bool),
        np.array([[p in silent for p in gateways]]),
    )


def test_a_tenant_at_one_gateway_has_nearly_all_of_its_quota_there() -> None:
    shares = share_out(row(QUOTA)[0], usage_of((40.0, 0.0, 0.0), throttled=(0,)), row(40, 40, 40))

    assert shares[0, 0] >= 0.95 * QUOTA
    assert shares[0, 1] == shares[0, 2] > 0


def test_throttling_gateways_share_equally_what_the_others_leave() -> None:
    shares = share_out(row(QUOTA)[0], usage_of((30.0, 30.0, 8.0), throttled=(0, 1)), row(30, 30, 60))

    assert shares[0].tolist() == pytest.approx([55.0, 55.0, 10.0])


def test_the_part_of_the_rest_that_follows_use_grows_with_the_use_of_the_quota() -> None:
    shares = share_out(row(QUOTA)[0], usage_of((24.0, 8.0, 8.0)), row(40, 40, 40))

    part, rest = 40 / QUOTA, QUOTA - 40
    assert shares[0, 0] == pytest.approx(24 + part * rest * 24 / 40 + (1 - part) * rest / 3)
    assert shares[0, 1] == pytest.approx(8 + part * rest * 8 / 40 + (1 - part) * rest / 3)


def test_a_gateway_with_bursty_traffic_keeps_its_peak_if_there_is_room() -> None:
    calm, bursty = usage_of((10.0, 10.0, 10.0)), usage_of((10.0, 10.0, 10.0), peak=(40.0, 10.0, 10.0))
    crowded = usage_of((50.0, 30.0, 30.0), peak=(90.0, 30.0, 30.0))

    first, second, third = (
        share_out(row(QUOTA)[0], usage, row(40, 40, 40))[0, 0] for usage in (calm, bursty, crowded)
    )

    assert second > first + 15
    assert third == pytest.approx(60.0)  # all that is left, and no more


def test_peak_use_decays() -> None:
    assert peaks(row(100, 10), row(20, 20)).tolist() == [[90.0, 20.0]]


def test_small_changes_are_not_made() -> None:
    before = row(44, 38, 38)

    shares = share_out(row(QUOTA)[0], usage_of((10.2, 8.0, 8.1)), before)

    assert shares.tolist() == before.tolist()


def test_a_lowered_quota_applies_at_once_even_if_changes_are_small() -> None:
    shares = share_out(row(119.0)[0], usage_of((10.0, 8.0, 8.0)), row(44, 38, 38))

    assert shares.sum() <= 119.0 * (1 + EPSILON)


def test_while_there_is_plenty_a_gateway_may_use_all_of_the_unused_quota() -> None:
    shares = row(40, 40, 40)

    bounds = lazy_limits(row(QUOTA)[0], shares, usage_of((10.0, 20.0, 0.0)))

    assert bounds[0].tolist() == [120.0, 120.0, 120.0]


def test_lazy_throttling_can_be_turned_off() -> None:
    shares = row(40, 40, 40)

    bounds = lazy_limits(row(QUOTA)[0], shares, usage_of((1.0, 1.0, 1.0)), SharingPolicy(lazy_below=None))

    assert bounds.tolist() == shares.tolist()


def test_the_share_of_a_silent_gateway_is_not_lazily_given_to_others() -> None:
    bounds = lazy_limits(row(QUOTA)[0], row(40, 40, 40), usage_of((1.0, 1.0, 1.0), silent=(2,)))

    assert bounds[0].tolist() == [118.0, 118.0, 118.0]


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=8),
    st.floats(0, 300),
)
def test_max_min_fairness_gives_everything_or_satisfies_every_demand(
    demand: list[float], free: float
) -> None:
    given_ = max_min_fair(np.array([free]), np.array([demand]), np.ones((1, len(demand)), dtype=bool))[0]

    assert given_.sum() == pytest.approx(min(free, sum(demand)), abs=1e-6)
    assert (given_ <= np.array(demand) + EPSILON).all()
    level = max(given_)
    assert all(g == pytest.approx(min(w, level), abs=1e-6) for g, w in zip(given_, demand))
