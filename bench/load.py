"""Broker load against the offered load, on one broker with one core (Kora figure 3).

The broker is driven with more partitions, bytes, requests and connections, each at several shares of the
highest rate that it sustains. The profile is fitted on every other level and judged on the rest. Then: one
request handler with a slow disk, how fast load falls when the broker is idle, and what a scrape costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.harness import Result, Run, main
from bench.measure import processor_seconds
from penstock.balance.broker_load import Measurement, Scrape, averaged, broker_load, measure, topic_rates
from penstock.balance.load_calibration import Driver, Workload, measured_level, scraped
from penstock.balance.load_fit import Point, fit, quality
from penstock.fleet.spec import Listener
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.broker_metrics import parse_metrics
from penstock.kafka.client import Client
from tests.harness.disk import FaultyDisk, without_faulty_disk
from tests.harness.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from typing import Any

    from penstock.fleet.node import Node

ONE_BROKER: Final = {"name": "load", "port": 0, "brokers": 1, "zones": ["a"], "combined": True, "jit": "full"}
WORKLOADS: Final = {
    "requests": Workload(partitions=1, record_bytes=100),
    "partitions": Workload(partitions=100, record_bytes=100),
    "bytes": Workload(partitions=2, record_bytes=50_000),
    "connections": Workload(partitions=5, record_bytes=1_000, connections=128),
}
LEVELS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LEVELS_QUICK: Final = (0.2, 0.3, 0.5, 0.7, 0.95)
HALF, ALMOST_FULL = 0.5, 0.95
SLOW_WRITE_MS: Final = 4
SLOW_RATE: Final = 180.0  # requests a second
IDLE_LOAD: Final = 0.1
SCRAPE_SECONDS: Final = 10.0
TOPICS: Final = 1_000
CREATE_ATTEMPTS_MAX: Final = 600  # tenths of a second
ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Level:
    workload: str
    point: Point
    p99_ms: float


def measure_all(run: Run) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as home:
        levels, idle, agent = asyncio.run(_all_levels(run, Path(home) / "figure"))
        yield from _tracking(run, levels)
        yield _idle(levels, idle)
        yield _scrape_cost(_scrape_text())
        yield agent
        yield from _slow_disk(run, Path(home) / "slow")


@contextlib.asynccontextmanager
async def _broker(
    home: Path, shape: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Node, Client]]:
    """A broker on the first core; the load comes from the others."""
    cores = os.sched_getaffinity(0)
    fleet = await asyncio.to_thread(_start_on, {min(cores)}, home, shape, environment or {})
    os.sched_setaffinity(0, cores - {min(cores)} or cores)
    try:
        async with Client(fleet.bootstrap, fleet.security()) as client:
            yield fleet.brokers[0], client
    finally:
        os.sched_setaffinity(0, cores)
        await asyncio.to_thread(fleet.destroy)


def _start_on(cores: set[int], home: Path, shape: Mapping[str, Any], environment: Mapping[str, str]) -> Fleet:
    """Child processes inherit the cores of the thread that starts them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return Fleet.start(home, shape, environment={"b1": environment})
    finally:
        os.sched_setaffinity(0, before)


def _agent(node: Node) -> tuple[str, int]:
    return "127.0.0.1", node.spec.ports[Listener.METRICS]


async def _all_levels(run: Run, home: Path) -> tuple[list[Level], Measurement, Result]:
    """Every workload at every level, an idle window, and what scrapes cost the broker."""
    seconds = 2.0 if run.quick else 15.0
    levels: list[Level] = []
    async with _broker(home, ONE_BROKER) as (node, client):
        driver = Driver(client, node.spec.id, WORKLOADS["partitions"])
        await driver.prepare()
        for name, workload in WORKLOADS.items():
            driver.workload = workload
            await driver.flood(seconds if run.quick else 4 * seconds)  # the JIT compiles
            sustained = await driver.flood(seconds)
            run.log(f"{name}: {sustained:.0f} requests a second at most")
            for level in LEVELS_QUICK if run.quick else LEVELS:
                window = await measured_level(driver, _agent(node), level * sustained, seconds)
                p99 = float(np.percentile(driver.latencies, 99)) * 1000 if driver.latencies else 0.0
                levels.append(Level(name, Point(level, window), p99))
                run.log(f"{name} at {level:.0%}: wait {window.wait_ms:.2f} ms, p99 {p99:.1f} ms")
        before = await scraped(_agent(node))
        await asyncio.sleep(seconds)
        idle = measure(before, await scraped(_agent(node)))
        assert idle is not None
        agent = await _agent_cost(node, client)
    return levels, idle, agent


async def _agent_cost(node: Node, client: Client) -> Result:
    """What the broker spends on a scrape, with traffic on each of many topics."""
    names = [f"scraped-{number:04}" for number in range(TOPICS)]
    results_or_raise(await topics.create(client, [topics.NewTopic(name, 1, 1) for name in names]))
    for name in names:
        # One core takes a while to create so many topics.
        await append(client, TopicPartition(name, 0), [(None, b"x")], attempts_max=CREATE_ATTEMPTS_MAX)
    identity = node.running()
    assert identity is not None
    runs = []
    for _ in range(ROUNDS):
        before = processor_seconds(identity.pid)
        scrape = await scraped(_agent(node))
        runs.append(1000 * (processor_seconds(identity.pid) - before))
        assert len(scrape.metrics.topics) >= TOPICS
    return Result.of_runs("scrape-1000-topics-broker", runs, unit="ms of processor time", goal="<= 400")


