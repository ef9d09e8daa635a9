"""The steps that change the controllers of a local cluster. Each is idempotent, also across control planes.

A voter is a node id with the id of its disk (KIP-853). Voters change one at a time. A controller that joins
has copied the metadata log before it becomes a voter; one that leaves is no voter any more before it stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.control.operations import Step
from penstock.control.physical.local_controllers import CONTROLLER_LISTENER, local_controllers
from penstock.control.size.controllers import controllers_of, directories_of
from penstock.control.step_outcome import Outcome, Pending, no_changes
from penstock.fleet.rolls.quorum_changes import check_leaving, leaving_order
from penstock.kafka import quorum
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import ControllerNotJoined, ControllersElsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.physical.local_controllers import LocalController, LocalControllers
    from penstock.control.registry import Registry
    from penstock.fleet.layout import Layout
    from penstock.kafka.quorum import Quorum, Replica
    from penstock.model.entities import Operation

POLL_SECONDS: Final = 0.5

log = structlog.get_logger("penstock.control")


class ControllerSteps:
    """Performs the steps on the known clusters."""

    def __init__(self, clusters: Clusters, registry: Callable[[], Registry], layout: Layout | None) -> None:
        self._clusters, self._registry, self._layout = clusters, registry, layout

    async def perform(self, step: Step | None, operation: Operation) -> Outcome | Pending:
        physical = self._registry().need(PhysicalCluster, operation.subject)
        local = local_controllers(self._layout, physical)
        if local is None:
            raise ControllersElsewhere(cluster=physical.name)
        match step:
            case Step.LEAVE:
                await self._leave(operation)
            case Step.STOP:
                await self._require_left(operation)
                await local.stop(controllers_of(operation))
            case Step.FORGET:
                await self._require_left(operation)
                local.forget(controllers_of(operation))
                self._follow(operation, local)
            case Step.START:
                return await self._start(operation, local)
            case Step.JOIN:
                return await self._join(operation, local)
            case _:
                raise AssertionError(step)
        return no_changes

    # Leaving

    async def _leave(self, operation: Operation) -> None:
        described = await self._describe(operation)
        disks = directories_of(operation)
        for node in leaving_order(controllers_of(operation), described.caught_up, described.leader_id):
            described = await self._describe(operation)
            voter = described.voter(node)
            if voter is None or str(voter.directory_id) != disks.get(node):
                continue
            voters = [each.id for each in described.voters]
            check_leaving(voters, described.caught_up, described.leader_id, [node])
            await quorum.remove_voter(
                self._clusters.client(operation.subject),
                node,
                voter.directory_id,
                cluster_id=self._clusters.get(operation.subject).kafka_id,
            )
            log.info("voter removed", cluster=operation.subject, node=node)

    async def _require_left(self, operation: Operation) -> None:
        """The process and the disk of a voter are never touched."""
        described = await self._describe(operation)
        for node in controllers_of(operation):
            if described.voter(node) is not None:
                raise ControllerNotJoined(controller=node)

    # Joining

    async def _start(self, operation: Operation, local: LocalControllers) -> Outcome | Pending:
        controllers = controllers_of(operation)
        local.add(controllers)
        self._follow(operation, local)
        described, declared = await self._describe(operation), local.declared()
        absent = [node for node in controllers if _replica(described, declared[node]) is None]
        if absent:
            return Pending(POLL_SECONDS, f"controller {', '.join(map(str, absent))} starts")
        return no_changes

    async def _join(self, operation: Operation, local: LocalControllers) -> Outcome | Pending:
        declared = local.declared()
        for node in controllers_of(operation):
            described = await self._describe(operation)
            one = declared[node]
            voter, observer = described.voter(node), _replica(described, one)
            if voter is not None and voter.directory_id == one.directory_id:
                continue
            if voter is not None:
                raise ControllerNotJoined(controller=node)
            if observer is None or not _has_caught_up(described, observer):
                return Pending(POLL_SECONDS, f"controller {node} copies the metadata log")
            await quorum.add_voter(
                self._clusters.client(operation.subject),
                node,
                observer.directory_id,
                CONTROLLER_LISTENER,
                one.address,
                cluster_id=self._clusters.get(operation.subject).kafka_id,
            )
            log.info("voter added", cluster=operation.subject, node=node)
        return no_changes

    def _follow(self, operation: Operation, local: LocalControllers) -> None:
        """Clients of the controllers find those of the fleet file."""
        provided = self._clusters.get(operation.subject)
        self._clusters.add(replace(provided, controllers=local.bootstrap()))

    async def _describe(self, operation: Operation) -> Quorum:
        return await quorum.describe(self._clusters.client(operation.subject))


def _replica(described: Quorum, controller: LocalController) -> Replica | None:
    """A controller in the quorum, with the disk that it has now."""
    for replica in (*described.voters, *described.observers):
        if (replica.id, replica.directory_id) == (controller.id, controller.directory_id):
            return replica
    return None


def _has_caught_up(described: Quorum, observer: Replica) -> bool:
    newest = max(voter.last_caught_up_ms for voter in described.voters)
    return newest - observer.last_caught_up_ms <= quorum.CAUGHT_UP_MS
