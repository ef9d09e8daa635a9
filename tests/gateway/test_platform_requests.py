"""Platform requests: ACLs, log directories, configs and quotas of two tenants, on a real fleet."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.gateway.config import ApiKey, ServiceAccount
from penstock.gateway.tenancy.tenant_acls import OWNER_OPERATIONS, bits
from penstock.kafka.admin import acls, configs
from penstock.kafka.admin.acls import AclFilter, Operation
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.kafka.routing import NodeWithId, group_coordinator
from penstock.model.api_keys import new_api_key
from penstock.model.events import Dimension
from penstock.model.ids import new_service_account_id
from penstock.wire.error_codes import Code
from tests.gateway.test_attacks import codes_in, open_as, text_of
from tests.gateway.test_slots import EVERY_ACL
from tests.harness.gateway import Access, new_access, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 30.0


def with_clerk(owner: Access) -> tuple[Access, Access]:
    """The same tenant with a second account, and that account's access."""
    account = new_service_account_id(secrets.choice)
    key = new_api_key(secrets.choice)
    tenant = replace(
        owner.tenant,
        accounts={**owner.tenant.accounts, account: ServiceAccount(account)},
        keys=(*owner.tenant.keys, ApiKey(key.id, bytes.fromhex(key.secret_sha256), account)),
    )
    return replace(owner, tenant=tenant), Access(tenant, account, key.id, key.secret)


@dataclass
class Accounts:
    """Two tenants; the first has an owner, and a clerk without any rights."""

    owner: Access
    clerk: Access
    stranger: Access


async def call(access: Access, api: str, body: dict[str, Any], version: int | None = None) -> dict[str, Any]:
    async with await open_as(access) as connection:
        return await connection.call(api, body, version=version)


def rule(access: Access, name: str, **parts: Any) -> dict[str, Any]:
    return {
        "ResourceType": 2,
        "ResourceName": name,
        "ResourcePatternType": 3,
        "Principal": f"User:{access.account}",
        "Host": "*",
        "Operation": 3,
        "PermissionType": 3,
        **parts,
    }


@pytest_asyncio.fixture
async def accounts(fleet: Fleet, make_gateway: Callable[..., RunningGateway]) -> Accounts:
    owner, clerk = with_clerk(new_access())
    running = make_gateway(owner, new_access())
    async with Client(fleet.bootstrap, fleet.security()) as client:  # not even to write idempotently
        await acls.delete(client, [AclFilter(principal=f"User:{clerk.user}")])
    owner, clerk = (replace(one, bootstrap=running.bootstrap) for one in (owner, clerk))
    await until(lambda: acls_on_each_broker(fleet, clerk), [0, 0, 0])
    return Accounts(owner, clerk, running.accesses[1])


async def acls_on_each_broker(fleet: Fleet, access: Access) -> list[int]:
    """How many ACLs of an account each broker has."""
    requested = {**EVERY_ACL, "PrincipalFilter": f"User:{access.user}"}
    async with Client(fleet.bootstrap, fleet.security()) as client:
        responses = [
            await client.call("DescribeAcls", requested, to=NodeWithId(node.spec.id))
            for node in fleet.brokers
        ]
    return [sum(len(resource["Acls"]) for resource in response["Resources"]) for response in responses]


async def rules_seen(access: Access, about: Access) -> list[tuple[Any, ...]]:
    """Every ACL of an account, as another account sees it."""
    response = await call(access, "DescribeAcls", {**EVERY_ACL, "PrincipalFilter": f"User:{about.account}"})
    assert response["ErrorCode"] == Code.NONE, response
    return sorted(
        (r["ResourceType"], r["ResourceName"], r["PatternType"], a["Operation"], a["PermissionType"])
        for r in response["Resources"]
        for a in r["Acls"]
    )


async def until(look: Callable[[], Any], expected: Any) -> None:
    """Poll until it returns the expected value: ACLs reach each broker separately."""
    async with asyncio.timeout(SECONDS):
        while (seen := await look()) != expected:
            assert seen is not None
            await asyncio.sleep(0.05)


