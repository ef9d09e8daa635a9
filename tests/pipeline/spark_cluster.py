"""A standalone Spark cluster: a master with two single-core workers, and the tasks of their executors."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

from tests.harness.command import clean_environment
from tests.harness.fleet import wait_for
from tests.pipeline.conftest import ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.pipeline.settings import Engine
    from tests.harness.processes import Processes

START_SECONDS_MAX = 300.0
HOME = Path(pyspark.__file__).parent
WORKERS = ("w1", "w2")
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
LAYOUT = """
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n
"""
# Elections and registrations are logged at INFO, which daemons do not log by default.
DAEMONS = f"rootLogger.level = info\nappender.out.type = Console\n{LAYOUT}"
# So are the start and end of a task. Each executor has a separate directory.
TASKS = "tasks.log"
EXECUTORS = f"""
rootLogger.level = warn
logger.tasks.name = org.apache.spark.executor.Executor
logger.tasks.level = info
appender.out.type = File
appender.out.fileName = {TASKS}
{LAYOUT}
"""


@dataclass(frozen=True)
class Executor:
    """A process that runs tasks of one application."""

    pid: int
    directory: Path

    def running_tasks(self) -> set[str]:
        """Tasks that it has started and not finished."""
        log = self.directory / TASKS
        text = log.read_text() if log.exists() else ""
        started, finished = (
            set(re.findall(rf"{what} task \S+ in stage \S+ \(TID (\d+)\)", text))
            for what in ("Running", "Finished")
        )
        return started - finished


@dataclass(frozen=True)
class SparkCluster:
    """Its executors have only the shipped archive, no source tree."""

    directory: Path
    processes: Processes
    workers: list[int] = field(default_factory=list)  # processes

    def start(self, name: str, daemon: str, *words: str) -> tuple[int, Path]:
        """Starts a Spark daemon; returns its process id and log file."""
        log = self.directory / f"{name}.log"
        environment = clean_environment(
            {
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_WORKER_DIR": str(self.directory / name),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} {self._logging('daemons', DAEMONS)}",
            }
        )
        del environment["PYTHONPATH"]
        spark = [
            str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}", "--host", "127.0.0.1",
            "--webui-port", "0", *words,
        ]  # fmt: skip
        with log.open("w") as out:  # the script becomes the daemon itself
            child = self.processes.start(
                spark, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=self.directory
            )
        return child.pid, log

    def start_all(self) -> Engine:
        """Starts master and workers; returns once both workers have registered."""
        _, master = self.start("master", "master.Master", "--port", "0")
        wait_for(lambda: "elected leader" in master.read_text(), what="the master", seconds=START_SECONDS_MAX)
        address = re.search(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)\n", master.read_text())
        assert address is not None
        for name in WORKERS:
            pid, _ = self.start(name, "worker.Worker", "--cores", "1", "--memory", "700m", address[1])
            self.workers.append(pid)
        wait_for(
            lambda: master.read_text().count("Registering worker") == len(WORKERS),
            what="both workers",
            seconds=START_SECONDS_MAX,
        )
        java = f"{QUICK_START} {self._logging('executors', EXECUTORS)}"
        more = {"spark.executor.memory": "500m", "spark.executor.extraJavaOptions": java}
        return replace(ENGINE, master=address[1], conf={**ENGINE.conf, **more})

    def applications(self) -> list[int]:
        """How many applications each worker has served."""
        return [len(list((self.directory / worker).iterdir())) for worker in WORKERS]

    def executors(self) -> Iterator[Executor]:
        for worker in self.workers:
            for child in psutil.Process(worker).children():
                try:
                    if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                        yield Executor(child.pid, Path(child.cwd()))
                except psutil.Error:
                    continue  # it exited meanwhile

    def kill_during_task(self, child: subprocess.Popen[bytes], seconds: float) -> Executor:
        """Kills an executor in the middle of a task that starts from now on, while `child` runs.

        The executor is frozen first, which makes certain that the task has not ended.
        """
        before = {each.directory: each.running_tasks() for each in self.executors()}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert child.poll() is None, "it ended before any executor was seen running a task"
            for each in self.executors():
                old = before.get(each.directory, set())
                if not each.running_tasks() - old:
                    continue
                self.processes.freeze(each.pid)
                if each.running_tasks() - old:
                    self.processes.kill(each.pid)
                    return each
                self.processes.thaw(each.pid)
            time.sleep(0.01)
        raise AssertionError(f"no executor was seen running a task in {seconds:.0f} s")

    def _logging(self, name: str, text: str) -> str:
        path = self.directory / f"{name}.properties"
        path.write_text(text)
        return f"-Dlog4j2.configurationFile={path}"
