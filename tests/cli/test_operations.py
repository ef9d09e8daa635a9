"""A whole platform by its commands: status, logs, audit and debug bundle, and what a dead service changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import yaml

from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.model.metric_catalogue import (
    BACKUP,
    BALANCE,
    CONTROL,
    FLEET,
    GATEWAY,
    HEALTH,
    HEALTH_CHECKER,
    HEALTH_CONTROL,
    PROCESS,
    QUOTA,
    ROLLS,
    SIZING,
)
from penstock.platform.companions import RECORD_SUFFIX
from penstock.platform.debug_bundle import redacted
from penstock.platform.keyring import saved_keys
from penstock.platform.services import READY, readiness
from penstock.process_identity import read_alive
from tests.harness.command import CommandResult, Penstock
from tests.harness.fleet import wait_for
from tests.harness.metrics import differences
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WHOLE = {"PENSTOCK_FLEET_ONLY": "no"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    directory = tmp_path_factory.mktemp("operations")
    penstock = Penstock(home=directory / "home", directory=directory)
    fleet = directory / "fleet.yaml"
    shape = {"combined": True, "brokers": 1, "zones": ["a"], "port": 0, "backup": {"store": "file"}}
    fleet.write_text(yaml.safe_dump({"clusters": [shape]}))
    ran = penstock("up", "--fleet", str(fleet), "--detach", "-o", "json", env=WHOLE)
    assert ran.code == 0, ran.err
    yield Platform(penstock)
    penstock.end_everything()


def states(ran: CommandResult) -> dict[str, str]:
    return {row["service"]: row["state"] for row in ran.data["services"]}


@pytest.mark.kafka
def test_status_probes_every_service_and_its_exit_code_counts_them(
    platform: Platform, here: Callable[..., CommandResult], tmp_path: Path
) -> None:
    """Ends with a killed supervisor, so it does all that needs the whole platform."""
    penstock, home = platform.penstock, ("--home", str(platform.layout.home))

    ran = here("status", "-o", "json", *home)
    assert (ran.code, states(ran)) == (
        0,
        {
            "supervisor": "ready",
            "control plane": "ready",
            "coordinator": "ready",
            "checker": "ready",
            "gateway of home": "ready",
            "backup of home": "ready",
        },
    )
    assert [row["role"] for row in ran.data["services"]] == ["", "active", "", "", "", ""]
    _check_management({row["service"]: row["metrics"] for row in ran.data["services"]})
    _check_backup(here, *home)
    for name in ("control", "coordinator", "gateway-home"):
        lines = here("logs", name, "-n", "1000", *home).out.splitlines()
        assert lines, name
        assert all(json.loads(line)["event"] for line in lines), name
    events = here("audit", "search", "--operation", "cluster.create", "-o", "json", *home).data
    assert {event["after"]["name"] for event in events} == {"demo", "penstock-health"}
    assert here("audit", "tail", "-n", "1", "-o", "json", *home).data[0]["operation"]

    _check_coordinator_from_a_file(platform, tmp_path)

    archive = tmp_path / "bundle.tar.gz"
    assert here("debug", "bundle", "--to", str(archive), *home).code == 0
    _check_bundle(archive, platform)

    platform.kill_supervisor()
    for path in platform.layout.home.rglob(f"*{RECORD_SUFFIX}"):
        wait_for(partial(_ended, path), what=f"{path.name} to end with its supervisor")
    dead = here("status", "-o", "json", *home)
    assert dead.data["state"] == "ready", "Kafka itself is"
    assert (dead.code, set(states(dead).values())) == (5, {"not running"})
    assert len(dead.data["services"]) == 6, "with the supervisor"

    again = penstock("up", "--detach", "-o", "json", env=WHOLE)
    assert again.code == 0, again.err
    assert here("status", "--exit-when-healthy", "-o", "json", *home).code == 0


def _check_management(addresses: dict[str, str]) -> None:
    """Every service serves health and metrics, and exactly the metrics of the catalogue."""
    tables = {
        "supervisor": (FLEET,), "control plane": (CONTROL, BALANCE, SIZING, ROLLS, HEALTH_CONTROL),
        "coordinator": (QUOTA,), "checker": (HEALTH_CHECKER, HEALTH.part("probe_seconds")),
        "gateway of home": (GATEWAY,), "backup of home": (BACKUP,),
    }  # fmt: skip
    assert addresses.keys() == tables.keys()
    for service, exported in tables.items():
        for path in ("livez", "readyz"):
            with urlopen(f"http://{addresses[service]}/{path}", timeout=30) as response:
                assert response.read() == b"ok\n", (service, path)
        with urlopen(f"http://{addresses[service]}/metrics", timeout=30) as response:
            page = response.read().decode()
        assert differences(page, PROCESS, *exported) == [], service


def _check_backup(here: Callable[..., CommandResult], *home: str) -> None:
    """The demo's orders are archived, and the control plane shows it without a settings file."""
    wait_for(lambda: here("backup", "status", "-o", "json", *home).data["topics"] > 0, what="archived topics")
    state = here("backup", "status", "-o", "json", *home).data
    assert (state["gaps"], state["restore_running"], state["holds"]) == (0, "", "")
    assert state["last_archived"]
    topics = here("backup", "list", "-o", "json", *home).data
    orders = [row["topic"] for row in topics if row["topic"].endswith("_orders")]
    assert orders
    lines = here("logs", "backup-home", "-n", "10", *home).out.splitlines()
    assert lines


