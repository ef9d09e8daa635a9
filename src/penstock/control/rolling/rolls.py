"""Rolls: what starting, ordering, pausing and ending one changes in the registry. Pure.

Everything that belongs together is one decision: the restart of a batch is recorded together with the
intervention that covers it and with the state `demoted` of its brokers, before any order is given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import Decision, new_operation
from penstock.control.health.broker_states import state_of
from penstock.control.health.interventions import open_intervention, zones_of
from penstock.control.operations import controller_change
from penstock.control.registry import Drop, Put
from penstock.control.size.resizing import under_way
from penstock.model.entities import (
    Actor,
    BrokerStatus,
    Condition,
    ConditionKind,
    Intervention,
    OpenIntervention,
    Operation,
    PhysicalCluster,
    Roll,
    RolledNode,
    RollState,
    StatusClaim,
)
from penstock.model.errors.fleet import (
    ControllersChanging,
    RollMissing,
    RollRefused,
    RollRunning,
    RollStateConflict,
)
from penstock.model.ids import ID_ALPHABET, BrokerId, PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Change, Registry

ACTOR: Final = "roll"
ROLLS_KEPT: Final = 20  # ended ones of a cluster: estimates use their times
EVIDENCE_MAX: Final = 10
ID_LENGTH: Final = 6
BACK: Final = "-back"  # suffix of the orders of a roll-back


@dataclass(frozen=True, slots=True)
class RollRequest:
    """What a roll was checked for, and how it will run."""

    cluster: str
    scope: tuple[int, ...]
    document: str = ""
    document_before: str = ""
    allow_downtime: bool = False
    allow_unavailable: tuple[str, ...] = ()
    deadline_ms: int = 0
    estimate_seconds: float = 0.0


def rolls_of(registry: Registry, cluster: str) -> list[Roll]:
    """Of one physical cluster, the newest first."""
    rolls = [roll for roll in registry.all(Roll) if roll.cluster == cluster]
    return sorted(rolls, key=lambda roll: (roll.created_ms, roll.id), reverse=True)


def running_roll(registry: Registry, cluster: str) -> Roll | None:
    return next((roll for roll in rolls_of(registry, cluster) if not roll.state.ended), None)


def need_roll(registry: Registry, cluster: str) -> Roll:
    """The last one."""
    rolls = rolls_of(registry, cluster)
    if not rolls:
        raise RollMissing(cluster=cluster)
    return rolls[0]


def start_roll(registry: Registry, context: DecisionContext, request: RollRequest) -> Decision:
    registry.need(PhysicalCluster, request.cluster)
    if (other := running_roll(registry, request.cluster)) is not None:
        raise RollRunning(roll=other.id, cluster=request.cluster, state=str(other.state))
    if (change := controller_change(registry, request.cluster)) is not None:
        raise ControllersChanging(cluster=request.cluster, operation=change.id)
    if (resize := under_way(registry, request.cluster)) is not None:
        reason, way_out = f"{resize.action} is under way", f"Wait for it: penstock operation wait {resize.id}"
        raise RollRefused(cluster=request.cluster, reason=reason, way_out=way_out)
    roll_id = _new_id(registry, context)
    roll = Roll(
        id=roll_id,
        version=1,
        changed_ms=context.now_ms,
        cluster=PhysicalClusterId(request.cluster),
        scope=request.scope,
        request=roll_id,
        document=request.document,
        document_before=request.document_before,
        allow_downtime=request.allow_downtime,
        allow_unavailable=request.allow_unavailable,
        deadline_ms=request.deadline_ms,
        estimate_seconds=request.estimate_seconds,
        created_ms=context.now_ms,
    )
    operation = new_operation(registry, context, "fleet.roll", roll_id, None)
    old = [each for each in rolls_of(registry, request.cluster) if each.state.ended][ROLLS_KEPT - 1 :]
    return Decision(operation, (Put(roll), Put(operation), *map(Drop, old)), roll)


def finalize_features(registry: Registry, context: DecisionContext, cluster: str) -> Decision:
    """Raises the cluster's features, so that older versions cannot run any more."""
    physical = registry.need(PhysicalCluster, cluster)
    if (other := running_roll(registry, cluster)) is not None:
        raise RollRunning(roll=other.id, cluster=cluster, state=str(other.state))
    operation = new_operation(registry, context, "fleet.finalize", cluster, None)
    return Decision(operation, (Put(operation),), physical)


