"""`penstock sim`: simulates the platform's decisions for a whole fleet, without a cluster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.library.sim_health import health
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
from penstock.sim.rebalance import BROKERS_MAX, FACTOR, REPLICAS_MAX, ZONES
from penstock.sim.rebalance import POLICIES as REBALANCE_POLICIES
from penstock.sim.rebalance import Scale as RebalanceScale
from penstock.sim.rebalance import simulate as rebalance
from penstock.sim.roll_batches import BROKERS_MAX as ROLL_BROKERS_MAX
from penstock.sim.roll_batches import BROKERS_MIN as ROLL_BROKERS_MIN
from penstock.sim.roll_batches import RESTART_SECONDS
from penstock.sim.roll_batches import simulate as roll_cluster
from penstock.sim.sizing import CLUSTERS_MAX, DAYS_MAX, ORACLE
from penstock.sim.sizing import Outcome as SizingOutcome
from penstock.sim.sizing import Scale as SizingScale
from penstock.sim.sizing import compare as compare_sizing
from penstock.sim.traffic import CELL_BROKERS, DAY_SECONDS, Size

app = App(name="sim", help="Simulate the platform's decisions for a whole fleet, from a seed.")
app.command(health)

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


@app.command
def rolls(
    *,
    seed: Seed = 1,
    brokers: Annotated[list[int] | None, Parameter(help="Sizes of the cluster.", negative="")] = None,
    restart: Annotated[float, Parameter(help="Seconds of one restart, on the median.")] = RESTART_SECONDS,
    options: Options = Options(),
) -> int:
    """Simulate rolls of whole clusters: their time against one broker after the other.

    Example:  penstock sim rolls --brokers 6 --brokers 300
    """
    where, rows = "penstock sim rolls", []
    if seed < 0 or restart <= 0:
        key, value = ("--seed", seed) if seed < 0 else ("--restart", restart)
        raise SettingInvalid(where=where, key=key, value=value, expected="expected more than that")
    for size in brokers or (6, 30, 100, 300, 1_000):
        if not ROLL_BROKERS_MIN <= size <= ROLL_BROKERS_MAX:
            expected = f"expected {ROLL_BROKERS_MIN} to {ROLL_BROKERS_MAX}"
            raise SettingInvalid(where=where, key="--brokers", value=size, expected=expected)
        report(f"rolling {size} brokers")
        outcome = roll_cluster(seed, size, restart)
        rows.append(
            {
                "brokers": size,
                "batches": outcome.batches,
                "minutes": round(outcome.seconds / 60, 1),
                "serialMinutes": round(outcome.serial_seconds / 60, 1),
                "ratio": round(outcome.ratio, 3),
                "zonesAtOnce": outcome.zones_at_once,
                "minutesUnderMinimum": round(outcome.under_minimum_seconds / 60, 2),
            }
        )
    columns = {
        "BROKERS": "brokers", "BATCHES": "batches", "MINUTES": "minutes", "SERIAL": "serialMinutes",
        "RATIO": "ratio", "ZONES AT ONCE": "zonesAtOnce", "UNDER MIN ISR": "minutesUnderMinimum",
    }  # fmt: skip
    show(rows, options.form, table_of(rows, columns))
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


@app.command
def balance(
    *,
    seed: Seed = 1,
    brokers: Annotated[int, Parameter(help="Brokers in three zones, a multiple of three.")] = 60,
    replicas: Annotated[int, Parameter(help="Replicas, three of each partition.")] = 18_000,
    days: Annotated[float, Parameter(help="Length of the simulation.")] = 5.0,
    options: Options = Options(),
) -> int:
    """Compare what balancing achieves and copies, under drifting load and lost brokers.

    Example:  penstock sim balance --brokers 30 --replicas 3000 --days 2
    """
    bounds = (
        ("--seed", seed, 0, math.inf),
        ("--brokers", brokers, 2 * ZONES, BROKERS_MAX),
        ("--replicas", replicas, FACTOR * brokers, REPLICAS_MAX),
        ("--days", days, 0.1, 365),
    )
    for key, value, least, most in bounds:
        if not least <= value <= most:
            expected = f"expected {least} to {most}" if most < math.inf else f"expected {least} or more"
            raise SettingInvalid(where="penstock sim balance", key=key, value=value, expected=expected)
    if brokers % ZONES:
        raise SettingInvalid(
            where="penstock sim balance", key="--brokers", value=brokers, expected="expected a multiple of 3"
        )
    scale = RebalanceScale(brokers=brokers, replicas=replicas, days=days)
    rows: list[dict[str, Any]] = []
    for policy in REBALANCE_POLICIES:
        report(f"simulating {days:g} days of {replicas:,} replicas: {policy.name}")
        done = rebalance(seed, policy, scale)
        rows.append({
            "policy": done.policy, "hoursOver80": done.hours_over, "hottestToMean": done.hottest_to_mean,
            "bytesBalanced": done.bytes_balanced, "bytesRepaired": done.bytes_repaired,
            "moves": done.moves, "plans": done.plans,
        })  # fmt: skip
    shown = [
        {
            **row,
            "hottestToMean": f"{row['hottestToMean']:.2f}",
            "balanced": f"{row['bytesBalanced'] / 1e12:.2f}",
            "repaired": f"{row['bytesRepaired'] / 1e12:.2f}",
        }
        for row in rows
    ]
    columns = {
        "POLICY": "policy", "BROKER-HOURS OVER 80%": "hoursOver80", "HOTTEST/MEAN": "hottestToMean",
        "TB BALANCED": "balanced", "TB REPAIRED": "repaired", "MOVES": "moves", "PLANS": "plans",
    }  # fmt: skip
    show(rows, options.form, table_of(shown, columns))
    return Exit.FINE


@app.command
def sizing(
    *,
    seed: Seed = 1,
    seeds: Annotated[int, Parameter(help="Number of quarters, one for each seed from this one.")] = 1,
    clusters: Annotated[int, Parameter(help="Clusters in three zones.")] = 300,
    days: Annotated[int, Parameter(help="Length of the simulation, after four weeks of history.")] = 90,
    options: Options = Options(),
) -> int:
    """Compare what policies of sizing cost, and how often clusters are overloaded.

    Example:  penstock sim sizing --clusters 50 --days 30
    """
    bounds = (
        ("--seed", seed, 0, math.inf),
        ("--seeds", seeds, 1, 100),
        ("--clusters", clusters, 1, CLUSTERS_MAX),
        ("--days", days, 1, DAYS_MAX),
    )
    for key, value, least, most in bounds:
        if not least <= value <= most:
            expected = f"expected {least} to {most}" if most < math.inf else f"expected {least} or more"
            raise SettingInvalid(where="penstock sim sizing", key=key, value=value, expected=expected)
    outcomes: dict[str, list[SizingOutcome]] = {}
    for each in range(seed, seed + seeds):
        report(f"simulating {days} days of {clusters} clusters: seed {each}")
        for outcome in compare_sizing(each, SizingScale(clusters, days)):
            outcomes.setdefault(outcome.policy, []).append(outcome)
    cost = {policy: sum(each.broker_hours for each in runs) for policy, runs in outcomes.items()}
    rows: list[dict[str, Any]] = [
        {
            "policy": policy,
            "brokerHours": round(cost[policy]),
            "costToOracle": round(cost[policy] / cost[ORACLE], 3),
            "overloadedHours": sum(each.overloaded_hours for each in runs),
            "changesPerMonth": round(statistics.mean(each.changes_month for each in runs), 2),
            "changesPerMonthMax": round(max(each.changes_month_max for each in runs), 2),
        }
        for policy, runs in outcomes.items()
    ]
    columns = {
        "POLICY": "policy", "BROKER-HOURS": "brokerHours", "COST/ORACLE": "costToOracle",
        "HOURS OVERLOADED": "overloadedHours", "CHANGES/MONTH": "changesPerMonth",
        "MOST OF A CLUSTER": "changesPerMonthMax",
    }  # fmt: skip
    show(rows, options.form, table_of(rows, columns))
    return Exit.FINE
