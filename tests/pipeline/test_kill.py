"""Killed at every named point; run again: the table equals that of a clean run, row for row."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from penstock.model import faults
from penstock.pipeline.jobs import find_job
from penstock.pipeline.settings import read_settings
from penstock.pipeline.status import job_files
from tests.ground.command import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ground.processes import Processes
    from tests.pipeline.conftest import Ground

pytestmark = pytest.mark.spark
RECORDS = 200


def settings_file(ground: Ground, topic: str) -> Path:
    """A pipeline that anybody can run by the command."""
    config = ground.client
    (ground.directory / "secret").write_text(config["sasl.password"])
    path = ground.directory / "pipeline.yaml"
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


def test_a_driver_killed_between_table_and_checkpoint_neither_loses_nor_doubles_a_row(
    ground: Ground, unique: Callable[[str], str], processes: Processes
) -> None:
    topic = ground.make_topic(unique("orders"))
    ground.send(topic, values())
    file = settings_file(ground, topic)
    point = "pipeline.table.committed"
    assert point in faults.points("pipeline")
    child = processes.start(
        [sys.executable, "-m", "penstock", "pipeline", "run", "orders", "--settings", str(file)],
        env=clean_environment(
            {"PENSTOCK_FAULT": f"{point}@2", "PENSTOCK_HOME": str(ground.directory / "home")}
        ),
        cwd=ground.directory,
    )
    assert child.wait(240) == -signal.SIGKILL
    settings = read_settings(file, ground.directory)

    outcome = ground.run(find_job(settings, "orders"))

    assert outcome.repeated == 1
    good = [n for n in range(RECORDS) if n % 50 != 7]
    assert sorted(n for (n,) in ground.rows("shop.orders", "id")) == good
    assert len(set(ground.rows("shop.orders", "kafka_partition", "kafka_offset"))) == len(good)
    assert [bytes(v) for (v,) in ground.rows("shop.orders_rejected", "kafka_value")] == [b"broken"] * 4


@pytest.mark.parametrize(
    ("point", "lost"),
    [
        ("pipeline.batch.begun", False),
        ("pipeline.rejected.committed", False),
        ("pipeline.table.committed", True),
    ],
    ids=["nothing is written", "all is written", "rejected records are not listed, the checkpoint is lost"],
)
def test_a_run_that_fails_at_a_point_is_made_good_by_the_next(
    ground: Ground, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, point: str, lost: bool
) -> None:
    """The same points without a process to kill: what was done up to there is all that the next run finds."""
    from penstock.pipeline import batch

    topic = ground.make_topic(unique("orders"))
    ground.send(topic, values())
    job = find_job(read_settings(settings_file(ground, topic), ground.directory), "orders")
    arrivals: list[str] = []

    def strike(reached: str) -> None:
        arrivals.append(reached)
        if arrivals.count(point) == 2 and reached == point:
            raise RuntimeError("struck")

    with monkeypatch.context() as patched:
        patched.setattr(batch, "faults", type("Faults", (), {"reach": staticmethod(strike)}))
        with pytest.raises(RuntimeError, match="struck"):
            ground.run(job)
    if lost:
        shutil.rmtree(job_files(ground.settings.state, "orders").checkpoint)

    ground.run(job)

    good = [n for n in range(RECORDS) if n % 50 != 7]
    assert sorted(n for (n,) in ground.rows("shop.orders", "id")) == good
    assert len(ground.rows("shop.orders_rejected", "kafka_offset")) == 4
