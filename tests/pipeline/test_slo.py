"""The fleet SLO equals the paper's definition, computed in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.jobs.slo import SLO
from tests.pipeline.generators import Checkers, nearest_rank
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark


def test_cluster_and_fleet_metrics_follow_the_paper_s_definition(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    """Also after a run that failed with one of the derived tables refreshed."""
    topic = harness.make_topic(unique("health"))
    job = replace(SLO, source=replace(SLO.source, topic=topic))
    world = Checkers(random.Random(5))
    probes = [p.to_bytes() for p in world.probes(clusters=4, brokers=2, weeks=2, minutes=10, each=20)]
    early, late = probes[:2000], probes[2000:]
    harness.send(topic, early)
    with interrupted("pipeline.derived.refresh-started", 2):
        harness.run(job)
    harness.send(topic, [*late, *probes[:500], b'{"schema":"usage/1.0"}'])

    outcome = harness.run(job)

    expected = world.cluster_metrics()
    clusters = harness.rows("platform.slo_clusters", "week", "cluster", "latency_p99_us", "unavailable_p99")
    weeks = sorted({week for week, *_ in clusters})
    actual = {(weeks.index(w), c): (a, b) for w, c, a, b in clusters}
    assert actual == {key: (latency, pytest.approx(missing)) for key, (latency, missing) in expected.items()}
    by_week: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (week, _), pair in expected.items():
        by_week[week].append(pair)
    levels = {"latency_median_us": 0.5, "latency_p90_us": 0.9, "latency_p99_us": 0.99}
    fleet = harness.rows("platform.slo_fleet", "week", "clusters", *levels)
    assert [(weeks.index(week), *values) for week, *values in fleet] == [
        (week, 4, *(nearest_rank([a for a, _ in pairs], level) for level in levels.values()))
        for week, pairs in sorted(by_week.items())
    ]
    assert (outcome.rejected, outcome.records) == (1, len(late) + 501)
