"""What the fleet is doing now, as seen from outside: processes looked at, nodes asked.

The supervisor's word is taken for what cannot be seen: how often it restarted a node, and whether
a silent process is one that is still starting or one that stopped answering.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psutil

from penstock.fleet.identity import read_identity
from penstock.fleet.readiness import Prober
from penstock.fleet.spec import Listener
from penstock.fleet.supervisor import supervisor_of
from penstock.fleet.watch import START_SECONDS_MAX, NodeState

if TYPE_CHECKING:
    from penstock.fleet.identity import Identity
    from penstock.fleet.layout import Layout
    from penstock.fleet.local import LocalFleet
    from penstock.fleet.node import Node


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
    said = _published(fleet.layout, supervisor)
    nodes = await asyncio.gather(*(_node_status(node, said.get(node.full_name, {})) for node in fleet.nodes))
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


async def _node_status(node: Node, said: dict[str, Any]) -> NodeStatus:
    identity = node.running()
    state, reason, uptime, memory = NodeState.STOPPED, "", None, None
    if identity is not None:
        prober = Prober(node)
        try:
            answer = await prober.ask()
        finally:
            await prober.close()
        reason = answer.reason
        uptime, memory = _measured(identity.pid)
        state = NodeState.READY if answer.ready else _silent(said, uptime or 0.0)
        if not identity.is_alive():  # it ended while it was asked
            identity, uptime, memory = None, None, None
    if identity is None:
        waiting = said.get("state") not in (None, NodeState.STOPPING)
        state = NodeState.RESTARTING if waiting else NodeState.STOPPED
        reason = _why_restarting(said) if waiting else ""
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
        restarts=int(said.get("restarts", 0)),
        reason=reason,
    )


def _why_restarting(said: dict[str, Any]) -> str:
    words = said.get("last_words")
    return "it ended; the supervisor starts it again" + (f"; its last words: {words}" if words else "")


def _measured(pid: int) -> tuple[float | None, float | None]:
    """For how long it runs, in seconds, and its resident memory, in MB."""
    try:
        process = psutil.Process(pid)
        return max(0.0, time.time() - process.create_time()), process.memory_info().rss / 1e6
    except psutil.Error:  # gone, or a system that does not tell
        return None, None


def _silent(said: dict[str, Any], age: float) -> NodeState:
    if said.get("state") == NodeState.STOPPING:
        return NodeState.STOPPING
    if said.get("state") in (NodeState.READY, NodeState.UNRESPONSIVE):
        return NodeState.UNRESPONSIVE
    return NodeState.STARTING if age < START_SECONDS_MAX else NodeState.UNRESPONSIVE


def _published(layout: Layout, supervisor: Identity | None) -> dict[str, dict[str, Any]]:
    """What the supervisor says of its nodes; nothing when none lives to say it."""
    if supervisor is None or read_identity(layout.supervisor_record) != supervisor:
        return {}
    try:
        nodes: dict[str, dict[str, Any]] = json.loads(layout.supervisor_record.read_text())["nodes"]
    except (FileNotFoundError, ValueError, KeyError):
        return {}
    return nodes
