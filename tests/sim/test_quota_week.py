"""A week of quotas, at a small scale."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.axes import Axes

import penstock.sim.quota_week as quotas_module
import penstock.sim.traffic as traffic_module
from penstock.sim.plot import draw
from penstock.sim.quota_week import (
    DYNAMIC,
    SCHEMES,
    SENSITIVITY,
    STATIC,
    Scheme,
    SchemeRun,
    Score,
    SingleLimit,
    StepDemand,
    week,
    weeks,
)
from penstock.sim.traffic import CELL_BROKERS, Populations, Size, Tenants, Traffic

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SMALL = Size(tenants=80, brokers=12, days=0.08)
TINY = Size(tenants=40, brokers=6, days=0.03)
TICKS = 6  # per step
BUSY = 0.08  # median use, high enough to show throttling within hours


@pytest.fixture(scope="module")
def scores() -> dict[str, Score]:
    """One population under every scheme."""
    results = week(1, SMALL, (*SCHEMES, *SENSITIVITY), use_median=BUSY)
    return {score.scheme: score for score in results}


def test_the_same_seed_gives_the_same_week(scores: dict[str, Score]) -> None:
    again, other = (week(seed, SMALL, (DYNAMIC,), use_median=BUSY)[0] for seed in (1, 2))

    assert again.throttled_seconds.tolist() == scores["dynamic"].throttled_seconds.tolist()
    assert again.throttled_seconds.tolist() != other.throttled_seconds.tolist()


@pytest.mark.parametrize("name", ["static", "dynamic, lazy", "dynamic, 10% of reports lost"])
def test_a_scheme_does_not_depend_on_the_schemes_beside_it(name: str, scores: dict[str, Score]) -> None:
    (scheme,) = (scheme for scheme in (*SCHEMES, *SENSITIVITY) if scheme.name == name)

    (alone,) = week(1, SMALL, (scheme,), use_median=BUSY)

    assert alone.throttled_seconds.tolist() == scores[name].throttled_seconds.tolist()
    assert alone.overshoot == scores[name].overshoot


def test_seeds_give_the_same_result_alone_and_together() -> None:
    schemes = (STATIC, replace(DYNAMIC, lost=0.1, failover_seconds=60))

    together = list(weeks((1, 2), TINY, schemes, use_median=BUSY))

    alone = [week(seed, TINY, schemes, use_median=BUSY) for seed in (1, 2)]
    assert [[score.throttled_seconds.tolist() for score in each] for each in together] == [
        [score.throttled_seconds.tolist() for score in each] for each in alone
    ]


def test_dynamic_shares_throttle_less_than_static_ones_and_lazy_ones_least(scores: dict[str, Score]) -> None:
    static, dynamic, lazy = (
        float(scores[name].throttled_seconds.sum()) for name in ("static", "dynamic", "dynamic, lazy")
    )

    assert static > 4 * dynamic
    assert dynamic > lazy


def test_without_lazy_throttling_no_tenant_exceeds_its_quota(scores: dict[str, Score]) -> None:
    assert scores["static"].overshoot <= 1 + 1e-9
    assert scores["dynamic"].overshoot <= 1 + 1e-9


@pytest.mark.parametrize("scheme", SENSITIVITY, ids=lambda scheme: scheme.name)
def test_disturbed_coordination_is_never_worse_than_none(scheme: Scheme, scores: dict[str, Score]) -> None:
    disturbed, static = scores[scheme.name], scores["static"]

    assert disturbed.throttled_seconds.sum() < static.throttled_seconds.sum()


def tenants_with(*quotas: float) -> Populations:
    populations = Populations((1,), Size(tenants=len(quotas), brokers=CELL_BROKERS))
    populations.quota[:] = quotas
    return populations


def step_demand(*demand: tuple[float, ...]) -> StepDemand:
    """Each tenant's demand at each gateway, all within its quota."""
    grid = np.array(demand)
    rows = np.arange(len(demand))
    within = np.ones((TICKS, len(demand)), dtype=bool)
    return StepDemand(rows, grid, np.zeros(grid.shape, dtype=bool), within, grid.sum(axis=0))


class Scripted(Populations):
    """One tenant with this demand at its gateways, step by step."""

    def __init__(self, quota: float, *steps: tuple[float, ...]) -> None:
        super().__init__((1,), Size(tenants=1, brokers=CELL_BROKERS))
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


def simulate(scheme: Scheme, script: Scripted) -> SchemeRun:
    run, single_limit = SchemeRun((scheme,), script, broker_limit=1e9), SingleLimit(script)
    for step in range(len(script.steps)):
        script.advance()
        run.advance(single_limit.step(script.total), step)
    return run


def test_traffic_that_rises_while_moving_meets_the_shares_of_its_old_gateway() -> None:
    little, more = (6e6, 0, 0, 0, 0, 0), (0, 12e6, 0, 0, 0, 0)

    run = simulate(DYNAMIC, Scripted(60e6, little, little, more, more))

    assert run.throttled_seconds.tolist() == [DYNAMIC.interval_seconds]


