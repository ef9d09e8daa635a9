"""Two clusters for `bench.link`, and one copy of a topic by a link and by MirrorMaker 2."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml
from confluent_kafka import Producer

from bench.measure import processor_seconds
from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER
from penstock.fleet.jars import cache_directory, load_jars
from penstock.fleet.java import find_java
from penstock.fleet.spec import Listener
from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.offsets import OffsetSpec, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.link import commands
from penstock.link.states import Action
from penstock.model.errors import PenstockError
from tests.gateway.programs import PROGRAMS
from tests.harness.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS: Final = 12
RECORD_BYTES: Final = 1_000
WAIT_SECONDS: Final = 400.0
GROUPS_SECONDS: Final = 20.0  # for MirrorMaker to copy group offsets, after it has caught up
POLL_SECONDS: Final = 0.02
COUNTED_FROM: Final = 0.25  # of the records
HEAP: Final = "-Xmx512m"


@dataclass(frozen=True, slots=True)
class Pair:
    source: Fleet
    destination: Fleet
    directory: Path

    @property
    def pids(self) -> list[int]:
        """Of all nodes."""
        running = [node.running() for fleet in (self.source, self.destination) for node in fleet.nodes]
        return [one.pid for one in running if one is not None]


@dataclass(frozen=True, slots=True)
class Copied:
    megabytes_per_second: float
    processor_seconds_per_gigabyte: float
    read_again: int
    failover_seconds: float = 0.0


@contextmanager
def clusters(directory: Path) -> Iterator[Pair]:
    made: list[Fleet] = []
    try:
        shape = {"port": 0, "jit": "full"}
        made.append(
            Fleet.start(directory / "source", {**shape, "brokers": 1, "zones": ["a"], "combined": True})
        )
        made.append(Fleet.start(directory / "destination", {**shape, "brokers": 2, "zones": ["a", "b"]}))
        yield Pair(made[0], made[1], directory)
    finally:
        for fleet in made:
            fleet.destroy()


def missing_peer() -> str:
    """Why MirrorMaker cannot run; empty if it can."""
    try:
        load_jars(cache_directory(), PROGRAMS)
        find_java()
    except PenstockError as missing:
        return missing.message
    return ""


async def fill(pair: Pair, topic: str, records: int) -> None:
    async with _client(pair.source) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(topic, PARTITIONS, 1)]))
    await asyncio.to_thread(pair.source.wait_for_leaders, topic, PARTITIONS)
    await asyncio.to_thread(_produce, pair.source, topic, records)


def _produce(fleet: Fleet, topic: str, records: int) -> None:
    producer = Producer(fleet.client_config(**{"linger.ms": 20}))
    value = os.urandom(RECORD_BYTES)
    for number in range(records):
        producer.produce(topic, value, partition=number % PARTITIONS)
        if number % 1_000 == 999:
            producer.flush(60)
    producer.flush(60)


async def commit_behind(pair: Pair, topic: str, behind: int) -> None:
    """A group without members that has this many records to read."""
    async with _client(pair.source) as client:
        ends = await _ends(client, topic)
        offsets = {
            place: CommittedOffset(max(0, end - behind // PARTITIONS), -1, "") for place, end in ends.items()
        }
        results_or_raise(await group_offsets.commit(client, f"behind-{topic}", offsets))


async def linked(pair: Pair, topic: str, records: int) -> Copied:
    """By a link in a separate process, which then fails over."""
    settings = _link_settings(pair, topic)
    async with _client(pair.source) as source, _client(pair.destination) as destination:
        await commands.create(source, destination, topic, [topic])
        process = _start(
            [sys.executable, "-m", "penstock", "link", "run", topic, "--settings", str(settings)]
        )
        try:
            rate, cost = await _watch(pair, process, topic, records)
            start = time.monotonic()
            await commands.request(destination, topic, Action.FAILOVER)
            seconds = time.monotonic() - start
        finally:
            _end(process)
        return Copied(rate, cost, await _read_again(source, destination, topic, topic), seconds)


async def mirrored_by_maker(pair: Pair, topic: str, records: int) -> Copied:
    properties = pair.directory / f"{topic}.properties"
    properties.write_text(_properties(pair, topic))
    jars = f"{load_jars(cache_directory(), PROGRAMS).directory}/*"
    java = str(find_java().executable)
    main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
    process = _start([java, HEAP, "-cp", jars, main_class, str(properties)])
    try:
        rate, cost = await _watch(pair, process, f"source.{topic}", records)
        async with _client(pair.source) as source, _client(pair.destination) as destination:
            deadline = time.monotonic() + GROUPS_SECONDS
            while (again := await _read_again(source, destination, topic, f"source.{topic}")) > 0:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(1)
    finally:
        _end(process)
    return Copied(rate, cost, again)


async def _watch(
    pair: Pair, process: subprocess.Popen[bytes], topic: str, records: int
) -> tuple[float, float]:
    """Megabytes a second, and processor seconds for a gigabyte, after the first quarter."""
    began: tuple[float, float, int] | None = None
    deadline = time.monotonic() + WAIT_SECONDS
    pids = [*pair.pids, process.pid]
    async with _client(pair.destination) as client:
        while True:
            copied = await _copied(client, topic)
            now, used = time.monotonic(), processor_seconds(*pids)
            if began is None and copied >= COUNTED_FROM * records:
                began = (now, used, copied)
                if copied >= records:
                    raise RuntimeError(f"{topic} was copied too fast to be measured")
            if copied >= records and began is not None:
                megabytes = (copied - began[2]) * RECORD_BYTES / 1e6
                return megabytes / (now - began[0]), (used - began[1]) / megabytes * 1e3
            if process.poll() is not None or now > deadline:
                raise RuntimeError(f"{topic}: {copied} of {records} records, exit {process.poll()}")
            await asyncio.sleep(POLL_SECONDS)


async def _copied(client: Client, topic: str) -> int:
    if isinstance((await topics.describe(client, [topic]))[topic], PenstockError):
        return 0
    try:
        return sum((await _ends(client, topic)).values())
    except PenstockError:
        return 0  # it has no leader yet


async def _ends(client: Client, topic: str) -> dict[TopicPartition, int]:
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    listed = results_or_raise(await list_offsets(client, dict.fromkeys(places, OffsetSpec.LATEST)))
    return {place: one.offset for place, one in listed.items()}


async def _read_again(source: Client, destination: Client, topic: str, copy: str) -> int:
    """Records that the group has read on the source and gets again on the destination."""
    there = await group_offsets.committed(source, f"behind-{topic}")
    here = await group_offsets.committed(destination, f"behind-{topic}")
    none = CommittedOffset(0, -1, "")
    return sum(
        max(0, one.offset - here.get(TopicPartition(copy, place.partition), none).offset)
        for place, one in there.items()
    )


def _client(fleet: Fleet) -> Client:
    return Client(fleet.bootstrap, fleet.security())


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _link_settings(pair: Pair, topic: str) -> Path:
    node = next(node for node in pair.destination.nodes if node.spec.is_controller)
    document: dict[str, Any] = {
        "source": {"bootstrap": pair.source.bootstrap, "login": _login(pair.source)},
        "destination": {
            "bootstrap": pair.destination.bootstrap,
            "controllers": node.cluster.spec.bootstrap(Listener.CONTROLLER),
            "login": _login(pair.destination),
        },
        "shadow": {
            "directory": str(pair.directory / f"shadow-{topic}"), "host": "127.0.0.1",
            "admitted": [NODE_USER, PLATFORM_USER],
        },
    }  # fmt: skip
    path = pair.directory / f"{topic}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _login(fleet: Fleet) -> dict[str, str]:
    return {"user": PLATFORM_USER, "password": fleet.local.access.credentials.platform}


def _properties(pair: Pair, topic: str) -> str:
    """One direction, with group offsets, and shorter intervals than by default."""
    lines = [
        "clusters = source, target",
        "source->target.enabled = true",
        f"source->target.topics = {topic}",
        f"source->target.groups = behind-{topic}",
        "source->target.sync.group.offsets.enabled = true",
        "target->source.enabled = false",
        "replication.factor = 2",
        "tasks.max = 4",
        *(f"{name}.storage.replication.factor = 2" for name in ("offset", "status", "config")),
        "offset-syncs.topic.replication.factor = 1",
        "checkpoints.topic.replication.factor = 2",
        "heartbeats.topic.replication.factor = 2",
    ]
    lines += [f"{every}.interval.seconds = 2" for every in (
        "refresh.topics", "refresh.groups", "emit.heartbeats", "emit.checkpoints", "sync.group.offsets",
    )]  # fmt: skip
    for name, fleet in (("source", pair.source), ("target", pair.destination)):
        login = _login(fleet)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        options = f'username="{login["user"]}" password="{login["password"]}"'
        lines += [
            f"{name}.bootstrap.servers = {fleet.bootstrap}",
            f"{name}.security.protocol = SASL_PLAINTEXT",
            f"{name}.sasl.mechanism = SCRAM-SHA-512",
            f"{name}.sasl.jaas.config = {module} required {options};",
        ]
    return "\n".join(lines) + "\n"
