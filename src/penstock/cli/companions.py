"""What `penstock up` runs beside the fleet: a control plane, a coordinator, gateways, and a demo tenant.

Each is a process of its own that ends when this one does, and is started again when it dies. Ports
are chosen at the first start and kept while they are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.cli import keyring
from penstock.cli.cluster import make_key
from penstock.cli.data import partitions_of
from penstock.cli.remote import Control, connected, read_address
from penstock.cli.settings import RemoteOptions
from penstock.control.addresses import ADDRESS_FILE, URL_DEFAULT
from penstock.control.gateways import free_ports
from penstock.control.local import gateway_file, write_gateway_file
from penstock.control.running import root_token
from penstock.fleet.layout import Layout, write_atomically
from penstock.fleet.local import LocalCluster, LocalFleet
from penstock.kafka import topics
from penstock.kafka.appending import append
from penstock.kafka.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ProblemAnswered
from penstock.wire.codes import Code

GATEWAY_PORT_FIRST: Final = 28001
CONTROL_PORT: Final = int(URL_DEFAULT.rpartition(":")[2])
COORDINATOR_LOG: Final = "coordinator.log"
RESTART_SECONDS: Final = 1.0
STOP_SECONDS: Final = 10.0
READY_SECONDS: Final = 60.0
DEMO: Final = "demo"
DEMO_TOPIC: Final = "orders"
DEMO_PARTITIONS: Final = 3
DEMO_SECONDS_BETWEEN: Final = 1.0


@dataclass
class Companion:
    """One process, kept running."""

    name: str
    words: Sequence[str]
    log: Path
    process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        while True:
            with self.log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "penstock", *self.words, "--until-stdin-ends",
                    stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            await self.process.wait()
            await asyncio.sleep(RESTART_SECONDS)

    async def stop(self) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@dataclass
class Companions:
    fleet: LocalFleet
    options: RemoteOptions
    url: str = ""
    demo: dict[str, str] = field(default_factory=dict)
    running: list[Companion] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        return self.fleet.layout

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Runs them while the block does."""
        port = _control_port(self.layout)
        self.url = f"http://127.0.0.1:{port}"
        root_token(self.layout)
        gateways = [self._gateway(cluster) for cluster in self.fleet.clusters]
        words = ["control", "run", "--listen", f"127.0.0.1:{port}", "--home", str(self.layout.home)]
        coordinate = ["quota", "coordinate", "--home", str(self.layout.home)]
        self.running = [
            Companion("control", words, self.layout.home / "control.log"),
            Companion("coordinator", coordinate, self.layout.home / COORDINATOR_LOG),
            *gateways,
        ]
        tasks = [asyncio.create_task(companion.keep()) for companion in self.running]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(companion.stop() for companion in self.running))

    def _gateway(self, cluster: LocalCluster) -> Companion:
        path = gateway_file(self.layout, cluster.cluster.spec)
        ports = _gateway_ports(path, len(cluster.cluster.spec.brokers))
        write_gateway_file(self.layout, cluster, ports, self.fleet.access.ca)
        words = ["gateway", "run", "--config", str(path)]
        return Companion(f"gateway of {cluster.name}", words, path.with_suffix(".log"))

    async def ready(self) -> None:
        """The demo tenant works, so everything does."""
        self.demo = await asyncio.to_thread(self._demo_cluster)
        kept = keyring.kept_for(self.layout, DEMO)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                await _demo_topic(kept)
                break
            except PenstockError:  # its gateway is still starting
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    def publish(self) -> None:
        """Where the control plane is; whoever waits for us looks for our pid here."""
        document = {"url": self.url, "pid": os.getpid(), "demo": self.demo}
        write_atomically(self.layout.home / ADDRESS_FILE, json.dumps(document, indent=1))

    def _demo_cluster(self) -> dict[str, str]:
        options = RemoteOptions(home=self.layout.home, url=self.url)
        control: Control = connected(options)
        try:
            made = control.change("POST", "/clusters", {"name": DEMO})
            control.wait(made["operation"])
        except ProblemAnswered as error:
            if error.code != "PEN-5003":  # it is there from before
                raise
        cluster: dict[str, Any] = control.get(f"/clusters/{DEMO}")
        for kept in keyring.every(self.layout):
            if kept.cluster == cluster["id"] and kept.bootstrap == cluster["bootstrap"]:
                break
        else:
            make_key(control, options, cluster, None, "of the demo")
        kept = keyring.kept_for(self.layout, DEMO)
        return {"id": kept.cluster, "name": DEMO, "bootstrap": kept.bootstrap, "key": kept.key}

    async def traffic(self, stop: asyncio.Event) -> None:
        """An order a second, as a tenant; what goes wrong is tried again with the next one."""
        number = 0
        async with keyring.kept_for(self.layout, DEMO).client() as client:
            while not stop.is_set():
                number += 1
                order = json.dumps({"order": number, "at": int(time.time() * 1000)}).encode()
                with contextlib.suppress(PenstockError):  # the demo's traffic: the next order tries again
                    partition = TopicPartition(DEMO_TOPIC, number % DEMO_PARTITIONS)
                    await append(client, partition, [(str(number % 10).encode(), order)])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), DEMO_SECONDS_BETWEEN)


async def _demo_topic(kept: keyring.Kept) -> None:
    async with kept.client() as client:
        wanted = topics.NewTopic(DEMO_TOPIC, DEMO_PARTITIONS, configs={"retention.ms": str(3600 * 1000)})
        made = (await topics.create(client, [wanted]))[DEMO_TOPIC]
        if isinstance(made, PenstockError) and made.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS:
            raise made
        await append(client, (await partitions_of(client, DEMO_TOPIC))[0], [(None, b'{"order": 0}')])


def _control_port(layout: Layout) -> int:
    before = read_address(layout).get("url", "")
    wanted = int(before.rpartition(":")[2]) if before else CONTROL_PORT
    return wanted if _free(wanted) else free_ports(1)[0]


def _gateway_ports(path: Path, count: int) -> list[int]:
    before: list[int] = []
    if path.exists():
        before = [broker["port"] for broker in yaml.safe_load(path.read_text())["brokers"]]
    wanted = before or list(range(GATEWAY_PORT_FIRST, GATEWAY_PORT_FIRST + count))
    wanted += free_ports(max(0, count - len(wanted)))
    return wanted[:count] if all(map(_free, wanted[:count])) else free_ports(count)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
