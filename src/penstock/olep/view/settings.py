"""The settings file of a view: `penstock olep view run --config view.yaml`.

    projection: bank:BALANCES
    topic: accounts
    bootstrap: kafka-1:9092
    options: {security.protocol: SSL}    # further properties of the Kafka client
    sqlite: views                        # or `postgres`, `redis`, or files with their connection strings
    metrics: 127.0.0.1:9301

Variables override the file, and flags both: `PENSTOCK_VIEW_POSTGRES_FILE` sets `postgres_file`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.model.settings_reader import Section, with_environment
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile
from penstock.olep.log import open_log
from penstock.olep.view.stores.sqlite import SqliteViews

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.olep.log import Log
    from penstock.olep.view import ViewStores

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
BATCH_DEFAULT: Final = 1000
BATCH_MAX: Final = 1_000_000
STORES: Final = ("sqlite", "postgres", "postgres_file", "redis", "redis_file")
SETTINGS: Final = SettingsFile(
    "view",
    "penstock olep view … --config",
    (
        Setting("projection", "module:name", "The projection.", REQUIRED),
        Setting("topic", "text", "The topic of the log.", REQUIRED),
        Setting("bootstrap", "host:port[,…]", "Addresses of brokers or gateways.", BOOTSTRAP_DEFAULT),
        Setting("options", "mapping", "Further properties of the Kafka client."),
        Setting("sqlite", "directory", "Store: SQLite files."),
        Setting("postgres", "secret", "Store: connection string of a PostgreSQL database."),
        Setting("postgres_file", "file", "File with that connection string, instead."),
        Setting("redis", "secret", "Store: address of a Valkey or Redis, redis://…"),
        Setting("redis_file", "file", "File with that address, instead."),
        Setting("batch", "whole number", "Records in one transaction.", BATCH_DEFAULT, "records"),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
    ),
    "PENSTOCK_VIEW_",
    may_be_empty=True,
)


@dataclass(frozen=True, slots=True)
class ViewSettings:
    projection: str
    topic: str
    bootstrap: str
    stores: ViewStores = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    batch: int = BATCH_DEFAULT
    metrics: str | None = None

    def log(self) -> Log:
        return open_log({"bootstrap.servers": self.bootstrap, **self.options}, self.topic)


def read_view_settings(
    path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> ViewSettings:
    """File < environment < flags; every error names the place. A store's flag replaces any other store."""
    if path is None:
        values, variables = with_environment({}, SETTINGS.prefix, environment)
        document = f"flags and {', '.join(variables)}" if variables else "flags"
        root = Section(document, values, SETTINGS.keys())
    else:
        root = SETTINGS.root(path, environment)
    values = dict(root.values)
    if any(key in flags for key in STORES):
        values = {key: value for key, value in values.items() if key not in STORES}
    options = {**root.section("options", None).values, **flags.get("options", {})}
    root = Section(root.document, values | dict(flags), root.known, base=root.base)
    return ViewSettings(
        projection=root.text("projection", expected="expected module:name"),
        topic=root.text("topic", expected="expected the name of a topic"),
        bootstrap=root.text("bootstrap", BOOTSTRAP_DEFAULT),
        stores=_stores(root),
        options={key: str(value) for key, value in options.items()},
        batch=root.integer("batch", BATCH_DEFAULT, at_least=1, at_most=BATCH_MAX),
        metrics=root.optional_address("metrics"),
    )


def check_file(path: Path, environment: Mapping[str, str]) -> None:
    read_view_settings(path, environment, {})


def _stores(root: Section) -> ViewStores:
    chosen = {key.removesuffix("_file") for key in STORES if root.values.get(key) is not None}
    if len(chosen) != 1:
        expected = "expected one of --sqlite, --postgres and --redis, or of these keys"
        raise root.invalid("sqlite", expected, sorted(chosen))
    if "postgres" in chosen:
        from penstock.olep.view.stores.postgres import PostgresViews

        return PostgresViews(root.secret("postgres"))
    if "redis" in chosen:
        from penstock.olep.view.stores.redis import RedisViews

        return RedisViews(root.secret("redis"))
    directory = root.path("sqlite")
    assert directory is not None
    return SqliteViews(directory)
