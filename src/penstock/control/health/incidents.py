"""Incidents: what opens, continues and resolves one. Pure.

One incident is open for a broker at a time. Entries are kept in order, and repeated ones only once. Resolved
incidents are kept for a month, and at most so many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import Decision, new_operation
from penstock.control.registry import Drop, Put
from penstock.model.entities import Incident, IncidentEntry, IncidentState
from penstock.model.errors.health import IncidentClosed
from penstock.model.ids import ID_ALPHABET, BrokerId, PhysicalClusterId

if TYPE_CHECKING:
    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Change, Registry
    from penstock.health.detector import Finding
    from penstock.model.ids import Choice

ENTRIES_MAX: Final = 200  # of one incident; the first ones and the newest are kept
INCIDENTS_MAX: Final = 1_000
RETENTION_MS: Final = 30 * 24 * 3600 * 1000
TEXT_MAX: Final = 500
ID_LENGTH: Final = 8


def open_incident(registry: Registry, cluster: str, broker: int) -> Incident | None:
    """The one that is not resolved yet."""
    for each in registry.all(Incident):
        if (each.cluster, each.broker) == (cluster, broker) and each.state is not IncidentState.RESOLVED:
            return each
    return None


def begun(
    registry: Registry, choose: Choice, cluster: str, finding: Finding, now_ms: int
) -> tuple[Incident, bool]:
    """The broker's incident, and whether it is a new one."""
    known = open_incident(registry, cluster, finding.broker)
    if known is not None:
        return known, False
    while registry.get(Incident, name := "inc-" + "".join(choose(ID_ALPHABET) for _ in range(ID_LENGTH))):
        pass
    opened = Incident(
        id=name,
        cluster=PhysicalClusterId(cluster),
        broker=BrokerId(finding.broker),
        health=str(finding.state),
        opened_ms=now_ms,
        evidence=finding.evidence[:TEXT_MAX],
        ruled_out=finding.ruled_out,
        entries=(IncidentEntry(now_ms, "finding", f"{finding.state}: {finding.evidence}"[:TEXT_MAX]),),
    )
    return opened, True


def with_entry(incident: Incident, what: str, text: str, now_ms: int) -> Incident:
    """The same one if the entry repeats the last one of its kind."""
    last = next((each for each in reversed(incident.entries) if each.what == what), None)
    if last is not None and last.text == text[:TEXT_MAX] and what in ("blocked", "finding"):
        return incident
    entries = (*incident.entries, IncidentEntry(now_ms, what, text[:TEXT_MAX]))
    if len(entries) > ENTRIES_MAX:
        half = ENTRIES_MAX // 2
        entries = entries[:half] + entries[-half:]
    return replace(incident, entries=entries)


def resolved(incident: Incident, now_ms: int, text: str) -> Incident:
    after = with_entry(incident, "resolved", text, now_ms)
    return replace(after, state=IncidentState.RESOLVED, resolved_ms=now_ms)


def change_incident(
    registry: Registry, context: DecisionContext, incident_id: str, state: IncidentState, note: str
) -> Decision:
    """An operator acknowledges or resolves it."""
    before = registry.need(Incident, incident_id)
    if before.state is IncidentState.RESOLVED:
        raise IncidentClosed(incident=incident_id)
    text = note or f"by {context.actor}"
    if state is IncidentState.RESOLVED:
        changed = resolved(before, context.now_ms, text)
    else:
        changed = replace(with_entry(before, str(state), text, context.now_ms), state=state)
    after = replace(changed, version=before.version + 1, changed_ms=context.now_ms)
    operation = new_operation(registry, context, "incident.change", incident_id, None)
    return Decision(
        replace(operation, detail=f"{state}: {text}"), (Put(after), Put(operation)), after, before
    )


def stored(before: Incident | None, after: Incident, now_ms: int) -> tuple[Change, ...]:
    """The change that writes it; nothing if it is the same."""
    if before == after:
        return ()
    version = 0 if before is None else before.version
    return (Put(replace(after, version=version + 1, changed_ms=now_ms)),)


def expired(registry: Registry, now_ms: int) -> tuple[Change, ...]:
    """Drops incidents that were resolved long ago, or exceed the bound."""
    ended = sorted(
        (each for each in registry.all(Incident) if each.state is IncidentState.RESOLVED),
        key=lambda each: each.resolved_ms or 0,
    )
    old = [each for each in ended if (each.resolved_ms or 0) < now_ms - RETENTION_MS]
    more = max(0, registry.count(Incident) - INCIDENTS_MAX)
    return tuple(Drop(each) for each in ended[: max(len(old), min(more, len(ended)))])


def impact(incident: Incident, failed: int, sent: int) -> Incident:
    """With what clients' probes showed meanwhile."""
    return replace(
        incident,
        probes_failed=max(incident.probes_failed, failed),
        probes_sent=max(incident.probes_sent, sent),
    )
