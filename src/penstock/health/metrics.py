"""A checker's Prometheus metrics."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram

from penstock.metric_families import Samples, instrument
from penstock.model.events import ProbeRole
from penstock.model.metric_catalogue import HEALTH, HEALTH_CHECKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from penstock.health.checker import Checker
    from penstock.model.events import HealthProbe


class CheckerMetrics:
    def __init__(self, checkers: Mapping[str, Checker]) -> None:
        self._checkers = checkers
        self._registry = CollectorRegistry()
        self._seconds = instrument(Histogram, HEALTH, "probe_seconds", self._registry)

    def observe(self, probe: HealthProbe) -> None:
        if probe.latency_us is not None and probe.role is not ProbeRole.SELF:
            labels = (probe.cluster, str(probe.broker), str(probe.role))
            self._seconds.labels(*labels).observe(probe.latency_us / 1e6)

    def collect(self) -> Iterator[Metric]:
        samples = Samples(HEALTH_CHECKER)
        for checker in self._checkers.values():
            counts, cluster = checker.counts, checker.target.id
            samples.add("probes_due", counts.due, cluster)
            samples.add("probes_sent", counts.sent, cluster)
            samples.add("probes_disturbed", counts.disturbed, cluster)
            samples.add("probes_lost", counts.lost, cluster)
            samples.add("probe_duplicates", counts.duplicates, cluster)
            samples.add("probes_unwritten", checker.writer.waiting, cluster)
            samples.add("checker_stalled", counts.stalls, cluster)
            for (role, error), count in sorted(counts.failures.items()):
                samples.add("probe_failures", count, cluster, role, error)
        return chain(samples, self._registry.collect())
