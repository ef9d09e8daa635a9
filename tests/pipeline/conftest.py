"""One Spark session for the whole run, a lake and a state of its own for each test, topics with records."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.kafka.security import Mechanism
from penstock.pipeline.job import Job
from penstock.pipeline.runner import Outcome, Runner
from penstock.pipeline.session import open_session
from penstock.pipeline.settings import Connection, Engine, Lake, PipelineSettings
from tests.ground import heard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.ground.fleet import Fleet

ENGINE = Engine(
    master="local[2]",
    memory_mb=1200,
    # Tests are many small jobs: compiling them well takes longer than running them.
    conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
)
LEFT_OPEN = (
    "ignore:unclosed <socket:ResourceWarning"  # PySpark leaves the sockets of results to the collector
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings(LEFT_OPEN))


@pytest.fixture(autouse=True)
def _sockets_are_collected_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """So that what PySpark left open is not found in somebody else's test."""
    yield
    if request.node.get_closest_marker("spark"):
        gc.collect()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The Spark of this process. Whoever opens a session gets one on it."""
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
class Ground:
    """A lake, a state directory and a way to Kafka, and what tests do with them."""

    directory: Path
    connection: Connection
    client: Mapping[str, Any]
    engine: Engine = ENGINE
    sessions: list[SparkSession] = field(default_factory=list)
    warehouse: str = ""  # left out: `lake` in the directory
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
        """Rows as plain tuples, in order."""
        frame = self.session.table(f"lake.{table}")
        found = frame.select(*columns) if columns else frame
        return sorted((tuple(row) for row in found.collect()), key=repr)

    def make_topic(self, name: str, partitions: int = 2, **config: str) -> str:
        admin = AdminClient(dict(self.client))
        wanted = NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
        admin.create_topics([wanted])[name].result(30)
        assert self.fleet is not None
        heard.now(heard.topics_heard(self.fleet, name))
        return name

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes] | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        producer = Producer(dict(self.client) | {"linger.ms": 20})
        for index, value in enumerate(values):
            where = {} if partition is None else {"partition": partition}
            key = None if keys is None else keys[index]
            producer.produce(topic, value, key, headers=list(headers), **where)
        assert producer.flush(60) == 0


@pytest.fixture
def ground(engine: Engine, fleet: Fleet, tmp_path: Path) -> Ground:
    return Ground(tmp_path, connection_of(fleet), fleet.client_config(), engine, fleet=fleet)


@pytest.fixture
def dry(engine: Engine, tmp_path: Path) -> Ground:
    """Spark and a lake, no Kafka."""
    return Ground(tmp_path, Connection("127.0.0.1:1"), {}, engine)


MakeJob = Callable[..., Job]
