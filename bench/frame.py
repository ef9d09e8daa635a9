"""What every bench shares: the lock, the facts about the machine, results, tables and plots.

    def measure(run: Run) -> Iterator[Result]:
        series = interleave({"ours": ours, "peer": peer}, rounds=3 if run.quick else 5)
        runs = series["ours"].ratios(series["peer"])
        yield Result.of_runs("copy-cpu", runs, unit="ratio to peer", goal="<= 1.3")

    if __name__ == "__main__":
        sys.exit(main("copy", measure))

The table goes to standard output, progress to standard error, and with `--json` one document on
one line is the last line of standard output. A missed goal is a figure, not a failure: the exit
status tells only whether everything was measured.
"""

from __future__ import annotations

import argparse
import fcntl
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from matplotlib.axes import Axes

__all__ = ["Result", "Run", "Series", "interleave", "main", "only_bench", "processor_seconds"]

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
LOCK_POLL_SECONDS = 1.0
TABLE_COLUMNS = 160  # where there is no terminal to ask
DIGITS = 6  # significant, of figures in the JSON document

_GOAL = re.compile(r"(<=|>=|<|>|==)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Result:
    """One line: a figure, what it should be, and the runs it is the middle of.

    `value` is None when it could not be measured; `reason` then says why, and `holds` is None.
    `optional` marks a line against a peer that may be missing; a missing peer is never a win.
    A line without a goal is there to be read beside the others.
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
            raise ValueError(f"{self.name}: either a value, or the reason why there is none")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"{self.name}: {self.value} is no figure; say with `missing` why there is none")

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
        kept = tuple(runs)
        return cls(name, statistics.median(kept), unit, goal, kept, detail or {}, optional)

    @classmethod
    def missing(
        cls, name: str, *, unit: str, reason: str, goal: str | None = None, optional: bool = False
    ) -> Result:
        return cls(name, None, unit, goal, optional=optional, reason=reason)

    @property
    def holds(self) -> bool | None:
        if self.value is None or self.goal is None:
            return None
        found = _GOAL.fullmatch(self.goal)
        assert found is not None  # checked when the result was made
        return bool(_COMPARE[found[1]](self.value, float(found[2])))

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
    """What a bench is told: how long it may take, and where its plots go."""

    area: str
    quick: bool
    out: Path
    progress: TextIO
    only: frozenset[str] = frozenset()  # of the lines that the bench lets one choose; none means all

    def wants(self, line: str) -> bool:
        return not self.only or line in self.only

    def say(self, line: str) -> None:
        """One line of progress."""
        print(f"bench.{self.area}: {line}", file=self.progress, flush=True)

    @contextmanager
    def plot(self, name: str, *, title: str, x: str, y: str) -> Iterator[Axes]:
        """Axes to draw on; saved as `bench/out/<area>-<name>.png`."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        try:
            axes.set(title=title, xlabel=x, ylabel=y)
            yield axes
            self.out.mkdir(parents=True, exist_ok=True)
            figure.savefig(self.out / f"{self.area}-{name}.png", dpi=120)
        finally:
            pyplot.close(figure)

    def plot_runs(self, name: str, runs: Mapping[str, Sequence[float]], *, title: str, unit: str) -> None:
        """Every run a dot, every median a line: the noise stays in view."""
        with self.plot(name, title=title, x="", y=unit) as axes:
            for place, values in enumerate(runs.values()):
                axes.plot([place] * len(values), values, "o", alpha=0.5)
                axes.hlines(statistics.median(values), place - 0.3, place + 0.3, color="black")
            axes.set_xticks(range(len(runs)), list(runs))
            axes.set_ylim(bottom=0)


@contextmanager
def only_bench(area: str, *, progress: TextIO, path: Path | None = None) -> Iterator[None]:
    """Hold the machine-wide lock. It goes with the process, however that ends."""
    path = path or Path(tempfile.gettempdir()) / "penstock-bench.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        told = ""
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = path.read_text(encoding="utf-8").strip() or "another bench"
                if holder != told:
                    print(f"bench.{area}: waiting for {holder}", file=progress, flush=True)
                    told = holder
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
    """The commit measured, with a plus sign if the tree has changes of its own."""

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
    """Everything measured, and whether that is everything: a crash keeps what came before it."""
    kept: list[Result] = []
    try:
        for result in results:
            kept.append(result)  # one by one: a crash half-way loses nothing
            run.say(f"{result.name}: {result.reason or significant(result.value or 0.0, 4)} {result.unit}")
    except Exception as error:  # noqa: BLE001 - reported in the document and by the exit status
        traceback.print_exc(file=run.progress)
        kept.append(Result.missing(f"{area}-crashed", unit="", reason=f"{type(error).__name__}: {error}"))
        return kept, False
    return kept, True


@contextmanager
def interruptible() -> Iterator[None]:
    """Who ends a bench ends what it has started, too: a signal is an exit like any other."""
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
    """Run one bench as a command. `lines` are those that `--only` lets one choose from."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{area}", description=sys.modules[measure.__module__].__doc__
    )
    parser.add_argument("--quick", action="store_true", help="the same shape in under a minute")
    parser.add_argument("--json", action="store_true", help="one document on one line, as the last line")
    if lines:
        parser.add_argument("--only", nargs="+", choices=lines, default=[], help="measure these lines alone")
    options = parser.parse_args(argv)
    only = frozenset(options.only if lines else ())
    run = Run(area=area, quick=options.quick, out=OUT, progress=sys.stderr, only=only)
    with only_bench(area, progress=run.progress), interruptible():
        load_before, begin = os.getloadavg()[0], time.monotonic()
        results, complete = collect(area, measure(run), run=run)
        written = document(
            area, results, quick=run.quick, load_before=load_before, seconds=time.monotonic() - begin
        )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{area}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    width = None if sys.stdout.isatty() else TABLE_COLUMNS
    Console(width=width).print(table(area, results))
    if options.json:
        print(json.dumps(written), flush=True)
    return 0 if complete else 1
