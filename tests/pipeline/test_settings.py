"""The pipeline's settings, and what is said of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.errors.pipeline import JobInvalid, JobUnknown
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.pipeline import session
from penstock.pipeline.job import Form, Mode
from penstock.pipeline.jobs import all_jobs, find_job
from penstock.pipeline.kafka import offsets_option, security_options, source_options
from penstock.pipeline.session import (
    catalog_options,
    package_archive,
    session_options,
    share_code,
    stays_here,
)
from penstock.pipeline.settings import CatalogKind, Connection, Engine, Lake, default_settings, read_settings

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


def written(directory: Path, text: str) -> Path:
    (directory / "secret").write_text("s3cret\n")
    (directory / "ca.pem").write_text("PEM")
    (directory / "pipeline.yaml").write_text(text)
    return directory / "pipeline.yaml"


def test_a_file_says_where_to_read_what_to_write_and_which_jobs(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, GOOD), tmp_path)

    assert settings.connection is not None
    assert settings.connection.password == "s3cret"
    assert "s3cret" not in repr(settings)
    assert settings.lake.warehouse == str(tmp_path / "lake")
    assert settings.engine.conf == {"spark.x": "1"}
    orders, accounts, events = settings.jobs
    assert (orders.sink.partition_by, orders.source.batch_offsets_max) == (("days(at)",), 10)
    assert (accounts.sink.mode, accounts.source.key) == (Mode.UPSERT, True)
    assert (events.source.form, events.source.headers) == (Form.RAW, True)
    assert {"metering", "slo", "audit", "orders"} <= all_jobs(settings).keys()


@pytest.mark.parametrize(
    ("text", "error", "said"),
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
def test_a_wrong_file_is_refused_with_the_place_and_what_was_expected(
    tmp_path: Path, text: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        read_settings(written(tmp_path, text), tmp_path)


def test_an_unknown_job_is_told_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(JobUnknown) as raised:
        find_job(default_settings(tmp_path), "billing")

    assert "metering" in raised.value.advice


def test_options_carry_login_and_trust_and_nothing_is_left_to_defaults(tmp_path: Path) -> None:
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
def test_the_driver_hides_on_this_machine_only_if_nobody_else_must_reach_it(master: str, here: bool) -> None:
    assert stays_here(master) is here


def test_workers_can_do_with_the_archive_alone(tmp_path: Path) -> None:
    archive = package_archive(tmp_path)
    modules = [f"penstock.pipeline.{name}" for name in ("batch", "folding", "jobs.audit", "jobs.metering")]
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
def test_an_application_s_code_is_packed_in_our_own_directory_wherever_spark_has_its_own(
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

    share_code(opened, "bank.app")

    assert shared == [str(tmp_path / "bank.zip")]
