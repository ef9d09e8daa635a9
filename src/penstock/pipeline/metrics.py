"""Prometheus metrics of the pipeline's jobs, read from their status files at scrape time.

Any process with access to the state directory can serve them. Values describe a job's current or last
run. A job is labelled with the consumer group that shows its lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from penstock.model.key_names import GROUP, METRIC_PREFIX
from penstock.pipeline.spark.kafka import group_of
from penstock.pipeline.status import State, all_statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from penstock.pipeline.status import JobStatus

PREFIX: Final = METRIC_PREFIX + "pipeline_"
MS_IN_SECOND: Final = 1000.0

FAILED: Final = (State.FAILED, State.KILLED)

GAUGES: Final[tuple[tuple[str, str, Callable[[JobStatus], float | None]], ...]] = (
    ("running", "1 while a run of the job is under way", lambda job: job.state is State.RUNNING),
    ("failed", "1 if the last run failed or was killed", lambda job: job.state in FAILED),
    ("lag_offsets", "Offsets between the job's position and the end of its topic", lambda job: job.lag),
    ("run_records", "Records read by the last run", lambda job: job.records),
    ("run_rejected_records", "Records that the last run rejected", lambda job: job.rejected),
    ("updated_seconds", "Unix time of the last status update", lambda job: job.updated_ms / MS_IN_SECOND),
)


class JobsCollector:
    """Collects every job that ever ran with this state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        jobs = all_statuses(self._state)
        for name, text, value_of in GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=[GROUP])
            for job in jobs:
                if (value := value_of(job)) is not None:
                    gauge.add_metric([group_of(job.job)], float(value))
            yield gauge
