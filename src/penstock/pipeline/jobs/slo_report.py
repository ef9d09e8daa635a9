"""The weekly fleet SLO as a table and a plot (Kora, Figure 6)."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from penstock.atomic_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

US_IN_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Week:
    week: str
    clusters: int
    latency_median_ms: float | None
    latency_p90_ms: float | None
    latency_p99_ms: float | None
    change: float | None  # of the median against the week before; 0.1 is 10 % more
    availability_median: float
    availability_p90: float
    availability_p99: float


def weeks_of(fleet: DataFrame) -> list[Week]:
    """Weeks from the oldest to the newest."""
    weeks: list[Week] = []
    previous: float | None = None
    for row in sorted(fleet.collect(), key=lambda row: row.week):
        median, p90, p99 = (
            None if us is None else us / US_IN_MS
            for us in (row.latency_median_us, row.latency_p90_us, row.latency_p99_us)
        )
        change = median / previous - 1 if median is not None and previous else None
        available = (1 - row.unavailable_median, 1 - row.unavailable_p90, 1 - row.unavailable_p99)
        weeks.append(Week(row.week.isoformat(), row.clusters, median, p90, p99, change, *available))
        previous = median
    return weeks


def draw(weeks: Sequence[Week], path: Path) -> None:
    """Writes a PNG, or an HTML page with plot and table if the file name ends in `.html`."""
    picture = _plot(weeks)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".html":
        write_atomically(path, picture)
        return
    names = list(Week.__dataclass_fields__)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in asdict(week).values()) + "</tr>"
        for week in weeks
    )
    encoded = base64.b64encode(picture).decode()
    write_atomically(
        path,
        '<!doctype html><meta charset="utf-8"><title>Fleet SLO</title>'
        "<style>body{font:14px system-ui;margin:2em}td,th{padding:.2em .8em;text-align:right}</style>"
        f'<h1>Fleet SLO, week over week</h1><img alt="weekly latency" src="data:image/png;base64,{encoded}">'
        f"<table><tr>{head}</tr>{body}</table>",
    )


def _plot(weeks: Sequence[Week]) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    canvas, (latency, availability) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    names = [week.week for week in weeks]
    for level in ("median", "p90", "p99"):
        latency.plot(names, [getattr(week, f"latency_{level}_ms") for week in weeks], marker="o", label=level)
        availability.plot(
            names, [getattr(week, f"availability_{level}") for week in weeks], marker="o", label=level
        )
    latency.set(title="End-to-end latency of clusters, weekly P99", ylabel="ms")
    availability.set(title="Availability of clusters, worst minute in a hundred", xlabel="week")
    latency.set_ylim(bottom=0)
    latency.legend()
    for label in availability.get_xticklabels():
        label.set_rotation(30)
    out = io.BytesIO()
    try:
        canvas.savefig(out, format="png", dpi=120)
    finally:
        pyplot.close(canvas)
    return out.getvalue()


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str("–" if value is None else value))
