"""The record of a local cluster: its ids and ports, fixed at the first start.

The record makes a second `up` start the same cluster. Without it, a changed fleet file could format part
of an existing cluster again. It is written before any node starts.
"""

from __future__ import annotations

import base64
import errno
import json
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically
from penstock.fleet.layout import make_directory
from penstock.fleet.spec import ClusterSpec, Listener, NodeSpec
from penstock.model.errors.fleet import FleetChanged, PortTaken
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable
from penstock.model.ids import PhysicalClusterId, new_physical_cluster_id, physical_cluster_id

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random

    from penstock.fleet.layout import Layout

# Automatic ports are below the range for outgoing connections, so that no client occupies a node's port
# when the node restarts after a crash.
AUTOMATIC_PORTS = range(20000, 32768)
AUTOMATIC_PORT_ATTEMPTS_MAX = 200

_RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """A spec with all ports chosen, and the ids from the cluster's first start."""

    spec: ClusterSpec
    id: PhysicalClusterId
    kafka_id: str  # the cluster.id inside Kafka
    # Of the initial controllers' data directories; empty for a controller that was added later.
    directory_ids: Mapping[int, str]


def load_cluster(spec: ClusterSpec, layout: Layout) -> Cluster | None:
    """The recorded cluster; None if it was never started. Writes nothing."""
    record = _read(layout, spec.name)
    if record is None:
        return None
    nodes = tuple(
        replace(node, ports={k: v or record["ports"][node.name][k] for k, v in node.ports.items()})
        for node in spec.nodes
        if node.name in record["ports"]
    )
    return _cluster(replace(spec, nodes=nodes), record)


def load_or_create_cluster(
    spec: ClusterSpec, layout: Layout, random: Random, *, running: bool, avoid: Collection[int] = ()
) -> Cluster:
    """Load the cluster's record, or create it, and choose its automatic ports.

    While any of its nodes runs, the recorded ports stay. Otherwise an automatic port that another
    process has taken is replaced. `avoid` lists the ports of the fleet's other clusters. Outside of
    tests `random` must be cryptographic."""
    before = _read(layout, spec.name)
    formatted = _formatted(before, layout, spec.name)
    # If nothing was formatted, the spec may still change freely.
    if before is None or (not formatted and _differs(spec, before, before["nodes"])):
        record = _new_record(spec, random)
    elif _differs(spec, before, formatted):
        created, declared = _described(before["nodes"]), _described(_declared(spec))
        raise FleetChanged(cluster=spec.name, created=created, declared=declared)
    else:
        record = before
    ports = before["ports"] if before is not None else {}
    taken = {*avoid, *(port for node in spec.nodes for port in node.ports.values())}
    taken |= {port for node_ports in ports.values() for port in node_ports.values()}
    nodes = tuple(
        _with_ports(node, ports.get(node.name, {}), taken, random, running=running) for node in spec.nodes
    )
    spec = replace(spec, nodes=nodes)
    record["nodes"] = _declared(spec)
    record["ports"] = {node.name: {str(k): v for k, v in node.ports.items()} for node in nodes}
    path = layout.cluster_record(spec.name)
    make_directory(path.parent)
    write_atomically(path, json.dumps(record, indent=1))
    return _cluster(spec, record)


def admit_controllers(layout: Layout, cluster: str, ids: Collection[int]) -> None:
    """Controllers that may be declared from now on, or not any more. They join the quorum that exists."""
    record = _need(layout, cluster)
    record["directories"] = record["directories"] | {str(number): "" for number in ids}
    write_atomically(layout.cluster_record(cluster), json.dumps(record, indent=1))


def dismiss_controllers(layout: Layout, cluster: str, ids: Collection[int]) -> None:
    """Controllers that are not declared any more, and whose disks are gone."""
    record = _need(layout, cluster)
    gone = {str(number) for number in ids}
    record["directories"] = {k: v for k, v in record["directories"].items() if k not in gone}
    write_atomically(layout.cluster_record(cluster), json.dumps(record, indent=1))


def drop_nodes(layout: Layout, cluster: str, names: Collection[str]) -> None:
    """Removes nodes that are not declared any more: what is left on their disks counts no longer."""
    record = _read(layout, cluster)
    if record is None:
        return
    for part in ("nodes", "ports"):
        record[part] = {name: facts for name, facts in record[part].items() if name not in names}
    write_atomically(layout.cluster_record(cluster), json.dumps(record, indent=1))


def _need(layout: Layout, cluster: str) -> dict[str, Any]:
    record = _read(layout, cluster)
    assert record is not None, f"{cluster} was never started"
    return record


