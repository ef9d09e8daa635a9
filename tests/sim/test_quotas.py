"""A week of quotas, in small."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.axes import Axes

import penstock.sim.quotas as quotas_module
import penstock.sim.traffic as traffic_module
from penstock.sim.plot import draw
from penstock.sim.quotas import (
    DYNAMIC,
    SCHEMES,
    SENSITIVITY,
    STATIC,
    Asked,
    Running,
    Scheme,
    Score,
    Whole,
    week,
    weeks,
)
from penstock.sim.traffic import POINTS, Populations, Size, Tenants, Traffic

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SMALL = Size(tenants=80, brokers=12, days=0.08)
TINY = Size(tenants=40, brokers=6, days=0.03)
PARTS = 6  # of a step
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


@pytest.mark.parametrize("name", ["static", "dynamic, lazy", "dynamic, 10% of reports lost"])
def test_a_scheme_fares_the_same_whatever_runs_beside_it(name: str, scores: dict[str, Score]) -> None:
    (scheme,) = (scheme for scheme in (*SCHEMES, *SENSITIVITY) if scheme.name == name)

    (alone,) = week(1, SMALL, (scheme,), use_median=BUSY)

    assert alone.throttled_seconds.tolist() == scores[name].throttled_seconds.tolist()
    assert alone.overshoot == scores[name].overshoot


def test_seeds_fare_the_same_one_by_one_and_side_by_side() -> None:
    schemes = (STATIC, replace(DYNAMIC, lost=0.1, failover_seconds=60))

    together = list(weeks((1, 2), TINY, schemes, use_median=BUSY))

    alone = [week(seed, TINY, schemes, use_median=BUSY) for seed in (1, 2)]
    assert [[score.throttled_seconds.tolist() for score in each] for each in together] == [
        [score.throttled_seconds.tolist() for score in each] for each in alone
    ]


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


def tenants_with(*quotas: float) -> Populations:
    populations = Populations((1,), Size(tenants=len(quotas), brokers=POINTS))
    populations.quota[:] = quotas
    return populations


def asked(*demand: tuple[float, ...]) -> Asked:
    """What each tenant asks for at each point, all within its quota."""
    grid = np.array(demand)
    rows = np.arange(len(demand))
    within = np.ones((PARTS, len(demand)), dtype=bool)
    return Asked(rows, grid, np.zeros(grid.shape, dtype=bool), within, grid.sum(axis=0))


class Scripted(Populations):
    """One tenant that asks for this at its points, step by step."""

    def __init__(self, quota: float, *steps: tuple[float, ...]) -> None:
        super().__init__((1,), Size(tenants=1, brokers=POINTS))
        self.quota[:] = quota
        self.steps = [np.array([each]) for each in steps]
        self.step = -1

    def advance(self) -> None:
        self.step += 1
        self.total = self.steps[self.step].sum(axis=1)

    def demand(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        return self.steps[self.step][rows]

    def demand_before(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        return self.steps[max(0, self.step - 1)][rows]


def played(scheme: Scheme, script: Scripted) -> Running:
    running, whole = Running((scheme,), script, broker_limit=1e9), Whole(script)
    for step in range(len(script.steps)):
        script.advance()
        running.advance(whole.step(script.total), step)
    return running


def test_traffic_that_rises_as_it_moves_finds_the_shares_of_where_it_was() -> None:
    little, more = (6e6, 0, 0, 0, 0, 0), (0, 12e6, 0, 0, 0, 0)

    running = played(DYNAMIC, Scripted(60e6, little, little, more, more))

    assert running.throttled_seconds.tolist() == [DYNAMIC.interval_seconds]


@pytest.mark.parametrize(("rises_at", "throttled_from"), [(30, 65), (90, 90)])
def test_who_rises_without_a_coordinator_keeps_what_it_was_told_for_a_minute_and_no_longer(
    rises_at: int, throttled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Coordinators die at every decision from the first on; what was told at 0 s holds until 60 s are past.
    monkeypatch.setattr(quotas_module, "DAY_SECONDS", DYNAMIC.interval_seconds)
    quiet, more, steps = rises_at // 30, (12e6, 0, 0, 0, 0, 0), 5
    script = Scripted(60e6, *[(6e6, 0, 0, 0, 0, 0)] * quiet, *[more] * (steps - quiet))

    running = played(replace(DYNAMIC, failover_seconds=600), script)

    assert running.throttled_seconds.tolist() == [steps * 30 - throttled_from]


def test_traffic_that_moves_to_another_broker_waits_for_one_interval() -> None:
    running = Running((DYNAMIC,), tenants_with(60e6), broker_limit=1e9)
    here, there = asked((20e6, 0, 0, 0, 0, 0)), asked((0, 20e6, 0, 0, 0, 0))
    running.follow(here.rows, here.demand)

    for step in (here, here, there, there, there):
        running.step(step)

    assert running.throttled_seconds.tolist() == [DYNAMIC.interval_seconds]


def test_a_broker_that_is_asked_for_too_much_holds_everybody_in_proportion() -> None:
    running = Running((STATIC,), tenants_with(60e6, 120e6), broker_limit=15e6)

    running.step(asked((10e6, 0, 0, 0, 0, 0), (20e6, 0, 0, 0, 0, 0)))

    assert (running.points.passed[:, 0] / PARTS).tolist() == pytest.approx([5e6, 10e6])


def test_what_static_shares_hold_up_counts_until_it_has_passed_and_no_longer() -> None:
    running = Running((STATIC,), tenants_with(60e6), broker_limit=1e9)

    for hot in (
        12e6,
        0.0,
        0.0,
    ):  # a sixth of the quota is 10e6: 2e6 wait in each of 30 s, all told 6 s' worth
        running.step(asked((hot, 0, 0, 0, 0, 0)))

    assert running.throttled_seconds.tolist() == [35.0]


def test_under_one_limit_and_under_many_as_much_may_wait_of_a_tenant() -> None:
    tenant = tenants_with(60e6)
    running, whole = Running((STATIC,), tenant, broker_limit=1e9), Whole(tenant)
    flood = asked((100e6,) * POINTS)

    for _ in range(20):
        whole.step(flood.demand.sum(axis=1))
        running.step(flood)

    assert running.points.backlog.sum(axis=1).tolist() == pytest.approx(whole.owed.tolist())


def test_a_tenant_that_has_asked_for_more_than_its_quota_waits_in_part_of_a_step() -> None:
    whole = Whole(tenants_with(60e6))

    steps = [whole.step(np.array([total])).ravel().tolist() for total in (30e6, 70e6, 30e6)]

    assert steps == [[True] * PARTS, [False] * PARTS, [False] + [True] * (PARTS - 1)]


def test_what_is_asked_for_at_all_points_is_what_is_asked_for() -> None:
    tenants = Tenants.born(1, SMALL)
    traffic = Traffic(tenants)
    rows = np.arange(SMALL.tenants)
    for _ in range(20):
        traffic.advance()

    demand = traffic.demand(rows)

    assert np.allclose(demand.sum(axis=1), traffic.total)
    assert (demand.max(axis=1) >= tenants.skew * traffic.total * 0.4).all()


def test_what_was_asked_of_a_broker_that_failed_is_asked_of_the_others() -> None:
    traffic = Traffic(Tenants.born(1, SMALL))
    traffic.advance()
    rows = np.arange(SMALL.tenants)
    traffic.broken_until[0] = 1e9

    demand = traffic.demand(rows)

    assert not demand[traffic.down(rows)].any()
    assert np.allclose(demand.sum(axis=1), traffic.total)


def test_what_was_asked_for_in_the_last_step_is_told_as_it_was_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "FAILURES_A_WEEK", 2_000)  # a broker in ten, each step
    tenants = Tenants.born(1, SMALL)
    tenants.wander[:] = 1 / SMALL.step_seconds  # every hot broker may change at every step
    traffic = Traffic(tenants)
    rows = np.arange(SMALL.tenants)
    traffic.advance()

    for _ in range(10):
        was, down = traffic.demand(rows), traffic.down(rows)
        traffic.advance()

        assert traffic.demand_before(rows).tolist() == was.tolist()
        assert traffic.demand(rows).tolist() != was.tolist()
    assert down.any()


def test_a_week_is_drawn(tmp_path: Path, scores: dict[str, Score]) -> None:
    picture = tmp_path / "out" / "week.png"

    draw({name: [scores[name]] for name in ("static", "dynamic")}, picture, days=SMALL.days)

    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_line_is_drawn_where_tenants_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(Axes, "axhline", lambda _axes, minutes, **_style: drawn.append(minutes * 60))
    throttled, size = np.array([21.4, 21.5]), replace(SMALL, tenants=2, days=0.5)
    running = Running((STATIC,), Populations((1,), size))
    running.throttled_seconds[:] = throttled
    ((score,),) = running.scores().values()

    draw({"static": [score]}, tmp_path / "week.png", days=size.days)

    assert score.met == 0.5
    assert throttled[0] < drawn[0] < throttled[1]
