"""The parallel consumer against the bare loop and Confluent's parallel consumer, warm, on one broker.

(a) the key sweep, (b) the work sweep at 100 and 1,000 lanes, (c) a million records without work, (d)
processor-bound work, (e) latency from the intended send time, and the paper's demo. All features are on:
offset map, commits, back pressure, metrics. Contenders measure their own rates, from the first record
handled to the last; rounds are interleaved.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from bench.consume_setup import BenchBroker, Contender, Outcome, bench_broker
from bench.consume_work import consume_on_processes, plain_loop, pool_loop
from bench.harness import Result, Run, main
from bench.measure import rotated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LANES = 100
JOIN_SECONDS = 6.0  # until a new group has its partitions; records sent before would measure the joining
LATENCY_WARM_UPS = 2  # rounds until the JVM has compiled what a trickle of records needs


class Bench:
    """The contenders, and the number of rounds."""

    def __init__(self, run: Run, broker: BenchBroker) -> None:
        self.run, self.broker = run, broker
        self.rounds = 1 if run.quick else 3
        self.ours = broker.ours()
        peer = broker.peer()
        self.peer: Contender | None = None if isinstance(peer, str) else peer
        self.why_no_peer = peer if isinstance(peer, str) else ""

    def close(self) -> None:
        self.ours.close()
        if self.peer is not None:
            self.peer.close()

    def warm_up(self) -> None:
        """Lets the JVM compile its hot code: cold, it is three times slower."""
        topic = self.broker.topic(20_000 if self.run.quick else 200_000, 1_000)
        count = 20_000 if self.run.quick else 200_000
        for _ in range(2):
            for contender in filter(None, (self.ours, self.peer)):
                contender.run(topic, "KEY", LANES, "0", count)

    def rates(
        self, topic: str, order: str, lanes: int, work: str, records: int, *, with_bare: bool = False
    ) -> dict[str, list[Outcome]]:
        jobs: dict[str, Callable[[], Outcome]] = {
            "ours": lambda: self.ours.run(topic, order, lanes, work, records)
        }
        if self.peer is not None:
            peer = self.peer
            jobs["peer"] = lambda: peer.run(topic, order, lanes, work, records)
        if with_bare:
            jobs["bare"] = lambda: self.ours.run(topic, "BARE", 1, "0", records)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in jobs}
        for round_number in range(self.rounds):
            for name in rotated(list(jobs), round_number):
                outcomes[name].append(jobs[name]())
        return outcomes

    def against(self, name: str, measured: dict[str, list[Outcome]], other: str, goal: str | None) -> Result:
        unit = f"rate, ratio to {'the Java consumer' if other == 'peer' else 'the bare loop'}"
        if other not in measured:
            return Result.missing(
                name, unit=unit, goal=goal, reason=self.why_no_peer, optional=other == "peer"
            )
        ratios = [ours.rate / peer.rate for ours, peer in zip(measured["ours"], measured[other])]
        detail = {
            f"{each}_{what}": [round(getattr(outcome, what), 3) for outcome in outcomes]
            for each, outcomes in measured.items()
            for what in ("rate", "processor")
        }
        return Result.of_runs(name, ratios, unit=unit, goal=goal, detail=detail, optional=other == "peer")


def measure(run: Run) -> Iterator[Result]:
    with bench_broker() as broker:
        bench = Bench(run, broker)
        try:
            bench.warm_up()
            yield from _demo(bench)
            yield from _million(bench)
            yield from _work_sweep(bench)
            yield from _key_sweep(bench)
            yield from _beside_pyrallel(bench)
            yield from _latency(bench)
        finally:
            bench.close()
        yield from _processor_bound(run, broker)


def _demo(bench: Bench) -> Iterator[Result]:
    """1,000 records of 100 ms on ten lanes: 10 s at best, 100 s sequentially."""
    records = 100 if bench.run.quick else 1_000
    topic = bench.broker.topic(records, records)
    runs = [bench.ours.run(topic, "KEY", 10, "100000", records).wall for _ in range(bench.rounds)]
    limit = records * 0.1 / 10
    detail = {"limit_s": limit, "wall_s": [round(wall, 3) for wall in runs]}
    shares = [wall / limit for wall in runs]
    yield Result.of_runs("paper-demo", shares, unit="ratio to the limit", goal="<= 1.05", detail=detail)


def _million(bench: Bench) -> Iterator[Result]:
    records = 100_000 if bench.run.quick else 1_000_000
    topic = bench.broker.topic(records, 1_000)
    measured = bench.rates(topic, "KEY", LANES, "0", records, with_bare=True)
    yield bench.against("no-work-to-bare", measured, "bare", ">= 0.15")
    yield bench.against("no-work-to-peer", measured, "peer", ">= 2")
    used = [ours.processor / bare.processor for ours, bare in zip(measured["ours"], measured["bare"])]
    yield Result.of_runs("no-work-cpu", used, unit="processor time, ratio to the bare loop")
    rates = {name: [each.rate for each in outcomes] for name, outcomes in measured.items()}
    bench.run.plot_runs("no-work", rates, title=f"{records} × 50 B, no work", unit="records a second")


def _work_sweep(bench: Bench) -> Iterator[Result]:
    base = 5_000 if bench.run.quick else 25_000
    topic = bench.broker.topic(base, 1_000)
    few = bench.broker.topic(base // 5, 1_000)
    plots: dict[str, list[float]] = {}
    for lanes in (LANES, 1_000):
        for work_ms in (1, 10, 100):
            records = base // 5 if work_ms == 100 else base
            measured = bench.rates(
                few if work_ms == 100 else topic, "KEY", lanes, str(work_ms * 1000), records
            )
            name = f"{lanes}-lanes-{work_ms}-ms"
            goal = {(LANES, 1): ">= 1", (1_000, 10): ">= 3"}.get((lanes, work_ms))
            yield bench.against(f"{name}-to-peer", measured, "peer", goal)
            limit = lanes / (work_ms / 1000)
            shares = [outcome.rate / limit for outcome in measured["ours"]]
            limit_goal = ">= 0.9" if lanes == LANES and work_ms >= 10 else None
            yield Result.of_runs(f"{name}-to-limit", shares, unit="share of lanes ÷ work", goal=limit_goal)
            if (lanes, work_ms) == (1_000, 1):
                yield _asyncio_limit(bench, measured["ours"], records)
            for name, outcomes in measured.items():
                plots[f"{name}\n{lanes}×{work_ms} ms"] = [outcome.rate for outcome in outcomes]
    bench.run.plot_runs("work", plots, title=f"{base} × 50 B, 1,000 keys", unit="records a second")


def _asyncio_limit(bench: Bench, ours: list[Outcome], records: int) -> Result:
    """1,000 lanes of 1 ms would be a million records a second, which no event loop on one core reaches.

    Compares processor time, of which a million a second would need 1 µs each, all on one core.
    """
    alone = [bench.ours.run("-", "SLEEP", 1_000, "1000", records) for _ in range(bench.rounds)]
    detail = {
        name: [round(1e6 * each.processor / each.records, 2) for each in outcomes]
        for name, outcomes in (("ours_us_per_record", ours), ("asyncio_us_per_sleep", alone))
    }
    ratios = [sleep.processor / each.processor for sleep, each in zip(alone, ours)]
    unit = "records a processor second, ratio to tasks that only sleep"
    return Result.of_runs("1000-lanes-1-ms-to-asyncio", ratios, unit=unit, detail=detail)


def _beside_pyrallel(bench: Bench) -> Iterator[Result]:
    """Another parallel consumer in Python, on fewer records because it is slower."""
    pyrallel = bench.broker.pyrallel()
    unit, records = "rate, ratio to Pyrallel-Consumer", 2_000 if bench.run.quick else 10_000
    topic = bench.broker.topic(records, 1_000)
    try:
        for name, work in (("no-work-to-pyrallel", "0"), ("100-lanes-10-ms-to-pyrallel", "10000")):
            if isinstance(pyrallel, str):
                yield Result.missing(name, unit=unit, reason=pyrallel, optional=True)
                continue
            pyrallel.run(topic, "KEY", LANES, work, records // 2)  # warms up
            ratios, rates = [], []
            for _ in range(bench.rounds):
                own, peer = (
                    contender.run(topic, "KEY", LANES, work, records).rate
                    for contender in (bench.ours, pyrallel)
                )
                rates.append((round(own), round(peer)))
                ratios.append(own / peer)
            detail = {"ours_and_pyrallel_per_second": rates}
            yield Result.of_runs(name, ratios, unit=unit, detail=detail, optional=True)
    finally:
        if not isinstance(pyrallel, str):
            pyrallel.close()


def _key_sweep(bench: Bench) -> Iterator[Result]:
    records = 2_000 if bench.run.quick else 10_000
    for keys in (10, 100, 1_000, 0):
        topic = bench.broker.topic(records, keys)
        measured = bench.rates(topic, "KEY" if keys else "UNORDERED", LANES, "random", records)
        yield bench.against(f"{keys}-keys-0-5-ms" if keys else "unordered-0-5-ms", measured, "peer", None)


def _latency(bench: Bench) -> Iterator[Result]:
    """1 ms of work at a rate that both can sustain, from the intended send time to the end of the work."""
    per_second, seconds = 2_000, 3 if bench.run.quick else 10
    records = per_second * seconds
    p99: dict[str, list[float]] = {"ours": [], "peer": []}
    for round_number in range(LATENCY_WARM_UPS + bench.rounds):
        for name, contender in (("ours", bench.ours), ("peer", bench.peer)):
            if contender is not None:
                topic = bench.broker.topic(0, 1)
                sender = threading.Timer(JOIN_SECONDS, bench.broker.stream, (topic, records, per_second))
                sender.start()
                outcome = contender.run(topic, "KEY", LANES, "stamp", records)
                sender.join()
                if round_number >= LATENCY_WARM_UPS:
                    p99[name].append(outcome.p99_ms)
    detail = {"peer_p99_ms": [round(each, 2) for each in p99["peer"]]}
    yield Result.of_runs("latency-p99", p99["ours"], unit="ms from the intended send time", detail=detail)
    if p99["peer"]:
        ratios = [ours / peer for ours, peer in zip(p99["ours"], p99["peer"])]
        unit = "ratio to the Java consumer"
        yield Result.of_runs("latency-p99-to-peer", ratios, unit=unit, goal="<= 1", optional=True)


def _processor_bound(run: Run, broker: BenchBroker) -> Iterator[Result]:
    """Hashing in a plain loop, in a process pool without order or commits, and in our worker processes."""
    records = 2_000 if run.quick else 20_000
    topic = broker.topic(records, 1_000)
    walls: dict[str, list[float]] = {"plain": [], "pool": [], "ours": []}
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [0.0] * 4))
        jobs = {
            "plain": lambda: plain_loop(broker.connection, topic, records),
            "pool": lambda: pool_loop(broker.connection, topic, records, pool),
            "ours": lambda: consume_on_processes(broker.connection, topic, records),
        }
        for round_number in range(1 if run.quick else 3):
            for name in rotated(list(jobs), round_number):
                walls[name].append(jobs[name]())
    detail = {f"{name}_s": [round(wall, 3) for wall in measured] for name, measured in walls.items()}
    for other in ("plain", "pool"):
        ratios = [peer / ours for ours, peer in zip(walls["ours"], walls[other])]
        yield Result.of_runs(f"busy-work-to-{other}", ratios, unit=f"rate, ratio to {other}", detail=detail)


if __name__ == "__main__":
    sys.exit(main("consume", measure))
