"""`penstock sim`: simulates the platform's decisions for a whole fleet, without a cluster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.output import report, show, table_of
from penstock.cli.settings import Options
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid
from penstock.sim.cell_batching import (
    PAPER_LOAD_WITH,
    PAPER_LOAD_WITHOUT,
    REQUEST_US,
    Comparison,
    Costs,
    Experiment,
    compare,
    sensitivity,
)
from penstock.sim.cell_month import POLICIES, Scale, simulate
from penstock.sim.plot import draw
from penstock.sim.quota_week import SCHEMES, SENSITIVITY, Score, weeks
from penstock.sim.traffic import CELL_BROKERS, DAY_SECONDS, Size

app = App(name="sim", help="Simulate the platform's decisions for a whole fleet, from a seed.")

MONTH_COLUMNS: Final = {
    "PLACEMENT": "placement", "HOTTEST/MEAN": "hottestToMean", "P99": "hottestToMeanP99",
    "HOTTEST": "hottest", "CELL-HOURS FULL": "cellHoursFull", "MOVES": "moves", "CELLS": "cells",
}  # fmt: skip

Seed = Annotated[int, Parameter(help="0 or more. The same seed gives the same results.")]


@app.command
def cells(
    *,
    seed: Seed = 1,
    tenants: Annotated[int, Parameter(help="Tenants that arrive within the month.")] = 10_000,
    days: Annotated[int, Parameter(help="Length of the month, in days.")] = 30,
    size: Annotated[int, Parameter(help="Brokers of a cell in the paper's experiment.")] = 6,
    options: Options = Options(),
) -> int:
    """Simulate what cells save, and how evenly placement fills them.

    Example:  penstock sim cells --tenants 2000 --days 10
    """
    where = "penstock sim cells"
    for name, value, least in (("--seed", seed, 0), ("--tenants", tenants, 1), ("--days", days, 1)):
        if value < least:
            raise SettingInvalid(where=where, key=name, value=value, expected=f"expected {least} or more")
    experiment = Experiment(cell_size=size)
    saved = _saved(compare(experiment, Costs()))
    by_cost = [
        {"requestMicroseconds": cost, "loadWithCells": round(load * 100, 1)}
        for cost, load in sensitivity(experiment, REQUEST_US).items()
    ]
    month = []
    for policy in POLICIES:
        report(f"simulating a month: {policy.name}")
        outcome = simulate(seed, policy, Scale(tenants=tenants, days=days))
        month.append(
            {
                "placement": policy.name,
                "hottestToMean": round(outcome.hottest_to_mean, 3),
                "hottestToMeanP99": round(outcome.hottest_to_mean_p99, 3),
                "hottest": round(outcome.hottest, 3),
                "cellHoursFull": round(outcome.hours_full, 5),
                "moves": outcome.moves,
                "cells": outcome.cells,
            }
        )
    view = Group(
        table_of(saved, {"24 BROKERS, 4 TENANTS": "what", "NO CELLS": "without", "CELLS": "with"}),
        "",
        table_of(by_cost, {"REQUEST COST US": "requestMicroseconds", "LOAD WITH CELLS %": "loadWithCells"}),
        "",
        table_of([{**row, **_rounded(row)} for row in month], MONTH_COLUMNS),
    )
    show({"experiment": saved, "loadByRequestCost": by_cost, "month": month}, options.form, view)
    return Exit.FINE


def _saved(comparison: Comparison) -> list[dict[str, Any]]:
    before, after = comparison.without, comparison.within
    rows = {
        "connections of a client": (before.connections_per_client, after.connections_per_client),
        "connections of a broker": (before.connections_per_broker, after.connections_per_broker),
        "produce requests/s of a broker": (before.produces, after.produces),
        "fetch requests/s of a broker": (before.fetches, after.fetches),
        "follower fetches/s of a broker": (before.follower_fetches, after.follower_fetches),
        "load, %": (comparison.load_without * 100, comparison.load_within * 100),
        "load in the paper, %": (PAPER_LOAD_WITHOUT * 100, PAPER_LOAD_WITH * 100),
    }
    return [{"what": what, "without": round(a, 1), "with": round(b, 1)} for what, (a, b) in rows.items()]


def _rounded(row: Mapping[str, Any]) -> dict[str, str]:
    ratios = {key: f"{row[key]:.2f}" for key in ("hottestToMean", "hottestToMeanP99", "hottest")}
    return {**ratios, "cellHoursFull": f"{row['cellHoursFull']:.2%}"}


@app.command
def quotas(
    *,
    seed: Seed = 1,
    seeds: Annotated[int, Parameter(help="Number of weeks, one for each seed from this one.")] = 1,
    tenants: Annotated[int, Parameter(help="Tenants, in cells of six brokers.")] = 2_000,
    brokers: Annotated[int, Parameter(help="Brokers, a multiple of six.")] = 120,
    days: Annotated[float, Parameter(help="Length of the week, in days.")] = 7.0,
    sensitivity: Annotated[
        bool, Parameter(help="Add other intervals, lost reports and fail-over.", negative="")
    ] = False,
    plot: Annotated[Path | None, Parameter(help="Plot throttled time to this file.")] = None,
    options: Options = Options(),
) -> int:
    """Compare ways of sharing quotas over a week of traffic.

    Example:  penstock sim quotas --tenants 300 --brokers 36 --days 0.5
    """
    where = "penstock sim quotas"
    for key, value, least in (("--seed", seed, 0), ("--seeds", seeds, 1), ("--tenants", tenants, 1)):
        if value < least:
            raise SettingInvalid(where=where, key=key, value=value, expected=f"expected {least} or more")
    if brokers < CELL_BROKERS or brokers % CELL_BROKERS:
        raise SettingInvalid(
            where=where, key="--brokers", value=brokers, expected=f"expected a multiple of {CELL_BROKERS}"
        )
    size = Size(tenants=tenants, brokers=brokers, days=days)
    # A week without a step would meet every objective.
    if not size.step_seconds <= days * DAY_SECONDS < math.inf:
        expected = f"expected {size.step_seconds:g} s or more, in days"
        raise SettingInvalid(where=where, key="--days", value=days, expected=expected)
    by_scheme: dict[str, list[Score]] = {}
    chosen = range(seed, seed + seeds)
    schemes = (*SCHEMES, *(SENSITIVITY if sensitivity else ()))
    report(f"simulating {seeds} x {days:g} days under {len(schemes)} schemes")
    for each, scores in zip(chosen, weeks(chosen, size, schemes), strict=True):
        report(f"seed {each}: done")
        for score in scores:
            by_scheme.setdefault(score.scheme, []).append(score)
    rows = [
        {
            "scheme": name,
            "objectiveMet": round(statistics.mean(score.met for score in scores), 6),
            "objectiveMetMin": min(score.met for score in scores),
            "throttledSeconds": round(statistics.mean(float(s.throttled_seconds.mean()) for s in scores), 3),
            "overshoot": round(max(score.overshoot for score in scores), 3),
        }
        for name, scores in by_scheme.items()
    ]
    if plot is not None:
        draw({scheme.name: by_scheme[scheme.name] for scheme in SCHEMES}, plot, days=days)
        report(f"wrote {plot}")
    shown = [
        {**row, "met": f"{row['objectiveMet']:.3%}", "min": f"{row['objectiveMetMin']:.3%}"} for row in rows
    ]
    columns = {
        "SHARES": "scheme", "TENANTS WITHIN 5 MIN A WEEK": "met", "WORST SEED": "min",
        "MEAN S THROTTLED": "throttledSeconds", "PEAK USE/QUOTA": "overshoot",
    }  # fmt: skip
    show(rows, options.form, table_of(shown, columns))
    return Exit.FINE
