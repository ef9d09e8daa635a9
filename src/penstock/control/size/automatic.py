"""What automatic sizing does with advice. Pure.

It asks for what an operator would ask for with `penstock fleet grow` and `shrink`, so every check of these
applies too. It waits while anything else intervenes in the cluster, while a broker is in a state other than
normal, and until the load of the present size is known: advice on a size that has just changed would rest on
the load of the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.balance.advice import DAY_HOURS, HISTORY_HOURS, Advice, Verdict
from penstock.balance.load_hours import HOUR_MS
from penstock.control.health.interventions import open_interventions
from penstock.control.size.resizing import GROW, SHRINK, GrowRequest, under_way
from penstock.model.entities import ClusterState, LogicalCluster, Operation, OperationState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.control.registry import Registry
    from penstock.model.entities import CellMembers, PhysicalCluster
    from penstock.model.events import LoadHour
    from penstock.model.ids import BrokerId

ACTOR: Final = "sizing"
AUTO: Final = "auto"
GROWTH_BOUNDS: Final = frozenset(("brokers_max", "budget_month"))
SHRINK_HISTORY_HOURS_MIN: Final = HISTORY_HOURS - DAY_HOURS
FAILURE_REST_HOURS: Final = DAY_HOURS  # after an automatic change that failed; an operator may act at once


@dataclass(frozen=True, slots=True)
class History:
    """What the observed hours of load cover."""

    brokers: int  # in the present hour or the one before; 0: neither was observed
    hours: int  # since the first one


def history_of(hours: Mapping[int, LoadHour], now_hour: int) -> History:
    newest = max(hours, default=now_hour)
    brokers = hours[newest].brokers if hours and newest >= now_hour - 1 else 0
    return History(brokers, now_hour - min(hours, default=now_hour))


@dataclass(frozen=True, slots=True)
class Shrinking:
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is changed now."""

    reason: str


def automatic_change(
    registry: Registry,
    physical: PhysicalCluster,
    advice: Advice,
    *,
    history: History,
    brokers_max: int,
    now_ms: int,
) -> GrowRequest | Shrinking | Waiting | None:
    """The change that the advice leads to; None if the mode or the advice asks for none."""
    if physical.size_mode != AUTO or advice.verdict not in (Verdict.EXPAND, Verdict.SHRINK):
        return None
    count = abs(advice.target - advice.brokers)
    if not count:
        return None
    if (running := under_way(registry, physical.id)) is not None:
        return Waiting(f"{running.action} is under way ({running.id})")
    if reason := _obstacle(registry, physical, history, now_ms):
        return Waiting(reason)
    if advice.target > advice.brokers:
        if not physical.size_bounds.keys() & GROWTH_BOUNDS:
            return Waiting("nothing bounds its growth: set --brokers-max or --budget")
        return _growth(physical, count, brokers_max)
    if history.hours < SHRINK_HISTORY_HOURS_MIN:
        days = history.hours // DAY_HOURS
        return Waiting(f"{days} days of load are known, and it shrinks by the peak of four weeks")
    tenants = {one.cell for one in registry.all(LogicalCluster) if one.cluster == physical.id}
    leaving = leaving_brokers(physical, count, tenants)
    return Shrinking(leaving) if leaving else Waiting("no cell can do without a broker in every zone")


def _obstacle(registry: Registry, physical: PhysicalCluster, history: History, now_ms: int) -> str:
    if physical.adopted or physical.is_shareable:
        return "its brokers run elsewhere"
    if physical.state is not ClusterState.READY:
        return f"the cluster is {physical.state}"
    for other in open_interventions(registry, physical.id, now_ms):
        return f"{other.actor} is at work ({other.reason or other.key})"
    for broker, state in sorted(registry.broker_states(physical.id).items()):
        return f"broker {broker} is {', '.join(state.statuses)}"
    if history.brokers != len(physical.brokers):
        return "the load of its present size is not known yet"
    if (failed := _failed_lately(registry, physical.id, now_ms)) is not None:
        return f"its last change failed: {failed.error or failed.id}; change the size yourself, or wait a day"
    return ""


def _failed_lately(registry: Registry, physical: str, now_ms: int) -> Operation | None:
    own = [
        one
        for one in registry.all(Operation)
        if one.subject == physical and one.actor == ACTOR and one.action in (GROW, SHRINK)
    ]
    last = max(own, key=lambda one: one.created_ms, default=None)
    if last is None or last.state is not OperationState.FAILED:
        return None
    return last if now_ms - last.changed_ms < FAILURE_REST_HOURS * HOUR_MS else None


def _growth(physical: PhysicalCluster, count: int, brokers_max: int) -> GrowRequest | Waiting:
    """One cell grows; a cluster of several gets new ones."""
    if len(physical.cells) <= 1:
        return GrowRequest(count)
    size = max(len(cell.brokers) for cell in physical.cells)
    whole = -(-count // size) * size
    if len(physical.brokers) + whole > brokers_max:
        return Waiting(f"a new cell has {size} brokers, and at most {brokers_max} are allowed")
    return GrowRequest(whole, new_cell=True)


def leaving_brokers(physical: PhysicalCluster, count: int, tenants: set[str]) -> tuple[BrokerId, ...]:
    """The newest brokers of the largest cells, as many in every zone; empty if cells are too small.

    A cell with tenants keeps a broker in every zone."""
    zone_of = {broker.id: broker.zone for broker in physical.brokers}
    left = {cell.id: list(cell.brokers) for cell in physical.cells}
    leaving: list[BrokerId] = []
    while len(leaving) < count:
        options = [
            (cell.id, chosen)
            for cell in physical.cells
            if (chosen := _one_in_every_zone(left[cell.id], zone_of, keep=cell.id in tenants))
        ]
        if not options:
            return ()
        cell_id, chosen = max(options, key=lambda option: (len(left[option[0]]), option[0]))
        left[cell_id] = [broker for broker in left[cell_id] if broker not in chosen]
        leaving += chosen
    return tuple(sorted(leaving)) if _spread(physical.cells, left) else ()


def _one_in_every_zone(
    brokers: Iterable[BrokerId], zone_of: Mapping[BrokerId, str], *, keep: bool
) -> list[BrokerId]:
    zones: dict[str, list[BrokerId]] = {}
    for broker in brokers:
        zones.setdefault(zone_of[broker], []).append(broker)
    if set(zones) != set(zone_of.values()) or (keep and min(map(len, zones.values())) < 2):
        return []
    return [max(each) for each in zones.values()]


def _spread(cells: Iterable[CellMembers], left: dict[str, list[BrokerId]]) -> bool:
    """Whether a cell is left at all."""
    return any(left[cell.id] for cell in cells)
