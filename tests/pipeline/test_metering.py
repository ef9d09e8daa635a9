"""Usage from cumulative counters: exact despite restarts and repeated, lost or late reports."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.model.ids import LogicalClusterId
from penstock.pipeline.jobs.metering import METERING, hourly_use
from penstock.pipeline.reading.usage import UsageReader
from tests.pipeline.generators import BEGIN_MS, HOUR_MS, Gateways
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.pipeline.conftest import PipelineHarness

TENANTS = (LogicalClusterId("lkc-00000a"), LogicalClusterId("lkc-00000b"))


def block_of(values: Sequence[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


def expected_usage(reports: list[dict[str, Any]]) -> dict[tuple[str, str, int], int]:
    """The definition without Spark: rises of each hour's highest counter."""
    highest: dict[tuple[str, ...], dict[int, int]] = defaultdict(dict)
    for row in reports:
        by_hour = highest[row["gateway"], row["incarnation"], row["tenant"], row["dimension"]]
        hour = int(row["hour"].timestamp() * 1000)
        by_hour[hour] = max(by_hour.get(hour, 0), row["counter"])
    used: dict[tuple[str, str, int], int] = defaultdict(int)
    for (_, _, tenant, dimension), hours in highest.items():
        before = 0
        for hour, counter in sorted(hours.items()):
            used[tenant, dimension, hour] += counter - before
            before = counter
    return {key: value for key, value in used.items() if value}


def test_a_block_is_reduced_to_the_highest_counter_of_each_hour() -> None:
    world = Gateways(random.Random(1), TENANTS)
    reports = [r.to_bytes() for r in world.reports(gateways=2, hours=3, every_ms=60_000)]

    rows, rejected = UsageReader().read(block_of(reports))

    assert rows is not None
    assert not rejected
    assert rows.num_rows < len(reports)
    assert expected_usage(rows.to_pylist()) == {key: value for key, value in world.used.items() if value}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "not a JSON object"),
        (None, "no value"),
        (b'{"schema":"health/1.0"}', "not of schema usage/1."),
        (b'{"schema":"usage/2.0"}', "not of schema usage/1."),
        (b'{"schema":"usage/1.0","cluster":"c"}', "`gateway` is missing"),
        ((b'{"schema":"usage/1.9","cluster":"c","gateway":"g","incarnation":"i","tenant":"t","sequence":1,'
         b'"time_ms":1,"used":{"requests":-1}}'), "below zero"),
        ((b'{"schema":"usage/1.9","cluster":"c","gateway":"g","incarnation":"i","tenant":"t","sequence":1,'
         b'"time_ms":1,"used":{"requests":1.5}}'), "not a whole number"),
    ],
)  # fmt: skip
def test_a_report_that_cannot_be_read_is_named_and_the_rest_counts(bad: bytes | None, reason: str) -> None:
    world = Gateways(random.Random(2), TENANTS)
    reports: list[bytes | None] = [r.to_bytes() for r in world.reports(gateways=1, hours=1, every_ms=600_000)]

    rows, rejected = UsageReader().read(block_of([*reports[:3], bad, *reports[3:]]))

    assert [each.at for each in rejected] == [3]
    assert reason in rejected[0].reason
    assert rows is not None
    assert expected_usage(rows.to_pylist()) == {key: value for key, value in world.used.items() if value}


def test_a_counter_with_an_unknown_name_is_counted_too() -> None:
    world = Gateways(random.Random(3), TENANTS[:1])
    first, second = list(world.reports(gateways=1, hours=1, every_ms=1_500_000))[:2]
    newer = second.to_bytes().replace(b'"used":{', b'"used":{"storage_bytes":77,')

    rows, rejected = UsageReader().read(block_of([first.to_bytes(), newer]))

    assert not rejected
    assert rows is not None
    assert [r["counter"] for r in rows.to_pylist() if r["dimension"] == "storage_bytes"] == [77]


@pytest.mark.spark
def test_hourly_usage_sums_rises_over_hours_and_incarnations(dry: PipelineHarness) -> None:
    def at(hour: int, counter: int, incarnation: str) -> tuple[Any, ...]:
        when = datetime.fromtimestamp((BEGIN_MS + hour * HOUR_MS) / 1000, UTC)
        return ("c", "g", incarnation, "t", "bytes", when, counter)

    rows = [at(0, 5, "i1"), at(0, 9, "i1"), at(2, 20, "i1"), at(2, 20, "i1"), at(2, 4, "i2"), at(3, 4, "i2")]
    counters = dry.session.createDataFrame(rows, UsageReader.ddl)

    used = {
        int(r.hour.timestamp() * 1000 - BEGIN_MS) // HOUR_MS: r.used for r in hourly_use(counters).collect()
    }

    assert used == {0: 9, 2: 15}


@pytest.mark.spark
def test_late_repeated_and_lost_reports_never_count_twice(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    """Also: a run that fails before refreshing derived tables leaves that to the next one."""
    topic = harness.make_topic(unique("usage"), partitions=3)
    job = replace(METERING, source=replace(METERING.source, topic=topic))
    world = Gateways(random.Random(4), TENANTS)
    reports = [r.to_bytes() for r in world.reports(gateways=3, hours=30, every_ms=600_000)]
    late = [r for i, r in enumerate(reports) if i % 7 == 0]
    harness.send(topic, [r for i, r in enumerate(reports) if i % 7])
    with interrupted("pipeline.derived.refresh-started"):
        harness.run(job)
    harness.run(job)
    harness.send(topic, [*late, *reports[:50], b"nonsense"])

    outcome = harness.run(job)

    hourly = {
        (t, d, int(hour.timestamp() * 1000)): used
        for t, d, hour, used in harness.rows("platform.usage_hourly", "tenant", "dimension", "hour", "used")
    }
    assert hourly == {key: value for key, value in world.used.items() if value}
    days = harness.rows("platform.usage_daily", "used")
    assert sum(used for (used,) in days) == sum(world.used.values())
    assert (outcome.rejected, outcome.refreshed) == (1, 2)
    assert [bytes(v) for (v,) in harness.rows("platform.usage_counters_rejected", "kafka_value")] == [
        b"nonsense"
    ]
