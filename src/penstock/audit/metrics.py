"""The audit's Prometheus metrics, computed when they are scraped."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.metric_families import Samples
from penstock.model.metric_catalogue import AUDIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

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
            if not auditor.active:
                continue
            samples.add("subjects", len(auditor.engine.states), name)
            samples.add("dropped", auditor.engine.dropped, name)
            samples.add("unseen_partitions", len(auditor.sweeper.unseen), name)
            if auditor.cycle_ended is not None:
                samples.add("collector_age_seconds", time.monotonic() - auditor.cycle_ended, name)
            findings = auditor.current_findings()
            open_ = Counter(each.rule for each in findings if each.is_open)
            for rule, count in open_.items():
                samples.add("findings_open", count, name, rule)
        return iter(samples)
