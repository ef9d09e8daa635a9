"""The pipeline's settings, and the errors for wrong ones."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import JobInvalid, JobUnknown
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.pipeline.job import Mode, ValueFormat
from penstock.pipeline.jobs import all_jobs, find_job, find_jobs, with_topics
from penstock.pipeline.reading.registry import Registry
from penstock.pipeline.settings import CatalogKind, Connection, Engine, Lake, default_settings, read_settings
from penstock.pipeline.spark import session
from penstock.pipeline.spark.kafka import offsets_option, security_options, source_options
from penstock.pipeline.spark.session import (
    catalog_options,
    package_archive,
    runs_on_this_host,
    session_options,
    ship_package,
)

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
connection: {bootstrap: "g:9092", user: KEY, password_file: secret, authority: ca.pem}
lake: {warehouse: lake}
spark: {master: "local[2]", memory_mb: 700, conf: {spark.x: 1}}
jobs:
  orders: {topic: o, table: shop.orders, columns: {id: bigint, at: timestamp_ms}, partition_by: days(at),
    batch: 10}
  accounts: {topic: a, table: shop.accounts, columns: {n: string}, mode: upsert, upsert_by: kafka_key}
  events: {topic: e, table: shop.events, format: raw, headers: true}
"""


def settings_file(directory: Path, text: str) -> Path:
    (directory / "secret").write_text("s3cret\n")
    (directory / "ca.pem").write_text("PEM")
    (directory / "pipeline.yaml").write_text(text)
    return directory / "pipeline.yaml"


