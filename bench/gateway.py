"""What the gateway costs compared with a relay that rewrites nothing: direct, HAProxy, ours.

All of them use the same broker and topics; ours has login, renaming, metering and metrics on. Processor
time is that of the relay's process. Rounds of every workload are interleaved.

W1 produces 16 KB batches. W2 sends one small record per request on four connections, with 5 requests in
flight on each (the Java client's limit) and with 100 (librdkafka's limit is far higher). W3 produces 1 MB
batches. W4 fetches 1 MB at a time. W5 sends 2,000 records a second and measures from sending to reading.
Then come Metadata of many topics, and a thousand connections. `--only W1 W4` measures only these. The
bench uses the compiled data path if there is one; `PENSTOCK_DATA_PATH=python` measures plain Python.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psutil

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
from bench.harness import Result, Run, main
from bench.measure import rotated
from penstock.wire.compiled import DataPath, active_data_path
from penstock.wire.frames import Request, decode_response, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KB = 1024
FETCHED_BYTES_MIN = 900 * KB  # per fetch: a whole batch
LINES = ("W1", "W2", "W3", "W4", "W5", "metadata", "connections")
IN_FLIGHT_FEW, IN_FLIGHT_MANY = 5, 100  # librdkafka's limit is a million, the Java client's is 5
WARM_UP_REQUESTS = 20_000  # per connection, on four: the JVM's second compiler starts after ten thousand
STEADY_RATE = 2_000
STEADY_KEPT_UP = 0.95  # of the intended rate; below it, the result is not valid
NO_JVM_PEER = "Kroxylicious did not start; see standard error"
NO_PEER = "haproxy is not installed (Debian and Ubuntu: apt-get install haproxy)"
ROUNDS, ROUNDS_QUICK = 5, 1
RATE_GOAL, P50_GOAL, P99_GOAL = ">= 0.95", "<= 1.15", "<= 1.5"
CPU_GOALS = (
    {"": "<= 1.3", "-tls": "<= 1.5"}
    if active_data_path() is DataPath.COMPILED
    else {"": "<= 1.8", "-tls": "<= 1.8"}
)
TOPICS, TOPICS_QUICK = 2_000, 200
CONNECTIONS, CONNECTIONS_QUICK = 1_000, 200
QUICK_TLS = ("w1-produce-16k", "w4-consume-1m")  # also with TLS in a quick run
MEMORY_GOALS = {"": "<= 60", "-tls": "<= 120"}


@dataclass(frozen=True, slots=True)
class Measured:
    wall: float
    processor: float  # of the relay
    amount: float  # GB, or 100,000 requests


def measure(run: Run) -> Iterator[Result]:
    count = (TOPICS_QUICK if run.quick else TOPICS) if run.wants("metadata") else 0
    many = [f"many-{n}" for n in range(count)]
    run.log(f"starting a broker with {len(many)} topics, and the relays")
    with contenders(["load", "read", "steady", *many]) as targets:
        fill(targets["direct"])
        for target in targets.values():
            check_produce(target)
        if "kroxylicious" in targets:
            run.log("warming up Kroxylicious, so that its JVM is not measured while compiling")
            warm_up(targets["kroxylicious"])
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


def fill(target: Target) -> None:
    """Produces something to fetch, and waits for leaders."""
    client = Client(target)
    for topic in ("load", "read", "steady"):
        frame = produce_frame(target.prefix + topic, 64 * KB, 15)
        accepted = 0
        while accepted < 4:
            client.socket.sendall(frame)
            response = decode_response("Produce", 10, client.read()).body
            accepted += not response["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
    client.close()


def check_produce(target: Target) -> None:
    """Checks that producing works: a relay that responds with errors would be fast, too."""
    client = Client(target)
    client.socket.sendall(produce_frame(target.prefix + "load", 100, 1))
    response = decode_response("Produce", 10, client.read()).body["Responses"][0]
    assert response["Name"] == target.prefix + "load", response
    assert not response["PartitionResponses"][0]["ErrorCode"], (target.name, response)
    client.close()


def warm_up(target: Target) -> None:
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
    """Name, the work (returns seconds and amount), and the unit of the amount."""
    divisor = 8 if run.quick else 1

    def produce(
        value_bytes: int, count: int, times: int, clients: int, in_flight: int = 5
    ) -> Callable[[Target], tuple[float, float]]:
        def work(target: Target) -> tuple[float, float]:
            frame = produce_frame(target.prefix + "load", value_bytes, count)
            opened = [Client(target) for _ in range(clients)]
            each = times // divisor // clients
            seconds = at_once([partial(repeat, c, frame, each, in_flight) for c in opened])
            for client in opened:
                client.close()
            return seconds, each * clients * len(frame) / 1e9

        return work

    def small(times: int, in_flight: int) -> Callable[[Target], tuple[float, float]]:
        def work(target: Target) -> tuple[float, float]:
            seconds, _ = produce(100, 1, times, 4, in_flight)(target)
            return seconds, times // divisor / 100_000

        return work

    def consume(target: Target) -> tuple[float, float]:
        client = Client(target)
        frame = fetch_frame(topic_id_of(client, target.prefix + "read"), 0)
        begin = time.perf_counter()
        carried = repeat(client, frame, 1_600 // divisor, 2)
        seconds = time.perf_counter() - begin
        client.close()
        assert carried > FETCHED_BYTES_MIN * (1_600 // divisor), f"fetches brought {carried} bytes in all"
        return seconds, carried / 1e9

    yield "w1-produce-16k", produce(KB, 16, 16_000, 1), "GB"
    yield "w2-produce-small", small(80_000, IN_FLIGHT_MANY), "100k requests"
    yield "w2-produce-small-5", small(40_000, IN_FLIGHT_FEW), "100k requests"
    yield "w3-produce-1m", produce(64 * KB, 15, 400, 1), "GB"
    yield "w4-consume-1m", consume, "GB"


def rounds(
    run: Run, targets: dict[str, Target], names: list[str], work: Callable[[Target], tuple[float, float]]
) -> dict[str, list[Measured]]:
    measured: dict[str, list[Measured]] = {name: [] for name in names}
    for turn in range(0 if run.quick else -1, ROUNDS_QUICK if run.quick else ROUNDS):
        for name in rotated(names, turn):
            target = targets[name]
            used = processor_of(target)
            wall, amount = work(target)
            if turn >= 0:
                measured[name].append(Measured(wall, processor_of(target) - used, amount))
    return measured


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
    peer, ours = "haproxy" + tls, "ours" + tls
    jvm = "kroxylicious" + tls  # plaintext only
    names = [one for one in ("direct" if not tls else "", peer, ours, jvm) if one in targets]
    measured = rounds(run, targets, names, work)
    detail: dict[str, object] = {"data_path": str(active_data_path())} | {
        f"{one}_{what}": round(statistics.median(values), 4)
        for one in names
        for what, values in (
            (f"cpu_s_per_{unit}", [m.processor / m.amount for m in measured[one]]),
            (f"{unit}_per_s", [m.amount / m.wall for m in measured[one]]),
        )
    }
    if peer not in targets:
        yield Result.missing(f"{name}-cpu", unit="ratio to haproxy", goal=CPU_GOALS[tls], reason=NO_PEER)
        return
    pairs = list(zip(measured[ours], measured[peer]))
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
                for a, b in zip(measured[ours], measured[jvm])
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
    peer, ours = "haproxy" + tls, "ours" + tls
    names = [one for one in (peer, ours) if one in targets]
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    slowest = 1.0
    for turn in range(0 if run.quick else -1, ROUNDS_QUICK if run.quick else ROUNDS):
        for name in rotated(names, turn):
            used = processor_of(targets[name])
            duration, values = latencies(targets[name], "steady", STEADY_RATE, seconds)
            spent = processor_of(targets[name]) - used
            slowest = max(slowest, duration / seconds)
            values.sort()
            if turn >= 0:
                measured[name].append((quantile(values, 0.5), quantile(values, 0.99), spent))
    late = (
        f"the load reached only {1 / slowest:.0%} of {STEADY_RATE} a second"
        if slowest * STEADY_KEPT_UP > 1
        else ""
    )
    if peer not in targets or late:
        for what, goal in (("p50", P50_GOAL), ("p99", P99_GOAL), ("cpu", CPU_GOALS[tls])):
            yield Result.missing(f"w5-steady{tls}-{what}", unit="ratio", goal=goal, reason=late or NO_PEER)
        return
    detail = {
        f"{name}_{what}": round(statistics.median(row[index] for row in measured[name]) * scale, 3)
        for name in names
        for index, (what, scale) in enumerate((("p50_ms", 1e3), ("p99_ms", 1e3), ("cpu_s", 1.0)))
    }
    pairs = list(zip(measured[ours], measured[peer]))
    for index, (what, goal) in enumerate((("p50", P50_GOAL), ("p99", P99_GOAL), ("cpu", CPU_GOALS[tls]))):
        yield Result.of_runs(
            f"w5-steady{tls}-{what}",
            [a[index] / b[index] for a, b in pairs],
            unit="ratio to haproxy",
            goal=goal,
            detail=detail if not index else {},
        )


def quantile(values: list[float], fraction: float) -> float:
    return values[min(len(values) - 1, int(len(values) * fraction))]


def metadata(run: Run, targets: dict[str, Target], count: int) -> Iterator[Result]:
    """Metadata of all topics of a tenant that has many."""
    frame = encode_request(Request("Metadata", 12, 1, "bench", {"Topics": None}))
    times = 10 if run.quick else 40

    def work(target: Target) -> tuple[float, float]:
        client = Client(target)
        begin = time.perf_counter()
        repeat(client, frame, times, 1)
        seconds = time.perf_counter() - begin
        client.close()
        return seconds, times

    measured = rounds(run, targets, [n for n in ("direct", "ours") if n in targets], work)
    each = statistics.median(m.processor / m.amount for m in measured["ours"])
    yield Result.of_runs(
        "metadata-wall",
        [a.wall / b.wall for a, b in zip(measured["ours"], measured["direct"])],
        unit=f"ratio to direct, {count} topics",
        detail={"ours_cpu_ms_each": round(each * 1e3, 2)},
    )


def connections(run: Run, targets: dict[str, Target], tls: str) -> Iterator[Result]:
    """Processor time to open many connections, and memory while they are open."""
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
