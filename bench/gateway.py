"""What the gateway costs beside a relay that rewrites nothing: direct, HAProxy, ours.

The same broker and the same topics behind all of them; ours with login, renaming, metering and
metrics on. Processor time is that of the relay's process. Every workload is run by turns.

W1 produces 16 KB batches; W2 one small record a request on four connections, with 5 in flight on each
(the Java client's bound) and with 100 (librdkafka has none that matters); W3 1 MB batches; W4 fetches
1 MB at a time; W5 sends 2,000 records a second and measures from sending to reading. Then Metadata of
many topics, and a thousand connections. `--only W1 W4` measures these alone. What runs is the compiled
pump where there is one, else plain Python, which `PENSTOCK_PUMP=python` chooses as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psutil

from bench.frame import Result, Run, main
from bench.gateway_load import (
    Client,
    Target,
    at_once,
    fetch_frame,
    latencies,
    produce_frame,
    repeat,
    topic_id_of,
)
from bench.gateway_relays import contenders
from bench.measure import rotated
from penstock.wire.frames import Request, decode_response, encode_request
from penstock.wire.pump import Pump, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KB = 1024
FETCHED_BYTES_MIN = 900 * KB  # of one fetch: a whole batch
LINES = ("W1", "W2", "W3", "W4", "W5", "metadata", "connections")
IN_FLIGHT_FEW, IN_FLIGHT_MANY = 5, 100  # librdkafka's bound is a million, the Java client's is 5
WARM_UP_REQUESTS = 20_000  # on each of four connections: the JVM's second compiler comes after ten thousand
STEADY_RATE = 2_000
STEADY_KEPT_UP = 0.95  # of the rate that was meant; below, the load was not what the line says
NO_JVM_PEER = "Kroxylicious did not start here; standard error says why"
NO_PEER = "haproxy is not installed (Debian and Ubuntu: apt-get install haproxy)"
ROUNDS, ROUNDS_QUICK = 5, 1
RATE_GOAL, P50_GOAL, P99_GOAL = ">= 0.95", "<= 1.15", "<= 1.5"
CPU_GOALS = {"": "<= 1.3", "-tls": "<= 1.5"} if state() is Pump.COMPILED else {"": "<= 1.8", "-tls": "<= 1.8"}
TOPICS, TOPICS_QUICK = 2_000, 200
CONNECTIONS, CONNECTIONS_QUICK = 1_000, 200
QUICK_TLS = ("w1-produce-16k", "w4-consume-1m")  # by TLS as well, in a quick run
MEMORY_GOALS = {"": "<= 60", "-tls": "<= 120"}


@dataclass(frozen=True, slots=True)
class Measured:
    wall: float
    processor: float  # of the relay
    amount: float  # what was carried: GB, or 100,000 requests


def measure(run: Run) -> Iterator[Result]:
    count = (TOPICS_QUICK if run.quick else TOPICS) if run.wants("metadata") else 0
    many = [f"many-{n}" for n in range(count)]
    run.say(f"starting a broker with {len(many)} topics, and the relays")
    with contenders(["load", "read", "steady", *many]) as targets:
        filled(targets["direct"])
        for target in targets.values():
            answers(target)
        if "kroxylicious" in targets:
            run.say("warming Kroxylicious up: a JVM that compiles would be measured as one that works")
            warmed(targets["kroxylicious"])
        for name, work, unit in workloads(run):
            if not run.wants(name[:2].upper()):
                continue
            for tls in ("",) if run.quick and name not in QUICK_TLS else ("", "-tls"):
                yield from throughput(run, targets, name + tls, tls, work, unit)
        for tls in ("",) if run.quick else ("", "-tls"):
            if run.wants("W5"):
                yield from latency(run, targets, tls)
        if run.wants("metadata"):
            yield from metadata(run, targets, len(many))
        for tls in ("", "-tls"):
            if run.wants("connections"):
                yield from connections(run, targets, tls)


def filled(target: Target) -> None:
    """Something to fetch, and leaders for all."""
    client = Client(target)
    for topic in ("load", "read", "steady"):
        frame = produce_frame(target.prefix + topic, 64 * KB, 15)
        taken = 0
        while taken < 4:
            client.socket.sendall(frame)
            answer = decode_response("Produce", 10, client.read()).body
            taken += not answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
    client.close()


def answers(target: Target) -> None:
    """A relay that answers with errors would be quick, too."""
    client = Client(target)
    client.socket.sendall(produce_frame(target.prefix + "load", 100, 1))
    said = decode_response("Produce", 10, client.read()).body["Responses"][0]
    assert said["Name"] == target.prefix + "load", said
    assert not said["PartitionResponses"][0]["ErrorCode"], (target.name, said)
    client.close()


def warmed(target: Target) -> None:
    small = produce_frame(target.prefix + "load", 100, 1)
    large = produce_frame(target.prefix + "load", KB, 16)
    opened = [Client(target) for _ in range(4)]
    at_once([partial(repeat, c, small, WARM_UP_REQUESTS, IN_FLIGHT_MANY) for c in opened])
    repeat(opened[0], large, WARM_UP_REQUESTS // 10, IN_FLIGHT_FEW)
    fetch = fetch_frame(topic_id_of(opened[0], target.prefix + "read"), 0)
    repeat(opened[0], fetch, WARM_UP_REQUESTS // 100, 2)
    for client in opened:
        client.close()


def workloads(run: Run) -> Iterator[tuple[str, Callable[[Target], tuple[float, float]], str]]:
    """Name, what it does (seconds and amount), and the unit of the amount."""
    less = 8 if run.quick else 1

    def produce(
        value_bytes: int, count: int, times: int, clients: int, in_flight: int = 5
    ) -> Callable[[Target], tuple[float, float]]:
        def work(target: Target) -> tuple[float, float]:
            frame = produce_frame(target.prefix + "load", value_bytes, count)
            opened = [Client(target) for _ in range(clients)]
            each = times // less // clients
            seconds = at_once([partial(repeat, c, frame, each, in_flight) for c in opened])
            for client in opened:
                client.close()
            return seconds, each * clients * len(frame) / 1e9

        return work

    def small(times: int, in_flight: int) -> Callable[[Target], tuple[float, float]]:
        def work(target: Target) -> tuple[float, float]:
            seconds, _ = produce(100, 1, times, 4, in_flight)(target)
            return seconds, times // less / 100_000

        return work

    def consume(target: Target) -> tuple[float, float]:
        client = Client(target)
        frame = fetch_frame(topic_id_of(client, target.prefix + "read"), 0)
        begin = time.perf_counter()
        carried = repeat(client, frame, 1_600 // less, 2)
        seconds = time.perf_counter() - begin
        client.close()
        assert carried > FETCHED_BYTES_MIN * (1_600 // less), f"fetches brought {carried} bytes in all"
        return seconds, carried / 1e9

    yield "w1-produce-16k", produce(KB, 16, 16_000, 1), "GB"
    yield "w2-produce-small", small(80_000, IN_FLIGHT_MANY), "100k requests"
    yield "w2-produce-small-5", small(40_000, IN_FLIGHT_FEW), "100k requests"
    yield "w3-produce-1m", produce(64 * KB, 15, 400, 1), "GB"
    yield "w4-consume-1m", consume, "GB"


def rounds(
    run: Run, targets: dict[str, Target], names: list[str], work: Callable[[Target], tuple[float, float]]
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {name: [] for name in names}
    for turn in range(0 if run.quick else -1, ROUNDS_QUICK if run.quick else ROUNDS):
        for name in rotated(names, turn):
            target = targets[name]
            used = processor_of(target)
            wall, amount = work(target)
            if turn >= 0:
                found[name].append(Measured(wall, processor_of(target) - used, amount))
    return found


def processor_of(target: Target) -> float:
    if not target.pid:
        return 0.0
    times = psutil.Process(target.pid).cpu_times()
    return float(times.user + times.system)


def throughput(
    run: Run,
    targets: dict[str, Target],
    name: str,
    tls: str,
    work: Callable[[Target], tuple[float, float]],
    unit: str,
) -> Iterator[Result]:
    peer, mine = "haproxy" + tls, "ours" + tls
    jvm = "kroxylicious" + tls  # plaintext only
    names = [one for one in ("direct" if not tls else "", peer, mine, jvm) if one in targets]
    found = rounds(run, targets, names, work)
    detail: dict[str, object] = {"pump": str(state())} | {
        f"{one}_{what}": round(statistics.median(values), 4)
        for one in names
        for what, values in (
            (f"cpu_s_per_{unit}", [m.processor / m.amount for m in found[one]]),
            (f"{unit}_per_s", [m.amount / m.wall for m in found[one]]),
        )
    }
    if peer not in targets:
        yield Result.missing(f"{name}-cpu", unit="ratio to haproxy", goal=CPU_GOALS[tls], reason=NO_PEER)
        return
    pairs = list(zip(found[mine], found[peer]))
    yield Result.of_runs(
        f"{name}-cpu",
        [(a.processor / a.amount) / max(b.processor / b.amount, 1e-9) for a, b in pairs],
        unit="ratio to haproxy",
        goal=CPU_GOALS[tls],
        detail=detail,
    )
    yield Result.of_runs(
        f"{name}-rate",
        [(a.amount / a.wall) / (b.amount / b.wall) for a, b in pairs],
        unit="ratio to haproxy",
        goal=RATE_GOAL,
    )
    if jvm in targets:
        yield Result.of_runs(
            f"{name}-cpu-kroxylicious",
            [
                (a.processor / a.amount) / max(b.processor / b.amount, 1e-9)
                for a, b in zip(found[mine], found[jvm])
            ],
            unit="ratio to Kroxylicious with its tenant filter",
            goal="<= 1",
            optional=True,
        )
    elif not tls:
        yield Result.missing(
            f"{name}-cpu-kroxylicious", unit="ratio", goal="<= 1", optional=True, reason=NO_JVM_PEER
        )


def latency(run: Run, targets: dict[str, Target], tls: str) -> Iterator[Result]:
    seconds = 2.0 if run.quick else 10.0
    peer, mine = "haproxy" + tls, "ours" + tls
    names = [one for one in (peer, mine) if one in targets]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    slowest = 1.0
    for turn in range(0 if run.quick else -1, ROUNDS_QUICK if run.quick else ROUNDS):
        for name in rotated(names, turn):
            used = processor_of(targets[name])
            took, values = latencies(targets[name], "steady", STEADY_RATE, seconds)
            spent = processor_of(targets[name]) - used
            slowest = max(slowest, took / seconds)
            values.sort()
            if turn >= 0:
                found[name].append((quantile(values, 0.5), quantile(values, 0.99), spent))
    late = (
        f"the load came at {1 / slowest:.0%} of {STEADY_RATE} a second"
        if slowest * STEADY_KEPT_UP > 1
        else ""
    )
    if peer not in targets or late:
        for what, goal in (("p50", P50_GOAL), ("p99", P99_GOAL), ("cpu", CPU_GOALS[tls])):
            yield Result.missing(f"w5-steady{tls}-{what}", unit="ratio", goal=goal, reason=late or NO_PEER)
        return
    detail = {
        f"{name}_{what}": round(statistics.median(row[place] for row in found[name]) * scale, 3)
        for name in names
        for place, (what, scale) in enumerate((("p50_ms", 1e3), ("p99_ms", 1e3), ("cpu_s", 1.0)))
    }
    pairs = list(zip(found[mine], found[peer]))
    for place, (what, goal) in enumerate((("p50", P50_GOAL), ("p99", P99_GOAL), ("cpu", CPU_GOALS[tls]))):
        yield Result.of_runs(
            f"w5-steady{tls}-{what}",
            [a[place] / b[place] for a, b in pairs],
            unit="ratio to haproxy",
            goal=goal,
            detail=detail if not place else {},
        )


def quantile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


def metadata(run: Run, targets: dict[str, Target], count: int) -> Iterator[Result]:
    """All topics of a tenant that has many."""
    frame = encode_request(Request("Metadata", 12, 1, "bench", {"Topics": None}))
    times = 10 if run.quick else 40

    def work(target: Target) -> tuple[float, float]:
        client = Client(target)
        begin = time.perf_counter()
        repeat(client, frame, times, 1)
        seconds = time.perf_counter() - begin
        client.close()
        return seconds, times

    found = rounds(run, targets, [n for n in ("direct", "ours") if n in targets], work)
    each = statistics.median(m.processor / m.amount for m in found["ours"])
    yield Result.of_runs(
        "metadata-wall",
        [a.wall / b.wall for a, b in zip(found["ours"], found["direct"])],
        unit=f"ratio to direct, {count} topics",
        detail={"ours_cpu_ms_each": round(each * 1e3, 2)},
    )


def connections(run: Run, targets: dict[str, Target], tls: str) -> Iterator[Result]:
    """Many connections at once: processor time to open them, and memory while they are there."""
    target = targets["ours" + tls]
    count = CONNECTIONS_QUICK if run.quick else CONNECTIONS
    relay = psutil.Process(target.pid)
    used = processor_of(target)
    begin = time.perf_counter()
    opened = [Client(target) for _ in range(count)]
    wall = time.perf_counter() - begin
    spent = processor_of(target) - used
    resident = relay.memory_info().rss / 1e6
    for client in opened:
        client.close()
    detail = {"connections": count, "wall_s": round(wall, 2)}
    scaled = 1_000 / count
    yield Result(f"connections{tls}-cpu", spent * scaled, "s for 1,000", "<= 1", (spent * scaled,), detail)
    yield Result(f"connections{tls}-resident", resident, f"MB with {count}", MEMORY_GOALS[tls], (resident,))


if __name__ == "__main__":
    sys.exit(main("gateway", measure, lines=LINES))
