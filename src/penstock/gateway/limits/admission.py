"""Whether a client may connect, decided before a byte is read: counts and rates, with the time passed in.

`Admission` is consulted on every accept (before TLS), after every failed login and after every successful
one. Memory is bounded (`shared_counters`): addresses without a connection are forgotten when there is no
room. Clients that break limits are slowed down (`breaches`).
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.gateway.limits.breaches import Breaches
from penstock.gateway.limits.partition_reservations import PENDING_SECONDS
from penstock.gateway.limits.shared_counters import HALF_OPEN, OPEN, SharedCounters
from penstock.model.backoff import Backoff

if TYPE_CHECKING:
    from penstock.gateway.config import Tenant
    from penstock.gateway.settings import Bounds

BURST_SECONDS: Final = 5.0  # a burst of this much of a rate is allowed: clients start in bursts
SLOWED_SECONDS: Final = 0.5  # the first wait of a key's failed logins beyond their bound
SOON_SECONDS: Final = 1e-6  # what floating-point numbers may be off by


class Denial(StrEnum):
    GATEWAY_FULL = "gateway_full"
    HALF_OPEN = "half_open"
    ADDRESS_HALF_OPEN = "address_half_open"
    ADDRESS_FULL = "address_full"
    PROXY_HEADER = "proxy_header"  # none, or an invalid one, from a trusted load balancer
    ADDRESS_RATE = "address_rate"
    FAILED_LOGINS = "failed_logins"
    NETWORK_RULE = "network_rule"
    TENANT_FULL = "tenant_full"
    TENANT_RATE = "tenant_rate"
    BROKER_RATE = "broker_rate"  # more logins than the broker can take, all tenants together
    BAD_CREDENTIALS = "bad_credentials"
    WRONG_HOST = "wrong_host"  # the SNI host name belongs to another tenant
    HANDSHAKE_SLOW = "handshake_slow"
    IDLE = "idle"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    HELD_BYTES = "held_bytes"  # it kept a frame unfinished while a budget for those was exceeded
    EARLY_REQUESTS = "early_requests"  # too many before login
    TOO_MANY_ELEMENTS = "too_many_elements"  # in the arrays of one request
    API_REFUSED = "api_refused"
    NAME_REFUSED = "name_refused"
    SHARE_SESSIONS = "share_sessions"
    KEY_REVOKED = "key_revoked"
    STATE_OLD = "state_old"  # tenants' state has not been read for too long: a key may be revoked
    UPSTREAM = "upstream"  # the broker cannot be reached, or its response cannot be passed on


# Denials that are a client's breach of a limit, if they close its connection.
BREACHES: Final = frozenset(
    (
        Denial.API_REFUSED, Denial.EARLY_REQUESTS, Denial.HELD_BYTES, Denial.MALFORMED, Denial.NAME_REFUSED,
        Denial.TOO_LARGE, Denial.TOO_MANY_ELEMENTS,
    )
)  # fmt: skip


class Admission:
    """Limits shared by all workers of a gateway: each worker has an instance over the shared counters."""

    def __init__(self, bounds: Bounds, counters: SharedCounters | None = None) -> None:
        self.bounds = bounds
        self.counters = counters or SharedCounters()
        self.breaches = Breaches(bounds, self.counters)

    @property
    def open(self) -> int:
        return self.counters.total(OPEN)

    @property
    def half_open(self) -> int:
        return self.counters.total(HALF_OPEN)

    @property
    def half_open_crowded(self) -> bool:
        """Whether half of the half-open connections allowed are taken."""
        return 2 * self.half_open > self.bounds.half_open_max

    def connections_from(self, address: str) -> int:
        return self.counters.connections(self._address(address))

    def admit_connection(self, address: str, now: float) -> Denial | None:
        """Count a new connection, or return why it is denied. Call `release` when it ends."""
        key = self._address(address)
        own, row = self.counters.own, self.counters.row(key)
        if row is None:
            return Denial.GATEWAY_FULL
        own.totals[OPEN] += 1
        own.totals[HALF_OPEN] += 1
        own.connections[row] += 1
        own.half_open[row] += 1
        denial = self._denial(address, key, row, now)
        if denial is not None:
            self.release(address, None)
        return denial

    def _denial(self, address: str, key: int, row: int, now: float) -> Denial | None:
        """Why a connection that has been counted must be closed again."""
        bounds = self.bounds
        if self.open > bounds.connections_max:
            return Denial.GATEWAY_FULL
        if self.half_open > bounds.half_open_max:
            return Denial.HALF_OPEN
        if self.half_open_crowded and self.counters.half_open(key) > bounds.half_open_per_address_max:
            return Denial.ADDRESS_HALF_OPEN
        if self.counters.connections(key) > bounds.connections_per_address_max:
            return Denial.ADDRESS_FULL
        if self._locked_out(key, now):
            return Denial.FAILED_LOGINS
        rate = self.breaches.address_rate(network_of(address), bounds.attempts_per_address_per_second, now)
        if not self._take(key, row, rate, now):
            return Denial.ADDRESS_RATE
        return None

    def _locked_out(self, key: int, now: float) -> bool:
        failed = self.counters.failures(key, self._failures_since(now))
        return failed >= self.bounds.failed_logins_per_address

    def failed(self, address: str, key: str, now: float) -> float:
        """Count a failed login; returns the seconds its response must wait.

        `key` is empty if it is not known. The wait doubles with each failure of a key beyond its bound, so a
        client with an old key is slowed down and other clients at its address are not.
        """
        bounds, counters, since = self.bounds, self.counters, self._failures_since(now)
        of_key = counters.key(f"login {network_of(address)} {key}")
        for each in (self._address(address), of_key):
            row = counters.row(each)
            if row is not None:
                counters.fail(row, _milliseconds(now), since)
        beyond = counters.failures(of_key, since) - bounds.failed_logins_per_key
        if beyond <= 0:
            return 0.0
        return Backoff(SLOWED_SECONDS, bounds.failed_login_wait_seconds).seconds(beyond)

    def admit_login(self, tenant: Tenant, address: str, now: float) -> Denial | None:
        """Count a successful login as one of the tenant's connections, or return why it is denied."""
        if not tenant.network.admit(address):
            return Denial.NETWORK_RULE
        key = self._tenant(tenant.id)
        own, row = self.counters.own, self.counters.row(key)
        if row is None:
            return Denial.GATEWAY_FULL
        own.connections[row] += 1
        denial = None
        if self.counters.connections(key) > tenant.limits.connections_max:
            denial = Denial.TENANT_FULL
        elif not self._take(key, row, self._login_rate(tenant, now), now):
            denial = Denial.TENANT_RATE
        if denial is not None:
            own.connections[row] -= 1
            return denial
        self._no_longer_half_open(address)
        return None

    def _login_rate(self, tenant: Tenant, now: float) -> float:
        return self.breaches.tenant_rate(tenant.id, tenant.limits.connection_attempts_per_second, now)

    def breached(self, address: str, tenant: str, key: str, now: float) -> None:
        """A connection was closed because it broke a limit; tenant and key are empty before login."""
        self.breaches.count(network_of(address), tenant, key, now)

    def login_wait(self, address: str, key: str, now: float) -> float | None:
        """Seconds before a login is processed, after breaches; None if too many wait already."""
        return self.breaches.login_wait(network_of(address), key, now)

    def _no_longer_half_open(self, address: str) -> None:
        own = self.counters.own
        own.totals[HALF_OPEN] -= 1
        own.half_open[self._row(self._address(address))] -= 1

    def release(self, address: str, tenant: str | None) -> None:
        """Count a connection as closed; `tenant` if it had logged in."""
        own = self.counters.own
        own.totals[OPEN] -= 1
        own.connections[self._row(self._address(address))] -= 1
        if tenant is None:
            self._no_longer_half_open(address)
        else:
            own.connections[self._row(self._tenant(tenant))] -= 1

    def share_partitions(self, tenant: str, pending: int, now: float) -> int:
        """Publish how many partitions this worker is creating for a tenant; returns those of others."""
        key = self._tenant(tenant)
        row = self.counters.row(key)
        if row is not None:
            self.counters.own.pending[row] = pending
            self.counters.own.pending_until[row] = now + PENDING_SECONDS
        return self.counters.pending_elsewhere(key, now)

    def _row(self, key: int) -> int:
        row = self.counters.own.find(key)
        assert row is not None, "a row that counts connections stays"
        return row

    def _take(self, key: int, row: int, rate: float, now: float) -> bool:
        """Take one token of a bucket that refills at `rate`; its state is the time at which it is full."""
        burst_seconds = max(1.0 / rate, BURST_SECONDS)
        full_at = min(self.counters.full_at(key), now + burst_seconds)  # the rate may have been lower before
        full_at = max(full_at, now) + 1.0 / rate
        if full_at - now > burst_seconds + SOON_SECONDS:
            return False
        self.counters.own.full_at[row] = full_at
        return True

    def _failures_since(self, now: float) -> int:
        return _milliseconds(now - self.bounds.failed_logins_seconds)

    def _address(self, address: str) -> int:
        return self.counters.key(f"address {network_of(address)}")

    def _tenant(self, tenant: str) -> int:
        return self.counters.key(f"tenant {tenant}")


def network_of(address: str) -> str:
    """What limits by address count: the address, or its /64 in IPv6, all of which one host can use."""
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address.partition("%")[0])
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip, 64), strict=False))


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