def test_a_settings_file_configures_connection_lake_spark_and_jobs(tmp_path: Path) -> None:
    settings = read_settings(settings_file(tmp_path, GOOD), tmp_path)

    assert settings.connection is not None
    assert settings.connection.password == "s3cret"
    assert "s3cret" not in repr(settings)
    assert settings.lake.warehouse == str(tmp_path / "lake")
    assert settings.engine.conf == {"spark.x": "1"}
    orders, accounts, events = settings.jobs
    assert (orders.sink.partition_by, orders.source.batch_offsets_max) == (("days(at)",), 10)
    assert (accounts.sink.mode, accounts.source.key) == (Mode.UPSERT, True)
    assert (events.source.format, events.source.headers) == (ValueFormat.RAW, True)
    assert {"metering", "slo", "audit", "orders"} <= all_jobs(settings).keys()


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("[", SettingsUnreadable, "YAML"),
        ("- 1", SettingsUnreadable, "mapping"),
        ("lakes: {}", SettingUnknown, "lakes"),
        ("lake: 5", SettingInvalid, "mapping"),
        ("lake: {catalog: hive}", SettingInvalid, "sqlite, rest"),
        ("lake: {catalog: rest}", SettingInvalid, "address"),
        ("lake: {warehouse: 's3://b/p'}", SettingInvalid, "directory"),
        ("spark: {memory_mb: 10}", SettingInvalid, "512"),
        ("spark: {memory_mb: much}", SettingInvalid, "whole number"),
        ("connection: {}", SettingInvalid, "host:port"),
        ("connection: {bootstrap: b, user: u}", SettingInvalid, "together"),
        ("connection: {bootstrap: b, user: u, password_file: none}", SettingInvalid, "cannot be read"),
        ("connection: {bootstrap: b, authority: none}", SettingInvalid, "no file"),
        ("connection: {bootstrap: b, mechanism: NTLM}", SettingInvalid, "PLAIN"),
        ("jobs: {a: {table: b.c}}", SettingInvalid, "expected a name"),
        ("jobs: {a: {topic: t, table: b.c}}", JobInvalid, "at least one"),
        ("jobs: {a: {topic: t, table: c, format: raw}}", JobInvalid, "namespace.table"),
        ("jobs: {A: {topic: t, table: b.c, format: raw}}", JobInvalid, "a-z"),
        ("jobs: {a: {topic: t, table: b.c, columns: {x: int64}}}", JobInvalid, "bigint"),
        ("jobs: {a: {topic: t, table: b.c, columns: {x: int}, mode: upsert}}", JobInvalid, "if, and only if"),
        (
            "jobs: {a: {topic: t, table: b.c, columns: {x: int}, mode: upsert, upsert_by: y}}",
            JobInvalid,
            "declared",
        ),
        ("jobs: {a: {topic: t, table: b.c, format: avro}}", JobInvalid, "expected a file"),
        ("jobs: {a: {topic: t, table: b.c, columns: {x: int}, headers: 7}}", SettingInvalid, "true or false"),
        ("jobs: {a: {topic: t, table: b.c, columns: {x: int}, batch: 0}}", JobInvalid, "one or more"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key_and_what_was_expected(
    tmp_path: Path, text: str, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        read_settings(settings_file(tmp_path, text), tmp_path)


def test_an_unknown_job_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(JobUnknown) as raised:
        find_job(default_settings(tmp_path), "billing")

    assert "metering" in raised.value.advice


def test_kafka_options_carry_login_isolation_and_offsets(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("PEM")
    plain = security_options(Connection("b:1"))
    (job, *_) = all_jobs(default_settings(tmp_path)).values()
    options = source_options(Connection("b:1", 'k"ey', "s\\"), job.source)

    assert plain == {"kafka.bootstrap.servers": "b:1", "kafka.security.protocol": "PLAINTEXT"}
    assert r'username="k\"ey" password="s\\";' in options["kafka.sasl.jaas.config"]
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["failOnDataLoss"] == "true"
    assert offsets_option("t", {1: 5, 0: 7}) == '{"t": {"0": 7, "1": 5}}'


def test_a_rest_catalog_is_passed_on_with_its_properties() -> None:
    lake = Lake("s3://b/p", CatalogKind.REST, "https://c", {"s3.endpoint": "https://s"})

    options = catalog_options(lake)

    assert options["spark.sql.catalog.lake.type"] == "rest"
    assert options["spark.sql.catalog.lake.uri"] == "https://c"
    assert options["spark.sql.catalog.lake.s3.endpoint"] == "https://s"


@pytest.mark.parametrize(
    ("master", "here"),
    [("local[*]", True), ("spark://127.0.0.1:7077", True), ("spark://spark-1:7077", False)],
)
def test_the_driver_binds_to_loopback_only_if_all_executors_are_local(master: str, here: bool) -> None:
    assert runs_on_this_host(master) is here


def test_workers_need_only_the_archive(tmp_path: Path) -> None:
    archive = package_archive(tmp_path)
    modules = [
        f"penstock.pipeline.{name}"
        for name in ("lake.batch", "olep_fold", "jobs.durability", "jobs.metering")
    ]
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import {', '.join(modules)}"

    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(penstock.__file__)"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.stdout.startswith(str(archive)), done.stderr


@pytest.mark.parametrize("local", ["/data", "/mnt/a/tmp,/mnt/b/tmp"])
def test_an_application_s_package_is_archived_in_our_scratch_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    package = tmp_path / "bank"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setitem(sys.modules, "bank", SimpleNamespace(__path__=[str(package)]))
    monkeypatch.setattr(session, "connector_jars", lambda _: ())
    engine = Engine(master="spark://spark-1:7077", conf={"spark.local.dir": local})
    options = session_options(engine, tmp_path)
    shared: list[str] = []
    context = SimpleNamespace(master=engine.master, getConf=lambda: options, addPyFile=shared.append)
    opened: Any = SimpleNamespace(sparkContext=context)

    ship_package(opened, "bank.app")

    assert shared == [str(tmp_path / "bank.zip")]


PATTERN = """
jobs:
  orders: {topics: "orders[-.].*", table: "shop.{topic}", columns: {id: bigint}, every_seconds: 60}
"""


def test_a_pattern_stands_for_a_job_of_each_matching_topic(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(PATTERN)
    settings = read_settings(tmp_path / "pipeline.yaml", tmp_path)

    matched = with_topics(settings, ["orders-eu", "orders.US.1", "orders", "reorders-eu", "other"])

    jobs = {job.name: (job.source.topic, job.sink.table, job.every_seconds) for job in matched.jobs}
    assert jobs == {
        "orders-orders-eu": ("orders-eu", "shop.orders_eu", 60),
        "orders-orders-us-1": ("orders.US.1", "shop.orders_us_1", 60),
    }
    assert [job.name for job in find_jobs(matched, "orders")] == list(jobs)
    assert find_job(matched, "orders-orders-eu").source.topic == "orders-eu"
    with pytest.raises(JobUnknown):
        find_job(matched, "orders")  # which stands for two


def test_two_topics_never_share_a_table(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(PATTERN)
    settings = read_settings(tmp_path / "pipeline.yaml", tmp_path)

    with pytest.raises(JobInvalid, match="same table as 'orders\\.eu'"):
        with_topics(settings, ["orders-eu", "orders.eu"])


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ('{topics: "(", table: "shop.{topic}", columns: {id: bigint}}', "no regular expression"),
        ("{topics: o.*, table: shop.orders, columns: {id: bigint}}", "{topic}"),
        ('{topics: o.*, topic: o, table: "shop.{topic}", columns: {id: bigint}}', "either"),
        ('{topics: o.*, table: "shop.{topic}", columns: {id: nothing}}', "expected one of"),
        ("{topic: o, table: shop.o, format: avro}", "or a registry"),
    ],
)
def test_a_wrong_pattern_or_format_is_refused_before_any_topic_is_read(
    tmp_path: Path, job: str, reason: str
) -> None:
    (tmp_path / "pipeline.yaml").write_text(f"jobs: {{orders: {job}}}")

    with pytest.raises(PenstockError, match=reason):
        read_settings(tmp_path / "pipeline.yaml", tmp_path)


def test_a_registry_and_checkpoints_elsewhere_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    (tmp_path / "pipeline.yaml").write_text(
        "checkpoints: hdfs://name/checkpoints\n"
        "registry: {url: https://registry, user: me, password_file: secret}\n"
        "jobs: {orders: {topic: orders, table: shop.orders, format: protobuf, subject: order}}\n"
    )

    settings = read_settings(tmp_path / "pipeline.yaml", tmp_path)

    assert settings.checkpoint_of("orders") == "hdfs://name/checkpoints/orders/checkpoint"
    source = settings.jobs[0].source
    assert (source.registry, source.subject) == (Registry("https://registry", "me", "s3cret"), "order")
    assert "s3cret" not in repr(settings)
