"""Prometheus metrics of the pipeline's jobs, read from their status files at scrape time.

Any process with access to the state directory can serve them. Values describe a job's current or last
run. A job is labelled with the consumer group that shows its lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.metric_families import Samples
from penstock.model.metric_catalogue import PIPELINE
from penstock.pipeline.spark.kafka import group_of
from penstock.pipeline.status import State, all_statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from penstock.pipeline.status import JobStatus

MS_IN_SECOND: Final = 1000.0

FAILED: Final = (State.FAILED, State.KILLED)

GAUGES: Final[Mapping[str, Callable[[JobStatus], float | None]]] = {
    "running": lambda job: job.state is State.RUNNING,
    "failed": lambda job: job.state in FAILED,
    "lag_offsets": lambda job: job.lag,
    "run_records": lambda job: job.records,
    "run_rejected_records": lambda job: job.rejected,
    "updated_seconds": lambda job: job.updated_ms / MS_IN_SECOND,
}


class JobsCollector:
    """Collects every job that ever ran with this state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        samples = Samples(PIPELINE)
        for job in all_statuses(self._state):
            for name, value_of in GAUGES.items():
                if (value := value_of(job)) is not None:
                    samples.add(name, float(value), group_of(job.job))
        return iter(samples)
