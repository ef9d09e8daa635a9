"""A tenant beside an attacker: one account, or a stranger, that tries to exhaust the gateway.

One broker and one gateway with its default bounds share one core; victim and attacker run on the other. The
victim sends at a fixed rate, and its latency counts from the intended send time. Each attack of
`bench.attack_load` is one line: the victim's p99 beside it as a ratio to the p99 alone in the same round,
what the victim sent and was served, and how much memory the gateway gained. `--only metadata` measures one.
`cost` is the processor time that gateway and broker spend on the attack, beyond what the victim needs:
it is steady on a busy machine, where latencies are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import psutil

from bench.harness import ROOT, Result, Run, main
from bench.isolation import (
    LOAD_CORE,
    SERVICE_CORE,
    SETTLED_SECONDS,
    VICTIM_RATE,
    WARM_UP_SECONDS,
    PhaseResult,
    fill,
    isolation_setup,
    phase,
    tenant_ids,
)
from bench.isolation_load import Victim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.gateway_load import Target

ATTACKS = (
    "find-coordinator", "scram-users", "metadata", "metadata-pipelined", "log-dirs", "delete-acls",
    "assignments", "telemetry", "half-frames", "silent", "api-versions", "wrong-keys", "fetch-sessions",
    "long-poll",
)  # fmt: skip
QUICK = ("metadata", "metadata-pipelined", "half-frames", "api-versions", "long-poll")
CONNECTIONS = {"silent": 1, "half-frames": 1, "long-poll": 1}  # of the attacker; four otherwise
MEMORY_SECONDS = 0.05


class ProcessorTime:
    """Processor seconds of some processes while a block runs."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self.per_second = 0.0

    def __enter__(self) -> ProcessorTime:
        self._started, self._used = time.monotonic(), self._total()
        return self

    def __exit__(self, *_: object) -> None:
        self.per_second = (self._total() - self._used) / (time.monotonic() - self._started)

    def _total(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in times)


class MemoryPeak:
    """The largest resident memory of a process while a block runs."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self._process.memory_info().rss
        self.peak = self.before

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def gained_mb(self) -> float:
        return (self.peak - self.before) / 1e6

    def _watch(self) -> None:
        while not self._ended.wait(MEMORY_SECONDS):
            with suppress(psutil.NoSuchProcess):
                self.peak = max(self.peak, self._process.memory_info().rss)


def measure(run: Run) -> Iterator[Result]:
    cores = os.sched_getaffinity(0)
    if not {LOAD_CORE, SERVICE_CORE} <= cores:
        yield Result.missing("attacks", unit="", reason=f"needs cores 0 and 1, has {sorted(cores)}")
        return
    seconds, rounds = (6.0, 1) if run.quick else (8.0, 3)
    names = tenant_ids()[:2]
    kinds = [kind for kind in (QUICK if run.quick and not run.only else ATTACKS) if run.wants(kind)]
    run.log("starting a broker and a gateway")
    try:
        with isolation_setup(names, ("ample",)) as setup:
            victim, attacker = (setup.ample[str(name)] for name in names)
            fill(attacker)
            phase(setup.ample, [str(names[1])], "ingress", WARM_UP_SECONDS)
            gateway = setup.processes[0].pid
            brokers = [process.pid for node in setup.fleet.nodes if (process := node.running()) is not None]
            for kind in kinds:
                yield from _attacked(victim, attacker, [gateway, *brokers], kind, seconds, rounds)
    finally:
        os.sched_setaffinity(0, cores)


def _attacked(
    victim: Target, attacker: Target, services: list[int], kind: str, seconds: float, rounds: int
) -> Iterator[Result]:
    alone, beside, gained, attempts, costs = [], [], [], [], []
    for _ in range(rounds):
        with ProcessorTime(services) as quiet:
            alone.append(_victim(victim, seconds))
        with MemoryPeak(services[0]) as memory:
            options = {
                "target": asdict(attacker),
                "kind": kind,
                "seconds": seconds + 2 * SETTLED_SECONDS,
                "connections": CONNECTIONS.get(kind, 4),
            }
            words = [sys.executable, "-m", "bench.attack_load", json.dumps(options)]
            load = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
            threading.Event().wait(SETTLED_SECONDS)  # the attack is under way
            with ProcessorTime(services) as busy:
                beside.append(_victim(victim, seconds))
            out, _ = load.communicate(timeout=seconds + 120)
        costs.append(busy.per_second - quiet.per_second)
        gained.append(memory.gained_mb)
        attempts.append(json.loads(out.splitlines()[-1]))
    detail = {
        "p99_ms_alone": [round(1000 * one.p99, 2) for one in alone],
        "p99_ms_beside": [round(1000 * one.p99, 2) for one in beside],
        "attacker": attempts,
    }
    ratios = [attacked.p99 / calm.p99 for attacked, calm in zip(beside, alone)]
    served = [len(one.latencies) / one.offered for one in beside]
    yield Result.of_runs(f"{kind}-victim-p99-to-alone", ratios, unit="times", goal="<= 2", detail=detail)
    yield Result.of_runs(f"{kind}-cost", costs, unit="of a core", goal="<= 0.3")
    yield Result(f"{kind}-victim-served", min(served), "of what it sent", ">= 1", tuple(served))
    yield Result(f"{kind}-gateway-memory", max(gained), "MB gained", "<= 100", tuple(gained))


def _victim(target: Target, seconds: float) -> PhaseResult:
    victim = Victim(target, VICTIM_RATE)
    victim.run(seconds)
    return PhaseResult(victim.latencies, victim.offered, [])


if __name__ == "__main__":
    sys.exit(main("attacks", measure, lines=ATTACKS))
