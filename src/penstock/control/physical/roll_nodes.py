"""The nodes of a physical cluster for a roll: which there are, and what restarts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.control.physical.local import DEDICATED, LOCAL
from penstock.fleet.adopted.adoption import load_target
from penstock.fleet.adopted.restart_commands import ByHand, CommandRestarter, RemoteNode, parse_command
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import load_fleet, load_fleet_document
from penstock.fleet.node_generations import (
    current_document,
    dynamic_settings,
    generations,
    last_error,
    restore_document,
)
from penstock.fleet.readiness import Prober
from penstock.fleet.restarting import LocalRestarter
from penstock.fleet.rolls.rolling import Member

if TYPE_CHECKING:
    from penstock.fleet.node import Node
    from penstock.fleet.node_generations import NodeGeneration
    from penstock.fleet.restarting import Restarter
    from penstock.kafka.metadata_image import MetadataImage
    from penstock.model.entities import PhysicalCluster


@dataclass
class LocalNodes:
    """Processes on this machine, whose supervisor follows orders."""

    layout: Layout
    name: str

    def __post_init__(self) -> None:
        self.restarter: Restarter = LocalRestarter(self.layout, self.name)
        self._probers: dict[int, Prober] = {}

    def members(self, image: MetadataImage) -> tuple[Member, ...]:
        del image
        return tuple(
            Member(n.spec.id, str(n.spec.zone), broker=n.spec.is_broker, controller=n.spec.is_controller)
            for n in self._nodes()
        )

    def generations(self) -> tuple[NodeGeneration, ...]:
        return generations(load_fleet(self.layout), self.name)

    def current_document(self) -> str:
        return current_document(self.layout)

    def dynamic_settings(self, before: str, after: str) -> dict[str, str | None]:
        return dynamic_settings(self.layout, self.name, before, after)

    def restore_document(self, document: str) -> None:
        restore_document(self.layout, document)

    async def responds(self, node: int) -> bool:
        if node not in self._probers:
            self._probers[node] = Prober(next(n for n in self._nodes() if n.spec.id == node))
        return (await self._probers[node].probe()).ready

    def last_error(self, node: int) -> str:
        names = {n.spec.id: n.full_name for n in self._nodes()}
        return last_error(self.layout, names[node])

    async def close(self) -> None:
        for prober in self._probers.values():
            await prober.close()
        self._probers.clear()

    def _nodes(self) -> list[Node]:
        return [n for n in load_fleet(self.layout).nodes if n.cluster.spec.name == self.name]


@dataclass
class RemoteNodes:
    """Nodes that run elsewhere. The controllers show when one has restarted."""

    physical: PhysicalCluster
    command: str = ""

    def __post_init__(self) -> None:
        hosts = {int(b.id): RemoteNode(int(b.id), b.host, str(b.zone)) for b in self.physical.brokers}
        self.restarter: Restarter = (
            CommandRestarter(parse_command(self.command), hosts) if self.command else ByHand()
        )

    def members(self, image: MetadataImage) -> tuple[Member, ...]:
        """Its brokers. Controllers of an adopted cluster are rolled by their operator."""
        zones = {int(b.id): str(b.zone) for b in self.physical.brokers}
        return tuple(
            Member(
                node, zones.get(node, image.brokers[node].rack or ""), controller=node in image.controllers
            )
            for node in sorted(image.brokers)
        )


def local_place(layout: Layout | None, physical: PhysicalCluster) -> tuple[Layout, str] | None:
    """The home of a local cluster, and its name there; None if it runs elsewhere."""
    if layout is None or physical.provider != LOCAL:
        return None
    home = Layout(layout.home / DEDICATED / physical.id)
    return (layout, physical.name) if load_fleet_document(home) is None else (home, physical.id)


def roll_nodes(layout: Layout | None, physical: PhysicalCluster) -> LocalNodes | RemoteNodes:
    if (place := local_place(layout, physical)) is not None:
        return LocalNodes(*place)
    command = ""
    if layout is not None and physical.adopted:
        command = load_target(layout, physical.adopted).restart or ""
    return RemoteNodes(physical, command)
