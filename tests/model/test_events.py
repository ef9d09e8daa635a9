"""Events of the internal topics: their bytes, and what is accepted or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import events, key_names
from penstock.model.errors.events import EventFieldInvalid, EventOfAnotherKind, EventTooNew, EventUnreadable
from penstock.model.events import (
    AckRanges,
    AuditEvent,
    BrokerLoad,
    BrokerPressure,
    GatewayHeartbeat,
    HealthProbe,
    LoadHour,
    Outcome,
    Phase,
    Probe,
    ProbeRole,
    QuotaShares,
    RegistryRecord,
    TopicRates,
    UsageReport,
)
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone
from penstock.model.schema import EVENT_BYTES_MAX, Event

ACK_ROWS = "rows of eight numbers that are an AckRange"
GOLDEN = Path(__file__).parent / "golden"
CLUSTER, TENANT = PhysicalClusterId("pkc-7hq2mz"), LogicalClusterId("lkc-0a1b2c")

EXAMPLES: tuple[Event, ...] = (
    UsageReport(
        cluster=CLUSTER,
        gateway="b2",
        incarnation="3f9c2a71",
        sequence=41,
        tenant=TENANT,
        time_ms=1_800_000_010_000,
        used={"ingress_bytes": 73_400_320, "requests": 9_120, "request_time_us": 812_443},
        throttled_ms={"ingress_bytes": 1_250},
        levels={"connections": 12},
    ),
    QuotaShares(
        tenant=TENANT,
        epoch=7,
        sequence=1_204,
        time_ms=1_800_000_010_250,
        valid_ms=30_000,
        quota={"ingress_bytes": 10_485_760.0},
        shares={"b1": {"ingress_bytes": 1_048_576.0}, "b2": {"ingress_bytes": 9_437_184.0}},
        lazy=("egress_bytes",),
        limits={"b1": {"ingress_bytes": 1_048_576.0}, "b2": {"ingress_bytes": 9_437_184.0}},
        used={"b1": {"ingress_bytes": 12_288.0}, "b2": {"ingress_bytes": 9_430_016.5}},
        throttled={"b2": {"ingress_bytes": 0.25}},
        levels={"connections": 14},
    ),
    HealthProbe(
        cluster=CLUSTER,
        broker=BrokerId(2),
        zone=Zone("b"),
        partition=5,
        probe=Probe.CONSUME,
        checker="5e01b7d4",
        sequence=88_213,
        time_ms=1_800_000_010_733,
        latency_us=6_214,
        role=ProbeRole.PAIR,
        leader=2,
        follower=3,
        vantage="b",
        stages={"connect": 120},
    ),
    AckRanges(
        cluster=CLUSTER,
        gateway="b2",
        incarnation="3f9c2a71",
        sequence=17,
        since_ms=1_800_000_000_000,
        time_ms=1_800_000_010_000,
        ranges={
            "Q3zjA1bKTq6v0mXe2m9xZw": (
                (5, events.ACKS_ALL, 120_400, 512, 512, 61_440, 1_800_000_009_120, 3_000),
                (6, events.ACKS_LEADER, 0, 10, 4, 480, -1, 0),
            )
        },
        lost=3,
    ),
    AuditEvent(
        id="0190f0c2-6e2b-7cc1-9d1e-2f64c1a0b9aa",
        time_ms=1_800_000_010_900,
        source="control/3f9c2a71",
        sequence=17,
        cluster=CLUSTER,
        operation="topic.configure",
        subject_kind="topic",
        subject="Q3zjA1bKTq6v0mXe2m9xZw",
        actor="sa-9k4v2p",
        outcome=Outcome.DONE,
        tenant=TENANT,
        before={"retention.ms": "604800000"},
        after={"retention.ms": "86400000"},
        cause="request-5511",
    ),
    RegistryRecord(
        entity="logical-cluster",
        id=TENANT,
        version=3,
        time_ms=1_800_000_011_000,
        body_schema=1,
        body={"name": "orders", "quota": {"ingress_bytes": 10_485_760}, "zones": ["a", "b", "c"]},
    ),
    BrokerPressure(
        cluster=CLUSTER,
        broker=BrokerId(2),
        gateway="b2",
        incarnation="3f9c2a71",
        time_ms=1_800_000_010_900,
        began_ms=1_800_000_004_900,
        phase=Phase.LASTS,
        in_flight=412,
        waited_us=1_730_000,
        handlers_busy=0.97,
    ),
    BrokerLoad(
        cluster=CLUSTER,
        broker=BrokerId(2),
        time_ms=1_800_000_010_900,
        scrape_age_ms=40,
        load=0.71,
        wait_ms=4.5,
        service_ms=0.25,
        handlers_busy=0.64,
        network_busy=0.31,
        requests=2400.0,
        bytes_in=31_457_280.0,
        bytes_out=62_914_560.0,
        replication_bytes_in=1024.0,
        replication_bytes_out=62_914_560.5,
        replicas=1204,
        leaders=402,
        disk_used_bytes=214_748_364_800,
        disk_total_bytes=1_099_511_627_776,
        recent_wait_ms=7.25,
        recent_handlers_busy=0.81,
        recent_local_ms=0.5,
        recent_flush_ms=12.5,
    ),
    TopicRates(
        cluster=CLUSTER,
        broker=BrokerId(2),
        since_ms=1_800_000_000_000,
        time_ms=1_800_000_060_000,
        rates={"lkc-0a1b2c_orders": (10_240.0, 20_480.5, 100.0)},
    ),
    GatewayHeartbeat(
        cluster=CLUSTER,
        gateway="gw-1",
        instance="host-1:/etc/penstock/gateway.yaml",
        incarnation="3f9c2a71",
        time_ms=1_800_000_010_900,
        started_ms=1_800_000_000_000,
        bootstrap="gw.example.com:9001,gw.example.com:9002",
        tls=True,
        workers=2,
        version="0.1.0",
        connections=412,
        state_age_ms=500,
        boot="0f3c",
    ),
    LoadHour(
        cluster=CLUSTER,
        hour=500_000,
        brokers=6,
        work=2.75,
        imbalance=1.2,
        samples=360,
        bytes_in=10_240.5,
    ),
)
by_kind = pytest.mark.parametrize("example", EXAMPLES, ids=lambda event: event.kind)

TEXT = st.text(max_size=20)
COUNT = st.integers(0, (1 << 63) - 1)
COUNTS = st.dictionaries(TEXT, COUNT, max_size=4)
RATES = st.dictionaries(TEXT, st.floats(0, 1e18), max_size=4)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53), 1 << 53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FACTS = st.none() | st.dictionaries(TEXT, JSON, max_size=3)


@st.composite
def ack_rows(draw: st.DrawFn) -> tuple[int, ...]:
    offsets = draw(st.integers(1, 1 << 40))
    acks, records = draw(st.sampled_from([-1, 1])), draw(st.integers(1, offsets))
    first = draw(st.integers(0, 1 << 62))
    return (
        draw(COUNT),
        acks,
        first,
        offsets,
        records,
        draw(COUNT),
        draw(st.integers(-1, 1 << 62)),
        draw(COUNT),
    )


@st.composite
def ack_ranges(draw: st.DrawFn) -> AckRanges:
    rows = st.lists(ack_rows(), max_size=3).map(tuple)
    return AckRanges(
        cluster=CLUSTER,
        gateway=draw(TEXT),
        incarnation=draw(TEXT),
        sequence=draw(COUNT),
        since_ms=draw(COUNT),
        time_ms=draw(COUNT),
        ranges=draw(st.dictionaries(TEXT, rows, max_size=3)),
        lost=draw(COUNT),
        final=draw(st.booleans()),
    )


@st.composite
def probes(draw: st.DrawFn) -> HealthProbe:
    latency = draw(st.none() | COUNT)
    return HealthProbe(
        cluster=CLUSTER,
        broker=BrokerId(draw(COUNT)),
        zone=Zone(draw(TEXT)),
        partition=draw(COUNT),
        probe=draw(st.sampled_from(Probe)),
        checker=draw(TEXT),
        sequence=draw(COUNT),
        time_ms=draw(COUNT),
        latency_us=latency,
        error=draw(TEXT) if latency is None else None,
        role=draw(st.sampled_from(ProbeRole)),
        leader=draw(st.none() | COUNT),
        follower=draw(st.none() | COUNT),
        vantage=draw(TEXT),
        stages=draw(st.dictionaries(TEXT, COUNT, max_size=3)),
    )


@st.composite
def broker_loads(draw: st.DrawFn) -> BrokerLoad:
    load = draw(st.none() | st.floats(0, 1))
    return BrokerLoad(
        cluster=CLUSTER,
        broker=BrokerId(draw(COUNT)),
        time_ms=draw(COUNT),
        scrape_age_ms=draw(COUNT if load is not None else st.none() | COUNT),
        load=load,
        missing=() if load is not None else (draw(TEXT),),
        wait_ms=draw(st.floats(0, 1e9)),
        handlers_busy=draw(st.floats(0, 1)),
        disk_used_bytes=draw(st.none() | COUNT),
    )


ANY_EVENT: st.SearchStrategy[Event] = st.one_of(
    st.builds(UsageReport, sequence=COUNT, time_ms=COUNT, used=COUNTS, throttled_ms=COUNTS, levels=COUNTS),
    st.builds(
        QuotaShares,
        epoch=COUNT,
        sequence=COUNT,
        time_ms=COUNT,
        valid_ms=st.integers(1, 1 << 62),
        quota=RATES,
        shares=st.dictionaries(TEXT, RATES, max_size=3),
        lazy=st.lists(TEXT, max_size=3).map(tuple),
        limits=st.dictionaries(TEXT, RATES, max_size=3),
        used=st.dictionaries(TEXT, RATES, max_size=3),
        throttled=st.dictionaries(TEXT, RATES, max_size=3),
        levels=COUNTS,
    ),
    probes(),
    st.builds(
        BrokerPressure,
        broker=COUNT.map(BrokerId),
        began_ms=st.integers(0, 1 << 40),
        time_ms=st.integers(1 << 40, 1 << 62),
        in_flight=COUNT,
        waited_us=COUNT,
        handlers_busy=st.none() | st.floats(0, 1),
    ),
    broker_loads(),
    st.builds(
        TopicRates,
        broker=COUNT.map(BrokerId),
        since_ms=st.integers(0, 1 << 40),
        time_ms=st.integers(1 << 40, 1 << 62),
        rates=st.dictionaries(TEXT, st.tuples(*[st.floats(0, 1e18)] * 3), max_size=3),
        part=st.integers(0, 2),
        parts=st.integers(3, 9),
    ),
    ack_ranges(),
    st.builds(
        AuditEvent, time_ms=COUNT, sequence=COUNT, outcome=st.sampled_from(Outcome), before=FACTS, after=FACTS
    ),
    st.builds(
        RegistryRecord,
        entity=st.from_regex(r"[a-z-]+", fullmatch=True),
        version=st.integers(1, 1 << 62),
        time_ms=COUNT,
        body_schema=COUNT,
        body=st.dictionaries(TEXT, JSON, max_size=4),
    ),
)


def changed(event: Event, **members: object) -> bytes:
    return json.dumps({**json.loads(event.to_bytes()), **members}).encode()


@given(ANY_EVENT)
def test_an_event_round_trips_through_its_bytes(event: Event) -> None:
    assert type(event).from_bytes(event.to_bytes()) == event


@given(ANY_EVENT, st.dictionaries(TEXT.map("new_".__add__), JSON, min_size=1, max_size=3))
def test_fields_of_a_later_minor_version_are_ignored(event: Event, added: dict[str, object]) -> None:
    later = changed(event, schema=f"{event.kind}/{event.major}.{event.minor + 1}", **added)

    assert type(event).from_bytes(later) == event


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_one_error(value: bytes) -> None:
    with pytest.raises(EventUnreadable):
        UsageReport.from_bytes(value)


@by_kind
def test_the_bytes_match_the_golden_file(example: Event) -> None:
    golden = (GOLDEN / f"{example.kind}.json").read_bytes().rstrip(b"\n")

    assert example.to_bytes() == golden
    assert type(example).from_bytes(golden) == example


def test_every_kind_has_an_example_and_a_topic() -> None:
    kinds = [each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)]
    kinds.remove(Event)
    assert {type(example) for example in EXAMPLES} == set(kinds)
    assert len({event.kind for event in kinds}) == len(kinds)
    # The state topic repeats the registry's events; the scaler, the executor of plans, links, restores and
    # the audit define the records of their topics.
    others = {
        key_names.STATE_TOPIC, key_names.LAG_TOPIC, key_names.PLANS_TOPIC, key_names.LINKS_TOPIC,
        key_names.RESTORES_TOPIC, key_names.DURABILITY_TOPIC, key_names.FINDINGS_TOPIC,
        key_names.AUDIT_STATE_TOPIC,
    }  # fmt: skip
    topics = {value for name, value in vars(key_names).items() if name.endswith("_TOPIC")}
    assert {event.topic for event in kinds} | others == topics


@by_kind
def test_the_key_groups_events_that_must_stay_in_order(example: Event) -> None:
    expected = {
        "usage": b"lkc-0a1b2c",
        "quota": b"lkc-0a1b2c",
        "health": b"pkc-7hq2mz/2",
        "pressure": b"pkc-7hq2mz/2",
        "load": b"pkc-7hq2mz/2",
        "load-hour": b"pkc-7hq2mz/500000",
        "topic-rates": b"pkc-7hq2mz/2",
        "gateway": b"gw-1",
        "acks": b"3f9c2a71",
        "audit": b"topic/Q3zjA1bKTq6v0mXe2m9xZw",
        "registry": b"logical-cluster/lkc-0a1b2c",
    }

    assert example.key == expected[example.kind]


@by_kind
def test_a_newer_major_version_is_refused(example: Event) -> None:
    newer = changed(example, schema=f"{example.kind}/{example.major + 1}.0")

    with pytest.raises(EventTooNew) as refusal:
        type(example).from_bytes(newer)

    assert refusal.value.facts["actual"] == f"{example.major + 1}.0"


def test_an_event_on_the_wrong_topic_is_refused_by_its_kind() -> None:
    usage, quota = EXAMPLES[:2]

    with pytest.raises(EventOfAnotherKind, match="found 'quota'"):
        type(usage).from_bytes(quota.to_bytes())


@by_kind
def test_a_missing_field_is_named(example: Event) -> None:
    members = json.loads(example.to_bytes())
    dropped = list(members)[1]
    del members[dropped]

    with pytest.raises(EventUnreadable, match=f"`{dropped}` is missing"):
        type(example).from_bytes(json.dumps(members).encode())


def test_a_field_with_a_default_may_be_missing() -> None:
    members = json.loads(EXAMPLES[0].to_bytes())
    del members["levels"]

    assert UsageReport.from_bytes(json.dumps(members).encode()).levels == {}


@pytest.mark.parametrize(
    ("example", "field", "value", "expected"),
    [
        (EXAMPLES[0], "sequence", "41", "an integer of 64 bits"),
        (EXAMPLES[0], "sequence", True, "an integer of 64 bits"),
        (EXAMPLES[0], "sequence", 1 << 63, "an integer of 64 bits"),
        (EXAMPLES[0], "sequence", -1, "zero or more"),
        (EXAMPLES[0], "tenant", 7, "a string of Unicode characters"),
        (EXAMPLES[0], "tenant", "\ud800", "a string of Unicode characters"),  # it could not be written again
        (EXAMPLES[0], "used", {"\udfff": 1}, "a string of Unicode characters"),
        (EXAMPLES[0], "used", [], "an object"),
        (EXAMPLES[0], "used", {"requests": -1}, "zero or more, each"),
        (EXAMPLES[0], "used", {"requests": 0.5}, "an integer of 64 bits"),
        (EXAMPLES[1], "quota", {"requests": "many"}, "a finite number"),
        (EXAMPLES[1], "quota", {"requests": 10**400}, "a finite number"),
        (EXAMPLES[1], "lazy", "all", "a list"),
        (EXAMPLES[1], "valid_ms", 0, "more than zero"),
        (EXAMPLES[1], "shares", {"b1": {"requests": -0.5}}, "zero or more, each"),
        (EXAMPLES[2], "probe", "ping", "one of produce, consume, call"),
        (EXAMPLES[2], "latency_us", -5, "zero or more"),
        (EXAMPLES[2], "error", "TIMED_OUT", "present exactly when `latency_us` is not"),
        (EXAMPLES[3], "sequence", -1, "zero or more"),
        (EXAMPLES[3], "ranges", {"Q": [[5, 0, 120_400, 512, 512, 1, 1, 1]]}, ACK_ROWS),  # acks
        (EXAMPLES[3], "ranges", {"Q": [[5, -1, -1, 512, 512, 1, 1, 1]]}, ACK_ROWS),  # first offset
        (EXAMPLES[3], "ranges", {"Q": [[5, -1, 120_400, 512, 513, 1, 1, 1]]}, ACK_ROWS),  # records
        (EXAMPLES[3], "ranges", {"Q": [[5, -1, 120_400, 512, 512]]}, ACK_ROWS),  # fields
        (EXAMPLES[5], "version", 0, "one or more"),
        (EXAMPLES[5], "entity", "a/b", "a word without a slash"),
        (EXAMPLES[7], "load", 1.5, "between 0 and 1"),
        (EXAMPLES[7], "missing", ["LocalTimeMs"], "named exactly when `load` is unknown"),
        (EXAMPLES[7], "scrape_age_ms", None, "present if `load` is"),
        (EXAMPLES[8], "since_ms", 1_800_000_060_001, "at most `time_ms`"),
        (EXAMPLES[8], "part", 1, "between zero and `parts`"),
        (EXAMPLES[8], "rates", {"orders": [1.0, 2.0]}, "rows of three numbers, zero or more each"),
    ],
)
def test_an_invalid_field_is_named_with_what_was_expected(
    example: Event, field: str, value: object, expected: str
) -> None:
    with pytest.raises(EventFieldInvalid) as refusal:
        type(example).from_bytes(changed(example, **{field: value}))

    assert (refusal.value.facts["field"], refusal.value.facts["expected"]) == (field, expected)


def test_a_number_that_only_overflows_is_refused() -> None:
    quota = EXAMPLES[1].to_bytes().replace(b"10485760.0", b"1e999")  # infinity, without its name

    with pytest.raises(EventFieldInvalid, match="a finite number"):
        QuotaShares.from_bytes(quota)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[]",
        b'{"schema": 1}',
        b'{"schema": "usage/one"}',
        b'{"schema": "usage/0.9"}',
        b'{"schema": "usage/%s.0"}' % (b"9" * 5000),
        b'{"schema": "usage/1.0", "sequence": NaN}',
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (EVENT_BYTES_MAX + 1),
    ],
    ids=["no value", "empty", "list", "number", "words", "older", "long", "NaN", "no text", "deep", "huge"],
)
def test_a_value_that_is_not_an_event_is_refused(value: bytes | None) -> None:
    with pytest.raises(EventUnreadable):
        UsageReport.from_bytes(value)


def test_an_error_shows_only_the_beginning_of_a_huge_value() -> None:
    with pytest.raises(EventFieldInvalid) as refusal:
        UsageReport.from_bytes(changed(EXAMPLES[0], sequence="9" * 10_000))

    assert len(str(refusal.value)) < 250


def test_a_registry_body_keeps_unknown_fields() -> None:
    record = RegistryRecord.from_bytes(changed(EXAMPLES[5], body={"name": "orders", "later": {"x": [1]}}))

    assert json.loads(record.to_bytes())["body"] == {"name": "orders", "later": {"x": [1]}}


def test_the_key_of_a_deletion_identifies_its_entity() -> None:
    assert events.entity_of(events.registry_key("api-key", "A/B")) == ("api-key", "A/B")


def test_a_key_that_names_no_entity_is_refused() -> None:
    with pytest.raises(EventFieldInvalid, match="`key`"):
        events.entity_of(b"orders")


def test_shares_of_a_later_coordinator_replace_those_of_an_earlier_one() -> None:
    old = EXAMPLES[1]
    assert isinstance(old, QuotaShares)

    new = replace(old, epoch=old.epoch + 1, sequence=0)

    assert max((new, old), key=lambda shares: shares.order) is new


def test_read_only_mappings_are_written_like_dictionaries() -> None:
    usage = EXAMPLES[0]
    assert isinstance(usage, UsageReport)

    assert replace(usage, used=MappingProxyType(dict(usage.used))).to_bytes() == usage.to_bytes()


def test_a_probe_with_a_latency_succeeded() -> None:
    probe = EXAMPLES[2]
    assert isinstance(probe, HealthProbe)

    assert probe.succeeded
    assert not replace(probe, latency_us=None, error="REQUEST_TIMED_OUT").succeeded
