"""Physical clusters of local processes: the home's own clusters, and dedicated ones.

`penstock up` starts the clusters of the home's own fleet. A dedicated cluster gets a separate home below
`dedicated/`, with its own platform key, and the active control plane keeps it running.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.balance.cells import plan_cells
from penstock.control.physical.backup_file import backup_file
from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.control.physical.gateway_files import (
    GATEWAY_FILE,
    GatewayFile,
    advertised_bootstrap,
    free_ports,
    kept_ports,
    management_address,
)
from penstock.control.physical.gateway_supervisor import GatewaySupervisor, stop_gateway
from penstock.fleet.credentials.certificates import load_platform_key
from penstock.fleet.kafka_properties import broker_request_bytes_max, handler_threads
from penstock.fleet.layout import Layout, make_directory
from penstock.fleet.local_fleet import load_fleet, load_fleet_document, open_fleet, save_fleet_document
from penstock.fleet.resize import (
    add_brokers,
    check_growth,
    forget_brokers,
    local_cluster,
    stop_brokers,
)
from penstock.fleet.runtime import obtain_runtime, runtime_of, use_versions
from penstock.fleet.spec import Listener
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import Supervisor, stop_nodes
from penstock.kafka.admin import brokers
from penstock.kafka.security import tls_context
from penstock.model.entities import BrokerEndpoint, CellMembers
from penstock.model.errors.balance import BrokerNotStarted
from penstock.model.errors.control import ProvisionerMissing
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from penstock.fleet.local_fleet import LocalCluster, LocalFleet
    from penstock.fleet.spec import ClusterSpec
    from penstock.model.entities import PhysicalCluster

LOCAL: Final = "local"
DEDICATED: Final = "dedicated"  # directory of the homes of dedicated clusters
DEDICATED_BROKERS: Final = 1
START_SECONDS_MAX: Final = 120.0  # for brokers that are added
POLL_SECONDS: Final = 0.2


def fleet_clusters(layout: Layout, *, cell_brokers: int = 0) -> tuple[ProvidedCluster, ...]:
    """The clusters of the fleet under this home, as last started."""
    fleet = load_fleet(layout)
    return tuple(provided_cluster(fleet, cluster, cell_brokers=cell_brokers) for cluster in fleet.clusters)


def provided_cluster(fleet: LocalFleet, cluster: LocalCluster, *, cell_brokers: int = 0) -> ProvidedCluster:
    spec = cluster.cluster.spec
    brokers = _places(spec)
    return ProvidedCluster(
        id=cluster.cluster.id,
        name=spec.name,
        provider=LOCAL,
        bootstrap=spec.bootstrap(),
        key=load_platform_key(fleet.layout.secrets),
        brokers=brokers,
        cells=cells_of(brokers, cell_brokers),
        kafka_id=cluster.cluster.kafka_id,
        tls=tls_context(fleet.access.ca) if spec.tls else None,
        metrics=_metrics(spec),
        tenants_bootstrap=advertised_bootstrap(gateway_file(fleet.layout, spec)),
        controllers=spec.bootstrap(Listener.CONTROLLER),
        backup=backup_file(fleet.layout, spec),
    )


def cells_of(brokers: Sequence[BrokerEndpoint], size: int) -> tuple[CellMembers, ...]:
    """Cells of `size` brokers, evenly over the zones; one cell of all brokers if the size is 0."""
    if size <= 0:
        return (CellMembers("cell-1", tuple(sorted(broker.id for broker in brokers))),)
    zones: dict[Zone, list[BrokerId]] = {}
    for broker in brokers:
        zones.setdefault(broker.zone, []).append(broker.id)
    return tuple(CellMembers(cell.id, cell.brokers) for cell in plan_cells(zones, size))


def gateway_file(layout: Layout, spec: ClusterSpec) -> Path:
    return layout.cluster(spec.name) / GATEWAY_FILE


def write_gateway_file(
    layout: Layout, cluster: LocalCluster, ports: Sequence[int], ca: Path, metrics_port: int | None = None
) -> Path:
    """Writes the settings of a gateway in front of every broker of a cluster."""
    spec = cluster.cluster.spec
    file = GatewayFile(
        name=spec.name,
        cluster=cluster.cluster.id,
        brokers=_places(spec),
        platform_key=layout.secrets / "platform.key",
        ca=ca if spec.tls else None,
        metrics=_metrics(spec),
        handler_threads=handler_threads(spec),
        request_bytes_max=broker_request_bytes_max(spec),
    )
    return file.write(gateway_file(layout, spec), ports, metrics_port)


def _places(spec: ClusterSpec) -> tuple[BrokerEndpoint, ...]:
    return tuple(
        BrokerEndpoint(BrokerId(node.id), node.zone, *_address(node.address(Listener.GATEWAY)))
        for node in spec.brokers
    )


def _metrics(spec: ClusterSpec) -> tuple[tuple[int, str, int], ...]:
    return tuple((node.id, "127.0.0.1", node.ports[Listener.METRICS]) for node in spec.brokers)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def dedicated_homes(layout: Layout) -> list[Layout]:
    return [Layout(path) for path in sorted((layout.home / DEDICATED).glob("pkc-*"))]


async def stop_dedicated(layout: Layout) -> list[str]:
    """Stops dedicated clusters that outlived this home's control plane; returns node names. Data stays."""
    stopped = []
    for home in dedicated_homes(layout):
        for path in (home.home / GATEWAY_FILE, home.cluster(home.home.name) / GATEWAY_FILE):
            await stop_gateway(path)
        if load_fleet_document(home) is not None:
            nodes = [node for node in load_fleet(home).nodes if node.running()]
            await stop_nodes(nodes)
            stopped += [node.full_name for node in nodes]
    return stopped


