"""A tenant's share of a broker's fetch sessions: held, given back, and never the others'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.gateway.config import TenantLimits
from penstock.gateway.fetches import NONE, OPENING, STILL_SECONDS, FetchSessions
from penstock.kafka.connection import Connection
from tests.ground.gateway import Access, RunningGateway, known_everywhere, new_access

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_beyond_its_share_a_tenant_fetches_without_a_session() -> None:
    sessions = FetchSessions(2, Clock())
    for number in (7, 8):
        assert sessions.epoch(0, OPENING) == OPENING
        sessions.use(number)

    assert sessions.epoch(0, OPENING) == NONE
    assert sessions.epoch(7, 5) == 5
    assert sessions.epoch(0, NONE) == NONE


@pytest.mark.parametrize("epoch", [NONE, OPENING])
def test_a_session_that_is_closed_or_opened_anew_makes_room(epoch: int) -> None:
    sessions = FetchSessions(1, Clock())
    sessions.use(7)

    assert sessions.epoch(7, epoch) == epoch

    assert not sessions.full()


def test_a_session_that_was_still_for_long_no_longer_counts() -> None:
    clock = Clock()
    sessions = FetchSessions(2, clock)
    sessions.use(7)
    sessions.use(8)
    clock.now = STILL_SECONDS - 1
    sessions.epoch(7, 3)
    clock.now = STILL_SECONDS + 1

    assert not sessions.full()

    assert list(sessions.used) == [7]


def test_a_session_of_nobody_is_not_counted_by_using_it() -> None:
    sessions = FetchSessions(1, Clock())

    assert sessions.epoch(99, 4) == 4

    assert not sessions.used


@pytest.mark.kafka
async def test_one_tenant_cannot_take_the_broker_all_its_sessions(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    running = make_gateway(new_access(limits=TenantLimits(fetch_sessions_max=2)), new_access())
    ada, bob = running.accesses
    topic = unique("orders")
    for access in (ada, bob):
        async with await at_home(access) as connection:
            asked = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
            placed = {**asked, "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}]}
            await connection.call("CreateTopics", {"Topics": [placed], "TimeoutMs": 10_000})
        await known_everywhere(access, topic)

    async with await at_home(ada) as one, await at_home(ada) as other, await at_home(bob) as neighbour:
        opened = [await fetch(one, topic), await fetch(other, topic)]
        beyond = await fetch(one, topic)
        theirs = await fetch(neighbour, topic)
        await fetch(one, topic, session=opened[0]["SessionId"], epoch=NONE)
        again = await fetch(other, topic)

    assert all(answer["SessionId"] > 0 for answer in (*opened, theirs, again))
    assert beyond["SessionId"] == 0
    assert [len(answer["Responses"]) for answer in (*opened, beyond, theirs, again)] == [1] * 5


async def at_home(access: Access) -> Connection:
    host, port = access.bootstrap.split(",")[0].split(":")
    return await Connection.open(host, int(port), access.security())


async def fetch(connection: Connection, topic: str, session: int = 0, epoch: int = OPENING) -> dict[str, Any]:
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1000}
    body = {
        "MaxWaitMs": 0,
        "MinBytes": 0,
        "SessionId": session,
        "SessionEpoch": epoch,
        "Topics": [{"Topic": topic, "Partitions": [partition]}],
    }
    return await connection.call("Fetch", body, version=12)
