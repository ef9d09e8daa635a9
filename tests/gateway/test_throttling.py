"""Limits of a tenant on a gateway: the arithmetic, the bytes, and real clients that are told to wait."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.gateway.throttled import throttled_by
from penstock.gateway.throttling import Quotas, TenantQuota, marked, place_of
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId
from penstock.wire.definitions import load
from penstock.wire.frames import Response, decode_response, encode_response
from tests.ground.gateway import Access, RunningGateway, known_everywhere, new_access

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_BYTES = 50_000
SECONDS_MAX = 60


def test_the_longest_wait_counts_and_says_why() -> None:
    quota = TenantQuota()
    quota.retune({Dimension.INGRESS_BYTES: 100.0, Dimension.EGRESS_BYTES: 100.0}, now=0.0)

    assert quota.charge({Dimension.INGRESS_BYTES: 200.0}, now=0.0) == (1.0, Dimension.INGRESS_BYTES)
    assert quota.charge({Dimension.EGRESS_BYTES: 400.0}, now=0.0) == (3.0, Dimension.EGRESS_BYTES)


def test_requests_wait_one_window_at_most_and_bytes_as_long_as_it_takes() -> None:
    quota = TenantQuota()
    quota.retune({Dimension.REQUESTS: 10.0, Dimension.INGRESS_BYTES: 10.0}, now=0.0)

    assert quota.charge({Dimension.REQUESTS: 1000.0}, now=0.0) == (1.0, Dimension.REQUESTS)
    assert quota.charge({Dimension.INGRESS_BYTES: 1000.0}, now=0.0)[0] == 99.0


def test_what_is_not_limited_never_waits() -> None:
    quota = TenantQuota()
    quota.retune({Dimension.REQUESTS: 10.0}, now=0.0)
    quota.retune({}, now=0.0)

    assert quota.charge({Dimension.REQUESTS: 1e9, Dimension.EGRESS_BYTES: 1e12}, now=0.0) == (0.0, None)


def test_what_the_configuration_says_holds_until_a_share_comes_and_again_when_it_changes() -> None:
    quotas = Quotas()
    tenant = LogicalClusterId("lkc-aaaaaa")
    quotas.settle(tenant, {Dimension.INGRESS_BYTES: 100.0}, now=0.0)
    quotas.retune(tenant, {Dimension.INGRESS_BYTES: 50.0}, now=0.0)

    same = quotas.settle(tenant, {Dimension.INGRESS_BYTES: 100.0}, now=0.0)
    assert same.charge({Dimension.INGRESS_BYTES: 100.0}, now=0.0)[0] == 1.0
    changed = quotas.settle(tenant, {}, now=0.0)

    assert changed is same
    assert not changed.limited


def every_answer() -> list[tuple[str, int]]:
    definitions = load()
    return [
        (api, version)
        for api in definitions.apis().values()
        if "broker" in definitions.request(api).listeners
        for version in definitions.response(api).valid_versions
        if any(f.name == "ThrottleTimeMs" and version in f.versions for f in definitions.response(api).fields)
    ]


def test_every_answer_with_a_throttle_time_gets_it_and_nothing_else_changes() -> None:
    for api, version in every_answer():
        body: dict[str, Any] = {"ThrottleTimeMs": 7}
        frame = encode_response(api, version, Response(5, body))

        found = decode_response(api, version, marked(frame, 1234, {5: (api, version)})[4:])

        plain = decode_response(api, version, frame[4:])
        assert found.body == plain.body | {"ThrottleTimeMs": 1234}, (api, version)


def test_a_longer_wait_that_the_broker_told_stays() -> None:
    frame = encode_response("Fetch", 12, Response(5, {"ThrottleTimeMs": 900}))

    assert marked(frame, 100, {5: ("Fetch", 12)}) == frame


def test_answers_of_ours_and_halves_of_frames_are_left_alone() -> None:
    frame = encode_response("Produce", 9, Response(5, {"ThrottleTimeMs": 0}))

    assert marked(frame, 100, {}) == frame
    assert marked(frame[:-3], 100, {5: ("Produce", 9)}) == frame[:-3]
    assert marked(frame[:7], 100, {5: ("Produce", 9)}) == frame[:7]


def test_of_several_frames_each_is_marked_in_its_own_place() -> None:
    first = encode_response("Produce", 9, Response(1, {"ThrottleTimeMs": 0}))
    second = encode_response("Fetch", 12, Response(2, {"ThrottleTimeMs": 0}))

    out = marked(first + second, 50, {1: ("Produce", 9), 2: ("Fetch", 12)})

    assert decode_response("Produce", 9, out[4 : len(first)]).body["ThrottleTimeMs"] == 50
    assert decode_response("Fetch", 12, out[len(first) + 4 :]).body["ThrottleTimeMs"] == 50


def test_versions_without_a_throttle_time_have_no_place_for_it() -> None:
    assert place_of("Produce", 3).from_end > 0
    assert place_of("Fetch", 12).from_start > 0
    assert not place_of("SaslHandshake", 1).from_start


class Ground:
    """A gateway with limits, and two tenants of whom the first has some."""

    def __init__(self, make_gateway: Callable[..., RunningGateway]) -> None:
        self.quotas = Quotas()
        self.limited, self.free = new_access(), new_access()
        running = make_gateway(self.limited, self.free, session=throttled_by(self.quotas))
        self.limited, self.free = running.accesses

    def topic(self, access: Access) -> None:
        client = AdminClient(access.client_config())
        client.create_topics([NewTopic("load", 1, 3)])["load"].result(SECONDS_MAX)
        asyncio.run(known_everywhere(access, "load"))

    def limit(self, dimension: Dimension, rate: float) -> TenantQuota:
        return self.quotas.retune(self.limited.tenant.id, {dimension: rate}, time.monotonic())

    def produce(self, access: Access, count: int) -> list[float]:
        """The waits that the client was told of, in seconds."""
        waits: list[float] = []
        told = {"throttle_cb": lambda event: waits.append(event.throttle_time)}
        failed: list[Any] = []
        producer = Producer(access.client_config(linger_ms=0, batch_size=100_000) | told)
        for _ in range(count):
            producer.produce(
                "load", bytes(RECORD_BYTES), on_delivery=lambda e, _: failed.append(e) if e else None
            )
        assert producer.flush(SECONDS_MAX) == 0
        assert failed == []
        return [wait for wait in waits if wait > 0]

    def consume(self, access: Access, count: int) -> list[float]:
        waits: list[float] = []
        told = {"throttle_cb": lambda event: waits.append(event.throttle_time)}
        config = access.client_config(group_id="g", fetch_message_max_bytes=200_000)
        consumer = Consumer(config | told)
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
def ground(make_gateway: Callable[..., RunningGateway]) -> Ground:
    return Ground(make_gateway)


@pytest.mark.kafka
def test_a_producer_beyond_its_limit_is_told_to_wait_loses_nothing_and_its_neighbour_does_not_notice(
    ground: Ground,
) -> None:
    quota = ground.limit(Dimension.INGRESS_BYTES, 1e6)
    ground.topic(ground.limited)
    ground.topic(ground.free)

    waits, neighbour = ground.produce(ground.limited, 60), ground.produce(ground.free, 60)

    assert waits
    assert quota.throttled_seconds[Dimension.INGRESS_BYTES] > 0
    assert neighbour == []


@pytest.mark.kafka
def test_a_consumer_beyond_its_limit_is_told_to_wait_and_reads_everything(ground: Ground) -> None:
    ground.topic(ground.limited)
    ground.topic(ground.free)
    quota = ground.limit(Dimension.EGRESS_BYTES, 5e5)
    for access in (ground.limited, ground.free):
        ground.produce(access, 40)

    waits, neighbour = ground.consume(ground.limited, 40), ground.consume(ground.free, 40)

    assert waits
    assert quota.throttled_seconds[Dimension.EGRESS_BYTES] > 0
    assert neighbour == []
