"""`penstock pipeline` without Spark: what it lists, and the errors for wrong flags."""

from __future__ import annotations

import io
import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from penstock.cli.library import pipeline
from penstock.fleet.jars import CHECKSUM_FILE, jar_checksums
from penstock.kafka.admin import topics
from penstock.model.errors.pipeline import ConnectorsMissing
from penstock.pipeline.spark.connectors import CONNECTORS, connector_jars
from penstock.pipeline.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.command import CommandResult

SETTINGS = """
connection: {bootstrap: "127.0.0.1:1"}
jobs: {orders: {topic: orders, table: shop.orders, columns: {id: bigint}}}
"""
REBUILD = ("rebuild", "--application", "examples.payments.bank:BANK", "--topic", "accounts")


def test_jobs_are_listed_with_what_they_read_and_write(
    here: Callable[..., CommandResult], tmp_path: Path
) -> None:
    (tmp_path / "pipeline.yaml").write_text(SETTINGS)

    ran = here("pipeline", "list", "--settings", "pipeline.yaml", "-o", "json")

    rows = {row["job"]: row for row in ran.data}
    assert rows.keys() == {"metering", "slo", "audit", "durability", "orders"}
    assert rows["orders"]["table"] == "shop.orders"
    assert rows["metering"]["topic"] == "_penstock.usage"


def test_a_job_that_never_ran_is_shown_as_such(here: Callable[..., CommandResult]) -> None:
    ran = here("pipeline", "status", "-o", "json")

    assert {row["state"] for row in ran.data} == {"never"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "nothing"), "PEN-8003"),
        (("explain", "nothing"), "PEN-8003"),
        (("backfill", "nothing"), "PEN-8003"),
        (("explain", "orders"), "PEN-3010"),
        (("run", "orders", "--metrics", "nowhere"), "PEN-1002"),
        (("schedule", "--metrics", "127.0.0.1:99999"), "PEN-1002"),
        ((*REBUILD, "--state", "pipeline.yaml"), "PEN-1002"),
        ((*REBUILD, "--state", "pipeline.yaml/state/of/bank"), "PEN-1002"),
        ((*REBUILD, "--state", "."), "PEN-1002"),
        (("invoices", "june.doc", "--from", "2026-06-01", "--until", "2026-06-30"), "PEN-1002"),
    ],
)
def test_a_wrong_request_is_refused_before_spark_starts(
    here: Callable[..., CommandResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: str,
) -> None:
    (tmp_path / "pipeline.yaml").write_text(SETTINGS)
    # An unreachable broker is given up soon.
    monkeypatch.setattr(topics, "describe", partial(topics.describe, timeout=1.0))

    ran = here("pipeline", *words, "--settings", "pipeline.yaml", "-o", "json")

    assert ran.code != 0
    assert ran.error["code"] == code


def test_a_terminal_shows_a_bar_with_records_rate_and_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, color_system=None, width=120)
    monkeypatch.setattr(pipeline, "console", lambda **_: terminal)

    with pipeline._watching("orders") as observe:
        observe(JobStatus("orders", records=1500, batches=2, lag=4500))

    assert re.search(r"orders.*1500/6000 .*/s, lag 4,500", out.getvalue())


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Console(stderr=True, force_terminal=True)
    monkeypatch.setattr(pipeline, "console", lambda **_: terminal)

    with pipeline._watching("orders") as observe:
        observe(JobStatus("orders", records=1500, batches=2, lag=4500))

    assert capsys.readouterr().err == "orders: 1500 records, 2 batches, lag 4500\n"


def test_what_is_no_terminal_gets_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pipeline._watching("orders") as observe:
        observe(JobStatus("orders", records=1500, batches=2, lag=4500))

    assert capsys.readouterr().err == "orders: 1500 records, 2 batches, lag 4500\n"


def test_connectors_that_maven_cannot_get_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConnectorsMissing, match="Maven"):
        connector_jars(tmp_path / "cache")


def test_every_connector_is_pinned_by_its_whole_checksum() -> None:
    lock = jar_checksums(CONNECTORS.lock.read_text())

    assert CONNECTORS.lock != CHECKSUM_FILE
    assert len(lock) == 6
    assert all(len(bytes.fromhex(digest)) == 32 for digest in lock.values())
    assert f"spark-sql-kafka-0-10_2.13-{CONNECTORS.version}.jar" in lock
