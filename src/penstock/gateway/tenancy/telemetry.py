"""Clients' own metrics (KIP-714): requested, received and kept here, per tenant.

A broker would accept them from any client and know nothing of tenants. The gateway requests a few metrics and
shows the worst value over a tenant's clients; anything else a client sends is ignored. Everything a client
can make large is bounded: how often, how much, how many fields, how many clients. A client chooses its own
instance id, so what counts is the tenant's rate, and a push is counted before its metrics are looked at.
"""

from __future__ import annotations

import math
import struct
import uuid
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.quota.token_bucket import Bucket
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.model.ids import LogicalClusterId

PUSH_SECONDS: Final = 60.0
TOO_EARLY: Final = 0.4  # of that: clients start at a random moment of half an interval
KEPT_SECONDS: Final = 3 * PUSH_SECONDS
PUSH_BYTES_MAX: Final = 32 * 1024
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024
FIELDS_MAX: Final = 2_000  # of one push, all messages in it together: about a millisecond
CLIENTS_MAX: Final = 1_000  # per tenant; the longest silent one goes first
PUSHES_PER_SECOND: Final = 20.0  # per tenant: as many clients as are remembered push 17 times a second
NONE, GZIP = 0, 1  # compression types

# The requested metrics, and their names in the tenant's metrics.
METRICS: Final[Mapping[str, str]] = {
    "org.apache.kafka.producer.node.request.latency.avg": "producer_request_latency_ms",
    "org.apache.kafka.producer.produce.throttle.time.avg": "producer_throttle_ms",
    "org.apache.kafka.consumer.fetch.manager.fetch.latency.avg": "consumer_fetch_latency_ms",
    "org.apache.kafka.consumer.fetch.manager.records.lag.max": "consumer_lag_records",
}
_METRICS: Final = {name.encode(): shown for name, shown in METRICS.items()}
SUBSCRIPTION: Final = zlib.crc32("\n".join(METRICS).encode()) & 0x7FFF_FFFF
_NO_CLIENT_ID: Final = uuid.UUID(int=0)

# Field numbers of OTLP's messages.
_RESOURCES, _SCOPES, _SCOPED, _NAME, _GAUGE, _SUM, _POINTS, _DOUBLE, _INTEGER = 1, 2, 2, 1, 5, 7, 1, 4, 6


class Malformed(ValueError):
    """Bytes that are not OTLP metrics."""


class TenantTelemetry:
    """What the clients of one tenant have pushed."""

    __slots__ = ("clients", "pushes", "rate", "refused")

    def __init__(self, rate: Bucket) -> None:
        self.rate = rate
        self.pushes = self.refused = 0
        # Time and values of the last push.
        self.clients: OrderedDict[uuid.UUID, tuple[float, dict[str, float]]] = OrderedDict()

    def worst(self, now: float) -> dict[str, float]:
        """The highest recent value of each metric, by its name in the tenant's metrics."""
        worst: dict[str, float] = {}
        for pushed_at, values in list(self.clients.values()):
            if now - pushed_at <= KEPT_SECONDS:
                for name, value in values.items():
                    worst[name] = max(worst.get(name, value), value)
        return worst


