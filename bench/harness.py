"""What every bench shares: the lock, facts about the machine, results, tables and plots.

    def measure(run: Run) -> Iterator[Result]:
        series = interleave({"ours": ours, "peer": peer}, rounds=3 if run.quick else 5)
        runs = series["ours"].ratios(series["peer"])
        yield Result.of_runs("copy-cpu", runs, unit="ratio to peer", goal="<= 1.3")

    if __name__ == "__main__":
        sys.exit(main("copy", measure))

The table goes to standard output and progress to standard error. With `--json`, the last line of standard
output is one JSON document. A missed goal is a result, not a failure: the exit status only shows whether
everything was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

from bench.measure import Series, interleave, processor_seconds
from penstock.process_identity import try_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from matplotlib.axes import Axes

__all__ = ["Result", "Run", "Series", "exclusive_bench", "interleave", "main", "processor_seconds"]

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
LOCK_POLL_SECONDS = 1.0
TABLE_COLUMNS = 160  # without a terminal
DIGITS = 6  # significant digits in the JSON document

_GOAL = re.compile(r"(<=|>=|<|>|==)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Result:
    """One result: a value, its goal, and the runs whose median it is.

    `value` is None if it could not be measured; `reason` then gives the cause, and `holds` is None.
    `optional` marks a comparison with a peer that may be missing; a missing peer is never a win. A result
    without a goal is for information.
    """

    name: str
    value: float | None
    unit: str
    goal: str | None = None
    runs: tuple[float, ...] = ()
    detail: Mapping[str, object] = field(default_factory=dict)
    optional: bool = False
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.goal is not None and not _GOAL.fullmatch(self.goal):
            raise ValueError(f"{self.name}: goal {self.goal!r} is not like '<= 1.3'")
        if (self.value is None) == (self.reason is None):
            raise ValueError(f"{self.name}: needs either a value or the reason why there is none")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"{self.name}: {self.value} is not a number; use `missing` with a reason")

    @classmethod
    def of_runs(
        cls,
        name: str,
        runs: Iterable[float],
        *,
        unit: str,
        goal: str | None = None,
        detail: Mapping[str, object] | None = None,
        optional: bool = False,
    ) -> Result:
        """The median of several runs."""
        values = tuple(runs)
        return cls(name, statistics.median(values), unit, goal, values, detail or {}, optional)

    @classmethod
    def missing(
        cls, name: str, *, unit: str, reason: str, goal: str | None = None, optional: bool = False
    ) -> Result:
        return cls(name, None, unit, goal, optional=optional, reason=reason)

    @property
    def holds(self) -> bool | None:
        if self.value is None or self.goal is None:
            return None
        match = _GOAL.fullmatch(self.goal)
        assert match is not None  # checked in __post_init__
        return bool(_COMPARE[match[1]](self.value, float(match[2])))

    def as_json(self) -> dict[str, object]:
        line: dict[str, object] = {
            "name": self.name,
            "value": None if self.value is None else significant(self.value),
            "unit": self.unit,
            "goal": self.goal,
            "holds": self.holds,
            "runs": [significant(run) for run in self.runs],
            "detail": dict(self.detail),
        }
        if self.optional:
            line["optional"] = True
        if self.reason is not None:
            line["reason"] = self.reason
        return line


def significant(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True, slots=True)
class Run:
    """The options of one run: how long it may take, what to measure, where its plots go."""

    area: str
    quick: bool
    out: Path
    progress: TextIO
    only: frozenset[str] = frozenset()  # the lines chosen with `--only`; empty means all

    def wants(self, line: str) -> bool:
        return not self.only or line in self.only

    def log(self, line: str) -> None:
        """Prints one line of progress."""
        print(f"bench.{self.area}: {line}", file=self.progress, flush=True)

    @contextmanager
    def plot(self, name: str, *, title: str, x: str, y: str) -> Iterator[Axes]:
        """Axes to draw on; the plot is saved as `bench/out/<area>-<name>.png`."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        canvas, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        try:
            axes.set(title=title, xlabel=x, ylabel=y)
            yield axes
            self.out.mkdir(parents=True, exist_ok=True)
            canvas.savefig(self.out / f"{self.area}-{name}.png", dpi=120)
        finally:
            pyplot.close(canvas)

    def plot_runs(self, name: str, runs: Mapping[str, Sequence[float]], *, title: str, unit: str) -> None:
        """Plots every run as a dot and every median as a line, so that the noise is visible."""
        with self.plot(name, title=title, x="", y=unit) as axes:
            for index, values in enumerate(runs.values()):
                axes.plot([index] * len(values), values, "o", alpha=0.5)
                axes.hlines(statistics.median(values), index - 0.3, index + 0.3, color="black")
            axes.set_xticks(range(len(runs)), list(runs))
            axes.set_ylim(bottom=0)


