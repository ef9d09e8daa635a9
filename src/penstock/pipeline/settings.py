"""The pipeline's settings: one YAML file, in which every key is optional.

    connection:                       # default: the fleet of this home, as the platform user
      bootstrap: gateway-1:9092
      user: 7HQ2MZ…                   # an API key
      password_file: api.secret
      mechanism: PLAIN
      authority: ca.pem               # the CA to trust; enables TLS
    lake:
      warehouse: lake                 # a directory, or s3://bucket/path
      catalog: sqlite                 # or rest
      uri: https://catalog.example    # only for a REST catalog
      properties: {s3.endpoint: …}
    registry: {url: https://registry.example, user: …, password_file: …, authority: ca.pem}
    state: state                      # status files and locks of this host
    checkpoints: hdfs://host/path     # default: in `state`; a directory, or a URI that Spark reaches
    spark: {master: "local[*]", memory_mb: 1536, conf: {}}
    jobs:                             # topic-to-table jobs; the platform's own jobs need no entry
      orders: {topic: orders, table: shop.orders, columns: {id: bigint, at: timestamp_ms}}

Secrets are read from files. Paths are relative to the settings file. Unknown keys are errors. Variables
override the file: `PENSTOCK_PIPELINE_SPARK__MASTER` sets `spark.master`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.pipeline import JobInvalid
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below
from penstock.pipeline.job import (
    BATCH_OFFSETS_MAX,
    TOPIC_IN_TABLE,
    Job,
    JobPattern,
    Mode,
    Sink,
    Source,
    ValueFormat,
)
from penstock.pipeline.lake.columns import Evolve, column
from penstock.pipeline.reading.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.model.settings_reader import Section

MEMORY_MB: Final = 1536  # of the driver; with a local master, of all of Spark
MEMORY_MB_MIN: Final = 512


class CatalogKind(StrEnum):
    SQLITE = "sqlite"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a Kafka cluster or a gateway."""

    bootstrap: str
    user: str | None = None
    password: str = field(default="", repr=False)
    mechanism: Mechanism = Mechanism.PLAIN
    authority: Path | None = None

    def security(self) -> Security:
        login = Login(self.user, self.password, self.mechanism) if self.user is not None else None
        return Security(login, tls_context(self.authority) if self.authority is not None else None)


@dataclass(frozen=True, slots=True)
class Lake:
    warehouse: str
    catalog: CatalogKind = CatalogKind.SQLITE
    uri: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    master: str = "local[*]"
    memory_mb: int = MEMORY_MB
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    lake: Lake
    state: Path  # status files and locks of jobs on this host
    connection: Connection | None = None
    engine: Engine = field(default_factory=Engine)
    jobs: tuple[Job, ...] = ()
    patterns: tuple[JobPattern, ...] = ()
    checkpoints: str | None = None  # a directory, or a URI that Spark reaches; default: in `state`

    def checkpoint_of(self, job: str) -> str:
        """Where Spark keeps the job's progress."""
        return f"{self.checkpoints or self.state}/{job}/checkpoint"


