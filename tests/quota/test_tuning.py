"""A broker's limit, shared in proportion to quotas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.quota.tuning import LEVEL_MIN, request_limit, tuned_level, wanted

QUOTAS = st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 2000)), min_size=1, max_size=20)


@given(QUOTAS, st.floats(1, 5000))
def test_what_passes_is_the_limit_or_everything(tenants: list[tuple[float, float]], limit: float) -> None:
    quotas, demand = (np.array(column) for column in zip(*tenants))

    level = tuned_level(quotas, demand, limit)

    passes = np.minimum(demand, level * quotas).sum()
    assert LEVEL_MIN <= level <= 1.0
    if level > LEVEL_MIN:
        assert passes <= limit * (1 + 1e-9)
    if level < 1.0:
        assert passes >= limit * (1 - 1e-9)  # nothing of the limit is wasted
    else:
        assert np.minimum(demand, quotas).sum() <= limit * (1 + 1e-9)


@given(QUOTAS, st.floats(1, 5000), st.floats(1.0, 3.0))
def test_a_higher_limit_never_leaves_less(
    tenants: list[tuple[float, float]], limit: float, more: float
) -> None:
    quotas, demand = (np.array(column) for column in zip(*tenants))

    assert tuned_level(quotas, demand, limit * more) >= tuned_level(quotas, demand, limit) - 1e-12


def test_ten_tenants_with_twice_the_limit_share_it_by_their_quotas() -> None:
    quotas = np.arange(1.0, 11.0) * 10
    limit = quotas.sum() / 2

    level = tuned_level(quotas, quotas, limit)

    assert (level * quotas).tolist() == pytest.approx((quotas / 2).tolist())


def test_a_tenant_below_its_part_is_left_alone() -> None:
    quotas, demand = np.array([100.0, 100.0]), np.array([20.0, 100.0])

    level = tuned_level(quotas, demand, 100.0)

    assert level * 100 == pytest.approx(80.0)  # the other has all that the first leaves


@given(st.lists(st.floats(10, 100), min_size=2, max_size=10), st.floats(0.2, 0.9))
def test_repeated_tuning_settles_at_the_limit_and_lets_go_at_once(quotas: list[float], part: float) -> None:
    """Greedy tenants, of whom only what passed and that they waited is known."""
    quota = np.array(quotas)
    limit = float(quota.sum()) * part
    assume(part > LEVEL_MIN)
    used, throttled = quota.copy(), np.zeros(len(quotas), dtype=bool)
    for _ in range(4):
        level = tuned_level(quota, wanted(quota, used, throttled), limit)
        used, throttled = level * quota, np.full(len(quotas), level < 1)

    assert used.sum() == pytest.approx(limit)
    assert tuned_level(quota, wanted(quota, used * 0.2, np.zeros(len(quotas), dtype=bool)), limit) == 1.0


def test_request_time_is_limited_while_requests_queue_and_freed_within_seconds() -> None:
    limit: float | None = None
    for _ in range(3):
        limit = request_limit(limit, used=8.0, queue=400, queue_max=200)
    assert limit is not None
    held = limit

    seconds = 0
    while limit is not None:
        limit = request_limit(limit, used=0.5 * held, queue=0, queue_max=200)
        seconds += 1

    assert held < 8.0
    assert seconds <= 3
