"""Growing and shrinking a physical cluster: what each request changes in the registry. Pure.

Growth adds as many brokers in every zone: to one cell, or as new cells. A new broker is `joining` until it
carries its share. Shrinking marks brokers as `leaving` with the request itself, so that nothing is placed on
them from then on; they leave the registry once they are empty, stopped and unregistered. There is one growth
or shrinking per physical cluster at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.balance.cells import Cell, CellId, plan_cells
from penstock.control.decisions import Decision, new_operation
from penstock.control.health.broker_states import broker_of, state_of
from penstock.control.operations import STEPS, Step
from penstock.control.registry import Change, Drop, Put
from penstock.model.entities import (
    BrokerStatus,
    CellMembers,
    ClusterState,
    LogicalCluster,
    Operation,
    PhysicalCluster,
    Roll,
    StatusClaim,
)
from penstock.model.errors.balance import (
    CellUnknown,
    GrowthImpossible,
    GrowthUneven,
    ResizeUnderWay,
    ShrinkOfZone,
)
from penstock.model.errors.control import RequestInvalid, StateConflict
from penstock.model.errors.fleet import RollRunning
from penstock.model.ids import BrokerId, Zone

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry
    from penstock.model.entities import BrokerEndpoint, BrokerState

GROW, FILL, SHRINK, KEEP = "fleet.grow", "fleet.fill", "fleet.shrink", "fleet.keep"
ACTIONS: Final = frozenset((GROW, FILL, SHRINK, KEEP))
GROWTH, SHRINKING = "growth", "shrinking"  # the actors of claims and plans
BROKERS_MAX: Final = 1_000  # of one request


@dataclass(frozen=True, slots=True)
class GrowRequest:
    brokers: int = 0  # 0: as many as a cell has; on an adopted cluster, those that have joined it
    cell: str | None = None  # that grows; none: the only one, or new cells
    new_cell: bool = False


def under_way(registry: Registry, physical: str) -> Operation | None:
    """The growth or shrinking of a physical cluster that has not ended."""
    running = (one for one in registry.running() if one.action in ACTIONS and one.subject == physical)
    return next(running, None)


def brokers_of(operation: Operation) -> dict[BrokerId, Zone]:
    """The brokers that a growth adds, or that a shrinking takes away, with their zones."""
    zones = operation.arguments.get("zones")
    assert isinstance(zones, dict)
    return {BrokerId(int(broker)): Zone(str(zone)) for broker, zone in zones.items()}


def grow(registry: Registry, context: DecisionContext, physical_id: str, request: GrowRequest) -> Decision:
    """Adds brokers to a physical cluster that the platform provisions."""
    physical = _changeable(registry, physical_id)
    zones = physical.zones
    size = max((len(cell.brokers) for cell in physical.cells), default=len(physical.brokers))
    cell = _growing_cell(physical, request, size)
    count = request.brokers or (size if cell == "" else len(zones))
    if count % len(zones):
        fits = -(-count // len(zones)) * len(zones)
        raise GrowthUneven(brokers=count, zones=len(zones), fits=fits)
    if cell == "" and count % size:
        raise RequestInvalid(
            where="brokers", reason=f"a new cell has {size} brokers; name the cell that should grow instead"
        )
    first = max(broker.id for broker in physical.brokers) + 1
    new = {str(first + number): str(zones[number % len(zones)]) for number in range(count)}
    operation = new_operation(registry, context, GROW, physical.id, None)
    operation = replace(operation, arguments={"zones": new, "cell": cell})
    return Decision(operation, (Put(operation),), physical, physical)


def _growing_cell(physical: PhysicalCluster, request: GrowRequest, size: int) -> str:
    """The cell that gets the brokers; empty for new cells."""
    if request.cell is not None:
        if physical.cell(request.cell) is None:
            known = ", ".join(cell.id for cell in physical.cells) or "none"
            raise CellUnknown(cluster=physical.id, cell=request.cell, known=known)
        return request.cell
    if request.new_cell:
        return ""
    if len(physical.cells) == 1:
        return physical.cells[0].id
    if request.brokers % size:
        raise RequestInvalid(
            where="cell",
            reason=f"name the cell that grows, or add a multiple of {size} brokers for new cells",
        )
    return ""


def fill(registry: Registry, context: DecisionContext, physical_id: str) -> Decision:
    """Fills brokers that have joined a cluster by themselves, as on an adopted one."""
    physical = _changeable(registry, physical_id)
    states = registry.broker_states(physical.id)
    zones = {broker.id: broker.zone for broker in physical.brokers}
    joining = {
        str(broker): str(zones[broker])
        for broker, state in sorted(states.items())
        if BrokerStatus.JOINING in state.statuses and broker in zones
    }
    if not joining:
        raise GrowthImpossible(
            cluster=physical.name,
            reason="its brokers run elsewhere, and none has joined it",
            way_out="Start brokers there first; `penstock broker list` shows them as joining.",
        )
    operation = new_operation(registry, context, FILL, physical.id, None)
    operation = replace(operation, arguments={"zones": joining})
    return Decision(operation, (Put(operation),), physical, physical)


def shrink(
    registry: Registry, context: DecisionContext, physical_id: str, brokers: Collection[int]
) -> Decision:
    """Begins to take brokers away: nothing is placed on them any more."""
    physical = _changeable(registry, physical_id)
    leaving = {endpoint.id: endpoint for endpoint in (broker_of(physical, b) for b in sorted(set(brokers)))}
    if not leaving:
        raise RequestInvalid(where="brokers", reason="name at least one broker")
    check_zones(registry, physical, leaving)
    operation = new_operation(registry, context, SHRINK, physical.id, None)
    zones = {str(broker): str(endpoint.zone) for broker, endpoint in leaving.items()}
    operation = replace(operation, arguments={"zones": zones})
    claims = [
        Put(
            _claimed(
                registry, physical.id, broker, BrokerStatus.LEAVING, SHRINKING, operation.id, context.now_ms
            )
        )
        for broker in leaving
    ]
    return Decision(operation, (*claims, Put(operation)), physical, physical)


def check_zones(
    registry: Registry, physical: PhysicalCluster, leaving: Mapping[BrokerId, BrokerEndpoint]
) -> None:
    """Every zone of the cluster, and of every cell with tenants, keeps a broker."""
    shown = ", ".join(map(str, leaving))
    zone_of = {broker.id: broker.zone for broker in physical.brokers}
    tenants = {one.cell for one in registry.all(LogicalCluster) if one.cluster == physical.id}
    groups = [(physical.name, tuple(zone_of))]
    groups += [(cell.id, cell.brokers) for cell in physical.cells if cell.id in tenants]
    for where, members in groups:
        before = {zone_of[b] for b in members if b in zone_of}
        after = {zone_of[b] for b in members if b in zone_of and b not in leaving}
        if lost := sorted(before - after):
            raise ShrinkOfZone(brokers=shown, where=where, zone=lost[0])


def _changeable(registry: Registry, physical_id: str) -> PhysicalCluster:
    physical = registry.need(PhysicalCluster, physical_id)
    if physical.state is not ClusterState.READY:
        reason = "its brokers cannot be changed now"
        raise StateConflict(kind="physical cluster", id=physical.id, state=str(physical.state), reason=reason)
    require_idle(registry, physical)
    rolls = (roll for roll in registry.all(Roll) if roll.cluster == physical.id and not roll.state.ended)
    if (roll := next(rolls, None)) is not None:
        raise RollRunning(roll=roll.id, cluster=physical.name, state=str(roll.state))
    return physical


def require_idle(registry: Registry, physical: PhysicalCluster) -> None:
    """Raises while a growth or a shrinking of the cluster is under way."""
    if (running := under_way(registry, physical.id)) is not None:
        shown = ", ".join(map(str, brokers_of(running)))
        raise ResizeUnderWay(
            cluster=physical.name, action=running.action, brokers=shown, operation=running.id
        )


# What ends a step


def grown(
    registry: Registry, operation: Operation, endpoints: Sequence[BrokerEndpoint], bootstrap: str, now_ms: int
) -> tuple[Change, ...]:
    """The new brokers run: they are in the cluster and in their cell, and joining."""
    before = registry.need(PhysicalCluster, operation.subject)
    new = brokers_of(operation)
    known = {broker.id: broker for broker in before.brokers}
    known |= {broker.id: broker for broker in endpoints if broker.id in new}
    brokers = tuple(known[number] for number in sorted(known))
    cell = str(operation.arguments["cell"])
    after = before.changed(
        now_ms,
        brokers=brokers,
        cells=_cells_with(before.cells, cell, new, brokers),
        bootstrap=bootstrap or before.bootstrap,
    )
    claims = [
        Put(_claimed(registry, before.id, broker, BrokerStatus.JOINING, GROWTH, operation.id, now_ms))
        for broker in new
    ]
    return (Put(after), *claims)


def _cells_with(
    cells: Sequence[CellMembers], cell: str, new: Mapping[BrokerId, Zone], brokers: Sequence[BrokerEndpoint]
) -> tuple[CellMembers, ...]:
    if cell:
        return tuple(
            CellMembers(one.id, tuple(sorted({*one.brokers, *new}))) if one.id == cell else one
            for one in cells
        )
    placed = {broker for one in cells for broker in one.brokers} | new.keys()
    zones: dict[Zone, list[BrokerId]] = {}
    for broker in brokers:
        if broker.id in placed:
            zones.setdefault(broker.zone, []).append(broker.id)
    size = max(len(one.brokers) for one in cells)
    existing = [Cell(CellId(one.id), one.brokers) for one in cells]
    return tuple(CellMembers(one.id, one.brokers) for one in plan_cells(zones, size, existing))


def filled(registry: Registry, operation: Operation, now_ms: int) -> tuple[Change, ...]:
    """The new brokers carry their share."""
    return _unclaimed(registry, operation, BrokerStatus.JOINING, GROWTH, now_ms)


def kept(registry: Registry, operation: Operation, now_ms: int) -> tuple[Change, ...]:
    """Brokers that were to leave stay."""
    return _unclaimed(registry, operation, BrokerStatus.LEAVING, SHRINKING, now_ms)


def shrunk(registry: Registry, operation: Operation, bootstrap: str, now_ms: int) -> tuple[Change, ...]:
    """The brokers are gone: from the cluster, from their cells, and with all claims on them."""
    before = registry.need(PhysicalCluster, operation.subject)
    gone = brokers_of(operation)
    cells = (
        CellMembers(cell.id, tuple(broker for broker in cell.brokers if broker not in gone))
        for cell in before.cells
    )
    states = registry.broker_states(before.id)
    after = before.changed(
        now_ms,
        brokers=tuple(broker for broker in before.brokers if broker.id not in gone),
        cells=tuple(cell for cell in cells if cell.brokers),
        bootstrap=bootstrap or before.bootstrap,
    )
    return (Put(after), *(Drop(states[broker]) for broker in gone if broker in states))


def joined(
    registry: Registry, physical: PhysicalCluster, brokers: Collection[BrokerId], now_ms: int
) -> tuple[Change, ...]:
    """Brokers that an adopted cluster lists for the first time."""
    reason = "new in the cluster; `penstock fleet grow` fills it"
    return tuple(
        Put(_claimed(registry, physical.id, broker, BrokerStatus.JOINING, GROWTH, reason, now_ms))
        for broker in sorted(brokers)
    )


def after_failure(operation: Operation, now_ms: int) -> tuple[Change, ...]:
    """What follows an operation that has failed: brokers that a shrinking has not stopped yet stay."""
    stopping = STEPS[SHRINK].index(Step.STOP)
    if operation.action != SHRINK or not operation.ended or operation.steps_done >= stopping:
        return ()
    steps = STEPS[KEEP]
    follow_up = Operation(
        id=f"{operation.id}-keep",
        version=1,
        changed_ms=now_ms,
        action=KEEP,
        subject=operation.subject,
        actor=operation.actor,
        steps_total=len(steps),
        step=str(steps[0]),
        arguments=operation.arguments,
        created_ms=now_ms,
    )
    return (Put(follow_up),)


def _claimed(
    registry: Registry, physical: str, broker: int, status: BrokerStatus, owner: str, reason: str, now_ms: int
) -> BrokerState:
    before = state_of(registry, physical, broker)
    others = tuple(c for c in before.claims if (c.owner, c.status) != (owner, status))
    return before.changed(now_ms, claims=(*others, StatusClaim(status, owner, reason, now_ms)))


def _unclaimed(
    registry: Registry, operation: Operation, status: BrokerStatus, owner: str, now_ms: int
) -> tuple[Change, ...]:
    changes: list[Change] = []
    states = registry.broker_states(operation.subject)
    for broker in brokers_of(operation):
        state = states.get(broker)
        if state is None:
            continue
        left = tuple(c for c in state.claims if (c.owner, c.status) != (owner, status))
        if left != state.claims:
            changes.append(Put(state.changed(now_ms, claims=left)) if left else Drop(state))
    return tuple(changes)
