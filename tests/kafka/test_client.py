"""The client routes each call to the right node, and finds it again after it moved."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.kafka.admin import offsets
from penstock.kafka.admin.offsets import OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import ATTEMPT_SECONDS_MIN, Client
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
from penstock.wire.error_codes import Code
from tests.kafka.fake_broker import FakeBroker, fake_broker, metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.wire.frames import Request


class FakeCluster:
    """Three brokers that agree on leaders and coordinator."""

    def __init__(self, brokers: dict[int, FakeBroker]) -> None:
        self.brokers = brokers
        self.leaders = {("orders", 0): 1, ("orders", 1): 2}
        self.coordinator = 1
        for node_id, broker in brokers.items():
            broker.responses["Metadata"] = lambda request: metadata(self.brokers, self.leaders)
            broker.responses["FindCoordinator"] = self.coordinators
            broker.responses["DescribeGroups"] = partial(self.described, node_id)
            broker.responses["ListOffsets"] = partial(self.listed, node_id)
            broker.responses["DescribeCluster"] = partial(self.cluster_id, node_id)
            broker.responses["CreateTopics"] = lambda request: {"Topics": []}

    def coordinators(self, request: Request) -> dict[str, Any]:
        keys = request.body["CoordinatorKeys"]
        return {"Coordinators": [{"Key": key, "NodeId": self.coordinator} for key in keys]}

    def cluster_id(self, me: int, request: Request) -> dict[str, Any]:
        return {"ClusterId": f"from {me}"}

    def described(self, me: int, request: Request) -> dict[str, Any]:
        code = 0 if me == self.coordinator else 16
        return {"Groups": [{"GroupId": request.body["Groups"][0], "ErrorCode": code, "GroupState": str(me)}]}

    def listed(self, me: int, request: Request) -> dict[str, Any]:
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

    def receivers(self, api: str) -> list[int]:
        """The brokers that received requests of this API, by id."""
        return [i for i, broker in self.brokers.items() for r in broker.requests if r.api == api]

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

    responders = [response["ClusterId"] for response in (by_id, by_leader, by_controller)]
    assert responders == ["from 3", "from 2", "from 1"]
    assert coordinated["Groups"][0]["GroupState"] == "1"


async def test_a_call_to_the_controller_waits_for_the_end_of_an_election(cluster: FakeCluster) -> None:
    """An election takes longer than metadata takes to spread."""
    left = 7

    def electing(_: Request) -> dict[str, Any]:
        nonlocal left
        left -= 1
        known = metadata(cluster.brokers, cluster.leaders)
        return known | ({"ControllerId": -1} if left else {})

    for broker in cluster.brokers.values():
        broker.responses["Metadata"] = electing
    async with Client(cluster.bootstrap) as client:
        response = await client.call("DescribeCluster", to=CONTROLLER)

    assert response["ClusterId"] == "from 1"


async def test_all_calls_to_a_node_and_lane_share_one_connection(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        await asyncio.gather(*(client.call("DescribeCluster", to=NodeWithId(2)) for _ in range(20)))
        before = cluster.brokers[2].connections
        await client.call("DescribeCluster", to=NodeWithId(2), lane="other")

    assert (before, cluster.brokers[2].connections) == (1, 2)


async def test_a_coordinator_that_moved_is_looked_up_again(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        body, route = {"Groups": ["payments"]}, group_coordinator("payments")
        await client.call("DescribeGroups", body, to=route)
        cluster.coordinator = 3
        moved = await client.call("DescribeGroups", body, to=route)
        await client.call("DescribeGroups", body, to=route)

    assert moved["Groups"][0]["GroupState"] == "3"
    assert sorted(cluster.receivers("DescribeGroups")) == [1, 1, 3, 3]
    assert len(cluster.receivers("FindCoordinator")) == 2


async def test_a_leader_that_moved_is_looked_up_again(cluster: FakeCluster) -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    respond = cluster.brokers[2].responses["ListOffsets"]

    def moves(request: Request) -> Any:
        cluster.leaders["orders", 1] = 3
        return respond(request)

    cluster.brokers[2].responses["ListOffsets"] = moves
    async with Client(cluster.bootstrap) as client:
        listed = await offsets.list_offsets(client, {first: OffsetSpec.LATEST, second: OffsetSpec.LATEST})

    assert [getattr(listed[p], "offset", listed[p]) for p in (first, second)] == [1, 3]


async def test_a_partition_without_leader_is_busy_and_an_unknown_one_missing(cluster: FakeCluster) -> None:
    leaderless, missing = TopicPartition("orders", 0), TopicPartition("orders", 9)
    cluster.leaders["orders", 0] = -1
    async with Client(cluster.bootstrap) as client:
        listed = await offsets.list_offsets(
            client, {leaderless: OffsetSpec.LATEST, missing: OffsetSpec.LATEST}, timeout=2.0
        )

    assert [type(listed[p]) for p in (leaderless, missing)] == [KafkaBusy, KafkaMissing]


async def test_another_node_is_used_when_the_first_is_down(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        await client.cluster()
        await cluster.brokers[1].stop()
        del cluster.brokers[1]
        responses = [await client.call("DescribeCluster") for _ in range(3)]
        refreshed = await client.cluster(refresh=True)

    assert {response["ClusterId"] for response in responses} <= {"from 2", "from 3"}
    assert sorted(refreshed.nodes) == [2, 3]


async def test_every_bootstrap_address_is_tried(cluster: FakeCluster) -> None:
    stopped = cluster.brokers.pop(1)
    await stopped.stop()

    async with Client([stopped.address, cluster.brokers[2].address]) as client:
        response = await client.call("DescribeCluster")

    assert response["ClusterId"] in ("from 2", "from 3")


async def test_a_cluster_that_is_down_is_an_error_within_the_time_limit(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        await broker.stop()

    async with Client([broker.address for broker in cluster.brokers.values()]) as client:
        with pytest.raises(BrokerUnreachable):
            await client.call("DescribeCluster", timeout=0.4)


async def test_a_silent_node_takes_no_longer_than_the_time_limit(
    cluster: FakeCluster,
) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    for broker in cluster.brokers.values():
        broker.responses["ApiVersions"] = never
    async with Client(cluster.bootstrap) as client:
        with pytest.raises(BrokerUnreachable, match="any node: cannot connect: the time limit passed"):
            await client.call("DescribeCluster", timeout=0.2)


async def test_a_call_ends_with_the_last_response_and_starts_no_attempt_that_would_be_cut_off(
    cluster: FakeCluster,
) -> None:
    hanging = asyncio.Event()

    async def busy_then_silent(request: Request) -> dict[str, Any]:
        attempts = len(cluster.receivers("DescribeCluster"))
        if time.monotonic() >= almost_over:
            await hanging.wait()
        assert attempts < 20
        return {"ErrorCode": Code.REQUEST_TIMED_OUT}

    for broker in cluster.brokers.values():
        broker.responses["DescribeCluster"] = busy_then_silent
    async with Client(cluster.bootstrap) as client:
        await client.cluster()
        almost_over = time.monotonic() + 1.0 - ATTEMPT_SECONDS_MIN
        response = await client.call("DescribeCluster", timeout=1.0)

    assert response["ErrorCode"] == Code.REQUEST_TIMED_OUT


async def test_a_cancelled_call_does_not_disturb_others(cluster: FakeCluster) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> dict[str, Any]:
        await release.wait()
        return {"ClusterId": "slow"}

    cluster.brokers[2].responses["DescribeCluster"] = slow
    async with Client(cluster.bootstrap) as client:
        calls = [asyncio.create_task(client.call("DescribeCluster", to=NodeWithId(2))) for _ in range(3)]
        while not cluster.receivers("DescribeCluster"):
            await asyncio.sleep(0.001)
        calls[0].cancel()
        release.set()
        responses = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(responses[0], asyncio.CancelledError)
    assert [response["ClusterId"] for response in responses[1:] if isinstance(response, dict)] == [
        "slow",
        "slow",
    ]


async def test_a_change_that_may_have_taken_effect_is_not_sent_twice(cluster: FakeCluster) -> None:
    cluster.brokers[1].responses["CreateTopics"] = lambda request: None
    async with Client(cluster.bootstrap) as client:
        with pytest.raises(ConnectionLost):
            await client.call("CreateTopics", {"Topics": []}, to=CONTROLLER)

    assert len(cluster.receivers("CreateTopics")) == 1


async def test_a_read_is_sent_again_after_a_lost_connection(cluster: FakeCluster) -> None:
    responses = iter([None, {"ClusterId": "second try"}])
    cluster.brokers[2].responses["DescribeCluster"] = lambda request: next(responses)
    async with Client(cluster.bootstrap) as client:
        response = await client.call("DescribeCluster", to=NodeWithId(2))

    assert response["ClusterId"] == "second try"


async def test_an_unknown_node_is_an_error_that_lists_the_known_ones(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        with pytest.raises(BrokerUnknown, match="no node 9") as unknown:
            await client.call("DescribeCluster", to=NodeWithId(9))

    assert "1, 2, 3" in unknown.value.advice


async def test_a_connection_is_replaced_before_its_login_expires(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    lifetimes = iter([1, 3_600_000])
    broker.responses["SaslHandshake"] = lambda request: {"Mechanisms": ["PLAIN"]}
    broker.responses["SaslAuthenticate"] = lambda request: {"SessionLifetimeMs": next(lifetimes)}
    security = Security(Login("ada", "secret", Mechanism.PLAIN))
    async with Client(cluster.bootstrap, security) as client:
        while broker.connections < 2:
            await client.call("DescribeCluster")
        await client.call("DescribeCluster")

    assert broker.connections == 2


async def test_a_body_may_depend_on_the_negotiated_version(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client:
        await client.call(
            "DescribeCluster", lambda version: {"EndpointType": 1} if version else {}, version_max=0
        )

    (request,) = (r for r in cluster.brokers[1].requests if r.api == "DescribeCluster")
    assert request.version == 0


def test_a_route_describes_its_target() -> None:
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
def test_bootstrap_addresses_are_parsed(text: str | list[str], parsed: tuple[Address, ...]) -> None:
    assert addresses(text) == parsed
