"""The same jobs on `local[*]` and on a standalone master with two workers: the same tables."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.ground.command import ROOT, clean_environment
from tests.ground.fleet import wait_for
from tests.ground.processes import Processes
from tests.pipeline.conftest import ENGINE, Ground
from tests.pipeline.deeds import DEEDS, command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.pipeline.settings import Engine

# Six more JVMs: too long for every run, and longer still where others work as well.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]
START_SECONDS_MAX = 300.0
RUN_SECONDS_MAX = 500.0
HOME = Path(pyspark.__file__).parent
WORKERS = ("w1", "w2")
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
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


@dataclass(frozen=True)
class Standalone:
    """A master with two workers of one core each. Executors have the archive alone, no source tree."""

    directory: Path
    processes: Processes

    def start(self, name: str, daemon: str, *words: str) -> Path:
        """A daemon of Spark's; where its words are."""
        log = self.directory / f"{name}.log"
        logging = f"-Dlog4j2.configurationFile={self.directory / LOGGING}"
        environment = clean_environment(
            {
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_WORKER_DIR": str(self.directory / name),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} {logging}",
            }
        )
        del environment["PYTHONPATH"]
        spark = [
            str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}", "--host", "127.0.0.1",
            "--webui-port", "0", *words,
        ]  # fmt: skip
        with log.open("w") as out:  # the script becomes the daemon itself
            self.processes.start(
                spark, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=self.directory
            )
        return log

    def start_all(self) -> Engine:
        """Returns once both workers are there."""
        (self.directory / LOGGING).write_text(TALKATIVE)
        master = self.start("master", "master.Master", "--port", "0")
        wait_for(lambda: "elected leader" in master.read_text(), what="the master", seconds=START_SECONDS_MAX)
        found = re.search(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)\n", master.read_text())
        assert found is not None
        for name in WORKERS:
            self.start(name, "worker.Worker", "--cores", "1", "--memory", "700m", found[1])
        wait_for(
            lambda: master.read_text().count("Registering worker") == len(WORKERS),
            what="both workers",
            seconds=START_SECONDS_MAX,
        )
        more = {"spark.executor.memory": "500m", "spark.executor.extraJavaOptions": QUICK_START}
        return replace(ENGINE, master=found[1], conf={**ENGINE.conf, **more})

    def applications(self) -> list[int]:
        """How many each worker has had a part in."""
        return [len(list((self.directory / worker).iterdir())) for worker in WORKERS]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Processes() as processes:
        yield Standalone(tmp_path_factory.mktemp("standalone"), processes)


@pytest.fixture(scope="module")
def away(standalone: Standalone) -> Engine:
    return standalone.start_all()


def elsewhere(ground: Ground) -> Ground:
    (ground.directory / "other").mkdir()
    return Ground(ground.directory / "other", ground.connection, ground.client, ground.engine)


@pytest.mark.parametrize("deed", sorted(DEEDS))
def test_a_standalone_master_with_two_workers_makes_the_same_tables(
    ground: Ground, unique: Callable[[str], str], standalone: Standalone, away: Engine, deed: str
) -> None:
    done = DEEDS[deed]
    topic = ground.make_topic(unique(deed))
    done.fill(ground, topic)
    other = elsewhere(ground)
    for each in (ground, other):
        done.prepare(each, topic)
    done.carry_out(ground, topic)
    before = standalone.applications()

    ran = subprocess.run(
        command(deed, other, topic, away),
        env=clean_environment({"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}),
        cwd=other.directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert standalone.applications() == [count + 1 for count in before]
    assert done.left(other, topic) == done.left(ground, topic)
