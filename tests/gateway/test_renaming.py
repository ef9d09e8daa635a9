"""What becomes of names, ids and texts: outward below the prefix, inward without it, others not at all."""

from __future__ import annotations

import os
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway import apis, rebuild
from penstock.gateway.config import Broker, Tenant
from penstock.gateway.metering import Acks, Source, Usage
from penstock.gateway.placement import spread
from penstock.gateway.refusals import refusal
from penstock.gateway.tenancy import Inward, Outward, Realm, Teaching
from penstock.gateway.topics import Misses, TopicIds
from penstock.model.errors.plans import NameRefused
from penstock.model.events import Dimension
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone
from penstock.wire.codes import Code
from penstock.wire.definitions import Versions, load
from penstock.wire.frames import Request, decode_response

PREFIX = b"lkc-7hq2mz_"
BROKERS = tuple(Broker(BrokerId(n), Zone("abc"[n - 1]), "h", 1, 0) for n in (1, 2, 3))
ADDRESSES = {n: (b"gateway", 9000 + n) for n in (1, 2, 3)}
ID = bytes(range(16))


def realm(*brokers: int) -> Realm:
    tenant = Tenant(LogicalClusterId("lkc-7hq2mz"), brokers=frozenset(map(BrokerId, brokers)))
    return Realm(tenant, ADDRESSES)


@given(st.text(min_size=1, max_size=100))
def test_a_name_comes_back_as_it_went(name: str) -> None:
    one = realm()
    raw = name.encode()

    out = Outward(one, {}).topic(raw)

    assert out.startswith(PREFIX)
    assert Inward(one, {}).topic(out) == raw


@pytest.mark.parametrize("name", [b"lkc-9xk4vt_orders", b"orders", b"__consumer_offsets", b"lkc-7hq2mz"])
def test_foreign_names_have_no_place_inward(name: bytes) -> None:
    inward = Inward(realm(), {})

    assert inward.topic(name) is None
    assert inward.group(name) is None
    assert inward.transactional_id(name) is None
    assert inward.coordinator_key(name, None) is None
    assert inward.config_resource(name, 2) is None


def test_a_topic_name_shares_kafkas_249_characters_with_the_prefix() -> None:
    outward = Outward(realm(), {})

    assert len(outward.topic(b"x" * 238)) == 249
    with pytest.raises(NameRefused):
        outward.topic(b"x" * 239)


def test_an_unknown_id_is_masked_both_ways_and_noted() -> None:
    one = realm()
    outward, inward = Outward(one, {}), Inward(one, {})

    masked = outward.topic_id(ID)

    assert masked != ID
    assert outward.misses.ids == {ID}
    assert inward.topic_id(masked) == ID


def test_an_id_is_learned_from_an_answer_without_an_error_alone() -> None:
    one = realm()
    teaching = Teaching(one, {})
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


def test_a_foreign_topic_teaches_nothing() -> None:
    one = realm()
    teaching = Teaching(one, {})

    teaching.topic(b"lkc-9xk4vt_orders")
    teaching.topic_id(ID)

    assert not one.topics.by_id


def test_a_deleted_topic_is_forgotten() -> None:
    topics = TopicIds()
    topics.learn(b"a", ID)

    topics.forget(b"a")

    assert not topics.by_id
    assert not topics.by_name


def test_a_session_is_known_to_the_connection_that_opened_it_alone() -> None:
    mine: dict[int, None] = {}
    Inward(realm(), mine).session(42)

    assert Outward(realm(), mine).session(42) == 42
    assert Outward(realm(), {}).session(42) == 0
    assert Outward(realm(), mine).session(-7) == 0


def test_sessions_remembered_are_bounded() -> None:
    mine: dict[int, None] = {}
    inward = Inward(realm(), mine)
    for number in range(1, 1000):
        inward.session(number)

    assert len(mine) == 64
    assert 999 in mine


