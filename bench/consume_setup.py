"""A broker, filled topics, and the contenders of `bench.consume`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.fleets import kill_nodes
from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import open_fleet
from penstock.fleet.readiness import wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import stop_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

PEER = Path(__file__).parent / "peers" / "parallelconsumer"
PYRALLEL = Path(__file__).parent / "peers" / "pyrallel" / "peer.py"
PYTHON = "PENSTOCK_BENCH_PYTHON"  # an interpreter for Pyrallel-Consumer, if ours is too old
CLUSTER = {
    "port": 0, "combined": True, "brokers": 1, "zones": ["a"], "jit": "full", "heap": 1024,
    "config": {"group.initial.rebalance.delay.ms": 0},
}  # fmt: skip
MAVEN_SECONDS_MAX = 300
PARTITIONS = 8


@dataclass(frozen=True)
class Outcome:
    """A contender's result."""

    wall: float  # seconds
    processor: float  # seconds
    records: int
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        return self.records / self.wall


class Contender:
    """A warm process: one job per line in, one result per line out."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, topic: str, order: str, workers: int, work: str, records: int) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{topic} {order} {workers} {work} {records}\n")
        self._process.stdin.flush()
        words = self._process.stdout.readline().split()
        if len(words) != 5:
            raise RuntimeError(f"the contender exited with {self._process.wait()}")
        wall, processor, handled, p50, p99 = map(int, words)
        if handled < records:
            raise RuntimeError(f"the contender handled {handled} of {records} records")
        return Outcome(wall / 1e9, processor / 1e9, handled, p50 / 1e3, p99 / 1e3)

    def close(self) -> None:
        with self._process as process:
            process.kill()


class BenchBroker:
    """One broker with topics; `connection` is the librdkafka configuration for it."""

    def __init__(self, connection: dict[str, Any], directory: Path) -> None:
        self.connection, self.directory = connection, directory
        self._admin = AdminClient(connection)

    def topic(self, records: int, keys: int, *, size: int = 50, partitions: int = PARTITIONS) -> str:
        """Creates a topic with that many records over that many keys; without keys if `keys` is 0."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
        producer = Producer(self.connection | {"linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
        value = b"x" * size
        for number in range(records):
            producer.produce(name, value, key=f"k{number % keys}" if keys else None)
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush(120)
        return name

    def stream(self, name: str, records: int, per_second: int) -> None:
        """Sends on schedule; each record carries its intended send time, in microseconds."""
        producer = Producer(self.connection | {"linger.ms": 1})
        begin = time.time()
        for number in range(records):
            slot = begin + number / per_second
            while (left := slot - time.time()) > 0:
                time.sleep(left)
            producer.produce(name, str(int(slot * 1e6)), key=f"k{number % 1000}")
            producer.poll(0)
        producer.flush(60)

    def ours(self) -> Contender:
        path = self.directory / "connection.json"
        path.write_text(json.dumps(self.connection))
        return Contender(
            [sys.executable, "-m", "bench.consume_jobs", str(path)], Path(__file__).parent.parent
        )

    def pyrallel(self) -> Contender | str:
        """Pyrallel-Consumer in a separate environment, or the reason why it is missing."""
        python = next(filter(_is_new_enough, (os.environ.get(PYTHON, ""), "python3.13", "python3.12")), None)
        if python is None:
            return f"it needs Python 3.12 or later, on the path or set with {PYTHON}"
        environment = self.directory / "pyrallel"
        for step in (
            [python, "-m", "venv", str(environment)],
            [str(environment / "bin" / "pip"), "install", "-q", "pyrallel-consumer==1.0.0", "uvloop"],
        ):
            try:
                done = subprocess.run(
                    step, check=False, capture_output=True, text=True, timeout=MAVEN_SECONDS_MAX
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{step[0]}: {error}"
            if done.returncode:
                return f"{' '.join(step[:3])} failed: {(done.stderr or done.stdout).strip()[-200:]}"
        connection = self.directory / "pyrallel.json"
        connection.write_text(json.dumps(self.connection))
        return Contender(
            [str(environment / "bin" / "python"), str(PYRALLEL), str(connection)], self.directory
        )

    def peer(self) -> Contender | str:
        """Confluent's parallel consumer, or the reason why it is missing."""
        jars, classes = self.directory / "jars", self.directory / "classes"
        steps = [
            ["mvn", "-q", "-B", "-f", str(PEER / "pom.xml"), "dependency:copy-dependencies",
             f"-DoutputDirectory={jars}"],
            ["javac", "-cp", f"{jars}/*", "-d", str(classes), str(PEER / "Peer.java")],
        ]  # fmt: skip
        for step in steps:
            try:
                done = subprocess.run(
                    step, check=False, capture_output=True, text=True, timeout=MAVEN_SECONDS_MAX
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{step[0]}: {error}"
            if done.returncode:
                return f"{step[0]} failed: {(done.stderr or done.stdout).strip()[-200:]}"
        user, password = self.connection["sasl.username"], self.connection["sasl.password"]
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines = [
            f"{name}={self.connection[name]}"
            for name in ("bootstrap.servers", "security.protocol", "sasl.mechanism")
        ]
        lines.append(f'sasl.jaas.config={module} required username="{user}" password="{password}";')
        properties = self.directory / "peer.properties"
        properties.write_text("\n".join(lines))
        return Contender(
            ["java", "-Xmx1g", "-cp", f"{jars}/*:{classes}", "Peer", str(properties)], self.directory
        )


def _is_new_enough(python: str) -> bool:
    """Whether the interpreter exists, runs, and is new enough; a pyenv shim may exist and not run."""
    check = "import sys; sys.exit(sys.version_info < (3, 12))"
    return (
        bool(python and shutil.which(python))
        and not subprocess.run([python, "-c", check], check=False, capture_output=True).returncode
    )


@contextmanager
def bench_broker() -> Iterator[BenchBroker]:
    """Starts a dedicated broker; stops and removes it afterwards."""
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))

    async def prepare() -> Any:
        fleet = open_fleet(parse_fleet({"clusters": [CLUSTER]}), Layout(home), await obtain_runtime())
        await fleet.prepare()
        return fleet

    async def start() -> None:
        for node in local.nodes:
            await node.start()
        await wait_until_ready(list(local.nodes))

    local = asyncio.run(prepare())
    try:
        asyncio.run(start())
        connection = {
            "bootstrap.servers": local.clusters[0].cluster.spec.bootstrap(),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SCRAM_MECHANISM,
            "sasl.username": PLATFORM_USER,
            "sasl.password": local.access.credentials.platform,
        }
        yield BenchBroker(connection, home)
    finally:
        asyncio.run(stop_nodes(local.nodes))
        kill_nodes(local)
        shutil.rmtree(home, ignore_errors=True)