def _tracking(run: Run, levels: list[Level]) -> Iterator[Result]:
    profile = fit([each.point for each in levels[::2]])
    judged = quality([each.point for each in levels[1::2]], profile)
    loads = [broker_load(each.point.measured, profile) for each in levels]
    detail = {
        "profile": {name: getattr(profile, name) for name in profile.__slots__},
        "points": [
            [e.workload, e.point.offered, round(load, 3), round(e.p99_ms, 2)]
            for e, load in zip(levels, loads)
        ],
    }
    yield Result("offered-against-reported-r2", judged.r_squared, "R²", ">= 0.95", detail=detail)
    yield Result("offered-against-reported-error", judged.worst_error, "of capacity, at worst", "<= 0.12")
    latency, load = [], []
    for name in WORKLOADS:
        at = {
            each.point.offered: (each, value) for each, value in zip(levels, loads) if each.workload == name
        }
        (half, half_load), (full, full_load) = at[HALF], at[ALMOST_FULL]
        latency.append(full.p99_ms / half.p99_ms if half.p99_ms else 0.0)
        load.append(full_load / half_load if half_load else 0.0)
    yield Result.of_runs("p99-half-to-95", latency, unit="ratio", goal=">= 5")
    yield Result.of_runs("load-half-to-95", load, unit="ratio", goal="<= 2.2")
    with run.plot("figure3", title="Load and latency", x="offered load", y="reported load") as axes:
        for name in WORKLOADS:
            mine = [(e.point.offered, v) for e, v in zip(levels, loads) if e.workload == name]
            axes.plot(*zip(*mine), "o-", label=name)
        axes.plot([0, 1], [0, 1], ":", color="black")
        axes.legend()


def _idle(levels: list[Level], idle: Measurement) -> Result:
    """Seconds from the highest load, with windows like the measured idle one every ten seconds."""
    average = max((each.point.measured for each in levels), key=broker_load)
    seconds = 0.0
    while broker_load(average) >= IDLE_LOAD and seconds < 1_000:
        average = averaged(average, idle, SCRAPE_SECONDS)
        seconds += SCRAPE_SECONDS
    return Result("idle-after", seconds, "seconds until load is below 0.1", "<= 150")


def _scrape_text() -> str:
    """As the agent of a broker with many topics responds."""
    names = ("bytes_in", "bytes_out", "messages_in")
    return "".join(
        f'penstock_broker_topic_{name}_total{{topic="lkc-7hq2mz_orders.{number:04}"}} {{count}}{number}.0\n'
        for name in names
        for number in range(TOPICS)
    )


def _scrape_cost(text: str) -> Result:
    runs = []
    for count in range(1, ROUNDS + 1):
        earlier = parse_metrics(text.replace("{count}", str(count)))
        later = text.replace("{count}", str(count + 1))
        began = time.process_time()
        metrics = parse_metrics(later)
        before, after = Scrape(0.0, None, earlier.broker), Scrape(SCRAPE_SECONDS, None, metrics.broker)
        window = measure(before, after)
        assert window is not None
        broker_load(averaged(window, window, SCRAPE_SECONDS))
        rates = topic_rates(before, after)
        runs.append(1000 * (time.process_time() - began))
        assert len(rates) == TOPICS
    return Result.of_runs("scrape-1000-topics", runs, unit="ms of processor time", goal="<= 15")


def _slow_disk(run: Run, home: Path) -> Iterator[Result]:
    names = ("slow-disk-load", "of capacity", ">= 0.7"), ("slow-disk-cores", "cores", "<= 0.4")
    if reason := without_faulty_disk():
        yield from (Result.missing(name, unit=unit, goal=goal, reason=reason) for name, unit, goal in names)
        return
    home.mkdir(parents=True)
    load, cores = asyncio.run(_one_slow_handler(5.0 if run.quick else 30.0, home))
    for (name, unit, goal), value in zip(names, (load, cores)):
        yield Result(name, value, unit, goal)


async def _one_slow_handler(seconds: float, home: Path) -> tuple[float, float]:
    """Load and used cores with one handler whose every write takes 4 ms."""
    with FaultyDisk(home) as disk:
        shape = {**ONE_BROKER, "config": {"num.io.threads": 1}}
        async with _broker(home, shape, disk.environment()) as (node, client):
            driver = Driver(client, node.spec.id, Workload(partitions=1, record_bytes=100))
            await driver.prepare()
            await driver.flood(seconds)
            disk.slow(SLOW_WRITE_MS)
            identity = node.running()
            assert identity is not None
            before = processor_seconds(identity.pid)
            began = time.monotonic()
            window = await measured_level(driver, _agent(node), SLOW_RATE, seconds)
            cores = (processor_seconds(identity.pid) - before) / (time.monotonic() - began)
            disk.heal()
    return broker_load(window), cores


if __name__ == "__main__":
    sys.exit(main("load", measure_all))
