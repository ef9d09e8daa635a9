"""The data pipeline: rows a second from topics to tables, against loops in plain Python.

The equal is a consumer with `json.loads` and pyarrow that commits its offsets with each file: what
most people write, and not exactly once. The ceiling is the same loop with `pyarrow.json` on joined
values. Ours is exactly once, on all cores. Rounds are interleaved.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import pipeline_load as load
from bench.frame import Result, Run, main
from penstock.kafka.security import Mechanism
from penstock.pipeline.columns import Column
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.jobs.audit import AUDIT
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.jobs.slo import SLO
from penstock.pipeline.runner import Runner
from penstock.pipeline.session import open_session
from penstock.pipeline.settings import Connection, Engine, Lake, PipelineSettings
from tests.ground.fleet import TINY, Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_OF_REPORTS = 26_000_000  # 1,000 tenants on 3 gateways, every 10 s
LARGE = 20_000_000  # once, for how time grows
AUDITED = 10_000_000
ENGINE = Engine(memory_mb=2048)
COLUMNS = tuple(
    Column(name, kind)
    for name, kind in {
        "id": "bigint", "account": "string", "amount": "bigint", "time": "timestamp_ms", "note": "string",
        "currency": "string", "kind": "string", "price": "double",
    }.items()
)  # fmt: skip


class Ground:
    def __init__(self, run: Run, home: Path) -> None:
        self.say = run.say
        self.home = home
        self.fleet = Fleet.start(home / "fleet", TINY)
        self.config = self.fleet.client_config()
        self.connection = Connection(
            self.config["bootstrap.servers"],
            self.config["sasl.username"],
            self.config["sasl.password"],
            Mechanism(self.config["sasl.mechanism"]),
        )
        self.turn = 0
        self.lake: Path = home / "lake"

    def fresh(self) -> Runner:
        """A runner with an empty lake and no checkpoint; the Spark underneath stays warm."""
        shutil.rmtree(self.lake, ignore_errors=True)
        self.turn += 1
        self.lake = self.home / f"lake-{self.turn}"
        settings = PipelineSettings(Lake(str(self.lake / "w")), self.lake / "state", self.connection, ENGINE)
        session = open_session(settings.lake, ENGINE, scratch=self.home / "scratch")
        return Runner(session, settings, self.connection)

    def timed(self, job: Job, count: int) -> float:
        runner = self.fresh()
        began = time.monotonic()
        outcome = runner.run(job)
        seconds = time.monotonic() - began
        assert outcome.rows == count, f"{job.name}: {outcome.rows} of {count} records"
        self.say(f"{job.name}: {count / seconds:,.0f} rows/s over {count:,}")
        return seconds


def on(job: Job, topic: str) -> Job:
    return replace(job, source=replace(job.source, topic=topic))


def measure(run: Run) -> Iterator[Result]:
    sizes = (100_000,) if run.quick else (1_000_000, 5_000_000)
    rounds = 1 if run.quick else 3
    home = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
    ground = Ground(run, home)
    try:
        yield from start_up(ground)
        yield from appends(run, ground, sizes, rounds)
        yield from upserts(ground, sizes[0], rounds)
        yield from platform_jobs(ground, sizes, rounds)
        yield from audits(ground, sizes[0] if run.quick else AUDITED)
    finally:
        ground.fleet.destroy()
        shutil.rmtree(home, ignore_errors=True)


def start_up(ground: Ground) -> Iterator[Result]:
    """Cold: a process with its own Java. Warm: another session in this one."""
    code = (
        "import time,sys,pathlib;from penstock.pipeline.session import open_session;"
        "from penstock.pipeline.settings import Engine,Lake;t=time.monotonic();p=pathlib.Path(sys.argv[1]);"
        "open_session(Lake(str(p/'l')),Engine(memory_mb=1024),scratch=p/'s');print(time.monotonic()-t)"
    )
    command = [sys.executable, "-c", code, str(ground.home / "cold")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    yield Result("start-cold", float(done.stdout.split()[-1]), "s")
    ground.fresh()
    began = time.monotonic()
    ground.fresh()
    yield Result("start-warm", time.monotonic() - began, "s")


def appends(run: Run, ground: Ground, sizes: tuple[int, ...], rounds: int) -> Iterator[Result]:
    values = load.orders()
    per_row: dict[int, float] = {}
    job = Job("orders", "", Source("orders", columns=COLUMNS), Sink("bench.orders"))
    for size in sizes:
        topic = f"orders-{size}"
        load.fill(ground.config, topic, load.repeated(values, size))
        ground.timed(on(job, topic), size)  # warm
        runs: dict[str, list[float]] = {"spark": [], "plain": [], "ceiling": []}
        for turn in range(rounds):
            out = ground.home / f"plain-{size}-{turn}"
            runs["spark"].append(size / ground.timed(on(job, topic), size))
            runs["plain"].append(size / load.plain_loop(ground.config, topic, size, out / "p", arrow=False))
            runs["ceiling"].append(size / load.plain_loop(ground.config, topic, size, out / "c", arrow=True))
            shutil.rmtree(out)
        shown = f"{size // 1_000_000}m" if size >= 1_000_000 else f"{size // 1000}k"
        detail: dict[str, Any] = {name: [round(r) for r in each] for name, each in runs.items()}
        yield Result.of_runs(f"append-{shown}", runs["spark"], unit="rows/s", detail=detail)
        pairs = list(zip(runs["spark"], runs["plain"], runs["ceiling"]))
        yield Result.of_runs(
            f"append-{shown}-against-plain",
            [a / b for a, b, _ in pairs],
            unit="ratio to json.loads",
            goal=">= 1.0",
        )
        yield Result.of_runs(
            f"append-{shown}-against-ceiling",
            [a / c for a, _, c in pairs],
            unit="ratio to pyarrow.json",
            goal=">= 0.5",
        )
        per_row[size] = 1 / sorted(runs["spark"])[len(runs["spark"]) // 2]
        run.plot_runs(f"append-{shown}", runs, title=f"topic to table, {size:,} records", unit="rows/s")
    if not run.quick:
        load.fill(ground.config, "orders-large", load.repeated(values, LARGE))
        growth = ground.timed(on(job, "orders-large"), LARGE) / LARGE / per_row[sizes[0]]
        yield Result("append-growth", growth, f"time a row, {LARGE:,} to {sizes[0]:,}", goal="<= 1.1")


def upserts(ground: Ground, size: int, rounds: int) -> Iterator[Result]:
    load.fill(ground.config, "accounts", load.repeated(load.orders(load.KEYS), size))
    job = Job(
        "accounts",
        "",
        Source("accounts", columns=COLUMNS, batch_offsets_max=500_000),
        Sink("bench.accounts", Mode.UPSERT, ("account",)),
    )
    runs = [size / ground.timed(job, size) for _ in range(rounds)]
    yield Result.of_runs("upsert-100k-keys", runs, unit="rows/s", goal=">= 60000")


def platform_jobs(ground: Ground, sizes: tuple[int, ...], rounds: int) -> Iterator[Result]:
    size = sizes[-1]
    load.fill(ground.config, "usage", load.repeated(load.usage(), size))
    runs = [size / ground.timed(on(METERING, "usage"), size) for _ in range(rounds)]
    yield Result.of_runs("metering", runs, unit="rows/s", goal=">= 200000")
    seconds = [DAY_OF_REPORTS / rate for rate in runs]
    yield Result.of_runs(
        "metering-day",
        seconds,
        unit="s",
        goal="<= 180",
        detail={"reports": DAY_OF_REPORTS, "how": f"from the rate over {size:,}"},
    )
    load.fill(ground.config, "health", load.repeated(load.probes(), sizes[0]))
    runs = [sizes[0] / ground.timed(on(SLO, "health"), sizes[0]) for _ in range(rounds)]
    yield Result.of_runs("slo", runs, unit="rows/s")


def audits(ground: Ground, size: int) -> Iterator[Result]:
    """Histories without fault, and one planted fall of a log start: found, alone."""
    load.fill(ground.config, "audit", load.histories(size))
    runner = ground.fresh()
    began = time.monotonic()
    runner.run(on(AUDIT, "audit"))
    seconds = time.monotonic() - began
    found = runner.tables.frame("platform.audit_findings").collect()
    yield Result("audit", size / seconds, "rows/s", detail={"events": size})
    yield Result("audit-findings", float(len(found)), "found of 1 planted", goal="== 1")


if __name__ == "__main__":
    sys.exit(main("pipeline", measure))
