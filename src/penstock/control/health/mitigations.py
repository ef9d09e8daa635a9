"""Mitigations in the registry: what a step, its outcome and its release change. Pure.

One transaction has everything that belongs together: the mitigation, the broker's claims, the intervention
and the incident. The effects follow, and are derived from the mitigation again after a takeover.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import Decision, new_operation
from penstock.control.health import incidents
from penstock.control.health.broker_states import clear_status, set_status, state_of
from penstock.control.health.interventions import close_intervention, open_intervention, zones_of
from penstock.control.registry import Drop, Put
from penstock.health.detector import HealthState
from penstock.health.mitigation import HOUR_SECONDS, LATE_SECONDS, LEFT, Open, Step
from penstock.model.entities import (
    Actor,
    BrokerState,
    BrokerStatus,
    Incident,
    Intervention,
    Mitigation,
    OpenIntervention,
    PhysicalCluster,
    broker_state_id,
)
from penstock.model.ids import BrokerId, PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Change, Registry
    from penstock.health.detector import Finding
    from penstock.health.mitigation import Take

ACTOR: Final = "health"
IMPROVED_SHARE: Final = 0.5  # of the client probes that suffered before
UNHURT: Final = 0.05  # share of client probes that may suffer
SETTLE_MS: Final = 15_000  # until the effect of a step shows in probes
# A restart ends an exclusion; the broker stays demoted until it has recovered.
CLAIMS: Final = {
    Step.DEMOTE: BrokerStatus.DEMOTED,
    Step.HOLD: BrokerStatus.DEMOTED,
    Step.RESTART: BrokerStatus.DEMOTED,
    Step.EXCLUDE: BrokerStatus.EXCLUDED,
}


def intervention_key(broker: int) -> str:
    return f"broker-{broker}"


def is_member(registry: Registry, mitigation: Mitigation) -> bool:
    """Whether the broker still belongs to its cluster."""
    physical = registry.get(PhysicalCluster, mitigation.cluster)
    return physical is not None and any(each.id == mitigation.broker for each in physical.brokers)


def others_let_lead(registry: Registry, mitigation: Mitigation) -> bool:
    """Whether no other component, nor an operator, has demoted the broker, too."""
    state = state_of(registry, mitigation.cluster, int(mitigation.broker))
    return replace(state, claims=tuple(c for c in state.claims if c.owner != ACTOR)).leads


def of_cluster(registry: Registry, cluster: str) -> dict[int, Mitigation]:
    return {int(each.broker): each for each in registry.all(Mitigation) if each.cluster == cluster}


def restarts(mitigation: Mitigation, now_ms: int) -> bool:
    """Whether the broker is restarted on purpose now: by a step, or because only that ends an exclusion.

    A release that takes longer than a restart excuses nothing any more, so that it cannot hide a dead broker.
    """
    if mitigation.releasing:
        recent = now_ms - mitigation.changed_ms < int(LATE_SECONDS * 1000)
        return recent and Step.EXCLUDE in mitigation.steps
    under_way = not (mitigation.done or mitigation.failed)
    return under_way and mitigation.steps[-1:] in ((Step.HOLD,), (Step.RESTART,))


def as_open(mitigation: Mitigation, hurt: float | None, now_ms: int) -> Open:
    """As the ladder sees it; `hurt` is the share of client probes that suffer at best."""
    improved: bool | None = None
    if hurt is not None and mitigation.done and now_ms - mitigation.changed_ms >= SETTLE_MS:
        improved = hurt <= max(UNHURT, mitigation.hurt * IMPROVED_SHARE)
    return Open(
        int(mitigation.broker),
        HealthState(mitigation.state),
        tuple(Step(each) for each in mitigation.steps),
        mitigation.changed_ms / 1000,
        mitigation.done,
        mitigation.failed,
        improved,
        mitigation.releasing,
        bool(mitigation.gave_up),
    )


def acted(registry: Registry, cluster: str, now_ms: int) -> tuple[float, ...]:
    """When steps were taken within the last hour."""
    since = now_ms - int(HOUR_SECONDS * 1000)
    entries = (e for each in registry.all(Incident) if each.cluster == cluster for e in each.entries)
    return tuple(e.time_ms / 1000 for e in entries if e.time_ms > since and e.what in list(Step))


def given_up(registry: Registry, cluster: str, now_ms: int) -> frozenset[int]:
    """Brokers for which no step helped within the last hour."""
    since = now_ms - int(HOUR_SECONDS * 1000)
    return frozenset(
        int(each.broker)
        for each in registry.all(Incident)
        if each.cluster == cluster and any(e.what == "undone" and e.time_ms > since for e in each.entries)
    )


def begin_step(
    registry: Registry, context: DecisionContext, cluster: str, take: Take, finding: Finding, hurt: float
) -> Decision:
    """The intent of a step. Raises InterventionRefused beside an intervention that excludes it.

    A release under way ends: of the steps so far only an exclusion counts, which perhaps is still in effect.
    """
    physical = registry.need(PhysicalCluster, cluster)
    broker, key = BrokerId(take.broker), broker_state_id(cluster, take.broker)
    before = registry.get(Mitigation, key)
    incident, _ = incidents.begun(registry, context.choose, cluster, finding, context.now_ms)
    text = f"{take.state}: {take.reason}"
    base = before or Mitigation(
        id=key, cluster=PhysicalClusterId(cluster), broker=broker, state=str(take.state), incident=incident.id
    )
    lasting = (str(Step.EXCLUDE),) if Step.EXCLUDE in base.steps and take.step is not Step.EXCLUDE else ()
    after = base.changed(
        context.now_ms,
        state=str(take.state),
        steps=(*(lasting if base.releasing else base.steps), str(take.step)),
        step_ms=context.now_ms,
        done=False,
        failed="",
        hurt=max(hurt, base.hurt),
        releasing=False,
        gave_up="",
        incident=incident.id,
    )
    request = OpenIntervention(
        Actor.HEALTH,
        intervention_key(take.broker),
        f"{take.step} broker {take.broker}, which is {take.state}",
        context.now_ms,
        brokers=(broker,),
        zones=zones_of(physical, (broker,)),
    )
    known = registry.get(Incident, incident.id)
    noted = incidents.with_entry(incident, str(take.step), text, context.now_ms)
    operation = new_operation(registry, context, "health.act", key, None)
    operation = replace(operation, detail=f"{take.step}: {text}", arguments={"step": str(take.step)})
    changes = (
        Put(after),
        *_only(Intervention, open_intervention(registry, context, cluster, request)),
        *_claimed(registry, context, cluster, take.broker, CLAIMS[take.step], text),
        *incidents.stored(known, noted, context.now_ms),
        Put(operation),
    )
    return Decision(operation, changes, after, before)


def end_step(
    registry: Registry, context: DecisionContext, key: str, step_ms: int, failed: str = ""
) -> Decision:
    """The effect of the last step is there, or will not be. Nothing if another intent replaced it."""
    before = registry.need(Mitigation, key)
    operation = new_operation(registry, context, "health.note", key, None)
    if before.step_ms != step_ms or before.done or before.releasing:
        return Decision(replace(operation, actor=""), (), before)
    after = before.changed(context.now_ms, done=not failed, failed=failed)
    incident = registry.get(Incident, before.incident)
    noted: tuple[Change, ...] = ()
    if incident is not None:
        what, text = ("failed", failed) if failed else ("done", f"{before.steps[-1]} took effect")
        entry = incidents.with_entry(incident, what, text, context.now_ms)
        noted = incidents.stored(incident, entry, context.now_ms)
    operation = replace(operation, detail=failed or "done")
    return Decision(operation, (Put(after), *noted, Put(operation)), after, before)


def begin_release(
    registry: Registry,
    context: DecisionContext,
    key: str,
    gave_up: str = "",
    impact: tuple[int, int] = (0, 0),
) -> Decision:
    before = registry.need(Mitigation, key)
    incident = registry.get(Incident, before.incident)
    noted: tuple[Change, ...] = ()
    if incident is not None:
        noted = incidents.stored(incident, incidents.impact(incident, *impact), context.now_ms)
    after = before.changed(context.now_ms, releasing=True, gave_up=gave_up)
    operation = new_operation(registry, context, "health.release", key, None)
    operation = replace(operation, detail=gave_up or "the broker is healthy")
    return Decision(operation, (Put(after), *noted, Put(operation)), after, before)


def end_release(registry: Registry, context: DecisionContext, key: str) -> Decision:
    """Everything is undone: the claims and the intervention end with the mitigation.

    Nothing if another step began meanwhile.
    """
    before = registry.need(Mitigation, key)
    cluster, broker = str(before.cluster), int(before.broker)
    if not before.releasing:
        operation = new_operation(registry, context, "health.note", key, None)
        return Decision(replace(operation, actor=""), (), before)
    changes: list[Change] = [Drop(before)]
    if is_member(registry, before):  # else its claims went with it
        changes += _cleared(registry, context, cluster, broker)
    closed = close_intervention(registry, context, cluster, Actor.HEALTH, intervention_key(broker))
    changes += _only(Intervention, closed)
    incident = registry.get(Incident, before.incident)
    if incident is not None:
        if not is_member(registry, before):
            after = incidents.resolved(incident, context.now_ms, LEFT)
        elif before.gave_up:
            after = incidents.with_entry(incident, "undone", before.gave_up, context.now_ms)
        else:
            after = incidents.resolved(incident, context.now_ms, "the broker is healthy, and leads again")
        changes += incidents.stored(incident, after, context.now_ms)
    operation = new_operation(registry, context, "health.note", key, None)
    return Decision(replace(operation, detail="released"), (*changes, Put(operation)), None, before)


def note_finding(
    registry: Registry,
    context: DecisionContext,
    cluster: str,
    finding: Finding,
    what: str,
    text: str,
) -> Decision:
    """Adds to the broker's incident, and opens one if there is none."""
    incident, _ = incidents.begun(registry, context.choose, cluster, finding, context.now_ms)
    known = registry.get(Incident, incident.id)
    noted = incidents.with_entry(incident, what, text, context.now_ms)
    operation = new_operation(registry, context, "health.note", incident.id, None)
    operation = replace(operation, detail=text)
    changes = incidents.stored(known, noted, context.now_ms)
    return Decision(operation, (*changes, Put(operation)), noted, known)


