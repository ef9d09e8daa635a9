"""Plot one trace: the load, the replicas of each scaler, and how long records waited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.errors.settings import ExtraMissing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.scale.simulate.run import Outcome


def draw(outcomes: Sequence[Outcome], objective: float, path: Path) -> None:
    """Saves the plot; the file's suffix determines its format."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as missing:
        raise ExtraMissing(what="drawing", module="matplotlib", extra="plot") from missing
    trace = outcomes[0].trace
    minutes = [second / 60 for second in range(trace.seconds)]
    drawing, (load, replicas, waits) = pyplot.subplots(3, sharex=True, figsize=(10, 8), layout="constrained")
    try:
        load.plot(minutes, trace.arrivals.sum(axis=1), linewidth=0.5, color="grey")
        load.set(title=f"{trace.name}: {trace.about}", ylabel="records a second")
        for outcome in outcomes:
            replicas.plot(minutes, outcome.replicas, label=outcome.arm, linewidth=1, drawstyle="steps-post")
            waits.plot(minutes, outcome.age, label=outcome.arm, linewidth=1)
        waits.axhline(objective, color="black", linestyle=":", label="objective")
        replicas.set(ylabel="replicas")
        waits.set(ylabel="oldest record, s", xlabel="minutes")
        replicas.legend(loc="upper right", fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=120)
    finally:
        pyplot.close(drawing)
