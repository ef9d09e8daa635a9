"""Fixtures: one Spark for the whole run; a separate lake and state directory for each test."""

from __future__ import annotations

import gc
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

ENGINE = Engine(
    master="local[2]",
    memory_mb=1200,
    # Tests are many small jobs: compiling them well takes longer than running them.
    conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
)
UNCLOSED_SOCKETS = (
    "ignore:unclosed <socket:ResourceWarning"  # PySpark leaves the sockets of results to the collector
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED_SOCKETS))


@pytest.fixture(autouse=True)
def _sockets_are_collected_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collects the sockets that PySpark left open, so that no later test is blamed for them."""
    yield
    if request.node.get_closest_marker("spark"):
        gc.collect()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Starts the Spark of this process; later sessions share it."""
    scratch = tmp_path_factory.mktemp("spark")
    session = open_session(Lake(str(scratch / "unused")), ENGINE, scratch=scratch)
    yield ENGINE
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
