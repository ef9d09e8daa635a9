"""A tenant that names another tenant's resources in hand-made requests reads and changes nothing."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import pytest_asyncio

from penstock.gateway.process.server import Gateway
from penstock.gateway.tenancy.apis import DENIALS, served_versions
from penstock.kafka.admin import acls, configs, group_offsets, offsets, topics
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.configs import Resource, ResourceKind
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.routing import ANY_NODE, group_coordinator
from penstock.model.errors import PenstockError
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code
from penstock.wire.names import Names
from penstock.wire.records import Record, write
from tests.gateway.slots import Chosen, body_of
from tests.harness.gateway import wait_for_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
NO_ID = UUID(int=0)


@dataclass
class Victim:
    """What ada has: a topic with one record, and a group with a committed offset."""

    access: Access
    topic: str
    topic_id: UUID
    group: str

    @property
    def foreign_topic(self) -> str:
        return self.access.prefix + self.topic

    @property
    def foreign_group(self) -> str:
        return self.access.prefix + self.group


async def open_as(access: Access, broker: int = 0) -> Connection:
    host, port = access.bootstrap.split(",")[broker].split(":")
    return await Connection.open(host, int(port), access.security())


def produce_body(topic: dict[str, Any], records: bytes, acks: int = -1) -> dict[str, Any]:
    partition = {"Index": 0, "Records": records}
    return {
        "TransactionalId": None,
        "Acks": acks,
        "TimeoutMs": 10_000,
        "TopicData": [{**topic, "PartitionData": [partition]}],
    }


def one_record(value: bytes = b"secret") -> bytes:
    return write([Record(0, int(time.time() * 1000), None, value)])  # retention deletes records of 1970


@pytest_asyncio.fixture
async def victim(ada: Access, unique: Callable[[str], str]) -> Victim:
    topic, group = unique("orders"), unique("readers")
    async with await open_as(ada) as connection:
        requested = {
            "Name": topic,
            "NumPartitions": -1,
            "ReplicationFactor": -1,
            "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}],
            "Configs": [],
        }
        made = await connection.call("CreateTopics", {"Topics": [requested], "TimeoutMs": 10_000})
        assert made["Topics"][0]["ErrorCode"] == Code.NONE, made
        topic_id = made["Topics"][0]["TopicId"]
        await wait_for_topic(ada, topic)
        code = -1
        while code:  # a newly elected leader may refuse
            response = await connection.call(
                "Produce", produce_body({"Name": topic}, one_record()), version=9
            )
            code = response["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
            assert code in (Code.NONE, Code.NOT_LEADER_OR_FOLLOWER)
    client = Client(ada.bootstrap, ada.security())
    async with client:
        await group_offsets.commit(
            client, group, {TopicPartition(topic, 0): group_offsets.CommittedOffset(1)}
        )
    return Victim(ada, topic, topic_id, group)


@pytest_asyncio.fixture
async def attacker(eve: Access) -> AsyncIterator[Connection]:
    async with await open_as(eve) as connection:
        yield connection


async def snapshot(fleet: Fleet, victim: Victim) -> dict[str, Any]:
    """Everything that could have been changed, as the platform sees it."""
    name = victim.foreign_topic
    resource = Resource(ResourceKind.TOPIC, name)
    async with Client(fleet.bootstrap, fleet.security()) as client:
        return {
            "topic": (await topics.describe(client, [name]))[name],
            "end": await offsets.list_offsets(client, {TopicPartition(name, 0): offsets.OffsetSpec.LATEST}),
            "start": await offsets.list_offsets(
                client, {TopicPartition(name, 0): offsets.OffsetSpec.EARLIEST}
            ),
            "committed": await group_offsets.committed(client, victim.foreign_group),
            "settings": (await configs.describe(client, [resource]))[resource],
            "rules": set(await acls.describe(client, AclFilter(principal=f"User:{victim.access.user}"))),
        }


def _topics(victim: Victim, *inner: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"Name": victim.foreign_topic, **more} for _ in inner or ({},)]


Attack = tuple[str, int, "Callable[[Victim], dict[str, Any]]"]

# Every API that can carry another tenant's name, in an otherwise valid request.
ATTACKS: list[Attack] = [
    ("Produce", 9, lambda v: produce_body({"Name": v.foreign_topic}, one_record(b"planted"))),
    (
        "Fetch",
        12,
        lambda v: {
            "MaxWaitMs": 0,
            "MinBytes": 0,
            "MaxBytes": 1 << 20,
            "Topics": [
                {
                    "Topic": v.foreign_topic,
                    "Partitions": [{"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}],
                }
            ],
        },
    ),
    (
        "ListOffsets",
        7,
        lambda v: {
            "ReplicaId": -1,
            "Topics": [{"Name": v.foreign_topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}],
        },
    ),
    ("Metadata", 9, lambda v: {"Topics": _topics(v)}),
    (
        "OffsetCommit",
        8,
        lambda v: {
            "GroupId": v.foreign_group,
            "Topics": [
                {
                    "Name": v.foreign_topic,
                    "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 0}],
                }
            ],
        },
    ),
    ("OffsetFetch", 7, lambda v: {"GroupId": v.foreign_group, "Topics": None}),
    ("OffsetFetch", 8, lambda v: {"Groups": [{"GroupId": v.foreign_group, "Topics": None}]}),
    (
        "OffsetDelete",
        0,
        lambda v: {
            "GroupId": v.foreign_group,
            "Topics": [{"Name": v.foreign_topic, "Partitions": [{"PartitionIndex": 0}]}],
        },
    ),
    ("FindCoordinator", 4, lambda v: {"KeyType": 0, "CoordinatorKeys": [v.foreign_group]}),
    ("DescribeGroups", 5, lambda v: {"Groups": [v.foreign_group]}),
    ("DeleteGroups", 2, lambda v: {"GroupsNames": [v.foreign_group]}),
    ("LeaveGroup", 5, lambda v: {"GroupId": v.foreign_group, "Members": [{"MemberId": "m"}]}),
    ("Heartbeat", 4, lambda v: {"GroupId": v.foreign_group, "GenerationId": 1, "MemberId": "m"}),
    ("DeleteTopics", 5, lambda v: {"TopicNames": [v.foreign_topic], "TimeoutMs": 1000}),
    (
        "DeleteRecords",
        2,
        lambda v: {
            "TimeoutMs": 1000,
            "Topics": [{"Name": v.foreign_topic, "Partitions": [{"PartitionIndex": 0, "Offset": 1}]}],
        },
    ),
    (
        "CreatePartitions",
        3,
        lambda v: {"TimeoutMs": 1000, "Topics": [{"Name": v.foreign_topic, "Count": 5, "Assignments": None}]},
    ),
    (
        "InitProducerId",
        4,
        lambda v: {"TransactionalId": v.access.prefix + "tx", "TransactionTimeoutMs": 1000},
    ),
    (
        "AddPartitionsToTxn",
        3,
        lambda v: {
            "V3AndBelowTransactionalId": v.access.prefix + "tx",
            "V3AndBelowProducerId": 1,
            "V3AndBelowProducerEpoch": 0,
            "V3AndBelowTopics": [{"Name": v.foreign_topic, "Partitions": [0]}],
        },
    ),
    (
        "TxnOffsetCommit",
        3,
        lambda v: {
            "TransactionalId": v.access.prefix + "tx",
            "GroupId": v.foreign_group,
            "ProducerId": 1,
            "ProducerEpoch": 0,
            "Topics": [
                {
                    "Name": v.foreign_topic,
                    "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 0, "CommittedMetadata": None}],
                }
            ],
        },
    ),
    (
        "OffsetForLeaderEpoch",
        4,
        lambda v: {
            "ReplicaId": -1,
            "Topics": [{"Topic": v.foreign_topic, "Partitions": [{"Partition": 0, "LeaderEpoch": 0}]}],
        },
    ),
    (
        "DescribeConfigs",
        4,
        lambda v: {
            "Resources": [{"ResourceType": 2, "ResourceName": v.foreign_topic, "ConfigurationKeys": None}]
        },
    ),
    (
        "AlterConfigs",
        2,
        lambda v: {
            "Resources": [
                {
                    "ResourceType": 2,
                    "ResourceName": v.foreign_topic,
                    "Configs": [{"Name": "retention.ms", "Value": "1"}],
                }
            ]
        },
    ),
    (
        "IncrementalAlterConfigs",
        1,
        lambda v: {
            "Resources": [
                {
                    "ResourceType": 2,
                    "ResourceName": v.foreign_topic,
                    "Configs": [{"Name": "retention.ms", "ConfigOperation": 0, "Value": "1"}],
                }
            ]
        },
    ),
    (
        "DescribeTopicPartitions",
        0,
        lambda v: {
            "Topics": _topics(v),
            "Cursor": {"TopicName": v.foreign_topic, "PartitionIndex": 0},
        },
    ),
]


CODES = ("ErrorCode", "PartitionErrorCode")


def codes_in(response: Any) -> set[int]:
    """Every error code in a response."""
    if isinstance(response, dict):
        own = {value for key, value in response.items() if key in CODES and value}
        return own.union(*(codes_in(value) for value in response.values()))
    if isinstance(response, list):
        return set().union(*(codes_in(value) for value in response))
    return set()


def text_of(response: Any) -> str:
    return repr({k: bytes(v) if isinstance(v, memoryview) else v for k, v in _flat(response)})


def _flat(response: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(response, dict):
        return [pair for key, value in response.items() for pair in _flat(value, f"{path}.{key}")]
    if isinstance(response, list):
        return [pair for n, value in enumerate(response) for pair in _flat(value, f"{path}.{n}")]
    return [(path, response)]


async def test_another_tenants_names_reach_nothing_in_any_api(
    fleet: Fleet, victim: Victim, attacker: Connection
) -> None:
    before = await snapshot(fleet, victim)

    responses = {
        (api, version): await attacker.call(api, body(victim), version=version)
        for api, version, body in ATTACKS
    }

    assert await snapshot(fleet, victim) == before
    for attack, response in responses.items():
        text = text_of(response)
        assert "secret" not in text, attack
        assert str(victim.topic_id) not in text, attack
        assert response.get("CommittedOffset", -1) == -1, attack
    without_error = {"OffsetFetch", "FindCoordinator", "InitProducerId", "DescribeGroups", "OffsetCommit"}
    for (api, version), response in responses.items():
        if api not in without_error:  # an own name that does not exist yet is no error for these
            assert codes_in(response), (api, version)


class _Unrenamed(Gateway):
    """Renaming switched off: requests reach the broker unchanged, still as the tenant's user."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.services.names = lambda _: Names()


