"""Tiered storage: our plugin with files against LocalTieredStorage, Kafka's own test store.

Both brokers get the same records, copy all closed segments and delete them from their disks. A copy is
measured from the first record until the disk is left with the newest segments, a cold read from the first
record on. The peer verifies nothing; ours checks every batch when it copies and every chunk when it reads.
Processor time is that of the broker alone.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.fleets import kill_nodes
from bench.harness import Result, Run, main
from bench.measure import rotated
from bench.tier_setup import RECORD_BYTES, SEGMENT_BYTES, Broker, Missing, start_ours, start_peer

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTES, MEGABYTES_QUICK = 512, 128
ROUNDS, ROUNDS_QUICK = 5, 1
GB = 1e9
MIB = 1 << 20
NAMES = itertools.count(1)


@dataclass
class Copies:
    """Of one contender, by round."""

    broker: Broker
    processor: list[float] = field(default_factory=list)  # seconds a GB
    rate: list[float] = field(default_factory=list)  # bytes a second
    read: list[float] = field(default_factory=list)  # bytes a second
    gets_per_mib: list[float] = field(default_factory=list)


def measure(run: Run) -> Iterator[Result]:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    ours: Copies | None = None
    peer: Copies | None = None
    reason = ""
    try:
        run.log("starting brokers")
        ours = Copies(start_ours(home / "ours"))
        try:
            peer = Copies(start_peer(home / "peer"))
        except Missing as missing:
            reason = str(missing)
        yield from _measured(run, ours, peer, reason)
    finally:
        for each in (ours, peer):
            if each is not None:
                kill_nodes(each.broker.fleet)
        shutil.rmtree(home, ignore_errors=True)


def _measured(run: Run, ours: Copies, peer: Copies | None, reason: str) -> Iterator[Result]:
    records = (MEGABYTES_QUICK if run.quick else MEGABYTES) * 1_000_000 // RECORD_BYTES
    contenders = {"ours": ours} | ({"peer": peer} if peer is not None else {})
    local = _fill_local(ours.broker, records)
    local_rates: list[float] = []
    rounds = ROUNDS_QUICK if run.quick else ROUNDS
    for number in range(-1, rounds):  # the first one warms up
        for name in rotated(list(contenders), number):
            run.log(f"round {number + 1}: {name}")
            _round(contenders[name], records, keep=number >= 0, counts=name == "ours")
        rate = ours.broker.read(local, records)
        if number >= 0:
            local_rates.append(rate)
    yield from _against_peer(ours, peer, reason)
    against_disk = [own / disk for own, disk in zip(ours.read, local_rates, strict=True)]
    detail = {"ours_mb_s": _mb(ours.read), "disk_mb_s": _mb(local_rates)}
    yield Result.of_runs(
        "cold-read-to-disk", against_disk, unit="ratio to local disk", goal=">= 0.7", detail=detail
    )
    yield Result.of_runs("gets", ours.gets_per_mib, unit="GETs per MiB read", goal="<= 0.3")


def _against_peer(ours: Copies, peer: Copies | None, reason: str) -> Iterator[Result]:
    goals = {"copy-cpu": "<= 1.15", "copy-rate": ">= 0.95", "cold-read": ">= 1.0"}
    unit = "ratio to LocalTieredStorage"
    if peer is None:
        for name, goal in goals.items():
            yield Result.missing(name, unit=unit, goal=goal, optional=True, reason=reason)
        return
    for (name, goal), own, other in zip(
        goals.items(),
        (ours.processor, ours.rate, ours.read),
        (peer.processor, peer.rate, peer.read),
        strict=True,
    ):
        shown = _mb if name != "copy-cpu" else _rounded
        measured = "s_per_gb" if name == "copy-cpu" else "mb_s"
        detail = {f"ours_{measured}": shown(own), f"peer_{measured}": shown(other)}
        ratios = [one / another for one, another in zip(own, other, strict=True)]
        yield Result.of_runs(name, ratios, unit=unit, goal=goal, detail=detail, optional=True)


def _fill_local(broker: Broker, records: int) -> str:
    topic = f"local-{next(NAMES)}"
    broker.create(topic, tiered=False)
    broker.produce(topic, records)
    return topic


def _round(copies: Copies, records: int, *, keep: bool, counts: bool) -> None:
    """A topic is written, tiered and read back; what is read was written and tiered just now."""
    broker, topic = copies.broker, f"tiered-{next(NAMES)}"
    broker.create(topic, tiered=True)
    used, start = broker.processor, time.perf_counter()
    broker.produce(topic, records)
    broker.wait_tiered(topic, records)
    size = records * RECORD_BYTES
    rate = size / (time.perf_counter() - start)
    processor = (broker.processor - used) / (size / GB)
    gets = broker.gets() if counts else 0
    # The newest two segments may be on the disk: they are left out.
    tiered = records - 2 * SEGMENT_BYTES // RECORD_BYTES
    read = broker.read(topic, tiered)
    if not keep:
        return
    copies.processor.append(processor)
    copies.rate.append(rate)
    copies.read.append(read)
    if counts:
        copies.gets_per_mib.append((broker.gets() - gets) / (tiered * RECORD_BYTES / MIB))


def _mb(rates: list[float]) -> list[float]:
    return [round(rate / 1e6, 1) for rate in rates]


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


if __name__ == "__main__":
    sys.exit(main("tier", measure))
