"""A tenant's limits on one gateway, and how a client is told to wait.

`TenantQuota` is charged for what all connections of a tenant do here. A limit in debt closes its gate:
whatever would use more of it stands in line (`lines`). `lowered` keeps a fetch from asking for more than
a part of a second allows. `marked` writes the wait into answers on their way to the client, where their
version has a place for it (KIP-219): most have it at their head, Produce at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.gateway.lines import WAIT_SECONDS_MAX, Line
from penstock.gateway.metering import NEVER_REACHED
from penstock.model.events import Dimension
from penstock.quota.buckets import THROTTLE_SECONDS_MAX, UNLIMITED, Bucket
from penstock.wire.definitions import load
from penstock.wire.frames import response_header_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.gateway.metering import Usage
    from penstock.model.ids import LogicalClusterId

THROTTLE_FIELD: Final = "ThrottleTimeMs"
NEVER: Final = 0
FIXED_BYTES: Final = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}
FETCH_SECONDS: Final = 0.1  # of egress that one fetch may ask for: answers under way are not known yet
# What limits hold up, as bits of `Usage.gates`: who uses nothing of one does not wait for it. A heartbeat
# is a request like any other, but it does not wait behind megabytes.
PRODUCE, FETCH, SHARE_FETCH = 0, 1, 78
GATES: Final[Mapping[Dimension, int]] = {
    Dimension.INGRESS_BYTES: 1,
    Dimension.EGRESS_BYTES: 2,
    Dimension.REQUESTS: 4,
    Dimension.REQUEST_TIME_US: 8,
}
_GATED: Final = (
    (Dimension.INGRESS_BYTES, (PRODUCE,)),
    (Dimension.EGRESS_BYTES, (FETCH, SHARE_FETCH)),
    (Dimension.REQUESTS, None),
    (Dimension.REQUEST_TIME_US, None),
)
# What brokers took for requests is known when they are answered: one window at most, as in Kafka.
_LINE_SECONDS_MAX: Final = {Dimension.REQUEST_TIME_US: THROTTLE_SECONDS_MAX}

_head = struct.Struct(">ii")  # size, correlation id
_int32 = struct.Struct(">i")
_request_head = struct.Struct(">ihh4xh")  # size, API, version, (correlation id,) length of the client id
FETCH_BYTES_FIRST: Final = 3  # versions: with a limit for the whole answer, flexible, without a replica id
FETCH_FLEXIBLE_FIRST: Final = 12
FETCH_UNNAMED_FIRST: Final = 15

Rates = Mapping[Dimension, float]  # a second; what is not named is not limited
Asked = tuple[str, int]  # API and version
Told = tuple[str, int, int]  # likewise, and how many milliseconds it has to wait


class TenantQuota:
    """What one tenant may do on this gateway, and how long it was kept waiting for which reason.

    Most requests cost two comparisons: up to `Usage.requests_next` and the others of its kind nothing can be
    in debt, whatever the time, so nobody is asked. Beyond, what was counted since is charged.
    """

    __slots__ = (
        "_buckets", "_bytes_in", "_egress", "_lines", "_prepaid", "_requests", "_service", "_time_us",
        "_usage", "egress_left", "fetch_bytes_max", "partitions", "pressed_seconds", "service_next",
        "throttled_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self._buckets: dict[Dimension, Bucket] = {}
        self._lines: dict[Dimension, Line] = {}
        self._prepaid: dict[Dimension, float] = {}  # charged before it was counted
        self._usage: Usage | None = None  # where it is counted
        self._requests, self._bytes_in, self._time_us = 0, 0, 0.0  # of what was counted, what is charged
        self._service = 0.0  # seconds seen when request time was last charged, which is at most that
        self._egress = UNLIMITED  # what `egress_left` began with
        self.service_next = self.egress_left = UNLIMITED
        self.throttled_seconds: dict[Dimension, float] = {}
        self.pressed_seconds: dict[Dimension, float] = {}  # likewise, for what brokers could not do
        self.fetch_bytes_max = NEVER_REACHED  # what one fetch may ask for
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

    # Charging

    def sent(self, now: float) -> float:
        """Clients have sent more than was sure to be free: seconds until that is paid."""
        usage = self._usage
        assert usage is not None
        use = {
            Dimension.REQUESTS: float(usage.requests - self._requests),
            Dimension.INGRESS_BYTES: float(usage.bytes_in - self._bytes_in),
        }
        self._requests, self._bytes_in = usage.requests, usage.bytes_in
        wait = self._late(use, now)
        self._look_ahead()
        return wait

    def answered(self, now: float) -> float:
        """Likewise of what brokers have sent."""
        if self.egress_left >= 0:
            return 0.0
        wait = self._late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        self._egress = self.egress_left = self._free(Dimension.EGRESS_BYTES)
        return wait

    def served(self, now: float) -> float:
        """Likewise of the time that brokers took."""
        usage = self._usage
        assert usage is not None
        before, self._service, self._time_us = self._time_us, usage.service_seconds, usage.request_time_us()
        wait = self._late({Dimension.REQUEST_TIME_US: self._time_us - before}, now)
        self._look_ahead()
        return wait

    def elsewhere(self, use: Rates, now: float) -> None:
        """So much of the same limits was used by others: whoever asks here next waits for it, too."""
        if self._egress != UNLIMITED:
            self._late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        self._late(use, now)
        self._egress = self.egress_left = self._free(Dimension.EGRESS_BYTES)
        self._look_ahead()

    def charge(self, use: Mapping[Dimension, float], now: float) -> float:
        """Seconds to wait for what was just done; the longest wait counts."""
        return max((b.spend(use[d], now) for d, b in self._buckets.items() if d in use), default=0.0)

    def prepay(self, dimension: Dimension, amount: float, now: float) -> None:
        bucket = self._buckets.get(dimension)
        if bucket is not None and bucket.rate != UNLIMITED:
            bucket.spend(amount, now)
            saved = self._prepaid.get(dimension, 0.0) + amount
            if dimension is Dimension.EGRESS_BYTES:
                # A guess: what was expected and never came is not saved up for longer than tokens are.
                saved = min(saved, max(bucket.rate * bucket.burst_seconds, amount))
            self._prepaid[dimension] = saved

    def forfeit(self, dimension: Dimension, amount: float) -> None:
        """What was paid for is never going to be counted."""
        if dimension in self._prepaid:
            self._prepaid[dimension] = max(0.0, self._prepaid[dimension] - amount)

    def _late(self, use: Mapping[Dimension, float], now: float) -> float:
        """Charge for what was done since this was last asked, and close what is in debt."""
        longest = 0.0
        for dimension, bucket in self._buckets.items():
            amount = use.get(dimension)
            if amount is None:
                continue
            if (prepaid := self._prepaid.pop(dimension, 0.0)) > amount:
                self._prepaid[dimension] = prepaid - amount
            wait = bucket.spend_late(max(0.0, amount - prepaid), now)
            if wait > 0 and self._usage is not None:
                self._usage.gates |= GATES.get(dimension, 0)
            longest = max(longest, wait)
        return longest

    def retune(self, rates: Rates, now: float) -> None:
        """Other limits from now on; what was done before is charged by the old ones."""
        if self._usage is not None:
            self.sent(now)
            self.served(now)
        if self._egress != UNLIMITED:
            self._late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        for dimension in self._buckets.keys() - rates.keys():
            del self._buckets[dimension]
            self._prepaid.pop(dimension, None)
        for dimension, rate in rates.items():
            if (bucket := self._buckets.get(dimension)) is not None:
                bucket.retune(rate, now)
            else:
                self._buckets[dimension] = Bucket.full(rate, now)
        egress = rates.get(Dimension.EGRESS_BYTES, UNLIMITED)
        self.fetch_bytes_max = NEVER_REACHED if egress == UNLIMITED else max(1, int(egress * FETCH_SECONDS))
        self._egress = self.egress_left = self._free(Dimension.EGRESS_BYTES)
        self._look_ahead()
        for line in list(self._lines.values()):  # whoever goes on may be the first to wait for another limit
            line.serve(now)

    def _look_ahead(self) -> None:
        """How far counters may go before there can be debt: tokens only come back meanwhile."""
        usage = self._usage
        if usage is not None:
            usage.requests_next = _ahead(self._requests, self._free(Dimension.REQUESTS))
            usage.bytes_in_next = _ahead(self._bytes_in, self._free(Dimension.INGRESS_BYTES))
        self.service_next = self._service + self._free(Dimension.REQUEST_TIME_US) / 1e6

    def _free(self, dimension: Dimension) -> float:
        bucket = self._buckets.get(dimension)
        return UNLIMITED if bucket is None or bucket.rate == UNLIMITED else max(0.0, bucket.tokens)

    # Waiting

    def lines(self, api_key: int, now: float) -> list[Line]:
        """Of the gates that are closed, those that a request of this API has to pass.

        Of the others, those that nobody waits for any more are opened: who made the debt may be gone.
        """
        usage = self._usage
        if usage is None or not usage.gates:
            return []
        found = []
        for dimension, apis in _GATED:
            if not usage.gates & GATES[dimension]:
                continue
            line = self.line(dimension)
            if apis is None or api_key in apis:
                found.append(line)
            elif not line.blocks(now):
                self.open(dimension)
        return found

    def line(self, dimension: Dimension) -> Line:
        found = self._lines.get(dimension)
        if found is None:
            longest = _LINE_SECONDS_MAX.get(dimension, WAIT_SECONDS_MAX)
            found = self._lines[dimension] = Line(self, dimension, longest)
        return found

    def open(self, dimension: Dimension) -> None:
        """Nobody waits for it any more."""
        assert self._usage is not None
        self._usage.gates &= ~GATES[dimension]

    def rate(self, dimension: Dimension) -> float:
        bucket = self._buckets.get(dimension)
        return UNLIMITED if bucket is None else bucket.rate

    def debt_seconds(self, dimension: Dimension, now: float) -> float:
        """How long whoever made debt has to wait from now on, at the rate that holds now."""
        bucket = self._buckets.get(dimension)
        return 0.0 if bucket is None else bucket.spend(0.0, now)

    def waited(self, reason: Dimension, seconds: float) -> None:
        self.throttled_seconds[reason] = self.throttled_seconds.get(reason, 0.0) + seconds


def _ahead(counted: int, free: float) -> int:
    return NEVER_REACHED if free == UNLIMITED else counted + int(free)


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


def marked(data: bytes, told: Mapping[int, Told]) -> bytes:
    """Whole frames, the last one perhaps not, with the wait written into each that has a place for it.

    `told` says by correlation id what each answers and how long it has to wait; one that is not in it is
    left alone, as is one whose tagged fields stand where its throttle time is looked for.
    """
    out = bytearray(data)
    start = 0
    while start + _head.size < len(out):
        size, correlation_id = _head.unpack_from(out, start)
        end = start + _int32.size + size
        if (what := told.get(correlation_id)) is not None:
            api, version, wait_ms = what
            place = place_of(api, version)
            at = NEVER
            plain_header = response_header_version(api, version) == 0 or out[start + _head.size] == 0
            if place.from_start and plain_header:
                at = start + place.from_start
            elif place.from_end and end <= len(out) and not any(out[end - place.from_end + 4 : end]):
                at = end - place.from_end
            if at and at + _int32.size <= min(end, len(out)):
                before = _int32.unpack_from(out, at)[0]
                _int32.pack_into(out, at, max(before, wait_ms))
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