def test_no_client_plays_a_broker() -> None:
    outward = Outward(realm(), {})

    assert [outward.replica_id(n) for n in (-1, -2, 0, 3)] == [-1, -2, -1, -1]


def test_only_settings_of_a_tenants_own_can_be_set() -> None:
    outward = Outward(realm(), {})

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
def test_texts_keep_what_is_the_tenants_business(text: bytes, seen: bytes | None) -> None:
    assert Inward(realm(), {}).text(text) == seen


def test_addresses_are_the_gateways_and_hidden_brokers_stay_hidden() -> None:
    inward = Inward(realm(1, 2), {})
    inward.lists_brokers = True

    listed = [inward.endpoint(n, b"broker", 1) for n in (1, 2, 3, 4, -1)]

    assert listed == [(1, b"gateway", 9001), (2, b"gateway", 9002), None, None, (-1, b"", -1)]
    assert inward.broker_id(3) == 1  # the controller is one that is shown
    assert inward.broker_id(3) == 3  # a leader is who it is


def test_a_coordinator_elsewhere_is_listed_from_then_on() -> None:
    one = realm(1)
    inward = Inward(one, {})

    assert inward.endpoint(3, b"broker", 1) == (3, b"gateway", 9003)
    inward.lists_brokers = True
    assert [inward.endpoint(n, b"broker", 1) is not None for n in (1, 2, 3)] == [True, False, True]


# Requests built anew

TENANT = Tenant(LogicalClusterId("lkc-7hq2mz"))


def creation(name: str = "orders", **more: object) -> Request:
    topic = {"Name": name, "NumPartitions": 2, "ReplicationFactor": 3, "Assignments": [], "Configs": []}
    return Request(
        "CreateTopics", 7, 1, None, {"Topics": [topic | more], "TimeoutMs": 1, "ValidateOnly": False}
    )


def test_a_new_topic_is_placed_by_us() -> None:
    made = rebuild.create_topics(creation(), TENANT, BROKERS, spread)

    assert made.request is not None
    (topic,) = made.request.body["Topics"]
    assert topic["Name"] == "lkc-7hq2mz_orders"
    assert (topic["NumPartitions"], topic["ReplicationFactor"]) == (-1, -1)
    assert [sorted(a["BrokerIds"]) for a in topic["Assignments"]] == [[1, 2, 3], [1, 2, 3]]


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
def test_a_topic_that_may_not_be_is_refused_before_the_broker(more: dict[str, object], code: Code) -> None:
    made = rebuild.create_topics(creation(**more), TENANT, BROKERS, spread)

    assert made.request is None
    assert [one.code for one in made.refused] == [code]
    body = rebuild.merged(None, "Topics", made.entries)
    assert [topic["ErrorCode"] for topic in body["Topics"]] == [code]


def test_metadata_never_creates_topics() -> None:
    topics = TopicIds()
    topics.learn(b"x", ID)
    asked = [{"Name": "orders", "TopicId": UUID(int=0)}, {"Name": None, "TopicId": UUID(bytes=ID)}]
    request = Request("Metadata", 12, 1, None, {"Topics": asked, "AllowAutoTopicCreation": True})

    changed = rebuild.metadata(request, "lkc-7hq2mz_", topics)

    assert changed.body["AllowAutoTopicCreation"] is False
    assert changed.body["Topics"][0]["Name"] == "lkc-7hq2mz_orders"
    assert changed.body["Topics"][1]["TopicId"] == UUID(bytes=ID)
    assert rebuild.unknown_ids(request, TopicIds()) == [UUID(bytes=ID)]


