"""Clients' own metrics (KIP-714): asked for, taken and kept here, as figures of their tenant.

A broker would take them from anybody, and know nothing of tenants. A few metrics are asked for, of
each the worst value over a tenant's clients is shown; what else a client sends is passed over.
Everything a client can make large is bounded: how often, how much, how many clients.
"""

from __future__ import annotations

import math
import struct
import uuid
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.model.ids import LogicalClusterId

PUSH_SECONDS: Final = 60.0
TOO_EARLY: Final = 0.4  # of that: clients begin at a random moment of half an interval
KEPT_SECONDS: Final = 3 * PUSH_SECONDS
PUSH_BYTES_MAX: Final = 32 * 1024
INFLATED_BYTES_MAX: Final = 128 * 1024
CLIENTS_MAX: Final = 1_000  # of one tenant; the one that was silent for longest goes first
NONE, GZIP = 0, 1  # kinds of compression

# What is asked for, and what each is called in the tenant's figures.
METRICS: Final[Mapping[str, str]] = {
    "org.apache.kafka.producer.node.request.latency.avg": "producer_request_latency_ms",
    "org.apache.kafka.producer.produce.throttle.time.avg": "producer_throttle_ms",
    "org.apache.kafka.consumer.fetch.manager.fetch.latency.avg": "consumer_fetch_latency_ms",
    "org.apache.kafka.consumer.fetch.manager.records.lag.max": "consumer_lag_records",
}
SUBSCRIPTION: Final = zlib.crc32("\n".join(METRICS).encode()) & 0x7FFF_FFFF
_NOBODY: Final = uuid.UUID(int=0)

# Numbers of fields in OTLP's messages.
_RESOURCES, _SCOPES, _SCOPED, _NAME, _GAUGE, _SUM, _POINTS, _DOUBLE, _INTEGER = 1, 2, 2, 1, 5, 7, 1, 4, 6


class Malformed(ValueError):
    """Bytes that are no metrics."""


class Pushed:
    """What the clients of one tenant have said."""

    __slots__ = ("bytes", "clients", "pushes", "refused")

    def __init__(self) -> None:
        self.pushes = self.bytes = self.refused = 0
        # when it was last heard of, what it said then
        self.clients: OrderedDict[uuid.UUID, tuple[float, dict[str, float]]] = OrderedDict()

    def worst(self, now: float) -> dict[str, float]:
        """Of those heard of lately, by the tenant's name of the metric."""
        found: dict[str, float] = {}
        for heard, values in list(self.clients.values()):
            if now - heard <= KEPT_SECONDS:
                for name, value in values.items():
                    found[name] = max(found.get(name, value), value)
        return found


class Telemetry:
    """Of all tenants on one gateway."""

    def __init__(self) -> None:
        self.tenants: dict[LogicalClusterId, Pushed] = {}

    def subscription(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the answer that tells a client what to push."""
        given = asked["ClientInstanceId"]
        return {
            "ErrorCode": Code.NONE,
            "ClientInstanceId": given if given != _NOBODY else uuid.uuid4(),
            "SubscriptionId": SUBSCRIPTION,
            "AcceptedCompressionTypes": [GZIP],
            "PushIntervalMs": int(PUSH_SECONDS * 1000),
            "TelemetryMaxBytes": PUSH_BYTES_MAX,
            "DeltaTemporality": True,
            "RequestedMetrics": list(METRICS),
        }

    def pushed(self, tenant: LogicalClusterId, asked: Mapping[str, Any], now: float) -> dict[str, Any]:
        """The body of the answer to a push."""
        having = self.tenants.setdefault(tenant, Pushed())
        code = self._take(having, asked, now)
        having.refused += code is not Code.NONE
        return {"ErrorCode": code}

    def forget(self, known: Mapping[str, object]) -> None:
        """Tenants that are no longer configured."""
        for tenant in self.tenants.keys() - known.keys():
            del self.tenants[tenant]

    def _take(self, having: Pushed, asked: Mapping[str, Any], now: float) -> Code:
        client, data = asked["ClientInstanceId"], bytes(asked["Metrics"])
        last = having.clients.get(client)
        if client == _NOBODY:
            return Code.INVALID_REQUEST
        if last is not None and not asked["Terminating"] and now - last[0] < PUSH_SECONDS * TOO_EARLY:
            return Code.THROTTLING_QUOTA_EXCEEDED
        if asked["SubscriptionId"] != SUBSCRIPTION:
            return Code.UNKNOWN_SUBSCRIPTION_ID
        if asked["CompressionType"] not in (NONE, GZIP):
            return Code.UNSUPPORTED_COMPRESSION_TYPE
        if len(data) > PUSH_BYTES_MAX:
            return Code.TELEMETRY_TOO_LARGE
        try:
            values = metrics(inflated(data) if asked["CompressionType"] == GZIP else data)
        except Malformed:
            return Code.INVALID_RECORD
        having.pushes += 1
        having.bytes += len(data)
        having.clients[client] = (now, {} if asked["Terminating"] else values)
        having.clients.move_to_end(client)
        if len(having.clients) > CLIENTS_MAX:
            having.clients.popitem(last=False)
        return Code.NONE


def inflated(data: bytes) -> bytes:
    """Undone, as far as that stays within bounds."""
    undo = zlib.decompressobj(wbits=31)
    try:
        found = undo.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as failure:
        raise Malformed(str(failure)) from failure
    if undo.unconsumed_tail or not undo.eof:
        raise Malformed("it is cut off, or larger than it may be")
    return found


def metrics(data: bytes) -> dict[str, float]:
    """The metrics that were asked for, by the tenant's names; of several points the highest."""
    found: dict[str, float] = {}
    for resource in _messages(data, _RESOURCES):
        for scope in _messages(resource, _SCOPES):
            for metric in _messages(scope, _SCOPED):
                name = METRICS.get(next(_messages(metric, _NAME), b"").decode(errors="replace"))
                if name is not None:
                    for value in _values(metric):
                        found[name] = max(found.get(name, value), value)
    return found


def _values(metric: bytes) -> Iterator[float]:
    for kind in (_GAUGE, _SUM):
        for container in _messages(metric, kind):
            for point in _messages(container, _POINTS):
                for number, value in _fields(point):
                    if number == _DOUBLE and len(value) == 8:
                        (real,) = struct.unpack("<d", value)
                        if math.isfinite(real):
                            yield real
                    elif number == _INTEGER and len(value) == 8:
                        yield float(struct.unpack("<q", value)[0])


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value in _fields(data) if number == wanted)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each field of a protobuf message; those of a varint are left out."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            _, position = _varint(data, position)
            continue
        if kind == 2:
            size, position = _varint(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Malformed(f"a field of kind {kind}")
        if position + size > len(data):
            raise Malformed("it is cut off")
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
    raise Malformed("a number without an end")