def close_incident(
    registry: Registry,
    context: DecisionContext,
    incident_id: str,
    text: str,
    impact: tuple[int, int] = (0, 0),
) -> Decision:
    """The broker is healthy, or gone, and nothing was done about it that has to be undone."""
    before = registry.need(Incident, incident_id)
    after = incidents.resolved(incidents.impact(before, *impact), context.now_ms, text)
    operation = new_operation(registry, context, "health.note", incident_id, None)
    changes = incidents.stored(before, after, context.now_ms)
    expired = incidents.expired(registry, context.now_ms)
    return Decision(operation, (*changes, *expired, Put(operation)), after, before)


def _claimed(
    registry: Registry, context: DecisionContext, cluster: str, broker: int, status: BrokerStatus, text: str
) -> Sequence[Change]:
    """The claim of this status, instead of another one of health."""
    state = state_of(registry, cluster, broker)
    others = [c for c in state.claims if not (c.owner == ACTOR and c.status is not status)]
    changed = _only(BrokerState, set_status(registry, context, cluster, broker, status, text))
    (put,) = changed
    assert isinstance(put.entity, BrokerState)
    mine = [c for c in put.entity.claims if c.owner == ACTOR and c.status is status]
    kept = [c for c in others if c.owner != ACTOR]
    return [Put(replace(put.entity, claims=(*kept, *mine)))]


def _cleared(registry: Registry, context: DecisionContext, cluster: str, broker: int) -> Sequence[Change]:
    own = [c for c in state_of(registry, cluster, broker).claims if c.owner == ACTOR]
    return _only(BrokerState, clear_status(registry, context, cluster, broker, own[0].status)) if own else ()


def _only(kind: type, decision: Decision) -> list[Change]:
    return [each for each in decision.changes if isinstance(each.entity, kind)]
