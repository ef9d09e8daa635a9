"""Prometheus metrics of executors and views, collected when they are scraped.

    from prometheus_client import REGISTRY
    REGISTRY.register(ExecutorCollector(executor))

An executor's lag is not among them: it is the log's end minus `position_offset`. `penstock scale`, or any lag
exporter on the executor's group, reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.errors.settings import ExtraMissing
from penstock.model.metric_catalogue import OLEP, OLEP_VIEW

try:
    from penstock.metric_families import Samples
except ImportError as error:  # optional for an executor
    raise ExtraMissing(what="metrics", module="prometheus_client", extra="olep") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from penstock.olep.executor import Executor
    from penstock.olep.view.runner import ViewRunner

# Metric → field of ExecutorCounters.
COUNTERS: Final = {
    "decided_events": "decided",
    "repeated_events": "repeated",
    "rejected_events": "rejected",
    "sent_events": "sent",
    "commits": "commits",
}


class ExecutorCollector:
    """Metrics of one executor. Several can be registered; the `group` label distinguishes them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        executor, samples = self._executor, Samples(OLEP)
        names = (executor.group, executor.log.topic)
        for name, field in COUNTERS.items():
            samples.add(name, getattr(executor.counters, field), *names)
        for task in executor.tasks():
            samples.add("position_offset", task.position, *names, str(task.partition))
            samples.add("unacknowledged_events", task.unacknowledged, *names, str(task.partition))
        samples.add("suspended_partitions", len(executor.suspended()), *names)
        return iter(samples)


class ViewCollector:
    """Metrics of the runner of one view."""

    def __init__(self, runner: ViewRunner) -> None:
        self._runner = runner

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        progress, samples = self._runner.progress(), Samples(OLEP_VIEW)
        names = (progress.view, self._runner.log.topic)
        samples.add("records", progress.records, *names)
        samples.add("applied_events", progress.applied, *names)
        samples.add("skipped_events", progress.skipped, *names)
        samples.add("lag_offsets", progress.lag, *names)
        samples.add("generation", progress.generation, *names)
        samples.add("failing", float(progress.failure is not None), *names)
        return iter(samples)
