"""`penstock sim health`: months of faults, judged and mitigated as the control plane does."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Group

from penstock.cli.output import report, show, table_of
from penstock.cli.settings import Options
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid
from penstock.sim.incident_month import (
    CASES,
    CLUSTERS_MAX,
    DAYS_MAX,
    Scale,
    calm,
    detected_share,
    month,
    play,
)
from penstock.sim.incidents import DAY_SECONDS, Outcome

SEEDS_MAX: Final = 100
YEAR_SECONDS: Final = 365 * DAY_SECONDS


def health(
    *,
    seed: Annotated[int, Parameter(help="0 or more. The same seed gives the same results.")] = 1,
    seeds: Annotated[int, Parameter(help="Number of runs, one for each seed from this one.")] = 1,
    clusters: Annotated[int, Parameter(help="Clusters of 6 to 24 brokers in three zones.")] = 300,
    days: Annotated[float, Parameter(help="Length of the simulation.")] = 30.0,
    calm_days: Annotated[int, Parameter(help="Days without a fault of one cluster, tick by tick.")] = 1,
    options: Options = Options(),
) -> int:
    """Simulate faults of brokers: what is detected, what is done, what clients get.

    Example:  penstock sim health --clusters 30
    """
    bounds = (
        ("--seed", seed, 0, math.inf),
        ("--seeds", seeds, 1, SEEDS_MAX),
        ("--clusters", clusters, 1, CLUSTERS_MAX),
        ("--days", days, 0.1, DAYS_MAX),
        ("--calm-days", calm_days, 0, SEEDS_MAX),
    )
    for key, value, least, most in bounds:
        if not least <= value <= most:
            expected = f"expected {least:g} to {most:g}" if most < math.inf else f"expected {least} or more"
            raise SettingInvalid(where="penstock sim health", key=key, value=value, expected=expected)
    cases = [_case(number, seed) for number in range(len(CASES))]
    rows: list[dict[str, Any]] = []
    for each in range(seed, seed + seeds):
        report(f"simulating {days:g} days of {clusters} clusters: seed {each}")
        rows.append(summary(each, month(each, Scale(clusters, days))))
    quiet = Outcome()
    for each in range(seed, seed + calm_days):
        report(f"simulating a day without a fault: seed {each}")
        quiet.add(calm(each))
    shown = [row | _rounded(row) for row in rows]
    columns = {
        "SEED": "seed", "FAULTS": "faults", "DETECTED": "detected", "MISNAMED": "misnamed", "STEPS": "steps",
        "NEEDLESS/BROKER-YEAR": "needless", "AVAILABLE WITHOUT": "without", "WITH": "with",
    }  # fmt: skip
    words = {"CASE": "case", "HANDLED": "shown", "DETECTED": "took", "STEPS": "taken"}
    steps = sum(quiet.actions.values())
    view = Group(
        table_of(cases, words), "", table_of(shown, columns), "",
        f"steps in {calm_days} days without a fault: {steps}",
    )  # fmt: skip
    kept = [{k: v for k, v in case.items() if k not in ("shown", "took", "taken")} for case in cases]
    show({"cases": kept, "months": rows, "calm": {"days": calm_days, "steps": steps}}, options.form, view)
    return Exit.FINE


def summary(seed: int, outcome: Outcome) -> dict[str, Any]:
    """One month as a row."""
    steps = sum(outcome.actions[step] for step in ("demote", "exclude", "hold", "restart"))
    return {
        "seed": seed,
        "faults": len(outcome.detected),
        "detectedInTime": round(detected_share(outcome), 5),
        "misnamed": outcome.misnamed,
        "steps": steps,
        "needless": len(outcome.needless),
        "needlessPerBrokerYear": round(len(outcome.needless) * YEAR_SECONDS / outcome.broker_seconds, 4),
        "availabilityWithout": round(1 - outcome.unattended_seconds / outcome.broker_seconds, 7),
        "availabilityWith": round(1 - outcome.failed_seconds / outcome.broker_seconds, 7),
        "ticks": outcome.ticks,
        "unfinished": outcome.unfinished,
    }


def _rounded(row: dict[str, Any]) -> dict[str, str]:
    return {
        "detected": f"{row['detectedInTime']:.1%}",
        "needless": f"{row['needlessPerBrokerYear']:.3f}",
        "without": f"{row['availabilityWithout']:.4%}",
        "with": f"{row['availabilityWith']:.4%}",
    }


def _case(number: int, seed: int) -> dict[str, Any]:
    played = play(CASES[number], seed)
    took = None if played.detected_seconds == math.inf else round(played.detected_seconds, 1)
    return {
        "case": played.name,
        "handled": played.handled,
        "failures": list(played.failures),
        "detectedSeconds": took,
        "steps": list(played.steps),
        "shown": "yes" if played.handled else "; ".join(played.failures),
        "took": "never" if took is None else f"{took:g} s",
        "taken": ", ".join(played.steps) or "none",
    }