def change_roll(
    registry: Registry, context: DecisionContext, cluster: str, change: str, *, deadline_ms: int = 0
) -> Decision:
    """`pause`, `resume`, `abort` or `back`."""
    before = need_roll(registry, cluster)
    _check_change(before, change)
    changes: list[tuple[str, object]]
    match change:
        case "pause":
            changes = [("state", RollState.PAUSED), ("reason", f"paused by {context.actor}")]
        case "resume":
            changes = [("state", RollState.RUNNING), ("reason", ""), ("evidence", ())]
            changes += [("deadline_ms", deadline_ms)]
        case "abort":
            changes = [("state", RollState.ABORTING)]
        case _:
            changes = _rolled_back(before, deadline_ms)
    after = before.changed(context.now_ms, **dict(changes))
    operation = new_operation(registry, context, f"fleet.roll-{change}", before.id, None)
    physical = registry.need(PhysicalCluster, cluster)
    noted = _with_condition(physical, after, context.now_ms)
    return Decision(operation, (Put(after), Put(operation), *noted), after, before)


def _rolled_back(before: Roll, deadline_ms: int) -> list[tuple[str, object]]:
    """The nodes that were ordered to restart get what they had, under the same rules."""
    return [
        ("state", RollState.RUNNING),
        ("roll_back", True),
        ("request", before.id + BACK),
        ("scope", tuple(node.id for node in before.nodes)),
        ("nodes", ()),
        ("document", before.document_before),
        ("document_before", before.document),
        ("reason", ""),
        ("evidence", ()),
        ("deadline_ms", deadline_ms),
    ]


def _check_change(roll: Roll, change: str) -> None:
    way_out = "Start another one with: penstock fleet roll"
    if roll.state.ended or roll.state is RollState.ABORTING:
        raise RollStateConflict(roll=roll.id, state=str(roll.state), change=_past(change), way_out=way_out)
    wrong = {"pause": RollState.PAUSED, "resume": RollState.RUNNING}
    if roll.state is wrong.get(change):
        way_out = "Nothing needs to be done."
        raise RollStateConflict(roll=roll.id, state=str(roll.state), change=_past(change), way_out=way_out)
    if change == "back" and (roll.roll_back or not roll.document_before):
        what = "a roll-back already" if roll.roll_back else "not one that changed the fleet file"
        raise RollStateConflict(
            roll=roll.id, state=what, change=_past(change), way_out="Abort it: penstock fleet roll abort"
        )


def _past(change: str) -> str:
    return {"pause": "paused", "resume": "resumed", "abort": "aborted", "back": "rolled back"}[change]


# What the active control plane records while a roll runs


def order_restart(
    registry: Registry, context: DecisionContext, seen: Roll, incarnations: Mapping[int, str]
) -> Decision:
    """Before a batch is restarted. Raises InterventionRefused if another actor is in the way.

    `seen` is the roll that the batch was decided for: nothing restarts for one that was paused meanwhile.
    """
    before = _unchanged(registry, seen)
    if before.state is not seen.state:
        raise _changed(before)
    physical = registry.need(PhysicalCluster, before.cluster)
    batch = sorted(incarnations)
    brokers = tuple(BrokerId(b.id) for b in physical.brokers if b.id in incarnations)
    extent = OpenIntervention(
        Actor.ROLL,
        before.id,
        f"restarts node {', '.join(map(str, batch))}",
        context.now_ms,
        brokers=brokers,
        zones=zones_of(physical, brokers),
    )
    opened = open_intervention(registry, context, before.cluster, extent)
    known = [node for node in before.nodes if node.id not in incarnations]
    rows = [RolledNode(node, incarnations[node], context.now_ms) for node in batch]
    after = before.changed(context.now_ms, nodes=(*known, *rows))
    claims = [_claimed(registry, before, broker, context.now_ms) for broker in brokers]
    record = [change for change in opened.changes if isinstance(change.entity, Intervention)]
    return Decision(_internal(), (Put(after), *record, *claims), after, before)


def _claimed(registry: Registry, roll: Roll, broker: int, now_ms: int) -> Put:
    state = state_of(registry, roll.cluster, broker)
    others = tuple(claim for claim in state.claims if claim.owner != ACTOR)
    claim = StatusClaim(BrokerStatus.DEMOTED, ACTOR, roll.id, now_ms)
    return Put(state.changed(now_ms, claims=(*others, claim)))


def record_progress(registry: Registry, seen: Roll, nodes: Sequence[RolledNode], now_ms: int) -> Decision:
    """The phases that have ended. Brokers in sync may lead again; those that do are given back."""
    before = _unchanged(registry, seen)
    after = before.changed(now_ms, nodes=tuple(nodes))
    synced = [node.id for node in nodes if node.in_sync_ms]
    changes = (
        Put(after),
        *unclaimed(registry, before.cluster, now_ms, synced),
        *_given_back(registry, before, [node.id for node in nodes if node.led_ms], now_ms),
    )
    return Decision(_internal(), changes, after, before)


