"""One picture of a week of quotas: how long the unluckiest tenants were throttled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.model.errors.settings import ExtraMissing
from penstock.sim.quotas import objective_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.sim.quotas import Score

WORST = 0.03  # part of the tenants that is shown


def draw(weeks: Mapping[str, Sequence[Score]], path: Path, *, days: float) -> None:
    """By scheme, the weeks of all seeds, each so many days long. The file's ending says its form."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as missing:
        raise ExtraMissing(what="drawing", module="matplotlib", extra="plot") from missing
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    try:
        for name, scores in weeks.items():
            seconds = np.sort(np.concatenate([score.throttled_seconds for score in scores]))[::-1]
            part = 100 * np.arange(1, seconds.size + 1) / seconds.size
            shown = max(1, int(seconds.size * WORST))
            met = 100 * float(np.mean([score.met for score in scores]))
            axes.plot(part[:shown], seconds[:shown] / 60, label=f"{name}: {met:.3f} % meet the objective")
        allowed = objective_seconds(days) / 60
        axes.axhline(allowed, color="black", linestyle=":", label="objective: 5 minutes a week")
        axes.set_xscale("log")  # who misses the objective under the better schemes is one in thousands
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        axes.set(
            title="Throttled within quota: the unluckiest tenants",
            xlabel="tenants, %, the most throttled first",
            ylabel=f"minutes throttled in {days:g} days",
        )
        axes.legend(fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)
