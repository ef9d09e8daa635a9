"""Checks a roll before it starts: which nodes, in which order, how long, and what is in the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.control.health.probe_tenants import lone_probe_topics
from penstock.control.physical.roll_nodes import LocalNodes, roll_nodes
from penstock.control.rolling.roll_service import make_watch, restart_seconds
from penstock.control.rolling.rolls import RollRequest, running_roll
from penstock.fleet.rolls.roll_batches import at_risk
from penstock.fleet.rolls.rolling import Bounds, Desired, planned_order
from penstock.fleet.versions import check_features, check_step, feature_raises
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import (
    NodeUnknown,
    NothingToRoll,
    RollInterrupts,
    RollRefused,
    RollRunning,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry
    from penstock.control.rolling.roll_observation import ClusterSeen, ClusterWatch
    from penstock.control.rolling.roll_service import RollSupport
    from penstock.fleet.node_generations import NodeGeneration
    from penstock.fleet.versions import FeatureRaise

SHOWN_MAX: Final = 5  # topics that an error names
DOWNTIME: Final = "Accept it with --allow-downtime, or add nodes first."


@dataclass(frozen=True, slots=True)
class RollSelection:
    """What an operator requests."""

    cluster: str
    nodes: tuple[int, ...] = ()  # none: those behind
    zones: tuple[str, ...] = ()
    allow_downtime: bool = False
    allow_unavailable: tuple[str, ...] = ()
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class RollPlan:
    request: RollRequest
    batches: tuple[tuple[int, ...], ...]
    generations: tuple[NodeGeneration, ...]
    at_risk: tuple[str, ...]  # partitions that will be unavailable while their broker restarts
    blockers: tuple[str, ...]


class RollPlanner:
    """Of one control plane."""

    def __init__(self, registry: Callable[[], Registry], clusters: Clusters, support: RollSupport) -> None:
        self._registry, self._clusters, self._support = registry, clusters, support

    def generations(self, cluster: str) -> tuple[NodeGeneration, ...]:
        """Of a local cluster's nodes; empty for one that runs elsewhere."""
        physical = self._registry().need(PhysicalCluster, cluster)
        nodes = roll_nodes(self._support.layout, physical)
        return nodes.generations() if isinstance(nodes, LocalNodes) else ()

    async def features(self, cluster: str) -> tuple[FeatureRaise, ...]:
        """What can be raised, by the nodes that are registered."""
        physical = self._registry().need(PhysicalCluster, cluster)
        watch = await make_watch(self._clusters, self._support.layout, physical)
        try:
            return feature_raises(await watch.image())
        finally:
            await watch.close()

    async def plan(self, selection: RollSelection) -> RollPlan:
        """Raises for a request that makes no sense; what is only in the way now is listed as a blocker."""
        physical = self._registry().need(PhysicalCluster, selection.cluster)
        watch = await make_watch(self._clusters, self._support.layout, physical)
        try:
            loads = self._support.loads(physical.id)
            seen = await watch.observe(self._registry(), physical.id, None, loads)
            return self._planned(selection, watch, seen, await watch.restoring())
        finally:
            await watch.close()

    def _planned(
        self, selection: RollSelection, watch: ClusterWatch, seen: ClusterSeen, restore: str
    ) -> RollPlan:
        local = watch.nodes if isinstance(watch.nodes, LocalNodes) else None
        generations = local.generations() if local is not None else ()
        _check_versions(generations, seen)
        scope = _scope(selection, seen, generations, local=local is not None)
        desired = Desired(seen.members, frozenset(scope), selection.allow_downtime)
        registry, cluster = self._registry(), selection.cluster
        seconds = restart_seconds(registry, cluster)
        deadline = selection.deadline_ms / 1000 if selection.deadline_ms else float("inf")
        bounds = Bounds(restart_seconds=seconds, deadline=deadline)
        batches, waits = planned_order(desired, seen.observation, bounds)
        document = local.current_document() if local is not None else ""
        before = _document_before(generations, document)
        request = RollRequest(
            cluster,
            scope,
            document,
            before,
            selection.allow_downtime,
            selection.allow_unavailable,
            selection.deadline_ms,
            seconds * len(batches),
        )
        probes = lone_probe_topics(registry, cluster)
        risked = [each for each in at_risk(seen.observation.partitions, scope) if each[0] not in probes]
        blockers = _blockers(selection, seen, scope) + ((waits,) if waits else ())
        blockers += (f"restore {restore} is running",) if restore else ()
        return RollPlan(request, batches, generations, tuple(f"{t}-{n}" for t, n in risked), blockers)

    async def checked(self, selection: RollSelection) -> RollPlan:
        """The plan of a roll that may start; raises otherwise."""
        if (other := running_roll(self._registry(), selection.cluster)) is not None:
            raise RollRunning(roll=other.id, cluster=selection.cluster, state=str(other.state))
        plan = await self.plan(selection)
        if plan.blockers:
            way_out = DOWNTIME if "only" in plan.blockers[0] else "Repair it first; see `penstock status`."
            raise RollRefused(cluster=selection.cluster, reason=plan.blockers[0], way_out=way_out)
        topics = sorted({name.rpartition("-")[0] for name in plan.at_risk})
        refused = [topic for topic in topics if topic not in selection.allow_unavailable]
        if refused and not selection.allow_downtime:
            more = f" and {len(refused) - SHOWN_MAX} more" if len(refused) > SHOWN_MAX else ""
            raise RollInterrupts(topics=", ".join(refused[:SHOWN_MAX]) + more)
        return plan