def _read(layout: Layout, name: str) -> dict[str, Any] | None:
    path = layout.cluster_record(name)
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if record["record"] != _RECORD_VERSION:
            reason = f"its version is {record['record']!r}, not {_RECORD_VERSION}"
            raise SettingsUnreadable(path=path, reason=reason)
        _ = record["id"], record["kafka_id"], record["directories"], record["nodes"], record["ports"]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsUnreadable(path=path, reason=f"it is damaged: {error}") from error
    return record


def _formatted(record: Mapping[str, Any] | None, layout: Layout, name: str) -> dict[str, Any]:
    """The recorded nodes whose storage is formatted."""
    nodes: Mapping[str, Any] = record["nodes"] if record is not None else {}
    return {node: facts for node, facts in nodes.items() if layout.node(name, node).meta.exists()}


def _cluster(spec: ClusterSpec, record: Mapping[str, Any]) -> Cluster:
    directories = {int(key): value for key, value in record["directories"].items()}
    return Cluster(spec, physical_cluster_id(record["id"]), record["kafka_id"], directories)


def check_ports_free(cluster: ClusterSpec, node: NodeSpec) -> None:
    """Raise an error that names the taken port and its owner, before a JVM is started."""
    for listener, port in node.ports.items():
        where, host = f"{cluster.name}/{node.name}", _bind_host(node, listener)
        error = _bind_error(host, port)
        if error is None:
            continue
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(port=port, listener=listener, node=where, owner=_owner(port))
        if error.errno == errno.EACCES:
            expected = "expected a port that this user may open"
            raise SettingInvalid(where=where, key=listener, value=port, expected=expected)
        expected = f"expected an address of this machine ({error.strerror or error})"
        raise SettingInvalid(where=where, key="host", value=host, expected=expected)


def new_kafka_uuid(random: Random) -> str:
    """A UUID in Kafka's form: 22 characters, without a leading dash, which tools take for a flag."""
    while True:
        text = base64.urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _new_record(spec: ClusterSpec, random: Random) -> dict[str, Any]:
    return {
        "record": _RECORD_VERSION,
        "id": new_physical_cluster_id(random.choice),
        "kafka_id": new_kafka_uuid(random),
        "directories": {str(node.id): new_kafka_uuid(random) for node in spec.controllers},
        "nodes": _declared(spec),
        "ports": {},
    }


def _declared(spec: ClusterSpec) -> dict[str, dict[str, object]]:
    """What the record keeps of each node."""
    return {n.name: {"id": n.id, "role": str(n.role), "zone": str(n.zone)} for n in spec.nodes}


def _differs(spec: ClusterSpec, record: Mapping[str, Any], existing: Mapping[str, Any]) -> bool:
    """Brokers may be added, and admitted controllers; existing nodes must be declared as before."""
    declared = _declared(spec)
    same_nodes = {name: declared.get(name) for name in existing}
    admitted = record["directories"]
    initial = {number for number, directory in admitted.items() if directory}
    same_quorum = initial <= {str(node.id) for node in spec.controllers} <= admitted.keys()
    return same_nodes != existing or not same_quorum


def _described(nodes: Mapping[str, Mapping[str, object]]) -> str:
    return ", ".join(f"{name} ({node['role']} in {node['zone']})" for name, node in sorted(nodes.items()))


def _with_ports(
    node: NodeSpec, recorded_ports: Mapping[str, int], taken: set[int], random: Random, *, running: bool
) -> NodeSpec:
    ports: dict[Listener, int] = {}
    for listener, declared in node.ports.items():
        port = declared or recorded_ports.get(listener, 0)
        host = _bind_host(node, listener)
        if declared == 0 and (port == 0 or (not running and _bind_error(host, port) is not None)):
            port = free_port(host, taken, random)
            taken.add(port)
        ports[listener] = port
    return replace(node, ports=ports)


def _bind_host(node: NodeSpec, listener: Listener) -> str:
    """Metrics are served by plain HTTP, so always on loopback, whatever the node's host."""
    return "127.0.0.1" if listener is Listener.METRICS else node.host


def _bind_error(host: str, port: int) -> OSError | None:
    """The error of binding to this address; None if it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        return None


def free_port(host: str, taken: Collection[int], random: Random) -> int:
    """A port of the automatic range that nothing listens on now, and that is not taken."""
    for _ in range(AUTOMATIC_PORT_ATTEMPTS_MAX):
        port = random.choice(AUTOMATIC_PORTS)
        if port not in taken and _bind_error(host, port) is None:
            return port
    expected = "expected an address with free ports"
    raise SettingInvalid(where="automatic ports", key="host", value=host, expected=expected)


def _owner(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
            if listens and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:  # processes of other users are not visible
        return ""
    return ""
