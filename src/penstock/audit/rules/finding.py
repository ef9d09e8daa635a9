"""A violated rule, with an id that is the same in every run and engine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.model.durability import UNKNOWN, FindingRecord, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

ID_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """`cause` distinguishes findings of one rule on one subject; `alert` joins those with one cause."""

    rule: str
    cluster: str
    subject: str
    cause: str
    severity: Severity
    time_ms: int
    detail: str
    alert: str = ""
    first: int = UNKNOWN  # offsets concerned
    last: int = UNKNOWN
    evidence: Mapping[str, object] = field(default_factory=dict)
    topic_name: str = ""

    @property
    def id(self) -> str:
        text = "\0".join((self.rule, self.cluster, self.subject, self.cause))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]

    def record(self) -> FindingRecord:
        return FindingRecord(
            id=self.id,
            rule=self.rule,
            severity=self.severity,
            cluster=self.cluster,
            subject=self.subject,
            detail=self.detail,
            first=self.first,
            last=self.last,
            alert=self.alert or f"{self.rule}/{self.subject}",
            first_seen_ms=self.time_ms,
            last_seen_ms=self.time_ms,
            evidence=self.evidence,
            topic_name=self.topic_name,
        )


def merged(before: FindingRecord | None, after: FindingRecord) -> FindingRecord:
    """One record of two of the same id, in any order; the more severe, or the later, gives the details."""
    if before is None:
        return after
    assert before.id == after.id
    ranks = list(Severity)
    stronger = max(before, after, key=lambda each: (ranks.index(each.severity), each.last_seen_ms))
    return FindingRecord(
        id=after.id,
        rule=after.rule,
        severity=stronger.severity,
        cluster=after.cluster,
        subject=after.subject,
        detail=stronger.detail,
        first=stronger.first,
        last=stronger.last,
        alert=stronger.alert,
        first_seen_ms=min(before.first_seen_ms, after.first_seen_ms),
        last_seen_ms=max(before.last_seen_ms, after.last_seen_ms),
        evidence=stronger.evidence,
        topic_name=stronger.topic_name or before.topic_name or after.topic_name,
    )
