"""The processes that `penstock up` runs beside the fleet: control plane, coordinator, gateways, checker, and
backups where the fleet file has them.

Each ends when this process does, and is started again when it dies. Ports, also those of the management
addresses, are chosen at the first start and kept for as long as they are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import yaml

from penstock.control.physical.addresses import ADDRESS_FILE, URL_DEFAULT, root_token
from penstock.control.physical.backup_file import address_before, backup_file, write_backup_file
from penstock.control.physical.gateway_files import advertised_bootstrap, free_ports, management_address
from penstock.control.physical.local import gateway_file, write_gateway_file
from penstock.platform.control_client import read_address
from penstock.process_identity import identify, this_process, write_identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalCluster, LocalFleet

GATEWAY_PORT_FIRST: Final = 28001
CONTROL_PORT: Final = int(URL_DEFAULT.rpartition(":")[2])
CONTROL: Final = "control plane"
COORDINATOR: Final = "coordinator"
SUPERVISOR: Final = "supervisor"
CHECKER: Final = "checker"
# Unless they are taken.
METRICS_PORTS: Final = {CONTROL: 28081, COORDINATOR: 28082, SUPERVISOR: 28083, CHECKER: 28084}
GATEWAY_METRICS_PORT_FIRST: Final = 28090
BACKUP_METRICS_PORT_FIRST: Final = 28190
CONTROL_LOG: Final = "control.log"
COORDINATOR_LOG: Final = "coordinator.log"
CHECKER_LOG: Final = "checker.log"
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
    metrics: str = ""  # host:port of its management address
    starts: int = 0
    process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        while True:
            with self.log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "penstock", *self.command, "--until-stdin-ends",
                    stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            self.starts += 1
            if (identity := identify(self.process.pid)) is not None:
                facts = {"service": self.service, "address": self.address, "metrics": self.metrics}
                write_identity(self.record, identity, **facts)
            await self.process.wait()
            await asyncio.sleep(RESTART_SECONDS)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

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


@dataclass(frozen=True, slots=True)
class Companions:
    """The processes beside the fleet, while they run."""

    url: str  # of the control plane
    metrics: str  # host:port of the supervisor's management address
    services: Sequence[Companion] = field(default=())

    def publish(self, layout: Layout, demo: Mapping[str, str]) -> None:
        """Write down where they are. `penstock up --detach` waits for this process's pid there."""
        metrics = {one.service: one.metrics for one in self.services} | {SUPERVISOR: self.metrics}
        path = layout.home / ADDRESS_FILE
        write_identity(path, this_process(), url=self.url, demo=dict(demo), metrics=metrics)


@contextlib.asynccontextmanager
async def run_companions(fleet: LocalFleet) -> AsyncIterator[Companions]:
    """Run the control plane, the coordinator, the gateways, the backups and the checker."""
    layout = fleet.layout
    port = _control_port(layout)
    root_token(layout)
    home = ["--home", str(layout.home)]
    metrics = {service: _metrics_address(layout, service) for service in METRICS_PORTS}
    services = [
        Companion(
            CONTROL,
            ["control", "run", "--listen", f"127.0.0.1:{port}", "--metrics", metrics[CONTROL], *home],
            layout.home / CONTROL_LOG,
            f"http://127.0.0.1:{port}",
            metrics[CONTROL],
        ),
        Companion(
            COORDINATOR,
            ["quota", "coordinate", "--metrics", metrics[COORDINATOR], *home],
            layout.home / COORDINATOR_LOG,
            metrics=metrics[COORDINATOR],
        ),
        *(_gateway(fleet, cluster, number) for number, cluster in enumerate(fleet.clusters)),
        *_backups(fleet),
        Companion(
            CHECKER,
            ["health", "run", "--metrics", metrics[CHECKER], *home],
            layout.home / CHECKER_LOG,
            metrics=metrics[CHECKER],
        ),
    ]
    tasks = [asyncio.create_task(service.run()) for service in services]
    try:
        yield Companions(f"http://127.0.0.1:{port}", metrics[SUPERVISOR], services)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(service.stop() for service in services))


def service_records(layout: Layout) -> list[Path]:
    """The records of the services that run, or should, beside the fleet."""
    fleet = [layout.home / name for name in (CONTROL_LOG, COORDINATOR_LOG, CHECKER_LOG)]
    records = [log.with_suffix(RECORD_SUFFIX) for log in fleet]
    records += sorted((layout.home / "clusters").glob(f"*/*{RECORD_SUFFIX}"))
    return [path for path in records if path.exists()]


def forget_services(layout: Layout) -> None:
    """What an earlier start ran beside the fleet is not missed any more."""
    for path in service_records(layout):
        path.unlink(missing_ok=True)


def _gateway(fleet: LocalFleet, cluster: LocalCluster, number: int) -> Companion:
    path = gateway_file(fleet.layout, cluster.cluster.spec)
    ports = gateway_ports(path, [node.id for node in cluster.cluster.spec.brokers])
    before = management_address(path) or f"127.0.0.1:{GATEWAY_METRICS_PORT_FIRST + number}"
    metrics_port = _free_or_other(int(before.rpartition(":")[2]))
    write_gateway_file(fleet.layout, cluster, ports, fleet.access.ca, metrics_port)
    return Companion(
        f"gateway of {cluster.name}",
        ["gateway", "run", "--config", str(path)],
        path.with_suffix(".log"),
        advertised_bootstrap(path),
        management_address(path),
    )


def _backups(fleet: LocalFleet) -> list[Companion]:
    """One for each cluster whose fleet file has a backup. The control plane reads the same settings."""
    services = []
    for number, cluster in enumerate(fleet.clusters):
        path = backup_file(fleet.layout, cluster.cluster.spec)
        if path is None:
            continue
        before = address_before(path) or f"127.0.0.1:{BACKUP_METRICS_PORT_FIRST + number}"
        address = f"127.0.0.1:{_free_or_other(int(before.rpartition(':')[2]))}"
        write_backup_file(fleet, cluster, path, address)
        command = ["backup", "run", "--settings", str(path)]
        log = path.with_suffix(".log")
        services.append(Companion(f"backup of {cluster.name}", command, log, metrics=address))
    return services


def _metrics_address(layout: Layout, service: str) -> str:
    before = read_address(layout).get("metrics", {}).get(service, "")
    port = int(before.rpartition(":")[2]) if before else METRICS_PORTS[service]
    return f"127.0.0.1:{_free_or_other(port)}"


def _control_port(layout: Layout) -> int:
    before = read_address(layout).get("url", "")
    port = int(before.rpartition(":")[2]) if before else CONTROL_PORT
    return _free_or_other(port)


def _free_or_other(port: int) -> int:
    return port if _is_free(port) else free_ports(1)[0]


def gateway_ports(path: Path, brokers: Sequence[int]) -> list[int]:
    """A broker keeps the port that tenants use, as long as it is free."""
    before: dict[int, int] = {}
    if path.exists():
        before = {one["id"]: one["port"] for one in yaml.safe_load(path.read_text())["brokers"]}
    else:
        before = {broker: GATEWAY_PORT_FIRST + number for number, broker in enumerate(brokers)}
    new = free_ports(sum(broker not in before for broker in brokers))
    ports = [before.get(broker) or new.pop() for broker in brokers]
    return ports if all(map(_is_free, ports)) else free_ports(len(brokers))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