async def test_with_renaming_switched_off_the_broker_still_refuses(
    fleet: Fleet, victim: Victim, eve: Access, make_gateway: Callable[..., RunningGateway]
) -> None:
    open_wall = make_gateway(eve, kind=_Unrenamed)
    before = await snapshot(fleet, victim)
    rebuilt = {
        "Metadata",
        "CreatePartitions",
    }  # built from parsed values, so there is no renaming to switch off

    attacker = await open_as(open_wall.accesses[0])
    responses = {}
    for api, version, body in ATTACKS:
        if api not in rebuilt:
            try:
                responses[api, version] = await attacker.call(api, body(victim), version=version)
            except PenstockError:  # the response named another tenant's resource, so it was not passed on
                await attacker.close()
                attacker = await open_as(open_wall.accesses[0])
                responses[api, version] = {"ErrorCode": Code.TOPIC_AUTHORIZATION_FAILED}
    await attacker.close()

    assert await snapshot(fleet, victim) == before
    for attack, response in responses.items():
        assert "secret" not in text_of(response), attack


BY_ID: list[tuple[str, int, Callable[[UUID], dict[str, Any]]]] = [
    ("Produce", 13, lambda i: produce_body({"TopicId": i}, one_record(b"planted"))),
    (
        "Fetch",
        16,
        lambda i: {
            "MaxWaitMs": 0,
            "MinBytes": 0,
            "Topics": [
                {
                    "TopicId": i,
                    "Partitions": [{"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}],
                }
            ],
        },
    ),
    ("Metadata", 12, lambda i: {"Topics": [{"TopicId": i, "Name": None}]}),
    ("DeleteTopics", 6, lambda i: {"Topics": [{"TopicId": i, "Name": None}], "TimeoutMs": 1000}),
    (
        "OffsetCommit",
        10,
        lambda i: {
            "GroupId": "g",
            "Topics": [{"TopicId": i, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 0}]}],
        },
    ),
    (
        "OffsetFetch",
        10,
        lambda i: {"Groups": [{"GroupId": "g", "Topics": [{"TopicId": i, "PartitionIndexes": [0]}]}]},
    ),
]


