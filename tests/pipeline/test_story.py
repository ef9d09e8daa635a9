"""The commands, one after another, as somebody uses them: on the Spark of this process."""

from __future__ import annotations

import shutil
from datetime import date
from typing import TYPE_CHECKING

import pytest
import structlog

from penstock.cli.app import run
from penstock.model.errors import Exit
from tests.ground.command import Ran
from tests.pipeline.test_kill import RECORDS, settings_file, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.pipeline.conftest import Ground

pytestmark = pytest.mark.spark
PLACE = ("lkc-1", "pkc-1", "requests")
DAILY = "tenant string, cluster string, dimension string, day date, used bigint"
FLEET = (
    "week date, clusters bigint, latency_median_us bigint, latency_p90_us bigint, latency_p99_us bigint, "
    "unavailable_median double, unavailable_p90 double, unavailable_p99 double"
)


@pytest.fixture
def command(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ran]]:
    """`penstock pipeline …` with the ground's settings, asked for JSON."""
    monkeypatch.chdir(ground.directory)

    def carried_out(*words: str) -> Ran:
        capsys.readouterr()
        code = run(["pipeline", *words, "--settings", "pipeline.yaml", "-o", "json"])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    yield carried_out
    structlog.reset_defaults()


def test_a_job_is_run_watched_explained_read_again_and_kept(
    ground: Ground, unique: Callable[[str], str], command: Callable[..., Ran]
) -> None:
    topic = ground.make_topic(unique("orders"))
    settings_file(ground, topic)
    ground.send(topic, values())

    ran = command("run", "orders")
    ground.send(topic, values()[:3])
    (shown,) = (row for row in command("status").data if row["job"] == "orders")
    explained = command("explain", "orders").data
    filled = command("backfill", "orders").data
    kept = command("maintain", "shop.orders").data
    shutil.rmtree(ground.directory / "state" / "orders" / "checkpoint")
    lost = command("explain", "orders").data

    assert (ran.code, ran.data["records"], ran.data["rejected"]) == (Exit.FINE, RECORDS, 4)
    assert f"orders: {RECORDS} records" in ran.err
    assert (shown["state"], shown["rows"], shown["behind"]) == ("idle", RECORDS, 0)
    assert (explained["next batch"], explained["behind"]) == (ran.data["batches"], 3)
    assert explained["lag is shown by"] == "group penstock-pipeline-orders"
    assert lost["begins at"] == f"{explained['begins at']}, or later: where shop.orders stands"
    assert (filled["records"], filled["rejected"]) == (RECORDS, 4)  # what the job has not read is not its own
    assert kept["files_after"] <= kept["files_before"]
    assert command("run", "orders").data["records"] == 3
    assert len(ground.rows("shop.orders")) == RECORDS - 4 + 3


def test_reports_are_made_of_what_the_platform_s_jobs_left(
    ground: Ground, command: Callable[..., Ran]
) -> None:
    settings_file(ground, "unused")
    bill = ("invoices", "out/june.csv", "--from", "2026-06-01", "--until", "2026-06-30")
    before = command(*bill)
    ground.session.sql("CREATE NAMESPACE lake.platform")
    days = [(*PLACE, date(2026, month, day), used) for month, day, used in ((6, 1, 7), (6, 30, 8), (7, 1, 9))]
    weeks = [(date(2026, 6, 1), 3, 1500, 2000, 3000, 0.0, 0.0, 0.01)]
    for table, rows, ddl in (("usage_daily", days, DAILY), ("slo_fleet", weeks, FLEET)):
        ground.session.createDataFrame(rows, ddl).writeTo(f"lake.platform.{table}").create()

    billed, slo = command(*bill), command("slo", "--plot", "out/slo.html")

    assert before.error["code"] == "PEN-8016"
    assert billed.code == Exit.FINE
    lines = (ground.directory / "out" / "june.csv").read_text().splitlines()
    assert lines[1:] == ["lkc-1,pkc-1,requests,2026-06-01,2026-06-30,15"]
    assert [(week["week"], week["latency_median_ms"]) for week in slo.data] == [("2026-06-01", 1.5)]
    assert (ground.directory / "out" / "slo.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in (ground.directory / "out").iterdir()) == ["june.csv", "slo.html"]