@pytest.mark.parametrize(("rises_at", "throttled_from"), [(30, 65), (90, 90)])
def test_without_a_coordinator_the_last_shares_hold_for_a_minute(
    rises_at: int, throttled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Coordinators die at every decision from the first on; the shares of 0 s hold until 60 s have passed.
    monkeypatch.setattr(quotas_module, "DAY_SECONDS", DYNAMIC.interval_seconds)
    quiet, more, steps = rises_at // 30, (12e6, 0, 0, 0, 0, 0), 5
    script = Scripted(60e6, *[(6e6, 0, 0, 0, 0, 0)] * quiet, *[more] * (steps - quiet))

    run = simulate(replace(DYNAMIC, failover_seconds=600), script)

    assert run.throttled_seconds.tolist() == [steps * 30 - throttled_from]


def test_traffic_that_moves_to_another_broker_is_throttled_for_one_interval() -> None:
    run = SchemeRun((DYNAMIC,), tenants_with(60e6), broker_limit=1e9)
    here, there = step_demand((20e6, 0, 0, 0, 0, 0)), step_demand((0, 20e6, 0, 0, 0, 0))
    run.follow(here.rows, here.demand)

    for step in (here, here, there, there, there):
        run.step(step)

    assert run.throttled_seconds.tolist() == [DYNAMIC.interval_seconds]


def test_an_overloaded_broker_limits_all_tenants_in_proportion() -> None:
    run = SchemeRun((STATIC,), tenants_with(60e6, 120e6), broker_limit=15e6)

    run.step(step_demand((10e6, 0, 0, 0, 0, 0), (20e6, 0, 0, 0, 0, 0)))

    assert (run.gateways.passed[:, 0] / TICKS).tolist() == pytest.approx([5e6, 10e6])


def test_traffic_queued_by_static_shares_counts_until_it_has_passed() -> None:
    run = SchemeRun((STATIC,), tenants_with(60e6), broker_limit=1e9)

    # A sixth of the quota is 10e6: in each of 30 s, 2e6 are queued, 6 s' worth in all.
    for hot in (12e6, 0.0, 0.0):
        run.step(step_demand((hot, 0, 0, 0, 0, 0)))

    assert run.throttled_seconds.tolist() == [35.0]


def test_the_backlog_bound_is_the_same_under_one_limit_and_under_many() -> None:
    tenant = tenants_with(60e6)
    run, single_limit = SchemeRun((STATIC,), tenant, broker_limit=1e9), SingleLimit(tenant)
    flood = step_demand((100e6,) * CELL_BROKERS)

    for _ in range(20):
        single_limit.step(flood.demand.sum(axis=1))
        run.step(flood)

    assert run.gateways.backlog.sum(axis=1).tolist() == pytest.approx(single_limit.backlog.tolist())


def test_a_tenant_beyond_its_quota_is_throttled_until_its_backlog_has_passed() -> None:
    single_limit = SingleLimit(tenants_with(60e6))

    steps = [single_limit.step(np.array([total])).ravel().tolist() for total in (30e6, 70e6, 30e6)]

    assert steps == [[True] * TICKS, [False] * TICKS, [False] + [True] * (TICKS - 1)]


def test_the_demand_at_all_brokers_sums_to_the_total() -> None:
    tenants = Tenants.generate(1, SMALL)
    traffic = Traffic(tenants)
    rows = np.arange(SMALL.tenants)
    for _ in range(20):
        traffic.advance()

    demand = traffic.demand(rows)

    assert np.allclose(demand.sum(axis=1), traffic.total)
    assert (demand.max(axis=1) >= tenants.skew * traffic.total * 0.4).all()


def test_the_traffic_of_a_failed_broker_goes_to_the_others() -> None:
    traffic = Traffic(Tenants.generate(1, SMALL))
    traffic.advance()
    rows = np.arange(SMALL.tenants)
    traffic.broken_until[0] = 1e9

    demand = traffic.demand(rows)

    assert not demand[traffic.down(rows)].any()
    assert np.allclose(demand.sum(axis=1), traffic.total)


def test_the_demand_of_the_previous_step_stays_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "FAILURES_PER_WEEK", 2_000)  # a broker in ten, each step
    tenants = Tenants.generate(1, SMALL)
    tenants.moves_per_second[:] = 1 / SMALL.step_seconds  # every hot broker may change at every step
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


def test_the_objective_line_is_drawn_at_the_scored_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(Axes, "axhline", lambda _axes, minutes, **_style: drawn.append(minutes * 60))
    throttled, size = np.array([21.4, 21.5]), replace(SMALL, tenants=2, days=0.5)
    run = SchemeRun((STATIC,), Populations((1,), size))
    run.throttled_seconds[:] = throttled
    ((score,),) = run.scores().values()

    draw({"static": [score]}, tmp_path / "week.png", days=size.days)

    assert score.met == 0.5
    assert throttled[0] < drawn[0] < throttled[1]