@pytest.mark.parametrize(("api", "version", "body"), BY_ID, ids=[a[0] for a in BY_ID])
async def test_another_tenants_topic_id_gets_the_same_error_as_an_invented_one(
    fleet: Fleet,
    victim: Victim,
    eve: Access,
    api: str,
    version: int,
    body: Callable[[UUID], dict[str, Any]],
) -> None:
    before = await snapshot(fleet, victim)
    invented = UUID(bytes=secrets.token_bytes(16))

    async with Client(eve.bootstrap, eve.security()) as client:
        to = group_coordinator("g") if "Offset" in api else ANY_NODE
        await group_offsets.committed(client, "g")  # its coordinator has loaded
        foreign = await client.call(
            api, lambda _: body(victim.topic_id), to=to, version_max=version, retry=False
        )
        absent = await client.call(api, lambda _: body(invented), to=to, version_max=version, retry=False)

    assert codes_in(foreign) == codes_in(absent) == {Code.UNKNOWN_TOPIC_ID}
    for response in (foreign, absent):
        response.pop("ControllerId", None)  # any broker may be named
    assert text_of(foreign).replace(str(victim.topic_id), "") == text_of(absent).replace(str(invented), "")
    assert await snapshot(fleet, victim) == before


async def test_a_fetch_session_serves_only_the_connection_that_opened_it(
    victim: Victim, attacker: Connection
) -> None:
    async with await open_as(victim.access) as owner:
        requested = {
            "Topic": victim.topic,
            "Partitions": [{"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}],
        }
        opened = await owner.call(
            "Fetch",
            {"MaxWaitMs": 0, "MinBytes": 0, "SessionId": 0, "SessionEpoch": 0, "Topics": [requested]},
            version=12,
        )
        session = opened["SessionId"]
        assert session > 0
        follow = {"MaxWaitMs": 0, "MinBytes": 0, "SessionId": session, "SessionEpoch": 1, "Topics": []}

        stolen = await attacker.call("Fetch", follow, version=12)
        closing = await attacker.call("Fetch", {**follow, "SessionEpoch": -1}, version=12)
        kept = await owner.call("Fetch", follow, version=12)

    assert stolen["ErrorCode"] == Code.FETCH_SESSION_ID_NOT_FOUND
    assert not stolen["Responses"]
    assert not closing["Responses"]
    assert kept["ErrorCode"] == Code.NONE
    assert kept["SessionId"] == session


async def test_no_error_text_mentions_another_tenant(
    ada: Access, attacker: Connection, unique: Callable[[str], str]
) -> None:
    name = unique("a.b")

    def creation(topic: str, **more: Any) -> dict[str, Any]:
        requested = {
            "Name": topic,
            "NumPartitions": 1,
            "ReplicationFactor": 3,
            "Assignments": [],
            "Configs": [],
        }
        return {"Topics": [requested | more], "TimeoutMs": 10_000}

    async with await open_as(ada) as owner:
        await owner.call("CreateTopics", creation(name))
    own = await attacker.call("CreateTopics", creation(name))
    again = await attacker.call("CreateTopics", creation(name))
    collides = await attacker.call("CreateTopics", creation(name.replace(".", "_")))

    assert codes_in(own) == set()
    assert codes_in(again) == {Code.TOPIC_ALREADY_EXISTS}
    assert codes_in(collides) == {Code.INVALID_TOPIC_EXCEPTION}
    assert "lkc-" not in text_of(again) + text_of(collides)


def hidden_apis() -> list[str]:
    definitions = load()
    return [
        api
        for api in definitions.apis().values()
        if "broker" in definitions.request(api).listeners and served_versions(api) is None
    ]


@pytest.mark.parametrize("api", sorted(DENIALS))
async def test_apis_reserved_to_the_platform_are_offered_and_denied_with_kafkas_error(
    eve: Access, api: str
) -> None:
    theirs = Chosen("t", "g", "x", principal="User:someone")
    async with await open_as(eve) as connection:
        for version in load().request(api).valid_versions:
            response = await connection.call(api, body_of(api, version, theirs), version=version)

            assert codes_in(response) == {DENIALS[api]}, (api, version, response)
            assert "lkc-" not in text_of(response)
        assert api in connection.versions


@pytest.mark.parametrize("api", hidden_apis())
async def test_unserved_apis_are_refused_and_not_offered(eve: Access, api: str) -> None:
    async with await open_as(eve) as connection:
        offered = set(connection.versions)
        version = load().request(api).valid_versions.last
        try:
            response = await connection.call(api, version=version)
        except PenstockError:
            response = {"closed": True}

        assert api not in offered
        assert response == {"closed": True} or codes_in(response) <= {Code.UNSUPPORTED_VERSION}
        assert "lkc-" not in text_of(response)
