"""What cells save, and how evenly they fill: the paper's experiment, a simulated month, one real move.

The model of `penstock.sim.cell_batching` runs with its own costs of a request and a kilobyte, and with
costs measured on a real broker of this machine. The month is `penstock.sim.cell_month`, with every policy
on the same population per seed. The move takes a tenant across six real brokers while a producer and a
consumer run.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from bench.cells_setup import moved_under_load, request_costs
from bench.harness import Result, Run, main
from penstock.sim.cell_batching import PAPER_LOAD_WITH, REQUEST_US, Costs, Experiment, compare, sensitivity
from penstock.sim.cell_month import POLICIES, Scale, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sim.cell_month import Outcome

SEEDS, SEEDS_QUICK = 5, 2
QUICK = Scale(tenants=2_000, days=15, cells=20)
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
    run.log("processor time of requests on a real broker")
    measured = asyncio.run(request_costs(COST_ROUNDS_QUICK if run.quick else COST_ROUNDS))
    yield Result.of_runs(
        "load-with-cells-measured-costs",
        [compare(Experiment(), costs).load_within for costs in measured],
        unit="of capacity",
        detail={
            "request_us": [round(costs.request_us, 1) for costs in measured],
            "kilobyte_us": [round(costs.kilobyte_us, 2) for costs in measured],
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
    setting = QUICK if run.quick else Scale()
    seeds = range(1, 1 + (SEEDS_QUICK if run.quick else SEEDS))
    outcomes: dict[str, list[Outcome]] = {}
    for policy in POLICIES:
        run.log(f"a month: {policy.name}")
        outcomes[policy.name] = [simulate(seed, policy, setting) for seed in seeds]
    ours = outcomes["two choices"]
    for other in ("random", "least loaded"):
        ratios = [own.hottest_to_mean / peer.hottest_to_mean for own, peer in zip(ours, outcomes[other])]
        yield Result.of_runs(
            f"hottest-to-mean-against-{other.replace(' ', '-')}", ratios, unit="ratio", goal="< 1"
        )
    for name, months in outcomes.items():
        key = name.replace(", ", "-").replace(" ", "-")
        yield Result.of_runs(
            f"hottest-to-mean-{key}",
            [each.hottest_to_mean for each in months],
            unit="hottest cell to mean",
            detail={
                "moves": [each.moves for each in months],
                "cells": [each.cells for each in months],
                "hours_full": [round(each.hours_full, 5) for each in months],
            },
        )
    run.plot_runs(
        "month",
        {name: [each.hottest_to_mean for each in months] for name, months in outcomes.items()},
        title="hottest cell against the mean, by placement",
        unit="ratio",
    )


def _move(run: Run) -> Iterator[Result]:
    run.log("moving a tenant across six brokers while its clients run")
    moved = asyncio.run(moved_under_load(megabytes=20 if run.quick else 200))
    yield Result("move-client-errors", moved.errors, "errors", "== 0", detail=asdict(moved))
    yield Result("move-seconds", moved.seconds, "s")


if __name__ == "__main__":
    sys.exit(main("cells", measure))
