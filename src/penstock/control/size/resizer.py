"""Grows and shrinks physical clusters on request: of an operator, or of whatever sizes clusters by itself.

Everything is checked before the request is committed, so that a refused one changes nothing. A committed one
is an operation: `resize_steps` performs it, in whichever control plane is active.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.control.cluster_placement import require_capability
from penstock.control.health.broker_states import broker_of
from penstock.control.size import resizing
from penstock.control.size.shrink_check import check_shrink
from penstock.fleet.adopted.capabilities import Capability
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.control import ProvisionerMissing, RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.load.planning import PlanMaker
    from penstock.control.physical.cluster_access import Provisioner
    from penstock.control.registry import Registry
    from penstock.control.size.resizing import GrowRequest
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
    @property
    def plan_maker(self) -> PlanMaker: ...


class Resizer:
    """`request` and `fingerprint` identify a request that may be sent twice."""

    def __init__(self, plane: Plane, provisioner: Provisioner | None) -> None:
        self._plane, self._provisioner = plane, provisioner

    async def grow(
        self, cluster: str, requested: GrowRequest, *, actor: str, request: str = "", fingerprint: str = ""
    ) -> Decision:
        """Adds brokers and fills them; on a cluster that runs elsewhere, fills those that have joined it."""
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        require_capability(physical, Capability.REASSIGNMENTS, "growth")
        if physical.is_shareable or physical.adopted:
            decision = partial(resizing.fill, physical_id=cluster)
        else:
            if self._provisioner is None:
                raise ProvisionerMissing(reason="it was started without a provisioner")
            self._provisioner.check_growth(physical)
            decision = partial(resizing.grow, physical_id=cluster, request=requested)
        return await self._plane.decide(
            decision, PhysicalCluster, actor=actor, request=request, fingerprint=fingerprint
        )

    async def shrink(
        self, cluster: str, brokers: Collection[int], *, actor: str, request: str = "", fingerprint: str = ""
    ) -> Decision:
        """Empties brokers, stops them, and removes them from Kafka, the fleet file and the registry."""
        registry = self._plane.registry
        if not request or registry.operation_of(request) is None:
            physical = registry.need(PhysicalCluster, cluster)
            require_capability(physical, Capability.REASSIGNMENTS, "shrinking")
            if not brokers:
                raise RequestInvalid(where="brokers", reason="name at least one broker")
            resizing.require_idle(registry, physical)
            leaving = {one.id: one for one in (broker_of(physical, broker) for broker in brokers)}
            resizing.check_zones(registry, physical, leaving)
            await check_shrink(self._plane.plan_maker, registry, cluster, brokers)
        decision = partial(resizing.shrink, physical_id=cluster, brokers=tuple(brokers))
        return await self._plane.decide(
            decision, PhysicalCluster, actor=actor, request=request, fingerprint=fingerprint
        )
