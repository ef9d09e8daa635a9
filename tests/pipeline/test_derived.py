"""Derived tables and their rollup: equal to the whole, read in parts, in any time zone of the driver."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.jobs.metering import METERING, daily_use, hourly_use, latest
from penstock.pipeline.jobs.slo import SLO, fleet_weeks
from penstock.pipeline.lake.derived import _source_rows, refresh_derived
from penstock.pipeline.reading.usage import UsageReader
from tests.pipeline.conftest import TIME_ZONE, driver_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark
BEGIN = datetime(2026, 5, 25, tzinfo=UTC)  # a Monday
COUNTERS = METERING.sink.table


@pytest.fixture(params=[TIME_ZONE, pytest.param("America/New_York", marks=pytest.mark.soak)])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """The time zone of the driver's process."""
    with driver_in(request.param):
        yield request.param


def append(harness: PipelineHarness, table: str, rows: list[tuple[Any, ...]], ddl: str, by: str) -> None:
    frame = harness.session.createDataFrame(rows, ddl).coalesce(1)
    harness.runner().tables.ensure(table, frame.schema, partition_by=(by,))
    frame.writeTo(f"lake.{table}").append()


def report(hours: float, counter: int, incarnation: str = "i1") -> tuple[Any, ...]:
    return ("c", "g", incarnation, "t", "bytes", BEGIN + timedelta(hours=hours), counter)


def count(harness: PipelineHarness, *rows: tuple[Any, ...]) -> None:
    append(harness, COUNTERS, list(rows), UsageReader.ddl, "days(hour)")


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_new_rows_reach_derived_tables_wherever_the_driver_runs(zone: str, dry: PipelineHarness) -> None:
    tables = dry.runner().tables
    count(dry, report(150, 5), report(160, 7))
    ddl = (
        "cluster string, broker int, zone string, partition int, probe string, checker string, "
        "sequence bigint, time timestamp, latency_us bigint, error string"
    )

    def probe(hours: float, latency: int) -> None:
        row = ("c", 1, "a", 0, "consume", "h", latency, BEGIN + timedelta(hours=hours), latency, None)
        append(dry, SLO.sink.table, [row], ddl, "days(time)")

    probe(100, 1000)
    assert (refresh_derived(METERING, tables), refresh_derived(SLO, tables)) == (2, 2)
    count(dry, report(160.5, 9))  # Sunday, 16:30: in Tokyo it is Monday already
    probe(160.5, 9000)

    refreshed = refresh_derived(METERING, tables), refresh_derived(SLO, tables)

    assert refreshed == (2, 2)
    assert dry.rows("platform.usage_hourly") == rows_of(hourly_use(tables.frame(COUNTERS)))
    assert dry.rows("platform.usage_daily") == rows_of(daily_use(tables.frame(COUNTERS)))
    assert dry.rows("platform.slo_fleet") == rows_of(fleet_weeks(tables.frame(SLO.sink.table)))


def test_usage_from_the_rollup_equals_usage_from_all_history(dry: PipelineHarness) -> None:
    """A counter that was idle for weeks, restarts, reports that are late by minutes and by weeks."""
    chance = random.Random(11)
    tables = dry.runner().tables
    counters = {"i1": 0, "i2": 0, "idle": 40}
    count(dry, report(1, 40, "idle"))

    for step in range(4):
        day = 24.0 * (1 + 3 * step)
        rows = []
        for incarnation in ("i1", "i2"):
            for hour in range(0, 48, 7):
                counters[incarnation] += chance.randrange(100)
                rows.append(report(day + hour, counters[incarnation], incarnation))
        rows += [report(day + 47, 40 + step, "idle")] * (step == 2)
        rows += [report(day - 30, counters["i1"] // 2, "late")] * (step == 1)
        rows += [report(2, 3, "very late")] * (step == 3)
        count(dry, *rows)
        refresh_derived(METERING, tables)

        assert dry.rows("platform.usage_hourly") == rows_of(hourly_use(tables.frame(COUNTERS))), step
    assert dry.rows("platform.usage_daily") == rows_of(daily_use(tables.frame(COUNTERS)))


def test_a_refresh_reads_what_is_new_and_not_all_history(dry: PipelineHarness) -> None:
    """Also with a report from the future, by a wrong clock."""
    tables = dry.runner().tables
    count(dry, report(24 * 365 * 50, 6, "future"))
    files = []
    for day in range(6):
        count(dry, *(report(24 * day + hour, 100 * day + hour) for hour in range(24)))
        if day < 4:
            continue
        now = BEGIN + timedelta(days=day + 1)
        refresh_derived(METERING, tables, now=now)
        snapshot = tables.current_snapshot(COUNTERS)
        assert snapshot is not None
        files.append(len(_source_rows(METERING, tables, snapshot, now).inputFiles()))

    assert max(files) == files[-1] <= 5  # the rollup, three days, and the future
    assert dry.rows("platform.usage_hourly") == rows_of(hourly_use(tables.frame(COUNTERS)))


def test_the_rollup_has_the_last_value_of_each_counter_but_none_of_a_gateway_s_ended_runs(
    dry: PipelineHarness,
) -> None:
    rows = [report(0, 5, "old"), report(1, 7, "quiet"), report(30, 9, "quiet"), report(24 * 60, 3, "new")]
    others = [("c", "h", *row[2:]) for row in rows[:1]]  # a gateway without a newer run
    counters = dry.session.createDataFrame([*rows, *others], UsageReader.ddl)

    early, late = (rows_of(latest(counters, BEGIN + timedelta(days=days))) for days in (30, 63))

    assert [(row[1], row[2], row[6]) for row in late] == [("g", "new", 3), ("h", "old", 5)]
    assert {(row[2], row[6]) for row in early} == {("old", 5), ("quiet", 9), ("new", 3)}
