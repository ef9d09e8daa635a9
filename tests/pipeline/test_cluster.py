"""The same jobs on `local[*]` and on a standalone master with two workers: the same tables, killed or not."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.ground.fleet import wait_for
from tests.ground.processes import Processes
from tests.pipeline.deeds import DEEDS, command, done_beside, environment
from tests.pipeline.standalone import Standalone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.pipeline.settings import Engine
    from tests.pipeline.conftest import Ground

# Six more JVMs: too long for every run, and longer still where others work as well.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]
RUN_SECONDS_MAX = 500.0
# Where each deed is half done: the driver waits there until the test looks for an executor at work.
HALF_DONE = {
    "append": "pipeline.batch.begun@2",
    "upsert": "pipeline.batch.begun@2",
    "metering": "pipeline.derive.begun@1",
    "slo": "pipeline.derive.begun@1",
    "audit": "pipeline.batch.begun@2",
    "rebuild": "pipeline.rebuild.folded@1",
    "backfill": "pipeline.backfill.put@1",
    "maintain": "pipeline.maintain.compacted@1",
}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Processes() as processes:
        yield Standalone(tmp_path_factory.mktemp("standalone"), processes)


@pytest.fixture(scope="module")
def away(standalone: Standalone) -> Engine:
    return standalone.start_all()


@pytest.mark.parametrize("deed", sorted(DEEDS))
def test_a_standalone_master_with_two_workers_makes_the_same_tables(
    ground: Ground, unique: Callable[[str], str], standalone: Standalone, away: Engine, deed: str
) -> None:
    topic = ground.make_topic(unique(deed))
    clean = done_beside(deed, ground, topic)
    before = standalone.applications()

    ran = subprocess.run(
        command(deed, ground, topic, away),
        env=environment(),
        cwd=ground.directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert standalone.applications() == [count + 1 for count in before]
    assert DEEDS[deed].left(ground, topic) == DEEDS[deed].left(clean, topic)


@pytest.mark.parametrize("deed", sorted(DEEDS))
def test_an_executor_that_is_killed_in_the_middle_of_a_task_changes_nothing(
    ground: Ground, unique: Callable[[str], str], standalone: Standalone, away: Engine, deed: str
) -> None:
    topic = ground.make_topic(unique(deed))
    clean = done_beside(deed, ground, topic)
    log = ground.directory / "said.log"
    with log.open("w") as out:
        child = standalone.processes.start(
            command(deed, ground, topic, away),
            env=environment(PENSTOCK_FAULT=f"{HALF_DONE[deed]}!stop"),
            cwd=ground.directory,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    wait_for(lambda: stands_still(child), what="the deed to be half done", seconds=RUN_SECONDS_MAX)

    standalone.processes.thaw(child.pid)
    standalone.kill_at_work(child, RUN_SECONDS_MAX)

    assert child.wait(RUN_SECONDS_MAX) == 0, log.read_text()[-3000:]
    assert DEEDS[deed].left(ground, topic) == DEEDS[deed].left(clean, topic)


def stands_still(child: subprocess.Popen[bytes]) -> bool:
    assert child.poll() is None, "it ended before it was half done"
    return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
