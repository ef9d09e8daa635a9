"""Add nodes to a local cluster while it runs, and take nodes away, by changing the home's fleet file.

Whatever supervises the home follows the file: it starts nodes that were added, and stops nodes that are not
declared any more. Other nodes, gateways and clients keep running. Every call can be repeated, also by another
process.

The cluster's record always changes before the file: a supervisor that starts in between finds a fleet that
it can run.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import time
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.cluster_record import (
    admit_controllers,
    check_ports_free,
    dismiss_controllers,
    drop_nodes,
    load_or_create_cluster,
)
from penstock.fleet.local_fleet import check_disk_space, load_fleet, load_fleet_document, save_fleet_document
from penstock.fleet.spec import (
    BROKER_ID_FIRST,
    CONTROLLER_ID_FIRST,
    LISTENERS_OF,
    ZONES_DEFAULT,
    Listener,
    Role,
    node_name,
)
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.balance import BrokerStillRunning, GrowthImpossible
from penstock.model.errors.fleet import ClusterUnknown, NotRunning
from penstock.process_identity import read_alive, read_record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalCluster
    from penstock.fleet.spec import ClusterSpec, FleetSpec
    from penstock.model.ids import BrokerId, Zone

_KEYS: Final = {
    Role.BROKER: ("brokers", BROKER_ID_FIRST),
    Role.CONTROLLER: ("controllers", CONTROLLER_ID_FIRST),
}
STOP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.1


def resized_document(
    document: Mapping[str, Any],
    cluster: str,
    *,
    add: Mapping[int, Zone] | Mapping[BrokerId, Zone],
    remove: Collection[int] = (),
    role: Role = Role.BROKER,
) -> dict[str, Any]:
    """The fleet document with these nodes added and removed; those that are there, or gone, stay so.

    `brokers: 3` stays a number while that describes them; else each node is listed, with its present ports.
    """
    after = deepcopy(dict(document))
    spec = parse_fleet(document)
    shape = next(shape for shape, one in zip(after["clusters"], spec, strict=True) if one.name == cluster)
    before = {node.id: node for node in cluster_spec(spec, cluster).nodes if node.role is role}
    zones: dict[int, Zone] = {int(node): zone for node, zone in add.items()}
    zones |= {number: node.zone for number, node in before.items() if number not in remove}
    names = shape.get("zones", ZONES_DEFAULT)
    key, first = _KEYS[role]
    counted = {first + number: names[number % len(names)] for number in range(len(zones))}
    listed = shape.get(key)
    if not isinstance(listed, list) and counted == zones:
        shape[key] = len(zones)
        return after
    entries = dict(zip(before, listed if isinstance(listed, list) else [{} for _ in before], strict=True))
    shape[key] = [
        _entry(entries.get(node, {}), node, zone, before[node].ports if node in before else None, role)
        for node, zone in sorted(zones.items())
    ]
    return after


def _entry(
    entry: Mapping[str, Any], node: int, zone: str, ports: Mapping[Listener, int] | None, role: Role
) -> dict[str, Any]:
    """The default ports of a node depend on its place in the list, so they are listed, too."""
    chosen = dict.fromkeys(LISTENERS_OF[role], 0) if ports is None else ports
    others = {key: value for key, value in entry.items() if key != "port"}
    return {**others, "id": node, "zone": str(zone), "ports": {str(k): port for k, port in chosen.items()}}


def cluster_spec(spec: FleetSpec, cluster: str) -> ClusterSpec:
    for one in spec:
        if one.name == cluster:
            return one
    raise ClusterUnknown(cluster=cluster, known=", ".join(one.name for one in spec))


def local_cluster(layout: Layout, cluster: str) -> LocalCluster:
    """The cluster of this name, as the fleet file declares it now."""
    fleet = load_fleet(layout)
    for one in fleet.clusters:
        if one.name == cluster:
            return one
    raise ClusterUnknown(cluster=cluster, known=", ".join(one.name for one in fleet.clusters))


def check_growth(layout: Layout, cluster: str) -> None:
    """Raises if brokers cannot be added to this cluster."""
    spec = cluster_spec(parse_fleet(_document(layout)), cluster)
    if any(node.role is Role.COMBINED for node in spec.nodes):
        raise GrowthImpossible(
            cluster=cluster,
            reason="its brokers are its controllers as well, so their number is fixed",
            way_out="Start a fleet with separate controllers, in another home: penstock up --home <new>",
        )
    check_disk_space(layout.home)


def add_brokers(layout: Layout, cluster: str, brokers: Mapping[BrokerId, Zone]) -> LocalCluster:
    """Declares brokers with these ids, and chooses their ports. The supervisor starts them."""
    check_growth(layout, cluster)
    return _add(layout, cluster, resized_document(_document(layout), cluster, add=brokers))


def add_controllers(layout: Layout, cluster: str, controllers: Mapping[int, Zone]) -> LocalCluster:
    """Declares controllers with these ids, and chooses their ports. They join the quorum as observers."""
    check_disk_space(layout.home)
    admit_controllers(layout, cluster, controllers.keys())
    document = _document(layout)
    return _add(layout, cluster, resized_document(document, cluster, add=controllers, role=Role.CONTROLLER))


def _add(layout: Layout, cluster: str, after: dict[str, Any]) -> LocalCluster:
    spec = cluster_spec(parse_fleet(after, where=str(layout.fleet_file)), cluster)
    fleet = load_fleet(layout)
    known = {node.name for node in local_cluster(layout, cluster).nodes}
    for node in spec.nodes:
        if node.name not in known:
            _discard(layout, cluster, node.name)
    others = [node for one in fleet.clusters if one.name != cluster for node in one.cluster.spec.nodes]
    avoid = [port for node in others for port in node.ports.values()]
    made = load_or_create_cluster(spec, layout, secrets.SystemRandom(), running=True, avoid=avoid)
    for node in made.spec.nodes:
        if node.name not in known:
            check_ports_free(spec, node)
    save_fleet_document(layout, after)
    return local_cluster(layout, cluster)


async def stop_brokers(
    layout: Layout, cluster: str, brokers: Collection[int], *, seconds: float = STOP_SECONDS_MAX
) -> None:
    """Takes brokers out of the fleet file, and returns when they have stopped. Their data stays for now."""
    await _stop(layout, cluster, brokers, Role.BROKER, seconds)


async def stop_controllers(
    layout: Layout, cluster: str, controllers: Collection[int], *, seconds: float = STOP_SECONDS_MAX
) -> None:
    """Takes controllers out of the fleet file, and returns when they have stopped."""
    admit_controllers(layout, cluster, controllers)
    await _stop(layout, cluster, controllers, Role.CONTROLLER, seconds)


async def _stop(layout: Layout, cluster: str, ids: Collection[int], role: Role, seconds: float) -> None:
    names = [node_name(role, number) for number in sorted(ids)]
    drop_nodes(layout, cluster, names)
    document = resized_document(_document(layout), cluster, add={}, remove=ids, role=role)
    save_fleet_document(layout, document)
    deadline = time.monotonic() + seconds
    terminated: set[tuple[str, int]] = set()
    while True:
        alive = {name: read_alive(layout.node(cluster, name).record) for name in names}
        left = {name: identity for name, identity in alive.items() if identity is not None}
        if not left and not _watched(layout, cluster, names):
            return
        for name, identity in left.items():
            if (name, identity.pid) not in terminated:  # a supervisor does the same; there may be none
                terminated.add((name, identity.pid))
                identity.signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            raise BrokerStillRunning(brokers=", ".join(left or names), seconds=seconds)
        await asyncio.sleep(POLL_SECONDS)


def _watched(layout: Layout, cluster: str, names: Collection[str]) -> bool:
    """Whether a supervisor has not followed the file yet. It would restart a node that is added again."""
    record = read_record(layout.supervisor_record)
    if record is None or not record[0].is_alive():
        return False
    watched = record[1].get("nodes", {})
    return any(f"{cluster}/{name}" in watched for name in names)


def forget_brokers(layout: Layout, cluster: str, brokers: Collection[int]) -> None:
    """Deletes the directories of brokers that have stopped and hold nothing."""
    for broker in sorted(brokers):
        _discard(layout, cluster, node_name(Role.BROKER, broker))


def forget_controllers(layout: Layout, cluster: str, controllers: Collection[int]) -> None:
    """Deletes the directories of controllers that have stopped and are voters no more."""
    for controller in sorted(controllers):
        _discard(layout, cluster, node_name(Role.CONTROLLER, controller))
    dismiss_controllers(layout, cluster, controllers)


def _discard(layout: Layout, cluster: str, name: str) -> None:
    """Deletes what a node has left that is not declared any more."""
    node = layout.node(cluster, name)
    if read_alive(node.record) is not None:
        raise BrokerStillRunning(brokers=name, seconds=0)
    if node.root.exists():
        shutil.rmtree(node.root)


def _document(layout: Layout) -> dict[str, Any]:
    document = load_fleet_document(layout)
    if document is None:
        raise NotRunning(home=layout.home)
    return document
