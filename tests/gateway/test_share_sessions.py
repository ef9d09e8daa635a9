"""A tenant's share of a broker's share sessions: enforced over all workers, and no session is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from penstock.gateway.config import TenantLimits
from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.share_sessions import ShareSessions
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.kafka.connection import Connection
from penstock.wire.error_codes import Code
from tests.gateway.wires import TENANT
from tests.harness.fleet import wait_for
from tests.harness.gateway import Access, RunningGateway, new_access, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

FINAL_EPOCH = -1


def test_all_workers_together_open_as_many_as_the_tenant_may() -> None:
    tenant = replace(TENANT, limits=TenantLimits(share_sessions_max=2))
    counters = SharedCounters(2)
    workers = []
    for number in range(2):
        counters.become(number)
        worker = SharedCounters.__new__(SharedCounters)
        worker.__dict__.update(counters.__dict__)
        workers.append(ShareSessions(worker))
    one, other = workers

    assert one.reserve(tenant, 1)
    assert other.reserve(tenant, 1)
    assert not one.reserve(tenant, 1)
    assert one.reserve(tenant, 2)  # on another broker
    other.release(tenant, 1)
    assert one.reserve(tenant, 1)


@pytest.mark.kafka
async def test_a_connection_leaves_no_share_session_behind(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    """Kafka removed one of two thousand when their connection ended, and the rest took up its whole cache."""
    running = make_gateway(new_access(limits=TenantLimits(share_sessions_max=1)))
    (ada,) = running.accesses
    topic, first, second = unique("orders"), str(uuid4()), str(uuid4())
    async with await at_home(ada) as connection:
        requested = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
        placed = {**requested, "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}]}
        await connection.call("CreateTopics", {"Topics": [placed], "TimeoutMs": 10_000})
    await wait_for_topic(ada, topic)

    async with await at_home(ada) as connection:
        opened = await share_fetch(connection, first, 0)
        beyond = await share_fetch(connection, second, 0)
        closed = await share_fetch(connection, first, FINAL_EPOCH)
        again = await share_fetch(connection, second, 0)
    sessions = running.gateway.services.share_sessions
    wait_for(lambda: sessions.reserve(ada.tenant, 1), what="room after the connection's end")
    sessions.release(ada.tenant, 1)
    async with await at_home(ada) as connection:
        while (await share_fetch(connection, second, 99))["ErrorCode"] != Code.SHARE_SESSION_NOT_FOUND:
            await asyncio.sleep(0.02)  # until the broker has removed it with its connection
        reopened = await share_fetch(connection, first, 0)

    assert [opened["ErrorCode"], closed["ErrorCode"], again["ErrorCode"]] == [Code.NONE] * 3
    assert beyond["ErrorCode"] == Code.SHARE_SESSION_LIMIT_REACHED
    assert reopened["ErrorCode"] == Code.NONE
    assert running.gateway.denials[Denial.SHARE_SESSIONS] == 1


async def at_home(access: Access) -> Connection:
    host, port = access.bootstrap.split(",")[0].split(":")
    return await Connection.open(host, int(port), access.security())


async def share_fetch(connection: Connection, member: str, epoch: int) -> dict[str, Any]:
    body = {
        "GroupId": "readers",
        "MemberId": member,
        "ShareSessionEpoch": epoch,
        "MaxWaitMs": 0,
        "MinBytes": 0,
        "MaxBytes": 1000,
        "MaxRecords": 1,
        "BatchSize": 1,
        "Topics": [],
        "ForgottenTopicsData": [],
    }
    return await connection.call("ShareFetch", body, version=1)
