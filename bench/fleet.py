"""How soon a fleet is ready, and what starting it costs: our way against the plain one.

Both start the same controller and three brokers with the same heap and flags. Ours maps the class-data
archive and starts all nodes at once; the plain way does neither. A cold start has fresh data directories
and includes formatting; a warm start has existing data.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.fleets import kill_nodes
from bench.harness import Result, Run, main
from bench.measure import processor_seconds, rotated
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, open_fleet
from penstock.fleet.readiness import wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import stop_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.fleet.node import Runtime

ROUNDS, ROUNDS_QUICK = 5, 1
WAYS = ("ours", "plain")


@dataclass(frozen=True, slots=True)
class Start:
    wall: float  # seconds until every node was ready
    processor: float  # seconds, all nodes and this process
    resident_mb: float


def measure(run: Run) -> Iterator[Result]:
    archived = asyncio.run(obtain_runtime())
    runtimes = {"ours": archived, "plain": replace(archived, archive=None)}
    starts: dict[tuple[str, str], list[Start]] = {}
    for round_number in range(ROUNDS_QUICK if run.quick else ROUNDS):
        for way in rotated(list(WAYS), round_number):
            run.log(f"round {round_number + 1}: {way}")
            cold, warm = _cold_and_warm(runtimes[way], at_once=way == "ours")
            starts.setdefault((way, "cold"), []).append(cold)
            starts.setdefault((way, "warm"), []).append(warm)
    for state in ("cold", "warm"):
        yield from _results(state, starts["ours", state], starts["plain", state])
    run.plot_runs(
        "ready",
        {
            f"{way} {state}": [s.processor for s in starts[way, state]]
            for state in ("cold", "warm")
            for way in WAYS
        },
        title="one controller and three brokers: processor time until ready",
        unit="processor seconds",
    )


def _results(state: str, ours: list[Start], plain: list[Start]) -> Iterator[Result]:
    detail = {
        "ours_processor_s": [round(s.processor, 2) for s in ours],
        "plain_processor_s": [round(s.processor, 2) for s in plain],
        "plain_wall_s": [round(s.wall, 2) for s in plain],
    }
    ratios = [own.processor / other.processor for own, other in zip(ours, plain)]
    yield Result.of_runs(
        f"{state}-ready-cpu", ratios, unit="ratio to plain start", goal="<= 0.6", detail=detail
    )
    goal = "<= 8" if state == "warm" else None
    yield Result.of_runs(f"{state}-ready-wall", [s.wall for s in ours], unit="s", goal=goal)
    yield Result.of_runs(f"{state}-resident", [s.resident_mb for s in ours], unit="MB", goal="<= 900")


def _cold_and_warm(runtime: Runtime, *, at_once: bool) -> tuple[Start, Start]:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        cold = asyncio.run(_start(home, runtime, at_once=at_once))
        warm = asyncio.run(_start(home, runtime, at_once=at_once))
    finally:
        shutil.rmtree(home)
    return cold, warm


async def _start(home: Path, runtime: Runtime, *, at_once: bool) -> Start:
    begin, used = time.perf_counter(), processor_seconds(os.getpid())
    fleet = open_fleet(parse_fleet({"clusters": [{"port": 0}]}), Layout(home), runtime)
    try:
        await fleet.prepare()
        groups = [list(fleet.nodes)] if at_once else [[node] for node in fleet.nodes]
        for group in groups:
            for node in group:
                await node.start()
            await wait_until_ready(group)
        wall = time.perf_counter() - begin
        processor = processor_seconds(os.getpid()) - used
        return Start(wall, processor, _resident_mb(fleet))
    finally:
        await _stop(fleet)


async def _stop(fleet: LocalFleet) -> None:
    try:
        await stop_nodes(fleet.nodes)
    finally:
        kill_nodes(fleet)


def _resident_mb(fleet: LocalFleet) -> float:
    processes = [psutil.Process(identity.pid) for node in fleet.nodes if (identity := node.running())]
    return sum(process.memory_info().rss for process in processes) / 1e6


if __name__ == "__main__":
    sys.exit(main("fleet", measure))
