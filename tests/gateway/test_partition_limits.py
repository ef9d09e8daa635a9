"""A tenant's number of partitions, with many requests at the same time, on a real fleet."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.gateway.config import ApiKey, ServiceAccount, TenantLimits
from penstock.gateway.limits.admission import Admission
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.gateway.settings import Bounds
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.model.api_keys import new_api_key
from penstock.model.entities import Grant
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import ConnectionLost
from penstock.model.ids import new_service_account_id
from penstock.wire.error_codes import Code
from tests.gateway.test_attacks import open_as
from tests.gateway.test_platform_requests import until
from tests.harness.gateway import new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

LIMIT, SIZE, CONNECTIONS = 20, 2, 24


def topic(name: str, count: int = SIZE, assignments: int = 0) -> dict[str, Any]:
    placed = [{"PartitionIndex": n, "BrokerIds": [1]} for n in range(assignments)]
    factor = -1 if assignments else 1
    count = -1 if assignments else count
    return {"Name": name, "NumPartitions": count, "ReplicationFactor": factor, "Assignments": placed} | {
        "Configs": []
    }


async def create(access: Access, requested: dict[str, Any], version: int = 7) -> int:
    async with await open_as(access) as connection:
        body = {"Topics": [requested], "TimeoutMs": 20_000, "ValidateOnly": False}
        response = await connection.call("CreateTopics", body, version=version)
    code: int = response["Topics"][0]["ErrorCode"]
    return code


async def partitions(fleet: Fleet, access: Access) -> int:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        described = await topics.describe(client)
    own = [one for name, one in described.items() if name.startswith(access.prefix)]
    return sum(len(one.partitions) for one in own if not isinstance(one, PenstockError))


@pytest.mark.kafka
@pytest.mark.parametrize("version", [5, 7])
async def test_requests_at_the_same_time_cannot_exceed_the_number_of_partitions(
    fleet: Fleet, make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str], version: int
) -> None:
    (access,) = make_gateway(new_access(limits=TenantLimits(partitions_max=LIMIT))).accesses

    codes = await asyncio.gather(
        *(create(access, topic(unique("orders")), version) for _ in range(CONNECTIONS))
    )

    assert sorted(codes) == [Code.NONE] * (LIMIT // SIZE) + [Code.POLICY_VIOLATION] * (
        CONNECTIONS - LIMIT // SIZE
    )
    await until(lambda: partitions(fleet, access), LIMIT)


@pytest.mark.kafka
async def test_partitions_that_an_account_may_not_describe_count(
    fleet: Fleet, make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    owner = new_access(limits=TenantLimits(partitions_max=LIMIT))
    creator, key = new_service_account_id(secrets.choice), new_api_key(secrets.choice)
    rights = (Grant("topic", "*", "create"),)
    accounts = {**owner.tenant.accounts, creator: ServiceAccount(creator, rights=rights)}
    keys = (*owner.tenant.keys, ApiKey(key.id, bytes.fromhex(key.secret_sha256), creator))
    tenant = replace(owner.tenant, accounts=accounts, keys=keys)
    (access,) = make_gateway(replace(owner, tenant=tenant)).accesses
    (elsewhere,) = make_gateway(replace(owner, tenant=tenant)).accesses  # it has created nothing itself
    other = replace(elsewhere, account=creator, key=key.id, secret=key.secret)

    assert await create(access, topic(unique("orders"), LIMIT - 1)) == Code.NONE
    await until(lambda: partitions(fleet, access), LIMIT - 1)
    first = await create(other, topic(unique("orders"), 1))
    second = await create(other, topic(unique("orders"), 1))

    assert (first, second) == (Code.NONE, Code.POLICY_VIOLATION)
    await until(lambda: partitions(fleet, access), LIMIT)


@pytest.mark.kafka
async def test_assignments_given_by_a_client_are_elements_of_its_request(
    ada: Access, unique: Callable[[str], str]
) -> None:
    assert await create(ada, topic(unique("orders"), assignments=100)) == Code.NONE
    with pytest.raises(ConnectionLost):  # there is no error for a whole CreateTopics request
        await create(ada, topic(unique("orders"), assignments=10_001))


def test_partitions_that_other_workers_are_creating_count() -> None:
    counters = SharedCounters(2)
    workers = []
    for own in range(2):
        view = SharedCounters.__new__(SharedCounters)
        view.__dict__.update(counters.__dict__)
        view.become(own)
        workers.append(Admission(Bounds(), view))

    assert workers[0].share_partitions("lkc-7hq2mz", 5, 0.0) == 0
    assert workers[1].share_partitions("lkc-7hq2mz", 7, 1.0) == 5
    assert workers[0].share_partitions("lkc-7hq2mz", 0, 2.0) == 7
    assert workers[1].share_partitions("lkc-7hq2mz", 7, 3.0) == 0
    assert workers[0].share_partitions("lkc-9xk4vt", 1, 3.0) == 0
    assert workers[0].share_partitions("lkc-7hq2mz", 0, 100.0) == 0  # it has had time to complete
