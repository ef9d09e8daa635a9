"""The audit's Prometheus metrics, computed when they are scraped."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.metric_families import Samples
from penstock.model.durability import Severity
from penstock.model.metric_catalogue import AUDIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from penstock.audit.rules.state import SubjectState
    from penstock.audit.service import Auditor


class AuditMetrics:
    def __init__(self, auditors: Mapping[str, Auditor]) -> None:
        self._auditors = auditors

    def collect(self) -> Iterator[Metric]:
        samples = Samples(AUDIT)
        for name, auditor in self._auditors.items():
            samples.add("active", float(auditor.active), name)
            samples.add("events", auditor.events_written, name)
            samples.add("folded", auditor.engine.events, name)
            samples.add("unreadable", auditor.unreadable, name)
            if not auditor.active:
                continue
            samples.add("subjects", len(auditor.engine.states), name)
            samples.add("dropped", auditor.engine.dropped, name)
            samples.add("unseen_partitions", len(auditor.sweeper.unseen), name)
            if auditor.cycle_ended is not None:
                samples.add("collector_age_seconds", time.monotonic() - auditor.cycle_ended, name)
            never, oldest_ms = scrub_age(auditor.engine.states.values())
            samples.add("unscrubbed_partitions", never, name)
            if oldest_ms is not None:
                samples.add("scrub_age_seconds", time.time() - oldest_ms / 1000, name)
            findings = auditor.current_findings()
            alarming = (each for each in findings if each.severity is not Severity.INFO)
            open_ = Counter(each.rule for each in alarming if each.is_open)
            for rule, count in open_.items():
                samples.add("findings_open", count, name, rule)
        return iter(samples)


def scrub_age(states: Iterable[SubjectState]) -> tuple[int, int | None]:
    """How many partitions no scrub has read, and when the oldest of the others' last passes began."""
    partitions = [state for state in list(states) if state.placement is not None]
    scrubbed = [max(each.run for each in state.scrubs) for state in partitions if state.scrubs]
    return len(partitions) - len(scrubbed), min(scrubbed, default=None)
