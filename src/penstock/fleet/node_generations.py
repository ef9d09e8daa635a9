"""What the nodes of a local cluster run with, beside what the fleet file describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.cluster_record import load_cluster
from penstock.fleet.generation import differences, dynamic_changes
from penstock.fleet.local_fleet import load_fleet, load_fleet_document, save_fleet_document
from penstock.fleet.restarting import load_document, process_state, save_document
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.fleet import ClusterUnknown, NotRollable
from penstock.process_identity import read_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.fleet.generation import Generation, PartDifference
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.node import Node
    from penstock.fleet.restarting import ProcessState

SHAPE_COMMANDS: Final = "Add brokers with `penstock cell add`, controllers with `penstock fleet controllers`."


@dataclass(frozen=True, slots=True)
class NodeGeneration:
    """One node. `running` is None if it is down, or recorded nothing."""

    id: int
    name: str
    zone: str
    role: str
    running: Generation | None
    desired: Generation
    document: str  # that its process was started with

    @property
    def behind(self) -> tuple[PartDifference, ...]:
        """What a restart would change."""
        return () if self.running is None else differences(self.running, self.desired)


def generations(fleet: LocalFleet, cluster: str | None = None) -> tuple[NodeGeneration, ...]:
    """Of every node, or of one cluster's, against the fleet file as it is saved."""
    return tuple(
        _generation(node, process_state(node))
        for node in fleet.nodes
        if cluster in (None, node.cluster.spec.name)
    )


def _generation(node: Node, state: ProcessState) -> NodeGeneration:
    return NodeGeneration(
        node.spec.id,
        node.name,
        str(node.spec.zone),
        str(node.spec.role),
        state.generation,
        node.generation(),
        state.document,
    )


def dynamic_settings(layout: Layout, cluster: str, before: str, after: str) -> dict[str, str | None]:
    """Dynamic properties that another fleet document changes; both by digest."""
    old = _broker_properties(layout, cluster, before)
    return dynamic_changes(old, _broker_properties(layout, cluster, after))


def _broker_properties(layout: Layout, cluster: str, document: str) -> dict[str, str]:
    brokers = [node for node in _nodes_of(layout, cluster, document) if node.spec.is_broker]
    return brokers[0].properties() if brokers else {}


def _nodes_of(layout: Layout, name: str, document: str) -> list[Node]:
    spec = parse_fleet(load_document(layout, document), where=str(layout.documents))
    known = {node.spec.id: node for node in load_fleet(layout).nodes if node.cluster.spec.name == name}
    for cluster_spec in spec:
        if cluster_spec.name == name and (cluster := load_cluster(cluster_spec, layout)) is not None:
            return [
                replace(known[node.id], cluster=cluster, spec=node, document=document)
                for node in cluster.spec.nodes
                if node.id in known
            ]
    raise ClusterUnknown(cluster=name, known=", ".join(c.name for c in spec))


def current_document(layout: Layout) -> str:
    """The digest of the saved fleet file, which is kept under it."""
    return save_document(layout, load_fleet_document(layout) or {"clusters": [{}]})


def adopt_document(layout: Layout, document: Mapping[str, Any], *, where: str) -> str:
    """Saves another fleet file for a running fleet; raises if a restart could not bring it about."""
    before = parse_fleet(load_fleet_document(layout) or {}, where=str(layout.fleet_file))
    after = parse_fleet(document, where=where)
    old = {cluster.name: cluster for cluster in before}
    new = {cluster.name: cluster for cluster in after}
    if old.keys() != new.keys():
        missing = ", ".join(sorted(old.keys() ^ new.keys()))
        raise NotRollable(
            what=f"which clusters there are ({missing})", way_out="Use: penstock down, then up."
        )
    for name, cluster in new.items():
        before_nodes = {n.name: n for n in old[name].nodes}
        after_nodes = {n.name: n for n in cluster.nodes}
        if changed := sorted(before_nodes.keys() ^ after_nodes.keys()):
            raise NotRollable(what=f"which nodes {name} has ({', '.join(changed)})", way_out=SHAPE_COMMANDS)
        for node_name, node in after_nodes.items():
            was = before_nodes[node_name]
            for what in ("id", "role", "zone", "host", "ports"):
                if getattr(was, what) != getattr(node, what):
                    raise NotRollable(
                        what=f"the {what} of {name}/{node_name} ({getattr(was, what)})",
                        way_out=f"Replace the node: `penstock cell add`, then empty {node_name}.",
                    )
        if cluster.tls != old[name].tls:
            raise NotRollable(what=f"TLS of {name}", way_out="Use: penstock down, then up.")
    current_document(layout)  # so that a roll-back finds it
    digest = save_document(layout, document)
    save_fleet_document(layout, dict(document))
    return digest


def restore_document(layout: Layout, digest: str) -> None:
    """The fleet file is an earlier one again."""
    save_fleet_document(layout, load_document(layout, digest))


def last_error(layout: Layout, node: str) -> str:
    """Why a node ended, as its supervisor published it; by full name."""
    record = read_record(layout.supervisor_record)
    published = {} if record is None else record[1].get("nodes", {}).get(node, {})
    return str(published.get("last_error", ""))
