"""Bytes that are not Kafka's, slow clients and revoked keys do not disturb the process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.gateway.config import GatewayConfig, NetworkRules, Tenant, TenantLimits
from penstock.gateway.limits.admission import Denial
from penstock.gateway.settings import Bounds
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import ConnectionLost, LoginRefused
from penstock.wire.frames import Request, encode_request
from tests.harness.fleet import wait_for
from tests.harness.gateway import Access, RunningGateway, new_access, raw_login

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.process.upstream import Upstream

pytestmark = pytest.mark.kafka

API_VERSIONS = encode_request(Request("ApiVersions", 0, 7, "x", {}))

GARBAGE = {
    "nothing but zeros": bytes(64),
    "a negative length": struct.pack(">i", -1) + bytes(32),
    "the greatest length": struct.pack(">i", 2**31 - 1) + bytes(32),
    "a TLS hello": bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + bytes(64),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": os.urandom(512),
    "produce before a login": encode_request(Request("Metadata", 9, 1, "x", {"Topics": None})),
    "a login without a handshake": encode_request(
        Request("SaslAuthenticate", 2, 1, "x", {"AuthBytes": b"\0a\0b"})
    ),
    "an unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "a count that lies": struct.pack(">ihhih", 16, 17, 1, 1, -1) + b"\x7f\xff" + b"PLAI",
}


def place(access: Access) -> tuple[str, int]:
    host, port = access.bootstrap.split(",")[0].split(":")
    return host, int(port)


async def serves(access: Access) -> bool:
    async with await Connection.open(*place(access), access.security()) as connection:
        response = await connection.call("DescribeCluster", {})
        return bool(response["ClusterId"] == access.tenant.id)


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_closes_its_connection_and_nothing_else(ada: Access, what: str) -> None:
    reader, writer = await asyncio.open_connection(*place(ada))

    writer.write(GARBAGE[what])
    writer.write_eof()
    try:
        received = await reader.read()
    except ConnectionResetError:  # closed with unread bytes
        received = b""

    assert b"lkc-" not in received
    writer.close()
    assert await serves(ada)


async def test_garbage_after_login_closes_only_its_connection(ada: Access, bob: Access) -> None:
    bystander = await Connection.open(*place(bob), bob.security())
    attacker = await Connection.open(*place(ada), ada.security())

    # A Produce request whose arrays claim two billion elements.
    body = b"\xff\xff" + struct.pack(">hi", -1, 1000) + struct.pack(">i", 2**31 - 1) + bytes(100)
    frame = struct.pack(">hhih", 0, 3, 99, -1) + body
    attacker._writer.write(struct.pack(">i", len(frame)) + frame)
    with pytest.raises(PenstockError):
        await attacker.call("DescribeCluster", {})

    assert (await bystander.call("DescribeCluster", {}))["ClusterId"] == bob.tenant.id
    await bystander.close()
    await attacker.close()


def test_a_client_that_does_not_log_in_in_time_is_closed(make_gateway: Callable[..., RunningGateway]) -> None:
    running = make_gateway(new_access(), bounds=Bounds(handshake_seconds=1.0))
    gateway = running.gateway

    async def dawdle() -> bytes:
        reader, writer = await asyncio.open_connection(*place(running.accesses[0]))
        writer.write(API_VERSIONS[:6])
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    received = asyncio.run(dawdle())

    assert received == b""
    assert gateway.denials[Denial.HANDSHAKE_SLOW] == 1
    gateway.settings = replace(gateway.settings, bounds=Bounds())  # a login may take longer than a second
    assert asyncio.run(serves(running.accesses[0]))


def test_wrong_secrets_are_refused_and_too_many_lock_the_address_out(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = make_gateway(new_access(), bounds=Bounds(failed_logins_per_address=3))
    access = running.accesses[0]

    async def try_all() -> list[str]:
        reasons = []
        for key, secret in ((access.key, "wrong"), ("NOSUCHKEY0000000", access.secret), (access.key, "")):
            try:
                await Connection.open(*place(access), Security(Login(key, secret, Mechanism.PLAIN)))
            except LoginRefused as refused:
                reasons.append(str(refused.facts["reason"]))
        return reasons

    reasons = asyncio.run(try_all())

    assert len(reasons) == 3
    assert len(set(reasons)) == 1
    with pytest.raises(PenstockError):
        asyncio.run(serves(access))
    assert running.gateway.denials[Denial.FAILED_LOGINS] >= 1


def with_tenants(running: RunningGateway, *tenants: Tenant) -> GatewayConfig:
    return replace(running.gateway.config, tenants=tenants)


def test_a_revoked_key_loses_its_connections_and_others_keep_theirs(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = make_gateway(new_access(), new_access())
    ada, bob = running.accesses

    async def scenario() -> None:
        mine = await Connection.open(*place(ada), ada.security())
        theirs = await Connection.open(*place(bob), bob.security())
        revoked = replace(ada.tenant, keys=())
        await asyncio.to_thread(
            running.do, lambda: running.gateway.apply_config(with_tenants(running, revoked, bob.tenant))
        )
        with pytest.raises(PenstockError):
            await mine.call("DescribeCluster", {})
        assert (await theirs.call("DescribeCluster", {}))["ClusterId"] == bob.tenant.id
        with pytest.raises(LoginRefused):
            await Connection.open(*place(ada), ada.security())
        await theirs.close()
        await mine.close()

    asyncio.run(scenario())

    assert running.gateway.denials[Denial.KEY_REVOKED] == 1


def test_connections_beyond_the_limit_or_outside_the_networks_are_refused(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    import ipaddress

    elsewhere = NetworkRules(allowed=(ipaddress.ip_network("10.0.0.0/8"),))
    running = make_gateway(new_access(limits=TenantLimits(connections_max=1)), new_access(network=elsewhere))
    small, remote = running.accesses

    async def scenario() -> None:
        async with await Connection.open(*place(small), small.security()):
            with pytest.raises(ConnectionLost):  # which clients retry, unlike a refused login
                await Connection.open(*place(small), small.security())
        with pytest.raises(LoginRefused):
            await Connection.open(*place(remote), remote.security())

    asyncio.run(scenario())

    assert running.gateway.denials[Denial.TENANT_FULL] == 1
    assert running.gateway.denials[Denial.NETWORK_RULE] == 1
    wait_for(lambda: not running.gateway.sessions, what="the sessions to end")
    door = running.gateway.admission
    assert running.do(lambda: (door.open, door.half_open)) == (0, 0)


async def led_by_the_first_broker(connection: Connection, topic: str) -> None:
    """Create a topic led by the first broker, and wait until it is."""
    placed = [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}]
    requested = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    body = {"Topics": [requested | {"Assignments": placed}], "TimeoutMs": 10_000}
    made = await connection.call("CreateTopics", body)
    assert made["Topics"][0]["ErrorCode"] == 0
    leader = -1
    while leader != 1:
        response = await connection.call("Metadata", {"Topics": [{"Name": topic}]}, version=9)
        leader = next((p["LeaderId"] for p in response["Topics"][0]["Partitions"]), -1)


def test_draining_completes_what_is_in_flight_and_accepts_nothing_new(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    running = make_gateway(new_access())
    access = running.accesses[0]
    topic = unique("quiet")

    async def scenario() -> dict[str, object]:
        connection = await Connection.open(*place(access), access.security())
        await led_by_the_first_broker(connection, topic)
        partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1000}
        topics = [{"Topic": topic, "Partitions": [partition]}]
        poll = {"MaxWaitMs": 1500, "MinBytes": 1, "MaxBytes": 1000, "Topics": topics}
        requested = asyncio.create_task(connection.call("Fetch", poll, version=12))
        while not any(s.connection.in_flight for s in running.gateway.sessions.values()):
            await asyncio.sleep(0.01)
            if requested.done():  # a newly elected leader may refuse at once
                requested = asyncio.create_task(connection.call("Fetch", poll, version=12))
        draining = asyncio.run_coroutine_threadsafe(running.gateway.drain(), running.loop)
        response = await requested
        await asyncio.to_thread(draining.result, 20)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*place(access))
        await connection.close()
        return response

    response = asyncio.run(scenario())

    assert response["ErrorCode"] == 0
    assert response["Responses"]
    assert not running.gateway.sessions


def test_a_client_that_does_not_read_costs_bounded_memory(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = make_gateway(new_access(), bounds=Bounds(write_buffer_bytes_max=64 * 1024))
    access = running.accesses[0]
    requests = encode_request(Request("DescribeCluster", 0, 5, "x" * 100, {})) * 16  # as long as responses

    async def scenario() -> tuple[int, int]:
        _, writer = await raw_login(access)
        # Else the kernel would buffer all responses: it grows its buffers to many megabytes.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # no longer read
        sent = 0
        while sent < 64 << 20 and await _drained(writer, requests):
            sent += len(requests)
        held = await asyncio.to_thread(running.do, lambda: _buffered(running))
        writer.transport.abort()
        return sent, held

    sent, held = asyncio.run(scenario())

    assert sent < 64 << 20  # the client was paused
    assert held < 4 << 20


async def _drained(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """Whether the bytes were sent within two seconds."""
    try:
        async with asyncio.timeout(2):
            writer.write(data)
            await writer.drain()
    except TimeoutError:
        return False
    return True


def _buffered(running: RunningGateway) -> int:
    """Bytes that the gateway buffers for its sessions."""
    total = 0
    for session in running.gateway.sessions.values():
        total += session.connection.requests.held_bytes + session.connection.responses.held_bytes
        for transport in (session.transport, session.upstream and session.upstream.transport):
            total += transport.get_write_buffer_size() if transport else 0
    return total


def test_a_gateway_stops_after_its_broker_connections(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = make_gateway(new_access())
    access = running.accesses[0]

    async def come_and_go() -> list[Upstream]:
        connections = await asyncio.gather(
            *(Connection.open(*place(access), access.security()) for _ in range(20))
        )
        linked = running.do(lambda: [s.upstream for s in running.gateway.sessions.values()])
        for connection in connections:
            connection._writer.transport.abort()
        return [upstream for upstream in linked if upstream is not None]

    upstreams = asyncio.run(come_and_go())
    running.call(running.gateway.close())

    assert len(upstreams) == 20
    assert all(upstream.ended for upstream in upstreams)
