"""One request costs the gateway and the broker a bounded amount, whatever its API and its contents."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.balance.replica_placement import PARTITIONS_MAX, spread
from penstock.fleet.kafka_properties import request_bytes_max
from penstock.fleet.spec import HEAP_MB_MIN
from penstock.gateway.config import ServiceAccount
from penstock.gateway.connection.effects import Close, Deny
from penstock.gateway.connection.routes import routes
from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.platform_turns import PlatformTurns
from penstock.gateway.tenancy import apis, platform_requests
from penstock.gateway.tenancy.apis import Treatment, request_limits, treatment
from penstock.gateway.tenancy.request_rewriting import (
    TOPIC_CONFIGS_MAX,
    TOPICS_MAX,
    create_partitions,
    create_topics,
)
from penstock.gateway.tenancy.tenant_acls import ACLS_OF_ACCOUNT_MAX, Rejection
from penstock.kafka.admin.acls import Acl, Operation, Pattern, Permission, ResourceType
from penstock.wire.definitions import STRUCT, load
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, encode_request
from tests.gateway.scenario import Gateway, Player
from tests.gateway.wires import BROKER, PRINCIPAL, TENANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.tenancy.platform_client import PlatformCalls
    from penstock.wire.definitions import Field

SERVED = sorted({route.api for route in routes(restricted=False).values()})
MEBIBYTE = 1024 * 1024
GROWTH = len(TENANT.prefix) + 2  # of an element: its prefix, and a longer length
ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": None, "bool": False, "uuid": UUID(int=0)}


def serving() -> Connection:
    player = Player(Gateway())
    player.begin()
    connection = player.made
    connection.to_client.clear()
    return connection


def empty(fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    """A body with nothing in it."""
    body: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions or version in field.tagged:
            continue
        if field.array:
            body[field.name] = []
        elif version in field.nullable:
            body[field.name] = None
        elif field.kind == STRUCT:
            body[field.name] = empty(field.fields, version)
        else:
            body[field.name] = ZEROS.get(field.kind, 0)
    return body


def filled(fields: tuple[Field, ...], version: int, path: tuple[Field, ...], count: int) -> dict[str, Any]:
    """A body with so many elements in the array at `path`, and one in each array around it."""
    field, *inner = path
    if field.kind != STRUCT:
        return {**empty(fields, version), field.name: [ZEROS.get(field.kind, 0)] * count}
    if inner:
        return {**empty(fields, version), field.name: [filled(field.fields, version, tuple(inner), count)]}
    return {**empty(fields, version), field.name: [empty(field.fields, version)] * count}


def arrays(
    fields: tuple[Field, ...], version: int, around: tuple[Field, ...] = ()
) -> Iterator[tuple[Field, ...]]:
    for field in fields:
        if field.array and version in field.versions and version not in field.tagged:
            yield (*around, field)
            if field.kind == STRUCT:
                yield from arrays(field.fields, version, (*around, field))


def requests(api: str, count: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Requests of the first and last version with so many elements in each array, by default too many."""
    request = load().request(api)
    for version in {request.valid_versions.first, request.valid_versions.last}:
        elements = request_limits(api, version).elements_max + 1 if count is None else count
        for path in arrays(request.fields, version):
            if path[-1].kind != "int8":  # an element is a byte, so its frame is too large before its count
                body = filled(request.fields, version, path, elements)
                yield version, encode_request(Request(api, version, 1, "c", body))


def denials(connection: Connection) -> list[Denial]:
    return [effect.reason for effect in connection.effects if isinstance(effect, Deny)]


def test_every_api_that_is_read_has_its_limits() -> None:
    for (_, version), route in routes(restricted=False).items():
        limits = request_limits(route.api, version)
        assert route.request.elements_max == limits.elements_max
        assert limits.elements_max <= 15_000
        if route.api != "Produce":
            assert limits.bytes_max <= MEBIBYTE


def test_an_api_is_listed_once() -> None:
    listed = [api for names in apis._APIS.values() for api in names.split()]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("api", SERVED)
def test_a_request_with_too_many_elements_is_refused_before_it_is_decoded_or_forwarded(api: str) -> None:
    for version, frame in requests(api):
        connection = serving()

        connection.from_client(frame, 1000.0)

        assert denials(connection) == [Denial.TOO_MANY_ELEMENTS], version
        assert connection.to_broker == []
        closed = any(isinstance(effect, Close) for effect in connection.effects)
        assert closed is not bool(connection.to_client), version  # it gets an error, or is closed


@pytest.mark.parametrize("api", SERVED)
def test_the_frame_that_leaves_has_a_bound_that_every_broker_accepts(api: str) -> None:
    for version in load().request(api).valid_versions:
        limits = request_limits(api, version)
        leaving = limits.bytes_max + limits.elements_max * GROWTH
        if api != "Produce":
            assert leaving < request_bytes_max(HEAP_MB_MIN)
    if treatment(api, version) is not Treatment.SPLICED:
        return
    for version, frame in requests(api, 1000):
        connection = serving()
        connection.from_client(frame, 1000.0)
        assert sum(map(len, connection.to_broker[:1])) <= len(frame) + 1010 * GROWTH, version


