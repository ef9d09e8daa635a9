"""Auto-tuning: a broker's limit, shared in proportion to quotas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.quota.auto_tuning import LEVEL_MIN, adaptive_limit, estimated_demand, tuned_level

QUOTAS = st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 2000)), min_size=1, max_size=20)


@given(QUOTAS, st.floats(1, 5000))
def test_the_throughput_is_the_limit_or_the_whole_demand(
    tenants: list[tuple[float, float]], limit: float
) -> None:
    quotas, demand = (np.array(column) for column in zip(*tenants))

    level = tuned_level(quotas, demand, limit)

    throughput = np.minimum(demand, level * quotas).sum()
    assert LEVEL_MIN <= level <= 1.0
    if level > LEVEL_MIN:
        assert throughput <= limit * (1 + 1e-9)
    if level < 1.0:
        assert throughput >= limit * (1 - 1e-9)  # nothing of the limit is wasted
    else:
        assert np.minimum(demand, quotas).sum() <= limit * (1 + 1e-9)


@given(QUOTAS, st.floats(1, 5000), st.floats(1.0, 3.0))
def test_a_higher_limit_never_lowers_the_level(
    tenants: list[tuple[float, float]], limit: float, more: float
) -> None:
    quotas, demand = (np.array(column) for column in zip(*tenants))

    assert tuned_level(quotas, demand, limit * more) >= tuned_level(quotas, demand, limit) - 1e-12


def test_ten_tenants_with_twice_the_limit_share_it_in_proportion_to_their_quotas() -> None:
    quotas = np.arange(1.0, 11.0) * 10
    limit = quotas.sum() / 2

    level = tuned_level(quotas, quotas, limit)

    assert (level * quotas).tolist() == pytest.approx((quotas / 2).tolist())


def test_a_tenant_below_its_limit_is_not_affected() -> None:
    quotas, demand = np.array([100.0, 100.0]), np.array([20.0, 100.0])

    level = tuned_level(quotas, demand, 100.0)

    assert level * 100 == pytest.approx(80.0)  # the other gets all that the first leaves


@given(st.lists(st.floats(10, 100), min_size=2, max_size=10), st.floats(0.2, 0.9))
def test_repeated_tuning_settles_at_the_limit_and_recovers_at_once(quotas: list[float], part: float) -> None:
    """Greedy tenants, of which only the throughput and the throttling are known."""
    quota = np.array(quotas)
    limit = float(quota.sum()) * part
    assume(part > LEVEL_MIN)
    used, throttled = quota.copy(), np.zeros(len(quotas), dtype=bool)
    for _ in range(4):
        level = tuned_level(quota, estimated_demand(quota, used, throttled), limit)
        used, throttled = level * quota, np.full(len(quotas), level < 1)

    assert used.sum() == pytest.approx(limit)
    assert (
        tuned_level(quota, estimated_demand(quota, used * 0.2, np.zeros(len(quotas), dtype=bool)), limit)
        == 1.0
    )


def test_request_time_is_limited_while_requests_queue_and_freed_within_seconds() -> None:
    limit: float | None = None
    for _ in range(3):
        limit = adaptive_limit(limit, used=8.0, queue=400, queue_max=200)
    assert limit is not None
    lowest = limit

    seconds = 0
    while limit is not None:
        limit = adaptive_limit(limit, used=0.5 * lowest, queue=0, queue_max=200)
        seconds += 1

    assert lowest < 8.0
    assert seconds <= 3
