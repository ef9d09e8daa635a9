"""Where a new logical cluster lives: its physical cluster and its cell.

Two cells are drawn at random and the less loaded one is taken (Kora §5.4). Measured load counts, never
the sum of the quotas sold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.balance.cell_load import UNKNOWN, Load
from penstock.balance.cells import Cell, CellId, LoadedCell, TooLarge, place
from penstock.balance.cells import NoRoom as Full
from penstock.balance.replica_placement import REPLICAS_DEFAULT
from penstock.control.capacity_units import TABLES
from penstock.fleet.adopted.capabilities import Capability
from penstock.model.entities import (
    ClusterState,
    ConditionKind,
    LogicalCluster,
    PhysicalCluster,
    Tenancy,
    Zones,
)
from penstock.model.errors.control import AdoptedOccupied, AdoptedUnusable, NoRoom, SizeTooLarge
from penstock.model.errors.fleet import CapabilityMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.control.registry import Registry
    from penstock.model.entities import BrokerEndpoint, BrokerState, CellMembers
    from penstock.model.ids import BrokerId, Choice

TENANTS_SHOWN_MAX: Final = 3  # in an error


def physical_for(registry: Registry, zones: Zones, reaches: Callable[[str], bool]) -> PhysicalCluster:
    """The first shared cluster, by id, that is ready, has enough zones, and that the control plane reaches.

    The registry may still have clusters that are not in the settings any more.
    """
    for physical in registry.all(PhysicalCluster):
        if physical.tenancy is not Tenancy.SHARED or not _carries_tenants(physical):
            continue
        if not reaches(physical.id):
            continue
        if zones is Zones.SINGLE or len(physical.zones) > 1 or len(physical.brokers) == 1:
            return physical
    raise NoRoom(units=1, reason=f"no shared physical cluster with {zones} zones is registered")


def adopted_cluster(
    registry: Registry, name: str, tenancy: Tenancy, reaches: Callable[[str], bool]
) -> PhysicalCluster | None:
    """The registered adopted cluster of this name, if the tenant may use it; None if there is none."""
    named = [p for p in registry.all(PhysicalCluster) if p.name == name and p.is_shareable]
    known = [p for p in named if reaches(p.id) or p.condition(ConditionKind.UNUSABLE) is not None]
    if not known:
        return None
    physical = next((p for p in known if reaches(p.id)), known[0])
    if (unusable := physical.condition(ConditionKind.UNUSABLE)) is not None:
        raise AdoptedUnusable(name=name, reason=unusable.detail, remedy=unusable.remedy)
    require_capability(physical, Capability.USERS, "a logical cluster")
    tenants = [c.id for c in registry.all(LogicalCluster) if c.cluster == physical.id]
    if physical.tenancy is Tenancy.DEDICATED or (tenancy is Tenancy.DEDICATED and tenants):
        shown = ", ".join(sorted(tenants)[:TENANTS_SHOWN_MAX])
        more = f" and {len(tenants) - TENANTS_SHOWN_MAX} more" if len(tenants) > TENANTS_SHOWN_MAX else ""
        raise AdoptedOccupied(name=name, tenancy=physical.tenancy, tenants=shown + more)
    return physical


def require_capability(physical: PhysicalCluster, capability: Capability, feature: str) -> None:
    """Raises if the cluster was last probed to lack what a feature needs."""
    if (lacking := physical.lacks(capability)) is not None:
        raise CapabilityMissing(
            feature=feature,
            capability=capability,
            cluster=physical.name,
            reason=lacking.reason,
            way_out=lacking.remedy,
        )


def _carries_tenants(physical: PhysicalCluster) -> bool:
    usable = physical.state is ClusterState.READY and physical.condition(ConditionKind.UNUSABLE) is None
    return usable and physical.lacks(Capability.USERS) is None


def load_key(physical: str, cell: str) -> str:
    return f"{physical}/{cell}"


def cell_for(
    registry: Registry, physical: PhysicalCluster, units: int, loads: Mapping[str, float], choose: Choice
) -> str:
    """`loads` by `load_key`.

    A cell without measurements counts as full. If there is none with measurements, nothing can be compared
    and all are drawn from: tenants can also be created where brokers export no metrics.
    """
    measured = {cell.id: loads.get(load_key(physical.id, cell.id)) for cell in physical.cells}
    unmeasured = UNKNOWN if any(load is not None for load in measured.values()) else Load()
    states = registry.broker_states(physical.id)
    cells = [
        LoadedCell(
            Cell(CellId(cell.id), cell.brokers),
            unmeasured if (load := measured[cell.id]) is None else Load(broker=load),
            TABLES[physical.capacity].units_max,
            takes_tenants(cell, states),
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


def takes_tenants(cell: CellMembers, states: Mapping[BrokerId, BrokerState]) -> bool:
    """Whether enough of its brokers take new replicas for a topic with the usual replication factor."""
    able = [broker for broker in cell.brokers if broker not in states or states[broker].takes_replicas]
    return len(able) >= min(REPLICAS_DEFAULT, len(cell.brokers))


def brokers_of(cluster: LogicalCluster, physical: PhysicalCluster) -> tuple[BrokerId, ...]:
    """The brokers that may have a tenant's replicas: its cell's, and the old cell's while it moves.

    A dedicated tenant has every cell.
    """
    alone = cluster.tenancy is Tenancy.DEDICATED
    cells = [cell for cell in physical.cells if alone or cell.id in (cluster.cell, cluster.moving_from)]
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
