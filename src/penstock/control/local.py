"""Physical clusters of local processes: how those of a home are reached, and new ones made.

The clusters of the home's own fleet are started by `penstock up`; a dedicated cluster gets a home of
its own below `dedicated/`, with its own platform key, and is kept up by the active control plane.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.balance.cells import plan_cells
from penstock.control.gateways import GATEWAY_FILE, Before, free_ports, offered_bootstrap
from penstock.control.keeping import GatewayKeeper, end_gateway
from penstock.control.reach import Reach
from penstock.fleet.layout import Layout, make_directory
from penstock.fleet.local import open_fleet, remember_spec, remembered_document, watched_fleet
from penstock.fleet.parse import parse_fleet
from penstock.fleet.render import handler_threads
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.security import load_platform_key
from penstock.fleet.spec import Listener
from penstock.fleet.supervisor import Supervisor, stop_nodes
from penstock.kafka.security import tls_trusting
from penstock.model.entities import BrokerPlace, CellPlace
from penstock.model.errors.control import ProvisionerMissing
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.fleet.local import LocalCluster, LocalFleet
    from penstock.fleet.spec import ClusterSpec
    from penstock.model.entities import PhysicalCluster

LOCAL: Final = "local"
DEDICATED: Final = "dedicated"  # the directory that homes of dedicated clusters lie in
DEDICATED_BROKERS: Final = 1


def fleet_reaches(layout: Layout, *, cell_brokers: int = 0) -> tuple[Reach, ...]:
    """The clusters of the fleet under this home, as it was last started."""
    fleet = watched_fleet(layout)
    return tuple(reach_of(fleet, cluster, cell_brokers=cell_brokers) for cluster in fleet.clusters)


def reach_of(fleet: LocalFleet, cluster: LocalCluster, *, cell_brokers: int = 0) -> Reach:
    spec = cluster.cluster.spec
    brokers = _places(spec)
    return Reach(
        id=cluster.cluster.id,
        name=spec.name,
        provider=LOCAL,
        bootstrap=spec.bootstrap(),
        key=load_platform_key(fleet.layout.secrets),
        brokers=brokers,
        cells=cells_of(brokers, cell_brokers),
        kafka_id=cluster.cluster.kafka_id,
        tls=tls_trusting(fleet.access.ca) if spec.tls else None,
        metrics=_metrics(spec),
        tenants_bootstrap=offered_bootstrap(gateway_file(fleet.layout, spec)),
    )


def cells_of(brokers: Sequence[BrokerPlace], size: int) -> tuple[CellPlace, ...]:
    """Cells of so many brokers, evenly over the zones; one cell of all of them if no size is given."""
    if size <= 0:
        return (CellPlace("cell-1", tuple(sorted(broker.id for broker in brokers))),)
    zones: dict[Zone, list[BrokerId]] = {}
    for broker in brokers:
        zones.setdefault(broker.zone, []).append(broker.id)
    return tuple(CellPlace(cell.id, cell.brokers) for cell in plan_cells(zones, size))


def gateway_file(layout: Layout, spec: ClusterSpec) -> Path:
    return layout.cluster(spec.name) / GATEWAY_FILE


def write_gateway_file(layout: Layout, cluster: LocalCluster, ports: Sequence[int], ca: Path) -> Path:
    """A gateway before every broker of a cluster, by port, that follows the cluster's state topic."""
    spec = cluster.cluster.spec
    before = Before(
        name=spec.name,
        cluster=cluster.cluster.id,
        brokers=_places(spec),
        platform_key=layout.secrets / "platform.key",
        ca=ca if spec.tls else None,
        metrics=_metrics(spec),
        handler_threads=handler_threads(spec),
    )
    return before.write(gateway_file(layout, spec), ports)


