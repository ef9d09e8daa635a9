"""Backups: how soon an acknowledged record is in the store, against the archiver's interval.

A producer writes a few records at a time to several partitions of a local broker. Each acknowledgement has a
time; a record is archived once the manifest of its segment is stored. The archiver runs in this process, as
`penstock backup run` does, with a store of files.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.fleets import kill_nodes, start_fleet
from bench.harness import Result, Run, main
from penstock.backup.archiver import Archiver
from penstock.fleet.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.readiness import security_of
from penstock.kafka.client import Client
from penstock.tier.store import Store, StoreSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from confluent_kafka import KafkaError, Message

    from penstock.fleet.local_fleet import LocalFleet

INTERVAL_SECONDS = 5.0  # the default of `archive.interval_seconds`
INTERVALS, INTERVALS_QUICK = 12, 4  # of a run
ROUNDS, ROUNDS_QUICK = 3, 1
TOPIC, PARTITIONS = "orders", 6
PAUSE_SECONDS = 0.05  # between two records
QUANTILE = 0.99


def measure(run: Run) -> Iterator[Result]:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    fleet: LocalFleet | None = None
    try:
        run.log("starting a broker")
        shape = {"combined": True, "brokers": 1, "zones": ["a"], "port": 0}
        fleet = asyncio.run(start_fleet(home / "fleet", shape))
        ratios, records = [], 0
        for number in range(ROUNDS_QUICK if run.quick else ROUNDS):
            run.log(f"round {number + 1}")
            intervals = INTERVALS_QUICK if run.quick else INTERVALS
            delays = asyncio.run(_delays(fleet, home / f"store-{number}", f"{TOPIC}-{number}", intervals))
            ratios.append(_quantile(delays) / INTERVAL_SECONDS)
            records += len(delays)
        detail = {"interval_s": INTERVAL_SECONDS, "records": records}
        yield Result.of_runs(
            "ack-to-archived-p99", ratios, unit="archive intervals", goal="<= 1.4", detail=detail
        )
    finally:
        if fleet is not None:
            kill_nodes(fleet)
        shutil.rmtree(home, ignore_errors=True)


async def _delays(fleet: LocalFleet, directory: Path, topic: str, intervals: int) -> list[float]:
    """Seconds from the acknowledgement of each record to the end of its archiving."""
    config = _client_config(fleet)
    admin = AdminClient(config)
    await asyncio.to_thread(admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result, 60)
    acknowledged: dict[tuple[int, int], float] = {}
    stop = asyncio.Event()
    writing = asyncio.create_task(asyncio.to_thread(_write, config, topic, acknowledged, stop))
    spec = fleet.clusters[0].cluster.spec
    delays: list[float] = []
    stored: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
    async with Client(spec.bootstrap(), security_of(fleet.nodes[0])) as client:
        archiver = Archiver(client, Store(StoreSettings("file", "", directory)), selects=topic.__eq__)
        await archiver.resume()
        for number in range(intervals + 1):
            began = time.monotonic()
            if number == intervals:
                stop.set()
                await writing
            await archiver.round()
            now = time.monotonic()
            for log in archiver.logs.values():
                first, stored[log.place.partition] = stored[log.place.partition], log.stored
                times = [
                    acknowledged.get((log.place.partition, offset)) for offset in range(first, log.stored)
                ]
                delays += [now - at for at in times if at is not None]
            await asyncio.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began)))
    return delays


def _write(
    config: dict[str, Any], topic: str, acknowledged: dict[tuple[int, int], float], stop: asyncio.Event
) -> None:
    producer = Producer(config | {"linger.ms": 0})

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            acknowledged[partition, offset] = time.monotonic()

    number = 0
    while not stop.is_set():
        producer.produce(topic, b"x" * 500, partition=number % PARTITIONS, on_delivery=on_delivery)
        producer.poll(PAUSE_SECONDS)
        number += 1
    producer.flush(60)


def _quantile(values: list[float]) -> float:
    return sorted(values)[int(QUANTILE * (len(values) - 1))]


def _client_config(fleet: LocalFleet) -> dict[str, Any]:
    return {
        "bootstrap.servers": fleet.clusters[0].cluster.spec.bootstrap(),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM_MECHANISM,
        "sasl.username": PLATFORM_USER,
        "sasl.password": fleet.access.credentials.platform,
    }


if __name__ == "__main__":
    sys.exit(main("backup", measure))
