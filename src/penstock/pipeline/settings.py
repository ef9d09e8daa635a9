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

Secrets are read from files. Paths are relative to the settings file. Unknown keys are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.pipeline import JobInvalid
from penstock.model.settings_reader import Section, read_mapping
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


_KEYS: Final = ("connection", "lake", "state", "checkpoints", "registry", "spark", "jobs")
_REGISTRY_KEYS: Final = ("url", "user", "password_file", "authority")
_CONNECTION_KEYS: Final = ("bootstrap", "user", "password_file", "mechanism", "authority")
_LAKE_KEYS: Final = ("warehouse", "catalog", "uri", "properties")
_ENGINE_KEYS: Final = ("master", "memory_mb", "conf")
_JOB_KEYS: Final = (
    "topic", "topics", "table", "format", "columns", "evolve", "schema_file", "message", "subject", "key",
    "headers", "mode", "upsert_by", "order_by", "partition_by", "every_seconds", "batch",
)  # fmt: skip


def default_settings(home: Path) -> PipelineSettings:
    root = home / "pipeline"
    return PipelineSettings(Lake(str(root / "lake")), root / "state")


def read_settings(path: Path, home: Path) -> PipelineSettings:
    """Reads the settings file. Errors name the key, its value and what was expected."""
    root = Section(str(path), read_mapping(path, may_be_empty=True), _KEYS, base=path.parent.absolute())
    defaults = default_settings(home)
    jobs, connection = root.section("jobs", None), root.section("connection", _CONNECTION_KEYS)
    defined = {name: jobs.section(name, _JOB_KEYS) for name in jobs.values}
    registry = _registry(root.section("registry", _REGISTRY_KEYS)) if "registry" in root.values else None
    return PipelineSettings(
        lake=_lake(root.section("lake", _LAKE_KEYS), defaults.lake),
        state=root.path("state") or defaults.state,
        connection=_connection(connection) if "connection" in root.values else None,
        engine=_engine(root.section("spark", _ENGINE_KEYS)),
        jobs=tuple(_job(n, each, registry) for n, each in defined.items() if "topics" not in each.values),
        patterns=tuple(_pattern(n, each, registry) for n, each in defined.items() if "topics" in each.values),
        checkpoints=_location(root, "checkpoints"),
    )


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
