"""The commands in sequence, as a user runs them, on the Spark of this process."""

from __future__ import annotations

import shutil
from datetime import date
from typing import TYPE_CHECKING

import pytest
import structlog
import yaml

from penstock.cli.app import run
from penstock.model.errors import Exit
from tests.harness.command import CommandResult
from tests.pipeline.test_kill import RECORDS, settings_file, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark
SERIES = ("lkc-1", "pkc-1", "requests")
DAILY = "tenant string, cluster string, dimension string, day date, used bigint"
FLEET = (
    "week date, clusters bigint, latency_median_us bigint, latency_p90_us bigint, latency_p99_us bigint, "
    "unavailable_median double, unavailable_p90 double, unavailable_p99 double"
)


@pytest.fixture
def command(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., CommandResult]]:
    """`penstock pipeline …` with the harness's settings and JSON output."""
    monkeypatch.chdir(harness.directory)

    def run_command(*words: str) -> CommandResult:
        capsys.readouterr()
        code = run(["pipeline", *words, "--settings", "pipeline.yaml", "-o", "json"])
        output = capsys.readouterr()
        return CommandResult(code, output.out, output.err)

    yield run_command
    structlog.reset_defaults()


def test_a_job_is_run_shown_explained_backfilled_and_maintained(
    harness: PipelineHarness, unique: Callable[[str], str], command: Callable[..., CommandResult]
) -> None:
    topic = harness.make_topic(unique("orders"))
    settings_file(harness, topic)
    harness.send(topic, values())

    ran = command("run", "orders")
    harness.send(topic, values()[:3])
    (shown,) = (row for row in command("status").data if row["job"] == "orders")
    explained = command("explain", "orders").data
    harness.session.sql("DELETE FROM lake.shop.orders WHERE id IN (3, 120)")
    filled = command("backfill", "orders").data
    maintained = command("maintain", "shop.orders").data
    shutil.rmtree(harness.directory / "state" / "orders" / "checkpoint")
    lost = command("explain", "orders").data

    assert (ran.code, ran.data["records"], ran.data["rejected"]) == (Exit.FINE, RECORDS, 4)
    assert f"orders: {RECORDS} records" in ran.err
    assert (shown["state"], shown["records"], shown["lag"]) == ("idle", RECORDS, 0)
    assert (explained["next batch"], explained["lag"]) == (ran.data["batches"], 3)
    assert explained["lag is shown by"] == "group penstock-pipeline-orders"
    assert lost["begins at"] == f"{explained['begins at']}, or later: at the position of shop.orders"
    assert (filled["records"], filled["rejected"]) == (RECORDS, 4)  # only up to the job's position
    assert maintained["files_after"] <= maintained["files_before"]
    assert command("run", "orders").data["records"] == 3
    assert len(harness.rows("shop.orders")) == RECORDS - 4 + 3


def test_a_pattern_runs_a_job_for_each_topic_that_matches_also_for_one_that_came_later(
    harness: PipelineHarness, unique: Callable[[str], str], command: Callable[..., CommandResult]
) -> None:
    shop = unique("shop")
    file = settings_file(harness, "unused")
    settings = yaml.safe_load(file.read_text())
    job = settings["jobs"]["orders"]
    del job["topic"]
    job |= {"topics": f"{shop}-(eu|us)", "table": "shop.{topic}"}
    file.write_text(yaml.safe_dump(settings))
    eu, _ = (harness.make_topic(f"{shop}-{place}", partitions=1) for place in ("eu", "euro"))
    harness.send(eu, values()[:5])
    first = command("run", "orders")
    us = harness.make_topic(f"{shop}-us", partitions=1)
    harness.send(us, values()[:3])

    second = command("run", "orders")

    assert (first.code, second.code) == (Exit.FINE, Exit.FINE)
    slug = shop.replace("-", "_")
    tables = {row.tableName for row in harness.session.sql("SHOW TABLES IN lake.shop").collect()}
    assert tables == {f"{slug}_{place}{rejected}" for place in ("eu", "us") for rejected in ("", "_rejected")}
    assert [len(harness.rows(f"shop.{slug}_{place}")) for place in ("eu", "us")] == [5, 3]


def test_reports_come_from_the_tables_of_platform_jobs(
    harness: PipelineHarness, command: Callable[..., CommandResult]
) -> None:
    settings_file(harness, "unused")
    bill = ("invoices", "out/june.csv", "--from", "2026-06-01", "--until", "2026-06-30")
    before = command(*bill)
    harness.session.sql("CREATE NAMESPACE lake.platform")
    days = [
        (*SERIES, date(2026, month, day), used) for month, day, used in ((6, 1, 7), (6, 30, 8), (7, 1, 9))
    ]
    weeks = [(date(2026, 6, 1), 3, 1500, 2000, 3000, 0.0, 0.0, 0.01)]
    for table, rows, ddl in (("usage_daily", days, DAILY), ("slo_fleet", weeks, FLEET)):
        harness.session.createDataFrame(rows, ddl).writeTo(f"lake.platform.{table}").create()

    billed, slo = command(*bill), command("slo", "--plot", "out/slo.html")

    assert before.error["code"] == "PEN-8016"
    assert billed.code == Exit.FINE
    lines = (harness.directory / "out" / "june.csv").read_text().splitlines()
    assert lines[1:] == ["lkc-1,pkc-1,requests,2026-06-01,2026-06-30,15"]
    assert [(week["week"], week["latency_median_ms"]) for week in slo.data] == [("2026-06-01", 1.5)]
    assert (harness.directory / "out" / "slo.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in (harness.directory / "out").iterdir()) == ["june.csv", "slo.html"]