@pytest.mark.parametrize("api", sorted(set(SERVED) - {"Produce"}))
def test_a_request_beyond_its_bytes_is_refused_before_it_is_held(api: str) -> None:
    version = load().request(api).valid_versions.last
    size = request_limits(api, version).bytes_max + 1
    connection = serving()

    connection.from_client(struct.pack(">ihhih", size, load().api_key(api), version, 1, -1), 1000.0)

    assert denials(connection) == [Denial.TOO_LARGE]
    assert connection.closed


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        ("Fetch", 16, {"MaxWaitMs": 1, "MinBytes": 1, "Topics": [
            {"TopicId": UUID(int=n + 1), "Partitions": [
                {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1}]} for n in range(4000)]}),
        ("Metadata", 12, {"Topics": [{"TopicId": UUID(int=0), "Name": f"topic-{n}"} for n in range(4900)]}),
        ("OffsetCommit", 9, {"GroupId": "g", "Topics": [{"Name": "topic", "Partitions": [
            {"PartitionIndex": n, "CommittedOffset": 1, "CommittedMetadata": "some metadata"}
            for n in range(14_000)]}]}),
        ("TxnOffsetCommit", 3, {"TransactionalId": "t", "GroupId": "g", "ProducerId": 1, "ProducerEpoch": 1,
            "Topics": [{"Name": f"topic-{n}", "Partitions": [
                {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}]}
                for n in range(4000)]}),
        ("CreateTopics", 7, {"TimeoutMs": 1, "Topics": [
            {"Name": f"topic-{n}", "NumPartitions": 3, "ReplicationFactor": 1} for n in range(600)]}),
        ("CreateTopics", 7, {"TimeoutMs": 1, "Topics": [
            {"Name": "orders", "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": [
                {"PartitionIndex": n, "BrokerIds": [1]} for n in range(3000)]}]}),
        ("CreatePartitions", 3, {"TimeoutMs": 1, "Topics": [
            {"Name": "orders", "Count": 3001, "Assignments": [{"BrokerIds": [1]}] * 3000}]}),
        ("SyncGroup", 5, {"GroupId": "g", "MemberId": "m", "ProtocolType": "range", "Assignments": [
            {"MemberId": f"member-{n:030}", "Assignment": bytes(800)} for n in range(1000)]}),
        ("JoinGroup", 9, {"GroupId": "g", "MemberId": "m", "ProtocolType": "connect", "Protocols": [
            {"Name": "range", "Metadata": bytes(900_000)}]}),
    ],
)  # fmt: skip
def test_a_large_request_of_an_honest_client_passes(api: str, version: int, body: dict[str, Any]) -> None:
    connection = serving()

    connection.from_client(encode_request(Request(api, version, 1, "c", body)), 1000.0)

    assert denials(connection) == []
    assert connection.to_broker


def test_topics_inside_assignments_are_counted_with_the_others() -> None:
    """One byte string each, so the frame's own arrays are short."""
    topics = 300
    assignment = struct.pack(">hi", 0, topics) + struct.pack(">hi", 0, 0) * topics + struct.pack(">i", -1)
    members = [{"MemberId": "m", "Assignment": assignment}]
    body = {"GroupId": "g", "MemberId": "m", "ProtocolType": "consumer", "Assignments": members * 20}
    few, many = ({**body, "Assignments": members * count} for count in (20, 40))

    honest, hostile = serving(), serving()
    honest.from_client(encode_request(Request("SyncGroup", 5, 1, "c", few)), 1000.0)
    hostile.from_client(encode_request(Request("SyncGroup", 5, 1, "c", many)), 1000.0)

    assert denials(honest) == []
    assert denials(hostile) == [Denial.TOO_MANY_ELEMENTS]
    assert hostile.to_broker == []


