"""A week of quotas, in small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.sim.plot import draw
from penstock.sim.quotas import (
    DYNAMIC,
    EAGER,
    SCHEMES,
    SENSITIVITY,
    STATIC,
    Asked,
    Running,
    Scheme,
    Score,
    week,
)
from penstock.sim.traffic import POINTS, Size, Tenants, Traffic

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Size(tenants=80, brokers=12, days=0.1)
BUSY = 0.08  # median use, so that a quarter of a day shows something


@pytest.fixture(scope="module")
def scores() -> dict[str, Score]:
    """One population under every scheme there is."""
    found = week(1, SMALL, (*SCHEMES, *SENSITIVITY), use_median=BUSY)
    return {score.scheme: score for score in found}


def test_the_same_seed_gives_the_same_week(scores: dict[str, Score]) -> None:
    again, other = (week(seed, SMALL, (DYNAMIC,), use_median=BUSY)[0] for seed in (1, 2))

    assert again.throttled_seconds.tolist() == scores["dynamic"].throttled_seconds.tolist()
    assert again.throttled_seconds.tolist() != other.throttled_seconds.tolist()


def test_dynamic_shares_throttle_less_than_static_and_lazy_ones_least(scores: dict[str, Score]) -> None:
    static, dynamic, lazy = (
        float(scores[name].throttled_seconds.sum()) for name in ("static", "dynamic", "dynamic, lazy")
    )

    assert static > 4 * dynamic
    assert dynamic > lazy


def test_without_laziness_no_tenant_ever_has_more_than_its_quota(scores: dict[str, Score]) -> None:
    assert scores["static"].overshoot <= 1 + 1e-9
    assert scores["dynamic"].overshoot <= 1 + 1e-9


@pytest.mark.parametrize("scheme", SENSITIVITY, ids=lambda scheme: scheme.name)
def test_disturbed_coordination_is_never_worse_than_none(scheme: Scheme, scores: dict[str, Score]) -> None:
    disturbed, static = scores[scheme.name], scores["static"]

    assert disturbed.throttled_seconds.sum() < static.throttled_seconds.sum()


def one_tenant() -> Tenants:
    tenants = Tenants.born(1, Size(tenants=1, brokers=POINTS))
    tenants.quota[:] = 60e6
    return tenants


def asked(*demand: tuple[float, ...]) -> Asked:
    """What each tenant asks for at each point, all within its quota."""
    grid = np.array(demand)
    rows = np.arange(len(demand))
    return Asked(rows, grid, np.zeros(grid.shape, dtype=bool), rows >= 0, grid.sum(axis=0))


def test_traffic_that_moves_to_another_broker_waits_for_one_interval() -> None:
    tenants = one_tenant()
    running = Running(Scheme("dynamic", EAGER), tenants, np.full(POINTS, 1e9), seed=1)
    here, there = asked((20e6, 0, 0, 0, 0, 0)), asked((0, 20e6, 0, 0, 0, 0))
    running.follow(here.rows, here.demand)

    for step in (here, here, there, there, there):
        running.step(step)

    assert running.throttled_seconds.tolist() == [running.scheme.interval_seconds]


def test_a_broker_that_is_asked_for_too_much_holds_everybody_in_proportion() -> None:
    tenants = Tenants.born(1, Size(tenants=2, brokers=POINTS))
    tenants.quota[:] = [60e6, 120e6]
    running = Running(STATIC, tenants, np.full(POINTS, 15e6), seed=1)

    running.step(asked((10e6, 0, 0, 0, 0, 0), (20e6, 0, 0, 0, 0, 0)))

    assert running.passed[:, 0].tolist() == pytest.approx([5e6, 10e6])


def test_what_is_asked_for_at_all_points_is_what_is_asked_for() -> None:
    tenants = Tenants.born(1, SMALL)
    traffic = Traffic(tenants)
    rows = np.arange(SMALL.tenants)
    for _ in range(20):
        traffic.advance()

    demand = traffic.demand(rows, traffic.total)

    assert np.allclose(demand.sum(axis=1), traffic.total)
    assert (demand.max(axis=1) >= tenants.skew * traffic.total * 0.4).all()


def test_what_was_asked_of_a_broker_that_failed_is_asked_of_the_others() -> None:
    traffic = Traffic(Tenants.born(1, SMALL))
    traffic.advance()
    rows = np.arange(SMALL.tenants)
    traffic.broken_until[0], traffic.broken = 1e9, True

    demand = traffic.demand(rows, traffic.total)

    assert not demand[traffic.down(rows)].any()
    assert np.allclose(demand.sum(axis=1), traffic.total)


def test_a_week_is_drawn(tmp_path: Path, scores: dict[str, Score]) -> None:
    picture = tmp_path / "out" / "week.png"

    draw({name: [scores[name]] for name in ("static", "dynamic")}, picture)

    assert picture.read_bytes().startswith(b"\x89PNG")
