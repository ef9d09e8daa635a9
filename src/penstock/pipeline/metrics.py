"""Prometheus metrics of the pipeline's jobs: what their status files say, read when they are scraped.

Jobs run now and then, each maybe in a process of its own: figures are of a job's last or present run,
whoever serves them. A job is known by the group that shows its lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from penstock.model.keys import GROUP, METRIC_PREFIX
from penstock.pipeline.kafka import group_of
from penstock.pipeline.status import State, every_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from penstock.pipeline.status import JobStatus

PREFIX: Final = METRIC_PREFIX + "pipeline_"
MS_IN_SECOND: Final = 1000.0

GAUGES: Final[tuple[tuple[str, str, Callable[[JobStatus], float | None]], ...]] = (
    ("running", "1 while a run of the job is under way", lambda job: job.state is State.RUNNING),
    (
        "failed",
        "1 if the last run failed or was killed",
        lambda job: job.state in (State.FAILED, State.ENDED),
    ),
    ("behind_offsets", "Offsets between the job and its topic's end", lambda job: job.behind),
    ("run_records", "Records read by the last run", lambda job: job.rows),
    ("run_rejected_records", "Records that the last run could not read", lambda job: job.rejected),
    ("updated_seconds", "When the job last said how it does", lambda job: job.updated_ms / MS_IN_SECOND),
)  # fmt: skip


class JobsCollector:
    """All jobs that ever ran with a state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        jobs = every_status(self._state)
        for name, text, value_of in GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=[GROUP])
            for job in jobs:
                if (value := value_of(job)) is not None:
                    gauge.add_metric([group_of(job.job)], float(value))
            yield gauge
