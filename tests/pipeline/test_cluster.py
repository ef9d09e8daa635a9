"""Jobs on a standalone Spark cluster give the same tables as on `local[*]`, killed or not."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.harness.fleet import wait_for
from tests.harness.processes import Processes
from tests.pipeline.operations import OPERATIONS, command, environment, run_beside
from tests.pipeline.spark_cluster import HOME, SparkCluster
from tests.pipeline.test_kill import RECORDS, settings_file, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.pipeline.settings import Engine
    from tests.pipeline.conftest import PipelineHarness

# Six more JVMs: too slow for every run.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]
RUN_SECONDS_MAX = 500.0
# Where each operation is half done: the driver stops there until the test watches its executors.
HALF_DONE = {
    "append": "pipeline.batch.started@2",
    "upsert": "pipeline.batch.started@2",
    "metering": "pipeline.derived.refresh-started@1",
    "slo": "pipeline.derived.refresh-started@1",
    "durability": "pipeline.batch.started@2",
    "rebuild": "pipeline.rebuild.folded@1",
    "backfill": "pipeline.backfill.written@1",
    "maintain": "pipeline.maintain.compacted@1",
}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with Processes() as processes:
        yield SparkCluster(tmp_path_factory.mktemp("standalone"), processes)


@pytest.fixture(scope="module")
def remote(standalone: SparkCluster) -> Engine:
    return standalone.start_all()


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_standalone_cluster_gives_the_same_tables(
    harness: PipelineHarness,
    unique: Callable[[str], str],
    standalone: SparkCluster,
    remote: Engine,
    operation: str,
) -> None:
    topic = harness.make_topic(unique(operation))
    clean = run_beside(operation, harness, topic)
    before = standalone.applications()

    ran = subprocess.run(
        command(operation, harness, topic, remote),
        env=environment(),
        cwd=harness.directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert standalone.applications() == [count + 1 for count in before]
    assert OPERATIONS[operation].result(harness, topic) == OPERATIONS[operation].result(clean, topic)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_killing_an_executor_during_a_task_changes_nothing(
    harness: PipelineHarness,
    unique: Callable[[str], str],
    standalone: SparkCluster,
    remote: Engine,
    operation: str,
) -> None:
    topic = harness.make_topic(unique(operation))
    clean = run_beside(operation, harness, topic)
    log = harness.directory / "output.log"
    with log.open("w") as out:
        child = standalone.processes.start(
            command(operation, harness, topic, remote),
            env=environment(PENSTOCK_FAULT=f"{HALF_DONE[operation]}!stop"),
            cwd=harness.directory,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    wait_for(lambda: is_stopped(child), what="the operation to be half done", seconds=RUN_SECONDS_MAX)

    standalone.processes.thaw(child.pid)
    standalone.kill_during_task(child, RUN_SECONDS_MAX)

    assert child.wait(RUN_SECONDS_MAX) == 0, log.read_text()[-3000:]
    assert OPERATIONS[operation].result(harness, topic) == OPERATIONS[operation].result(clean, topic)


def test_spark_submit_runs_a_job_on_a_standalone_master(
    harness: PipelineHarness, unique: Callable[[str], str], standalone: SparkCluster, remote: Engine
) -> None:
    """The command of the documentation, with the driver's settings in a file."""
    topic = harness.make_topic(unique("orders"))
    harness.send(topic, values())
    file = settings_file(harness, topic)
    submit = harness.directory / "submit"
    penstock = [sys.executable, "-m", "penstock", "pipeline"]
    home, here = environment(PENSTOCK_HOME=str(harness.directory / "home")), harness.directory
    fetch = [*penstock, "fetch", "--to", "submit"]
    subprocess.run(fetch, env=home, cwd=here, check=True, timeout=RUN_SECONDS_MAX)
    before = standalone.applications()

    options = [
        word
        for key in ("spark.executor.memory", "spark.executor.extraJavaOptions")
        for word in ("--conf", f"{key}={remote.conf[key]}")
    ]
    ran = subprocess.run(
        [
            str(HOME / "bin" / "spark-submit"), "--master", remote.master, "--driver-memory", "900m",
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", f"spark.pyspark.python={sys.executable}", *options,
            "--jars", ",".join(str(jar) for jar in sorted(submit.glob("*.jar"))),
            "--py-files", str(submit / "penstock.zip"),
            str(submit / "driver.py"), "pipeline", "run", "orders", "--settings", str(file),
        ],
        env=home, cwd=here, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout[-3000:]  # where spark-submit puts all that the driver prints
    assert standalone.applications() == [count + 1 for count in before]
    good = [n for n in range(RECORDS) if n % 50 != 7]
    assert sorted(n for (n,) in harness.rows("shop.orders", "id")) == good
    assert len(harness.rows("shop.orders_rejected")) == RECORDS - len(good)


def is_stopped(child: subprocess.Popen[bytes]) -> bool:
    assert child.poll() is None, "it ended before it was half done"
    return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
