"""Names: what is renamed, left out or refused, case by case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.model.errors.plans import AnswerRefused, NameRefused
from penstock.wire import codec
from penstock.wire.definitions import load
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
from penstock.wire.rules import Kind
from penstock.wire.splice import program, spliced

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN = "lkc-7hq2mz_"
FOREIGN = "lkc-9xk4vt_"


class In(Names):
    """What a gateway does with answers, in short."""

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
        self.asked: list[tuple[Any, ...]] = []

    def topic(self, name: bytes) -> bytes | None:
        return name.removeprefix(OWN.encode()) if name.startswith(OWN.encode()) else None

    group = topic

    def text(self, text: bytes) -> bytes | None:
        return None if b"lkc-" in text else text

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        return None if broker_id > 2 else (broker_id, b"gateway.example", 9000 + broker_id)

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        self.asked.append((key, key_type))
        return self.topic(key)

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        self.asked.append((name, resource_type))
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
        self.asked.append((name, resource_type, pattern_type))
        return self.topic(name)


def answered(api: str, version: int, body: Mapping[str, Any], names: Names | None = None) -> dict[str, Any]:
    """The body of an answer as the tenant gets it."""
    names = names or In()
    frame = encode_response(api, version, Response(5, dict(body)))
    key = program(load().api_key(api), version, Direction.RESPONSE, names.kinds)
    return decode_response(api, version, spliced(key, names, frame)[4:]).body


def asked(api: str, version: int, body: Mapping[str, Any], names: Names | None = None) -> dict[str, Any]:
    """The body of a request as the broker gets it."""
    names = names or Out()
    frame = encode_request(Request(api, version, 5, "client", dict(body)))
    key = program(load().api_key(api), version, Direction.REQUEST, names.kinds)
    return decode_request(spliced(key, names, frame)[4:]).body


def topic(name: str | None, **more: Any) -> dict[str, Any]:
    return {"Name": name, "TopicId": UUID(int=9), "Partitions": [], **more}


@pytest.mark.parametrize("version", [1, 8, 12])
def test_metadata_loses_foreign_topics_and_keeps_their_neighbours(version: int) -> None:
    names = [FOREIGN + "a", OWN + "b", FOREIGN + "c", OWN + "d", FOREIGN + "e"]
    topics = [topic(name) if version == 12 else {"Name": name, "Partitions": []} for name in names]

    body = answered("Metadata", version, {"Brokers": [], "ControllerId": 1, "Topics": topics})

    assert [one["Name"] for one in body["Topics"]] == ["b", "d"]


def test_metadata_may_lose_every_topic() -> None:
    body = answered("Metadata", 12, {"Brokers": [], "Topics": [topic(FOREIGN + "a"), topic(FOREIGN + "b")]})

    assert body["Topics"] == []


def test_metadata_by_an_unknown_id_keeps_its_null_name() -> None:
    body = answered("Metadata", 12, {"Brokers": [], "Topics": [topic(None, ErrorCode=100)]})

    assert body["Topics"][0]["Name"] is None


def test_brokers_show_the_gateway_and_those_not_allowed_are_left_out() -> None:
    brokers = [{"NodeId": i, "Host": f"b{i}.internal", "Port": 9092, "Rack": "a"} for i in (1, 2, 3)]

    body = answered("Metadata", 12, {"Brokers": brokers, "Topics": []})

    assert [(one["NodeId"], one["Host"], one["Port"]) for one in body["Brokers"]] == [
        (1, "gateway.example", 9001),
        (2, "gateway.example", 9002),
    ]


def test_a_cursor_on_a_foreign_topic_becomes_null() -> None:
    body = {"Topics": [], "NextCursor": {"TopicName": FOREIGN + "a", "PartitionIndex": 1}}

    assert answered("DescribeTopicPartitions", 0, body)["NextCursor"] is None


def test_a_cursor_on_an_own_topic_is_renamed() -> None:
    body = {"Topics": [], "NextCursor": {"TopicName": OWN + "a", "PartitionIndex": 1}}

    assert answered("DescribeTopicPartitions", 0, body)["NextCursor"]["TopicName"] == "a"


def test_listed_groups_of_others_are_left_out() -> None:
    groups = [{"GroupId": g, "ProtocolType": "consumer"} for g in (OWN + "mine", FOREIGN + "theirs")]

    body = answered("ListGroups", 5, {"Groups": groups})

    assert [group["GroupId"] for group in body["Groups"]] == ["mine"]


def test_a_text_that_names_others_becomes_null_or_empty() -> None:
    created = {"Name": OWN + "a", "ErrorMessage": f"collides with {FOREIGN}a"}
    told = answered("CreateTopics", 7, {"Topics": [created]})
    streams = {"Status": [{"StatusCode": 1, "StatusDetail": f"missing {FOREIGN}a"}], "MemberId": "m"}

    assert told["Topics"][0]["ErrorMessage"] is None
    assert answered("StreamsGroupHeartbeat", 0, streams)["Status"][0]["StatusDetail"] == ""


def test_codes_bits_and_throttling_are_rewritten_in_place() -> None:
    body = answered(
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

    body = asked("FindCoordinator", version, {"Key": "g", "KeyType": key_type}, names)

    assert body["Key"] == OWN + "g"
    assert names.asked == [(b"g", key_type)]


def test_many_coordinator_keys_come_with_the_type_above_them() -> None:
    names = Out()

    body = asked("FindCoordinator", 6, {"CoordinatorKeys": ["a", "b"], "KeyType": 1}, names)

    assert body["CoordinatorKeys"] == [OWN + "a", OWN + "b"]
    assert names.asked == [(b"a", 1), (b"b", 1)]


def test_an_answered_coordinator_key_comes_without_a_type() -> None:
    names = In()
    found = {"Key": OWN + "g", "NodeId": 1, "Host": "b1", "Port": 9092}

    body = answered("FindCoordinator", 6, {"Coordinators": [found]}, names)

    assert names.asked == [((OWN + "g").encode(), None)]
    assert (body["Coordinators"][0]["Key"], body["Coordinators"][0]["Port"]) == ("g", 9001)


@pytest.mark.parametrize(("version", "seen"), [(0, 16), (1, 2)])
def test_a_config_resource_comes_with_its_type_even_if_that_follows(version: int, seen: int) -> None:
    names = In()
    resource = {"ResourceName": OWN + "a", **({"ResourceType": 2} if version else {})}

    answered("ListConfigResources", version, {"ConfigResources": [resource]}, names)

    assert names.asked == [((OWN + "a").encode(), seen)]


def test_an_acl_resource_comes_with_its_type_and_pattern() -> None:
    names = Out()
    creation = {
        "ResourceType": 2,
        "ResourceName": "a",
        "ResourcePatternType": 4,
        "Principal": "User:x",
        "Host": "*",
    }

    body = asked("CreateAcls", 3, {"Creations": [creation]}, names)

    assert names.asked == [(b"a", 2, 4)]
    assert body["Creations"][0]["Host"] == "*"


def subscription(*topics: str, version: int = 3, **more: Any) -> bytes:
    body = {"Topics": list(topics), "UserData": b"mine", **more}
    return version.to_bytes(2, "big") + codec.encode("ConsumerProtocolSubscription", min(version, 3), body)


def join(protocol_type: str, metadata: bytes) -> bytes:
    protocols = [{"Name": "range", "Metadata": metadata}]
    body = asked("JoinGroup", 9, {"GroupId": "g", "ProtocolType": protocol_type, "Protocols": protocols})
    return bytes(body["Protocols"][0]["Metadata"])


def test_topics_inside_a_subscription_are_renamed_and_user_data_is_not() -> None:
    owned = [{"Topic": "b", "Partitions": [1]}]

    sent = join("consumer", subscription("a", "b", OwnedPartitions=owned, RackId="z"))

    wanted = [{"Topic": OWN + "b", "Partitions": [1]}]
    assert sent == subscription(OWN + "a", OWN + "b", OwnedPartitions=wanted, RackId="z")


def test_a_subscription_of_a_later_version_keeps_what_it_has_appended() -> None:
    later = subscription("a", version=9, OwnedPartitions=[], RackId=None) + b"appended"

    assert (
        join("consumer", later)
        == subscription(OWN + "a", version=9, OwnedPartitions=[], RackId=None) + b"appended"
    )


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", b"\xff\xff\0\0\0\1", b"\0\1\x7f\xff\xff\xff"])
def test_bytes_that_are_no_subscription_pass_as_they_are(data: bytes) -> None:
    assert join("consumer", data) == data


def test_another_protocols_metadata_passes_as_it_is() -> None:
    assert join("connect", subscription("a", version=0)) == subscription("a", version=0)


def test_an_old_answer_without_protocol_type_is_read_as_a_consumers() -> None:
    members = [{"MemberId": "m", "Metadata": subscription(OWN + "a", version=0)}]

    body = answered(
        "JoinGroup", 4, {"ProtocolName": "range", "Leader": "m", "MemberId": "m", "Members": members}
    )

    assert bytes(body["Members"][0]["Metadata"]) == subscription("a", version=0)


def test_an_assignment_is_renamed_both_ways() -> None:
    assigned = [{"Topic": "a", "Partitions": [0, 1]}]
    data = b"\0\1" + codec.encode("ConsumerProtocolAssignment", 1, {"AssignedPartitions": assigned})

    sent = asked(
        "SyncGroup",
        5,
        {"GroupId": "g", "ProtocolType": "consumer", "Assignments": [{"MemberId": "m", "Assignment": data}]},
    )
    there = bytes(sent["Assignments"][0]["Assignment"])
    back = answered("SyncGroup", 5, {"ProtocolType": "consumer", "Assignment": there})["Assignment"]

    assert (OWN + "a").encode() in there
    assert bytes(back) == data


class Denying(Out):
    def group(self, group: bytes) -> None:
        return None


def test_a_request_loses_nothing_it_is_refused_whole() -> None:
    with pytest.raises(NameRefused) as refused:
        asked("DescribeGroups", 5, {"Groups": ["a", "b"]}, Denying())

    assert refused.value.facts == {"path": "DescribeGroupsRequest.Groups", "kind": Kind.GROUP}


class Hiding(In):
    kinds = In.kinds | {Kind.CLUSTER_ID}

    def cluster_id(self, cluster_id: bytes) -> None:
        return None


def test_an_answer_is_refused_where_nothing_can_be_left_out() -> None:
    with pytest.raises(AnswerRefused):
        answered("Metadata", 12, {"Brokers": [], "ClusterId": "theirs", "Topics": []}, Hiding())


def test_names_as_they_are_change_nothing() -> None:
    every = frozenset(Kind) - {Kind.PLAIN, Kind.RECORDS}
    names = Names()
    names.kinds = every
    groups = [{"GroupId": "g", "ProtocolType": "consumer"}]

    assert answered("ListGroups", 5, {"Groups": groups}, names)["Groups"][0]["GroupId"] == "g"