def _check_coordinator_from_a_file(platform: Platform, directory: Path) -> None:
    """It becomes ready as a second member of the group, and ends in order at SIGTERM."""
    cluster = platform.fleet.clusters[0].cluster
    (directory / "password").write_text(platform.fleet.access.credentials.platform)
    login = {"user": PLATFORM_USER, "password_file": "password"}
    file = directory / "coordinator.yaml"
    file.write_text(
        yaml.safe_dump(
            {"clusters": [{"name": "home", "bootstrap": cluster.spec.bootstrap(), "login": login}]}
        )
    )
    log = directory / "coordinator.log"
    command = [sys.executable, "-m", "penstock", "quota", "coordinate", "--config", str(file)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stderr=output, env=os.environ | {"PENSTOCK_COORDINATOR_METRICS": "127.0.0.1:0"}
        )

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        urls = re.findall(r"metrics on http://([\d.:]+)/", log.read_text())
        return bool(urls) and readiness(urls[0]) == READY

    try:
        wait_for(ready, what="the coordinator to be ready")
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _ended(record: Path) -> bool:
    return read_alive(record) is None


def _check_bundle(path: Path, platform: Platform) -> None:
    """Has what helps, and no secret."""
    credentials = platform.fleet.access.credentials
    secrets = [credentials.node, credentials.platform, *(key.secret for key in saved_keys(platform.layout))]
    secrets.append((platform.layout.secrets / "operator.token").read_text().strip())
    texts: dict[str, str] = {}
    with tarfile.open(path) as bundle:
        for member in bundle.getmembers():
            file = bundle.extractfile(member)
            assert file is not None
            texts[member.name.partition("/")[2]] = file.read().decode()
    for name in (
        "versions.json", "status.json", "settings/clusters/home/b1/server.properties", "logs/b1.log",
        "logs/control.log", "state/clusters.json", "metrics/control.txt", "metrics/home-b1.txt",
        "metrics/coordinator.txt", "metrics/gateway-home.txt", "metrics/supervisor.txt",
    ):  # fmt: skip
        assert texts[name], name
    assert "demo" in texts["state/clusters.json"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(secrets) > 3
    assert not [name for name, text in texts.items() if any(secret in text for secret in secrets)]
    key = (platform.layout.secrets / "ca.key.pem").read_text().splitlines()[1:-1]
    assert not [name for name, text in texts.items() if any(line in text for line in key)]


@pytest.mark.parametrize(
    "text",
    ["password=hunter2hunter2", '"sasl.password": "hunter2hunter2"', "token: hunter2hunter2",
     'sasl.jaas.config=Login required username="u" password="hunter2hunter2";', "x hunter2hunter2 y"],
)  # fmt: skip
def test_a_secret_is_redacted_by_its_key_or_its_value(text: str) -> None:
    known: list[Any] = ["hunter2hunter2"] if text.startswith("x") else []

    assert "hunter2" not in redacted(text, known)


def test_what_is_no_secret_stays() -> None:
    assert redacted("listeners=PLAINTEXT://127.0.0.1:1\nbroker.id=1", []) == (
        "listeners=PLAINTEXT://127.0.0.1:1\nbroker.id=1"
    )
