"""Clients' metrics: what is accepted, what is refused with which error, and that memory is bounded."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.tenancy import telemetry
from penstock.gateway.tenancy.telemetry import Malformed, Telemetry
from penstock.model.ids import LogicalClusterId
from penstock.wire.error_codes import Code
from tests.gateway.test_attacks import open_as

if TYPE_CHECKING:
    from tests.harness.gateway import Access, RunningGateway

TENANT, OTHER = LogicalClusterId("lkc-7hq2mz"), LogicalClusterId("lkc-9xk4vt")
LAG = "org.apache.kafka.consumer.fetch.manager.records.lag.max"
CLIENT = UUID(int=7)


def field(number: int, data: bytes) -> bytes:
    size = len(data)
    length = bytes((size & 0x7F | 0x80, size >> 7)) if size > 0x7F else bytes((size,))
    return bytes((number << 3 | 2,)) + length + data


def pushed_bytes(*metrics: tuple[str, float]) -> bytes:
    """OTLP, encoded by hand."""
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


def test_a_tenants_metric_is_the_worst_of_its_clients() -> None:
    kept = Telemetry()

    for client, lag in ((uuid4(), 10.0), (uuid4(), 30.0)):
        data = pushed_bytes((LAG, lag), ("org.apache.kafka.consumer.something.else", 99.0))
        assert kept.push(TENANT, push(data, ClientInstanceId=client), 0.0) == {"ErrorCode": Code.NONE}
    kept.push(OTHER, push(pushed_bytes((LAG, 70.0))), 0.0)

    assert kept.tenants[TENANT].worst(1.0) == {"consumer_lag_records": 30.0}
    assert kept.tenants[TENANT].worst(telemetry.KEPT_SECONDS + 1) == {}
    assert kept.tenants[OTHER].worst(1.0) == {"consumer_lag_records": 70.0}


BOMB = gzip.compress(bytes(10 * telemetry.DECOMPRESSED_BYTES_MAX))


@pytest.mark.parametrize(
    ("pushed", "code"),
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
def test_a_rejected_push_gets_the_kips_error(pushed: dict[str, Any], code: Code) -> None:
    kept = Telemetry()

    assert kept.push(TENANT, pushed, 0.0) == {"ErrorCode": code}
    assert (kept.tenants[TENANT].pushes, kept.tenants[TENANT].refused) == (0, 1)


def test_a_client_that_pushes_too_often_is_throttled_unless_it_terminates() -> None:
    kept = Telemetry()
    codes = [
        kept.push(TENANT, push(pushed_bytes((LAG, 1.0)), Terminating=ends), now)["ErrorCode"]
        for now, ends in ((0.0, False), (1.0, False), (2.0, True), (100.0, False))
    ]

    assert codes == [Code.NONE, Code.THROTTLING_QUOTA_EXCEEDED, Code.NONE, Code.NONE]


def test_remembered_clients_are_bounded() -> None:
    kept = Telemetry()

    for number in range(telemetry.CLIENTS_MAX + 5):
        kept.push(TENANT, push(ClientInstanceId=UUID(int=number + 1)), number / telemetry.PUSHES_PER_SECOND)

    assert len(kept.tenants[TENANT].clients) == telemetry.CLIENTS_MAX
    kept.forget({OTHER: None})
    assert not kept.tenants


def test_new_instance_ids_do_not_raise_a_tenants_rate() -> None:
    kept = Telemetry(pushes_per_second=3.0)
    unreadable = push(BOMB, CompressionType=telemetry.GZIP, Terminating=True)

    codes = [
        kept.push(TENANT, {**unreadable, "ClientInstanceId": uuid4()}, 0.0)["ErrorCode"] for _ in range(5)
    ]

    assert codes == 3 * [Code.INVALID_RECORD] + 2 * [Code.THROTTLING_QUOTA_EXCEEDED]
    assert kept.tenants[TENANT].refused == 5
    assert kept.push(OTHER, push(), 0.0) == {"ErrorCode": Code.NONE}
    assert kept.push(TENANT, push(), 1.0) == {"ErrorCode": Code.NONE}


def test_a_small_push_of_many_fields_is_refused_after_a_bounded_number() -> None:
    many = field(1, b"") * (telemetry.FIELDS_MAX + 1)
    looked_at = 0

    class Counted(bytes):
        def __getitem__(self, at: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(at)

    with pytest.raises(Malformed, match="fields"):
        telemetry.metrics(Counted(many))
    assert looked_at <= 3 * telemetry.FIELDS_MAX
    assert len(gzip.compress(many)) < 200


@given(st.binary(max_size=200))
def test_any_bytes_are_metrics_or_malformed(data: bytes) -> None:
    try:
        values = telemetry.metrics(data)
    except Malformed:
        return
    assert set(values) <= set(telemetry.METRICS.values())


def test_metrics_survive_compression() -> None:
    data = pushed_bytes((LAG, 5.0), (LAG, float("nan")))

    assert telemetry.metrics(telemetry.decompress(gzip.compress(data))) == {"consumer_lag_records": 5.0}
    with pytest.raises(Malformed):
        telemetry.decompress(zlib.compress(data))


@pytest.mark.kafka
async def test_client_metrics_show_for_their_tenant_alone(
    gateway: RunningGateway, ada: Access, bob: Access
) -> None:
    tenants = gateway.gateway.services.telemetry.tenants
    before = gateway.do(lambda: {tenant: subscription.pushes for tenant, subscription in tenants.items()})
    async with await open_as(ada) as connection:
        subscription = await connection.call("GetTelemetrySubscriptions", {"ClientInstanceId": UUID(int=0)})
        body = push(pushed_bytes((LAG, 42.0)), ClientInstanceId=subscription["ClientInstanceId"])
        taken = await connection.call("PushTelemetry", body)

    assert subscription["ClientInstanceId"] != UUID(int=0)
    assert subscription["RequestedMetrics"] == list(telemetry.METRICS)
    assert taken["ErrorCode"] == Code.NONE
    assert tenants[ada.tenant.id].worst(gateway.gateway.now())["consumer_lag_records"] >= 42.0
    # More, if a client of another test terminated meanwhile.
    assert tenants[ada.tenant.id].pushes > before.get(ada.tenant.id, 0)
    others = tenants.get(bob.tenant.id)
    assert others is None or all(42.0 not in values.values() for _, values in others.clients.values())
