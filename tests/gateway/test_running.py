"""Gateways that say that they run, and are found, looked at and drained by the command."""

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
from penstock.cli.gateway import drain
from penstock.gateway.running import Running, announce, end, figures, running
from penstock.model.errors import Exit
from penstock.model.errors.gateway import DrainTimedOut, GatewayNotRunning
from tests.ground.fleet import wait_for
from tests.ground.gateway import brokers_of, new_access

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ground.fleet import Fleet


def test_a_process_that_serves_is_found_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    path = announce(config, "gw-1", "127.0.0.1:1")
    said = json.loads(path.read_text())
    another = tmp_path / "gateway.yaml.1.run"
    another.write_text(json.dumps({**said, "started": said["started"] - 100}))  # its number was given anew
    strange = tmp_path / "gateway.yaml.x.run"
    strange.write_text("not ours")

    (found,) = running(config)

    assert (found.pid, found.gateway, found.alive) == (os.getpid(), "gw-1", True)
    assert not another.exists()
    assert strange.exists()
    assert running(tmp_path / "other.yaml") == []


def test_the_one_that_started_last_stands_last(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    announce(config, "new", "")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = psutil.Process(other.pid).create_time()
        said = {"pid": other.pid, "started": started, "gateway": "newer", "bootstrap": "", "metrics": ""}
        (tmp_path / f"gateway.yaml.{other.pid}.run").write_text(json.dumps(said))

        found = [one.gateway for one in running(config)]
        other.communicate(b"\n")

    assert found == ["new", "newer"]
    assert [one.gateway for one in running(config)] == ["new"]


def test_no_gateway_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(tmp_path / "gateway.yaml")

    assert run(["gateway", "status", "--config", config]) == Exit.UNHEALTHY
    assert run(["gateway", "drain", "--config", config]) == Exit.UNHEALTHY
    assert "no gateway runs with" in capsys.readouterr().err
    with pytest.raises(GatewayNotRunning):
        drain(config=tmp_path / "gateway.yaml")
    assert figures("") == figures("http://127.0.0.1:1/metrics") == {}


def test_one_that_does_not_end_is_told_of() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        one = Running(process.pid, psutil.Process(process.pid).create_time(), "gw-1", "", "")

        with pytest.raises(DrainTimedOut):
            list(end([one], 0.2))
        process.communicate(b"\n")

    assert not one.alive


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_has_not_reached_a_broker_yet_ends_when_told_to(tmp_path: Path, workers: int) -> None:
    (tmp_path / "platform.key").write_bytes(bytes(32))
    config = tmp_path / "gateway.yaml"
    broker = {"id": 1, "zone": "a", "address": "127.0.0.1:1"}
    config.write_text(yaml.safe_dump({"cluster": "pkc-000001", "brokers": [broker], "workers": workers}))
    command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "broker not reached" not in process.stderr.readline():
            assert process.poll() is None

        process.terminate()
        process.stderr.read()

        assert process.wait(30) == 0
    assert running(config) == []


@pytest.mark.kafka
def test_a_successor_takes_over_and_the_one_before_is_drained(
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
