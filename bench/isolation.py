"""A tenant beside greedy neighbours: with quotas, without quotas, and alone.

One broker and three gateways (with limits, without, and with a broker limit) share one core; the load
generators run on the other. The victim sends at a fixed rate whatever happens to its responses, and its
latency counts from the intended send time. Neighbours request as much as they can, ten times their quota
and more. Kinds of greed: `ingress`, `egress`, `tiny` requests, a `storm` of logins, `churn` of
partitions, and `crowd`, nineteen tenants at once. `overhead` is what limits cost a tenant far below them,
in gateway processor time per request. `pressure` is ten tenants on a broker with half the capacity that
their quotas add up to. `--only ingress tiny` measures only these; a quick run measures those two and the
overhead.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.fleets import kill_nodes, start_fleet
from bench.gateway_load import Client, Target, produce_frame, repeat
from bench.gateway_relays import SHAPE, free_port, wait_listening
from bench.harness import ROOT, Result, Run, interleave, main
from bench.isolation_load import KB, TOPIC, Victim
from penstock.fleet.credentials.certificates import load_platform_key
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.gateway.config import ServiceAccount, Tenant
from penstock.gateway.tenancy.tenant_provisioning import provision
from penstock.kafka.admin import topics
from penstock.kafka.client import Client as Kafka
from penstock.model.api_keys import new_api_key
from penstock.model.entities import Role
from penstock.model.errors import PenstockError
from penstock.model.ids import LogicalClusterId, ServiceAccountId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.fleet.local_fleet import LocalFleet

GREED = ("ingress", "egress", "tiny", "storm", "churn", "crowd")
LINES = ("overhead", *GREED, "pressure")
QUICK = ("ingress", "tiny")
CROWD = 19
PRESSING = 10  # tenants, with quotas 1 : 2 : 3 …
BROKER_BYTES_PER_SECOND = 4_000_000  # on the gateway with a broker limit
ACCOUNT = ServiceAccountId("sa-000001")
LOAD_CORE, SERVICE_CORE = 0, 1
VICTIM_RATE = 100.0  # requests of a kilobyte, per second
CONNECTIONS = 16  # per neighbour: several applications with a few each
IN_FLIGHT = 5
QUOTA = {
    "ingress_bytes_per_second": 1_000_000,
    "egress_bytes_per_second": 3_000_000,
    "requests_per_second": 200,
    "partition_changes_per_second": 500 / 300,  # of a published capacity unit
}
AMPLE = dict.fromkeys(QUOTA, 1_000_000_000_000)  # the victim's quota, which it never approaches
LIMITS = {"connections_max": 100, "connection_attempts_per_second": 10}
ALLOWED = {
    "ingress": 1_000_000.0,
    "egress": 3_000_000.0,
    "crowd": 1_000_000.0,
    "tiny": 200.0,
}  # bytes a second of a neighbour; for tiny, requests a second
WINDOW_SECONDS = 10
SETTLED_SECONDS = 3  # before the first window: by then an idle bucket's credit is spent
WARM_UP_SECONDS = 10.0
READ_BATCHES = 16  # of 64 KB, for the reading neighbour


@dataclass
class IsolationSetup:
    fleet: LocalFleet
    home: Path
    on: dict[str, Target] = field(default_factory=dict)  # by tenant
    off: dict[str, Target] = field(default_factory=dict)
    held: dict[str, Target] = field(default_factory=dict)  # with a broker limit
    ample: dict[str, Target] = field(default_factory=dict)  # default bounds, ample quotas
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)


def tenant_ids() -> list[LogicalClusterId]:
    """The victim, followed by its neighbours."""
    return [LogicalClusterId(f"lkc-bench{n:x}" if n < 16 else f"lkc-benc{n:02d}") for n in range(CROWD + 1)]


@contextmanager
def isolation_setup(
    names: list[LogicalClusterId], kinds: tuple[str, ...] = ("on", "off", "held")
) -> Iterator[IsolationSetup]:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    fleet = asyncio.run(_fleet(home, names))
    setup = IsolationSetup(fleet, home)
    try:
        for kind in kinds:
            setattr(setup, kind, _gateway(setup, kind, names))
        for process in (*setup.processes, *(node.running() for node in fleet.nodes)):
            assert process is not None
            _pin(process.pid, SERVICE_CORE)
        os.sched_setaffinity(0, {LOAD_CORE})
        yield setup
    finally:
        for process in setup.processes:
            process.terminate()
            process.wait(30)
        kill_nodes(fleet)
        shutil.rmtree(home, ignore_errors=True)


def _pin(pid: int, core: int) -> None:
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, {core})


async def _fleet(home: Path, names: list[LogicalClusterId]) -> LocalFleet:
    fleet = await start_fleet(home, SHAPE)
    bootstrap = fleet.clusters[0].cluster.spec.bootstrap()
    async with Kafka(bootstrap, security_of(fleet.nodes[0])) as client:
        tenants = [Tenant(name, {ACCOUNT: ServiceAccount(ACCOUNT, role=Role.OWNER)}) for name in names]
        await provision(client, tenants, load_platform_key(fleet.layout.secrets))
        new_topics = [
            topics.NewTopic(f"{name}_{TOPIC}", partitions=1, replication_factor=1) for name in names
        ]
        for outcome in (await topics.create(client, new_topics)).values():
            if isinstance(outcome, PenstockError):
                raise outcome
    return fleet


def _gateway(setup: IsolationSetup, kind: str, names: list[LogicalClusterId]) -> dict[str, Target]:
    home, fleet = setup.home / kind, setup.fleet
    home.mkdir()
    port, node = free_port(), fleet.nodes[0]
    targets, tenants = {}, []
    for index, name in enumerate(names):
        key = new_api_key(secrets.choice)
        targets[str(name)] = Target(kind, "127.0.0.1", port, "PLAIN", key.id, key.secret, "")
        tenant: dict[str, Any] = {
            "id": name,
            "accounts": [{"id": ACCOUNT}],
            "keys": [{"id": key.id, "secret_sha256": key.secret_sha256, "account": ACCOUNT}],
        }
        if kind != "ample":
            tenant["limits"] = {"connections_max": 10_000, "connection_attempts_per_second": 10_000}
        if kind == "ample":
            tenant |= {"quota": AMPLE}
        elif kind == "held":
            tenant |= {"quota": {"ingress_bytes_per_second": pressing_quota(index)}}
        elif kind == "on":
            tenant |= {"quota": AMPLE} if index == 0 else {"quota": QUOTA, "limits": LIMITS}
        tenants.append(tenant)
    address = f"127.0.0.1:{node.spec.ports[Listener.GATEWAY]}"
    broker: dict[str, Any] = {"id": node.spec.id, "zone": "a", "address": address, "port": port}
    if kind == "held":
        broker["limits"] = {"ingress_bytes_per_second": BROKER_BYTES_PER_SECOND}
    document: dict[str, Any] = {
        "gateway": kind,
        "cluster": "pkc-000000",
        "platform_key": str(fleet.layout.secrets / "platform.key"),
        "brokers": [broker],
        "tenants": tenants,
    }
    if kind == "off":
        document["bounds"] = {"attempts_per_address_per_second": 1_000_000}
    file = home / "gateway.yaml"
    file.write_text(json.dumps(document))  # JSON is valid YAML
    command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(file)]
    with (home / "log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
        setup.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    wait_listening(port)
    return targets


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What one phase measured."""

    latencies: list[float]
    offered: int
    neighbours: list[dict[int, int]]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.latencies, n=100)[98]


