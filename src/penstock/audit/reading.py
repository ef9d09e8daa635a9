"""Reads findings and histories for operators, and records acknowledgements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.audit import topics
from penstock.audit.rules import facts as facts_of
from penstock.audit.rules.fold import step
from penstock.audit.rules.log_start import explanation
from penstock.audit.rules.state import SubjectState
from penstock.audit.topic_ids import id_text
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.append import append
from penstock.kafka.partition_log import bounds, read
from penstock.model.durability import FindingRecord, FindingState, LogEvent, Severity, partition_subject
from penstock.model.errors import PenstockError
from penstock.model.errors.audit import FindingUnknown, SubjectUnknown

if TYPE_CHECKING:
    from penstock.kafka.client import Client


async def read_findings(client: Client) -> list[FindingRecord]:
    """All findings, the most severe and newest first."""
    stored = await topics.read_compacted(client, topics.FINDINGS)
    findings = [FindingRecord.from_bytes(value) for value in stored.values()]
    ranks = list(Severity)
    return sorted(findings, key=lambda each: (-ranks.index(each.severity), -each.last_seen_ms, each.id))


async def read_finding(client: Client, finding_id: str) -> FindingRecord:
    """A finding by its id or the beginning of it."""
    matches = [each for each in await read_findings(client) if finding_id and each.id.startswith(finding_id)]
    if len(matches) != 1:
        raise FindingUnknown(finding=finding_id)
    return matches[0]


async def acknowledge(client: Client, finding_id: str, actor: str, note: str) -> FindingRecord:
    finding = await read_finding(client, finding_id)
    after = replace(finding, state=FindingState.ACKNOWLEDGED, actor=actor, note=note)
    await append(client, topics.FINDINGS, [(after.key, after.to_bytes())])
    return after


async def subject_of(client: Client, topic: str, partition: int) -> str:
    """The subject of a partition that exists."""
    described = (await kafka_topics.describe(client, [topic]))[topic]
    if isinstance(described, PenstockError):
        raise SubjectUnknown(subject=f"{topic}/{partition}") from described
    return partition_subject(id_text(described.id), partition)


async def read_history(client: Client, cluster: str, subject: str) -> list[LogEvent]:
    """The events of one subject that `_penstock.durability` still has, in order."""
    key = f"{cluster}/{subject}".encode()
    partition = topics.durability_partition(key)
    position, end = await bounds(client, partition)
    events = []
    while position < end:
        fetched = await read(client, partition, position)
        events += [LogEvent.from_bytes(record.value) for record in fetched.records if record.key == key]
        position = max(fetched.position, position)
    if not events:
        raise SubjectUnknown(subject=subject)
    return sorted(events, key=lambda each: each.order)


def explained(events: list[LogEvent]) -> list[tuple[LogEvent, str]]:
    """Each event, and for a rise of the log start why it was legal, judged with the whole history."""
    whole: SubjectState | None = None
    for event in events:
        whole, _ = step(whole, event)
    assert whole is not None
    result = []
    state = SubjectState(whole.cluster, whole.subject)
    for event in events:
        after = facts_of.apply(state, event.read_facts(), event.time_ms)
        reasons = []
        for rise in after.rises[len(state.rises) :]:
            evidence = replace(whole, legal_to=0, policies=after.policies, samples=after.samples)
            reason = explanation(evidence, rise) or "UNEXPLAINED"
            reasons.append(f"log start {rise.first} to {rise.to}: {reason}")
        result.append((event, ", ".join(reasons)))
        state = replace(after, rises=())
    return result
