"""What may intervene in a physical cluster at the same time. Pure.

Balancing, rolls, health, restores and links use the same brokers and partitions. Each opens an intervention
before it acts and closes it afterwards; the registry has one record per physical cluster. Rules:

1. Opening the same intervention again changes its extent; the rules below apply to the new extent.
2. Rolls and health take brokers away. Together they do so in one zone at most, and never on the same broker.
   A roll names the brokers that are not back yet.
3. There is one roll at a time, and nothing is moved meanwhile: balancing, restores and links wait for it,
   and it waits for them. Plans and tenant moves open no intervention: the executor holds their copies.
4. Balancing, restores and links never share a partition, and leave the brokers of health alone.
5. Health waits for no move: what is sick is taken out first, and moves that would use it are not started.

An intervention with a time limit lapses, so that an actor which died for good blocks nothing for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import Decision, new_operation
from penstock.control.registry import Drop, Put
from penstock.model.entities import Actor, Intervention, PhysicalCluster
from penstock.model.errors.fleet import InterventionRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry
    from penstock.model.entities import OpenIntervention
    from penstock.model.ids import Zone

OPEN_MAX: Final = 100  # interventions in one cluster
PARTITIONS_MAX: Final = 2_000  # that one intervention names; with more, name none and use the brokers
SHOWN_MAX: Final = 3
TAKES_BROKERS: Final = frozenset((Actor.ROLL, Actor.HEALTH))
MOVES: Final = frozenset((Actor.BALANCE, Actor.RESTORE, Actor.LINK))


def conflict(request: OpenIntervention, others: Iterable[OpenIntervention]) -> tuple[str, str] | None:
    """Why it may not be opened, and what it would have to wait for; None if it may."""
    for other in others:
        if reason := _conflict(request, other):
            return reason, f"{other.actor} ({other.reason or other.key})"
    return None


def _conflict(request: OpenIntervention, other: OpenIntervention) -> str:
    shared = _shown(set(request.brokers) & set(other.brokers))
    pair = {request.actor, other.actor}
    if pair <= TAKES_BROKERS:
        if pair == {Actor.ROLL}:
            return "a roll is under way"
        if shared:
            return f"{other.actor} has taken broker {shared}"
        if not request.zones or not other.zones:
            return ""  # a roll between two batches, or of controllers, has no broker down
        zones = set(other.zones) ^ set(request.zones)
        return f"{other.actor} has brokers down in zone {_shown(other.zones)}" if zones else ""
    if Actor.ROLL in pair:
        return "a roll is under way" if other.actor is Actor.ROLL else f"{other.actor} moves partitions"
    if request.actor is Actor.HEALTH:
        return ""
    if other.actor is Actor.HEALTH:
        return f"health has taken broker {shared}" if shared else ""
    if partitions := set(request.partitions) & set(other.partitions):
        return f"{other.actor} works on partition {_shown(partitions)}"
    return ""


def open_interventions(registry: Registry, cluster: str, now_ms: int) -> tuple[OpenIntervention, ...]:
    """Those of a physical cluster that have not lapsed."""
    record = registry.get(Intervention, cluster)
    return () if record is None else _current(record.open, now_ms)


def obstacles_to(
    registry: Registry, cluster: str, actor: Actor, now_ms: int, brokers: Collection[int] = ()
) -> tuple[str, ...]:
    """Why an actor that moves partitions may not start now, in words."""
    assert actor in MOVES
    reasons = []
    for other in open_interventions(registry, cluster, now_ms):
        if other.actor is Actor.ROLL:
            reasons.append(f"a roll is under way ({other.reason or other.key})")
        elif other.actor is Actor.HEALTH and set(other.brokers) & set(brokers):
            reasons.append(f"health has taken broker {_shown(other.brokers)}")
    return tuple(reasons)


def zones_of(physical: PhysicalCluster, brokers: Collection[int]) -> tuple[Zone, ...]:
    return tuple(sorted({broker.zone for broker in physical.brokers if broker.id in brokers}))


def open_intervention(
    registry: Registry, context: DecisionContext, cluster: str, request: OpenIntervention
) -> Decision:
    """Opens or changes an intervention. Raises if the rules forbid it beside the open ones."""
    registry.need(PhysicalCluster, cluster)
    record = registry.get(Intervention, cluster) or Intervention(id=cluster)
    current = _current(record.open, context.now_ms)
    own = next((each for each in current if _same(each, request)), None)
    others = tuple(each for each in current if each is not own)
    if (refusal := conflict(request, others)) is not None:
        reason, other = refusal
        raise InterventionRefused(actor=str(request.actor), cluster=cluster, reason=reason, other=other)
    if len(others) >= OPEN_MAX:
        reason = f"{OPEN_MAX} interventions are open already"
        raise InterventionRefused(
            actor=str(request.actor), cluster=cluster, reason=reason, other="one of them"
        )
    since = context.now_ms if own is None else own.since_ms
    opened = replace(request, since_ms=since, partitions=request.partitions[:PARTITIONS_MAX])
    after = record.changed(context.now_ms, open=(*others, opened))
    operation = new_operation(registry, context, "intervention.open", cluster, None)
    operation = replace(operation, detail=f"{request.actor}: {request.reason}")
    return Decision(operation, (Put(after), Put(operation)), after, record if record.version else None)


def close_intervention(
    registry: Registry, context: DecisionContext, cluster: str, actor: Actor, key: str
) -> Decision:
    """Closes an intervention. One that is closed already changes nothing."""
    operation = new_operation(registry, context, "intervention.close", cluster, None)
    operation = replace(operation, detail=f"{actor}: {key}")
    record = registry.get(Intervention, cluster)
    if record is None:
        return Decision(operation, (Put(operation),), None)
    left = tuple(
        each for each in _current(record.open, context.now_ms) if (each.actor, each.key) != (actor, key)
    )
    after = record.changed(context.now_ms, open=left)
    change = Put(after) if left else Drop(record)
    return Decision(operation, (change, Put(operation)), after, record)


def _same(one: OpenIntervention, other: OpenIntervention) -> bool:
    return (one.actor, one.key) == (other.actor, other.key)


def _current(every: Sequence[OpenIntervention], now_ms: int) -> tuple[OpenIntervention, ...]:
    return tuple(each for each in every if not each.until_ms or each.until_ms > now_ms)


def _shown(items: Collection[object]) -> str:
    every = sorted(map(str, items))
    more = len(every) - SHOWN_MAX
    return ", ".join(every[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