def phase(targets: dict[str, Target], greedy: list[str], kind: str, seconds: float) -> PhaseResult:
    """Runs the victim beside these neighbours, which start before it and end after it."""
    names = list(targets)
    load = None
    if greedy:
        options = {
            "targets": [asdict(targets[name]) for name in greedy],
            "kind": "ingress" if kind == "crowd" else kind,
            "seconds": seconds + 2 * SETTLED_SECONDS,
            "connections": 1 if kind == "crowd" else CONNECTIONS,
        }
        words = [sys.executable, "-m", "bench.isolation_load", json.dumps(options)]
        load = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
        time.sleep(SETTLED_SECONDS)
    victim = Victim(targets[names[0]], VICTIM_RATE)
    victim.run(seconds)
    done: list[dict[int, int]] = []
    if load is not None:
        out, _ = load.communicate(timeout=seconds + 120)
        done = [{int(s): n for s, n in one.items()} for one in json.loads(out.splitlines()[-1])]
    return PhaseResult(victim.latencies, victim.offered, done)


def furthest(done: dict[int, int], allowed: float, window: int) -> float:
    """The largest deviation of a neighbour's usage from its quota in any window, as a fraction of it."""
    last = max(done, default=0) - 1  # the last second is incomplete
    sums = [
        sum(done.get(second, 0) for second in range(begin, begin + window))
        for begin in range(SETTLED_SECONDS, last - window + 1)
    ]
    return max((abs(total / (allowed * window) - 1) for total in sums), default=1.0)


