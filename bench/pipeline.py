"""The data pipeline: rows a second from topics to tables, compared with loops in plain Python.

The peer is a consumer with `json.loads` and pyarrow that commits its offsets with each file: common code,
but not exactly once. The ceiling is the same loop with `pyarrow.json` on joined values. Ours is exactly
once and uses all cores. Rounds are interleaved. Goals apply to the median of three runs; what takes
minutes (20 million appended, a day of reports, 10 million audited) runs once.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import pipeline_load as load
from bench.harness import Result, Run, main
from penstock.kafka.security import Mechanism
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.jobs.durability import DURABILITY
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.jobs.slo import SLO
from penstock.pipeline.lake.columns import Column
from penstock.pipeline.runner import Runner
from penstock.pipeline.settings import Connection, Engine, Lake, PipelineSettings
from penstock.pipeline.spark.session import open_session
from tests.harness.fleet import TINY, Fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINES = ("start", "append", "growth", "upsert", "metering", "day", "slo", "audit")
DAY_OF_REPORTS = 25_920_000  # 1,000 tenants on 3 gateways, every 10 s
LARGE = 20_000_000  # run once, for growth with size
AUDITED = 10_000_000
GOAL_SIZE_MIN = 5_000_000
ENGINE = Engine(memory_mb=2048)
COLUMNS = tuple(
    Column(name, kind)
    for name, kind in {
        "id": "bigint", "account": "string", "amount": "bigint", "time": "timestamp_ms", "note": "string",
        "currency": "string", "kind": "string", "price": "double",
    }.items()
)  # fmt: skip
ORDERS = Job("orders", "", Source("orders", columns=COLUMNS), Sink("bench.orders"))
ACCOUNTS = Job(
    "accounts",
    "",
    Source("accounts", columns=COLUMNS, batch_offsets_max=500_000),
    Sink("bench.accounts", Mode.UPSERT, ("account",)),
)


class PipelineHarness:
    def __init__(self, run: Run, home: Path) -> None:
        self.log = run.log
        self.home = home
        self.fleet = Fleet.start(home / "fleet", TINY)
        self.config = self.fleet.client_config()
        self.connection = Connection(
            self.config["bootstrap.servers"],
            self.config["sasl.username"],
            self.config["sasl.password"],
            Mechanism(self.config["sasl.mechanism"]),
        )
        self.lakes = 0
        self.filled: set[str] = set()
        self.lake: Path = home / "lake"

    def orders(self, size: int) -> str:
        """A topic with so many orders, filled once."""
        topic = f"orders-{size}"
        if topic not in self.filled:
            load.fill(self.config, topic, load.repeated(load.orders(), size))
            self.filled.add(topic)
        return topic

    def fresh(self) -> Runner:
        """A runner with an empty lake and no checkpoint; the Spark underneath stays warm."""
        shutil.rmtree(self.lake, ignore_errors=True)
        self.lakes += 1
        self.lake = self.home / f"lake-{self.lakes}"
        settings = PipelineSettings(Lake(str(self.lake / "w")), self.lake / "state", self.connection, ENGINE)
        session = open_session(settings.lake, ENGINE, scratch=self.home / "scratch")
        return Runner(session, settings, self.connection)

    def timed(self, job: Job, count: int) -> float:
        runner = self.fresh()
        start = time.monotonic()
        outcome = runner.run(job)
        seconds = time.monotonic() - start
        assert outcome.records == count, f"{job.name}: {outcome.records} of {count} records"
        self.log(f"{job.name}: {count / seconds:,.0f} rows/s over {count:,}")
        return seconds


def on(job: Job, topic: str) -> Job:
    return replace(job, source=replace(job.source, topic=topic))


def size_label(size: int) -> str:
    return f"{size // 1_000_000}m" if size >= 1_000_000 else f"{size // 1000}k"


def measure(run: Run) -> Iterator[Result]:
    sizes = (100_000,) if run.quick else (1_000_000, 5_000_000)
    rounds = 1 if run.quick else 3
    home = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
    harness = PipelineHarness(run, home)
    sections: dict[str, Callable[[], Iterator[Result]]] = {
        "start": lambda: start_up(harness),
        "append": lambda: appends(run, harness, sizes, rounds),
        "growth": lambda: growth(harness, sizes[0], sizes[0] * 2 if run.quick else LARGE, rounds),
        "upsert": lambda: upserts(harness, sizes, rounds),
        "metering": lambda: meterings(harness, sizes, rounds),
        "day": lambda: day(harness, sizes[-1] if run.quick else DAY_OF_REPORTS),
        "slo": lambda: slos(harness, sizes, rounds),
        "audit": lambda: audits(harness, sizes if run.quick else (*sizes, AUDITED)),
    }
    try:
        for line in filter(run.wants, LINES):
            yield from sections[line]()
    finally:
        harness.fleet.destroy()
        shutil.rmtree(home, ignore_errors=True)


def start_up(harness: PipelineHarness) -> Iterator[Result]:
    """Cold: a process with its own JVM. Warm: another session in this process."""
    code = (
        "import time,sys,pathlib;from penstock.pipeline.spark.session import open_session;"
        "from penstock.pipeline.settings import Engine,Lake;t=time.monotonic();p=pathlib.Path(sys.argv[1]);"
        "open_session(Lake(str(p/'l')),Engine(memory_mb=1024),scratch=p/'s');print(time.monotonic()-t)"
    )
    command = [sys.executable, "-c", code, str(harness.home / "cold")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    yield Result("start-cold", float(done.stdout.split()[-1]), "s")
    harness.fresh()
    start = time.monotonic()
    harness.fresh()
    yield Result("start-warm", time.monotonic() - start, "s")


def appends(run: Run, harness: PipelineHarness, sizes: tuple[int, ...], rounds: int) -> Iterator[Result]:
    for size in sizes:
        topic = harness.orders(size)
        harness.timed(on(ORDERS, topic), size)  # warm
        runs: dict[str, list[float]] = {"spark": [], "plain": [], "ceiling": []}
        for round_number in range(rounds):
            out = harness.home / f"plain-{size}-{round_number}"
            runs["spark"].append(size / harness.timed(on(ORDERS, topic), size))
            runs["plain"].append(size / load.plain_loop(harness.config, topic, size, out / "p", arrow=False))
            runs["ceiling"].append(size / load.plain_loop(harness.config, topic, size, out / "c", arrow=True))
            shutil.rmtree(out)
        detail: dict[str, Any] = {name: [round(r) for r in each] for name, each in runs.items()}
        yield Result.of_runs(f"append-{size_label(size)}", runs["spark"], unit="rows/s", detail=detail)
        pairs = list(zip(runs["spark"], runs["plain"], runs["ceiling"]))
        yield Result.of_runs(
            f"append-{size_label(size)}-against-plain",
            [a / b for a, b, _ in pairs],
            unit="ratio to json.loads",
            goal=">= 1.0",
        )
        yield Result.of_runs(
            f"append-{size_label(size)}-against-ceiling",
            [a / c for a, _, c in pairs],
            unit="ratio to pyarrow.json",
            goal=">= 0.5",
        )
        run.plot_runs(
            f"append-{size_label(size)}", runs, title=f"topic to table, {size:,} records", unit="rows/s"
        )


def growth(harness: PipelineHarness, small: int, large: int, rounds: int) -> Iterator[Result]:
    """How the time per row grows: the large topic once, the small one before and after it."""
    topics = harness.orders(small), harness.orders(large)
    harness.timed(on(ORDERS, topics[0]), small)  # warm
    before = [harness.timed(on(ORDERS, topics[0]), small) for _ in range(rounds)]
    once = harness.timed(on(ORDERS, topics[1]), large)
    after = [harness.timed(on(ORDERS, topics[0]), small) for _ in range(rounds)]
    yield Result(
        "append-growth",
        once / large / (statistics.median(before + after) / small),
        f"time per row, {large:,} to {small:,} rows",
        goal="<= 1.1",
        detail={
            "small_rows_a_second": [round(small / each) for each in before + after],
            "large_rows_a_second": round(large / once),
        },
    )


def upserts(harness: PipelineHarness, sizes: tuple[int, ...], rounds: int) -> Iterator[Result]:
    for size in sizes:
        topic = f"accounts-{size}"
        load.fill(harness.config, topic, load.repeated(load.orders(load.KEYS), size))
        runs = [size / harness.timed(on(ACCOUNTS, topic), size) for _ in range(rounds)]
        yield Result.of_runs(f"upsert-{size_label(size)}-100k-keys", runs, unit="rows/s", goal=">= 60000")


def meterings(harness: PipelineHarness, sizes: tuple[int, ...], rounds: int) -> Iterator[Result]:
    for size in sizes:
        topic = f"usage-{size}"
        load.fill(harness.config, topic, load.usage(size))
        runs = [size / harness.timed(on(METERING, topic), size) for _ in range(rounds)]
        goal = ">= 200000" if size >= GOAL_SIZE_MIN else None  # for smaller sizes, start-up dominates
        yield Result.of_runs(f"metering-{size_label(size)}", runs, unit="rows/s", goal=goal)


def day(harness: PipelineHarness, reports: int) -> Iterator[Result]:
    load.fill(harness.config, "usage-day", load.usage(reports))
    seconds = harness.timed(on(METERING, "usage-day"), reports)
    goal = "<= 180" if reports == DAY_OF_REPORTS else None  # less than a day has no goal
    yield Result("metering-day", seconds, "s", goal=goal, detail={"reports": reports})


def slos(harness: PipelineHarness, sizes: tuple[int, ...], rounds: int) -> Iterator[Result]:
    for size in sizes:
        topic = f"health-{size}"
        load.fill(harness.config, topic, load.repeated(load.probes(), size))
        runs = [size / harness.timed(on(SLO, topic), size) for _ in range(rounds)]
        yield Result.of_runs(f"slo-{size_label(size)}", runs, unit="rows/s")


def audits(harness: PipelineHarness, sizes: tuple[int, ...]) -> Iterator[Result]:
    """Clean histories with one planted violation, which must be the only finding."""
    for size in sizes:
        topic = f"audit-{size}"
        load.fill(harness.config, topic, load.histories(size))
        runner = harness.fresh()
        start = time.monotonic()
        runner.run(on(DURABILITY, topic))
        seconds = time.monotonic() - start
        findings = runner.tables.frame("platform.durability_findings").collect()
        yield Result(f"audit-{size_label(size)}", size / seconds, "rows/s")
        yield Result(
            f"audit-{size_label(size)}-findings", float(len(findings)), "found of 1 planted", goal="== 1"
        )


if __name__ == "__main__":
    sys.exit(main("pipeline", measure, lines=LINES))