def test_partitions_are_limited_over_all_topics_of_a_request() -> None:
    """A request of a few bytes must not become a frame of a hundred megabytes."""
    topic = {"NumPartitions": PARTITIONS_MAX, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    topics = [{"Name": f"t{n}", **topic} for n in range(600)]
    made = create_topics(Request("CreateTopics", 7, 1, "c", {"Topics": topics}), TENANT, [BROKER], spread)
    more = [{"Name": f"t{n}", "Count": PARTITIONS_MAX, "Assignments": None} for n in range(600)]
    present = {f"t{n}": (1, 1) for n in range(600)}
    grown = create_partitions(
        Request("CreatePartitions", 3, 1, "c", {"Topics": more}), TENANT, [BROKER], spread, present
    )

    assert (len(made.refused), len(grown.refused)) == (599, 599)


def test_topics_and_their_settings_are_limited_over_a_request() -> None:
    """Each of them takes time to place or check; elements for assigned replicas do not."""
    topic = {"NumPartitions": 1, "ReplicationFactor": 1, "Assignments": []}
    setting = {"Name": "retention.ms", "Value": "100000000"}
    topics = [{"Name": f"t{n}", "Configs": [], **topic} for n in range(TOPICS_MAX + 5)]
    many = create_topics(Request("CreateTopics", 7, 1, "c", {"Topics": topics}), TENANT, [BROKER], spread)
    large = {"Name": "t", "Configs": [setting] * (TOPIC_CONFIGS_MAX + 1), **topic}
    settings = create_topics(
        Request("CreateTopics", 7, 1, "c", {"Topics": [large]}), TENANT, [BROKER], spread
    )
    more = [{"Name": f"t{n}", "Count": 2, "Assignments": None} for n in range(TOPICS_MAX + 5)]
    present = {f"t{n}": (1, 1) for n in range(TOPICS_MAX + 5)}
    grown = create_partitions(
        Request("CreatePartitions", 3, 1, "c", {"Topics": more}), TENANT, [BROKER], spread, present
    )

    assert [len(one.refused) for one in (many, settings, grown)] == [5, 1, 5]
    assert {refused.code for refused in many.refused} == {Code.POLICY_VIOLATION}


class CountedPlatform:
    """Counts the calls that requests cause."""

    def __init__(self, acls: list[Acl]) -> None:
        self.acls = acls
        self.calls = 0
        self.additions = PlatformTurns(1)

    async def acls_of(self, *_: object) -> list[Acl]:
        await asyncio.sleep(0)
        return [*self.acls]

    async def create(self, _: object, acls: list[Acl]) -> dict[Acl, None]:
        await asyncio.sleep(0)
        self.acls += acls
        return dict.fromkeys(acls)

    async def broker_configs(self, *_: object) -> list[dict[str, Any]]:
        self.calls += 1
        return []

    async def delete(self, _: object, acls: list[Acl]) -> dict[Acl, None]:
        return dict.fromkeys(acls)


def owned(count: int) -> list[Acl]:
    """ACLs of an owner, and so many others."""
    prefix = TENANT.prefix.decode()
    user = f"User:{TENANT.user_of(PRINCIPAL.account)}"
    owner = [
        Acl(user, Operation.ALL, kind, prefix, Pattern.PREFIXED, Permission.ALLOW)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
    names = (f"{prefix}{n}" for n in range(count))
    return owner + [
        Acl(user, Operation.READ, ResourceType.TOPIC, name, Pattern.LITERAL, Permission.ALLOW)
        for name in names
    ]


def caller(platform: CountedPlatform) -> platform_requests.Caller:
    tenant = replace(TENANT, accounts={PRINCIPAL.account: ServiceAccount(PRINCIPAL.account)})
    return platform_requests.Caller(tenant, PRINCIPAL.account, cast("PlatformCalls", platform), 1, {1})


async def test_a_broker_named_a_thousand_times_is_described_once() -> None:
    platform = CountedPlatform(owned(0))
    names = ["1"] * 1000 + ["9" * 5000, "²", ""]
    resources = [{"ResourceType": 4, "ResourceName": name, "ConfigurationKeys": None} for name in names]

    results = await platform_requests.broker_configs(resources, caller(platform), 4)

    assert platform.calls == 1
    assert [bool(result["ErrorCode"]) for result in results] == [False] * 1000 + [True] * 3


async def test_filters_are_compared_with_acls_a_bounded_number_of_times() -> None:
    entry = {"PrincipalFilter": None, "Operation": 1, "ResourceTypeFilter": 1, "PatternTypeFilter": 1}
    entry |= {"PermissionType": 1, "HostFilter": None}
    outcomes = []
    for acls, filters in ((400, 20), (400, 400), (40, 400)):
        named = [{**entry, "ResourceNameFilter": f"n{n}"} for n in range(filters)]
        request = Request("DeleteAcls", 3, 1, "c", {"Filters": named})
        result = await platform_requests.run(request, caller(CountedPlatform(owned(acls))), {})
        outcomes.append(isinstance(result, Rejection))

    assert outcomes == [False, True, False]


async def test_acls_that_are_created_at_once_do_not_exceed_the_limit_of_an_account_together() -> None:
    platform = CountedPlatform([])
    entry = {"ResourceType": 2, "ResourcePatternType": 3, "Principal": f"User:{PRINCIPAL.account}"}
    entry |= {"Host": "*", "Operation": 3, "PermissionType": 3}

    async def create(first: int) -> set[Code]:
        half = range(first, first + ACLS_OF_ACCOUNT_MAX // 2)
        creations = [{**entry, "ResourceName": f"t{number}"} for number in half]
        request = Request("CreateAcls", 3, 1, "c", {"Creations": creations})
        response = await platform_requests.run(request, caller(platform), {})
        assert not isinstance(response, Rejection)
        return {result["ErrorCode"] for result in response["Results"]}

    outcomes = await asyncio.gather(*(create(1_000 * number) for number in range(4)))

    assert outcomes == [{Code.NONE}] * 2 + [{Code.POLICY_VIOLATION}] * 2
    assert len(platform.acls) == ACLS_OF_ACCOUNT_MAX
