"""Draws a week of quotas: how long the most throttled tenants were throttled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.model.errors.settings import ExtraMissing
from penstock.sim.quota_week import objective_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.sim.quota_week import Score

WORST = 0.03  # share of the tenants that is shown


def draw(weeks: Mapping[str, Sequence[Score]], path: Path, *, days: float) -> None:
    """Scores by scheme, over all seeds, each `days` long. The file's suffix selects the format."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as missing:
        raise ExtraMissing(what="drawing", module="matplotlib", extra="plot") from missing
    canvas, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    try:
        for name, scores in weeks.items():
            seconds = np.sort(np.concatenate([score.throttled_seconds for score in scores]))[::-1]
            percent = 100 * np.arange(1, seconds.size + 1) / seconds.size
            shown = max(1, int(seconds.size * WORST))
            met = 100 * float(np.mean([score.met for score in scores]))
            axes.plot(percent[:shown], seconds[:shown] / 60, label=f"{name}: {met:.3f} % meet the objective")
        allowed = objective_seconds(days) / 60
        axes.axhline(allowed, color="black", linestyle=":", label="objective: 5 minutes a week")
        axes.set_xscale("log")  # the better schemes miss the objective for one tenant in thousands
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        axes.set(
            title="Throttled within quota: the most throttled tenants",
            xlabel="tenants, %, most throttled first",
            ylabel=f"minutes throttled in {days:g} days",
        )
        axes.legend(fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, dpi=120)
    finally:
        pyplot.close(canvas)
