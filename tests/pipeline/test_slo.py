"""The fleet SLO equals the paper's definition, computed in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.health.slo import Ledger
from penstock.model.events import HealthProbe, Probe, ProbeRole
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.pipeline.jobs.slo import SLO, cluster_weeks
from tests.pipeline.generators import Checkers, nearest_rank
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark

MONDAY_MS = 1_799_625_600_000  # 2027-01-11, midnight UTC
MINUTES = 120


def outcome(chance: random.Random) -> tuple[int | None, str | None]:
    return (None, "TIMED_OUT") if chance.random() < 0.02 else (chance.randrange(10**6), None)


def probes_of(chance: random.Random) -> list[HealthProbe]:
    """Two hours of three brokers: failures, repeats, and minutes in which a broker was not probed."""
    sent = [
        HealthProbe(
            PhysicalClusterId("pkc-7hq2mz"), BrokerId(broker), Zone("a"), broker, probe, "one", sequence,
            MONDAY_MS + minute * 60_000 + n * 700, latency_us, error, role=ProbeRole.PATH,
        )
        for minute in range(MINUTES)
        for broker in (1, 2, 3)
        if chance.random() < 0.9
        for n in range(chance.randrange(20, 70))
        for sequence in (1000 * minute + n,)
        for probe in (Probe.PRODUCE, Probe.CONSUME)
        for latency_us, error in (outcome(chance),)
    ]  # fmt: skip
    return sent + sent[::17]


def test_the_live_budget_and_spark_agree_to_the_last_digit(dry: PipelineHarness) -> None:
    probes = probes_of(random.Random(11))
    ledger = Ledger(0.999)
    for each in probes:
        ledger.add(each)
    rows = [
        (p.cluster, int(p.broker), p.partition, str(p.probe), p.checker, p.sequence, p.time_ms, p.latency_us)
        for p in probes
    ]
    ddl = (
        "cluster string, broker int, partition int, probe string, checker string, sequence bigint, "
        "ms bigint, latency_us bigint"
    )
    frame = dry.session.createDataFrame(rows, ddl).selectExpr("*", "timestamp_millis(ms) AS time")

    (week,) = cluster_weeks(frame.repartition(5)).collect()

    window = ledger.window(MONDAY_MS + MINUTES * 60_000, MINUTES)
    assert window.availability is not None
    assert 0.9 < window.availability < 1
    assert (week.minutes, week.latency_p99_us, week.unavailable_p99, week.availability) == (
        window.minutes, window.latency_p99_us, window.unavailable_p99, window.availability,
    )  # fmt: skip


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
