"""The settings of the pipeline: one YAML file, all of it optional.

    connection:                       # left out: the fleet of this home, as the platform itself
      bootstrap: gateway-1:9092
      user: 7HQ2MZ…                   # an API key
      password_file: api.secret
      mechanism: PLAIN
      authority: ca.pem               # TLS that trusts it
    lake:
      warehouse: lake                 # a directory, or s3://bucket/path
      catalog: sqlite                 # or rest
      uri: https://catalog.example    # of a REST catalog
      properties: {s3.endpoint: …}
    spark: {master: "local[*]", memory_mb: 1536, conf: {}}
    jobs:                             # topics to tables; the platform's own jobs need no entry
      orders: {topic: orders, table: shop.orders, columns: {id: bigint, at: timestamp_ms}}

Secrets are read from files. Paths are relative to the file. Unknown keys are errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model.errors.pipeline import JobInvalid
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.pipeline.columns import Evolve, column
from penstock.pipeline.job import BATCH_OFFSETS_MAX, Form, Job, Mode, Sink, Source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MEMORY_MB: Final = 1536  # of the driver, which is everything with a local master
MEMORY_MB_MIN: Final = 512


class CatalogKind(StrEnum):
    SQLITE = "sqlite"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach Kafka, or a gateway, which looks the same."""

    bootstrap: str
    user: str | None = None
    password: str = field(default="", repr=False)
    mechanism: Mechanism = Mechanism.PLAIN
    authority: Path | None = None

    def security(self) -> Security:
        login = Login(self.user, self.password, self.mechanism) if self.user is not None else None
        return Security(login, tls_trusting(self.authority) if self.authority is not None else None)


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
    state: Path  # checkpoints and the status of jobs
    connection: Connection | None = None
    engine: Engine = field(default_factory=Engine)
    jobs: tuple[Job, ...] = ()


def default_settings(home: Path) -> PipelineSettings:
    root = home / "pipeline"
    return PipelineSettings(Lake(str(root / "lake")), root / "state")


