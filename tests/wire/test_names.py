"""Names: which are renamed, omitted or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.model.errors.plans import NameRefused, ResponseRefused
from penstock.wire import codec
from penstock.wire.definitions import load
from penstock.wire.field_rules import Kind
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from penstock.wire.names import Names
from penstock.wire.plans import Direction
from penstock.wire.splice import program, spliced

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN = "lkc-7hq2mz_"
FOREIGN = "lkc-9xk4vt_"


class In(Names):
    """A short version of what a gateway does with responses."""

    kinds = frozenset(
        (
            Kind.TOPIC,
            Kind.GROUP,
            Kind.ENDPOINT,
            Kind.TEXT,
            Kind.COORDINATOR_KEY,
            Kind.CONFIG_RESOURCE,
            Kind.SUBSCRIPTION,
            Kind.ASSIGNMENT,
            Kind.THROTTLE,
            Kind.OPERATIONS,
            Kind.ERROR,
        )
    )
    topic_growth = -len(OWN)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def topic(self, name: bytes) -> bytes | None:
        return name.removeprefix(OWN.encode()) if name.startswith(OWN.encode()) else None

    group = topic

    def text(self, text: bytes) -> bytes | None:
        return None if b"lkc-" in text else text

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        return None if broker_id > 2 else (broker_id, b"gateway.example", 9000 + broker_id)

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        self.calls.append((key, key_type))
        return self.topic(key)

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        self.calls.append((name, resource_type))
        return self.topic(name) if resource_type == 2 else name

    def throttle(self, milliseconds: int) -> int:
        return milliseconds + 250

    def operations(self, bits: int) -> int:
        return 0b1000

    def error(self, code: int) -> int:
        return 100 if code == 29 else code


class Out(In):
    kinds = In.kinds | {Kind.TRANSACTIONAL_ID, Kind.ACL_RESOURCE}
    topic_growth = len(OWN)

    def topic(self, name: bytes) -> bytes | None:
        return OWN.encode() + name

    group = transactional_id = topic

    def acl_resource(self, name: bytes, resource_type: int, pattern_type: int) -> bytes | None:
        self.calls.append((name, resource_type, pattern_type))
        return self.topic(name)


def received_by_client(
    api: str, version: int, body: Mapping[str, Any], names: Names | None = None
) -> dict[str, Any]:
    """The body of a response as the tenant receives it."""
    names = names or In()
    frame = encode_response(api, version, Response(5, dict(body)))
    rewriting = program(load().api_key(api), version, Direction.RESPONSE, names.kinds)
    return decode_response(api, version, spliced(rewriting, names, frame)[4:]).body


def received_by_broker(
    api: str, version: int, body: Mapping[str, Any], names: Names | None = None
) -> Mapping[str, Any]:
    """The body of a request as the broker receives it."""
    names = names or Out()
    frame = encode_request(Request(api, version, 5, "client", dict(body)))
    rewriting = program(load().api_key(api), version, Direction.REQUEST, names.kinds)
    return decode_request(spliced(rewriting, names, frame)[4:]).body


def topic(name: str | None, **more: Any) -> dict[str, Any]:
    return {"Name": name, "TopicId": UUID(int=9), "Partitions": [], **more}


@pytest.mark.parametrize("version", [1, 8, 12])
def test_metadata_omits_foreign_topics_and_keeps_their_neighbours(version: int) -> None:
    names = [FOREIGN + "a", OWN + "b", FOREIGN + "c", OWN + "d", FOREIGN + "e"]
    topics = [topic(name) if version == 12 else {"Name": name, "Partitions": []} for name in names]

    body = received_by_client("Metadata", version, {"Brokers": [], "ControllerId": 1, "Topics": topics})

    assert [one["Name"] for one in body["Topics"]] == ["b", "d"]


def test_metadata_may_omit_every_topic() -> None:
    body = received_by_client(
        "Metadata", 12, {"Brokers": [], "Topics": [topic(FOREIGN + "a"), topic(FOREIGN + "b")]}
    )

    assert body["Topics"] == []


def test_metadata_by_an_unknown_id_keeps_its_null_name() -> None:
    body = received_by_client("Metadata", 12, {"Brokers": [], "Topics": [topic(None, ErrorCode=100)]})

    assert body["Topics"][0]["Name"] is None


def test_brokers_get_the_gateways_address_and_forbidden_ones_are_omitted() -> None:
    brokers = [{"NodeId": i, "Host": f"b{i}.internal", "Port": 9092, "Rack": "a"} for i in (1, 2, 3)]

    body = received_by_client("Metadata", 12, {"Brokers": brokers, "Topics": []})

    assert [(one["NodeId"], one["Host"], one["Port"]) for one in body["Brokers"]] == [
        (1, "gateway.example", 9001),
        (2, "gateway.example", 9002),
    ]


def test_a_cursor_on_a_foreign_topic_becomes_null() -> None:
    body = {"Topics": [], "NextCursor": {"TopicName": FOREIGN + "a", "PartitionIndex": 1}}

    assert received_by_client("DescribeTopicPartitions", 0, body)["NextCursor"] is None


def test_a_cursor_on_an_own_topic_is_renamed() -> None:
    body = {"Topics": [], "NextCursor": {"TopicName": OWN + "a", "PartitionIndex": 1}}

    assert received_by_client("DescribeTopicPartitions", 0, body)["NextCursor"]["TopicName"] == "a"


def test_listed_groups_of_other_tenants_are_omitted() -> None:
    groups = [{"GroupId": g, "ProtocolType": "consumer"} for g in (OWN + "mine", FOREIGN + "theirs")]

    body = received_by_client("ListGroups", 5, {"Groups": groups})

    assert [group["GroupId"] for group in body["Groups"]] == ["mine"]


def test_a_text_that_names_another_tenant_becomes_null_or_empty() -> None:
    created = {"Name": OWN + "a", "ErrorMessage": f"collides with {FOREIGN}a"}
    created_topics = received_by_client("CreateTopics", 7, {"Topics": [created]})
    streams = {"Status": [{"StatusCode": 1, "StatusDetail": f"missing {FOREIGN}a"}], "MemberId": "m"}

    assert created_topics["Topics"][0]["ErrorMessage"] is None
    assert received_by_client("StreamsGroupHeartbeat", 0, streams)["Status"][0]["StatusDetail"] == ""


def test_codes_bits_and_throttling_are_rewritten_in_place() -> None:
    body = received_by_client(
        "Metadata",
        12,
        {
            "ThrottleTimeMs": 5,
            "Brokers": [],
            "Topics": [topic(OWN + "a", ErrorCode=29, TopicAuthorizedOperations=7), topic(OWN + "b")],
        },
    )

    assert body["ThrottleTimeMs"] == 255
    assert [one["ErrorCode"] for one in body["Topics"]] == [100, 0]
    assert body["Topics"][0]["TopicAuthorizedOperations"] == 0b1000


@pytest.mark.parametrize(("version", "key_type"), [(0, 0), (1, 1), (3, 1)])
def test_a_coordinator_key_comes_with_its_type(version: int, key_type: int) -> None:
    names = Out()

    body = received_by_broker("FindCoordinator", version, {"Key": "g", "KeyType": key_type}, names)

    assert body["Key"] == OWN + "g"
    assert names.calls == [(b"g", key_type)]


def test_many_coordinator_keys_come_with_one_type() -> None:
    names = Out()

    body = received_by_broker("FindCoordinator", 6, {"CoordinatorKeys": ["a", "b"], "KeyType": 1}, names)

    assert body["CoordinatorKeys"] == [OWN + "a", OWN + "b"]
    assert names.calls == [(b"a", 1), (b"b", 1)]


def test_a_coordinator_key_in_a_response_comes_without_a_type() -> None:
    names = In()
    coordinator = {"Key": OWN + "g", "NodeId": 1, "Host": "b1", "Port": 9092}

    body = received_by_client("FindCoordinator", 6, {"Coordinators": [coordinator]}, names)

    assert names.calls == [((OWN + "g").encode(), None)]
    assert (body["Coordinators"][0]["Key"], body["Coordinators"][0]["Port"]) == ("g", 9001)


@pytest.mark.parametrize(("version", "resource_type"), [(0, 16), (1, 2)])
def test_a_config_resource_comes_with_its_type_even_if_that_follows(version: int, resource_type: int) -> None:
    names = In()
    resource = {"ResourceName": OWN + "a", **({"ResourceType": 2} if version else {})}

    received_by_client("ListConfigResources", version, {"ConfigResources": [resource]}, names)

    assert names.calls == [((OWN + "a").encode(), resource_type)]


def test_an_acl_resource_comes_with_its_type_and_pattern() -> None:
    names = Out()
    creation = {
        "ResourceType": 2,
        "ResourceName": "a",
        "ResourcePatternType": 4,
        "Principal": "User:x",
        "Host": "*",
    }

    body = received_by_broker("CreateAcls", 3, {"Creations": [creation]}, names)

    assert names.calls == [(b"a", 2, 4)]
    assert body["Creations"][0]["Host"] == "*"


def subscription(*topics: str, version: int = 3, **more: Any) -> bytes:
    body = {"Topics": list(topics), "UserData": b"mine", **more}
    return version.to_bytes(2, "big") + codec.encode("ConsumerProtocolSubscription", min(version, 3), body)


def join(protocol_type: str, metadata: bytes) -> bytes:
    protocols = [{"Name": "range", "Metadata": metadata}]
    body = received_by_broker(
        "JoinGroup", 9, {"GroupId": "g", "ProtocolType": protocol_type, "Protocols": protocols}
    )
    return bytes(body["Protocols"][0]["Metadata"])


def test_topics_inside_a_subscription_are_renamed_and_user_data_is_not() -> None:
    owned = [{"Topic": "b", "Partitions": [1]}]

    sent = join("consumer", subscription("a", "b", OwnedPartitions=owned, RackId="z"))

    renamed = [{"Topic": OWN + "b", "Partitions": [1]}]
    assert sent == subscription(OWN + "a", OWN + "b", OwnedPartitions=renamed, RackId="z")


def test_a_subscription_of_a_later_version_keeps_its_new_fields() -> None:
    later = subscription("a", version=9, OwnedPartitions=[], RackId=None) + b"appended"

    assert (
        join("consumer", later)
        == subscription(OWN + "a", version=9, OwnedPartitions=[], RackId=None) + b"appended"
    )


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", b"\xff\xff\0\0\0\1", b"\0\1\x7f\xff\xff\xff"])
def test_bytes_that_are_not_a_subscription_stay_unchanged(data: bytes) -> None:
    assert join("consumer", data) == data


def test_metadata_of_another_protocol_stays_unchanged() -> None:
    assert join("connect", subscription("a", version=0)) == subscription("a", version=0)


def test_an_old_response_without_protocol_type_is_read_as_a_consumers() -> None:
    members = [{"MemberId": "m", "Metadata": subscription(OWN + "a", version=0)}]

    body = received_by_client(
        "JoinGroup", 4, {"ProtocolName": "range", "Leader": "m", "MemberId": "m", "Members": members}
    )

    assert bytes(body["Members"][0]["Metadata"]) == subscription("a", version=0)


def test_an_assignment_is_renamed_both_ways() -> None:
    assigned = [{"Topic": "a", "Partitions": [0, 1]}]
    data = b"\0\1" + codec.encode("ConsumerProtocolAssignment", 1, {"AssignedPartitions": assigned})

    sent = received_by_broker(
        "SyncGroup",
        5,
        {"GroupId": "g", "ProtocolType": "consumer", "Assignments": [{"MemberId": "m", "Assignment": data}]},
    )
    there = bytes(sent["Assignments"][0]["Assignment"])
    back = received_by_client("SyncGroup", 5, {"ProtocolType": "consumer", "Assignment": there})["Assignment"]

    assert (OWN + "a").encode() in there
    assert bytes(back) == data


class Denying(Out):
    def group(self, group: bytes) -> None:
        return None


def test_a_request_with_a_refused_name_is_refused_rather_than_shortened() -> None:
    with pytest.raises(NameRefused) as refused:
        received_by_broker("DescribeGroups", 5, {"Groups": ["a", "b"]}, Denying())

    assert refused.value.facts == {"path": "DescribeGroupsRequest.Groups", "kind": Kind.GROUP}


class Hiding(In):
    kinds = In.kinds | {Kind.CLUSTER_ID}

    def cluster_id(self, cluster_id: bytes) -> None:
        return None


def test_a_response_is_refused_where_nothing_can_be_omitted() -> None:
    with pytest.raises(ResponseRefused):
        received_by_client("Metadata", 12, {"Brokers": [], "ClusterId": "theirs", "Topics": []}, Hiding())


def test_the_base_class_changes_no_name() -> None:
    every = frozenset(Kind) - {Kind.PLAIN, Kind.RECORDS}
    names = Names()
    names.kinds = every
    groups = [{"GroupId": "g", "ProtocolType": "consumer"}]

    assert received_by_client("ListGroups", 5, {"Groups": groups}, names)["Groups"][0]["GroupId"] == "g"
