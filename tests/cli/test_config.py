"""`penstock config`, and settings from file, environment and flags for every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.cli import settings as cli_settings
from penstock.cli.config import KINDS, settings_file
from penstock.gateway.settings import read_gateway_file
from penstock.model.errors import PenstockError
from penstock.model.errors.settings import SettingInvalid, SettingUnknown
from penstock.model.settings_reader import SECRETS
from penstock.olep.view.settings import read_view_settings
from penstock.pipeline.settings import read_settings as read_pipeline_settings
from penstock.quota.settings import read_coordinator_settings
from penstock.scale.settings import read_scaler_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.command import CommandResult

KAFKA = {"bootstrap": "kafka:9092"}
BROKER = {"id": 1, "zone": "a", "address": "kafka:9092"}
TENANT = {"id": "lkc-00000a", "accounts": [{"id": "sa-00000a"}]}
VALID: dict[str, dict[str, Any]] = {
    "penstock": {"home": "here"},
    "fleet": {"clusters": [{"brokers": 1, "zones": ["a"]}]},
    "control": {"home": KAFKA, "platform_key": "platform.key", "token": "operator-token"},
    "gateway": {"cluster": "pkc-000000", "brokers": [BROKER], "tenants": [TENANT]},
    "coordinator": {"clusters": [{"name": "home", **KAFKA}]},
    "scaler": {"clusters": {"home": KAFKA}},
    "link": {
        "source": KAFKA,
        "destination": KAFKA | {"controllers": "kafka:9093"},
        "shadow": {"directory": "shadow", "host": "link", "admitted": ["broker"]},
    },
    "backup": {
        "cluster": KAFKA | {"controllers": "kafka:9093"},
        "store": {"directory": "backups"},
        "shadow": {"directory": "shadow", "host": "backup", "admitted": ["broker"]},
    },
    "checker": {
        "clusters": [
            {"name": "home", "id": "pkc-000000", **KAFKA, "gateways": KAFKA | {"tenant": "lkc-00000a"}}
        ]
    },
    "audit": {"clusters": [{"name": "home", **KAFKA, "controllers": "kafka:9093"}]},
    "view": {"projection": "bank:BALANCES", "topic": "accounts", "sqlite": "views"},
    "pipeline": {"jobs": {"orders": {"topic": "orders", "table": "shop.orders", "columns": {"id": "int"}}}},
}
# Read with `kafka` instead of `cluster`, and with `routing: sni`.
READ_IN_OTHER_FILES = {"gateway": ["kafka.bootstrap", "kafka.tls.ca", "kafka.tls.server_name", "domain"]}


def write(directory: Path, kind: str, **changes: object) -> Path:
    (directory / "platform.key").write_bytes(bytes(32))
    path = directory / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(VALID[kind] | changes))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_is_checked_by_its_reader(
    kind: str, here: Callable[..., CommandResult], tmp_path: Path
) -> None:
    path = write(tmp_path, kind)

    assert here("config", "check", str(path)).code == 0

    path.write_text(yaml.safe_dump(VALID[kind] | {"colour": "red"}))
    refused = here("config", "check", str(path))
    assert refused.code == 2
    assert "colour" in refused.err


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_the_table_is_read(kind: str, tmp_path: Path) -> None:
    """A value that no setting takes is refused, by name, for every key outside of lists."""
    unread = []
    file = settings_file(kind)
    for setting in file.settings:
        if "[]" in setting.key or "*" in setting.key or setting.type == "mapping":
            continue
        document = yaml.safe_load(yaml.safe_dump(VALID[kind]))
        *places, key = setting.key.split(".")
        inner = document
        for place in places:
            inner = inner.setdefault(place, {})
        inner[key] = {"neither": ["this", "nor"]}
        path = write(tmp_path, kind, **document)
        try:
            _read(kind, path)
        except PenstockError as error:
            # Below the top, keys that belong together are refused together.
            together = file.keys(".".join(places)) if places else (key.removesuffix("_file"),)
            if any(name in str(error) for name in together):
                continue
        unread.append(setting.key)

    assert unread == READ_IN_OTHER_FILES.get(kind, [])


def _read(kind: str, path: Path) -> None:
    from importlib import import_module

    module, function = KINDS[kind]
    getattr(import_module(module), function)(path, {})


def test_variables_override_the_file_of_every_process(tmp_path: Path) -> None:
    def at(kind: str) -> Path:
        return write(tmp_path, kind)

    gateway, _ = read_gateway_file(
        at("gateway"), {"PENSTOCK_GATEWAY_WORKERS": "3", "PENSTOCK_GATEWAY_BOUNDS__DRAIN_SECONDS": "5"}
    )
    coordinator = read_coordinator_settings(
        at("coordinator"), {"PENSTOCK_COORDINATOR_INTERVAL_SECONDS": "7"}, {"metrics": "127.0.0.1:1"}
    )
    scaler = read_scaler_settings(at("scaler"), {"PENSTOCK_SCALER_LISTEN": "127.0.0.1:9"})
    pipeline = read_pipeline_settings(
        at("pipeline"), tmp_path, {"PENSTOCK_PIPELINE_SPARK__MASTER": "spark://host:7077"}
    )
    view = read_view_settings(at("view"), {"PENSTOCK_VIEW_BATCH": "5"}, {"topic": "others"})

    assert (gateway.workers, gateway.bounds.drain_seconds) == (3, 5.0)
    assert (coordinator.interval_seconds, coordinator.metrics) == (7.0, "127.0.0.1:1")
    assert scaler.listen == "127.0.0.1:9"
    assert pipeline.engine.master == "spark://host:7077"
    assert (view.batch, view.topic) == (5, "others")


def test_a_misspelt_variable_of_a_process_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingUnknown, match="worker_count"):
        read_gateway_file(write(tmp_path, "gateway"), {"PENSTOCK_GATEWAY_WORKER_COUNT": "3"})


def test_the_command_line_leaves_the_variables_of_processes_to_them() -> None:
    prefixes = {settings_file(kind).prefix.lower() for kind in KINDS} - {"", "penstock_"}

    assert {f"penstock_{prefix}" for prefix in cli_settings.PROCESS_PREFIXES} == prefixes


def test_a_view_takes_its_connection_string_from_a_file_and_one_store_alone(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql:///views\n")
    path = write(tmp_path, "view", postgres_file="dsn")

    with pytest.raises(SettingInvalid, match="expected one of --sqlite"):
        read_view_settings(path, {}, {})
    assert read_view_settings(path, {}, {"sqlite": str(tmp_path)}).stores is not None


def test_origins_are_shown_and_secrets_are_not(
    here: Callable[..., CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "control", relieve=False)
    monkeypatch.setenv("PENSTOCK_CONTROL_SESSION_SECONDS", "9")

    ran = here("config", "print", str(path), "--origin", "-o", "json")

    rows = {row["key"]: (row["value"], row["origin"]) for row in ran.data}
    assert rows["relieve"] == (False, str(path))
    assert rows["session_seconds"] == (9, "PENSTOCK_CONTROL_SESSION_SECONDS")
    assert rows["listen"] == ("127.0.0.1:28080", "default")
    assert rows["token"][0] == "(hidden)"
    assert "operator-token" not in ran.out


def test_every_secret_is_hidden_wherever_it_is_set(tmp_path: Path) -> None:
    for kind in KINDS:
        file = settings_file(kind)
        for setting in file.settings:
            is_hidden = setting.key.rpartition(".")[2] in SECRETS
            assert is_hidden == (setting.type == "secret"), (kind, setting.key)
    path = write(tmp_path, "control", notify={"webhook": "https://h", "secret": "hush"})

    shown = repr(settings_file("control").origins(path, {"PENSTOCK_CONTROL_HOME__LOGIN__PASSWORD": "hush"}))

    assert "notify.secret" in shown
    assert "hush" not in shown


def test_a_key_is_explained_and_an_unknown_one_is_an_error(here: Callable[..., CommandResult]) -> None:
    (row,) = here("config", "explain", "control:session_seconds", "-o", "json").data
    several = here("config", "explain", "metrics_port").out
    unknown = here("config", "explain", "colour")

    assert (row["unit"], row["variable"]) == ("seconds", "PENSTOCK_CONTROL_SESSION_SECONDS")
    assert "PENSTOCK_GATEWAY_METRICS_PORT" in several
    assert (unknown.code, "PEN-1007" in unknown.err) == (3, True)


def test_a_file_with_another_name_needs_its_kind(here: Callable[..., CommandResult], tmp_path: Path) -> None:
    path = write(tmp_path, "gateway").rename(tmp_path / "other.yaml")

    refused = here("config", "check", str(path))

    assert (refused.code, "--kind" in refused.err) == (2, True)
    assert here("config", "check", str(path), "--kind", "gateway").code == 0