def read_settings(path: Path, home: Path) -> PipelineSettings:
    """The file's settings. Raises an error that names the place, the value and what was expected."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsUnreadable(path=path, reason=str(error).replace("\n", " ")) from error
    if not isinstance(body, dict):
        raise SettingsUnreadable(path=path, reason="it is not a mapping")
    at = _At(str(path), body, path.parent)
    at.only("connection", "lake", "state", "spark", "jobs")
    plain = default_settings(home)
    jobs = at.inner("jobs")
    return PipelineSettings(
        lake=_lake(at.inner("lake"), plain.lake),
        state=at.path("state") or plain.state,
        connection=_connection(at.inner("connection")) if "connection" in body else None,
        engine=_engine(at.inner("spark")),
        jobs=tuple(_job(str(name), jobs.inner(str(name))) for name in jobs.values),
    )


@dataclass(frozen=True, slots=True)
class _At:
    """A mapping of the file, and where it stands."""

    where: str
    values: Mapping[str, Any]
    beside: Path

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                raise SettingUnknown(where=self.where, key=key, known=", ".join(known))

    def inner(self, key: str) -> _At:
        found = self.values.get(key)
        if found is None:
            found = {}
        if not isinstance(found, dict):
            raise self.invalid(key, "expected a mapping")
        return _At(f"{self.where}: {key}", found, self.beside)

    def text(self, key: str, default: str | None = None) -> str | None:
        found = self.values.get(key, default)
        if found is not None and not isinstance(found, str):
            raise self.invalid(key, "expected a text")
        return found

    def number(self, key: str, default: int | None) -> int | None:
        found = self.values.get(key, default)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise self.invalid(key, "expected a whole number")
        return found

    def flag(self, key: str) -> bool:
        found = self.values.get(key, False)
        if not isinstance(found, bool):
            raise self.invalid(key, "expected true or false")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.values.get(key, ())
        found = [found] if isinstance(found, str) else found
        if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
            raise self.invalid(key, "expected a list of texts")
        return tuple(found)

    def mapping(self, key: str) -> dict[str, str]:
        return {str(name): str(value) for name, value in self.inner(key).values.items()}

    def path(self, key: str) -> Path | None:
        found = self.text(key)
        return None if found is None else (self.beside / found).absolute()

    def choice(self, key: str, kind: type[StrEnum], default: StrEnum) -> Any:
        found = self.values.get(key, default.value)
        if found not in [each.value for each in kind]:
            raise self.invalid(key, "expected one of " + ", ".join(kind))
        return kind(found)

    def invalid(self, key: str, expected: str) -> SettingInvalid:
        return SettingInvalid(where=self.where, key=key, value=self.values.get(key), expected=expected)


def _connection(at: _At) -> Connection:
    at.only("bootstrap", "user", "password_file", "mechanism", "authority")
    bootstrap = at.text("bootstrap")
    if not bootstrap:
        raise at.invalid("bootstrap", "expected host:port, several with commas")
    if ("user" in at.values) != ("password_file" in at.values):
        raise at.invalid("user", "expected `user` and `password_file` together")
    password, file = "", at.path("password_file")
    if file is not None:
        try:
            password = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise at.invalid("password_file", f"which cannot be read: {error}") from error
    authority = at.path("authority")
    if authority is not None and not authority.is_file():
        raise at.invalid("authority", "which is no file")
    mechanism: Mechanism = at.choice("mechanism", Mechanism, Mechanism.PLAIN)
    return Connection(bootstrap, at.text("user"), password, mechanism, authority)


def _lake(at: _At, plain: Lake) -> Lake:
    at.only("warehouse", "catalog", "uri", "properties")
    warehouse = at.text("warehouse") or plain.warehouse
    if "://" not in warehouse:
        warehouse = str((at.beside / warehouse).absolute())
    kind: CatalogKind = at.choice("catalog", CatalogKind, CatalogKind.SQLITE)
    if (kind is CatalogKind.REST) != (at.text("uri") is not None):
        raise at.invalid("uri", "expected an address if, and only if, the catalog is rest")
    if kind is CatalogKind.SQLITE and "://" in warehouse:
        raise at.invalid("warehouse", "expected a directory with a catalog in SQLite")
    return Lake(warehouse, kind, at.text("uri"), at.mapping("properties"))


def _engine(at: _At) -> Engine:
    at.only("master", "memory_mb", "conf")
    memory = at.number("memory_mb", MEMORY_MB)
    if memory is None or memory < MEMORY_MB_MIN:
        raise at.invalid("memory_mb", f"expected {MEMORY_MB_MIN} or more")
    return Engine(at.text("master") or Engine().master, memory, at.mapping("conf"))


def _job(name: str, at: _At) -> Job:
    at.only(
        "topic", "table", "format", "columns", "evolve", "schema_file", "message", "key", "headers", "mode",
        "upsert_by", "partition_by", "every_seconds", "batch",
    )  # fmt: skip
    for key in ("topic", "table"):
        if not at.text(key):
            raise at.invalid(key, "expected a name")
    columns = at.inner("columns")
    form: Form = at.choice("format", Form, Form.JSON)
    if form is Form.JSON and not columns.values:
        raise JobInvalid(
            where=at.where, key="columns", value={}, expected="expected name: type, at least one"
        )
    mode: Mode = at.choice("mode", Mode, Mode.APPEND)
    return Job(
        name=name,
        summary=f"{at.text('topic')} to {at.text('table')}, {mode}",
        source=Source(
            topic=at.text("topic") or "",
            form=form,
            columns=tuple(
                column(columns.where, str(each), str(kind)) for each, kind in columns.values.items()
            ),
            evolve=at.choice("evolve", Evolve, Evolve.IGNORE),
            schema_file=at.path("schema_file"),
            message=at.text("message"),
            key=at.flag("key") or "kafka_key" in at.texts("upsert_by"),
            headers=at.flag("headers"),
            batch_offsets_max=at.number("batch", BATCH_OFFSETS_MAX) or 0,
        ),
        sink=Sink(
            table=at.text("table") or "",
            mode=mode,
            key=at.texts("upsert_by"),
            partition_by=at.texts("partition_by"),
        ),
        every_seconds=at.number("every_seconds", None),
    )
