"""What became of a finding: open, acknowledged or resolved. Pure.

The auditor writes findings, operators write what they did about them, under another key of the same topic.
So neither overwrites the other, however both happen at once.

- An acknowledged finding is known, and its cause may persist. It is open again if it becomes more severe.
- A resolved finding is over. It is open again if it becomes more severe or is observed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.model.durability import HANDLING, FindingHandling, FindingRecord, FindingState, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(slots=True)
class FindingLog:
    """Records of `_penstock.findings`, in the order of the topic."""

    findings: dict[str, FindingRecord] = field(default_factory=dict)
    handlings: dict[str, FindingHandling] = field(default_factory=dict)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record; without a value it deletes its key."""
        text = key.decode()
        if text.startswith(HANDLING):
            finding = text.removeprefix(HANDLING)
            self.handlings.pop(finding, None)
            if value is not None:
                self.handlings[finding] = FindingHandling.from_bytes(value)
            return
        self.findings.pop(text, None)
        if value is not None:
            self.findings[text] = FindingRecord.from_bytes(value)

    def current(self, findings: Iterable[FindingRecord] | None = None) -> list[FindingRecord]:
        """Findings as operators see them, the most severe and newest first."""
        every = self.findings.values() if findings is None else findings
        handled_ones = [handled(each, self.handlings.get(each.id)) for each in every]
        return sorted(handled_ones, key=lambda one: (-_RANKS[one.severity], -one.last_seen_ms, one.id))


def handled(finding: FindingRecord, handling: FindingHandling | None) -> FindingRecord:
    """The finding in its state."""
    if handling is None or _RANKS[finding.severity] > _RANKS[handling.severity]:
        return finding
    recurred = finding.last_seen_ms > handling.time_ms
    if handling.state is FindingState.RESOLVED and recurred:
        return finding
    return replace(finding, state=handling.state, actor=handling.actor, note=handling.note)


def handling_of(
    finding: FindingRecord, state: FindingState, actor: str, note: str, now_ms: int
) -> FindingHandling:
    """What an operator decides now."""
    return FindingHandling(
        finding.id, state, finding.severity, max(now_ms, finding.last_seen_ms), actor, note
    )
