"""A tenant that sends the largest frames it can hurts neither the gateway, the broker nor its neighbours."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.attack_load import flood
from penstock.kafka.connection import Connection
from penstock.model.errors import PenstockError
from tests.harness.gateway import new_access

if TYPE_CHECKING:
    from tests.harness.gateway import Access
    from tests.harness.gateway_process import GatewayFile

pytestmark = pytest.mark.kafka
MEBIBYTE = 1024 * 1024
GROWTH_BYTES_MAX = 100 * MEBIBYTE
ROUNDS = 4
PIPELINED = 16


ATTACKS = (
    ("FindCoordinator", 4, b"\0", b"\1", b""),
    ("DescribeUserScramCredentials", 0, b"", b"\1\0", b""),
    ("Metadata", 9, b"", b"\1\0", bytes(3)),
)


async def sent(access: Access, frames: bytes) -> None:
    """Send these bytes on a new connection, and one request more, which may find it closed."""
    host, port = access.bootstrap.split(",")[0].split(":")
    connection = await Connection.open(host, int(port), access.security())
    with suppress(PenstockError, OSError):
        connection._writer.write(frames)
        await connection._writer.drain()
        await connection.call("ListGroups", {}, version=3)
    await connection.close()


async def test_the_largest_frames_of_one_tenant_leave_the_others_alone(file: GatewayFile) -> None:
    file.settings["bounds"] = {"breach_wait_seconds": 0.5}
    ada, eve = await asyncio.to_thread(file.write, new_access(), new_access())
    process = psutil.Process((await asyncio.to_thread(file.start)).pid)
    host, port = ada.bootstrap.split(",")[0].split(":")
    async with await Connection.open(host, int(port), ada.security()) as victim:
        await victim.call("ListGroups", {}, version=3)
        before = peak = process.memory_info().rss
        for attack in ATTACKS:
            large, small = flood(*attack), flood(*attack, size=64 * 1024) * PIPELINED
            for _ in range(ROUNDS):
                attacks = [asyncio.create_task(sent(eve, frames)) for frames in (large, small)]
                while not all(task.done() for task in attacks):
                    await victim.call("ListGroups", {}, version=3)  # served on the same connection
                    peak = max(peak, process.memory_info().rss)
                for task in attacks:
                    await task
        response = await victim.call("Metadata", {"Topics": []}, version=9)

    assert response["Brokers"]
    assert peak - before < GROWTH_BYTES_MAX
