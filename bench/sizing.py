"""Sizing: how fast fleets are computed, and what sizes cost in a simulated quarter.

The first result is the processor time of `penstock.balance.sizing` for 500 profiles and 1,000 clusters. The
others are `penstock.sim.sizing`: 300 clusters over 90 days, all policies on the same population per seed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING

import numpy as np

from bench.harness import Result, Run, main
from penstock.balance.load_cost import LoadCost
from penstock.balance.profiles import HardwareProfile, Measured, Rate, Volume
from penstock.balance.sizing import Demand, sized
from penstock.sim.sizing import ORACLE, Scale, compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sim.sizing import Outcome

PROFILES, CLUSTERS, ROUNDS = 500, 1_000, 5
SEEDS, SEEDS_QUICK = 5, 1
QUICK = Scale(clusters=60, days=90)


def measure(run: Run) -> Iterator[Result]:
    yield _sized(run)
    yield from _quarter(run)


def _sized(run: Run) -> Result:
    run.log(f"sizing {PROFILES} profiles x {CLUSTERS} clusters")
    random = np.random.default_rng(1)
    profiles = [_profile(number, float(random.integers(2, 64))) for number in range(PROFILES)]
    demands = [
        Demand(float(rate), float(rate) * 3, rate / 1e4, rate / 1e5, 4_000, float(rate) * 86_400)
        for rate in random.uniform(1e6, 1e9, CLUSTERS)
    ]
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        sized(demands, profiles)
        seconds.append(time.process_time() - started)
    return Result.of_runs("sized-processor-seconds", seconds, unit="s", goal="<= 1")


def _profile(number: int, processors: float) -> HardwareProfile:
    network, disk = processors * 50e6, processors * 60e6
    cost = LoadCost(0.016 / processors, 0.004 / processors, 0.08 / processors, 0.04 / processors)
    ingress, egress = processors * 25e6, processors * 75e6
    return HardwareProfile(
        f"p{number}", processors, processors * 8e9, Rate(network, 2 * network),
        (Volume(2e12, Rate(disk, disk)),), ("a", "b", "c"),
        measured=Measured(date(2026, 11, 1), "4.3.1", "c2", ingress, egress, cost, {}),
    )  # fmt: skip


def _quarter(run: Run) -> Iterator[Result]:
    scale = QUICK if run.quick else Scale()
    outcomes: dict[str, list[Outcome]] = {}
    for seed in range(1, 1 + (SEEDS_QUICK if run.quick else SEEDS)):
        run.log(f"a quarter of {scale.clusters} clusters: seed {seed}")
        for outcome in compare(seed, scale):
            outcomes.setdefault(outcome.policy, []).append(outcome)
    ours, fixed, best = outcomes["ours"], outcomes["static peak"], outcomes[ORACLE]
    detail = {policy: [asdict(each) for each in runs] for policy, runs in outcomes.items()}
    yield Result.of_runs(
        "cost-to-oracle",
        [own.broker_hours / other.broker_hours for own, other in zip(ours, best, strict=True)],
        unit="ratio",
        goal="<= 1.15",
        detail=detail,
    )
    yield Result.of_runs(
        "cost-to-static-peak",
        [own.broker_hours / other.broker_hours for own, other in zip(ours, fixed, strict=True)],
        unit="ratio",
        goal="<= 0.7",
    )
    hours = sum(each.overloaded_hours for each in ours), sum(each.overloaded_hours for each in fixed)
    yield Result(
        "overloaded-hours-to-static-peak",
        hours[0] / hours[1] if hours[1] else float(hours[0] > 0) * 2,
        "ratio, all seeds",
        "<= 1.0",
        detail={"ours": hours[0], "static_peak": hours[1], "zero_of_zero_counts_as": 0},
    )
    changes = [each.changes_month for each in ours]
    yield Result.of_runs(
        "size-changes-per-cluster-and-month",
        changes,
        unit="changes",
        goal="<= 2",
        detail={"most_of_one_cluster": [each.changes_month_max for each in ours]},
    )


if __name__ == "__main__":
    sys.exit(main("sizing", measure))