_CONNECTION: Final = (
    Setting("bootstrap", "host:port[,…]", "Addresses of brokers or gateways.", REQUIRED),
    Setting("user", "text", "SASL user, or an API key; with `password_file`."),
    Setting("password_file", "file", "File with the password, or the key's secret."),
    Setting("mechanism", " | ".join(Mechanism), "SASL mechanism.", str(Mechanism.PLAIN)),
    Setting("authority", "file", "The CA to trust; enables TLS."),
)
_REGISTRY: Final = (
    Setting("url", "URL", "The schema registry.", REQUIRED),
    Setting("user", "text", "Its user; with `password_file`."),
    Setting("password_file", "file", "File with the password."),
    Setting("authority", "file", "The CA to trust."),
)
_JOB: Final = (
    Setting("topic", "text", "The topic to read; or `topics`."),
    Setting("topics", "pattern", "Topics to read, a job for each."),
    Setting("table", "text", "The table to write, with {topic} for a pattern.", REQUIRED),
    Setting("format", " | ".join(ValueFormat), "Format of values.", str(ValueFormat.JSON)),
    Setting("columns", "mapping", "Columns and their types."),
    Setting("evolve", " | ".join(Evolve), "What happens to fields without a column.", str(Evolve.IGNORE)),
    Setting("schema_file", "file", "Schema of Avro or Protobuf values; unset: the registry's."),
    Setting("message", "text", "Protobuf message."),
    Setting("subject", "text", "Subject in the registry; unset: from the topic."),
    Setting("key", "flag", "Add a column with the record's key.", False),
    Setting("headers", "flag", "Add a column with the record's headers.", False),
    Setting("mode", " | ".join(Mode), "How rows are written.", str(Mode.APPEND)),
    Setting("upsert_by", "list", "Key columns of an upsert."),
    Setting("order_by", "text", "Column whose largest value wins in an upsert."),
    Setting("partition_by", "list", "Partitioning of the table."),
    Setting("every_seconds", "whole number", "Time between two runs by `schedule`.", unit="seconds"),
    Setting("batch", "whole number", "Offsets of one batch at most.", BATCH_OFFSETS_MAX, "offsets"),
)
SETTINGS: Final = SettingsFile(
    "pipeline",
    "penstock pipeline … --settings",
    (
        *below("connection", _CONNECTION),
        Setting("lake.warehouse", "directory or URI", "Where tables are; unset: below the home."),
        Setting("lake.catalog", " | ".join(CatalogKind), "Kind of catalog.", str(CatalogKind.SQLITE)),
        Setting("lake.uri", "URL", "Address of a REST catalog."),
        Setting("lake.properties", "mapping", "Further properties of the catalog."),
        Setting("state", "directory", "Status files and locks of this host; unset: below the home."),
        Setting("checkpoints", "directory or URI", "Progress of jobs; unset: in `state`."),
        *below("registry", _REGISTRY),
        Setting("spark.master", "text", "Spark's master.", Engine().master),
        Setting("spark.memory_mb", "whole number", "Memory of the driver.", MEMORY_MB, "MB"),
        Setting("spark.conf", "mapping", "Further properties of Spark."),
        *below("jobs.*", _JOB),
    ),
    "PENSTOCK_PIPELINE_",
    may_be_empty=True,
)


def default_settings(home: Path) -> PipelineSettings:
    root = home / "pipeline"
    return PipelineSettings(Lake(str(root / "lake")), root / "state")


def read_settings(path: Path, home: Path, environment: Mapping[str, str] | None = None) -> PipelineSettings:
    """File < environment, of this process unless given. Errors name the key and what is expected."""
    root = SETTINGS.root(path, os.environ if environment is None else environment)
    defaults = default_settings(home)
    jobs, connection = root.section("jobs", None), root.section("connection", SETTINGS.keys("connection"))
    defined = {name: jobs.section(name, SETTINGS.keys("jobs.*")) for name in jobs.values}
    registry = (
        _registry(root.section("registry", SETTINGS.keys("registry"))) if "registry" in root.values else None
    )
    return PipelineSettings(
        lake=_lake(root.section("lake", SETTINGS.keys("lake")), defaults.lake),
        state=root.path("state") or defaults.state,
        connection=_connection(connection) if "connection" in root.values else None,
        engine=_engine(root.section("spark", SETTINGS.keys("spark"))),
        jobs=tuple(_job(n, each, registry) for n, each in defined.items() if "topics" not in each.values),
        patterns=tuple(_pattern(n, each, registry) for n, each in defined.items() if "topics" in each.values),
        checkpoints=_location(root, "checkpoints"),
    )


def check_file(path: Path, environment: Mapping[str, str]) -> None:
    read_settings(path, path.parent, environment)


def _connection(section: Section) -> Connection:
    bootstrap = section.text("bootstrap", expected="expected host:port, several with commas")
    password, authority = _secrets(section)
    mechanism = section.choice("mechanism", Mechanism.PLAIN)
    return Connection(bootstrap, section.optional_text("user"), password, mechanism, authority)


def _registry(section: Section) -> Registry:
    url = section.text("url", expected="expected http://… or https://…")
    if not url.startswith(("http://", "https://")):
        raise section.invalid("url", "expected http://… or https://…")
    password, authority = _secrets(section)
    trust = None if authority is None else authority.read_text(encoding="utf-8")
    return Registry(url, section.optional_text("user"), password, trust)


