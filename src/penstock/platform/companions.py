"""The processes that `penstock up` runs beside the fleet: control plane, quota coordinator, gateways.

Each ends when this process does, and is started again when it dies. Ports are chosen at the first
start, and kept for as long as they are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

from penstock.control.physical.addresses import ADDRESS_FILE, URL_DEFAULT
from penstock.control.physical.gateway_files import advertised_bootstrap, free_ports
from penstock.control.physical.local import gateway_file, write_gateway_file
from penstock.control.process import root_token
from penstock.platform.control_client import read_address
from penstock.process_identity import identify, this_process, write_identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalCluster, LocalFleet

GATEWAY_PORT_FIRST: Final = 28001
CONTROL_PORT: Final = int(URL_DEFAULT.rpartition(":")[2])
CONTROL_LOG: Final = "control.log"
COORDINATOR_LOG: Final = "coordinator.log"
RECORD_SUFFIX: Final = ".process.json"
RESTART_SECONDS: Final = 1.0
STOP_SECONDS: Final = 10.0


@dataclass
class Companion:
    """One process, started again whenever it ends."""

    service: str
    command: Sequence[str]
    log: Path
    address: str = ""
    process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        while True:
            with self.log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "penstock", *self.command, "--until-stdin-ends",
                    stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            if (identity := identify(self.process.pid)) is not None:
                write_identity(self.record, identity, service=self.service, address=self.address)
            await self.process.wait()
            await asyncio.sleep(RESTART_SECONDS)

    @property
    def record(self) -> Path:
        """Names its process, for `status`. It stays if the supervisor is killed, so that it is missed."""
        return self.log.with_suffix(RECORD_SUFFIX)

    async def stop(self) -> None:
        self.record.unlink(missing_ok=True)
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


@contextlib.asynccontextmanager
async def run_companions(fleet: LocalFleet) -> AsyncIterator[str]:
    """Run the control plane, the coordinator and the gateways; the control plane's URL."""
    layout = fleet.layout
    port = _control_port(layout)
    root_token(layout)
    home = ["--home", str(layout.home)]
    companions = [
        Companion(
            "control plane",
            ["control", "run", "--listen", f"127.0.0.1:{port}", *home],
            layout.home / CONTROL_LOG,
            f"http://127.0.0.1:{port}",
        ),
        Companion("coordinator", ["quota", "coordinate", *home], layout.home / COORDINATOR_LOG),
        *(_gateway(fleet, cluster) for cluster in fleet.clusters),
    ]
    tasks = [asyncio.create_task(companion.run()) for companion in companions]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(companion.stop() for companion in companions))


def service_records(layout: Layout) -> list[Path]:
    """The records of the services that run, or should, beside the fleet."""
    fleet = [layout.home / CONTROL_LOG, layout.home / COORDINATOR_LOG]
    records = [log.with_suffix(RECORD_SUFFIX) for log in fleet]
    records += sorted((layout.home / "clusters").glob(f"*/*{RECORD_SUFFIX}"))
    return [path for path in records if path.exists()]


def forget_services(layout: Layout) -> None:
    """What an earlier start ran beside the fleet is not missed any more."""
    for path in service_records(layout):
        path.unlink(missing_ok=True)


def publish_address(layout: Layout, url: str, demo: Mapping[str, str]) -> None:
    """Write down where the control plane is. `penstock up --detach` waits for this process's pid there."""
    write_identity(layout.home / ADDRESS_FILE, this_process(), url=url, demo=dict(demo))


def _gateway(fleet: LocalFleet, cluster: LocalCluster) -> Companion:
    path = gateway_file(fleet.layout, cluster.cluster.spec)
    ports = _gateway_ports(path, len(cluster.cluster.spec.brokers))
    write_gateway_file(fleet.layout, cluster, ports, fleet.access.ca)
    command = ["gateway", "run", "--config", str(path)]
    bootstrap = advertised_bootstrap(path)
    return Companion(f"gateway of {cluster.name}", command, path.with_suffix(".log"), bootstrap)


def _control_port(layout: Layout) -> int:
    before = read_address(layout).get("url", "")
    port = int(before.rpartition(":")[2]) if before else CONTROL_PORT
    return port if _is_free(port) else free_ports(1)[0]


def _gateway_ports(path: Path, count: int) -> list[int]:
    before: list[int] = []
    if path.exists():
        before = [broker["port"] for broker in yaml.safe_load(path.read_text())["brokers"]]
    ports = before or list(range(GATEWAY_PORT_FIRST, GATEWAY_PORT_FIRST + count))
    ports += free_ports(max(0, count - len(ports)))
    return ports[:count] if all(map(_is_free, ports[:count])) else free_ports(count)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
