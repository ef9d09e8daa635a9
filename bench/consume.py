"""The parallel consumer beside the bare loop and Confluent's parallel consumer, warm, on one broker.

(a) the key sweep, (b) the work sweep at 100 and 1,000 lanes, (c) a million records without work, (d) work
that keeps a processor busy, (e) latency from the intended time of sending, and the paper's demo. All
features are on: offset map, commits, back pressure, metrics. Rates are taken inside the contenders, from
the first record handled to the last; rounds are interleaved.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from bench.consume_ground import Contender, Ground, Outcome, ground
from bench.consume_work import consume_on_processes, plain_loop, pool_loop
from bench.frame import Result, Run, main
from bench.measure import rotated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LANES = 100


class Bench:
    """The contenders, and how often each is run."""

    def __init__(self, run: Run, place: Ground) -> None:
        self.run, self.place = run, place
        self.rounds = 1 if run.quick else 3
        self.ours = place.ours()
        found = place.peer()
        self.peer: Contender | None = None if isinstance(found, str) else found
        self.why_no_peer = found if isinstance(found, str) else ""

    def close(self) -> None:
        self.ours.close()
        if self.peer is not None:
            self.peer.close()

    def warm_up(self) -> None:
        """The JVM compiles what it runs often; cold, it looks three times slower than it is."""
        topic = self.place.topic(20_000 if self.run.quick else 200_000, 1_000)
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
        found: dict[str, list[Outcome]] = {name: [] for name in jobs}
        for turn in range(self.rounds):
            for name in rotated(list(jobs), turn):
                found[name].append(jobs[name]())
        return found

    def against(self, name: str, found: dict[str, list[Outcome]], other: str, goal: str | None) -> Result:
        unit = f"rate, ratio to {'the Java consumer' if other == 'peer' else 'the bare loop'}"
        if other not in found:
            return Result.missing(
                name, unit=unit, goal=goal, reason=self.why_no_peer, optional=other == "peer"
            )
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(found["ours"], found[other])]
        detail = {
            f"{each}_{what}": [round(getattr(outcome, what), 3) for outcome in outcomes]
            for each, outcomes in found.items()
            for what in ("rate", "processor")
        }
        return Result.of_runs(name, ratios, unit=unit, goal=goal, detail=detail, optional=other == "peer")


def measure(run: Run) -> Iterator[Result]:
    with ground() as place:
        bench = Bench(run, place)
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
        yield from _processor_bound(run, place)


def _demo(bench: Bench) -> Iterator[Result]:
    """1,000 records of 100 ms on ten lanes: 10 s at best, 100 s one after the other."""
    records = 100 if bench.run.quick else 1_000
    topic = bench.place.topic(records, records)
    runs = [bench.ours.run(topic, "KEY", 10, "100000", records).wall for _ in range(bench.rounds)]
    limit = records * 0.1 / 10
    detail = {"limit_s": limit, "wall_s": [round(wall, 3) for wall in runs]}
    shares = [wall / limit for wall in runs]
    yield Result.of_runs(
        "demo-of-the-paper", shares, unit="ratio to the limit", goal="<= 1.05", detail=detail
    )


def _million(bench: Bench) -> Iterator[Result]:
    records = 100_000 if bench.run.quick else 1_000_000
    topic = bench.place.topic(records, 1_000)
    found = bench.rates(topic, "KEY", LANES, "0", records, with_bare=True)
    yield bench.against("no-work-to-bare", found, "bare", ">= 0.15")
    yield bench.against("no-work-to-peer", found, "peer", ">= 2")
    used = [mine.processor / theirs.processor for mine, theirs in zip(found["ours"], found["bare"])]
    yield Result.of_runs("no-work-cpu", used, unit="processor time, ratio to the bare loop")
    rates = {name: [each.rate for each in outcomes] for name, outcomes in found.items()}
    bench.run.plot_runs("no-work", rates, title=f"{records} × 50 B, no work", unit="records a second")


def _work_sweep(bench: Bench) -> Iterator[Result]:
    base = 5_000 if bench.run.quick else 25_000
    topic = bench.place.topic(base, 1_000)
    few = bench.place.topic(base // 5, 1_000)
    plots: dict[str, list[float]] = {}
    for lanes in (LANES, 1_000):
        for work_ms in (1, 10, 100):
            records = base // 5 if work_ms == 100 else base
            found = bench.rates(few if work_ms == 100 else topic, "KEY", lanes, str(work_ms * 1000), records)
            name = f"{lanes}-lanes-{work_ms}-ms"
            goal = {(LANES, 1): ">= 1", (1_000, 10): ">= 3"}.get((lanes, work_ms))
            yield bench.against(f"{name}-to-peer", found, "peer", goal)
            limit = lanes / (work_ms / 1000)
            shares = [outcome.rate / limit for outcome in found["ours"]]
            wanted = ">= 0.9" if lanes == LANES and work_ms >= 10 else None
            yield Result.of_runs(f"{name}-to-limit", shares, unit="share of lanes ÷ work", goal=wanted)
            for who, outcomes in found.items():
                plots[f"{who}\n{lanes}×{work_ms} ms"] = [outcome.rate for outcome in outcomes]
    bench.run.plot_runs("work", plots, title=f"{base} × 50 B, 1,000 keys", unit="records a second")


def _beside_pyrallel(bench: Bench) -> Iterator[Result]:
    """The other parallel consumer in Python, on fewer records: it takes its time."""
    found = bench.place.pyrallel()
    unit, records = "rate, ratio to Pyrallel-Consumer", 2_000 if bench.run.quick else 10_000
    topic = bench.place.topic(records, 1_000)
    try:
        for name, work in (("no-work-to-pyrallel", "0"), ("100-lanes-10-ms-to-pyrallel", "10000")):
            if isinstance(found, str):
                yield Result.missing(name, unit=unit, reason=found, optional=True)
                continue
            found.run(topic, "KEY", LANES, work, records // 2)  # warms up
            ratios, rates = [], []
            for _ in range(bench.rounds):
                mine, theirs = (
                    contender.run(topic, "KEY", LANES, work, records).rate
                    for contender in (bench.ours, found)
                )
                rates.append((round(mine), round(theirs)))
                ratios.append(mine / theirs)
            detail = {"ours_and_pyrallel_per_second": rates}
            yield Result.of_runs(name, ratios, unit=unit, detail=detail, optional=True)
    finally:
        if not isinstance(found, str):
            found.close()


def _key_sweep(bench: Bench) -> Iterator[Result]:
    records = 2_000 if bench.run.quick else 10_000
    for keys in (10, 100, 1_000, 0):
        topic = bench.place.topic(records, keys)
        found = bench.rates(topic, "KEY" if keys else "UNORDERED", LANES, "random", records)
        yield bench.against(f"{keys}-keys-0-5-ms" if keys else "unordered-0-5-ms", found, "peer", None)


def _latency(bench: Bench) -> Iterator[Result]:
    """1 ms of work at a rate both can hold; from when a record should have been sent to its end."""
    per_second, seconds = 2_000, 3 if bench.run.quick else 10
    records = per_second * seconds
    found: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(bench.rounds):
        for name, contender in (("ours", bench.ours), ("peer", bench.peer)):
            if contender is not None:
                topic = bench.place.topic(0, 1)
                sender = threading.Timer(2.0, bench.place.stream, (topic, records, per_second))
                sender.start()
                found[name].append(contender.run(topic, "KEY", LANES, "stamp", records).p99_ms)
                sender.join()
    detail = {"peer_p99_ms": [round(each, 2) for each in found["peer"]]}
    yield Result.of_runs("latency-p99", found["ours"], unit="ms from intended sending", detail=detail)
    if found["peer"]:
        ratios = [mine / theirs for mine, theirs in zip(found["ours"], found["peer"])]
        yield Result.of_runs("latency-p99-to-peer", ratios, unit="ratio to the Java consumer", optional=True)


def _processor_bound(run: Run, place: Ground) -> Iterator[Result]:
    """Hashing: a plain loop, a process pool without order or commits, and ours on processes."""
    records = 2_000 if run.quick else 20_000
    topic = place.topic(records, 1_000)
    walls: dict[str, list[float]] = {"plain": [], "pool": [], "ours": []}
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [0.0] * 4))
        jobs = {
            "plain": lambda: plain_loop(place.connection, topic, records),
            "pool": lambda: pool_loop(place.connection, topic, records, pool),
            "ours": lambda: consume_on_processes(place.connection, topic, records),
        }
        for turn in range(1 if run.quick else 3):
            for name in rotated(list(jobs), turn):
                walls[name].append(jobs[name]())
    detail = {f"{name}_s": [round(wall, 3) for wall in found] for name, found in walls.items()}
    for other in ("plain", "pool"):
        ratios = [theirs / mine for mine, theirs in zip(walls["ours"], walls[other])]
        yield Result.of_runs(f"busy-work-to-{other}", ratios, unit=f"rate, ratio to {other}", detail=detail)


if __name__ == "__main__":
    sys.exit(main("consume", measure))