def measure(run: Run) -> Iterator[Result]:
    cores = os.sched_getaffinity(0)
    if not {LOAD_CORE, SERVICE_CORE} <= cores:
        yield Result.missing("isolation", unit="", reason=f"needs cores 0 and 1, has {sorted(cores)}")
        return
    seconds, rounds = (8.0, 1) if run.quick else (10.0, 3)
    lines = [line for line in (QUICK if run.quick and not run.only else GREED) if run.wants(line)]
    names = [str(name) for name in tenant_ids()]
    run.log("starting a broker and three gateways")
    try:
        with isolation_setup(tenant_ids()) as setup:
            fill(setup.off[names[1]])
            for targets in (setup.off, setup.on):  # until the broker's JVM has compiled its hot code
                phase(targets, names[1:2], "ingress", WARM_UP_SECONDS)
            if run.wants("overhead"):
                yield _overhead(run, setup, names[0])
            for kind in lines:
                yield from _isolated(run, setup, names, kind, seconds, rounds)
            if run.wants("pressure") and not (run.quick and not run.only):
                yield from _pressed(setup, names[1 : PRESSING + 1], 8 if run.quick else 25)
    finally:
        os.sched_setaffinity(0, cores)


def pressing_quota(number: int) -> float:
    """The quota of tenant `number`; those of 1 to `PRESSING` add up to twice the broker's capacity."""
    total = PRESSING * (PRESSING + 1) / 2
    return 2 * BROKER_BYTES_PER_SECOND * max(1, min(number, PRESSING)) / total


def _pressed(setup: IsolationSetup, names: list[str], seconds: int) -> Iterator[Result]:
    """Runs all of them for so long, and then the last one alone."""
    settled, alone = 2 * SETTLED_SECONDS, 8
    loads = []
    for some, duration in ((names[:-1], settled + seconds), (names[-1:], settled + seconds + alone)):
        options = {
            "targets": [asdict(setup.held[name]) for name in some],
            "kind": "pressure",
            "seconds": duration,
            "connections": 1,
        }
        words = [sys.executable, "-m", "bench.isolation_load", json.dumps(options)]
        loads.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE))
    done: list[dict[int, int]] = []
    for load in loads:
        out, _ = load.communicate(timeout=settled + seconds + alone + 120)
        done += [{int(s): n for s, n in one.items()} for one in json.loads(out.splitlines()[-1])]
    within = range(settled, settled + seconds - 1)
    got = [sum(one.get(second, 0) for second in within) / len(within) for one in done]
    total = sum(got)
    quota_units = PRESSING * (PRESSING + 1) / 2
    deviations = [rate / (total * number / quota_units) - 1 for number, rate in enumerate(got, start=1)]
    detail = {f"tenant_{number}_bytes_per_second": round(rate) for number, rate in enumerate(got, start=1)}
    yield Result(
        "pressure-total-off-limit", abs(total / BROKER_BYTES_PER_SECOND - 1), "of the limit", "<= 0.05", (),
        detail,
    )  # fmt: skip
    off = max(abs(deviation) for deviation in deviations)
    yield Result("pressure-shares-off-quotas", off, "of its share", "<= 0.1", tuple(deviations))
    ended, last = settled + seconds, done[-1]
    free = [
        second
        for second in range(ended, ended + alone)
        if last.get(second, 0) >= 0.9 * pressing_quota(PRESSING)
    ]
    yield Result(
        "pressure-recovery", min(free, default=ended + alone) - ended, "s to its whole quota", "<= 3"
    )


