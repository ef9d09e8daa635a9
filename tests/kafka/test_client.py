"""The client: finds the right node, and finds it again when it moves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from penstock.kafka import offsets
from penstock.kafka.client import Client
from penstock.kafka.offsets import At
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.routing import (
    CONTROLLER,
    Address,
    LeaderOf,
    NodeWithId,
    addresses,
    group_coordinator,
)
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.wire import (
    BrokerUnknown,
    BrokerUnreachable,
    ConnectionLost,
    KafkaBusy,
    KafkaMissing,
)
from tests.kafka.broker import FakeBroker, fake_broker, metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.wire.frames import Request


class FakeCluster:
    """Three brokers that agree on who leads and who coordinates."""

    def __init__(self, brokers: dict[int, FakeBroker]) -> None:
        self.brokers = brokers
        self.leaders = {("orders", 0): 1, ("orders", 1): 2}
        self.coordinator = 1
        for node_id, broker in brokers.items():
            broker.answers["Metadata"] = lambda request: metadata(self.brokers, self.leaders)
            broker.answers["FindCoordinator"] = self.found
            broker.answers["DescribeGroups"] = lambda request, me=node_id: self.described(request, me)
            broker.answers["ListOffsets"] = lambda request, me=node_id: self.listed(request, me)
            broker.answers["DescribeCluster"] = lambda request, me=node_id: {"ClusterId": f"from {me}"}
            broker.answers["CreateTopics"] = lambda request: {"Topics": []}

    def found(self, request: Request) -> dict[str, Any]:
        keys = request.body["CoordinatorKeys"]
        return {"Coordinators": [{"Key": key, "NodeId": self.coordinator} for key in keys]}

    def described(self, request: Request, me: int) -> dict[str, Any]:
        code = 0 if me == self.coordinator else 16
        return {"Groups": [{"GroupId": request.body["Groups"][0], "ErrorCode": code, "GroupState": str(me)}]}

    def listed(self, request: Request, me: int) -> dict[str, Any]:
        return {
            "Topics": [
                {
                    "Name": t["Name"],
                    "Partitions": [
                        {
                            "PartitionIndex": p["PartitionIndex"],
                            "ErrorCode": 0 if self.leaders[t["Name"], p["PartitionIndex"]] == me else 6,
                            "Offset": me,
                        }
                        for p in t["Partitions"]
                    ],
                }
                for t in request.body["Topics"]
            ]
        }

    def asked(self, api: str) -> list[int]:
        """Which brokers were asked, in no order of time."""
        return [i for i, broker in self.brokers.items() for r in broker.asked if r.api == api]

    @property
    def bootstrap(self) -> str:
        return self.brokers[1].address


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with AsyncExitStack() as stack:
        yield FakeCluster({i: await stack.enter_async_context(fake_broker()) for i in (1, 2, 3)})


async def test_a_call_goes_to_the_node_that_its_route_names(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        by_id = await client.call("DescribeCluster", to=NodeWithId(3))
        by_leader = await client.call("DescribeCluster", to=LeaderOf("orders", 1))
        by_controller = await client.call("DescribeCluster", to=CONTROLLER)
        coordinated = await client.call(
            "DescribeGroups", {"Groups": ["payments"]}, to=group_coordinator("payments")
        )

    told = [answer["ClusterId"] for answer in (by_id, by_leader, by_controller)]
    assert told == ["from 3", "from 2", "from 1"]
    assert coordinated["Groups"][0]["GroupState"] == "1"


async def test_one_connection_a_node_serves_all_calls(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        await asyncio.gather(*(client.call("DescribeCluster", to=NodeWithId(2)) for _ in range(20)))
        before = cluster.brokers[2].connections
        await client.call("DescribeCluster", to=NodeWithId(2), lane="of its own")

    assert (before, cluster.brokers[2].connections) == (1, 2)


async def test_a_group_whose_coordinator_moved_is_found_again(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        body, route = {"Groups": ["payments"]}, group_coordinator("payments")
        await client.call("DescribeGroups", body, to=route)
        cluster.coordinator = 3
        moved = await client.call("DescribeGroups", body, to=route)
        await client.call("DescribeGroups", body, to=route)

    assert moved["Groups"][0]["GroupState"] == "3"
    assert sorted(cluster.asked("DescribeGroups")) == [1, 1, 3, 3]
    assert len(cluster.asked("FindCoordinator")) == 2


async def test_a_partition_whose_leader_moved_is_asked_for_again(cluster: FakeCluster) -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    honest = cluster.brokers[2].answers["ListOffsets"]

    def moves(request: Request) -> Any:
        cluster.leaders["orders", 1] = 3
        return honest(request)

    cluster.brokers[2].answers["ListOffsets"] = moves
    async with Client(cluster.bootstrap) as client:
        found = await offsets.find(client, {first: At.LATEST, second: At.LATEST})

    assert [getattr(found[p], "offset", found[p]) for p in (first, second)] == [1, 3]


async def test_a_partition_without_leader_is_busy_and_an_unknown_one_missing(cluster: FakeCluster) -> None:
    leaderless, missing = TopicPartition("orders", 0), TopicPartition("orders", 9)
    cluster.leaders["orders", 0] = -1
    async with Client(cluster.bootstrap) as client:
        found = await offsets.find(client, {leaderless: At.LATEST, missing: At.LATEST}, timeout=2.0)

    assert [type(found[p]) for p in (leaderless, missing)] == [KafkaBusy, KafkaMissing]


async def test_another_node_is_asked_when_the_first_is_gone(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        await client.cluster()
        await cluster.brokers[1].stop()
        del cluster.brokers[1]
        answers = [await client.call("DescribeCluster") for _ in range(3)]
        renewed = await client.cluster(renew=True)

    assert {answer["ClusterId"] for answer in answers} <= {"from 2", "from 3"}
    assert sorted(renewed.nodes) == [2, 3]


async def test_every_bootstrap_address_is_tried(cluster: FakeCluster) -> None:
    gone = cluster.brokers.pop(1)
    await gone.stop()

    async with Client([gone.address, cluster.brokers[2].address]) as client:
        answer = await client.call("DescribeCluster")

    assert answer["ClusterId"] in ("from 2", "from 3")


async def test_nobody_there_is_said_within_the_time_given(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        await broker.stop()

    async with Client([broker.address for broker in cluster.brokers.values()]) as client:
        with pytest.raises(BrokerUnreachable):
            await client.call("DescribeCluster", timeout=0.4)


async def test_a_node_that_accepts_and_says_nothing_costs_no_more_than_the_time_given(
    cluster: FakeCluster,
) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    for broker in cluster.brokers.values():
        broker.answers["ApiVersions"] = never
    async with Client(cluster.bootstrap) as client:
        with pytest.raises(BrokerUnreachable, match="any node: cannot connect: the time given was over"):
            await client.call("DescribeCluster", timeout=0.2)


async def test_a_cancelled_call_does_not_disturb_others(cluster: FakeCluster) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> dict[str, Any]:
        await release.wait()
        return {"ClusterId": "slow"}

    cluster.brokers[2].answers["DescribeCluster"] = slow
    async with Client(cluster.bootstrap) as client:
        calls = [asyncio.create_task(client.call("DescribeCluster", to=NodeWithId(2))) for _ in range(3)]
        while not cluster.asked("DescribeCluster"):
            await asyncio.sleep(0.001)
        calls[0].cancel()
        release.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(answers[0], asyncio.CancelledError)
    assert [answer["ClusterId"] for answer in answers[1:] if isinstance(answer, dict)] == ["slow", "slow"]


async def test_a_change_that_may_have_been_done_is_not_sent_twice(cluster: FakeCluster) -> None:
    cluster.brokers[1].answers["CreateTopics"] = lambda request: None
    async with Client(cluster.bootstrap) as client:
        with pytest.raises(ConnectionLost):
            await client.call("CreateTopics", {"Topics": []}, to=CONTROLLER)

    assert len(cluster.asked("CreateTopics")) == 1


async def test_a_read_is_sent_again_after_a_lost_connection(cluster: FakeCluster) -> None:
    answers = iter([None, {"ClusterId": "second try"}])
    cluster.brokers[2].answers["DescribeCluster"] = lambda request: next(answers)
    async with Client(cluster.bootstrap) as client:
        answer = await client.call("DescribeCluster", to=NodeWithId(2))

    assert answer["ClusterId"] == "second try"


async def test_a_node_that_the_cluster_does_not_have_is_named(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        with pytest.raises(BrokerUnknown, match="no node 9") as unknown:
            await client.call("DescribeCluster", to=NodeWithId(9))

    assert "1, 2, 3" in unknown.value.advice


async def test_a_connection_is_replaced_before_its_login_ends(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    lifetimes = iter([1, 3_600_000])
    broker.answers["SaslHandshake"] = lambda request: {"Mechanisms": ["PLAIN"]}
    broker.answers["SaslAuthenticate"] = lambda request: {"SessionLifetimeMs": next(lifetimes)}
    security = Security(Login("ada", "secret", Mechanism.PLAIN))
    async with Client(cluster.bootstrap, security) as client:
        while broker.connections < 2:
            await client.call("DescribeCluster")
        await client.call("DescribeCluster")

    assert broker.connections == 2


async def test_a_body_may_depend_on_the_version_spoken(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        await client.call("DescribeCluster", lambda version: {"EndpointType": 1} if version else {}, newest=0)

    (request,) = (r for r in cluster.brokers[1].asked if r.api == "DescribeCluster")
    assert request.version == 0


def test_a_route_says_where_it_leads() -> None:
    routes = (CONTROLLER, NodeWithId(3), LeaderOf("orders", 1), group_coordinator("payments"))

    assert [str(route) for route in routes] == [
        "the controller",
        "node 3",
        "the leader of orders-1",
        "the coordinator of group 'payments'",
    ]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a:1,b:2", (Address("a", 1), Address("b", 2))),
        (" a , [::1]:9 ", (Address("a", 9092), Address("::1", 9))),
        (["a:1"], (Address("a", 1),)),
    ],
)
def test_bootstrap_addresses_are_read(text: str | list[str], parsed: tuple[Address, ...]) -> None:
    assert addresses(text) == parsed
