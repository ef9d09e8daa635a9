"""Gateways of dedicated clusters: restarted, found by a successor, never doubled, stopped at shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml

from penstock.control.physical.gateway_files import GATEWAY_FILE
from penstock.control.physical.gateway_supervisor import GatewaySupervisor, stop_gateway
from penstock.control.physical.local import DEDICATED, LocalProvisioner, stop_dedicated
from penstock.fleet.layout import Layout
from penstock.gateway.process.run_file import running
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import PhysicalCluster, Tenancy
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import LoginRefused
from tests.control.conftest import run_control_plane
from tests.control.test_gateway_files import SECRET, new_key
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet


def below(path: Path) -> list[psutil.Process]:
    """Processes with a path below this one in their arguments."""
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(path) in word for word in words):
            processes.append(process)
    return processes


def settings(path: Path, fleet: Fleet, name: str) -> Path:
    """Settings of a gateway without tenants."""
    document = {
        "gateway": name,
        "cluster": "pkc-000001",
        "platform_key": str(fleet.local.layout.secrets / "platform.key"),
        "brokers": [{"id": 1, "zone": "a", "address": fleet.gateway_bootstrap, "port": 0}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def serving(path: Path, but: tuple[int, ...] = ()) -> int:
    """The process that serves with this file, once there is another one than these."""

    async def one() -> int | None:
        return next((one.pid for one in running(path) if one.pid not in but), None)

    return await eventually(one)


@pytest.mark.kafka
async def test_a_dead_gateway_is_restarted_and_a_running_one_left_alone(
    control_fleet: Fleet, tmp_path: Path
) -> None:
    path = settings(tmp_path / "gateway.yaml", control_fleet, "first")
    supervisor, successor = GatewaySupervisor(), GatewaySupervisor()
    try:
        supervisor.supervise("pkc-000001", path)
        first = await serving(path)
        os.kill(first, signal.SIGKILL)
        second = await serving(path, (first,))
        await supervisor.close()

        successor.supervise("pkc-000001", path)
        settings(path, control_fleet, "second")
        third = await serving(path, (first, second))

        assert [process.pid for process in below(path)] == [third]
        assert [one.gateway for one in running(path)] == ["second"]
    finally:
        await successor.stop("pkc-000001", path)
        await supervisor.close()
        await stop_gateway(path)
    assert below(path) == []


@pytest.mark.kafka
async def test_a_dedicated_clusters_gateway_is_restarted_and_outlives_its_control_plane(
    control_fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    key = new_key(unique)
    layout = Layout(tmp_path)
    first, second = LocalProvisioner(layout), LocalProvisioner(layout)
    try:
        async with run_control_plane(control_fleet, provisioner=first) as harness:
            await harness.active()
            cluster = await harness.create(unique("alone"), tenancy=Tenancy.DEDICATED)
            await harness.key(cluster.id, key, SECRET)
            physical = harness.plane.registry.need(PhysicalCluster, cluster.cluster)
            path = Layout(tmp_path / DEDICATED / physical.id).cluster(physical.id) / GATEWAY_FILE
            brokers = first._supervised[physical.id].supervisor.fleet.nodes
            killed = await serving(path)
            os.kill(killed, signal.SIGKILL)

            back = await serving(path, (killed,))

            await eventually(lambda: serves(physical.bootstrap, key))
        await first.close()
        assert await serves(physical.bootstrap, key)
        async with run_control_plane(control_fleet, provisioner=second) as harness:
            await harness.active()

            async def reconnected() -> bool:
                return harness.plane.clusters.has(physical.id)

            await eventually(reconnected)
            assert await serving(path) == back
            assert await serves(physical.bootstrap, key)
            assert [p.pid for p in below(path)] == [back]
    finally:
        await asyncio.gather(first.close(), second.close())
        ended = await stop_dedicated(layout)
    assert ended

    async def gone() -> bool:  # threads may outlive their process for a moment
        return not any(node.running() for node in brokers) and not below(tmp_path)

    await eventually(gone)


async def serves(bootstrap: str, key: str) -> bool:
    try:
        async with Client(bootstrap, Security(Login(key, SECRET, Mechanism.PLAIN))) as client:
            await client.call("Metadata", {"Topics": []}, retry=False)
    except (PenstockError, LoginRefused):
        return False
    return True
