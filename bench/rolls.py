"""A roll of brokers under load: what clients notice, what the controllers show, and how long it takes.

An idempotent producer and a consumer group work through the gateways at a fixed rate, while a watcher reads
the metadata log. The yardstick of a roll is one planned leader election of the same partitions. A full run
rolls six brokers in three zones and three controllers; a quick one has three brokers and one controller, and
rolls one zone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.harness import ROOT, Result, Run, main
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, load_fleet
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka import quorum
from penstock.kafka.client import Client
from penstock.kafka.metadata_image import MetadataFollower
from penstock.kafka.routing import CONTROLLER
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS: Final = 6
RATE: Final = 200.0  # records a second
WATCH_SECONDS: Final = 0.1
WARM_SECONDS: Final = 5.0
TOPIC: Final = "rolled"
CHANGED: Final = {
    "socket.send.buffer.bytes": 204_800
}  # needs a restart, and changes nothing that is measured


@dataclass
class Load:
    """A producer and a consumer; when each record was acknowledged, and which were read."""

    config: dict[str, Any]
    errors: list[str] = field(default_factory=list)
    acknowledged: list[tuple[int, int, float, float]] = field(
        default_factory=list
    )  # n, partition, sent, acked
    read: Counter[int] = field(default_factory=Counter)
    _end: threading.Event = field(default_factory=threading.Event)
    _flushed: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        admin = AdminClient(self.config)
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
            created.result(60)
        threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in threads:
                thread.join()

    def _produce(self) -> None:
        producer = Producer(self.config | {"enable.idempotence": True, "linger.ms": 1})
        started = time.monotonic()
        for number in itertools.count():
            if self._end.is_set():
                break
            sent = time.monotonic()

            def delivered(error: KafkaError | None, message: Any, n: int = number, at: float = sent) -> None:
                if error is not None:
                    self.errors.append(f"produce: {error}")
                else:
                    self.acknowledged.append((n, message.partition(), at, time.monotonic()))

            partition = number % PARTITIONS
            producer.produce(TOPIC, str(number), partition=partition, on_delivery=delivered)
            while (left := started + number / RATE - time.monotonic()) > 0:
                producer.poll(left)
            producer.poll(0)
        if producer.flush(60):
            self.errors.append("produce: records were not acknowledged")
        self._flushed.set()

    def _consume(self) -> None:
        settings = {"group.id": "bench", "auto.offset.reset": "earliest"}
        consumer = Consumer(self.config | settings)
        consumer.subscribe([TOPIC])
        last = time.monotonic()
        while not self._flushed.is_set() or (
            len(self.read) < len(self.acknowledged) and time.monotonic() < last + 60
        ):
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.read[int(message.value() or b"0")] += 1
                    last = time.monotonic()
                else:
                    self.errors.append(f"consume: {message.error()}")
        consumer.close()

    def gap(self, begin: float, end: float) -> float:
        """The longest time between two acknowledgements of one partition."""
        longest = 0.0
        for partition in range(PARTITIONS):
            times = [
                acked for _, p, _, acked in self.acknowledged if p == partition and begin <= acked <= end
            ]
            longest = max([longest, *(b - a for a, b in itertools.pairwise(sorted(times)))])
        return longest

    def p99(self, begin: float, end: float) -> float:
        taken = sorted(acked - sent for _, _, sent, acked in self.acknowledged if begin <= sent <= end)
        return taken[len(taken) * 99 // 100]


@dataclass
class Watcher:
    """Reads the metadata log and the quorum all the time."""

    fleet: LocalFleet
    zones_at_once: int = 0
    below: set[str] = field(default_factory=set)
    leaders: list[int] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._watch()))
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    async def _watch(self) -> None:
        controller = next(node for node in self.fleet.nodes if node.spec.is_controller)
        bootstrap = self.fleet.clusters[0].cluster.spec.bootstrap(Listener.CONTROLLER)
        async with Client(bootstrap, security_of(controller), controllers=True) as client:
            follower = MetadataFollower(client)
            while not self._end.is_set():
                try:
                    image = await follower.catch_up()
                    leader = (await quorum.describe(client, to=CONTROLLER)).leader_id
                except PenstockError:  # the active controller restarts
                    continue
                if self.leaders[-1:] != [leader]:
                    self.leaders.append(leader)
                down = {b.rack for b in image.brokers.values() if b.fenced or b.shutting_down}
                self.zones_at_once = max(self.zones_at_once, len(down))
                self.below |= {
                    f"{topic}-{number}"
                    for (topic, number), p in image.by_name.items()
                    if topic.endswith(f"_{TOPIC}") and len(p.isr) < 2
                }
                await asyncio.sleep(WATCH_SECONDS)


@dataclass
class Platform:
    home: Path
    shape: dict[str, Any]

    def __call__(self, *words: str) -> Any:
        environment = dict(os.environ) | {"PENSTOCK_HOME": str(self.home), "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "penstock", *words, "-o", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def fleet_file(self, **config: object) -> str:
        path = self.home / "wanted.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"clusters": [{**self.shape, "config": config}]}))
        return str(path)

    @property
    def fleet(self) -> LocalFleet:
        return load_fleet(Layout(self.home))


async def elect_once(fleet: LocalFleet) -> None:
    """Another replica of each partition leads, as after a planned election."""
    broker = fleet.clusters[0].cluster.spec.bootstrap()
    node = next(node for node in fleet.nodes if node.spec.is_broker)
    async with Client(broker, security_of(node)) as client:
        metadata = await client.call("Metadata", {"Topics": None})
        rows = [topic for topic in metadata["Topics"] if (topic["Name"] or "").endswith(f"_{TOPIC}")]
        turned = [
            {
                "Name": topic["Name"],
                "Partitions": [
                    {
                        "PartitionIndex": p["PartitionIndex"],
                        "Replicas": [*p["ReplicaNodes"][1:], p["ReplicaNodes"][0]],
                    }
                    for p in topic["Partitions"]
                ],
            }
            for topic in rows
        ]
        await client.call(
            "AlterPartitionReassignments", {"TimeoutMs": 30_000, "Topics": turned}, to=CONTROLLER
        )
        await client.call(
            "ElectLeaders",
            {
                "ElectionType": 0,
                "TimeoutMs": 30_000,
                "TopicPartitions": [
                    {"Topic": t["Name"], "Partitions": [p["PartitionIndex"] for p in t["Partitions"]]}
                    for t in turned
                ],
            },
            to=CONTROLLER,
        )


def measure(run: Run) -> Iterator[Result]:
    brokers, controllers = (3, 1) if run.quick else (6, 3)
    shape = {"port": 0, "brokers": brokers, "controllers": controllers}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        platform = Platform(Path(scratch) / "home", shape)
        run.log(f"{brokers} brokers and {controllers} controllers start")
        try:
            platform("up", "--detach", "--fleet", platform.fleet_file())
            yield from _measured(run, platform)
        finally:
            platform("down")


def _measured(run: Run, platform: Platform) -> Iterator[Result]:
    config = platform("cluster", "connect", "demo", "--client", "python") | {"log_level": 0}
    load, watcher = Load(config), Watcher(platform.fleet)
    with load.running(), watcher.running():
        time.sleep(WARM_SECONDS)
        run.log("one planned election")
        calm = time.monotonic()
        asyncio.run(elect_once(platform.fleet))
        time.sleep(WARM_SECONDS)
        begin = time.monotonic()
        run.log("the roll")
        where = ("--zone", "a") if run.quick else ()
        roll = platform("fleet", "roll", "--fleet", platform.fleet_file(**CHANGED), *where)
        end = time.monotonic()
        time.sleep(WARM_SECONDS)
    lost = {n for n, *_ in load.acknowledged} - load.read.keys()
    twice = sum(count > 1 for count in load.read.values())
    yield Result("client-errors", len(load.errors), "errors", "== 0", detail={"first": load.errors[:3]})
    yield Result("records-lost", len(lost), "records", "== 0", detail={"sent": len(load.acknowledged)})
    yield Result("records-read-twice", twice, "records", "== 0")
    yield Result("partitions-under-minimum", len(watcher.below), "partitions", "== 0")
    yield Result("zones-down-at-once", watcher.zones_at_once, "zones", "== 1")
    yield Result("active-controller-changes", len(watcher.leaders) - 1, "changes", "<= 1")
    gaps = load.gap(calm, begin), load.gap(begin, end)
    detail: dict[str, object] = {"election_seconds": gaps[0], "roll_seconds": gaps[1]}
    yield Result("ack-gap", gaps[1] / gaps[0], "ratio to one planned election", "<= 3", detail=detail)
    yield from _times(load, roll, calm, begin, end)


def _times(load: Load, roll: dict[str, Any], calm: float, begin: float, end: float) -> Iterator[Result]:
    p99 = load.p99(calm - WARM_SECONDS, calm), load.p99(begin, end)
    detail: dict[str, object] = {"calm_seconds": p99[0], "roll_seconds": p99[1]}
    yield Result("ack-p99", p99[1] / p99[0], "ratio to the time before", detail=detail)
    rows = [node for node in roll["nodes"] if node["leader_return_seconds"] is not None]
    ratios = [
        (node["catch_up_seconds"] + node["leader_return_seconds"])
        / max(node["start_seconds"] + node["recovery_seconds"], 1e-3)
        for node in rows
    ]
    if ratios:
        yield Result.of_runs("catch-up", ratios, unit="ratio to the bare start", goal="<= 1.5")
    else:
        yield Result.missing(
            "catch-up", unit="ratio to the bare start", goal="<= 1.5", reason="no node came back"
        )
    yield Result("roll-seconds", end - begin, "s", detail={"state": roll["state"], "nodes": len(rows)})


if __name__ == "__main__":
    sys.exit(main("rolls", measure))