@contextmanager
def exclusive_bench(area: str, *, progress: TextIO, path: Path | None = None) -> Iterator[None]:
    """Holds the machine-wide lock; the process's end releases it."""
    path = path or Path(tempfile.gettempdir()) / "penstock-bench.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        reported = ""
        while not try_lock(descriptor):
            holder = path.read_text(encoding="utf-8").strip() or "another bench"
            if holder != reported:
                print(f"bench.{area}: waiting for {holder}", file=progress, flush=True)
                reported = holder
            time.sleep(LOCK_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor, f"bench.{area}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}".encode(), 0
        )
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def commit() -> str:
    """The measured commit, with a plus sign if the tree has uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def document(
    area: str, results: Iterable[Result], *, quick: bool, load_before: float, seconds: float
) -> dict[str, object]:
    return {
        "area": area,
        "commit": commit(),
        "quick": quick,
        "seconds": round(seconds, 1),
        "machine": {
            "cores": os.cpu_count(),
            "load_before": round(load_before, 2),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "results": [result.as_json() for result in results],
    }


def table(area: str, results: Iterable[Result]) -> Table:
    rows = Table(title=f"bench.{area}", title_justify="left")
    for column in ("name", "value", "unit", "goal", "holds", "runs"):
        rows.add_column(column, justify="right" if column in {"value", "goal"} else "left", overflow="fold")
    verdict = {True: "[green]yes[/]", False: "[red]no[/]", None: "–"}
    for result in results:
        runs = " ".join(f"{run:.4g}" for run in result.runs)
        rows.add_row(
            result.name + (" (optional)" if result.optional else ""),
            "–" if result.value is None else f"{result.value:.4g}",
            result.unit,
            result.goal or "",
            verdict[result.holds],
            result.reason or runs,
        )
    return rows


def collect(area: str, results: Iterable[Result], *, run: Run) -> tuple[list[Result], bool]:
    """The results, and whether the bench completed; a crash keeps the results before it."""
    collected: list[Result] = []
    try:
        for result in results:
            collected.append(result)
            run.log(f"{result.name}: {result.reason or significant(result.value or 0.0, 4)} {result.unit}")
    except Exception as error:  # noqa: BLE001 - reported in the document and by the exit status
        traceback.print_exc(file=run.progress)
        collected.append(
            Result.missing(f"{area}-crashed", unit="", reason=f"{type(error).__name__}: {error}")
        )
        return collected, False
    return collected, True


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGTERM into a normal exit, so that the bench stops what it has started."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(
    area: str,
    measure: Callable[[Run], Iterable[Result]],
    argv: Sequence[str] | None = None,
    *,
    lines: Sequence[str] = (),
) -> int:
    """Runs one bench as a command. `lines` are the choices of `--only`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{area}", description=sys.modules[measure.__module__].__doc__
    )
    parser.add_argument("--quick", action="store_true", help="a smaller run in under a minute")
    parser.add_argument("--json", action="store_true", help="print the results as JSON on the last line")
    if lines:
        parser.add_argument("--only", nargs="+", choices=lines, default=[], help="measure only these")
    options = parser.parse_args(argv)
    only = frozenset(options.only if lines else ())
    run = Run(area=area, quick=options.quick, out=OUT, progress=sys.stderr, only=only)
    with exclusive_bench(area, progress=run.progress), interruptible():
        load_before, start = os.getloadavg()[0], time.monotonic()
        results, complete = collect(area, measure(run), run=run)
        written = document(
            area, results, quick=run.quick, load_before=load_before, seconds=time.monotonic() - start
        )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{area}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    width = None if sys.stdout.isatty() else TABLE_COLUMNS
    Console(width=width).print(table(area, results))
    if options.json:
        print(json.dumps(written), flush=True)
    return 0 if complete else 1