def test_new_partitions_are_placed_behind_those_there_are() -> None:
    topics = [
        {"Name": "a", "Count": 3, "Assignments": None},
        {"Name": "gone", "Count": 3, "Assignments": None},
    ]
    request = Request("CreatePartitions", 3, 1, None, {"Topics": topics})

    made = rebuild.create_partitions(request, TENANT, BROKERS, spread, {"a": (1, 2)})

    assert made.request is not None
    placed, gone = made.request.body["Topics"]
    assert [len(a["BrokerIds"]) for a in placed["Assignments"]] == [2, 2]
    assert gone["Assignments"] is None


# Refusals and the table


def unserved() -> list[tuple[str, int]]:
    return [
        (row.api, row.version)
        for row in apis.table(load())
        if row.verdict is apis.Verdict.REFUSED and row.direction == "request"
    ]


@pytest.mark.parametrize(("api", "version"), unserved())
def test_every_refused_api_gets_an_answer_that_can_be_read_or_none(api: str, version: int) -> None:
    frame = refusal(Request(api, version, 77, None, {}), Code.UNSUPPORTED_VERSION, "no")

    if frame is not None:
        assert decode_response(api, version, frame[4:]).correlation_id == 77


def test_a_refusal_answers_for_each_thing_that_was_asked() -> None:
    asked = {
        "Resources": [{"ResourceType": 4, "ResourceName": str(n), "ConfigurationKeys": None} for n in (1, 2)]
    }

    frame = refusal(Request("DescribeConfigs", 4, 5, None, asked), Code.CLUSTER_AUTHORIZATION_FAILED, "no")

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


@pytest.mark.parametrize(("api", "asked", "key", "elements"), WHOLE, ids=[row[0] for row in WHOLE])
def test_a_refusal_names_everything_that_was_asked_about(
    api: str, asked: dict[str, object], key: str, elements: list[dict[str, object]]
) -> None:
    version = load().request(api).valid_versions.last
    frame = refusal(Request(api, version, 5, None, asked), Code.CLUSTER_AUTHORIZATION_FAILED, "no")

    assert frame is not None
    body = decode_response(api, version, frame[4:]).body
    assert [{k: e[k] for k in want} for e, want in zip(body[key], elements, strict=True)] == elements
    assert "'ErrorCode': 31" in repr(body)


def test_versions_offered_are_those_both_know() -> None:
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


# Evidence

SOURCE = Source(PhysicalClusterId("pkc-000001"), "gw", "run")


def test_acknowledged_offsets_become_ranges_by_second() -> None:
    acks = Acks()
    sent = [(b"n", 0, 100, 4), (b"n", 1, 100, 0), (b"n", 2, 100, 0)]

    acks.answered(-1, sent, [(b"n", 0, 0, 10, 3), (b"n", 1, 6, -1, -1), (b"n", 2, 0, 7, -1)], {b"n": ID}, 50)
    acks.answered(-1, sent[:1], [(b"n", 0, 0, 15, 4)], {b"n": ID}, 50)
    early = list(acks.complete(SOURCE, 50))
    done = sorted(acks.complete(SOURCE, 51), key=lambda one: one.partition)

    assert early == []
    assert [(o.partition, o.first, o.last, o.records, o.log_start) for o in done] == [
        (0, 10, 19, 10, 4),
        (2, 7, 7, 1, 0),
    ]
    assert not acks.ranges


def test_use_is_reported_as_it_stands() -> None:
    usage = Usage()
    usage.bytes_in, usage.requests, usage.service_seconds = 100, 3, 0.25

    report = usage.report(SOURCE, TENANT.id, 1, 1000)

    assert report.used[Dimension.INGRESS_BYTES] == 100
    assert report.used[Dimension.REQUEST_TIME_US] == 250_000
    assert report.levels == {Dimension.CONNECTIONS: 0}


def test_no_session_comes_about_while_any_look_up_is_under_way() -> None:
    misses = Misses()
    for _ in range(2):  # a second fetch, before the answer to the look-up that the first one caused
        misses.add(ID)
        misses.take()

    misses.settle()
    after_the_first = misses.open
    misses.settle()

    assert after_the_first
    assert not misses.open
