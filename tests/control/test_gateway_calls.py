"""What a gateway without the platform key may have executed, and how many calls at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.control.gateways.gateway_calls import WAITING_MAX, GatewayCalls
from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
from penstock.fleet.credentials.gateway_credentials import gateway_token
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.model.entities import ServiceAccount
from penstock.model.errors.control import (
    ClusterNotConnected,
    GatewayCallRefused,
    GatewayCallsTooMany,
    RequestInvalid,
    TokenRefused,
)
from penstock.model.ids import PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL, InMemoryControl

if TYPE_CHECKING:
    from penstock.kafka.client import Client

KEY = PlatformKey(b"t" * 32)
ELSEWHERE = PhysicalClusterId("pkc-000001")


class SlowKafka:
    """A client whose calls wait, and are counted."""

    def __init__(self) -> None:
        self.calls = 0
        self.released = asyncio.Event()

    async def call(self, api: str, *_: Any, **__: Any) -> dict[str, Any]:
        self.calls += 1
        await self.released.wait()
        return {"ErrorCode": 0, "ErrorMessage": None, "Resources": [], "api": api}


class OneCluster(Clusters):
    def __init__(self, kafka: SlowKafka) -> None:
        provided = [ProvidedCluster(PhysicalClusterId(PHYSICAL), "home", "adopted", "kafka:1", KEY)]
        provided.append(ProvidedCluster(ELSEWHERE, "east", "adopted", "kafka:2", PlatformKey(b"e" * 32)))
        super().__init__(tuple(provided))
        self.kafka = kafka

    def client(self, cluster: str) -> Client:
        del cluster
        return cast("Client", self.kafka)


@pytest.fixture
def memory() -> InMemoryControl:
    memory = InMemoryControl.with_cells(1)
    memory.cluster("shop")
    return memory


def acl(user: str, name: str) -> dict[str, str]:
    return {"user": user, "resource": "topic", "name": name, "pattern": "literal", "operation": "read"}


async def test_a_gateway_acts_for_tenants_of_its_cluster_and_below_their_prefix(
    memory: InMemoryControl,
) -> None:
    kafka = SlowKafka()
    calls = GatewayCalls(OneCluster(kafka))
    shop = memory.registry.cluster("shop")
    (account,) = memory.registry.all(ServiceAccount)
    user, token = f"{shop.id}_{account.id}", gateway_token(PHYSICAL, "gw-1", KEY)

    async def create(name: str, *, by: str = token, user: str = user, tenant: str = shop.id) -> Any:
        arguments = {"acls": [acl(user, name)]}
        return await calls.execute(memory.registry, by, tenant, "create_acls", arguments)

    kafka.released.set()
    for refused in ("other", "*", "lkc-000000_t"):
        with pytest.raises(GatewayCallRefused):
            await create(refused)
    with pytest.raises(GatewayCallRefused):
        await create(f"{shop.id}_t", user="_penstock.platform")
    with pytest.raises(GatewayCallRefused, match="not one of its tenants"):
        await create("lkc-000000_t", tenant="lkc-000000")
    east = gateway_token(ELSEWHERE, "gw-1", PlatformKey(b"e" * 32))
    with pytest.raises(GatewayCallRefused, match="not one of its tenants"):
        await create(f"{shop.id}_t", by=east)
    for wrong in (
        "",
        "root",
        gateway_token(PHYSICAL, "gw-1", PlatformKey(b"x" * 32)),
        east.replace("1", "2"),
    ):
        with pytest.raises(TokenRefused):
            await create(f"{shop.id}_t", by=wrong)
    for call, arguments in (("drop", {}), ("create_acls", {}), ("acls_of", {"accounts": ["x"] * 501})):
        with pytest.raises(RequestInvalid):
            await calls.execute(memory.registry, token, shop.id, call, arguments)


ACCOUNT_ACL = {"user": "u", "resource": "topic", "name": "n", "pattern": "literal", "operation": "read"}
GARBAGE: tuple[tuple[str, Any], ...] = (
    ("acls_of", {}),
    ("acls_of", {"accounts": "sa-000001"}),
    ("acls_of", {"accounts": {"sa-000001": 1}}),
    ("acls_of", {"accounts": [["sa-000001"]]}),
    ("create_acls", {"acls": {}}),
    ("create_acls", {"acls": ["x"]}),
    ("create_acls", {"acls": [{}]}),
    ("create_acls", {"acls": [ACCOUNT_ACL | {"more": "x"}]}),
    *(("delete_acls", {"acls": [ACCOUNT_ACL | {key: 7}]}) for key in ACCOUNT_ACL),
    *(("create_acls", {"acls": [ACCOUNT_ACL | {key: "x"}]}) for key in ("resource", "pattern", "operation")),
    ("log_dirs", {"broker": 1, "partitions": [0]}),
    ("log_dirs", {"broker": 1, "partitions": {"t": 0}}),
    ("log_dirs", {"broker": 1, "partitions": {"t": [2**31]}}),
    ("log_dirs", {"broker": 1, "partitions": {"t": [-1]}}),
    ("log_dirs", {"broker": float("inf"), "partitions": {}}),
    ("partitions_of", {"broker": 2**63}),
    ("partitions_of", {"broker": None}),
    ("broker_configs", {"broker": 1, "names": "ssl"}),
    ("broker_configs", {"broker": 1, "names": [1]}),
    ("broker_configs", {"broker": 1, "names": ["x"] * 1001}),
)


@pytest.mark.parametrize(("call", "arguments"), GARBAGE)
async def test_garbage_is_refused_before_kafka_is_called(
    memory: InMemoryControl, call: str, arguments: Any
) -> None:
    kafka = SlowKafka()
    calls = GatewayCalls(OneCluster(kafka))
    tenant, token = memory.registry.cluster("shop").id, gateway_token(PHYSICAL, "gw-1", KEY)

    with pytest.raises(RequestInvalid, match="arguments"):
        await calls.execute(memory.registry, token, tenant, call, arguments)

    assert kafka.calls == 0


async def test_a_cluster_that_is_not_connected_yet_is_no_wrong_token(memory: InMemoryControl) -> None:
    """A control plane adds the clusters of its file after it has read the registry."""
    clusters = OneCluster(SlowKafka())
    calls = GatewayCalls(clusters)
    provided = clusters.get(PHYSICAL)
    await clusters.drop(PHYSICAL)
    token = gateway_token(PHYSICAL, "gw-1", KEY)

    with pytest.raises(ClusterNotConnected) as early:
        calls.authenticate(memory.registry, token)
    with pytest.raises(TokenRefused):
        calls.authenticate(memory.registry, gateway_token("pkc-zzzzzz", "gw-1", KEY))

    assert early.value.retriable
    clusters.add(provided)
    assert calls.authenticate(memory.registry, token) == (PHYSICAL, "gw-1")


async def test_a_cluster_that_was_connected_again_is_called_by_its_new_client(
    memory: InMemoryControl,
) -> None:
    before, after = SlowKafka(), SlowKafka()
    clusters = OneCluster(before)
    calls = GatewayCalls(clusters)
    tenant, token = memory.registry.cluster("shop").id, gateway_token(PHYSICAL, "gw-1", KEY)
    (account,) = memory.registry.all(ServiceAccount)
    for kafka in (before, after):
        kafka.released.set()
        clusters.kafka = kafka
        await calls.execute(memory.registry, token, tenant, "acls_of", {"accounts": [account.id]})

    assert (before.calls, after.calls) == (1, 1)


async def test_waiting_calls_are_bounded(memory: InMemoryControl) -> None:
    kafka = SlowKafka()
    calls = GatewayCalls(OneCluster(kafka))
    tenant, token = memory.registry.cluster("shop").id, gateway_token(PHYSICAL, "gw-1", KEY)
    (account,) = memory.registry.all(ServiceAccount)

    async def read() -> Any:
        return await calls.execute(memory.registry, token, tenant, "acls_of", {"accounts": [account.id]})

    waiting = [asyncio.create_task(read()) for _ in range(WAITING_MAX)]
    while kafka.calls == 0:
        await asyncio.sleep(0)
    with pytest.raises(GatewayCallsTooMany):
        await read()
    kafka.released.set()
    assert await asyncio.gather(*waiting) == [[]] * WAITING_MAX
    assert await read() == []
