"""Run files: written, listed and removed, and used by status and drain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml

from penstock.cli.app import run
from penstock.cli.operator.gateway import drain
from penstock.gateway.process.run_file import RunFile, announce, end, headline_metrics, running
from penstock.model.errors import Exit
from penstock.model.errors.gateway import DrainTimedOut, GatewayNotRunning
from penstock.process_identity import identify, write_identity
from tests.harness.fleet import wait_for
from tests.harness.gateway import brokers_of, new_access

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fleet import Fleet


def test_a_running_process_is_listed_and_a_dead_one_is_not(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    path = announce(config, "gw-1", "127.0.0.1:1")
    record = json.loads(path.read_text())
    another = tmp_path / "gateway.yaml.1.run"
    another.write_text(json.dumps({**record, "started": "another boot:1"}))  # its pid was reused
    strange = tmp_path / "gateway.yaml.x.run"
    strange.write_text("not ours")

    (listed,) = running(config)

    assert (listed.pid, listed.gateway, listed.alive) == (os.getpid(), "gw-1", True)
    assert not another.exists()
    assert strange.exists()
    assert running(tmp_path / "other.yaml") == []


def test_gateways_are_listed_oldest_first(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    announce(config, "new", "")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        newer = identify(other.pid)
        assert newer is not None
        since = psutil.Process(other.pid).create_time()
        path = tmp_path / f"gateway.yaml.{other.pid}.run"
        write_identity(path, newer, since=since, gateway="newer", bootstrap="", metrics="")

        listed = [one.gateway for one in running(config)]
        other.communicate(b"\n")

    assert listed == ["new", "newer"]
    assert [one.gateway for one in running(config)] == ["new"]


def test_status_without_a_gateway_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(tmp_path / "gateway.yaml")

    assert run(["gateway", "status", "--config", config]) == Exit.UNHEALTHY
    assert run(["gateway", "drain", "--config", config]) == Exit.UNHEALTHY
    assert "no gateway runs with" in capsys.readouterr().err
    with pytest.raises(GatewayNotRunning):
        drain(config=tmp_path / "gateway.yaml")
    assert headline_metrics("") == headline_metrics("http://127.0.0.1:1/metrics") == {}


def test_a_gateway_that_does_not_drain_in_time_is_an_error() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None
        one = RunFile(identity, 0.0, "gw-1", "", "")

        with pytest.raises(DrainTimedOut):
            list(end([one], 0.2))
        process.communicate(b"\n")

    assert not one.alive


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gateway_that_has_reached_no_broker_stops_on_sigterm(tmp_path: Path, workers: int) -> None:
    (tmp_path / "platform.key").write_bytes(bytes(32))
    config = tmp_path / "gateway.yaml"
    broker = {"id": 1, "zone": "a", "address": "127.0.0.1:1"}
    config.write_text(yaml.safe_dump({"cluster": "pkc-000001", "brokers": [broker], "workers": workers}))
    command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "broker unreachable" not in process.stderr.readline():
            assert process.poll() is None

        process.terminate()
        process.stderr.read()

        assert process.wait(30) == 0
    assert running(config) == []


@pytest.mark.kafka
def test_a_successor_takes_over_and_its_predecessor_is_drained(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    access, config = new_access(), tmp_path / "gateway.yaml"
    (key,) = access.tenant.keys
    document = {
        "gateway": "gw-1",
        "cluster": "pkc-000001",
        "platform_key": str(fleet.local.layout.secrets / "platform.key"),
        "metrics_port": 0,
        "brokers": [
            {"id": int(b.id), "zone": b.zone, "address": f"{b.host}:{b.port}"} for b in brokers_of(fleet)
        ],
        "tenants": [
            {
                "id": access.tenant.id,
                "accounts": [{"id": access.account}],
                "keys": [{"id": key.id, "secret_sha256": key.secret_sha256.hex(), "account": access.account}],
            }
        ],
    }
    config.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(config)]
    with (
        subprocess.Popen([*command, "--until-stdin-ends"], stdin=subprocess.PIPE) as first,
        subprocess.Popen([*command, "--until-stdin-ends"], stdin=subprocess.PIPE) as second,
    ):
        wait_for(lambda: len(running(config)) == 2, what="both to serve", seconds=60.0)
        oldest, newest = running(config)

        assert run(["gateway", "status", "--config", str(config), "-o", "json"]) == Exit.FINE
        shown = json.loads(capsys.readouterr().out)
        assert run(["gateway", "drain", "--config", str(config), "--but-newest"]) == Exit.FINE
        left = running(config)
        assert run(["gateway", "drain", "--config", str(config)]) == Exit.FINE
        codes = [one.wait(30) for one in (first, second)]

    assert [(one["gateway"], one["tenants"], one["connections"]) for one in shown] == [("gw-1", 1, 0)] * 2
    assert {oldest.pid, newest.pid} == {first.pid, second.pid}
    assert left == [newest]
    assert codes == [0, 0]
    assert list(tmp_path.glob("*.run")) == []
