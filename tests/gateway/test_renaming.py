"""Renaming of names, ids and texts, rebuilt requests, error responses and metering, without a socket."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.replica_placement import spread
from penstock.gateway.config import Broker, Tenant
from penstock.gateway.connection.error_responses import error_response
from penstock.gateway.limits.metering import Source, Usage
from penstock.gateway.tenancy import apis, request_rewriting
from penstock.gateway.tenancy.tenant_names import Inward, LearningInward, Outward, TenantContext
from penstock.gateway.tenancy.topic_ids import TopicIds, UnknownIds
from penstock.model.errors.plans import NameRefused
from penstock.model.events import Dimension
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone
from penstock.wire.definitions import Versions, load
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, decode_response

PREFIX = b"lkc-7hq2mz_"
BROKERS = tuple(Broker(BrokerId(n), Zone("abc"[n - 1]), "h", 1, 0) for n in (1, 2, 3))
ADDRESSES = {n: (b"gateway", 9000 + n) for n in (1, 2, 3)}
ID = bytes(range(16))


def context(*brokers: int) -> TenantContext:
    tenant = Tenant(LogicalClusterId("lkc-7hq2mz"), brokers=frozenset(map(BrokerId, brokers)))
    return TenantContext(tenant, ADDRESSES)


@given(st.text(min_size=1, max_size=100))
def test_a_renamed_name_comes_back_unchanged(name: str) -> None:
    one = context()
    raw = name.encode()

    out = Outward(one, {}).topic(raw)

    assert out.startswith(PREFIX)
    assert Inward(one, {}).topic(out) == raw


@pytest.mark.parametrize("name", [b"lkc-9xk4vt_orders", b"orders", b"__consumer_offsets", b"lkc-7hq2mz"])
def test_names_of_other_tenants_are_left_out_of_responses(name: bytes) -> None:
    inward = Inward(context(), {})

    assert inward.topic(name) is None
    assert inward.group(name) is None
    assert inward.transactional_id(name) is None
    assert inward.coordinator_key(name, None) is None
    assert inward.config_resource(name, 2) is None


def test_a_topic_name_shares_kafkas_249_characters_with_the_prefix() -> None:
    outward = Outward(context(), {})

    assert len(outward.topic(b"x" * 238)) == 249
    with pytest.raises(NameRefused):
        outward.topic(b"x" * 239)


def test_an_unknown_id_is_masked_both_ways_and_noted() -> None:
    one = context()
    outward, inward = Outward(one, {}), Inward(one, {})

    masked = outward.topic_id(ID)

    assert masked != ID
    assert outward.unknown_ids.ids == {ID}
    assert inward.topic_id(masked) == ID


def test_an_id_is_learned_only_from_a_response_without_an_error() -> None:
    one = context()
    teaching = LearningInward(one, {})
    other = os.urandom(16)

    teaching.error(3)
    teaching.topic(PREFIX + b"absent")
    teaching.error(29)
    unknown = teaching.topic_id(other)
    teaching.topic(PREFIX + b"orders")
    known = teaching.topic_id(ID)

    assert unknown != other
    assert known == ID
    assert set(one.topics.by_id) == {ID}
    assert Outward(one, {}).topic_id(ID) == ID


def test_ids_of_other_tenants_topics_are_not_learned() -> None:
    one = context()
    teaching = LearningInward(one, {})

    teaching.topic(b"lkc-9xk4vt_orders")
    teaching.topic_id(ID)

    assert not one.topics.by_id


def test_a_deleted_topic_is_forgotten() -> None:
    topics = TopicIds()
    topics.learn(b"a", ID)

    topics.forget(b"a")

    assert not topics.by_id
    assert not topics.by_name


def test_a_session_is_known_only_to_the_connection_that_opened_it() -> None:
    mine: dict[int, None] = {}
    Inward(context(), mine).session(42)

    assert Outward(context(), mine).session(42) == 42
    assert Outward(context(), {}).session(42) == 0
    assert Outward(context(), mine).session(-7) == 0


def test_sessions_remembered_are_bounded() -> None:
    mine: dict[int, None] = {}
    inward = Inward(context(), mine)
    for number in range(1, 1000):
        inward.session(number)

    assert len(mine) == 64
    assert 999 in mine


def test_no_client_can_pose_as_a_replica() -> None:
    outward = Outward(context(), {})

    assert [outward.replica_id(n) for n in (-1, -2)] == [-1, -2]
    assert [outward.replica_id(n) for n in (0, 3, -3)] == [None] * 3  # −3 is a broker's own future replica
    assert [outward.follower(value) for value in (-1, bytes(16), 2**63 - 1)] == [-1, bytes(16), 2**63 - 1]
    assert [outward.follower(value) for value in (0, b"cluster", bytes(15) + b"x")] == [None] * 3


def test_only_allowed_settings_can_be_set() -> None:
    outward = Outward(context(), {})

    assert outward.config_name(b"retention.ms") == b"retention.ms"
    assert outward.config_name(b"follower.replication.throttled.replicas") is None
    assert outward.config_resource(b"orders", 2) == PREFIX + b"orders"
    assert outward.config_resource(b"1", 4) is None


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (b"Topic 'lkc-7hq2mz_orders' already exists.", b"Topic 'orders' already exists."),
        (b"collides with existing topic: lkc-9xk4vt_orders", None),
        (b"Request from 10.0.0.1:9092-10.0.0.2:1234-0 denied", None),
        (b"Principal = User:lkc is denied", None),
        (b"Replication factor is larger than 3", b"Replication factor is larger than 3"),
    ],
)
def test_error_texts_reveal_nothing_about_others(text: bytes, seen: bytes | None) -> None:
    assert Inward(context(), {}).text(text) == seen


def test_addresses_are_the_gateways_and_hidden_brokers_stay_hidden() -> None:
    inward = Inward(context(1, 2), {})
    inward.lists_brokers = True

    listed = [inward.endpoint(n, b"broker", 1) for n in (1, 2, 3, 4, -1)]

    assert listed == [(1, b"gateway", 9001), (2, b"gateway", 9002), None, None, (-1, b"", -1)]
    assert inward.broker_id(3) == 1  # the controller must be a visible broker
    assert inward.broker_id(3) == 3  # a leader stays who it is


def test_a_hidden_broker_that_coordinates_is_listed_from_then_on() -> None:
    one = context(1)
    inward = Inward(one, {})

    assert inward.endpoint(3, b"broker", 1) == (3, b"gateway", 9003)
    inward.lists_brokers = True
    assert [inward.endpoint(n, b"broker", 1) is not None for n in (1, 2, 3)] == [True, False, True]


# Rebuilt requests

TENANT = Tenant(LogicalClusterId("lkc-7hq2mz"))


def creation(name: str = "orders", **more: object) -> Request:
    topic = {"Name": name, "NumPartitions": 2, "ReplicationFactor": 3, "Assignments": [], "Configs": []}
    return Request(
        "CreateTopics", 7, 1, None, {"Topics": [topic | more], "TimeoutMs": 1, "ValidateOnly": False}
    )


def test_the_gateway_places_a_new_topic() -> None:
    made = request_rewriting.create_topics(creation(), TENANT, BROKERS, spread)

    assert made.request is not None
    (topic,) = made.request.body["Topics"]
    assert topic["Name"] == "lkc-7hq2mz_orders"
    assert (topic["NumPartitions"], topic["ReplicationFactor"]) == (-1, -1)
    assert [sorted(a["BrokerIds"]) for a in topic["Assignments"]] == [[1, 2, 3], [1, 2, 3]]


def test_a_new_topic_is_placed_as_broker_states_allow() -> None:
    brokers = (*BROKERS, Broker(BrokerId(4), Zone("a"), "h", 1, 0))
    tenant = replace(TENANT, cordoned=frozenset({BrokerId(1)}), demoted=frozenset({BrokerId(2)}))
    assigned = [{"PartitionIndex": 0, "BrokerIds": [2, 3, 4]}]

    made = request_rewriting.create_topics(creation(NumPartitions=6), tenant, brokers, spread)
    led_by_demoted = request_rewriting.create_topics(creation(Assignments=assigned), tenant, brokers, spread)
    too_few = request_rewriting.create_topics(creation(ReplicationFactor=-1), tenant, BROKERS, spread)

    assert made.request is not None
    placed = [a["BrokerIds"] for a in made.request.body["Topics"][0]["Assignments"]]
    assert all(sorted(replicas) == [2, 3, 4] and replicas[0] != 2 for replicas in placed)
    assert [one.code for one in led_by_demoted.refused] == [Code.INVALID_REPLICA_ASSIGNMENT]
    (refused,) = too_few.refused  # never with fewer replicas than usual
    assert refused.code == Code.INVALID_REPLICATION_FACTOR
    assert refused.text == "3 replicas do not fit: 2 of 3 brokers take new replicas now."


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"Configs": [{"Name": "leader.replication.throttled.replicas", "Value": "*"}]}, Code.INVALID_CONFIG),
        ({"Assignments": [{"PartitionIndex": 0, "BrokerIds": [9]}]}, Code.INVALID_REPLICA_ASSIGNMENT),
        ({"ReplicationFactor": 4}, Code.INVALID_REPLICATION_FACTOR),
        ({"NumPartitions": 0}, Code.INVALID_PARTITIONS),
        ({"NumPartitions": 10_001}, Code.INVALID_PARTITIONS),
        ({"Name": "x" * 239}, Code.INVALID_TOPIC_EXCEPTION),
        ({"Name": "a b"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"Name": ".."}, Code.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_an_invalid_topic_is_refused_before_it_reaches_the_broker(more: dict[str, Any], code: Code) -> None:
    made = request_rewriting.create_topics(creation(**more), TENANT, BROKERS, spread)

    assert made.request is None
    assert [one.code for one in made.refused] == [code]
    body = request_rewriting.merged(None, "Topics", made.entries)
    assert [topic["ErrorCode"] for topic in body["Topics"]] == [code]


def test_metadata_never_creates_topics() -> None:
    topics = TopicIds()
    topics.learn(b"x", ID)
    requested = [{"Name": "orders", "TopicId": UUID(int=0)}, {"Name": None, "TopicId": UUID(bytes=ID)}]
    request = Request("Metadata", 12, 1, None, {"Topics": requested, "AllowAutoTopicCreation": True})

    changed = request_rewriting.metadata(request, "lkc-7hq2mz_", topics)

    assert changed.body["AllowAutoTopicCreation"] is False
    assert changed.body["Topics"][0]["Name"] == "lkc-7hq2mz_orders"
    assert changed.body["Topics"][1]["TopicId"] == UUID(bytes=ID)
    assert request_rewriting.unknown_ids(request, TopicIds()) == [UUID(bytes=ID)]


def test_new_partitions_are_placed_after_the_existing_ones() -> None:
    topics = [
        {"Name": "a", "Count": 3, "Assignments": None},
        {"Name": "gone", "Count": 3, "Assignments": None},
    ]
    request = Request("CreatePartitions", 3, 1, None, {"Topics": topics})

    made = request_rewriting.create_partitions(request, TENANT, BROKERS, spread, {"a": (1, 2)})

    assert made.request is not None
    placed, gone = made.request.body["Topics"]
    assert [len(a["BrokerIds"]) for a in placed["Assignments"]] == [2, 2]
    assert gone["Assignments"] is None


# Error responses and the table


def unserved() -> list[tuple[str, int]]:
    return [
        (row.api, row.version)
        for row in apis.table(load())
        if row.verdict is apis.Verdict.REFUSED and row.direction == "request"
    ]


@pytest.mark.parametrize(("api", "version"), unserved())
def test_every_refused_api_gets_a_readable_response_or_none(api: str, version: int) -> None:
    frame = error_response(Request(api, version, 77, None, {}), Code.UNSUPPORTED_VERSION, "no")

    if frame is not None:
        assert decode_response(api, version, frame[4:]).correlation_id == 77


def test_an_error_response_has_an_entry_for_each_requested_item() -> None:
    requested = {
        "Resources": [{"ResourceType": 4, "ResourceName": str(n), "ConfigurationKeys": None} for n in (1, 2)]
    }

    frame = error_response(
        Request("DescribeConfigs", 4, 5, None, requested), Code.CLUSTER_AUTHORIZATION_FAILED, "no"
    )

    assert frame is not None
    results = decode_response("DescribeConfigs", 4, frame[4:]).body["Results"]
    assert [(r["ResourceName"], r["ErrorCode"]) for r in results] == [("1", 31), ("2", 31)]


WHOLE: list[tuple[str, dict[str, object], str, list[dict[str, object]]]] = [
    (
        "AlterUserScramCredentials",
        {
            "Deletions": [{"Name": "a", "Mechanism": 1}],
            "Upsertions": [
                {"Name": n, "Mechanism": 1, "Iterations": 1, "Salt": b"", "SaltedPassword": b""} for n in "ab"
            ],
        },
        "Results",
        [{"User": "a"}, {"User": "b"}],
    ),
    (
        "AlterReplicaLogDirs",
        {"Dirs": [{"Path": "/x", "Topics": [{"Name": "t", "Partitions": [0, 1]}]}]},
        "Results",
        [{"TopicName": "t"}],
    ),
    (
        "AlterClientQuotas",
        {"Entries": [{"Entity": [{"EntityType": "user", "EntityName": "u"}], "Ops": []}]},
        "Entries",
        [{"Entity": [{"EntityType": "user", "EntityName": "u"}]}],
    ),
    (
        "ElectLeaders",
        {"ElectionType": 0, "TopicPartitions": [{"Topic": "t", "Partitions": [3]}], "TimeoutMs": 1},
        "ReplicaElectionResults",
        [{"Topic": "t"}],
    ),
]


@pytest.mark.parametrize(("api", "requested", "key", "elements"), WHOLE, ids=[row[0] for row in WHOLE])
def test_an_error_response_names_every_requested_item(
    api: str, requested: dict[str, object], key: str, elements: list[dict[str, object]]
) -> None:
    version = load().request(api).valid_versions.last
    frame = error_response(Request(api, version, 5, None, requested), Code.CLUSTER_AUTHORIZATION_FAILED, "no")

    assert frame is not None
    body = decode_response(api, version, frame[4:]).body
    assert [{k: e[k] for k in want} for e, want in zip(body[key], elements, strict=True)] == elements
    assert "'ErrorCode': 31" in repr(body)


def test_offered_versions_are_those_both_sides_know() -> None:
    theirs = {
        "Produce": Versions(0, 20),
        "Fetch": Versions(15, 17),
        "StreamsGroupHeartbeat": Versions(0, 0),
        "AddPartitionsToTxn": Versions(0, 5),
        "SaslHandshake": Versions(0, 1),
    }

    offered = apis.offered(theirs)

    assert offered == {
        "Produce": Versions(0, 13),
        "Fetch": Versions(15, 17),
        "AddPartitionsToTxn": Versions(0, 3),
        "SaslHandshake": Versions(0, 1),
        "GetTelemetrySubscriptions": Versions(0, 0),
        "PushTelemetry": Versions(0, 0),
    }


# Metering

SOURCE = Source(PhysicalClusterId("pkc-000001"), "gw", "run")


def test_usage_reports_are_cumulative() -> None:
    usage = Usage()
    usage.bytes_in, usage.requests, usage.service_seconds = 100, 3, 0.25

    report = usage.report(SOURCE, TENANT.id, 1, 1000)

    assert report.used[Dimension.INGRESS_BYTES] == 100
    assert report.used[Dimension.REQUEST_TIME_US] == 250_000
    assert report.levels == {Dimension.CONNECTIONS: 0}


def test_no_session_is_opened_while_a_lookup_is_in_progress() -> None:
    unknown_ids = UnknownIds()
    for _ in range(2):  # a second fetch, before the lookup caused by the first one has its response
        unknown_ids.add(ID)
        unknown_ids.take()

    unknown_ids.settle()
    after_the_first = unknown_ids.open
    unknown_ids.settle()

    assert after_the_first
    assert not unknown_ids.open