async def _until_listed(provided: ProvidedCluster, expected: Collection[int]) -> None:
    """Returns when the cluster lists these brokers as serving."""
    deadline = time.monotonic() + START_SECONDS_MAX
    async with provided.client() as client:
        while True:
            listed = {b for b, one in (await brokers.describe(client)).brokers.items() if not one.fenced}
            missing = sorted(set(expected) - listed)
            if not missing:
                return
            if time.monotonic() > deadline:
                shown = ", ".join(f"broker {broker}" for broker in missing)
                reason = f"{provided.name} does not list it"
                raise BrokerNotStarted(brokers=shown, seconds=START_SECONDS_MAX, reason=reason)
            await asyncio.sleep(POLL_SECONDS)


class SupervisedCluster:
    """A cluster whose nodes are restarted when they die."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(supervisor.run(self._stop))

    async def release_supervision(self) -> None:
        self._stop.set()
        await self._task
        for one in self.supervisor.watched:
            await one.prober.close()


class LocalProvisioner:
    """Dedicated clusters as local processes. All its state is under its directory."""

    def __init__(
        self,
        layout: Layout,
        *,
        gateways: bool = True,
        brokers: int = DEDICATED_BROKERS,
        cell_brokers: int = 0,
    ) -> None:
        self._layout = layout
        self._cell_brokers = cell_brokers  # of the home's own clusters
        self._gateways = GatewaySupervisor() if gateways else None
        self._brokers = brokers
        self._supervised: dict[str, SupervisedCluster] = {}

    def _home(self, cluster: PhysicalCluster) -> Layout:
        return Layout(self._layout.home / DEDICATED / cluster.id)

    async def admit(self, adopted: str) -> None:
        raise ProvisionerMissing(
            reason=f"{adopted!r} is an adopted cluster, and it only starts local processes"
        )

    async def provision(self, cluster: PhysicalCluster, units: int) -> ProvidedCluster:
        del units  # local brokers are all of one size
        home = self._home(cluster)
        make_directory(home.home)
        if load_fleet_document(home) is None:
            shape: dict[str, Any] = {"name": cluster.id, "port": 0, "brokers": self._brokers}
            if self._brokers == 1:
                shape |= {"combined": True, "zones": ["a"]}
            save_fleet_document(home, {"clusters": [shape]})
        return await self._start(home, cluster)

    async def resume(self, cluster: PhysicalCluster) -> ProvidedCluster | None:
        home = self._home(cluster)
        if load_fleet_document(home) is None:
            return None
        return await self._start(home, cluster)

    async def release(self, cluster: PhysicalCluster) -> None:
        home = self._home(cluster)
        if self._gateways is not None:
            await self._gateways.stop(cluster.id, home.cluster(cluster.id) / GATEWAY_FILE)
        supervised = self._supervised.pop(cluster.id, None)
        if supervised is not None:
            await supervised.release_supervision()
            await supervised.supervisor.stop()
        elif load_fleet_document(home) is not None:
            await stop_nodes(load_fleet(home).nodes)
        if home.home.exists():
            shutil.rmtree(home.home)

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        if cluster.provider != LOCAL:
            return ""
        zones = ",".join(cluster.zones)
        return f"add {counted(brokers, 'broker')}, evenly over zones {zones}: `penstock cell add`"

    def fleet(self) -> tuple[ProvidedCluster, ...]:
        if load_fleet_document(self._layout) is None:
            return ()
        return fleet_clusters(self._layout, cell_brokers=self._cell_brokers)

    def check_growth(self, cluster: PhysicalCluster) -> None:
        check_growth(*self._place(cluster))

    async def grow(self, cluster: PhysicalCluster, brokers: Mapping[BrokerId, Zone]) -> ProvidedCluster:
        """The home's supervisor starts the brokers, and its gateways follow their file."""
        layout, name = self._place(cluster)
        add_brokers(layout, name, brokers)
        provided = self._described(layout, name, cluster)
        await _until_listed(provided, brokers.keys())
        return provided

    async def shrink(self, cluster: PhysicalCluster, brokers: Collection[int]) -> bool:
        layout, name = self._place(cluster)
        await stop_brokers(layout, name, brokers)
        return True

    async def forget(self, cluster: PhysicalCluster, brokers: Collection[int]) -> ProvidedCluster | None:
        layout, name = self._place(cluster)
        forget_brokers(layout, name, brokers)
        return self._described(layout, name, cluster)

    def _place(self, cluster: PhysicalCluster) -> tuple[Layout, str]:
        """The home of a cluster, and its name there."""
        if load_fleet_document(self._home(cluster)) is not None:
            return self._home(cluster), cluster.id
        for one in load_fleet(self._layout).clusters:
            if one.cluster.id == cluster.id:
                return self._layout, one.name
        raise ProvisionerMissing(reason=f"{cluster.id} is not a cluster of {self._layout.home}")

    def _described(self, layout: Layout, name: str, cluster: PhysicalCluster) -> ProvidedCluster:
        """The cluster as its fleet file declares it, with its gateways' file rewritten for its brokers."""
        fleet, local = load_fleet(layout), local_cluster(layout, name)
        spec = local.cluster.spec
        path = gateway_file(layout, spec)
        if path.exists():
            address = management_address(path)
            metrics_port = int(address.rpartition(":")[2]) if address else None
            write_gateway_file(layout, local, kept_ports(path, _places(spec)), fleet.access.ca, metrics_port)
        cells = self._cell_brokers if layout is self._layout else 0
        provided = provided_cluster(fleet, local, cell_brokers=cells)
        return replace(provided, id=PhysicalClusterId(cluster.id), name=cluster.name)

    async def close(self) -> None:
        """Gateways and brokers keep running, and a successor supervises them."""
        if self._gateways is not None:
            await self._gateways.close()
        for supervised in self._supervised.values():
            await supervised.release_supervision()
        self._supervised.clear()

    async def _start(self, home: Layout, cluster: PhysicalCluster) -> ProvidedCluster:
        document = load_fleet_document(home)
        spec = parse_fleet(document or {}, where=str(home.fleet_file))
        if cluster.id not in self._supervised:
            fleet = open_fleet(spec, home, await obtain_runtime())
            await use_versions(fleet)
            supervisor = Supervisor(fleet, runtime_of=runtime_of)
            await supervisor.start()
            self._supervised[cluster.id] = SupervisedCluster(supervisor)
        fleet = self._supervised[cluster.id].supervisor.fleet
        (local,) = fleet.clusters
        path = gateway_file(home, local.cluster.spec)
        if not path.exists():
            metrics_port, *ports = free_ports(1 + len(local.cluster.spec.brokers))
            write_gateway_file(home, local, ports, fleet.access.ca, metrics_port)
        provided = provided_cluster(fleet, local)
        if self._gateways is not None:
            self._gateways.supervise(cluster.id, path)
        # The registry chose its id before it was provisioned.
        return replace(provided, id=PhysicalClusterId(cluster.id), name=cluster.name)
