"""Ways of sharing quotas over a week of traffic, simulated: which tenants meet the objective?

The paper's figures (Kora §5.2.2): 99 % of tenants with static shares, over 99.9 % with dynamic ones. The
population is fitted to the first, by static shares alone, and then left alone; `--only calibration` shows
what it was fitted by (see `penstock.sim.traffic`).

Each week is kept in `bench/out/quotas` as soon as it has been simulated, under a name made of all that it
follows from: a run that was interrupted goes on where it was, and one after a change begins anew.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import penstock.quota.reports
import penstock.quota.sharing
import penstock.quota.tuning
import penstock.sim.quotas
import penstock.sim.traffic
from bench.frame import Result, Run, main
from penstock.sim.plot import draw
from penstock.sim.quotas import SCHEMES, SENSITIVITY, STATIC, Score, weeks
from penstock.sim.traffic import CALIBRATION_SEEDS, USE_MEDIAN, Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.sim.quotas import Scheme

DISTURBED_SEEDS = CALIBRATION_SEEDS[:5]
QUICK = Size(tenants=300, brokers=18, days=1.0)
QUICK_SEEDS = CALIBRATION_SEEDS[:1]
GOALS = {"static": None, "dynamic": "> 0.999", "dynamic, lazy": "> 0.9995"}
USE_MEDIANS = (0.008, 0.0095)  # that were tried, in this order
LINES = ("calibration", "schemes", "disturbed")
SOURCES = (
    penstock.quota.reports,
    penstock.quota.sharing,
    penstock.quota.tuning,
    penstock.sim.quotas,
    penstock.sim.traffic,
)


def measure(run: Run) -> Iterator[Result]:
    seeds = QUICK_SEEDS if run.quick else CALIBRATION_SEEDS
    if run.wants("calibration"):
        for use in USE_MEDIANS:
            scores = simulated(run, seeds, (STATIC,), use)["static"]
            yield _result(f"static-at-{use}", scores, None)
    if run.wants("schemes"):
        found = simulated(run, seeds, SCHEMES)
        for name, scores in found.items():
            yield _result(name, scores, None if run.quick else GOALS[name])
        off = abs(statistics.mean(score.met for score in found["static"]) - 0.99)
        yield Result("static-off-calibration", off, "of tenants", None if run.quick else "<= 0.002")
        draw(found, run.out / "quotas-week.png", days=_size(run).days)
    if run.wants("disturbed"):
        disturbed = simulated(run, QUICK_SEEDS if run.quick else DISTURBED_SEEDS, SENSITIVITY)
        for name, scores in disturbed.items():
            yield _result(name, scores, None)


def simulated(
    run: Run, seeds: Sequence[int], schemes: Sequence[Scheme], use_median: float = USE_MEDIAN
) -> dict[str, list[Score]]:
    """By scheme, the weeks of all seeds."""
    size = _size(run)
    kept = run.out / "quotas"
    kept.mkdir(parents=True, exist_ok=True)
    paths = {
        (seed, scheme): kept / _name(seed, size, scheme, use_median) for seed in seeds for scheme in schemes
    }
    missing = [seed for seed in seeds if not all(paths[seed, scheme].exists() for scheme in schemes)]
    if missing:
        run.say(f"{len(missing)} weeks under {len(schemes)} schemes, tenants using {use_median:.2%}")
    for seed, scores in zip(missing, weeks(missing, size, schemes, use_median=use_median), strict=True):
        run.say(f"seed {seed}: done")
        for scheme, score in zip(schemes, scores, strict=True):
            _keep(paths[seed, scheme], score)
    return {scheme.name: [_kept(paths[seed, scheme], scheme) for seed in seeds] for scheme in schemes}


def _size(run: Run) -> Size:
    return QUICK if run.quick else Size()


def _name(seed: int, size: Size, scheme: Scheme, use_median: float) -> str:
    whole = hashlib.sha256(repr((seed, size, scheme, use_median, np.__version__)).encode())
    for module in SOURCES:
        whole.update(Path(str(module.__file__)).read_bytes())
    return f"{seed}-{whole.hexdigest()[:16]}.npz"


def _keep(path: Path, score: Score) -> None:
    half = path.with_suffix(".half")
    with half.open("wb") as file:
        np.savez(
            file,
            throttled_seconds=score.throttled_seconds,
            figures=np.array([score.met, score.pressed, score.overshoot]),
        )
    half.replace(path)


def _kept(path: Path, scheme: Scheme) -> Score:
    with np.load(path) as file:
        met, pressed, overshoot = file["figures"].tolist()
        return Score(scheme.name, met, file["throttled_seconds"], pressed, overshoot)


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
    sys.exit(main("quotas", measure, lines=LINES))
