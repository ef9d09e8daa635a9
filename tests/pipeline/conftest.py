"""Fixtures: one Spark for the whole run; a separate lake and state directory for each test."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.kafka.security import Mechanism
from penstock.pipeline.runner import Outcome, Runner
from penstock.pipeline.settings import Connection, Engine, Lake, PipelineSettings
from penstock.pipeline.spark.session import open_session
from tests.harness import propagation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from penstock.pipeline.job import Job
    from tests.harness.fleet import Fleet

# The first compiler alone, with a code cache and a heap that need no clearing between small jobs.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:MetaspaceSize=300m -Xms1000m -Xmn500m"
)
ENGINE = Engine(
    master="local[2]",
    memory_mb=1200,
    # Tests are many small jobs: compiling and re-planning them takes longer than running them.
    conf={
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    },
)
# Py4j searches every jar for a short class name, each time that PySpark uses it.
PYSPARK_CLASSES = ("functions", "PythonUtils", "PythonSQLUtils", "SimplePythonFunction")
# Every Spark test runs in a driver east of UTC, where local days start before those of the tables.
TIME_ZONE = "Asia/Tokyo"
UNCLOSED_SOCKETS = (
    "ignore:unclosed <socket:ResourceWarning"  # PySpark leaves the sockets of results to the collector
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED_SOCKETS))


@pytest.fixture(autouse=True)
def _spark_driver(request: pytest.FixtureRequest) -> Iterator[None]:
    """The driver's time zone. Afterwards collects the sockets that PySpark left open, so that no later test
    is blamed for them."""
    if not request.node.get_closest_marker("spark"):
        yield
        return
    with driver_in(TIME_ZONE):
        yield
    gc.collect()


@contextmanager
def driver_in(zone: str) -> Iterator[None]:
    """This process, and the processes it starts, in a time zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Starts the Spark of this process; later sessions share it."""
    scratch = tmp_path_factory.mktemp("spark")
    with driver_in(TIME_ZONE):
        session = open_session(Lake(str(scratch / "unused")), ENGINE, scratch=scratch)
    jvm: Any = session._jvm
    for name in PYSPARK_CLASSES:
        setattr(jvm, name, getattr(jvm, name))
    gc.collect()
    gc.freeze()  # thousands of collected tests, which each collection after a test would visit
    yield ENGINE
    gc.unfreeze()
    session.stop()


def connection_of(fleet: Fleet) -> Connection:
    config = fleet.client_config()
    return Connection(
        config["bootstrap.servers"],
        config["sasl.username"],
        config["sasl.password"],
        Mechanism(config["sasl.mechanism"]),
    )


@dataclass
class PipelineHarness:
    """A lake, a state directory and a Kafka connection, with helpers for tests."""

    directory: Path
    connection: Connection
    client: Mapping[str, Any]
    engine: Engine = ENGINE
    sessions: list[SparkSession] = field(default_factory=list)
    warehouse: str = ""  # default: `lake` in the directory
    fleet: Fleet | None = None

    @property
    def settings(self) -> PipelineSettings:
        return PipelineSettings(
            Lake(self.warehouse or str(self.directory / "lake")),
            self.directory / "state",
            self.connection,
            self.engine,
        )

    @property
    def session(self) -> SparkSession:
        if not self.sessions:
            lake = self.settings.lake
            self.sessions.append(open_session(lake, self.engine, scratch=self.directory / "scratch"))
        return self.sessions[0]

    def runner(self) -> Runner:
        return Runner(self.session, self.settings, self.connection)

    def run(self, job: Job, **options: Any) -> Outcome:
        return self.runner().run(job, **options)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows as tuples, sorted."""
        frame = self.session.table(f"lake.{table}")
        selected = frame.select(*columns) if columns else frame
        return sorted((tuple(row) for row in selected.collect()), key=repr)

    def make_topic(self, name: str, partitions: int = 2, **config: str) -> str:
        admin = AdminClient(dict(self.client))
        topic = NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
        admin.create_topics([topic])[name].result(30)
        assert self.fleet is not None
        propagation.run_in_thread(propagation.wait_for_topics(self.fleet, name))
        return name

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes] | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        producer = Producer(dict(self.client) | {"linger.ms": 20})
        for index, value in enumerate(values):
            key = None if keys is None else keys[index]
            producer.produce(topic, value, key, headers=list(headers))
        assert producer.flush(60) == 0


@pytest.fixture
def harness(engine: Engine, fleet: Fleet, tmp_path: Path) -> PipelineHarness:
    return PipelineHarness(tmp_path, connection_of(fleet), fleet.client_config(), engine, fleet=fleet)


@pytest.fixture
def dry(engine: Engine, tmp_path: Path) -> PipelineHarness:
    """Spark and a lake, no Kafka."""
    return PipelineHarness(tmp_path, Connection("127.0.0.1:1"), {}, engine)
