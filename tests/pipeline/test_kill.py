"""A driver killed at a fault point and run again leaves the table of an undisturbed run."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from penstock.model import fault_points
from penstock.pipeline.jobs import find_job
from penstock.pipeline.settings import read_settings
from penstock.pipeline.status import job_files
from tests.harness.command import clean_environment
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.processes import Processes
    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark
RECORDS = 200


def settings_file(harness: PipelineHarness, topic: str) -> Path:
    """Settings with which the command can run the pipeline."""
    config = harness.client
    (harness.directory / "secret").write_text(config["sasl.password"])
    path = harness.directory / "pipeline.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "connection": {
                    "bootstrap": config["bootstrap.servers"],
                    "user": config["sasl.username"],
                    "password_file": "secret",
                    "mechanism": config["sasl.mechanism"],
                },
                "lake": {"warehouse": "lake"},
                "state": "state",
                "spark": {
                    "master": "local[2]",
                    "memory_mb": 900,
                    "conf": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
                },
                "jobs": {
                    "orders": {
                        "topic": topic,
                        "table": "shop.orders",
                        "columns": {"id": "bigint", "note": "string"},
                        "batch": 120,
                        "every_seconds": 60,
                    }
                },
            }
        )
    )
    return path


def values() -> list[bytes | None]:
    return [
        b"broken" if n % 50 == 7 else json.dumps({"id": n, "note": f"n{n}"}).encode() for n in range(RECORDS)
    ]


def test_a_driver_killed_between_table_and_checkpoint_neither_loses_nor_duplicates_a_row(
    harness: PipelineHarness, unique: Callable[[str], str], processes: Processes
) -> None:
    topic = harness.make_topic(unique("orders"))
    harness.send(topic, values())
    file = settings_file(harness, topic)
    point = "pipeline.table.committed"
    assert point in fault_points.points("pipeline")
    child = processes.start(
        [sys.executable, "-m", "penstock", "pipeline", "run", "orders", "--settings", str(file)],
        env=clean_environment(
            {"PENSTOCK_FAULT": f"{point}@2", "PENSTOCK_HOME": str(harness.directory / "home")}
        ),
        cwd=harness.directory,
    )
    assert child.wait(240) == -signal.SIGKILL
    settings = read_settings(file, harness.directory)

    outcome = harness.run(find_job(settings, "orders"))

    assert outcome.repeated == 1
    good = [n for n in range(RECORDS) if n % 50 != 7]
    assert sorted(n for (n,) in harness.rows("shop.orders", "id")) == good
    assert len(set(harness.rows("shop.orders", "kafka_partition", "kafka_offset"))) == len(good)
    assert [bytes(v) for (v,) in harness.rows("shop.orders_rejected", "kafka_value")] == [b"broken"] * 4


def test_rejected_records_that_a_crash_left_out_are_written_even_without_the_checkpoint(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("orders"))
    harness.send(topic, values())
    job = find_job(read_settings(settings_file(harness, topic), harness.directory), "orders")
    with interrupted("pipeline.table.committed", 2):
        harness.run(job)
    shutil.rmtree(job_files(harness.settings.state, "orders").checkpoint)

    harness.run(job)

    good = [n for n in range(RECORDS) if n % 50 != 7]
    assert sorted(n for (n,) in harness.rows("shop.orders", "id")) == good
    assert len(harness.rows("shop.orders_rejected", "kafka_offset")) == 4
