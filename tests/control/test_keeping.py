"""Gateways of dedicated clusters: kept up, found by a successor, never doubled, ended with the platform."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml

from penstock.control.gateways import GATEWAY_FILE
from penstock.control.keeping import GatewayKeeper, end_gateway
from penstock.control.local import DEDICATED, LocalProvisioner, stop_dedicated
from penstock.fleet.layout import Layout
from penstock.gateway.running import running
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import PhysicalCluster, Tenancy
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import LoginRefused
from tests.control.conftest import open_office
from tests.control.test_gateways import SECRET, new_key
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ground.fleet import Fleet


def below(path: Path) -> list[psutil.Process]:
    """Processes that were given something under this path."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(path) in word for word in words):
            found.append(process)
    return found


def settings(path: Path, fleet: Fleet, name: str) -> Path:
    """Of a gateway that has no tenants."""
    document = {
        "gateway": name,
        "cluster": "pkc-000001",
        "platform_key": str(fleet.local.layout.secrets / "platform.key"),
        "brokers": [{"id": 1, "zone": "a", "address": fleet.gateway_bootstrap, "port": 0}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def serving(path: Path, but: tuple[int, ...] = ()) -> int:
    """The process that serves by this file, once there is one besides these."""

    async def one() -> int | None:
        return next((found.pid for found in running(path) if found.pid not in but), None)

    return await eventually(one)


@pytest.mark.kafka
async def test_a_gateway_that_dies_is_started_again_and_one_that_runs_is_left_alone(
    control_fleet: Fleet, tmp_path: Path
) -> None:
    path = settings(tmp_path / "gateway.yaml", control_fleet, "first")
    keeper, successor = GatewayKeeper(), GatewayKeeper()
    try:
        keeper.keep("pkc-000001", path)
        first = await serving(path)
        os.kill(first, signal.SIGKILL)
        second = await serving(path, (first,))
        await keeper.close()

        successor.keep("pkc-000001", path)
        settings(path, control_fleet, "second")
        third = await serving(path, (first, second))

        assert [process.pid for process in below(path)] == [third]
        assert [one.gateway for one in running(path)] == ["second"]
    finally:
        await successor.stop("pkc-000001", path)
        await keeper.close()
        await end_gateway(path)
    assert below(path) == []


@pytest.mark.kafka
async def test_a_dedicated_cluster_s_gateway_comes_back_and_outlives_its_control_plane(
    control_fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    key = new_key(unique)
    layout = Layout(tmp_path)
    first, second = LocalProvisioner(layout), LocalProvisioner(layout)
    try:
        async with open_office(control_fleet, provisioner=first) as office:
            await office.active()
            cluster = await office.create(unique("alone"), tenancy=Tenancy.DEDICATED)
            await office.key(cluster.id, key, SECRET)
            physical = office.plane.registry.need(PhysicalCluster, cluster.cluster)
            path = Layout(tmp_path / DEDICATED / physical.id).cluster(physical.id) / GATEWAY_FILE
            brokers = first._kept[physical.id].supervisor.fleet.nodes
            killed = await serving(path)
            os.kill(killed, signal.SIGKILL)

            back = await serving(path, (killed,))

            await eventually(lambda: serves(physical.bootstrap, key))
        await first.close()
        assert await serves(physical.bootstrap, key)
        async with open_office(control_fleet, provisioner=second) as office:
            await office.active()

            async def found_again() -> bool:
                return office.plane.clusters.has(physical.id)

            await eventually(found_again)
            assert await serving(path) == back
            assert await serves(physical.bootstrap, key)
            assert [p.pid for p in below(path)] == [back]
    finally:
        await asyncio.gather(first.close(), second.close())
        ended = await stop_dedicated(layout)
    assert ended

    async def gone() -> bool:  # their last threads take a moment longer than they
        return not any(node.running() for node in brokers) and not below(tmp_path)

    await eventually(gone)


async def serves(bootstrap: str, key: str) -> bool:
    try:
        async with Client(bootstrap, Security(Login(key, SECRET, Mechanism.PLAIN))) as client:
            await client.call("Metadata", {"Topics": []}, again=False)
    except (PenstockError, LoginRefused):
        return False
    return True
