"""What the platform does for tenants: access rules of two tenants beside each other, on a real fleet."""

from __future__ import annotations

import asyncio
import hashlib
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

from penstock.gateway.access import OWNER_OPERATIONS, bits
from penstock.gateway.config import ApiKey, ServiceAccount
from penstock.kafka import acls, configs
from penstock.kafka.acls import AclFilter, Operation
from penstock.kafka.client import Client
from penstock.kafka.outcomes import all_done
from penstock.kafka.routing import NodeWithId, group_coordinator
from penstock.model.events import Dimension
from penstock.model.ids import new_service_account_id
from penstock.wire.codes import Code
from tests.gateway.test_attacks import codes_in, open_as, text_of
from tests.gateway.test_slots import EVERY_ACL
from tests.ground.gateway import ALPHANUMERIC, Access, known_everywhere, new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet
    from tests.ground.gateway import RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 30.0


def with_clerk(owner: Access) -> tuple[Access, Access]:
    """The same tenant with a second account, and that account's way in."""
    account = new_service_account_id(secrets.choice)
    key = "".join(secrets.choice(ALPHANUMERIC) for _ in range(16))
    secret = secrets.token_urlsafe(48)
    tenant = replace(
        owner.tenant,
        accounts={**owner.tenant.accounts, account: ServiceAccount(account)},
        keys=(*owner.tenant.keys, ApiKey(key, hashlib.sha256(secret.encode()).digest(), account)),
    )
    return replace(owner, tenant=tenant), Access(tenant, account, key, secret)


@dataclass
class House:
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
async def house(fleet: Fleet, make_gateway: Callable[..., RunningGateway]) -> House:
    owner, clerk = with_clerk(new_access())
    running = make_gateway(owner, new_access())
    async with Client(fleet.bootstrap, fleet.security()) as client:  # not even to write idempotently
        await acls.delete(client, [AclFilter(principal=f"User:{clerk.user}")])
    opened = [replace(one, bootstrap=running.bootstrap) for one in (owner, clerk)]
    found = House(*opened, running.accesses[1])
    await until(lambda: rules_everywhere(fleet, found.clerk), [0, 0, 0])
    return found


async def rules_everywhere(fleet: Fleet, access: Access) -> list[int]:
    """How many rules of an account each broker has heard of."""
    asked = {**EVERY_ACL, "PrincipalFilter": f"User:{access.user}"}
    async with Client(fleet.bootstrap, fleet.security()) as client:
        answers = [
            await client.call("DescribeAcls", asked, to=NodeWithId(node.spec.id)) for node in fleet.brokers
        ]
    return [sum(len(resource["Acls"]) for resource in answer["Resources"]) for answer in answers]


async def rules_seen(access: Access, about: Access) -> list[tuple[Any, ...]]:
    """Every rule about an account, as another account sees it."""
    answer = await call(access, "DescribeAcls", {**EVERY_ACL, "PrincipalFilter": f"User:{about.account}"})
    assert answer["ErrorCode"] == Code.NONE, answer
    return sorted(
        (r["ResourceType"], r["ResourceName"], r["PatternType"], a["Operation"], a["PermissionType"])
        for r in answer["Resources"]
        for a in r["Acls"]
    )


async def until(look: Callable[[], Any], wanted: Any) -> None:
    """Rules reach each broker by itself."""
    async with asyncio.timeout(SECONDS):
        while (seen := await look()) != wanted:
            assert seen is not None
            await asyncio.sleep(0.05)


async def kafkas_rules(fleet: Fleet, access: Access) -> set[Any]:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        return set(await acls.describe(client, AclFilter(principal=f"User:{access.user}")))


async def create(access: Access, topic: str) -> None:
    asked = {"Name": topic, "NumPartitions": 1, "ReplicationFactor": 3, "Assignments": [], "Configs": []}
    answer = await call(access, "CreateTopics", {"Topics": [asked], "TimeoutMs": 10_000})
    assert codes_in(answer) == set(), answer
    await known_everywhere(access, topic)


