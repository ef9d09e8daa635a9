"""`penstock pipeline run --live`, as a user meets it: in a process apart."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from penstock.pipeline.status import State, job_files, read_status
from tests.ground.command import clean_environment
from tests.ground.fleet import wait_for
from tests.pipeline.test_kill import settings_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.pipeline.status import JobStatus
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
