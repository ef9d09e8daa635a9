"""The state of the fleet, observed from outside: by its processes and by probing its nodes.

Two things cannot be observed and come from the supervisor's record: how often it restarted a node, and
whether a process that does not respond is still starting or has become unresponsive.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psutil

from penstock.fleet.generation import differences
from penstock.fleet.node_watch import START_SECONDS_MAX, NodeState
from penstock.fleet.readiness import Prober
from penstock.fleet.restarting import process_state
from penstock.fleet.spec import Listener
from penstock.fleet.supervisor import supervisor_of
from penstock.process_identity import read_record

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.node import Node
    from penstock.process_identity import Identity


class FleetState(StrEnum):
    READY = "ready"
    DEGRADED = "degraded"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    cluster: str
    node: str
    role: str
    zone: str
    state: NodeState
    address: str
    metrics: str
    pid: int | None
    uptime_seconds: float | None
    memory_mb: float | None
    restarts: int
    reason: str
    kafka: str = ""  # the version that it runs
    behind: tuple[str, ...] = ()  # what a restart would change: the fleet file has something else


@dataclass(frozen=True, slots=True)
class FleetStatus:
    home: str
    supervisor: int | None
    clusters: dict[str, dict[str, str]]
    nodes: tuple[NodeStatus, ...]

    @property
    def state(self) -> FleetState:
        states = {node.state for node in self.nodes}
        if states == {NodeState.READY}:
            return FleetState.READY
        return FleetState.STOPPED if states <= {NodeState.STOPPED} else FleetState.DEGRADED


async def fleet_status(fleet: LocalFleet) -> FleetStatus:
    supervisor = supervisor_of(fleet.layout)
    published = _published(fleet.layout, supervisor)
    nodes = await asyncio.gather(
        *(_node_status(node, published.get(node.full_name, {})) for node in fleet.nodes)
    )
    return FleetStatus(
        home=str(fleet.layout.home),
        supervisor=supervisor.pid if supervisor else None,
        clusters={
            c.name: {
                "id": c.cluster.id,
                "shape": c.cluster.spec.shape,
                "bootstrap": c.cluster.spec.bootstrap(),
                "gateway_bootstrap": c.cluster.spec.bootstrap(Listener.GATEWAY),
            }
            for c in fleet.clusters
        },
        nodes=tuple(nodes),
    )


async def _node_status(node: Node, published: dict[str, Any]) -> NodeStatus:
    identity = node.running()
    state, reason, uptime, memory = NodeState.STOPPED, "", None, None
    if identity is not None:
        prober = Prober(node)
        try:
            probe = await prober.probe()
        finally:
            await prober.close()
        reason = probe.reason
        uptime, memory = _measured(identity.pid)
        state = NodeState.READY if probe.ready else _state_of_unresponsive(published, uptime or 0.0)
        if not identity.is_alive():  # it ended while it was probed
            identity, uptime, memory = None, None, None
    if identity is None:
        waiting = published.get("state") not in (None, NodeState.STOPPING, NodeState.HELD)
        state = NodeState.RESTARTING if waiting else NodeState.STOPPED
        reason = _why_restarting(published) if waiting else ""
        if published.get("state") == NodeState.HELD:
            state, reason = NodeState.HELD, "an order holds it stopped"
    running = process_state(node).generation if identity is not None else None
    return NodeStatus(
        cluster=node.cluster.spec.name,
        node=node.name,
        role=str(node.spec.role),
        zone=str(node.spec.zone),
        state=state,
        address=node.spec.address(node.spec.probe_listener),
        metrics=f"127.0.0.1:{node.spec.ports[Listener.METRICS]}",
        pid=identity.pid if identity else None,
        uptime_seconds=uptime,
        memory_mb=memory,
        restarts=int(published.get("restarts", 0)),
        reason=reason,
        kafka="" if running is None else running.kafka,
        behind=() if running is None else tuple(map(str, differences(running, node.generation()))),
    )


def _why_restarting(published: dict[str, Any]) -> str:
    error = published.get("last_error")
    return "it exited; the supervisor restarts it" + (f"; its last error: {error}" if error else "")


def _measured(pid: int) -> tuple[float | None, float | None]:
    """Its uptime in seconds and its resident memory in MB."""
    try:
        process = psutil.Process(pid)
        return max(0.0, time.time() - process.create_time()), process.memory_info().rss / 1e6
    except psutil.Error:  # it ended, or the system does not report it
        return None, None


def _state_of_unresponsive(published: dict[str, Any], age: float) -> NodeState:
    if published.get("state") == NodeState.STOPPING:
        return NodeState.STOPPING
    if published.get("state") in (NodeState.READY, NodeState.UNRESPONSIVE):
        return NodeState.UNRESPONSIVE
    return NodeState.STARTING if age < START_SECONDS_MAX else NodeState.UNRESPONSIVE


def _published(layout: Layout, supervisor: Identity | None) -> dict[str, dict[str, Any]]:
    """The supervisor's record of its nodes; empty if no supervisor is running."""
    record = read_record(layout.supervisor_record)
    if supervisor is None or record is None or record[0] != supervisor:
        return {}
    nodes: dict[str, dict[str, Any]] = record[1].get("nodes", {})
    return nodes
