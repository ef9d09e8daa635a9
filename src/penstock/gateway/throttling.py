"""A tenant's limits on one gateway, and how a client is told to wait.

`TenantQuota` is charged for what all connections of a tenant do here, and says how long the one that
did it has to wait. Bytes wait as long as the debt takes; requests and request time at most one
window, as in Kafka. `lowered` keeps a fetch from asking for more than one window allows. `marked`
writes the wait into answers on their way to the client, where their version has a place for it
(KIP-219): most have it at their head, Produce at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension
from penstock.quota.buckets import BURST_SECONDS, THROTTLE_SECONDS_MAX, UNLIMITED, Bucket
from penstock.wire.definitions import load
from penstock.wire.frames import response_header_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.gateway.metering import Usage
    from penstock.model.ids import LogicalClusterId

THROTTLE_FIELD: Final = "ThrottleTimeMs"
NEVER: Final = 0
FIXED_BYTES: Final = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}
WAIT_MAX: Final[Mapping[Dimension, float]] = {
    Dimension.REQUESTS: THROTTLE_SECONDS_MAX,
    Dimension.REQUEST_TIME_US: THROTTLE_SECONDS_MAX,
}

_head = struct.Struct(">ii")  # size, correlation id
_int32 = struct.Struct(">i")
_request_head = struct.Struct(">ihh4xh")  # size, API, version, (correlation id,) length of the client id
FETCH: Final = 1
FETCH_BYTES_FIRST: Final = 3  # versions: with a limit for the whole answer, flexible, without a replica id
FETCH_FLEXIBLE_FIRST: Final = 12
FETCH_UNNAMED_FIRST: Final = 15

Rates = Mapping[Dimension, float]  # a second; what is not named is not limited
Asked = tuple[str, int]  # API and version


class TenantQuota:
    """What one tenant may do on this gateway, and how long it was kept waiting for which reason.

    Most requests cost one comparison: up to `requests_next` and the others of its kind nothing can be in
    debt, whatever the time, so nobody is asked. Beyond, what was counted since is charged.
    """

    __slots__ = (
        "_buckets", "_bytes_in", "_egress", "_requests", "_service", "_time_us", "_usage", "bytes_in_next",
        "egress_left", "fetch_bytes_max", "partitions", "pressed_seconds", "requests_next", "service_next",
        "throttled_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self._buckets: dict[Dimension, Bucket] = {}
        self._usage: Usage | None = None  # where it is counted
        self._requests, self._bytes_in, self._time_us = 0, 0, 0.0  # of what was counted, what is charged
        self._service = 0.0  # seconds seen when request time was last charged, which is at most that
        self._egress = UNLIMITED  # what `egress_left` began with
        self.requests_next = self.bytes_in_next = self.service_next = UNLIMITED
        self.egress_left = UNLIMITED
        self.throttled_seconds: dict[Dimension, float] = {}
        self.pressed_seconds: dict[Dimension, float] = {}  # likewise, for what brokers could not do
        self.fetch_bytes_max: int | None = None  # what one window of egress allows
        self.partitions: dict[bytes, int] = {}  # of topics, as far as known: what deleting them costs

    def granted(self) -> dict[Dimension, float]:
        """What holds now, a second."""
        return {dimension: bucket.rate for dimension, bucket in self._buckets.items()}

    def bind(self, usage: Usage) -> None:
        """From now on, what is counted there is charged."""
        if self._usage is not usage:
            self._usage = usage
            self._requests, self._bytes_in = usage.requests, usage.bytes_in
            self._service, self._time_us = usage.service_seconds, usage.request_time_us()
            self._look_ahead()

    def sent(self, now: float) -> tuple[float, Dimension | None]:
        """Clients have sent more than was sure to be free: seconds to wait, and what for."""
        usage = self._usage
        assert usage is not None
        use = {
            Dimension.REQUESTS: float(usage.requests - self._requests),
            Dimension.INGRESS_BYTES: float(usage.bytes_in - self._bytes_in),
        }
        self._requests, self._bytes_in = usage.requests, usage.bytes_in
        waiting = self._late(use, now)
        self._look_ahead()
        return waiting

    def answered(self, now: float) -> tuple[float, Dimension | None]:
        """Likewise of what brokers have sent."""
        if self.egress_left >= 0:
            return 0.0, None
        waiting = self._late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        self._egress = self.egress_left = self._free(Dimension.EGRESS_BYTES)
        return waiting

    def served(self, now: float) -> tuple[float, Dimension | None]:
        """Likewise of the time that brokers took."""
        usage = self._usage
        assert usage is not None
        before, self._service, self._time_us = self._time_us, usage.service_seconds, usage.request_time_us()
        waiting = self._late({Dimension.REQUEST_TIME_US: self._time_us - before}, now)
        self._look_ahead()
        return waiting

    def elsewhere(self, use: Rates, now: float) -> None:
        """So much of the same limits was used by others: whoever asks here next waits for it, too."""
        if self._egress != UNLIMITED:
            self._late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        self._late(use, now)
        self._egress = self.egress_left = self._free(Dimension.EGRESS_BYTES)
        self._look_ahead()

    def retune(self, rates: Rates, now: float) -> None:
        """Other limits from now on; what was done before is charged by the old ones."""
        if self._usage is not None:
            self.sent(now)
            self.served(now)
        if self._egress != UNLIMITED:
            self._late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        for dimension in self._buckets.keys() - rates.keys():
            del self._buckets[dimension]
        for dimension, rate in rates.items():
            if (bucket := self._buckets.get(dimension)) is not None:
                bucket.retune(rate, now)
            else:
                self._buckets[dimension] = Bucket.full(rate, now)
        egress = rates.get(Dimension.EGRESS_BYTES, UNLIMITED)
        self.fetch_bytes_max = None if egress == UNLIMITED else max(1, int(egress * BURST_SECONDS))
        self._egress = self.egress_left = self._free(Dimension.EGRESS_BYTES)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """How far counters may go before there can be debt: tokens only come back meanwhile."""
        self.requests_next = self._requests + self._free(Dimension.REQUESTS)
        self.bytes_in_next = self._bytes_in + self._free(Dimension.INGRESS_BYTES)
        self.service_next = self._service + self._free(Dimension.REQUEST_TIME_US) / 1e6

    def _free(self, dimension: Dimension) -> float:
        bucket = self._buckets.get(dimension)
        return UNLIMITED if bucket is None or bucket.rate == UNLIMITED else max(0.0, bucket.tokens)

    def charge(self, use: Mapping[Dimension, float], now: float) -> tuple[float, Dimension | None]:
        """Seconds to wait for what was just done, and what for; the longest wait counts."""
        return self._longest({d: b.spend(use[d], now) for d, b in self._buckets.items() if d in use})

    def _late(self, use: Mapping[Dimension, float], now: float) -> tuple[float, Dimension | None]:
        """Likewise for what was done since this was last asked."""
        return self._longest({d: b.spend_late(use[d], now) for d, b in self._buckets.items() if d in use})

    def _longest(self, waits: Mapping[Dimension, float]) -> tuple[float, Dimension | None]:
        longest, reason = 0.0, None
        for dimension, wait in waits.items():
            capped = min(wait, WAIT_MAX.get(dimension, UNLIMITED))
            if capped > longest:
                longest, reason = capped, dimension
        return longest, reason

    def debt_seconds(self, now: float) -> float:
        """How long whoever made debt has to wait from now on, at the rates that hold now."""
        return max((bucket.spend(0.0, now) for bucket in self._buckets.values()), default=0.0)

    def waited(self, reason: Dimension, seconds: float, *, pressed: bool = False) -> None:
        """`pressed`: not for its own quota, but for what a broker can do for everybody."""
        table = self.pressed_seconds if pressed else self.throttled_seconds
        table[reason] = table.get(reason, 0.0) + seconds


class Quotas:
    """Of all tenants on one gateway. A tenant without limits costs nothing.

    `granted` says what of a tenant's quota holds here: all of it, unless somebody shares it out.
    """

    def __init__(self, granted: Callable[[LogicalClusterId, Rates], Rates] | None = None) -> None:
        self._tenants: dict[LogicalClusterId, TenantQuota] = {}
        self._held: dict[LogicalClusterId, Rates] = {}
        self.granted = granted or (lambda _, configured: configured)

    def __iter__(self) -> Iterator[tuple[LogicalClusterId, TenantQuota]]:
        return iter(list(self._tenants.items()))

    def of(self, tenant: LogicalClusterId) -> TenantQuota:
        return self._tenants.setdefault(tenant, TenantQuota())

    def settle(self, tenant: LogicalClusterId, configured: Rates, now: float) -> TenantQuota:
        """A tenant's limits as they should be here, if that is anything new."""
        granted = self.granted(tenant, configured) if configured else configured
        if self._held.get(tenant, {}) != granted:
            self._held[tenant] = granted
            return self.retune(tenant, granted, now)
        return self.of(tenant)

    def retune(self, tenant: LogicalClusterId, rates: Rates, now: float) -> TenantQuota:
        """Set a tenant's limits here."""
        quota = self.of(tenant)
        quota.retune(rates, now)
        return quota


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer has its throttle time: so many bytes behind its beginning, or before its end."""

    from_start: int = NEVER
    from_end: int = NEVER


@cache
def place_of(api: str, version: int) -> Place:
    message = load().response(api)
    present = [f for f in message.fields if version in f.versions and version not in f.tagged]
    names = [field.name for field in present]
    if THROTTLE_FIELD not in names:
        return Place()
    before = present[: names.index(THROTTLE_FIELD)]
    if all(not field.array and field.kind in FIXED_BYTES for field in before):
        header = _head.size + response_header_version(api, version)
        return Place(from_start=header + sum(FIXED_BYTES[field.kind] for field in before))
    if names[-1] == THROTTLE_FIELD:
        return Place(from_end=_int32.size + message.is_flexible(version))
    return Place()


def marked(data: bytes, throttle_ms: int, asked: Mapping[int, Asked]) -> bytes:
    """Whole frames, the last one perhaps not, with the wait written into each that has a place for it.

    `asked` says by correlation id what each answers; one that is not in it is left alone, as is one
    whose tagged fields stand where its throttle time is looked for.
    """
    out = bytearray(data)
    start = 0
    while start + _head.size < len(out):
        size, correlation_id = _head.unpack_from(out, start)
        end = start + _int32.size + size
        if (what := asked.get(correlation_id)) is not None:
            place = place_of(*what)
            at = NEVER
            plain_header = response_header_version(*what) == 0 or out[start + _head.size] == 0
            if place.from_start and plain_header:
                at = start + place.from_start
            elif place.from_end and end <= len(out) and not any(out[end - place.from_end + 4 : end]):
                at = end - place.from_end
            if at and at + _int32.size <= min(end, len(out)):
                told = _int32.unpack_from(out, at)[0]
                _int32.pack_into(out, at, max(told, throttle_ms))
        start = end
    return bytes(out)


def lowered(data: bytes, bytes_max: int) -> bytes:
    """Requests, of which the last may be a part, with no fetch for more than so many bytes.

    As brokers do it with their own quotas: the answer comes as soon as there is that much, and holds at
    least one batch. A header with tagged fields is left alone.
    """
    out: bytearray | None = None
    start = 0
    while start + _request_head.size <= len(data):
        size, api_key, version, client = _request_head.unpack_from(data, start)
        if size < 0:
            break
        if api_key == FETCH and version >= FETCH_BYTES_FIRST:
            at = start + _request_head.size + max(client, 0)
            if version >= FETCH_FLEXIBLE_FIRST:
                at = at + 1 if at < len(data) and data[at] == 0 else len(data)
            at += _int32.size * (2 if version >= FETCH_UNNAMED_FIRST else 3)  # wait, least bytes; replica
            if at + _int32.size <= len(data) and _int32.unpack_from(data, at)[0] > bytes_max:
                out = bytearray(data) if out is None else out
                _int32.pack_into(out, at, bytes_max)
        start += _int32.size + size
    return data if out is None else bytes(out)