async def kafkas_rules(fleet: Fleet, access: Access) -> set[Any]:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        return set(await acls.describe(client, AclFilter(principal=f"User:{access.user}")))


async def create(access: Access, topic: str) -> None:
    requested = {"Name": topic, "NumPartitions": 1, "ReplicationFactor": 3, "Assignments": [], "Configs": []}
    response = await call(access, "CreateTopics", {"Topics": [requested], "TimeoutMs": 10_000})
    assert codes_in(response) == set(), response
    await wait_for_topic(access, topic)


async def topics_seen(access: Access) -> set[str]:
    return {t["Name"] for t in (await call(access, "Metadata", {"Topics": None}, 12))["Topics"]}


async def test_a_granted_right_applies_until_it_is_removed(
    fleet: Fleet, accounts: Accounts, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    await create(accounts.owner, topic)
    await create(accounts.stranger, topic)
    strangers = await kafkas_rules(fleet, accounts.stranger)
    assert await topics_seen(accounts.clerk) == set()

    given = await call(accounts.owner, "CreateAcls", {"Creations": [rule(accounts.clerk, topic)]})
    await until(lambda: topics_seen(accounts.clerk), {topic})
    seen = await rules_seen(accounts.owner, accounts.clerk)
    taken = await call(
        accounts.owner,
        "DeleteAcls",
        {"Filters": [{**EVERY_ACL, "PrincipalFilter": f"User:{accounts.clerk.account}"}]},
    )
    await until(lambda: topics_seen(accounts.clerk), set())

    assert codes_in(given) == codes_in(taken) == set()
    assert seen == [(2, topic, 3, 3, 3)]
    (result,) = taken["FilterResults"]
    assert [(m["ResourceName"], m["Principal"]) for m in result["MatchingAcls"]] == [
        (topic, f"User:{accounts.clerk.account}")
    ]
    assert await kafkas_rules(fleet, accounts.stranger) == strangers
    assert topic in await topics_seen(accounts.stranger)


async def test_a_wildcard_acl_covers_only_the_tenants_resources(
    fleet: Fleet, accounts: Accounts, unique: Callable[[str], str]
) -> None:
    topic, foreign = unique("orders"), unique("invoices")
    await create(accounts.owner, topic)
    await create(accounts.stranger, foreign)

    await call(accounts.owner, "CreateAcls", {"Creations": [rule(accounts.clerk, "*")]})
    await until(lambda: topics_seen(accounts.clerk), {topic})

    assert await rules_seen(accounts.owner, accounts.clerk) == [(2, "*", 3, 3, 3)]
    (inside,) = await kafkas_rules(fleet, accounts.clerk)
    assert (inside.resource_name, inside.pattern) == (accounts.owner.prefix, acls.Pattern.PREFIXED)


async def test_a_tenant_sees_and_deletes_no_acl_of_another(fleet: Fleet, accounts: Accounts) -> None:
    before = await kafkas_rules(fleet, accounts.owner)
    everything = {"Filters": [{**EVERY_ACL, "PrincipalFilter": f"User:{accounts.owner.account}"}]}
    whose = f"User:{accounts.owner.user}"

    shown = await call(accounts.stranger, "DescribeAcls", EVERY_ACL)
    deleted = await call(accounts.stranger, "DeleteAcls", everything)
    named = await call(
        accounts.stranger, "DeleteAcls", {"Filters": [{**EVERY_ACL, "PrincipalFilter": whose}]}
    )
    planted = await call(
        accounts.stranger,
        "CreateAcls",
        {
            "Creations": [
                rule(accounts.stranger, "x", Principal=whose),
                rule(accounts.stranger, "x", Principal="User:*"),
                rule(accounts.stranger, "kafka-cluster", ResourceType=4),
            ]
        },
    )

    assert {r["ResourceName"] for r in shown["Resources"]} == {"*"}
    assert {a["Principal"] for r in shown["Resources"] for a in r["Acls"]} == {
        f"User:{accounts.stranger.account}"
    }
    assert "lkc-" not in text_of(shown)
    assert [r["MatchingAcls"] for response in (deleted, named) for r in response["FilterResults"]] == [[], []]
    assert [r["ErrorCode"] for r in planted["Results"]] == [Code.INVALID_REQUEST] * 3
    assert await kafkas_rules(fleet, accounts.owner) == before


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_only_an_owner_grants_rights(fleet: Fleet, accounts: Accounts, version: int) -> None:
    before = await kafkas_rules(fleet, accounts.owner)

    created = await call(accounts.clerk, "CreateAcls", {"Creations": [rule(accounts.clerk, "*")]}, version)
    shown = await call(accounts.clerk, "DescribeAcls", EVERY_ACL, version)
    deleted = await call(accounts.clerk, "DeleteAcls", {"Filters": [EVERY_ACL]}, version)

    for response in (created, shown, deleted):
        assert codes_in(response) == {Code.CLUSTER_AUTHORIZATION_FAILED}
    assert shown["Resources"] == []
    assert await kafkas_rules(fleet, accounts.clerk) == set()
    assert await kafkas_rules(fleet, accounts.owner) == before


async def test_an_owner_cannot_lock_itself_out(
    fleet: Fleet, accounts: Accounts, unique: Callable[[str], str]
) -> None:
    owner, topic = accounts.owner, unique("orders")
    await create(owner, topic)
    before = await kafkas_rules(fleet, owner)
    denied = [rule(owner, "*", ResourceType=kind, Operation=2, PermissionType=2) for kind in (2, 3, 5)]
    match = {**EVERY_ACL, "ResourceTypeFilter": 2, "ResourceNameFilter": topic, "PatternTypeFilter": 2}

    await call(owner, "CreateAcls", {"Creations": [rule(accounts.clerk, topic), *denied]})
    await until(lambda: acls_on_each_broker(fleet, owner), [len(before) + 3] * 3)
    matching = await call(owner, "DeleteAcls", {"Filters": [match]})
    every = await call(owner, "DeleteAcls", {"Filters": [EVERY_ACL]})

    assert {(m["Principal"], m["PermissionType"]) for m in matching["FilterResults"][0]["MatchingAcls"]} == {
        (f"User:{accounts.clerk.account}", 3),
        (f"User:{owner.account}", 2),
    }
    assert codes_in(matching) == codes_in(every) == set()
    assert await kafkas_rules(fleet, owner) == before
    assert await rules_seen(owner, owner) == [(kind, "*", 3, 2, 3) for kind in (2, 3, 5)]
    await until(lambda: topics_seen(owner), {topic})


async def test_a_deny_acl_overrides_an_allow_acl(accounts: Accounts, unique: Callable[[str], str]) -> None:
    topic, other = unique("orders"), unique("orders")
    await create(accounts.owner, topic)
    await create(accounts.owner, other)

    await call(
        accounts.owner,
        "CreateAcls",
        {
            "Creations": [
                rule(accounts.clerk, "*"),
                rule(accounts.clerk, topic, Operation=2, PermissionType=2),
            ]
        },
    )

    await until(lambda: topics_seen(accounts.clerk), {other})


async def test_the_acls_of_one_account_are_bounded(accounts: Accounts) -> None:
    many = [rule(accounts.clerk, f"t{n}") for n in range(201)]

    response = await call(accounts.owner, "CreateAcls", {"Creations": many})

    assert {r["ErrorCode"] for r in response["Results"]} == {Code.POLICY_VIOLATION}
    assert await rules_seen(accounts.owner, accounts.clerk) == []


OPERATIONS = {"IncludeClusterAuthorizedOperations": True}


async def test_authorized_operations_are_what_an_account_may_do(
    fleet: Fleet, accounts: Accounts, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    await create(accounts.owner, topic)
    creations = [rule(accounts.clerk, topic), rule(accounts.clerk, group, ResourceType=3)]
    await call(accounts.owner, "CreateAcls", {"Creations": creations})
    await until(lambda: acls_on_each_broker(fleet, accounts.clerk), [2, 2, 2])

    cluster, seen, topics, groups = {}, {}, {}, {}
    for access in (accounts.owner, accounts.clerk):
        described = await call(access, "DescribeCluster", OPERATIONS)
        cluster[access.key] = described["ClusterAuthorizedOperations"]
        body = {"Topics": [{"Name": topic}], "IncludeTopicAuthorizedOperations": True}
        metadata = await call(access, "Metadata", body | OPERATIONS, 10)
        seen[access.key] = metadata["ClusterAuthorizedOperations"]
        topics[access.key] = metadata["Topics"][0]["TopicAuthorizedOperations"]
        groups[access.key] = await group_operations(access, group)

    assert cluster == seen
    assert cluster[accounts.owner.key] == bits(OWNER_OPERATIONS)
    assert cluster[accounts.clerk.key] == 0  # its right to write idempotently was removed with the others
    all_of_topics = [Operation(n) for n in (3, 4, 5, 6, 7, 8, 10, 11)]
    assert topics[accounts.owner.key] == bits(all_of_topics)
    assert topics[accounts.clerk.key] == bits((Operation.READ, Operation.DESCRIBE))
    assert groups[accounts.clerk.key] == bits((Operation.READ, Operation.DESCRIBE))
    assert groups[accounts.owner.key] & bits((Operation.READ, Operation.DESCRIBE, Operation.DELETE))


async def group_operations(access: Access, group: str) -> int:
    async with Client(access.bootstrap, access.security()) as client:
        body = {"Groups": [group], "IncludeAuthorizedOperations": True}
        response = await client.call("DescribeGroups", body, to=group_coordinator(group), version_max=5)
    operations: int = response["Groups"][0]["AuthorizedOperations"]
    return operations


async def test_log_directories_show_only_the_tenants_topics(
    accounts: Accounts, unique: Callable[[str], str]
) -> None:
    topic, foreign = unique("orders"), unique("invoices")
    await create(accounts.owner, topic)
    await create(accounts.stranger, foreign)

    async def sizes() -> int:
        response = await call(accounts.owner, "DescribeLogDirs", {"Topics": None})
        return len(response["Results"][0]["Topics"])

    await until(sizes, 1)  # a broker knows a topic before it has its log

    for version in range(1, 6):
        everything = await call(accounts.owner, "DescribeLogDirs", {"Topics": None}, version)
        requested = [
            {"Topic": name, "Partitions": [0, 7]} for name in (topic, accounts.stranger.prefix + foreign)
        ]
        named = await call(accounts.owner, "DescribeLogDirs", {"Topics": requested}, version)
        refused = await call(accounts.clerk, "DescribeLogDirs", {"Topics": None}, version)

        for response in (everything, named):
            assert [d["LogDir"] for d in response["Results"]] == ["/0"]
            (shown,) = response["Results"][0]["Topics"]
            assert shown["Name"] == topic
            assert [p["PartitionIndex"] for p in shown["Partitions"]] == [0]
        assert everything["Results"][0].get("TotalBytes", -1) == -1
        assert refused["Results"] == []
        assert refused.get("ErrorCode", 31) == Code.CLUSTER_AUTHORIZATION_FAILED


async def test_config_resources_are_the_tenants_own(accounts: Accounts, unique: Callable[[str], str]) -> None:
    topic, group = unique("orders"), unique("readers")
    for access in (accounts.owner, accounts.stranger):
        await create(access, f"{topic}-{access.account}")
        name = f"{group}-{access.account}"
        async with Client(access.bootstrap, access.security()) as client:
            change = configs.changes({"share.auto.offset.reset": "earliest"})
            results_or_raise(await configs.alter(client, {configs.group(name): change}))

    async def seen() -> set[tuple[int, str]]:
        response = await call(accounts.owner, "ListConfigResources", {"ResourceTypes": []}, 1)
        return {(r["ResourceType"], r["ResourceName"]) for r in response["ConfigResources"]}

    brokers = {(4, "1"), (4, "2"), (4, "3")}
    own = {(2, f"{topic}-{accounts.owner.account}"), (32, f"{group}-{accounts.owner.account}")}
    await until(seen, own | brokers)
    refused = await call(accounts.clerk, "ListConfigResources", {"ResourceTypes": []}, 1)

    assert refused["ErrorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
    assert refused["ConfigResources"] == []


async def test_broker_settings_are_shown_to_owners_and_are_read_only(
    accounts: Accounts, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    await create(accounts.owner, topic)
    resources = [
        {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}
        for kind, name in ((4, "1"), (2, topic), (8, "1"), (4, "99"), (4, ""))
    ]
    setting = {"Name": "log.retention.ms", "ConfigOperation": 0, "Value": "1"}
    change = {"Resources": [{"ResourceType": 4, "ResourceName": "1", "Configs": [setting]}]}

    for version in range(1, 5):
        shown = await call(accounts.owner, "DescribeConfigs", {"Resources": resources}, version)
        by_name = {(r["ResourceType"], r["ResourceName"]): r for r in shown["Results"]}
        broker = {entry["Name"]: entry for entry in by_name[4, "1"]["Configs"]}

        assert broker["auto.create.topics.enable"]["Value"] == "false"
        assert int(broker["message.max.bytes"]["Value"]) > 0
        assert all(entry["ReadOnly"] for entry in broker.values())
        assert not {"advertised.listeners", "listeners", "log.dirs", "super.users"} & broker.keys()
        assert "retention.ms" in {entry["Name"] for entry in by_name[2, topic]["Configs"]}
        codes = {key: result["ErrorCode"] for key, result in by_name.items()}
        assert (codes[8, "1"], codes[4, "99"], codes[4, ""]) == (
            Code.CLUSTER_AUTHORIZATION_FAILED,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
        )
    altered = await call(accounts.owner, "IncrementalAlterConfigs", change)
    refused = await call(accounts.clerk, "DescribeConfigs", {"Resources": resources[:1]})

    assert codes_in(altered) == codes_in(refused) == {Code.CLUSTER_AUTHORIZATION_FAILED}


async def test_a_tenants_quota_is_shown_as_the_default_users(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    quota = {Dimension.INGRESS_BYTES: 1e6, Dimension.EGRESS_BYTES: 2e6, Dimension.REQUEST_TIME_US: 5e5}
    limited, unlimited = make_gateway(new_access(quota=quota), new_access()).accesses
    every_user = {"Components": [{"EntityType": "user", "MatchType": 2, "Match": None}], "Strict": False}

    shown = await call(limited, "DescribeClientQuotas", every_user)
    none = await call(unlimited, "DescribeClientQuotas", every_user)
    altered = await call(limited, "AlterClientQuotas", {"Entries": [], "ValidateOnly": False})

    (entry,) = shown["Entries"]
    assert entry["Entity"] == [{"EntityType": "user", "EntityName": None}]
    assert {value["Key"]: value["Value"] for value in entry["Values"]} == {
        "producer_byte_rate": 1e6,
        "consumer_byte_rate": 2e6,
        "request_percentage": 50.0,
    }
    assert none["Entries"] == []
    assert altered["Entries"] == []


async def test_librdkafka_administers_acls(accounts: Accounts, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    admin = AdminClient(accounts.owner.client_config())
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.PREFIXED,
        f"User:{accounts.clerk.account}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    like = AclBindingFilter(
        ResourceType.TOPIC,
        topic + "-x",
        ResourcePatternType.MATCH,
        f"User:{accounts.clerk.account}",
        None,  # type: ignore[arg-type]  # None matches any
        AclOperation.ANY,
        AclPermissionType.ANY,
    )

    for done in (await asyncio.to_thread(admin.create_acls, [binding])).values():
        await asyncio.to_thread(done.result, SECONDS)
    await until(lambda: rules_seen(accounts.owner, accounts.clerk), [(2, topic, 4, 4, 3)])
    bindings = await asyncio.to_thread(admin.describe_acls(like).result, SECONDS)
    (gone,) = admin.delete_acls([like]).values()
    deleted = await asyncio.to_thread(gone.result, SECONDS)

    assert bindings == [binding]
    assert deleted == [binding]
