"""A tenant's share of a broker's fetch sessions: enforced, released, and never taken from others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.gateway.config import TenantLimits
from penstock.gateway.tenancy.fetch_sessions import (
    EVICTABLE_SECONDS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSessions,
)
from penstock.kafka.connection import Connection
from tests.harness.gateway import Access, RunningGateway, new_access, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_beyond_its_share_a_tenant_fetches_without_a_session() -> None:
    sessions = FetchSessions(2, Clock())
    for number in (7, 8):
        assert sessions.epoch(0, INITIAL_EPOCH) == INITIAL_EPOCH
        sessions.use(number)

    assert sessions.epoch(0, INITIAL_EPOCH) == FINAL_EPOCH
    assert sessions.epoch(7, 5) == 5
    assert sessions.epoch(0, FINAL_EPOCH) == FINAL_EPOCH


@pytest.mark.parametrize("epoch", [FINAL_EPOCH, INITIAL_EPOCH])
def test_a_closed_or_reopened_session_makes_room(epoch: int) -> None:
    sessions = FetchSessions(1, Clock())
    sessions.use(7)

    assert sessions.epoch(7, epoch) == epoch

    assert not sessions.full()


def test_a_session_idle_for_long_no_longer_counts() -> None:
    clock = Clock()
    sessions = FetchSessions(2, clock)
    sessions.use(7)
    sessions.use(8)
    clock.now = EVICTABLE_SECONDS - 1
    sessions.epoch(7, 3)
    clock.now = EVICTABLE_SECONDS + 1

    assert not sessions.full()

    assert list(sessions.used) == [7]


def test_using_an_unknown_session_does_not_count_it() -> None:
    sessions = FetchSessions(1, Clock())

    assert sessions.epoch(99, 4) == 4

    assert not sessions.used


@pytest.mark.kafka
async def test_one_tenant_cannot_take_all_of_a_brokers_fetch_sessions(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    running = make_gateway(new_access(limits=TenantLimits(fetch_sessions_max=2)), new_access())
    ada, bob = running.accesses
    topic = unique("orders")
    for access in (ada, bob):
        async with await at_home(access) as connection:
            requested = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
            placed = {**requested, "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}]}
            await connection.call("CreateTopics", {"Topics": [placed], "TimeoutMs": 10_000})
        await wait_for_topic(access, topic)

    async with await at_home(ada) as one, await at_home(ada) as other, await at_home(bob) as neighbour:
        opened = [await fetch(one, topic), await fetch(other, topic)]
        beyond = await fetch(one, topic)
        theirs = await fetch(neighbour, topic)
        await fetch(one, topic, session=opened[0]["SessionId"], epoch=FINAL_EPOCH)
        again = await fetch(other, topic)

    assert all(response["SessionId"] > 0 for response in (*opened, theirs, again))
    assert beyond["SessionId"] == 0
    assert [len(response["Responses"]) for response in (*opened, beyond, theirs, again)] == [1] * 5


async def at_home(access: Access) -> Connection:
    host, port = access.bootstrap.split(",")[0].split(":")
    return await Connection.open(host, int(port), access.security())


async def fetch(
    connection: Connection, topic: str, session: int = 0, epoch: int = INITIAL_EPOCH
) -> dict[str, Any]:
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1000}
    body = {
        "MaxWaitMs": 0,
        "MinBytes": 0,
        "SessionId": session,
        "SessionEpoch": epoch,
        "Topics": [{"Topic": topic, "Partitions": [partition]}],
    }
    return await connection.call("Fetch", body, version=12)
