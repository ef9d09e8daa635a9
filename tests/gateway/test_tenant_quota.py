"""A tenant's limits on a gateway: the arithmetic, the bytes, and real throttled clients."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.config import TenantLimits
from penstock.gateway.connection.routes import FETCH, Route, routes
from penstock.gateway.limits.metering import Usage
from penstock.gateway.limits.partition_limits import decide_partitions
from penstock.gateway.limits.tenant_quota import Quotas, TenantQuota
from penstock.gateway.tenancy.tenant_names import Inward, Outward, TenantContext
from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import TopicPartition as Partition
from penstock.kafka.client import Client
from penstock.kafka.partition_log import read
from penstock.model.errors import PenstockError
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId
from penstock.quota.token_bucket import Bucket
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, Response, decode_response, encode_request, encode_response
from penstock.wire.splice import Program, spliced
from tests.gateway.wires import TENANT
from tests.harness.gateway import Access, RunningGateway, new_access, raw_login, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_BYTES = 50_000
SECONDS_MAX = 60


def test_the_longest_wait_counts() -> None:
    quota = TenantQuota()
    quota.retune({Dimension.INGRESS_BYTES: 100.0, Dimension.EGRESS_BYTES: 100.0}, now=0.0)

    assert quota.charge({Dimension.INGRESS_BYTES: 200.0}, now=0.0) == 1.0
    assert quota.charge({Dimension.INGRESS_BYTES: 100.0, Dimension.EGRESS_BYTES: 400.0}, now=0.0) == 3.0


def test_an_unlimited_dimension_never_waits() -> None:
    quota = TenantQuota()
    quota.retune({Dimension.REQUESTS: 10.0}, now=0.0)
    quota.retune({}, now=0.0)

    assert quota.charge({Dimension.REQUESTS: 1e9, Dimension.EGRESS_BYTES: 1e12}, now=0.0) == 0.0


def test_the_configured_quota_applies_until_a_share_arrives_and_again_after_a_change() -> None:
    quotas = Quotas()
    tenant = LogicalClusterId("lkc-aaaaaa")
    quotas.apply(tenant, {Dimension.INGRESS_BYTES: 100.0}, now=0.0)
    quotas.retune(tenant, {Dimension.INGRESS_BYTES: 50.0}, now=0.0)

    same = quotas.apply(tenant, {Dimension.INGRESS_BYTES: 100.0}, now=0.0)
    assert same.charge({Dimension.INGRESS_BYTES: 100.0}, now=0.0) == 1.0
    changed = quotas.apply(tenant, {}, now=0.0)

    assert changed is same
    assert changed.granted() == {}


def counted(rates: dict[Dimension, float]) -> tuple[TenantQuota, Usage]:
    quota, usage = TenantQuota(), Usage()
    quota.retune(rates, now=0.0)
    quota.bind(usage)
    return quota, usage


def test_counters_are_charged_only_once_they_could_exceed_the_limit() -> None:
    quota, usage = counted({Dimension.INGRESS_BYTES: 100.0, Dimension.REQUESTS: 10.0})
    usage.bytes_in, usage.requests = 100, 5
    assert usage.bytes_in <= usage.bytes_in_check_at

    usage.bytes_in += 50

    assert usage.bytes_in > usage.bytes_in_check_at
    assert quota.charge_ingress(now=0.0) == 0.5
    assert usage.bytes_in_check_at == 150
    assert usage.requests_check_at == 10


def test_responses_and_service_time_are_charged_likewise() -> None:
    quota, usage = counted({Dimension.EGRESS_BYTES: 100.0, Dimension.REQUEST_TIME_US: 1e6})
    quota.egress_left -= 100
    assert quota.charge_egress(now=0.0) == 0.0
    quota.egress_left -= 50
    usage.service_seconds = 1.5

    assert quota.charge_egress(now=0.0) == 0.5
    assert usage.service_seconds > quota.service_check_at
    assert quota.charge_service_time(now=0.0) == 0.5


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 2)), max_size=40))
def test_lazy_charging_never_waits_longer_than_charging_each_request(
    steps: list[tuple[int, float]],
) -> None:
    quota, usage = counted({Dimension.INGRESS_BYTES: 100.0})
    always = Bucket.full(100.0, 0.0)
    now = 0.0
    for amount, later in steps:
        now += later
        usage.bytes_in += amount
        wait = quota.charge_ingress(now) if usage.bytes_in > usage.bytes_in_check_at else 0.0

        assert wait <= always.spend(float(amount), now) + 1e-6


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 3)), max_size=60))
def test_a_client_that_waits_gets_its_rate_two_bursts_and_one_request(
    steps: list[tuple[int, float]],
) -> None:
    quota, usage = counted({Dimension.INGRESS_BYTES: 100.0})
    now = 0.0
    for amount, later in steps:
        now += later
        usage.bytes_in += amount
        assert usage.bytes_in <= 100.0 * now + 200.0 + amount + 1e-6
        if usage.bytes_in > usage.bytes_in_check_at:
            now += quota.charge_ingress(now)


def test_use_before_a_lower_limit_is_charged_at_the_old_one() -> None:
    quota, usage = counted({Dimension.INGRESS_BYTES: 100.0})
    usage.bytes_in = 80

    quota.retune({Dimension.INGRESS_BYTES: 10.0}, now=0.0)

    assert usage.bytes_in_check_at == 90  # ten are left of the burst, and one burst is ten


def spliced_routes() -> list[Route]:
    return [route for route in routes(restricted=False).values() if isinstance(route.response, Program)]


def has_throttle_time(route: Route) -> bool:
    fields = load().response(route.api).fields
    return any(field.name == "ThrottleTimeMs" and route.version in field.versions for field in fields)


def inward(route: Route, frame: bytes, wait_ms: int) -> dict[str, Any]:
    """A response as the client receives it, while it has to wait so long."""
    names = Inward(TenantContext(TENANT, {0: (b"gateway", 9001)}), {})
    names.wait_ms = wait_ms
    assert isinstance(route.response, Program)
    return dict(decode_response(route.api, route.version, spliced(route.response, names, frame)[4:]).body)


def test_every_response_with_a_throttle_time_gets_it_and_nothing_else_changes() -> None:
    for route in spliced_routes():
        body: dict[str, Any] = {"ThrottleTimeMs": 7} if has_throttle_time(route) else {}
        frame = encode_response(route.api, route.version, Response(5, body))

        throttled, plain = inward(route, frame, 1234), inward(route, frame, 0)

        marked = {"ThrottleTimeMs": 1234} if has_throttle_time(route) else {}
        assert throttled == plain | marked, (route.api, route.version)


def test_a_longer_throttle_time_of_the_broker_stays() -> None:
    route = routes(restricted=False)[FETCH, 12]
    frame = encode_response("Fetch", 12, Response(5, {"ThrottleTimeMs": 900}))

    assert inward(route, frame, 100)["ThrottleTimeMs"] == 900


def fetch(version: int, bytes_max: int, correlation_id: int = 1) -> bytes:
    body = {"MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": bytes_max, "IsolationLevel": 0, "Topics": []}
    return encode_request(Request("Fetch", version, correlation_id, "a client", body))


def outward(version: int, frame: bytes) -> bytes:
    """A fetch as the broker receives it, while it may return 1,000 bytes."""
    names = Outward(TenantContext(TENANT, {}), {})
    names.fetch_bytes_max = lambda: 1_000
    program = routes(restricted=False)[FETCH, version].request
    assert isinstance(program, Program)
    return spliced(program, names, frame)


def test_a_fetch_of_any_version_is_capped() -> None:
    first = 3  # the first version with a limit for the whole response
    for version in [v for v in load().request("Fetch").valid_versions if v >= first]:
        assert outward(version, fetch(version, 50_000_000)) == fetch(version, 1_000), version
        assert outward(version, fetch(version, 900)) == fetch(version, 900), version


def creation(version: int, *topics: tuple[str, int], **more: Any) -> Request:
    requested = [
        {"Name": n, "NumPartitions": c, "ReplicationFactor": 1, "Assignments": []} for n, c in topics
    ]
    return Request("CreateTopics", version, 1, "t", {"Topics": requested, "ValidateOnly": False, **more})


class Tokens:
    def __init__(self, rate: float) -> None:
        self.quota = TenantQuota()
        self.quota.retune({Dimension.PARTITION_CHANGES: rate}, now=0.0)

    def __call__(self, count: float) -> float:
        return self.quota.charge({Dimension.PARTITION_CHANGES: count}, now=0.0)


def test_partitions_beyond_the_limit_are_refused_and_the_rest_is_created() -> None:
    judged = decide_partitions(creation(7, ("a", 4), ("b", 9), ("c", 1)), {"old": (5, 3)}, 10, Tokens(100.0))

    assert [topic["Name"] for topic in judged.request.body["Topics"]] == ["a", "c"]
    assert [(one.name, one.code) for one in judged.refused] == [("b", Code.POLICY_VIOLATION)]
    assert judged.changes == 5


def test_during_debt_a_new_client_is_refused_and_an_old_one_waits() -> None:
    tokens, old = Tokens(2.0), Tokens(2.0)

    judged = decide_partitions(creation(7, ("a", 6), ("b", 1)), {}, None, tokens)
    waits = decide_partitions(creation(5, ("a", 6), ("b", 2)), {}, None, old)

    assert [(one.name, one.code) for one in judged.refused] == [("b", Code.THROTTLING_QUOTA_EXCEEDED)]
    assert judged.throttle_seconds == 2.0
    assert (waits.refused, waits.changes, waits.throttle_seconds) == ((), 8, 3.0)


def test_validate_only_requests_are_free() -> None:
    tokens = Tokens(1.0)

    judged = decide_partitions(creation(7, ("a", 50), ValidateOnly=True), {}, None, tokens)

    assert (judged.changes, judged.throttle_seconds, tokens(0.0)) == (0, 0.0, 0.0)


def test_only_new_partitions_of_a_topic_count() -> None:
    requested = [{"Name": "old", "Count": 8, "Assignments": None}]
    request = Request("CreatePartitions", 3, 1, "t", {"Topics": requested, "ValidateOnly": False})

    assert decide_partitions(request, {"old": (5, 3)}, 8, Tokens(100.0)).changes == 3
    assert (
        decide_partitions(request, {"old": (5, 3)}, 7, Tokens(100.0)).refused[0].code == Code.POLICY_VIOLATION
    )


class Harness:
    """A gateway with two tenants, of which the first has limits."""

    def __init__(self, make_gateway: Callable[..., RunningGateway]) -> None:
        self.quotas = Quotas()
        self.limited, self.free = new_access(), new_access()
        running = make_gateway(self.limited, self.free, quotas=self.quotas)
        self.limited, self.free = running.accesses

    def topic(self, access: Access) -> None:
        client = AdminClient(access.client_config())
        client.create_topics([NewTopic("load", 1, 3)])["load"].result(SECONDS_MAX)
        asyncio.run(wait_for_topic(access, "load"))

    def limit(self, dimension: Dimension, rate: float) -> TenantQuota:
        return self.quotas.retune(self.limited.tenant.id, {dimension: rate}, time.monotonic())

    def produce(self, access: Access, count: int) -> list[float]:
        """The throttle times that the client received, in seconds."""
        waits: list[float] = []
        callback = {"throttle_cb": lambda event: waits.append(event.throttle_time)}
        failed: list[Any] = []
        producer = Producer(access.client_config(linger_ms=0, batch_size=100_000) | callback)
        for _ in range(count):
            producer.produce(
                "load", bytes(RECORD_BYTES), on_delivery=lambda e, _: failed.append(e) if e else None
            )
        assert producer.flush(SECONDS_MAX) == 0
        assert failed == []
        return [wait for wait in waits if wait > 0]

    def consume(self, access: Access, count: int) -> list[float]:
        waits: list[float] = []
        callback = {"throttle_cb": lambda event: waits.append(event.throttle_time)}
        config = access.client_config(group_id="g", fetch_message_max_bytes=200_000)
        consumer = Consumer(config | callback)
        consumer.assign([TopicPartition("load", 0, OFFSET_BEGINNING)])
        read = 0
        end = time.monotonic() + SECONDS_MAX
        while (read < count or not waits) and time.monotonic() < end:
            message = consumer.poll(0.2)
            read += message is not None and message.error() is None
            if read >= count and access is self.free:
                break
        consumer.close()
        assert read == count
        return [wait for wait in waits if wait > 0]


@pytest.fixture
def rig(make_gateway: Callable[..., RunningGateway]) -> Harness:
    return Harness(make_gateway)


@pytest.mark.kafka
def test_a_throttled_producer_loses_nothing_and_another_tenant_is_not_delayed(
    rig: Harness,
) -> None:
    quota = rig.limit(Dimension.INGRESS_BYTES, 1e6)
    rig.topic(rig.limited)
    rig.topic(rig.free)

    waits, neighbour = rig.produce(rig.limited, 60), rig.produce(rig.free, 60)

    assert waits
    assert quota.throttled_seconds[Dimension.INGRESS_BYTES] > 0
    assert neighbour == []


@pytest.mark.kafka
def test_a_throttled_consumer_reads_everything(rig: Harness) -> None:
    rig.topic(rig.limited)
    rig.topic(rig.free)
    quota = rig.limit(Dimension.EGRESS_BYTES, 5e5)
    for access in (rig.limited, rig.free):
        rig.produce(access, 40)

    waits, neighbour = rig.consume(rig.limited, 40), rig.consume(rig.free, 40)

    assert waits
    assert quota.throttled_seconds[Dimension.EGRESS_BYTES] > 0
    assert neighbour == []


@pytest.mark.kafka
def test_a_fetch_is_capped_at_a_fraction_of_a_second(rig: Harness) -> None:
    rig.topic(rig.free)
    rig.topic(rig.limited)
    rig.produce(rig.limited, 10)
    rig.limit(Dimension.EGRESS_BYTES, 3 * RECORD_BYTES)

    async def fetched() -> int:
        async with Client(rig.limited.bootstrap, rig.limited.security()) as client:
            return len((await read(client, Partition("load", 0), 0, wait_ms=1000)).records)

    assert 0 < asyncio.run(fetched()) <= 3


@pytest.mark.kafka
def test_partitions_are_limited_in_number_and_rate_of_change(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    limits = TenantLimits(partitions_max=6)
    quotas = Quotas()
    running = make_gateway(
        new_access(limits=limits, quota={Dimension.PARTITION_CHANGES: 0.01}),
        quotas=quotas,
    )
    (access,) = running.accesses

    async def ask(*new_topics: topics.NewTopic) -> list[Any]:
        async with Client(access.bootstrap, access.security()) as client:
            return list((await topics.create(client, new_topics)).values())

    async def gone(name: str) -> None:
        async with Client(access.bootstrap, access.security()) as client:
            assert (await topics.delete(client, [name])) == {name: None}

    many = asyncio.run(ask(topics.NewTopic("many", 7, 3)))
    few = asyncio.run(ask(topics.NewTopic("few", 2, 3)))
    asyncio.run(wait_for_topic(access, "few", 2))  # counted towards the next one
    soon = asyncio.run(ask(topics.NewTopic("soon", 1, 3)))
    asyncio.run(gone("few"))

    assert [failure.facts["error_code"] for failure in many] == [Code.POLICY_VIOLATION]
    assert not isinstance(few[0], PenstockError)
    assert [failure.facts["error_code"] for failure in soon] == [Code.THROTTLING_QUOTA_EXCEEDED]
    assert quotas.of(access.tenant.id).throttled_seconds[Dimension.PARTITION_CHANGES] > 0
    assert running.gateway.usage[access.tenant.id].partition_changes == 4  # two created, two deleted


@pytest.mark.kafka
def test_a_request_beyond_its_tenants_limit_closes_the_connection(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = make_gateway(new_access(limits=TenantLimits(request_bytes_max=20_000)), quotas=Quotas())
    (access,) = running.accesses

    async def requested(size: int) -> bytes:
        reader, writer = await raw_login(access)
        body = {"Topics": [{"Name": "t" * 200} for _ in range(size // 200)]}
        writer.write(encode_request(Request("Metadata", 12, 3, "t", body)))
        try:
            async with asyncio.timeout(SECONDS_MAX):
                return await reader.read(4)
        except ConnectionResetError:  # closed with unread bytes
            return b""
        finally:
            writer.close()

    assert asyncio.run(requested(2_000)) != b""
    assert asyncio.run(requested(30_000)) == b""