def _given_back(registry: Registry, roll: Roll, back: Collection[int], now_ms: int) -> tuple[Change, ...]:
    """The roll's intervention stays open, and names only the brokers that are not back."""
    record = registry.get(Intervention, roll.cluster)
    own = None if record is None else next((o for o in record.open if _is_of(o, roll)), None)
    if record is None or own is None:
        return ()
    brokers = tuple(broker for broker in own.brokers if broker not in back)
    if brokers == own.brokers:
        return ()
    zones = zones_of(registry.need(PhysicalCluster, roll.cluster), brokers)
    narrowed = replace(own, brokers=brokers, zones=zones)
    return (Put(record.changed(now_ms, open=tuple(narrowed if o is own else o for o in record.open))),)


def _is_of(intervention: OpenIntervention, roll: Roll) -> bool:
    return (intervention.actor, intervention.key) == (Actor.ROLL, roll.id)


def _unchanged(registry: Registry, seen: Roll) -> Roll:
    """The roll as it is now. Raises if it has ended, or is rolled back meanwhile."""
    now = registry.need(Roll, seen.id)
    if now.state.ended or now.request != seen.request:
        raise _changed(now)
    return now


def _changed(roll: Roll) -> RollStateConflict:
    return RollStateConflict(
        roll=roll.id, state=str(roll.state), change="continued", way_out="It is decided again."
    )


def pause_roll(registry: Registry, seen: Roll, reason: str, evidence: Sequence[str], now_ms: int) -> Decision:
    """By itself, with the evidence; unless an operator has paused or aborted it, or rolls it back."""
    before = _unchanged(registry, seen)
    if before.state is not RollState.RUNNING:
        raise _changed(before)
    shown = tuple(evidence)[:EVIDENCE_MAX]
    after = before.changed(now_ms, state=RollState.PAUSED, reason=reason, evidence=shown)
    physical = registry.need(PhysicalCluster, before.cluster)
    return Decision(_internal(), (Put(after), *_with_condition(physical, after, now_ms)), after, before)


def end_roll(registry: Registry, seen: Roll, now_ms: int) -> tuple[Change, ...]:
    """The roll is done or aborted: nothing of it is left in the registry but its times."""
    before = _unchanged(registry, seen)
    state = RollState.ABORTED if before.state is RollState.ABORTING else RollState.DONE
    after = before.changed(now_ms, state=state, ended_ms=now_ms, reason="", evidence=())
    changes: list[Change] = [Put(after), *unclaimed(registry, before.cluster, now_ms)]
    record = registry.get(Intervention, before.cluster)
    if record is not None:
        left = tuple(each for each in record.open if not _is_of(each, before))
        changes.append(Put(record.changed(now_ms, open=left)) if left else Drop(record))
    physical = registry.need(PhysicalCluster, before.cluster)
    return (*changes, *_with_condition(physical, after, now_ms))


def unclaimed(
    registry: Registry, cluster: str, now_ms: int, brokers: Collection[int] | None = None
) -> tuple[Change, ...]:
    """Removes the claims of rolls; those of others stay."""
    changes: list[Change] = []
    for broker, state in registry.broker_states(cluster).items():
        left = tuple(claim for claim in state.claims if claim.owner != ACTOR)
        if left == state.claims or (brokers is not None and broker not in brokers):
            continue
        changes.append(Put(state.changed(now_ms, claims=left)) if left else Drop(state))
    return tuple(changes)


def _with_condition(physical: PhysicalCluster, roll: Roll, now_ms: int) -> tuple[Change, ...]:
    kind = str(ConditionKind.ROLL_PAUSED)
    others = tuple(each for each in physical.conditions if each.kind != kind)
    conditions = others
    if roll.state is RollState.PAUSED:
        detail = "; ".join((f"{roll.id}: {roll.reason}", *roll.evidence))
        remedy = "penstock fleet roll resume, abort, or --roll-back"
        conditions = (*others, Condition(kind, now_ms, detail, remedy))
    if conditions == physical.conditions:
        return ()
    return (Put(physical.changed(now_ms, conditions=conditions)),)


def _new_id(registry: Registry, context: DecisionContext) -> str:
    while True:
        new = "roll-" + "".join(context.choose(ID_ALPHABET) for _ in range(ID_LENGTH))
        if registry.get(Roll, new) is None:
            return new


def _internal() -> Operation:
    return Operation(id="op-", action="", subject="")


def with_phases(
    node: RolledNode, *, stopped: bool, started: bool, ready: bool, in_sync: bool, led: bool, now_ms: int
) -> RolledNode:
    """With the phases that have ended by now. A phase does not end before the one before it."""
    times: list[int] = []
    reached = True
    for ended, at in (
        (stopped, node.stopped_ms), (started, node.started_ms), (ready, node.ready_ms),
        (in_sync, node.in_sync_ms), (led, node.led_ms),
    ):  # fmt: skip
        reached = reached and (ended or bool(at))
        times.append(at or (now_ms if reached else 0))
    return replace(
        node,
        stopped_ms=times[0], started_ms=times[1], ready_ms=times[2], in_sync_ms=times[3], led_ms=times[4],
    )  # fmt: skip
