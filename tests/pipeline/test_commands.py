"""`penstock pipeline`, as a user meets it: in a process apart, that is asked to end or loses its ground."""

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
from tests.ground.command import ROOT, clean_environment
from tests.ground.fleet import wait_for
from tests.pipeline.test_kill import settings_file
from tests.pipeline.test_rebuild import requests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.pipeline.status import JobStatus
    from tests.ground.disk import FaultyDisk
    from tests.ground.processes import Processes
    from tests.pipeline.conftest import Ground

# Each begins with a Spark of its own: too long for every run.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]
SECONDS_MAX = 400.0


def orders(first: int, count: int) -> list[bytes]:
    return [json.dumps({"id": n, "note": "x"}).encode() for n in range(first, first + count)]


class Pipeline:
    """The command on a topic of orders, with its words in a file."""

    def __init__(self, ground: Ground, processes: Processes, topic: str) -> None:
        self.ground, self.processes = ground, processes
        self.file = settings_file(ground, topic)
        self.log = ground.directory / "said.log"

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.log.open("w") as out:
            return self.processes.start(
                [sys.executable, "-m", "penstock", "pipeline", *words, "--settings", str(self.file)],
                env=clean_environment({"PENSTOCK_HOME": str(self.ground.directory / "home"), **environment}),
                cwd=self.ground.directory,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def status(self, job: str = "orders") -> JobStatus:
        return read_status(job_files(self.ground.settings.state, job), job)

    def wait(self, child: subprocess.Popen[bytes], what: str, holds: Callable[[], bool]) -> None:
        def held() -> bool:
            assert child.poll() is None, self.log.read_text()[-3000:]
            return holds()

        wait_for(held, what=what, seconds=SECONDS_MAX)

    def wait_at(self, point: str, child: subprocess.Popen[bytes]) -> None:
        """Until it stands still at the point that it was started with."""
        process = psutil.Process(child.pid)
        self.wait(child, point, lambda: process.status() == psutil.STATUS_STOPPED)

    def run(self) -> None:
        """The job, once more, in this process."""
        self.ground.run(find_job(read_settings(self.file, self.ground.directory), "orders"))

    def ids(self) -> list[int]:
        return sorted(n for (n,) in self.ground.rows("shop.orders", "id"))


@pytest.fixture
def pipeline(ground: Ground, processes: Processes, unique: Callable[[str], str]) -> Pipeline:
    topic = ground.make_topic(unique("orders"))
    made = Pipeline(ground, processes, topic)
    ground.send(topic, orders(0, 100))
    return made


def topic_of(pipeline: Pipeline) -> str:
    return str(yaml.safe_load(pipeline.file.read_text())["jobs"]["orders"]["topic"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_live_job_goes_on_with_what_comes_and_ends_well_when_it_is_asked_to(
    pipeline: Pipeline, number: signal.Signals
) -> None:
    child = pipeline.start("run", "orders", "--live")
    pipeline.wait(child, "what was there", lambda: pipeline.status().rows == 100)
    pipeline.ground.send(topic_of(pipeline), orders(100, 50))
    pipeline.wait(child, "what came", lambda: pipeline.status().rows == 150)
    pipeline.wait(child, "to be level", lambda: pipeline.status().behind == 0)
    assert pipeline.status().state is State.RUNNING

    child.send_signal(number)

    assert child.wait(SECONDS_MAX) == 0, pipeline.log.read_text()[-3000:]
    said = pipeline.log.read_text()
    assert "orders: 150 records" in said
    assert "Traceback" not in said
    assert (pipeline.status().state, pipeline.status().rows) == (State.IDLE, 150)
    assert pipeline.ids() == list(range(150))


COMMANDS = {
    "run": (("run", "orders"), "pipeline.batch.begun@2"),
    "schedule": (("schedule",), "pipeline.batch.begun@2"),
    "backfill": (("backfill", "orders"), "pipeline.backfill.put@1"),
    "maintain": (("maintain", "shop.orders"), "pipeline.maintain.compacted@1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_java_is_killed_says_so_and_the_next_run_makes_it_good(
    pipeline: Pipeline, processes: Processes, command: str
) -> None:
    words, point = COMMANDS[command]
    if command in ("backfill", "maintain"):
        pipeline.run()
    pipeline.ground.send(topic_of(pipeline), orders(100, 200))
    child = pipeline.start(*words, PENSTOCK_FAULT=f"{point}!stop")
    pipeline.wait_at(point, child)
    (java,) = (each for each in psutil.Process(child.pid).children() if each.name() == "java")

    processes.kill(java.pid)
    processes.thaw(child.pid)

    assert child.wait(SECONDS_MAX) == Exit.FAILED, pipeline.log.read_text()[-3000:]
    said = pipeline.log.read_text()
    assert "Traceback" not in said
    assert "its Java process has ended, with status -9 (PEN-8002)" in said
    pipeline.run()
    assert pipeline.ids() == list(range(300))


@pytest.mark.parametrize("place", ["lake", "state"])
def test_a_full_disk_is_named_and_with_room_again_nothing_is_missing(
    pipeline: Pipeline,
    processes: Processes,
    make_disk: Callable[[Path], FaultyDisk],
    place: str,
) -> None:
    pipeline.ground.send(topic_of(pipeline), orders(100, 200))
    disk = make_disk(pipeline.ground.directory / place)
    point = "pipeline.batch.begun@2"
    child = pipeline.start("run", "orders", PENSTOCK_FAULT=f"{point}!stop", **disk.environment())
    pipeline.wait_at(point, child)

    disk.full()
    processes.thaw(child.pid)

    assert child.wait(SECONDS_MAX) == Exit.UNHEALTHY, pipeline.log.read_text()[-3000:]
    said = pipeline.log.read_text()
    assert disk.hits
    assert "\nTraceback" not in said  # Spark quotes one in its own lines
    assert "(PEN-8018)" in said
    disk.heal()
    pipeline.run()
    assert pipeline.ids() == list(range(300))


def test_a_log_is_folded_by_the_command_into_the_state_that_a_replay_gives(
    pipeline: Pipeline, unique: Callable[[str], str]
) -> None:
    ground, codec = pipeline.ground, JsonCodec()
    topic = ground.make_topic(unique("accounts"), partitions=2)
    events = requests(random.Random(11), 200)
    ground.send(topic, [codec.encode(each) for _, each in events], keys=[key for key, _ in events])
    state = ground.directory / "executors"
    words = ("rebuild", "--application", "examples.payments.bank:BANK", "--topic", topic)
    words += ("--log", "accounts", "--state", str(state))

    child = pipeline.start(*words, PYTHONPATH=str(ROOT))

    assert child.wait(SECONDS_MAX) == Exit.FINE, pipeline.log.read_text()[-3000:]
    log = open_log(ground.client, topic, name="accounts")
    expected, stores = replay(BANK, log).digests(), SqliteStores(state)
    for partition in range(2):
        store = stores.open(BANK, log.topic_id, partition)
        assert digest(store, BANK) == expected[partition]
        store.close()

    again = pipeline.start(*words, PYTHONPATH=str(ROOT))

    assert again.wait(SECONDS_MAX) == Exit.USAGE
    assert "expected a new directory" in pipeline.log.read_text()
