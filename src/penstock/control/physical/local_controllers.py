"""The controllers of a local cluster: which there are, with which disks, and how they come and go."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.control.physical.roll_nodes import local_place
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.node_generations import generations
from penstock.fleet.resize import add_controllers, forget_controllers, local_cluster, stop_controllers
from penstock.fleet.spec import Listener, Role
from penstock.kafka.routing import Address
from penstock.model.errors.fleet import ControllersCombined

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.model.entities import PhysicalCluster
    from penstock.model.ids import Zone

CONTROLLER_LISTENER: Final = Listener.CONTROLLER.upper()
BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"


@dataclass(frozen=True, slots=True)
class LocalController:
    id: int
    zone: Zone
    address: Address
    directory_id: UUID | None  # of its disk; None if that is not formatted
    alive: bool


class LocalControllers:
    def __init__(self, layout: Layout, name: str) -> None:
        self._layout, self._name = layout, name

    def declared(self) -> dict[int, LocalController]:
        """Those of the fleet file."""
        nodes = [node for node in local_cluster(self._layout, self._name).nodes if node.spec.is_controller]
        return {
            node.spec.id: LocalController(
                node.spec.id,
                node.spec.zone,
                Address.parse(node.spec.address(Listener.CONTROLLER)),
                directory_id_of(node.layout.meta),
                node.running() is not None,
            )
            for node in nodes
        }

    def require_separate(self) -> None:
        """Raises if brokers are the controllers as well."""
        nodes = local_cluster(self._layout, self._name).nodes
        if any(node.spec.role is Role.COMBINED for node in nodes):
            raise ControllersCombined(cluster=self._name)

    def zones(self) -> tuple[Zone, ...]:
        return local_cluster(self._layout, self._name).cluster.spec.zones

    def bootstrap(self) -> str:
        return local_cluster(self._layout, self._name).cluster.spec.bootstrap(Listener.CONTROLLER)

    def known_addresses(self, leaving: Collection[int]) -> dict[str, frozenset[str]]:
        """The controllers' addresses that each running node was started with, but for those that leave."""
        fleet = load_fleet(self._layout)
        return {
            each.name: frozenset(each.running.parts.get(BOOTSTRAP, "").split(","))
            for each in generations(fleet, self._name)
            if each.running is not None and each.id not in leaving
        }

    def add(self, controllers: Mapping[int, Zone]) -> None:
        """The supervisor formats and starts them. Repeating it changes nothing."""
        add_controllers(self._layout, self._name, controllers)

    async def stop(self, controllers: Collection[int]) -> None:
        await stop_controllers(self._layout, self._name, controllers)

    def forget(self, controllers: Collection[int]) -> None:
        forget_controllers(self._layout, self._name, controllers)


def local_controllers(layout: Layout | None, physical: PhysicalCluster) -> LocalControllers | None:
    """None for a cluster that runs elsewhere."""
    place = local_place(layout, physical)
    return None if place is None else LocalControllers(*place)


def directory_id_of(meta: Path) -> UUID | None:
    """From `meta.properties`, which Kafka writes last when it formats a disk."""
    try:
        lines = meta.read_text().splitlines()
    except OSError:
        return None
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    text = facts.get("directory.id", "")
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        return None
