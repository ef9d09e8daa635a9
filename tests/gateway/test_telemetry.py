"""Clients' metrics: what is taken, what is refused with which error, and that nothing grows without end."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway import telemetry
from penstock.gateway.telemetry import Malformed, Telemetry
from penstock.model.ids import LogicalClusterId
from penstock.wire.codes import Code
from tests.gateway.test_attacks import open_as

if TYPE_CHECKING:
    from tests.ground.gateway import Access, RunningGateway

TENANT, OTHER = LogicalClusterId("lkc-7hq2mz"), LogicalClusterId("lkc-9xk4vt")
LAG = "org.apache.kafka.consumer.fetch.manager.records.lag.max"
CLIENT = UUID(int=7)


def field(number: int, data: bytes) -> bytes:
    size = len(data)
    length = bytes((size & 0x7F | 0x80, size >> 7)) if size > 0x7F else bytes((size,))
    return bytes((number << 3 | 2,)) + length + data


def pushed_bytes(*metrics: tuple[str, float]) -> bytes:
    """OTLP, by hand."""
    scope = b""
    for name, value in metrics:
        point = bytes((3 << 3 | 1,)) + bytes(8) + bytes((4 << 3 | 1,)) + struct.pack("<d", value)
        scope += field(2, field(1, name.encode()) + field(5, field(1, point)))
    return field(1, field(2, scope))


def push(data: bytes = b"", **more: Any) -> dict[str, Any]:
    return {
        "ClientInstanceId": CLIENT,
        "SubscriptionId": telemetry.SUBSCRIPTION,
        "Terminating": False,
        "CompressionType": telemetry.NONE,
        "Metrics": data,
        **more,
    }


def test_the_worst_of_a_tenants_clients_is_its_figure() -> None:
    kept = Telemetry()

    for client, lag in ((uuid4(), 10.0), (uuid4(), 30.0)):
        data = pushed_bytes((LAG, lag), ("org.apache.kafka.consumer.something.else", 99.0))
        assert kept.pushed(TENANT, push(data, ClientInstanceId=client), 0.0) == {"ErrorCode": Code.NONE}
    kept.pushed(OTHER, push(pushed_bytes((LAG, 70.0))), 0.0)

    assert kept.tenants[TENANT].worst(1.0) == {"consumer_lag_records": 30.0}
    assert kept.tenants[TENANT].worst(telemetry.KEPT_SECONDS + 1) == {}
    assert kept.tenants[OTHER].worst(1.0) == {"consumer_lag_records": 70.0}


BOMB = gzip.compress(bytes(10 * telemetry.INFLATED_BYTES_MAX))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (push(ClientInstanceId=UUID(int=0)), Code.INVALID_REQUEST),
        (push(SubscriptionId=1), Code.UNKNOWN_SUBSCRIPTION_ID),
        (push(CompressionType=4), Code.UNSUPPORTED_COMPRESSION_TYPE),
        (push(bytes(telemetry.PUSH_BYTES_MAX + 1)), Code.TELEMETRY_TOO_LARGE),
        (push(BOMB, CompressionType=telemetry.GZIP), Code.INVALID_RECORD),
        (push(b"no gzip", CompressionType=telemetry.GZIP), Code.INVALID_RECORD),
        (push(gzip.compress(b"")[:-3], CompressionType=telemetry.GZIP), Code.INVALID_RECORD),
        (push(b"\xff\xff"), Code.INVALID_RECORD),
    ],
    ids=lambda value: value.name if isinstance(value, Code) else "",
)
def test_a_push_that_cannot_be_taken_says_why(asked: dict[str, Any], code: Code) -> None:
    kept = Telemetry()

    assert kept.pushed(TENANT, asked, 0.0) == {"ErrorCode": code}
    assert (kept.tenants[TENANT].pushes, kept.tenants[TENANT].refused) == (0, 1)


def test_whoever_pushes_too_often_waits_unless_it_ends() -> None:
    kept = Telemetry()
    codes = [
        kept.pushed(TENANT, push(pushed_bytes((LAG, 1.0)), Terminating=ends), now)["ErrorCode"]
        for now, ends in ((0.0, False), (1.0, False), (2.0, True), (100.0, False))
    ]

    assert codes == [Code.NONE, Code.THROTTLING_QUOTA_EXCEEDED, Code.NONE, Code.NONE]


def test_as_many_clients_are_remembered_as_there_is_room_for() -> None:
    kept = Telemetry()

    for number in range(telemetry.CLIENTS_MAX + 5):
        kept.pushed(TENANT, push(ClientInstanceId=UUID(int=number + 1)), 0.0)

    assert len(kept.tenants[TENANT].clients) == telemetry.CLIENTS_MAX
    kept.forget({OTHER: None})
    assert not kept.tenants


@given(st.binary(max_size=200))
def test_any_bytes_are_metrics_or_malformed(data: bytes) -> None:
    try:
        found = telemetry.metrics(data)
    except Malformed:
        return
    assert set(found) <= set(telemetry.METRICS.values())


def test_metrics_survive_compression() -> None:
    data = pushed_bytes((LAG, 5.0), (LAG, float("nan")))

    assert telemetry.metrics(telemetry.inflated(gzip.compress(data))) == {"consumer_lag_records": 5.0}
    with pytest.raises(Malformed):
        telemetry.inflated(zlib.compress(data))


@pytest.mark.kafka
async def test_a_tenant_pushes_to_the_gateway_and_no_other_tenant_shows_it(
    gateway: RunningGateway, ada: Access, bob: Access
) -> None:
    tenants = gateway.gateway.telemetry.tenants
    before = gateway.do(lambda: {tenant: told.pushes for tenant, told in tenants.items()})
    async with await open_as(ada) as connection:
        told = await connection.call("GetTelemetrySubscriptions", {"ClientInstanceId": UUID(int=0)})
        body = push(pushed_bytes((LAG, 42.0)), ClientInstanceId=told["ClientInstanceId"])
        taken = await connection.call("PushTelemetry", body)

    assert told["ClientInstanceId"] != UUID(int=0)
    assert told["RequestedMetrics"] == list(telemetry.METRICS)
    assert taken["ErrorCode"] == Code.NONE
    assert tenants[ada.tenant.id].worst(gateway.gateway.now())["consumer_lag_records"] >= 42.0
    # More, if a client of another test took its leave meanwhile.
    assert tenants[ada.tenant.id].pushes > before.get(ada.tenant.id, 0)
    others = tenants.get(bob.tenant.id)
    assert others is None or all(42.0 not in values.values() for _, values in others.clients.values())
