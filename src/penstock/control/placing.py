"""Where a new logical cluster lives: a physical cluster, and a cell of it.

Kora §5.4: two cells at random, and the less loaded of them. What counts is the load that was
measured, never the sum of the quotas that were sold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.balance.cells import Cell, CellId, LoadedCell, TooLarge, place
from penstock.balance.cells import NoRoom as Full
from penstock.balance.load import Load
from penstock.control.units import TABLES
from penstock.model.entities import ClusterState, PhysicalCluster, Tenancy, Zones
from penstock.model.errors.control import NoRoom, SizeTooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.control.registry import Registry
    from penstock.model.entities import BrokerPlace, CellPlace, LogicalCluster
    from penstock.model.ids import BrokerId, Choice


def physical_for(registry: Registry, zones: Zones) -> PhysicalCluster:
    """A shared cluster that is ready, and has the zones; the first by id."""
    for physical in registry.all(PhysicalCluster):
        usable = physical.tenancy is Tenancy.SHARED and physical.state is ClusterState.READY
        if usable and (zones is Zones.SINGLE or len(physical.zones) > 1 or len(physical.brokers) == 1):
            return physical
    raise NoRoom(units=1, reason=f"no shared physical cluster with {zones} zones is registered")


def load_key(physical: str, cell: str) -> str:
    return f"{physical}/{cell}"


def cell_for(physical: PhysicalCluster, units: int, loads: Mapping[str, float], choose: Choice) -> str:
    """`loads` by `load_key`; a cell of which nothing is known counts as idle."""
    cells = [
        LoadedCell(
            Cell(CellId(cell.id), cell.brokers),
            Load(broker=loads.get(load_key(physical.id, cell.id), 0.0)),
            TABLES[physical.capacity].units_max,
        )
        for cell in physical.cells
    ]

    def drawn(among: Sequence[LoadedCell], count: int) -> list[LoadedCell]:
        left = {each.cell.id: each for each in among}
        return [left.pop(CellId(choose(sorted(left)))) for _ in range(count)]

    found = place(units, cells, drawn)
    if isinstance(found, TooLarge):
        raise SizeTooLarge(units=units, units_max=found.fits)
    if isinstance(found, Full):
        raise NoRoom(units=units, reason=f"{physical.id}: {found.wanted.reason}")
    return found.id


def brokers_of(cluster: LogicalCluster, physical: PhysicalCluster) -> tuple[BrokerId, ...]:
    """Where a tenant's topics may lie now; while it moves, the old cell and the new."""
    ids = {broker for cell in _cells(cluster, physical) for broker in cell.brokers}
    brokers = [broker for broker in physical.brokers if broker.id in ids]
    if cluster.zones is Zones.SINGLE and brokers:
        zone = _own_zone(cluster, brokers)
        brokers = [broker for broker in brokers if broker.zone == zone]
    return tuple(sorted(broker.id for broker in brokers))


def _cells(cluster: LogicalCluster, physical: PhysicalCluster) -> list[CellPlace]:
    wanted = (cluster.cell, cluster.moving_from)
    return [cell for cell in physical.cells if cell.id in wanted]


def _own_zone(cluster: LogicalCluster, brokers: list[BrokerPlace]) -> str:
    """The same one always, and different ones for different clusters."""
    zones = sorted({broker.zone for broker in brokers})
    return zones[sum(cluster.id.encode()) % len(zones)]
