"""A gateway of two workers: tenants see one gateway, and no limit counts twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.app import run
from penstock.gateway.config import TenantLimits
from penstock.gateway.process.run_file import headline_metrics
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.wire import BrokerUnreachable, ConnectionLost, LoginRefused
from penstock.model.events import Dimension
from tests.gateway.test_drain import Load
from tests.gateway.test_server import place
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access, wait_for_topic
from tests.harness.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.gateway.process.run_file import RunFile
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka
SECONDS = 30.0
CLOSED = (BrokerUnreachable, ConnectionLost)
FAILED_MAX = 20
TRIES_MAX = 200  # at random: connections that all come to the same worker


@pytest.fixture
def file(fleet: Fleet, tmp_path: Path) -> Iterator[GatewayFile]:
    made = GatewayFile(fleet, tmp_path / "gateway.yaml", {"workers": 2})
    yield made
    made.stop()


def held(one: RunFile) -> list[int]:
    """Connections by worker."""
    return [headline_metrics(process.metrics).get("connections", 0) for process in one.processes]


async def counted(one: RunFile, count: int) -> list[int]:
    """Connections by worker, once the refused ones are closed."""
    await asyncio.to_thread(wait_for, lambda: sum(held(one)) == count, what=f"{count} connections")
    return held(one)


async def opened(access: Access, count: int, ending: AsyncExitStack) -> list[Connection]:
    connections = []
    for _ in range(count):
        connection = await Connection.open(*place(access), access.security())
        connections.append(await ending.enter_async_context(connection))
    return connections


async def at_both(access: Access, one: RunFile, ending: AsyncExitStack) -> list[Connection]:
    """Connections, of which each worker has some."""
    connections: list[Connection] = []
    for _ in range(TRIES_MAX):
        connections += await opened(access, 1, ending)
        if all(await asyncio.to_thread(held, one)):
            return connections
    pytest.fail(f"{TRIES_MAX} connections came to one worker")


async def ended(connection: Connection) -> bool:
    try:
        await connection.call("DescribeCluster", {})
    except PenstockError:
        return True
    return False


async def test_a_tenants_connections_are_counted_over_both_workers_without_dead_ones(
    file: GatewayFile,
) -> None:
    limit = 12
    access = new_access(limits=TenantLimits(connections_max=limit))
    (access,) = await asyncio.to_thread(file.write, access)
    one = await asyncio.to_thread(file.start)
    async with AsyncExitStack() as ending:
        connections = await opened(access, limit, ending)
        for _ in range(6):  # some at either worker
            with pytest.raises(ConnectionLost):
                await Connection.open(*place(access), access.security())
        shares = await counted(one, limit)
        dead, other = sorted(range(2), key=lambda index: -shares[index])

        os.kill(one.processes[dead].pid, signal.SIGKILL)

        def replaced() -> bool:
            connections = file.running()
            return bool(connections) and connections[0].processes[dead].pid != one.processes[dead].pid

        await asyncio.to_thread(wait_for, replaced, what="another worker")
        gone = [connection for connection in connections if await ended(connection)]
        assert len(gone) == shares[dead]
        (after,) = file.running()
        assert after.processes[other] == one.processes[other]
        await opened(access, len(gone), ending)
        with pytest.raises(ConnectionLost):
            await Connection.open(*place(access), access.security())
        await counted(after, limit)


async def test_failed_logins_lock_an_address_out_at_both_workers(file: GatewayFile) -> None:
    file.settings["bounds"] = {
        "failed_logins_per_address": FAILED_MAX,
        "failed_logins_seconds": 60,
        "failed_login_wait_seconds": 0.1,
    }
    (access,) = await asyncio.to_thread(file.write, new_access())
    one = await asyncio.to_thread(file.start)
    wrong = Security(Login(access.key, "x" * 64, Mechanism.PLAIN))

    async with AsyncExitStack() as ending:
        await at_both(access, one, ending)
        # All at once: they are forgotten some seconds after the first, and this machine may be busy.
        refused = await asyncio.gather(
            *(Connection.open(*place(access), wrong) for _ in range(FAILED_MAX)),
            return_exceptions=True,
        )
        attempts = await asyncio.gather(  # at either worker, even with the right secret
            *(Connection.open(*place(access), access.security()) for _ in range(8)), return_exceptions=True
        )

    assert {type(response) for response in refused} == {LoginRefused}
    assert all(isinstance(response, CLOSED) for response in attempts), attempts


async def test_a_changed_file_applies_at_both_workers_without_reconnects(
    file: GatewayFile,
) -> None:
    gone, stays, comes = new_access(), new_access(), new_access()
    gone, stays = await asyncio.to_thread(file.write, gone, stays)
    one = await asyncio.to_thread(file.start)
    async with AsyncExitStack() as ending:
        dropped = await at_both(gone, one, ending)
        kept = await at_both(stays, one, ending)
        before = await asyncio.to_thread(held, one)

        limited = replace(
            stays.tenant,
            limits=TenantLimits(connections_max=len(kept) + 1),
            quota={Dimension.INGRESS_BYTES: 1e6},
            keys=(*stays.tenant.keys, replace(comes.tenant.keys[0], account=stays.account)),
        )
        without = replace(gone, tenant=replace(gone.tenant, keys=()))
        newcomer = new_access()
        _, _, newcomer = await asyncio.to_thread(
            file.write, without, replace(stays, tenant=limited), newcomer
        )

        async with asyncio.timeout(SECONDS):  # the limit is two seconds; this machine may be busy
            while not all([await ended(connection) for connection in dropped]):
                await asyncio.sleep(0.05)
        assert not any([await ended(connection) for connection in kept])
        await at_both(newcomer, one, ending)
        await opened(replace(stays, key=comes.key, secret=comes.secret), 1, ending)
        with pytest.raises(ConnectionLost):  # beyond its new limit, at either worker
            await Connection.open(*place(stays), stays.security())
        after = await asyncio.to_thread(file.running)
        assert after == [one]
        assert sum(before) == len(dropped) + len(kept)


def test_two_workers_are_replaced_under_load_without_client_errors(
    file: GatewayFile, unique: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    (access,) = file.write(new_access())
    old, topic = file.start(), unique("orders")
    client = AdminClient(access.client_config())
    client.create_topics([NewTopic(topic, 3, 3)])[topic].result(SECONDS)
    asyncio.run(wait_for_topic(access, topic, 3))
    load = Load(access, topic, unique("readers"))
    try:
        wait_for(lambda: len(load.read) > 100, what="records to come through the old gateway")
        new = file.start()
        path = str(file.path)
        assert run(["gateway", "status", "--config", path, "-o", "json"]) == Exit.FINE
        shown = json.loads(capsys.readouterr().out)
        assert run(["gateway", "drain", "--config", path, "--but-newest"]) == Exit.FINE
        assert file.running() == [new]
        assert file.wait(old) == 0
        count = len(load.read)
        wait_for(lambda: len(load.read) > count + 100, what="records to come through the new gateway")
    finally:
        load.stop()
    assert load.surfaced == []
    assert load.delivered == load.sent == len(set(load.read))
    assert [(row["gateway"], row["pid"]) for row in shown] == [
        (process.gateway, process.pid) for one in (old, new) for process in one.processes
    ]
    assert not any(psutil.pid_exists(process.pid) for process in old.processes)
    assert run(["gateway", "drain", "--config", path]) == Exit.FINE
    assert file.wait(new) == 0
    assert list(file.path.parent.glob("*.run")) == []
