"""Who may connect, decided before a byte is read: counts and rates, with the time passed in.

`Doorkeeper` is asked on every accept (before TLS), after every failed login and after every
successful one. Each refusal has a reason, which is also the label of the metric that counts it.
Memory is bounded: addresses that did nothing lately are forgotten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from penstock.gateway.config import Tenant
    from penstock.gateway.settings import Bounds

_T = TypeVar("_T")
ADDRESSES_REMEMBERED_MAX: Final = 10_000
BURST_SECONDS: Final = 5.0  # a bucket holds this much of its rate: clients start in bursts


class Denial(StrEnum):
    GATEWAY_FULL = "gateway_full"
    HALF_OPEN = "half_open"
    ADDRESS_FULL = "address_full"
    ADDRESS_RATE = "address_rate"
    FAILED_LOGINS = "failed_logins"
    NETWORK_RULE = "network_rule"
    TENANT_FULL = "tenant_full"
    TENANT_RATE = "tenant_rate"
    BROKER_RATE = "broker_rate"  # more logins than the broker can bear, of all tenants together
    BAD_CREDENTIALS = "bad_credentials"
    WRONG_HOST = "wrong_host"  # the SNI name belongs to another tenant
    HANDSHAKE_SLOW = "handshake_slow"
    IDLE = "idle"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    API_REFUSED = "api_refused"
    NAME_REFUSED = "name_refused"
    KEY_REVOKED = "key_revoked"
    UPSTREAM = "upstream"  # the broker could not be reached, or answered what cannot be passed on


@dataclass(slots=True)
class Bucket:
    """Tokens that come back at `rate` a second, up to `size`."""

    rate: float
    size: float
    tokens: float
    filled_at: float

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        size = max(1.0, rate * BURST_SECONDS)
        return cls(rate, size, size, now)

    def take(self, now: float) -> bool:
        self.tokens = min(self.size, self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class Doorkeeper:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.open = 0
        self.half_open = 0
        self.by_address: Counter[str] = Counter()
        self.by_tenant: Counter[str] = Counter()
        self._attempts: OrderedDict[str, Bucket] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # count, when it began
        self._tenant_attempts: dict[str, Bucket] = {}

    def knock(self, address: str, now: float) -> Denial | None:
        """A connection wants in. None if it may; then `left` is called when it ends."""
        bounds = self.bounds
        if self.open >= bounds.connections_max:
            return Denial.GATEWAY_FULL
        if self.half_open >= bounds.half_open_max:
            return Denial.HALF_OPEN
        if self.by_address[address] >= bounds.connections_per_address_max:
            return Denial.ADDRESS_FULL
        if self.locked_out(address, now):
            return Denial.FAILED_LOGINS
        bucket = _remembered(self._attempts, address)
        if bucket is None:
            bucket = self._attempts[address] = Bucket.full(bounds.attempts_per_address_per_second, now)
        if not bucket.take(now):
            return Denial.ADDRESS_RATE
        self.open += 1
        self.half_open += 1
        self.by_address[address] += 1
        return None

    def locked_out(self, address: str, now: float) -> bool:
        count, since = self._failures.get(address, (0, 0.0))
        if now - since > self.bounds.failed_logins_seconds:
            self._failures.pop(address, None)
            return False
        return count >= self.bounds.failed_logins_per_address

    def failed(self, address: str, now: float) -> None:
        """A login from there was wrong."""
        count, since = _remembered(self._failures, address) or (0, now)
        if now - since > self.bounds.failed_logins_seconds:
            count, since = 0, now
        self._failures[address] = (count + 1, since)

    def enter(self, tenant: Tenant, address: str, now: float) -> Denial | None:
        """A login was right; may this tenant have one more connection, from there? Counted if so."""
        if not tenant.network.admit(address):
            return Denial.NETWORK_RULE
        if self.by_tenant[tenant.id] >= tenant.limits.connections_max:
            return Denial.TENANT_FULL
        rate = tenant.limits.connection_attempts_per_second
        bucket = self._tenant_attempts.get(tenant.id)
        if bucket is None or bucket.rate != rate:
            bucket = self._tenant_attempts[tenant.id] = Bucket.full(rate, now)
        if not bucket.take(now):
            return Denial.TENANT_RATE
        self.by_tenant[tenant.id] += 1
        self.half_open -= 1
        return None

    def left(self, address: str, tenant: str | None) -> None:
        """A connection ended; `tenant` if it had entered."""
        self.open -= 1
        _less(self.by_address, address)
        if tenant is None:
            self.half_open -= 1
        else:
            _less(self.by_tenant, tenant)

    def forget(self, tenants: set[str]) -> None:
        """Only these tenants exist now."""
        for gone in self._tenant_attempts.keys() - tenants:
            del self._tenant_attempts[gone]


def _remembered(table: OrderedDict[str, _T], address: str) -> _T | None:
    """The entry of an address, as the latest one; the oldest goes when there are too many."""
    if address in table:
        table.move_to_end(address)
        return table[address]
    while len(table) >= ADDRESSES_REMEMBERED_MAX:
        table.popitem(last=False)
    return None


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
