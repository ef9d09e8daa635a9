"""Ways of sharing quotas over a simulated week of traffic: how many tenants meet the objective?

Kora §5.2.2 reports 99 % of tenants with static shares and over 99.9 % with dynamic ones. The population
is fitted to the first, with static shares only, and then left unchanged; `--only calibration` shows the
candidates (see `penstock.sim.traffic`).

Each simulated week is saved in `bench/out/quotas`, under a name derived from everything it depends on. An
interrupted run resumes where it was; a run after a change starts from scratch.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import penstock.quota.auto_tuning
import penstock.quota.sharing
import penstock.quota.usage_reports
import penstock.sim.quota_week
import penstock.sim.traffic
from bench.harness import Result, Run, main
from penstock.sim.plot import draw
from penstock.sim.quota_week import SCHEMES, SENSITIVITY, STATIC, Score, weeks
from penstock.sim.traffic import CALIBRATION_SEEDS, USE_MEDIAN, Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.sim.quota_week import Scheme

DISTURBED_SEEDS = CALIBRATION_SEEDS[:5]
QUICK = Size(tenants=300, brokers=18, days=1.0)
QUICK_SEEDS = CALIBRATION_SEEDS[:1]
GOALS = {"static": None, "dynamic": "> 0.999", "dynamic, lazy": "> 0.9995"}
USE_MEDIANS = (0.008, 0.0095)  # the candidates, in the order tried
LINES = ("calibration", "schemes", "disturbed")
SOURCES = (
    penstock.quota.usage_reports,
    penstock.quota.sharing,
    penstock.quota.auto_tuning,
    penstock.sim.quota_week,
    penstock.sim.traffic,
)


def measure(run: Run) -> Iterator[Result]:
    seeds = QUICK_SEEDS if run.quick else CALIBRATION_SEEDS
    if run.wants("calibration"):
        for use in USE_MEDIANS:
            scores = simulated(run, seeds, (STATIC,), use)["static"]
            yield _result(f"static-at-{use}", scores, None)
    if run.wants("schemes"):
        by_scheme = simulated(run, seeds, SCHEMES)
        for name, scores in by_scheme.items():
            yield _result(name, scores, None if run.quick else GOALS[name])
        off = abs(statistics.mean(score.met for score in by_scheme["static"]) - 0.99)
        yield Result("static-off-calibration", off, "of tenants", None if run.quick else "<= 0.002")
        draw(by_scheme, run.out / "quotas-week.png", days=_size(run).days)
    if run.wants("disturbed"):
        disturbed = simulated(run, QUICK_SEEDS if run.quick else DISTURBED_SEEDS, SENSITIVITY)
        for name, scores in disturbed.items():
            yield _result(name, scores, None)


def simulated(
    run: Run, seeds: Sequence[int], schemes: Sequence[Scheme], use_median: float = USE_MEDIAN
) -> dict[str, list[Score]]:
    """The weeks of all seeds, by scheme."""
    size = _size(run)
    saved = run.out / "quotas"
    saved.mkdir(parents=True, exist_ok=True)
    paths = {
        (seed, scheme): saved / _name(seed, size, scheme, use_median) for seed in seeds for scheme in schemes
    }
    missing = [seed for seed in seeds if not all(paths[seed, scheme].exists() for scheme in schemes)]
    if missing:
        run.log(f"{len(missing)} weeks under {len(schemes)} schemes, tenants using {use_median:.2%}")
    for seed, scores in zip(missing, weeks(missing, size, schemes, use_median=use_median), strict=True):
        run.log(f"seed {seed}: done")
        for scheme, score in zip(schemes, scores, strict=True):
            _save(paths[seed, scheme], score)
    return {scheme.name: [_load(paths[seed, scheme], scheme) for seed in seeds] for scheme in schemes}


def _size(run: Run) -> Size:
    return QUICK if run.quick else Size()


def _name(seed: int, size: Size, scheme: Scheme, use_median: float) -> str:
    digest = hashlib.sha256(repr((seed, size, scheme, use_median, np.__version__)).encode())
    for module in SOURCES:
        digest.update(Path(str(module.__file__)).read_bytes())
    return f"{seed}-{digest.hexdigest()[:16]}.npz"


def _save(path: Path, score: Score) -> None:
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(
            file,
            throttled_seconds=score.throttled_seconds,
            scores=np.array([score.met, score.pressed, score.overshoot]),
        )
    partial.replace(path)


def _load(path: Path, scheme: Scheme) -> Score:
    with np.load(path) as file:
        met, pressed, overshoot = file["scores"].tolist()
        return Score(scheme.name, met, file["throttled_seconds"], pressed, overshoot)


def _result(name: str, scores: list[Score], goal: str | None) -> Result:
    """The mean, not the median: a seed's value changes in steps of one tenant."""
    met = [score.met for score in scores]
    detail = {
        "mean_throttled_seconds": [round(float(score.throttled_seconds.mean()), 3) for score in scores],
        "peak_use_to_quota": [round(score.overshoot, 3) for score in scores],
    }
    key = name.replace(", ", "-").replace(" ", "-")
    return Result(f"met-{key}", statistics.mean(met), "of tenants", goal, tuple(met), detail)


if __name__ == "__main__":
    sys.exit(main("quotas", measure, lines=LINES))
