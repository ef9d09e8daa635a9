"""Whether a physical cluster can do without some of its brokers: replication factor, disk, load.

The planner is asked to empty the brokers, on a model of the cluster as it is now. What it cannot place is the
reason for the refusal, with the number of brokers that would cover it.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.balance.actions import Purpose
from penstock.control.load.planning import PlanRequest
from penstock.control.size.resize_steps import holdings
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.balance import ShrinkBelowFactor, ShrinkOfDeadBroker, ShrinkWithoutRoom

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.balance.planner import Plan
    from penstock.control.load.planning import ModelledCluster, PlanMaker
    from penstock.control.registry import Registry

REASONS_MAX: Final = 3  # in an error


async def check_shrink(maker: PlanMaker, registry: Registry, cluster: str, brokers: Collection[int]) -> None:
    """Raises if the other brokers could not carry everything."""
    physical = registry.need(PhysicalCluster, cluster)
    request = PlanRequest(cluster, Purpose.EMPTY, leaving=frozenset(brokers))
    known = await maker.modelled(request)
    seen = known.reading.seen
    held = holdings(seen, brokers)
    for broker in sorted(set(brokers) - seen.alive):
        if broker in held:
            raise ShrinkOfDeadBroker(broker=broker, replicas=len(held[broker]))
    _check_factor(physical, known, brokers)
    plan, _ = await maker.plan(request, known, time.monotonic())
    reasons = [] if plan.partial else _left_over(known, plan, held)
    reasons += _lacking(known, plan)
    if reasons:
        shown = ", ".join(map(str, sorted(brokers)))
        raise ShrinkWithoutRoom(brokers=shown, reasons="; ".join(reasons[:REASONS_MAX]))


def _check_factor(physical: PhysicalCluster, known: ModelledCluster, brokers: Collection[int]) -> None:
    """No partition may have more replicas than brokers that are left for it."""
    cell_of = {int(broker): cell for cell in physical.cells for broker in cell.brokers}
    alive = known.reading.seen.alive
    for (topic, _), state in sorted(known.reading.seen.partitions.items()):
        if not set(state.replicas) & set(brokers):
            continue
        cells = {cell_of[broker].id: cell_of[broker] for broker in state.replicas if broker in cell_of}
        inside = known.named.cells and len(cells) == 1 and _of_cell(known, topic)
        members: Iterable[int] = (
            next(iter(cells.values())).brokers if inside else (b.id for b in physical.brokers)
        )
        left = {int(broker) for broker in members} - set(brokers)
        if len(state.replicas) > len(left & alive):
            where = next(iter(cells)) if inside else physical.name
            raise ShrinkBelowFactor(
                topic=topic, factor=len(state.replicas), where=where, left=len(left & alive)
            )


def _of_cell(known: ModelledCluster, topic: str) -> bool:
    """Whether the topic's partitions stay in a cell, as a tenant's do."""
    named = known.named
    if topic not in named.topics:
        return False
    rows = named.model.cells[named.model.topics == named.topics.index(topic)]
    return bool(len(rows)) and int(rows[0]) >= 0


def _left_over(known: ModelledCluster, plan: Plan, held: dict[int, list[tuple[str, int]]]) -> list[str]:
    """Replicas that no action moves, by reason."""
    moved = {known.named.partition(action) for action in plan.actions}
    staying = {key for keys in held.values() for key in keys} - moved
    if not staying:
        return []
    refused: Counter[str] = Counter()
    for remainder in plan.remainders:
        refused.update(remainder.refused)
    if refused:
        return [f"{count} replicas refused by {reason}" for reason, count in refused.most_common()]
    topic, number = min(staying)
    return [f"{len(staying)} partitions may not be moved, such as {topic}-{number}"]


def _lacking(known: ModelledCluster, plan: Plan) -> list[str]:
    cells = known.named.cells
    return [
        f"{cells[each.cell] if each.cell < len(cells) else 'the cluster'} would lack {each.what}, "
        f"{each.brokers} more brokers would cover it"
        for each in plan.shortfalls
    ]
