"""A local cluster's lasting facts: its ids and ports, fixed at the first start and kept.

The record is what makes a second `up` the same cluster: without it a changed fleet file could
format half of a cluster anew. It is written before anything is started.
"""

from __future__ import annotations

import base64
import errno
import json
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.fleet.layout import make_directory, write_atomically
from penstock.fleet.spec import ClusterSpec, Listener, NodeSpec
from penstock.model.errors.fleet import FleetChanged, PortTaken
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable
from penstock.model.ids import PhysicalClusterId, new_physical_cluster_id, physical_cluster_id

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random

    from penstock.fleet.layout import Layout

# Where automatic ports are taken from: below what systems lend to outgoing connections, so that no
# client sits on a node's port when the node comes back after a crash.
AUTOMATIC_PORTS = range(20000, 32768)
AUTOMATIC_PORT_TRIES_MAX = 200

_RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """A spec with every port settled, and the ids the cluster was born with."""

    spec: ClusterSpec
    id: PhysicalClusterId
    kafka_id: str  # the cluster.id inside Kafka
    directory_ids: Mapping[int, str]  # controllers' data directories, part of the first quorum


def recorded(spec: ClusterSpec, layout: Layout) -> Cluster | None:
    """The cluster as its record has it; None when it was never started. Writes nothing."""
    record = _read(layout, spec.name)
    if record is None:
        return None
    nodes = tuple(
        replace(node, ports={k: v or record["ports"][node.name][k] for k, v in node.ports.items()})
        for node in spec.nodes
        if node.name in record["ports"]
    )
    return _cluster(replace(spec, nodes=nodes), record)


def settle(
    spec: ClusterSpec, layout: Layout, random: Random, *, running: bool, avoid: Collection[int] = ()
) -> Cluster:
    """The cluster under this home, made if there is none; its automatic ports settled.

    While any of its nodes runs, ports stay as they are recorded; otherwise an automatic port that
    somebody took meanwhile is replaced. Ports to `avoid` are those of the fleet's other clusters.
    `random` must be a cryptographic one outside of tests.
    """
    before = _read(layout, spec.name)
    made = _formatted(before, layout, spec.name)
    # A start that failed before it formatted anything has made nothing that must be kept to.
    if before is None or (not made and _differs(spec, before, before["nodes"])):
        record = _new_record(spec, random)
    elif _differs(spec, before, made):
        asked = {node.name: _made(node) for node in spec.nodes}
        raise FleetChanged(cluster=spec.name, made=_described(before["nodes"]), asked=_described(asked))
    else:
        record = before
    ports = before["ports"] if before is not None else {}
    taken = {*avoid, *(port for node in spec.nodes for port in node.ports.values())}
    taken |= {port for recorded in ports.values() for port in recorded.values()}
    nodes = tuple(
        _settled(node, ports.get(node.name, {}), taken, random, running=running) for node in spec.nodes
    )
    record["nodes"] = {node.name: _made(node) for node in nodes}
    record["ports"] = {node.name: {str(k): v for k, v in node.ports.items()} for node in nodes}
    path = layout.cluster_record(spec.name)
    make_directory(path.parent)
    write_atomically(path, json.dumps(record, indent=1))
    return _cluster(replace(spec, nodes=nodes), record)


def _read(layout: Layout, name: str) -> dict[str, Any] | None:
    path = layout.cluster_record(name)
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if record["record"] != _RECORD_VERSION:
            raise SettingsUnreadable(path=path, reason=f"it is of version {record['record']!r}")
        _ = record["id"], record["kafka_id"], record["directories"], record["nodes"], record["ports"]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsUnreadable(path=path, reason=f"it is damaged: {error}") from error
    return record


def _formatted(record: Mapping[str, Any] | None, layout: Layout, name: str) -> dict[str, Any]:
    """The recorded nodes that have storage."""
    nodes: Mapping[str, Any] = record["nodes"] if record is not None else {}
    return {node: made for node, made in nodes.items() if layout.node(name, node).meta.exists()}


def _cluster(spec: ClusterSpec, record: Mapping[str, Any]) -> Cluster:
    directories = {int(key): value for key, value in record["directories"].items()}
    return Cluster(spec, physical_cluster_id(record["id"]), record["kafka_id"], directories)


def check_ports_free(cluster: ClusterSpec, node: NodeSpec) -> None:
    """Say which port is taken, and by whom, before a JVM finds out the slow way."""
    for listener, port in node.ports.items():
        where, host = f"{cluster.name}/{node.name}", _bind_host(node, listener)
        trouble = _trouble(host, port)
        if trouble is None:
            continue
        if trouble.errno == errno.EADDRINUSE:
            raise PortTaken(port=port, listener=listener, node=where, owner=_owner(port))
        if trouble.errno == errno.EACCES:
            raise SettingInvalid(
                where=where, key=listener, value=port, expected="expected a port that this user may open"
            )
        reason = trouble.strerror or str(trouble)
        raise SettingInvalid(
            where=where, key="host", value=host, expected=f"expected an address of this machine ({reason})"
        )


def new_kafka_uuid(random: Random) -> str:
    """Kafka's form of a UUID: 22 characters, never beginning with a dash (tools take that for a flag)."""
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
        "nodes": {node.name: _made(node) for node in spec.nodes},
        "ports": {},
    }


def _made(node: NodeSpec) -> dict[str, object]:
    return {"id": node.id, "role": str(node.role), "zone": str(node.zone)}


def _differs(spec: ClusterSpec, record: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    """Brokers may be added; the quorum, and whatever was made, must still be there as it was."""
    asked = {node.name: _made(node) for node in spec.nodes}
    kept = {name: asked.get(name) for name in made}
    return kept != made or {str(node.id) for node in spec.controllers} != record["directories"].keys()


def _described(nodes: Mapping[str, Mapping[str, object]]) -> str:
    return ", ".join(f"{name} ({node['role']} in {node['zone']})" for name, node in sorted(nodes.items()))


def _settled(
    node: NodeSpec, recorded: Mapping[str, int], taken: set[int], random: Random, *, running: bool
) -> NodeSpec:
    ports: dict[Listener, int] = {}
    for listener, asked in node.ports.items():
        port = asked or recorded.get(listener, 0)
        host = _bind_host(node, listener)
        if asked == 0 and (port == 0 or (not running and _trouble(host, port) is not None)):
            port = _free_port(host, taken, random)
            taken.add(port)
        ports[listener] = port
    return replace(node, ports=ports)


def _bind_host(node: NodeSpec, listener: Listener) -> str:
    """The metrics agent speaks plain HTTP, so it stays on this machine whatever the node's host."""
    return "127.0.0.1" if listener is Listener.METRICS else node.host


def _trouble(host: str, port: int) -> OSError | None:
    """Why nothing can listen there; None when something can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        return None


def _free_port(host: str, taken: Collection[int], random: Random) -> int:
    for _ in range(AUTOMATIC_PORT_TRIES_MAX):
        port = random.choice(AUTOMATIC_PORTS)
        if port not in taken and _trouble(host, port) is None:
            return port
    raise SettingInvalid(
        where="automatic ports", key="host", value=host, expected="expected an address with free ports"
    )


def _owner(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
            if listens and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:  # other users' processes are not ours to see
        return ""
    return ""
