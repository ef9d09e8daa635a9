"""Lists and changes the controllers of physical clusters on request.

Everything is checked before the request is committed, so that a refused one changes nothing. A committed one
is an operation: `controller_steps` performs it, in whichever control plane is active.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.control.operations import CONTROLLERS_ADD, CONTROLLERS_REMOVE, CONTROLLERS_REPLACE
from penstock.control.physical.local_controllers import local_controllers
from penstock.control.size.controllers import change_controllers, require_unchanging
from penstock.fleet.rolls.quorum_changes import CONTROLLERS_MAX, check_known, check_leaving, new_controllers
from penstock.kafka import quorum
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.control import LimitReached
from penstock.model.errors.fleet import ControllersElsewhere, ControllerUnknown, QuorumStatic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.physical.local_controllers import LocalControllers
    from penstock.control.registry import Registry
    from penstock.fleet.layout import Layout
    from penstock.kafka.quorum import Quorum
    from penstock.model.entities import Entity


class Plane(Protocol):
    """What it needs of a control plane."""

    async def decide(
        self,
        decision: Callable[[Registry, DecisionContext], Decision],
        kind: type[Entity],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decision: ...
    @property
    def registry(self) -> Registry: ...


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """A controller as the quorum and its host show it."""

    id: int
    zone: str  # empty: it runs elsewhere
    role: str  # active, voter, observer, or absent
    caught_up: bool
    behind: int  # records of the metadata log that it lacks
    address: str
    directory_id: str


class ControllerChanges:
    """`request` and `fingerprint` identify a request that may be sent twice."""

    def __init__(self, plane: Plane, clusters: Clusters, layout: Layout | None) -> None:
        self._plane, self._clusters, self._layout = plane, clusters, layout

    async def rows(self, cluster: str) -> list[ControllerRow]:
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        local = local_controllers(self._layout, physical)
        described = await quorum.describe(self._clusters.client(cluster))
        brokers = {int(broker.id) for broker in physical.brokers}
        return controller_rows(described, brokers, local)

    async def add(
        self, cluster: str, count: int, *, actor: str, request: str = "", fingerprint: str = ""
    ) -> Decision:
        """Starts further controllers, and makes them voters one after the other."""
        zones: Mapping[int, str] = {}
        if not self._is_repeated(request):
            local, _ = await self._checked(cluster)
            existing = {node: str(one.zone) for node, one in local.declared().items()}
            if len(existing) + count > CONTROLLERS_MAX:
                raise LimitReached(
                    id=cluster, count=len(existing), count_max=CONTROLLERS_MAX, what="controllers"
                )
            zones = new_controllers(existing, count, local.zones())
        decision = partial(change_controllers, physical_id=cluster, action=CONTROLLERS_ADD, zones=zones)
        return await self._plane.decide(
            decision, PhysicalCluster, actor=actor, request=request, fingerprint=fingerprint
        )

    async def remove(
        self,
        cluster: str,
        controllers: Collection[int],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decision:
        """Takes voters away one after the other, then stops them and deletes their disks."""
        return await self._leave(cluster, controllers, CONTROLLERS_REMOVE, actor, request, fingerprint)

    async def replace(
        self, cluster: str, controller: int, *, actor: str, request: str = "", fingerprint: str = ""
    ) -> Decision:
        """Gives a controller an empty disk: it leaves the quorum, and joins it as a new voter."""
        return await self._leave(cluster, [controller], CONTROLLERS_REPLACE, actor, request, fingerprint)

    async def _leave(
        self,
        cluster: str,
        controllers: Collection[int],
        action: str,
        actor: str,
        request: str,
        fingerprint: str,
    ) -> Decision:
        zones: dict[int, str] = {}
        directories: dict[int, str] = {}
        if not self._is_repeated(request):
            local, described = await self._checked(cluster)
            declared = local.declared()
            for node in controllers:
                if node not in declared:
                    known = ", ".join(map(str, sorted(declared)))
                    raise ControllerUnknown(cluster=cluster, controller=node, known=known)
            voters = {voter.id: str(voter.directory_id) for voter in described.voters}
            check_leaving(voters, described.caught_up, described.leader_id, controllers)
            if action == CONTROLLERS_REMOVE:
                staying = {
                    str(o.address) for n, o in declared.items() if n in voters and n not in controllers
                }
                check_known(local.known_addresses(controllers), staying)
            zones = {node: str(declared[node].zone) for node in controllers}
            directories = {node: voters[node] for node in controllers if node in voters}
        decision = partial(
            change_controllers, physical_id=cluster, action=action, zones=zones, directories=directories
        )
        return await self._plane.decide(
            decision, PhysicalCluster, actor=actor, request=request, fingerprint=fingerprint
        )

    def _is_repeated(self, request: str) -> bool:
        return bool(request) and self._plane.registry.operation_of(request) is not None

    async def _checked(self, cluster: str) -> tuple[LocalControllers, Quorum]:
        """Raises unless the controllers are ours to change, and can be changed now."""
        registry = self._plane.registry
        physical = registry.need(PhysicalCluster, cluster)
        require_unchanging(registry, cluster)
        described = await quorum.describe(self._clusters.client(cluster))
        if not described.is_dynamic:
            raise QuorumStatic(cluster=physical.name)
        local = local_controllers(self._layout, physical)
        if local is None:
            raise ControllersElsewhere(cluster=physical.name)
        local.require_separate()
        return local, described


def controller_rows(
    described: Quorum, brokers: Collection[int], local: LocalControllers | None
) -> list[ControllerRow]:
    """Of voters, observers that are no brokers, and local controllers that the quorum does not show.

    Kafka lists observers for minutes after they have gone, so those of a local cluster must be declared."""
    declared = {} if local is None else local.declared()
    voters = {replica.id: replica for replica in described.voters}
    observers = {
        replica.id: replica
        for replica in described.observers
        if replica.id not in brokers and (local is None or replica.id in declared)
    }
    end = max((replica.end_offset for replica in described.voters), default=0)
    rows = []
    for node in sorted({*voters, *observers, *declared}):
        replica = voters.get(node) or observers.get(node)
        role = "absent" if replica is None else "voter" if node in voters else "observer"
        address = declared[node].address if node in declared else described.addresses.get(node)
        rows.append(
            ControllerRow(
                id=node,
                zone=str(declared[node].zone) if node in declared else "",
                role="active" if node == described.leader_id else role,
                caught_up=node in described.caught_up,
                behind=0 if replica is None else max(0, end - replica.end_offset),
                address="" if address is None else str(address),
                directory_id="" if replica is None else str(replica.directory_id),
            )
        )
    return rows
