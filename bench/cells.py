"""What cells save and how evenly they fill: the paper's experiment, a month of tenants, one real move.

The model of `penstock.sim.batching` is shown with its own costs of a request and a kilobyte, and with
those measured here, on a real broker of a small machine. The month is `penstock.sim.month`, all
policies on one population a seed. The move takes a tenant across six real brokers while a producer
and a consumer work.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from bench.cells_ground import moved_under_load, request_costs
from bench.frame import Result, Run, main
from penstock.sim.batching import PAPER_LOAD_WITH, REQUEST_US, Costs, Experiment, compare, sensitivity
from penstock.sim.month import POLICIES, Setting, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sim.month import Outcome

SEEDS, SEEDS_QUICK = 5, 2
QUICK = Setting(tenants=2_000, days=15, cells=20)
COST_ROUNDS, COST_ROUNDS_QUICK = 5, 2


def measure(run: Run) -> Iterator[Result]:
    yield from _saved(run)
    yield from _month(run)
    yield from _move(run)


def _saved(run: Run) -> Iterator[Result]:
    both = compare(Experiment(), Costs())
    detail = {
        "paper_load_with": PAPER_LOAD_WITH,
        "load_without": both.load_without,
        "without": asdict(both.without),
        "within": asdict(both.within),
        "by_request_us": sensitivity(Experiment(), REQUEST_US),
    }
    yield Result("load-with-cells", both.load_within, "of capacity", "<= 0.6", detail=detail)
    run.say("processor time of requests on a real broker")
    found = asyncio.run(request_costs(COST_ROUNDS_QUICK if run.quick else COST_ROUNDS))
    yield Result.of_runs(
        "load-with-cells-measured-costs",
        [compare(Experiment(), costs).load_within for costs in found],
        unit="of capacity",
        detail={
            "request_us": [round(costs.request_us, 1) for costs in found],
            "kilobyte_us": [round(costs.kilobyte_us, 2) for costs in found],
        },
    )
    yield Result(
        "connections-per-client",
        both.within.connections_per_client / both.without.connections_per_client,
        "ratio to no cells",
        "<= 0.25",
    )
    yield Result("requests-per-broker", both.within.requests / both.without.requests, "ratio to no cells")


def _month(run: Run) -> Iterator[Result]:
    setting = QUICK if run.quick else Setting()
    seeds = range(1, 1 + (SEEDS_QUICK if run.quick else SEEDS))
    outcomes: dict[str, list[Outcome]] = {}
    for policy in POLICIES:
        run.say(f"a month: {policy.name}")
        outcomes[policy.name] = [simulate(seed, policy, setting) for seed in seeds]
    ours = outcomes["two choices"]
    for other in ("random", "least loaded"):
        ratios = [
            mine.hottest_to_mean / theirs.hottest_to_mean for mine, theirs in zip(ours, outcomes[other])
        ]
        yield Result.of_runs(
            f"hottest-to-mean-against-{other.replace(' ', '-')}", ratios, unit="ratio", goal="< 1"
        )
    for name, found in outcomes.items():
        key = name.replace(", ", "-").replace(" ", "-")
        yield Result.of_runs(
            f"hottest-to-mean-{key}",
            [each.hottest_to_mean for each in found],
            unit="hottest cell to mean",
            detail={
                "moves": [each.moves for each in found],
                "cells": [each.cells for each in found],
                "hours_full": [round(each.hours_full, 5) for each in found],
            },
        )
    run.plot_runs(
        "month",
        {name: [each.hottest_to_mean for each in found] for name, found in outcomes.items()},
        title="hottest cell against the mean, by placement",
        unit="ratio",
    )


def _move(run: Run) -> Iterator[Result]:
    run.say("a tenant moves across six brokers while its clients work")
    moved = asyncio.run(moved_under_load(megabytes=20 if run.quick else 200))
    yield Result("move-client-errors", moved.errors, "errors", "== 0", detail=asdict(moved))
    yield Result("move-seconds", moved.seconds, "s")


if __name__ == "__main__":
    sys.exit(main("cells", measure))
