"""A tenant's limits on one gateway, and how a client is told to wait.

`TenantQuota` is charged for what all connections of a tenant do here, and says how long the one that
did it has to wait. Bytes wait as long as the debt takes; requests and request time at most one
window, as in Kafka. `marked` writes the wait into answers on their way to the client, where their
version has a place for it (KIP-219): most have it at their head, Produce at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension
from penstock.quota.buckets import THROTTLE_SECONDS_MAX, UNLIMITED, Bucket
from penstock.wire.definitions import load
from penstock.wire.frames import response_header_version

if TYPE_CHECKING:
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

Rates = Mapping[Dimension, float]  # a second; what is not named is not limited
Asked = tuple[str, int]  # API and version


class TenantQuota:
    """What one tenant may do on this gateway, and how long it was kept waiting for which reason."""

    __slots__ = ("_buckets", "throttled_seconds")

    def __init__(self) -> None:
        self._buckets: dict[Dimension, Bucket] = {}
        self.throttled_seconds: dict[Dimension, float] = {}

    @property
    def limited(self) -> bool:
        return bool(self._buckets)

    def retune(self, rates: Rates, now: float) -> None:
        """Other limits from now on."""
        for dimension in self._buckets.keys() - rates.keys():
            del self._buckets[dimension]
        for dimension, rate in rates.items():
            if (bucket := self._buckets.get(dimension)) is not None:
                bucket.retune(rate, now)
            else:
                self._buckets[dimension] = Bucket.full(rate, now)

    def charge(self, use: Mapping[Dimension, float], now: float) -> tuple[float, Dimension | None]:
        """Seconds to wait for what was just done, and what for; the longest wait counts."""
        longest, reason = 0.0, None
        for dimension, bucket in self._buckets.items():
            wait = bucket.spend(use.get(dimension, 0.0), now)
            wait = min(wait, WAIT_MAX.get(dimension, UNLIMITED))
            if wait > longest:
                longest, reason = wait, dimension
        return longest, reason

    def waited(self, reason: Dimension, seconds: float) -> None:
        self.throttled_seconds[reason] = self.throttled_seconds.get(reason, 0.0) + seconds


class Quotas:
    """Of all tenants on one gateway. A tenant without limits costs nothing."""

    def __init__(self) -> None:
        self._tenants: dict[LogicalClusterId, TenantQuota] = {}
        self._configured: dict[LogicalClusterId, Rates] = {}

    def of(self, tenant: LogicalClusterId) -> TenantQuota:
        return self._tenants.setdefault(tenant, TenantQuota())

    def settle(self, tenant: LogicalClusterId, configured: Rates, now: float) -> TenantQuota:
        """A tenant's limits as its configuration has them, if that says anything new."""
        if self._configured.get(tenant, {}) != configured:
            self._configured[tenant] = configured
            return self.retune(tenant, configured, now)
        return self.of(tenant)

    def retune(self, tenant: LogicalClusterId, rates: Rates, now: float) -> TenantQuota:
        """Set a tenant's limits here: its share, as its coordinator has told, or the even split."""
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
