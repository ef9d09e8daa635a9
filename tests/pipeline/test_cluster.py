"""The same job on `local[*]` and on a standalone master with two workers: the same table."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
import yaml

from penstock.pipeline.jobs import find_job
from penstock.pipeline.settings import read_settings
from tests.ground.command import clean_environment
from tests.ground.fleet import wait_for
from tests.pipeline.test_kill import RECORDS, settings_file, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.processes import Processes
    from tests.pipeline.conftest import Ground

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # five more JVMs: too long for every run
HOME = Path(pyspark.__file__).parent
LOGGING = "daemons.properties"
# Who leads and who has registered is said at a level that daemons do not speak at by themselves.
TALKATIVE = """
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n
"""


def started(processes: Processes, directory: Path, name: str, *words: str) -> Path:
    """A daemon of Spark's, with its words in a file."""
    log = directory / f"{name}.log"
    environment = clean_environment(
        {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(directory / name),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={directory / LOGGING}",
        }
    )
    command = [str(HOME / "bin" / "spark-class"), *words]  # which becomes the daemon itself
    with log.open("w") as out:
        processes.start(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=directory)
    return log


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_a_standalone_master_with_two_workers_makes_the_same_table(
    ground: Ground, unique: Callable[[str], str], processes: Processes
) -> None:
    topic = ground.make_topic(unique("orders"))
    ground.send(topic, values())
    file = settings_file(ground, topic)
    job = find_job(read_settings(file, ground.directory), "orders")
    ground.run(job)
    local = ground.rows("shop.orders"), ground.rows("shop.orders_rejected")
    (ground.directory / LOGGING).write_text(TALKATIVE)
    port = free_port()
    package = "org.apache.spark.deploy"
    master = started(
        processes, ground.directory, "master", f"{package}.master.Master", "--host", "127.0.0.1",
        "--port", str(port), "--webui-port", "0",
    )  # fmt: skip
    wait_for(lambda: "I have been elected leader" in master.read_text(), what="the master", seconds=100)
    for name in ("w1", "w2"):
        started(
            processes, ground.directory, name, f"{package}.worker.Worker", "--cores", "1", "--memory", "700m",
            "--host", "127.0.0.1", "--webui-port", "0", f"spark://127.0.0.1:{port}",
        )  # fmt: skip
    wait_for(lambda: master.read_text().count("Registering worker") == 2, what="both workers", seconds=100)
    other = yaml.safe_load(file.read_text())
    other["lake"], other["state"] = {"warehouse": "lake-2"}, "state-2"
    other["spark"]["conf"]["spark.executor.memory"] = "500m"
    (ground.directory / "other.yaml").write_text(yaml.safe_dump(other))
    words = ["pipeline", "run", "orders", "--settings", "other.yaml", "--master", f"spark://127.0.0.1:{port}"]

    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        env=clean_environment({"PENSTOCK_HOME": str(ground.directory / "home")})
        | {"PATH": os.environ["PATH"]},
        cwd=ground.directory,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert f" {RECORDS} " in done.stdout
    lake = str(ground.directory / "lake-2")
    elsewhere = type(ground)(ground.directory, ground.connection, ground.client, ground.engine)
    elsewhere.warehouse = lake
    assert (elsewhere.rows("shop.orders"), elsewhere.rows("shop.orders_rejected")) == local