class Telemetry:
    """All tenants on one gateway."""

    def __init__(self, pushes_per_second: float = PUSHES_PER_SECOND) -> None:
        self.pushes_per_second = pushes_per_second  # of one tenant
        self.tenants: dict[LogicalClusterId, TenantTelemetry] = {}

    def subscription(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The response body that requests metrics from a client."""
        client_id = request["ClientInstanceId"]
        return {
            "ErrorCode": Code.NONE,
            "ClientInstanceId": client_id if client_id != _NO_CLIENT_ID else uuid.uuid4(),
            "SubscriptionId": SUBSCRIPTION,
            "AcceptedCompressionTypes": [GZIP],
            "PushIntervalMs": int(PUSH_SECONDS * 1000),
            "TelemetryMaxBytes": PUSH_BYTES_MAX,
            "DeltaTemporality": True,
            "RequestedMetrics": list(METRICS),
        }

    def push(self, tenant: LogicalClusterId, request: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Take a push; returns its response body."""
        tenant_telemetry = self.tenants.get(tenant)
        if tenant_telemetry is None:
            rate = Bucket.full(max(1.0, self.pushes_per_second), now)
            tenant_telemetry = self.tenants[tenant] = TenantTelemetry(rate)
        if tenant_telemetry.rate.take(1.0, now):
            code = self._take(tenant_telemetry, request, now)
        else:
            code = Code.THROTTLING_QUOTA_EXCEEDED
        tenant_telemetry.refused += code is not Code.NONE
        return {"ErrorCode": code}

    def forget(self, known: Mapping[str, object]) -> None:
        """Drop tenants that are no longer configured."""
        for tenant in self.tenants.keys() - known.keys():
            del self.tenants[tenant]

    def _take(self, tenant_telemetry: TenantTelemetry, request: Mapping[str, Any], now: float) -> Code:
        client, data = request["ClientInstanceId"], bytes(request["Metrics"])
        last = tenant_telemetry.clients.get(client)
        if client == _NO_CLIENT_ID:
            return Code.INVALID_REQUEST
        if last is not None and not request["Terminating"] and now - last[0] < PUSH_SECONDS * TOO_EARLY:
            return Code.THROTTLING_QUOTA_EXCEEDED
        if request["SubscriptionId"] != SUBSCRIPTION:
            return Code.UNKNOWN_SUBSCRIPTION_ID
        if request["CompressionType"] not in (NONE, GZIP):
            return Code.UNSUPPORTED_COMPRESSION_TYPE
        if len(data) > PUSH_BYTES_MAX:
            return Code.TELEMETRY_TOO_LARGE
        try:
            values = metrics(decompress(data) if request["CompressionType"] == GZIP else data)
        except Malformed:
            return Code.INVALID_RECORD
        tenant_telemetry.pushes += 1
        tenant_telemetry.clients[client] = (now, {} if request["Terminating"] else values)
        tenant_telemetry.clients.move_to_end(client)
        if len(tenant_telemetry.clients) > CLIENTS_MAX:
            tenant_telemetry.clients.popitem(last=False)
        return Code.NONE


def decompress(data: bytes) -> bytes:
    """Decompress a push, within bounds."""
    decompressor = zlib.decompressobj(wbits=31)
    try:
        decompressed = decompressor.decompress(data, DECOMPRESSED_BYTES_MAX)
    except zlib.error as failure:
        raise Malformed(str(failure)) from failure
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise Malformed("truncated, or larger than allowed")
    return decompressed


def metrics(data: bytes) -> dict[str, float]:
    """The requested metrics in a push, by their names here; the highest of several points."""
    values: dict[str, float] = {}
    push = _Push()
    for resource in push.submessages(data, _RESOURCES):
        for scope in push.submessages(resource, _SCOPES):
            for metric in push.submessages(scope, _SCOPED):
                name = _METRICS.get(next(push.submessages(metric, _NAME), b""))
                if name is not None:
                    for value in push.values(metric):
                        values[name] = max(values.get(name, value), value)
    return values


class _Push:
    """Reads one push, and counts the fields it has looked at."""

    __slots__ = ("_fields_left",)

    def __init__(self) -> None:
        self._fields_left = FIELDS_MAX

    def values(self, metric: bytes) -> Iterator[float]:
        for kind in (_GAUGE, _SUM):
            for container in self.submessages(metric, kind):
                for point in self.submessages(container, _POINTS):
                    for number, value in self.fields(point):
                        if number == _DOUBLE and len(value) == 8:
                            (real,) = struct.unpack("<d", value)
                            if math.isfinite(real):
                                yield real
                        elif number == _INTEGER and len(value) == 8:
                            yield float(struct.unpack("<q", value)[0])

    def submessages(self, data: bytes, field: int) -> Iterator[bytes]:
        return (value for number, value in self.fields(data) if number == field)

    def fields(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each field of a protobuf message, without varints."""
        position, here = 0, len(data)
        while position < here:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise Malformed(f"more than {FIELDS_MAX} fields")
            key = data[position]
            position += 1
            if key > 0x7F:
                key, position = _varint(data, position - 1)
            kind = key & 7
            if kind == 0:
                _, position = _varint(data, position)
                continue
            if kind == 2:
                size, position = _varint(data, position)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise Malformed(f"a field of wire type {kind}")
            if position + size > here:
                raise Malformed("truncated")
            yield key >> 3, data[position : position + size]
            position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise Malformed("a varint that does not end")