async def topics_seen(access: Access) -> set[str]:
    return {t["Name"] for t in (await call(access, "Metadata", {"Topics": None}, 12))["Topics"]}


async def test_a_right_that_is_given_holds_and_holds_no_longer_when_it_is_taken(
    fleet: Fleet, house: House, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    await create(house.owner, topic)
    await create(house.stranger, topic)
    strangers = await kafkas_rules(fleet, house.stranger)
    assert await topics_seen(house.clerk) == set()

    given = await call(house.owner, "CreateAcls", {"Creations": [rule(house.clerk, topic)]})
    await until(lambda: topics_seen(house.clerk), {topic})
    seen = await rules_seen(house.owner, house.clerk)
    taken = await call(
        house.owner,
        "DeleteAcls",
        {"Filters": [{**EVERY_ACL, "PrincipalFilter": f"User:{house.clerk.account}"}]},
    )
    await until(lambda: topics_seen(house.clerk), set())

    assert codes_in(given) == codes_in(taken) == set()
    assert seen == [(2, topic, 3, 3, 3)]
    (result,) = taken["FilterResults"]
    assert [(m["ResourceName"], m["Principal"]) for m in result["MatchingAcls"]] == [
        (topic, f"User:{house.clerk.account}")
    ]
    assert await kafkas_rules(fleet, house.stranger) == strangers
    assert topic in await topics_seen(house.stranger)


async def test_everything_means_everything_of_ones_own(
    fleet: Fleet, house: House, unique: Callable[[str], str]
) -> None:
    topic, foreign = unique("orders"), unique("invoices")
    await create(house.owner, topic)
    await create(house.stranger, foreign)

    await call(house.owner, "CreateAcls", {"Creations": [rule(house.clerk, "*")]})
    await until(lambda: topics_seen(house.clerk), {topic})

    assert await rules_seen(house.owner, house.clerk) == [(2, "*", 3, 3, 3)]
    (inside,) = await kafkas_rules(fleet, house.clerk)
    assert (inside.resource_name, inside.pattern) == (house.owner.prefix, acls.Pattern.PREFIXED)


async def test_one_tenant_sees_and_deletes_no_rule_of_anothers(fleet: Fleet, house: House) -> None:
    before = await kafkas_rules(fleet, house.owner)
    everything = {"Filters": [{**EVERY_ACL, "PrincipalFilter": f"User:{house.owner.account}"}]}
    whose = f"User:{house.owner.user}"

    shown = await call(house.stranger, "DescribeAcls", EVERY_ACL)
    deleted = await call(house.stranger, "DeleteAcls", everything)
    named = await call(house.stranger, "DeleteAcls", {"Filters": [{**EVERY_ACL, "PrincipalFilter": whose}]})
    planted = await call(
        house.stranger,
        "CreateAcls",
        {
            "Creations": [
                rule(house.stranger, "x", Principal=whose),
                rule(house.stranger, "x", Principal="User:*"),
                rule(house.stranger, "kafka-cluster", ResourceType=4),
            ]
        },
    )

    assert {r["ResourceName"] for r in shown["Resources"]} == {"*"}
    assert {a["Principal"] for r in shown["Resources"] for a in r["Acls"]} == {
        f"User:{house.stranger.account}"
    }
    assert "lkc-" not in text_of(shown)
    assert [r["MatchingAcls"] for answer in (deleted, named) for r in answer["FilterResults"]] == [[], []]
    assert [r["ErrorCode"] for r in planted["Results"]] == [Code.INVALID_REQUEST] * 3
    assert await kafkas_rules(fleet, house.owner) == before


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_an_account_without_all_rights_hands_out_none(fleet: Fleet, house: House, version: int) -> None:
    before = await kafkas_rules(fleet, house.owner)

    created = await call(house.clerk, "CreateAcls", {"Creations": [rule(house.clerk, "*")]}, version)
    shown = await call(house.clerk, "DescribeAcls", EVERY_ACL, version)
    deleted = await call(house.clerk, "DeleteAcls", {"Filters": [EVERY_ACL]}, version)

    for answer in (created, shown, deleted):
        assert codes_in(answer) == {Code.CLUSTER_AUTHORIZATION_FAILED}
    assert shown["Resources"] == []
    assert await kafkas_rules(fleet, house.clerk) == set()
    assert await kafkas_rules(fleet, house.owner) == before


async def test_what_is_denied_to_an_account_is_denied_although_it_is_allowed(
    house: House, unique: Callable[[str], str]
) -> None:
    topic, other = unique("orders"), unique("orders")
    await create(house.owner, topic)
    await create(house.owner, other)

    await call(
        house.owner,
        "CreateAcls",
        {"Creations": [rule(house.clerk, "*"), rule(house.clerk, topic, Operation=2, PermissionType=2)]},
    )

    await until(lambda: topics_seen(house.clerk), {other})


async def test_rules_of_one_account_are_bounded(house: House) -> None:
    many = [rule(house.clerk, f"t{n}") for n in range(201)]

    answer = await call(house.owner, "CreateAcls", {"Creations": many})

    assert {r["ErrorCode"] for r in answer["Results"]} == {Code.POLICY_VIOLATION}
    assert await rules_seen(house.owner, house.clerk) == []


OPERATIONS = {"IncludeClusterAuthorizedOperations": True}


async def test_authorised_operations_are_what_an_account_may_do(
    fleet: Fleet, house: House, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    await create(house.owner, topic)
    creations = [rule(house.clerk, topic), rule(house.clerk, group, ResourceType=3)]
    await call(house.owner, "CreateAcls", {"Creations": creations})
    await until(lambda: rules_everywhere(fleet, house.clerk), [2, 2, 2])

    cluster, seen, topics, groups = {}, {}, {}, {}
    for access in (house.owner, house.clerk):
        described = await call(access, "DescribeCluster", OPERATIONS)
        cluster[access.key] = described["ClusterAuthorizedOperations"]
        body = {"Topics": [{"Name": topic}], "IncludeTopicAuthorizedOperations": True}
        metadata = await call(access, "Metadata", body | OPERATIONS, 10)
        seen[access.key] = metadata["ClusterAuthorizedOperations"]
        topics[access.key] = metadata["Topics"][0]["TopicAuthorizedOperations"]
        groups[access.key] = await group_operations(access, group)

    assert cluster == seen
    assert cluster[house.owner.key] == bits(OWNER_OPERATIONS)
    assert cluster[house.clerk.key] == 0  # its right to write idempotently was taken with the others
    all_of_topics = [Operation(n) for n in (3, 4, 5, 6, 7, 8, 10, 11)]
    assert topics[house.owner.key] == bits(all_of_topics)
    assert topics[house.clerk.key] == bits((Operation.READ, Operation.DESCRIBE))
    assert groups[house.clerk.key] == bits((Operation.READ, Operation.DESCRIBE))
    assert groups[house.owner.key] & bits((Operation.READ, Operation.DESCRIBE, Operation.DELETE))


async def group_operations(access: Access, group: str) -> int:
    async with Client(access.bootstrap, access.security()) as client:
        body = {"Groups": [group], "IncludeAuthorizedOperations": True}
        answer = await client.call("DescribeGroups", body, to=group_coordinator(group), newest=5)
    operations: int = answer["Groups"][0]["AuthorizedOperations"]
    return operations


async def test_log_directories_show_the_sizes_of_ones_own_topics_alone(
    house: House, unique: Callable[[str], str]
) -> None:
    topic, foreign = unique("orders"), unique("invoices")
    await create(house.owner, topic)
    await create(house.stranger, foreign)

    async def sizes() -> int:
        answer = await call(house.owner, "DescribeLogDirs", {"Topics": None})
        return len(answer["Results"][0]["Topics"])

    await until(sizes, 1)  # a broker knows a topic before it has its log

    for version in range(1, 6):
        everything = await call(house.owner, "DescribeLogDirs", {"Topics": None}, version)
        asked = [{"Topic": name, "Partitions": [0, 7]} for name in (topic, house.stranger.prefix + foreign)]
        named = await call(house.owner, "DescribeLogDirs", {"Topics": asked}, version)
        refused = await call(house.clerk, "DescribeLogDirs", {"Topics": None}, version)

        for answer in (everything, named):
            assert [d["LogDir"] for d in answer["Results"]] == ["/0"]
            (shown,) = answer["Results"][0]["Topics"]
            assert shown["Name"] == topic
            assert [p["PartitionIndex"] for p in shown["Partitions"]] == [0]
        assert everything["Results"][0].get("TotalBytes", -1) == -1
        assert refused["Results"] == []
        assert refused.get("ErrorCode", 31) == Code.CLUSTER_AUTHORIZATION_FAILED


async def test_config_resources_are_ones_own(house: House, unique: Callable[[str], str]) -> None:
    topic, group = unique("orders"), unique("readers")
    for access in (house.owner, house.stranger):
        await create(access, f"{topic}-{access.account}")
        name = f"{group}-{access.account}"
        async with Client(access.bootstrap, access.security()) as client:
            change = configs.changes({"share.auto.offset.reset": "earliest"})
            all_done(await configs.alter(client, {configs.group(name): change}))

    async def seen() -> set[tuple[int, str]]:
        answer = await call(house.owner, "ListConfigResources", {"ResourceTypes": []}, 1)
        return {(r["ResourceType"], r["ResourceName"]) for r in answer["ConfigResources"]}

    brokers = {(4, "1"), (4, "2"), (4, "3")}
    own = {(2, f"{topic}-{house.owner.account}"), (32, f"{group}-{house.owner.account}")}
    await until(seen, own | brokers)
    refused = await call(house.clerk, "ListConfigResources", {"ResourceTypes": []}, 1)

    assert refused["ErrorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
    assert refused["ConfigResources"] == []


async def test_a_brokers_settings_are_shown_to_owners_and_changed_by_nobody(
    house: House, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    await create(house.owner, topic)
    resources = [
        {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}
        for kind, name in ((4, "1"), (2, topic), (8, "1"), (4, "99"), (4, ""))
    ]
    setting = {"Name": "log.retention.ms", "ConfigOperation": 0, "Value": "1"}
    change = {"Resources": [{"ResourceType": 4, "ResourceName": "1", "Configs": [setting]}]}

    for version in range(1, 5):
        shown = await call(house.owner, "DescribeConfigs", {"Resources": resources}, version)
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
    altered = await call(house.owner, "IncrementalAlterConfigs", change)
    refused = await call(house.clerk, "DescribeConfigs", {"Resources": resources[:1]})

    assert codes_in(altered) == codes_in(refused) == {Code.CLUSTER_AUTHORIZATION_FAILED}


async def test_a_tenants_quota_is_shown_as_that_of_its_users(
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


async def test_librdkafka_administers_rules(house: House, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    admin = AdminClient(house.owner.client_config())
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.PREFIXED,
        f"User:{house.clerk.account}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    like = AclBindingFilter(
        ResourceType.TOPIC,
        topic + "-x",
        ResourcePatternType.MATCH,
        f"User:{house.clerk.account}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )

    for done in (await asyncio.to_thread(admin.create_acls, [binding])).values():
        await asyncio.to_thread(done.result, SECONDS)
    await until(lambda: rules_seen(house.owner, house.clerk), [(2, topic, 4, 4, 3)])
    found = await asyncio.to_thread(admin.describe_acls(like).result, SECONDS)
    (gone,) = admin.delete_acls([like]).values()
    deleted = await asyncio.to_thread(gone.result, SECONDS)

    assert found == [binding]
    assert deleted == [binding]
