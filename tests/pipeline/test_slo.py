"""The fleet's SLO by the paper's arithmetic, against the same arithmetic in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.jobs.slo import SLO
from tests.pipeline.known import Checkers, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.conftest import Ground

pytestmark = pytest.mark.spark


def test_the_figures_of_clusters_and_fleet_are_those_of_the_paper(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    topic = ground.make_topic(unique("health"))
    job = replace(SLO, source=replace(SLO.source, topic=topic))
    world = Checkers(random.Random(5))
    probes = [p.to_bytes() for p in world.probes(clusters=4, brokers=2, weeks=2, minutes=30, each=20)]
    ground.send(topic, [*probes, *probes[:500], b'{"schema":"usage/1.0"}'])

    outcome = ground.run(job)

    expected = world.cluster_figures()
    found = ground.rows("platform.slo_clusters", "week", "cluster", "latency_p99_us", "unavailable_p99")
    weeks = sorted({week for week, *_ in found})
    assert {(weeks.index(w), c): (a, pytest.approx(b)) for w, c, a, b in found} == expected
    by_week: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (week, _), pair in expected.items():
        by_week[week].append(pair)
    fleet = ground.rows("platform.slo_fleet", "week", "clusters", "latency_median_us", "latency_p90_us")
    assert [(weeks.index(w), n, m, p) for w, n, m, p in fleet] == [
        (week, 4, nearest_rank([a for a, _ in pairs], 0.5), nearest_rank([a for a, _ in pairs], 0.9))
        for week, pairs in sorted(by_week.items())
    ]
    assert (outcome.rejected, outcome.rows) == (1, len(probes) + 501)