def _secrets(section: Section) -> tuple[str, Path | None]:
    """The password, empty without a user, and the file of the CA to trust."""
    if ("user" in section.values) != ("password_file" in section.values):
        raise section.invalid("user", "expected `user` and `password_file` together")
    password, file = "", section.path("password_file")
    if file is not None:
        try:
            password = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise section.invalid("password_file", f"which cannot be read: {error}") from error
    authority = section.path("authority")
    if authority is not None and not authority.is_file():
        raise section.invalid("authority", "which is no file")
    return password, authority


def _lake(section: Section, default: Lake) -> Lake:
    warehouse = _location(section, "warehouse") or default.warehouse
    kind, uri = section.choice("catalog", CatalogKind.SQLITE), section.optional_text("uri")
    if (kind is CatalogKind.REST) != (uri is not None):
        raise section.invalid("uri", "expected an address if, and only if, the catalog is rest")
    if kind is CatalogKind.SQLITE and "://" in warehouse:
        raise section.invalid("warehouse", "expected a directory with a catalog in SQLite")
    return Lake(warehouse, kind, uri, _texts(section, "properties"))


def _location(section: Section, key: str) -> str | None:
    """A URI, or a directory relative to the settings file."""
    text = section.optional_text(key)
    return text if text is None or "://" in text else str(section.base / text)


def _engine(section: Section) -> Engine:
    memory = section.integer("memory_mb", MEMORY_MB, at_least=MEMORY_MB_MIN)
    return Engine(section.optional_text("master") or Engine().master, memory, _texts(section, "conf"))


def _texts(section: Section, key: str) -> dict[str, str]:
    return {name: str(value) for name, value in section.section(key, None).values.items()}


def _pattern(name: str, section: Section, registry: Registry | None) -> JobPattern:
    text, table = section.text("topics"), section.text("table", expected="expected a name with {topic}")
    if "topic" in section.values:
        raise section.invalid("topics", "expected either `topic` or `topics`")
    if TOPIC_IN_TABLE not in table:
        raise section.invalid("table", "expected a name with {topic}")
    try:
        topics = re.compile(text)
    except re.error as error:
        raise section.invalid("topics", f"which is no regular expression: {error}") from error
    job_of = partial(_job_of, section=section, registry=registry)
    job_of(name, "topic", table.replace(TOPIC_IN_TABLE, "topic"))  # so that mistakes are reported now
    return JobPattern(name, topics, table, job_of)


def _job(name: str, section: Section, registry: Registry | None) -> Job:
    topic = section.text("topic", expected="expected a name")
    table = section.text("table", expected="expected a name")
    return _job_of(name, topic, table, section=section, registry=registry)


def _job_of(name: str, topic: str, table: str, *, section: Section, registry: Registry | None) -> Job:
    columns = section.section("columns", None)
    value_format = section.choice("format", ValueFormat.JSON)
    if value_format is ValueFormat.JSON and not columns.values:
        expected = "expected name: type, at least one"
        raise JobInvalid(where=section.where, key="columns", value={}, expected=expected)
    schema_file = section.path("schema_file")
    by_registry = schema_file is None and value_format in (ValueFormat.AVRO, ValueFormat.PROTOBUF)
    mode, key = section.choice("mode", Mode.APPEND), section.texts("upsert_by")
    return Job(
        name=name,
        summary=f"{topic} to {table}, {mode}",
        source=Source(
            topic=topic,
            format=value_format,
            columns=tuple(column(columns.where, each, str(kind)) for each, kind in columns.values.items()),
            evolve=section.choice("evolve", Evolve.IGNORE),
            schema_file=schema_file,
            message=section.optional_text("message"),
            registry=registry if by_registry else None,
            subject=section.optional_text("subject"),
            key=section.flag("key") or "kafka_key" in key,
            headers=section.flag("headers"),
            batch_offsets_max=section.integer("batch", BATCH_OFFSETS_MAX),
        ),
        sink=Sink(table, mode, key, section.optional_text("order_by"), section.texts("partition_by")),
        every_seconds=section.optional_integer("every_seconds"),
    )