def _places(spec: ClusterSpec) -> tuple[BrokerPlace, ...]:
    return tuple(
        BrokerPlace(BrokerId(node.id), node.zone, *_address(node.address(Listener.GATEWAY)))
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
    """End what this home's control plane kept up, and no longer does; the names of the nodes. Data stays."""
    stopped = []
    for home in dedicated_homes(layout):
        for path in (home.home / GATEWAY_FILE, home.cluster(home.home.name) / GATEWAY_FILE):
            await end_gateway(path)
        if remembered_document(home) is not None:
            nodes = [node for node in watched_fleet(home).nodes if node.running()]
            await stop_nodes(nodes)
            stopped += [node.full_name for node in nodes]
    return stopped


class Kept:
    """A cluster whose nodes are watched, and started again when they die."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._stop = asyncio.Event()
        self._keeping = asyncio.create_task(supervisor.keep(self._stop))

    async def let_go(self) -> None:
        self._stop.set()
        await self._keeping
        for one in self.supervisor.watched:
            await one.prober.close()


class LocalProvisioner:
    """Dedicated clusters as local processes. Everything it knows stands under its directory."""

    def __init__(self, layout: Layout, *, gateways: bool = True, brokers: int = DEDICATED_BROKERS) -> None:
        self._layout = layout
        self._gateways = GatewayKeeper() if gateways else None
        self._brokers = brokers
        self._kept: dict[str, Kept] = {}

    def _home(self, cluster: PhysicalCluster) -> Layout:
        return Layout(self._layout.home / DEDICATED / cluster.id)

    async def admit(self, adopted: str) -> None:
        raise ProvisionerMissing(reason=f"{adopted!r} was adopted, and it makes local processes alone")

    async def provision(self, cluster: PhysicalCluster, units: int) -> Reach:
        del units  # a laptop's brokers are all of one size
        home = self._home(cluster)
        make_directory(home.home)
        if remembered_document(home) is None:
            shape: dict[str, Any] = {"name": cluster.id, "port": 0, "brokers": self._brokers}
            if self._brokers == 1:
                shape |= {"combined": True, "zones": ["a"]}
            remember_spec(home, {"clusters": [shape]})
        return await self._start(home, cluster)

    async def reach(self, cluster: PhysicalCluster) -> Reach | None:
        home = self._home(cluster)
        if remembered_document(home) is None:
            return None
        return await self._start(home, cluster)

    async def release(self, cluster: PhysicalCluster) -> None:
        home = self._home(cluster)
        if self._gateways is not None:
            await self._gateways.stop(cluster.id, home.cluster(cluster.id) / GATEWAY_FILE)
        kept = self._kept.pop(cluster.id, None)
        if kept is not None:
            await kept.let_go()
            await kept.supervisor.stop()
        elif remembered_document(home) is not None:
            await stop_nodes(watched_fleet(home).nodes)
        if home.home.exists():
            shutil.rmtree(home.home)

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        """Whoever runs `penstock up` supervises the home's brokers, so an operator has to ask it for more."""
        if cluster.provider != LOCAL:
            return ""
        zones = ",".join(cluster.zones)
        return f"{brokers} brokers more, evenly over zones {zones}: `penstock cell add`"

    async def close(self) -> None:
        """Gateways and brokers go on, and a successor keeps them up."""
        if self._gateways is not None:
            await self._gateways.close()
        for kept in self._kept.values():
            await kept.let_go()
        self._kept.clear()

    async def _start(self, home: Layout, cluster: PhysicalCluster) -> Reach:
        document = remembered_document(home)
        spec = parse_fleet(document or {}, where=str(home.fleet_file))
        if cluster.id not in self._kept:
            fleet = open_fleet(spec, home, await obtain_runtime())
            supervisor = Supervisor(fleet)
            await supervisor.start()
            self._kept[cluster.id] = Kept(supervisor)
        fleet = self._kept[cluster.id].supervisor.fleet
        (made,) = fleet.clusters
        path = gateway_file(home, made.cluster.spec)
        if not path.exists():
            write_gateway_file(home, made, free_ports(len(made.cluster.spec.brokers)), fleet.access.ca)
        reach = reach_of(fleet, made)
        if self._gateways is not None:
            self._gateways.keep(cluster.id, path)
        # The registry gave it its id before it was made.
        return replace(reach, id=PhysicalClusterId(cluster.id), name=cluster.name)
