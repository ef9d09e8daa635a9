"""Where a new logical cluster lives: its physical cluster and its cell.

Two cells are drawn at random and the less loaded one is taken (Kora §5.4). Measured load counts, never
the sum of the quotas sold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.balance.cell_load import Load
from penstock.balance.cells import Cell, CellId, LoadedCell, TooLarge, place
from penstock.balance.cells import NoRoom as Full
from penstock.control.capacity_units import TABLES
from penstock.model.entities import ClusterState, PhysicalCluster, Tenancy, Zones
from penstock.model.errors.control import NoRoom, SizeTooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.control.registry import Registry
    from penstock.model.entities import BrokerEndpoint, LogicalCluster
    from penstock.model.ids import BrokerId, Choice


def physical_for(registry: Registry, zones: Zones) -> PhysicalCluster:
    """The first shared cluster, by id, that is ready and has enough zones."""
    for physical in registry.all(PhysicalCluster):
        usable = physical.tenancy is Tenancy.SHARED and physical.state is ClusterState.READY
        if usable and (zones is Zones.SINGLE or len(physical.zones) > 1 or len(physical.brokers) == 1):
            return physical
    raise NoRoom(units=1, reason=f"no shared physical cluster with {zones} zones is registered")


def load_key(physical: str, cell: str) -> str:
    return f"{physical}/{cell}"


def cell_for(physical: PhysicalCluster, units: int, loads: Mapping[str, float], choose: Choice) -> str:
    """`loads` by `load_key`; a cell without measurements counts as idle."""
    cells = [
        LoadedCell(
            Cell(CellId(cell.id), cell.brokers),
            Load(broker=loads.get(load_key(physical.id, cell.id), 0.0)),
            TABLES[physical.capacity].units_max,
        )
        for cell in physical.cells
    ]

    def draw(among: Sequence[LoadedCell], count: int) -> list[LoadedCell]:
        left = {each.cell.id: each for each in among}
        return [left.pop(CellId(choose(sorted(left)))) for _ in range(count)]

    result = place(units, cells, draw)
    if isinstance(result, TooLarge):
        raise SizeTooLarge(units=units, units_max=result.units_max)
    if isinstance(result, Full):
        raise NoRoom(units=units, reason=f"{physical.id}: {result.new_cell.reason}")
    return result.id


def brokers_of(cluster: LogicalCluster, physical: PhysicalCluster) -> tuple[BrokerId, ...]:
    """The brokers that may have a tenant's replicas: its cell's, and the old cell's while it moves."""
    cells = [cell for cell in physical.cells if cell.id in (cluster.cell, cluster.moving_from)]
    ids = {broker for cell in cells for broker in cell.brokers}
    brokers = [broker for broker in physical.brokers if broker.id in ids]
    if cluster.zones is Zones.SINGLE and brokers:
        zone = _zone_of(cluster, brokers)
        brokers = [broker for broker in brokers if broker.zone == zone]
    return tuple(sorted(broker.id for broker in brokers))


def _zone_of(cluster: LogicalCluster, brokers: list[BrokerEndpoint]) -> str:
    """The zone of a single-zone cluster: always the same one, spread over clusters."""
    zones = sorted({broker.zone for broker in brokers})
    return zones[sum(cluster.id.encode()) % len(zones)]
