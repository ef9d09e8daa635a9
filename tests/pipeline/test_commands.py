"""`penstock pipeline` in a separate process that is stopped, loses its JVM, or runs out of disk space."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml

from examples.payments.bank import BANK
from penstock.model.errors import Exit
from penstock.olep.codec import JsonCodec
from penstock.olep.log import open_log
from penstock.olep.replay import replay
from penstock.olep.store import digest
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline.jobs import find_job
from penstock.pipeline.settings import read_settings
from penstock.pipeline.status import State, job_files, read_status
from tests.harness.command import ROOT, clean_environment
from tests.harness.fleet import wait_for
from tests.pipeline.test_kill import settings_file
from tests.pipeline.test_olep_rebuild import requests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.pipeline.status import JobStatus
    from tests.harness.disk import FaultyDisk
    from tests.harness.processes import Processes
    from tests.pipeline.conftest import PipelineHarness

# Each starts a separate Spark: too slow for every run.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]
SECONDS_MAX = 400.0


def orders(first: int, count: int) -> list[bytes]:
    return [json.dumps({"id": n, "note": "x"}).encode() for n in range(first, first + count)]


class Pipeline:
    """The command on a topic of orders, with its output in a file."""

    def __init__(self, harness: PipelineHarness, processes: Processes, topic: str) -> None:
        self.harness, self.processes = harness, processes
        self.file = settings_file(harness, topic)
        self.log = harness.directory / "output.log"

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.log.open("w") as out:
            return self.processes.start(
                [sys.executable, "-m", "penstock", "pipeline", *words, "--settings", str(self.file)],
                env=clean_environment({"PENSTOCK_HOME": str(self.harness.directory / "home"), **environment}),
                cwd=self.harness.directory,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def status(self, job: str = "orders") -> JobStatus:
        return read_status(job_files(self.harness.settings.state, job), job)

    def wait(self, child: subprocess.Popen[bytes], what: str, holds: Callable[[], bool]) -> None:
        def held() -> bool:
            assert child.poll() is None, self.log.read_text()[-3000:]
            return holds()

        wait_for(held, what=what, seconds=SECONDS_MAX)

    def wait_at(self, point: str, child: subprocess.Popen[bytes]) -> None:
        """Waits until it is stopped at its fault point."""
        process = psutil.Process(child.pid)
        self.wait(child, point, lambda: process.status() == psutil.STATUS_STOPPED)

    def run(self) -> None:
        """Runs the job again, in this process."""
        self.harness.run(find_job(read_settings(self.file, self.harness.directory), "orders"))

    def ids(self) -> list[int]:
        return sorted(n for (n,) in self.harness.rows("shop.orders", "id"))


@pytest.fixture
def pipeline(harness: PipelineHarness, processes: Processes, unique: Callable[[str], str]) -> Pipeline:
    topic = harness.make_topic(unique("orders"))
    pipeline = Pipeline(harness, processes, topic)
    harness.send(topic, orders(0, 100))
    return pipeline


def topic_of(pipeline: Pipeline) -> str:
    return str(yaml.safe_load(pipeline.file.read_text())["jobs"]["orders"]["topic"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_live_job_reads_new_records_until_it_is_stopped(pipeline: Pipeline, number: signal.Signals) -> None:
    child = pipeline.start("run", "orders", "--live")
    pipeline.wait(child, "the existing records", lambda: pipeline.status().records == 100)
    pipeline.harness.send(topic_of(pipeline), orders(100, 50))
    pipeline.wait(child, "the new records", lambda: pipeline.status().records == 150)
    pipeline.wait(child, "no lag", lambda: pipeline.status().lag == 0)
    assert pipeline.status().state is State.RUNNING

    child.send_signal(number)

    assert child.wait(SECONDS_MAX) == 0, pipeline.log.read_text()[-3000:]
    output = pipeline.log.read_text()
    assert "orders: 150 records" in output
    assert "Traceback" not in output
    assert (pipeline.status().state, pipeline.status().records) == (State.IDLE, 150)
    assert pipeline.ids() == list(range(150))


COMMANDS = {
    "run": (("run", "orders"), "pipeline.batch.started@2"),
    "schedule": (("schedule",), "pipeline.batch.started@2"),
    "backfill": (("backfill", "orders"), "pipeline.backfill.written@1"),
    "maintain": (("maintain", "shop.orders"), "pipeline.maintain.compacted@1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_jvm_is_reported_and_the_next_run_recovers(
    pipeline: Pipeline, processes: Processes, command: str
) -> None:
    words, point = COMMANDS[command]
    if command in ("backfill", "maintain"):
        pipeline.run()
    pipeline.harness.send(topic_of(pipeline), orders(100, 200))
    child = pipeline.start(*words, PENSTOCK_FAULT=f"{point}!stop")
    pipeline.wait_at(point, child)
    (java,) = (each for each in psutil.Process(child.pid).children() if each.name() == "java")

    processes.kill(java.pid)
    processes.thaw(child.pid)

    assert child.wait(SECONDS_MAX) == Exit.FAILED, pipeline.log.read_text()[-3000:]
    output = pipeline.log.read_text()
    assert "Traceback" not in output
    assert "its Java process exited with status -9 (PEN-8002)" in output
    pipeline.run()
    assert pipeline.ids() == list(range(300))


@pytest.mark.parametrize("place", ["lake", "state"])
def test_a_full_disk_is_reported_and_nothing_is_missing_once_space_is_freed(
    pipeline: Pipeline,
    processes: Processes,
    make_disk: Callable[[Path], FaultyDisk],
    place: str,
) -> None:
    pipeline.harness.send(topic_of(pipeline), orders(100, 200))
    disk = make_disk(pipeline.harness.directory / place)
    point = "pipeline.batch.started@2"
    child = pipeline.start("run", "orders", PENSTOCK_FAULT=f"{point}!stop", **disk.environment())
    pipeline.wait_at(point, child)

    disk.full()
    processes.thaw(child.pid)

    assert child.wait(SECONDS_MAX) == Exit.UNHEALTHY, pipeline.log.read_text()[-3000:]
    output = pipeline.log.read_text()
    assert disk.hits
    assert "\nTraceback" not in output  # Spark's own lines quote one
    assert "(PEN-8018)" in output
    disk.heal()
    pipeline.run()
    assert pipeline.ids() == list(range(300))


def test_rebuild_gives_the_state_of_a_replay(pipeline: Pipeline, unique: Callable[[str], str]) -> None:
    harness, codec = pipeline.harness, JsonCodec()
    topic = harness.make_topic(unique("accounts"), partitions=2)
    events = requests(random.Random(11), 200)
    harness.send(topic, [codec.encode(each) for _, each in events], keys=[key for key, _ in events])
    state = harness.directory / "executors"
    words: tuple[str, ...] = ("rebuild", "--application", "examples.payments.bank:BANK", "--topic", topic)
    words += ("--log", "accounts", "--state", str(state))

    child = pipeline.start(*words, PYTHONPATH=str(ROOT))

    assert child.wait(SECONDS_MAX) == Exit.FINE, pipeline.log.read_text()[-3000:]
    log = open_log(harness.client, topic, name="accounts")
    expected, stores = replay(BANK, log).digests(), SqliteStores(state)
    for partition in range(2):
        store = stores.open(BANK, log.topic_id, partition)
        assert digest(store, BANK) == expected[partition]
        store.close()

    again = pipeline.start(*words, PYTHONPATH=str(ROOT))

    assert again.wait(SECONDS_MAX) == Exit.USAGE
    assert "expected a new directory" in pipeline.log.read_text()
