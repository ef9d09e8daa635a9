"""Planning at scale: seconds, memory, evenness, bytes moved, and plans that keep every promise.

Clusters are skewed: topics follow a power law and brokers carry up to four times as much as others. The peer
is the best rate that Cruise Control's users report for plans with all goals, 2,600 replicas a second
(2.8 million replicas in 18 minutes): it is quoted, not run.
"""

from __future__ import annotations

import resource as process_resource
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bench.balance_setup import ALL_GOALS, bytes_min, reported, skewed
from bench.harness import Result, Run, main
from penstock.balance.actions import Purpose, Request
from penstock.balance.cluster_model import build
from penstock.balance.goals import GOALS, TopicSpread, bounds_of, excess, imbalance, violations
from penstock.balance.model import Resource
from penstock.balance.planner import executed, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.balance.actions import Plan
    from penstock.balance.model import ClusterModel

SIZES = ((10_000, 30, 0.5), (100_000, 100, 5.0), (1_000_000, 300, 60.0), (1_000_000, 1_000, 60.0))
QUICK_REPLICAS = 100_000  # the largest of a quick run
MILLION = 1_000_000
PEER_RATE = 2_600.0  # replicas a second
EVEN = 1.10
SEEDS, PROPERTY_SEEDS, PROPERTY_SEEDS_QUICK = 3, 200, 20
MODEL_PARTITIONS = 333_000


def measure(run: Run) -> Iterator[Result]:
    for replicas, brokers, seconds in SIZES:
        if run.quick and replicas > QUICK_REPLICAS:
            name = f"plan-seconds-{replicas}-{brokers}"
            yield Result.missing(name, unit="s", goal=f"<= {seconds}", reason="left out by --quick")
            continue
        yield from _plans(run, replicas, brokers, seconds)
    yield from _tick(run)
    yield from _model(run)
    yield from _filling(run)
    yield from _promises(run)


def _seeds(run: Run) -> range:
    return range(1, 2 if run.quick else 1 + SEEDS)


def _plans(run: Run, replicas: int, brokers: int, most: float) -> Iterator[Result]:
    spent, uneven, moved, detail = [], [], [], []
    for seed in _seeds(run):
        run.log(f"{replicas:,} replicas on {brokers} brokers, seed {seed}")
        model = skewed(replicas, brokers, seed)
        start = time.process_time()
        done = plan(model, Request(), goals=ALL_GOALS)
        spent.append(time.process_time() - start)
        ratios = {each.name.lower(): imbalance(model, done.totals, each) for each in Resource}
        feasible = {each.name.lower(): _feasible(model, each) for each in Resource}
        uneven.append(EVEN * max(ratios[name] / feasible[name] for name in ratios))
        moved.append(done.bytes / bytes_min(model, bounds_of(model, ALL_GOALS)))
        detail.append({
            "seed": seed, "actions": dict(Counter(action.goal for action in done.actions)),
            "max_to_mean": {name: round(value, 3) for name, value in ratios.items()},
            "feasible": {name: round(value, 3) for name, value in feasible.items() if value > EVEN},
        })  # fmt: skip
    name = f"{replicas}-{brokers}"
    more = {"plans": detail}
    yield Result.of_runs(f"plan-seconds-{name}", spent, unit="s", goal=f"<= {most}", detail=more)
    yield Result.of_runs(f"max-to-mean-{name}", uneven, unit="of the feasible 1.10", goal=f"<= {EVEN}")
    yield Result.of_runs(f"bytes-to-minimum-{name}", moved, unit="ratio", goal="<= 1.5")
    if replicas == MILLION:
        rates = [replicas / seconds / PEER_RATE for seconds in spent]
        yield Result.of_runs(f"rate-{name}", rates, unit="ratio to Cruise Control", goal=">= 6")
        peak = process_resource.getrusage(process_resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Result(f"memory-{name}", peak, "MB", "<= 1500")


def _feasible(model: ClusterModel, resource: Resource) -> float:
    """No plan splits a partition: its leader may carry more than the goal all by itself."""
    carried = model.totals[:, resource].mean()
    return max(EVEN, float(model.costs.leader[:, resource].max() / carried)) if carried else EVEN


def _tick(run: Run) -> Iterator[Result]:
    """A round that finds nothing to do: what brokers carry, and whether a goal is violated."""
    replicas, brokers = (QUICK_REPLICAS, 100) if run.quick else (MILLION, 1_000)
    model = skewed(replicas, brokers, 1)
    spent = []
    for _ in range(SEEDS):
        start = time.process_time()
        violations(replace(model), GOALS)
        spent.append(time.process_time() - start)
    yield Result.of_runs("idle-tick", spent, unit="s", goal="<= 2", detail={"replicas": replicas})


def _model(run: Run) -> Iterator[Result]:
    partitions = QUICK_REPLICAS // 3 if run.quick else MODEL_PARTITIONS
    spent = []
    for seed in _seeds(run):
        run.log(f"a model of {partitions:,} partitions")
        facts = reported(partitions, 300, seed)
        start = time.process_time()
        build(facts)
        spent.append(time.process_time() - start)
    yield Result.of_runs("model", spent, unit="s", goal="<= 20", detail={"partitions": partitions})


def _filling(run: Run) -> Iterator[Result]:
    """The share of the bytes after which joining brokers have half of the load that they get."""
    shares, reached = [], []
    for seed in _seeds(run):
        model = skewed(QUICK_REPLICAS, 100, seed, joining=12)
        done = plan(model, Request(Purpose.FILL), goals=ALL_GOALS)
        copied = np.cumsum([action.bytes for action in done.actions])
        load = np.cumsum([action.carried_before - action.carried_after for action in done.actions])
        shares.append(float(copied[int(np.searchsorted(load, load[-1] / 2))] / copied[-1]))
        fair = done.totals[:, Resource.LOAD].mean()
        reached.append(float(done.totals[88:, Resource.LOAD].min() / fair))
    detail = {"least_filled_to_fair": [round(value, 3) for value in reached]}
    yield Result.of_runs("half-the-load-in-bytes", shares, unit="share", goal="<= 0.25", detail=detail)


def _promises(run: Run) -> Iterator[Result]:
    broken: Counter[str] = Counter()
    seeds = PROPERTY_SEEDS_QUICK if run.quick else PROPERTY_SEEDS
    run.log(f"the promises of {seeds} plans")
    for seed in range(seeds):
        model = skewed(6_000, 30, seed)
        excluded = np.arange(30) % 10 == seed % 10
        model = replace(model, brokers=replace(model.brokers, receives=~excluded))
        broken.update(_broken(model, plan(model, Request(), goals=ALL_GOALS)))
    for name in ("goals-worsened", "partitions-repeated", "ineligible-receivers"):
        yield Result(name, broken[name], f"of {seeds} plans", "== 0")


def _broken(model: ClusterModel, done: Plan) -> Counter[str]:
    after, bounds = executed(model, done.actions), bounds_of(model, ALL_GOALS)
    partitions = Counter(action.partition for action in done.actions)
    worse = sum(
        excess(after.totals, bounds, goal.resource)
        > excess(model.totals, bounds, goal.resource) * (1 + 1e-9) + 1e-6
        for goal in ALL_GOALS
    )
    worse += TopicSpread(after).excess() > TopicSpread(model).excess()
    new = {broker for action in done.actions for broker in set(action.after) - set(action.before)}
    return Counter({
        "goals-worsened": worse,
        "partitions-repeated": sum(count - 1 for count in partitions.values()),
        "ineligible-receivers": sum(not model.brokers.receives[broker] for broker in new),
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main("balance", measure))
