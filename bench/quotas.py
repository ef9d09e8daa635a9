"""Ways of sharing quotas over a week of traffic, simulated: which tenants meet the objective?

The paper's figures (Kora §5.2.2): 99 % of tenants with static shares, over 99.9 % with dynamic ones. The
population is fitted to the first and then left alone; see `penstock.sim.traffic`.
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING

from bench.frame import Result, Run, main
from penstock.sim.plot import draw
from penstock.sim.quotas import SCHEMES, SENSITIVITY, week
from penstock.sim.traffic import Size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sim.quotas import Score

SEEDS = range(1, 21)
QUICK = Size(tenants=300, brokers=18, days=1.0)
GOALS = {"static": None, "dynamic": "> 0.999", "dynamic, lazy": "> 0.9995"}


def measure(run: Run) -> Iterator[Result]:
    seeds = SEEDS[:1] if run.quick else SEEDS
    size = QUICK if run.quick else Size()
    weeks: dict[str, list[Score]] = {}
    for seed in seeds:
        run.say(f"seed {seed}")
        for score in week(seed, size, SCHEMES):
            weeks.setdefault(score.scheme, []).append(score)
    for name, scores in weeks.items():
        goal = None if run.quick else GOALS[name]
        yield _result(name, scores, goal)
    static = statistics.mean(score.met for score in weeks["static"])
    yield Result(
        "static-off-calibration", abs(static - 0.99), "of tenants", None if run.quick else "<= 0.002"
    )
    run.say("disturbed")
    for score in week(seeds[0], size, SENSITIVITY):
        yield _result(score.scheme, [score], None)
    run.out.mkdir(parents=True, exist_ok=True)
    draw(weeks, run.out / "quotas-week.png")


def _result(name: str, scores: list[Score], goal: str | None) -> Result:
    """The mean, not the median: a seed's figure moves in steps of one tenant."""
    met = [score.met for score in scores]
    detail = {
        "mean_throttled_seconds": [round(float(score.throttled_seconds.mean()), 3) for score in scores],
        "peak_use_to_quota": [round(score.overshoot, 3) for score in scores],
    }
    key = name.replace(", ", "-").replace(" ", "-")
    return Result(f"met-{key}", statistics.mean(met), "of tenants", goal, tuple(met), detail)


if __name__ == "__main__":
    sys.exit(main("quotas", measure))