def _scope(
    selection: RollSelection, seen: ClusterSeen, generations: tuple[NodeGeneration, ...], *, local: bool
) -> tuple[int, ...]:
    members = {member.id: member for member in seen.members}
    for node in selection.nodes:
        if node not in members:
            raise NodeUnknown(node=str(node), known=", ".join(map(str, sorted(members))))
    zones = sorted({member.zone for member in members.values()})
    for zone in selection.zones:
        if zone not in zones:
            raise RollRefused(
                cluster=selection.cluster, reason=f"there is no zone {zone}", way_out=f"Zones: {zones}."
            )
    chosen = {
        node
        for node, member in members.items()
        if (not selection.nodes or node in selection.nodes)
        and (not selection.zones or (member.zone in selection.zones and member.broker))
    }
    if local and not selection.nodes and not selection.zones:
        chosen &= {each.id for each in generations if each.behind or each.running is None}
    if not chosen:
        raise NothingToRoll(cluster=selection.cluster)
    return tuple(sorted(chosen))


def _check_versions(generations: tuple[NodeGeneration, ...], seen: ClusterSeen) -> None:
    """Raises for a version that skips too far, or predates the features in force."""
    for each in generations:
        if each.running is not None and each.running.kafka != each.desired.kafka:
            check_step(each.running.kafka, each.desired.kafka)
            check_features(each.desired.kafka, seen.features)


def _document_before(generations: tuple[NodeGeneration, ...], document: str) -> str:
    """What most of the nodes run that do not run the new document; empty if all do."""
    others = [each.document for each in generations if each.document not in ("", document)]
    return max(set(others), key=others.count) if others else ""


def _blockers(selection: RollSelection, seen: ClusterSeen, scope: tuple[int, ...]) -> tuple[str, ...]:
    observed, blockers = seen.observation, []
    brokers = [m.id for m in seen.members if m.broker]
    quorum = observed.quorum
    sole = quorum is not None and len(quorum.voters) == 1 and bool(quorum.voters & {*scope})
    if not selection.allow_downtime:
        if len(brokers) == 1 and brokers[0] in scope:
            blockers.append(f"broker {brokers[0]} is the only one")
        if sole and quorum is not None:
            blockers.append(f"controller {min(quorum.voters)} is the only one")
    down = [b for b in brokers if not observed.nodes[b].ready and b not in scope]
    blockers += [f"broker {broker} is down" for broker in down]
    under = sorted(
        key for key, p in observed.partitions.items() if not p.is_at_risk and len(p.isr) < p.min_isr
    )
    if under:
        blockers.append(f"{under[0][0]}-{under[0][1]} is below its minimum of in-sync replicas")
    return tuple(blockers)