def _overhead(run: Run, setup: IsolationSetup, name: str) -> Result:
    frame = produce_frame(TOPIC, 100, 1)
    requests = 15_000 if run.quick else 60_000  # processor time has a resolution of 10 ms

    def spent(target: Target, process: subprocess.Popen[bytes]) -> float:
        client = Client(target)
        repeat(client, frame, requests // 4, IN_FLIGHT)
        before = psutil.Process(process.pid).cpu_times()
        repeat(client, frame, requests, IN_FLIGHT)
        after = psutil.Process(process.pid).cpu_times()
        client.close()
        return (after.user + after.system) - (before.user + before.system)

    on, off, _ = setup.processes
    series = interleave(
        {"on": lambda: spent(setup.on[name], on), "off": lambda: spent(setup.off[name], off)},
        rounds=3 if run.quick else 9,
    )
    return Result.of_runs(
        "overhead", series["on"].ratios(series["off"], "value"), unit="times off", goal="<= 1.05"
    )


def fill(target: Target) -> None:
    """Produces something to read."""
    client = Client(target)
    for _ in range(READ_BATCHES):
        client.socket.sendall(produce_frame(TOPIC, 4 * KB, 16))
        client.read()
    client.close()


def _isolated(
    run: Run, setup: IsolationSetup, names: list[str], kind: str, seconds: float, rounds: int
) -> Iterator[Result]:
    """Each round runs the victim alone, with quotas and without; results are medians of rounds."""
    greedy = names[1:] if kind == "crowd" else names[1:2]
    results: dict[str, list[PhaseResult]] = {"alone": [], "on": [], "off": []}
    for _ in range(rounds):
        results["alone"].append(phase(setup.on, [], kind, seconds))
        results["on"].append(phase(setup.on, greedy, kind, seconds))
        results["off"].append(phase(setup.off, greedy, kind, seconds))
    p99 = {name: [one.p99 for one in phases] for name, phases in results.items()}
    detail = {f"p99_ms_{name}": [round(1000 * each, 2) for each in values] for name, values in p99.items()}
    served = [len(one.latencies) / one.offered for one in results["on"]]
    to_alone = [on / alone for on, alone in zip(p99["on"], p99["alone"])]
    off_to_on = [off / on for off, on in zip(p99["off"], p99["on"])]
    yield Result(f"{kind}-victim-served", min(served), "of what it sent", ">= 1", tuple(served), detail)
    yield Result.of_runs(f"{kind}-victim-p99-to-alone", to_alone, unit="times", goal="<= 2", detail=detail)
    yield Result.of_runs(f"{kind}-victim-p99-off-to-on", off_to_on, unit="times", goal=">= 5", detail=detail)
    if kind in ALLOWED:
        window = 5 if run.quick else WINDOW_SECONDS
        off = [furthest(done, ALLOWED[kind], window) for one in results["on"] for done in one.neighbours]
        yield Result(
            f"{kind}-neighbour-off-quota", max(off), f"of its quota, any {window} s", "<= 0.05", tuple(off)
        )
    with run.plot(kind, title=f"The victim beside {kind}", x="share of requests", y="ms") as axes:
        for name, label in (("alone", "alone"), ("on", "quotas on"), ("off", "quotas off")):
            ordered = sorted(1000 * latency for one in results[name] for latency in one.latencies)
            axes.plot([n / len(ordered) for n in range(len(ordered))], ordered, label=label)
        axes.set_yscale("log")
        axes.legend()


if __name__ == "__main__":
    sys.exit(main("isolation", measure, lines=LINES))
