"""Builds the history of one partition for tests of rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.audit.rules.fold import advance, step
from penstock.audit.rules.state import LATENESS_MS, SLACK_MS
from penstock.model.durability import LogEvent, Placement, Policy, Replica, What, members_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.audit.rules.finding import Finding
    from penstock.audit.rules.state import SubjectState
    from penstock.model.durability import Facts

CLUSTER = "pkc-000000"
SUBJECT = "partition/AAAAAAAAAAAAAAAAAAAAAQ/0"
BEGIN_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SWEEP_MS = 10_000
PLACEMENT = Placement("orders", (1, 2, 3), (1, 2, 3), 1, 0, 0)
POLICY = Policy(retention_ms=7 * DAY_MS, min_isr=2)


def event(
    number: int, time_ms: int, facts: Facts, *, source: str = "auditor", subject: str = SUBJECT
) -> LogEvent:
    what = What(type(facts).__name__.lower())
    return LogEvent(CLUSTER, subject, source, number, time_ms, what, members_of(facts))


@dataclass
class History:
    """Three replicas on brokers 1 to 3, led by broker 1, with a week of retention."""

    now_ms: int = BEGIN_MS
    events: list[LogEvent] = field(default_factory=list)
    placement: Placement = PLACEMENT
    policy: Policy = POLICY

    def __post_init__(self) -> None:
        self.add(self.policy)
        self.add(self.placement)

    def add(self, *facts: Facts, source: str = "auditor", after_ms: int = 0) -> History:
        self.now_ms += after_ms
        for each in facts:
            self.events.append(event(len(self.events), self.now_ms, each, source=source))
        return self

    def sweep(
        self, *, after_ms: int = SWEEP_MS, brokers: Iterable[int] = (1, 2, 3), **positions: Any
    ) -> History:
        """All replicas at these positions; what time retention must keep is reported by the leader."""
        self.now_ms += after_ms
        for broker in brokers:
            known = dict(positions)
            if broker != self.placement.leader:
                for name in ("kept_offset", "kept_until_ms", "kept_retention_ms", "stable", "high_watermark"):
                    known.pop(name, None)
            elif "kept_offset" in known:
                known.setdefault("kept_until_ms", self.now_ms + 300_000)
                known.setdefault("kept_retention_ms", self.policy.retention_ms)
            self.add(Replica(broker, **known))
        return self

    def place(self, *, after_ms: int = 1000, **changes: Any) -> History:
        epoch = self.placement.leader_epoch + ("leader" in changes)
        self.placement = replace(
            self.placement, leader_epoch=epoch, partition_epoch=self.placement.partition_epoch + 1
        )
        self.placement = replace(self.placement, **changes)
        return self.add(self.placement, after_ms=after_ms)

    def configure(self, *, after_ms: int = 1000, **changes: Any) -> History:
        self.policy = replace(self.policy, **changes)
        return self.add(self.policy, after_ms=after_ms)


def fold(events: Iterable[LogEvent], *, until_ms: int | None = None) -> tuple[SubjectState, list[Finding]]:
    state: SubjectState | None = None
    findings: list[Finding] = []
    last_ms = 0
    for each in events:
        state, new = step(state, each)
        findings += new
        last_ms = max(last_ms, each.time_ms)
    assert state is not None
    state, new = advance(state, until_ms or last_ms + LATENESS_MS + SLACK_MS)
    return state, findings + new


def findings_of(history: History) -> list[tuple[str, int, int]]:
    """Rule and offsets of every finding."""
    return [(each.rule, each.first, each.last) for each in fold(history.events)[1]]
