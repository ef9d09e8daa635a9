"""Who may connect, decided before a byte is read: counts and rates, with the time passed in.

`Doorkeeper` is asked on every accept (before TLS), after every failed login and after every
successful one. Each refusal has a reason, which is also the label of the metric that counts it.
Memory is bounded (`tally`): addresses that have no connection are forgotten when there is no room.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.gateway.tally import HALF_OPEN, OPEN, Tally

if TYPE_CHECKING:
    from penstock.gateway.config import Tenant
    from penstock.gateway.settings import Bounds

BURST_SECONDS: Final = 5.0  # so much of a rate may come at once: clients start in bursts
SOON_SECONDS: Final = 1e-6  # what floating-point numbers may be off by


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


class Doorkeeper:
    """Holds for all workers of a gateway: each asks its own, which adds up what all of them count."""

    def __init__(self, bounds: Bounds, tally: Tally | None = None) -> None:
        self.bounds = bounds
        self.tally = tally or Tally()

    @property
    def open(self) -> int:
        return self.tally.total(OPEN)

    @property
    def half_open(self) -> int:
        return self.tally.total(HALF_OPEN)

    @property
    def crowded(self) -> bool:
        """Of the places for those who have not logged in yet, half are taken."""
        return 2 * self.half_open > self.bounds.half_open_max

    def connections_from(self, address: str) -> int:
        return self.tally.connections(self._address(address))

    def knock(self, address: str, now: float) -> Denial | None:
        """A connection wants in. None if it may; then `left` is called when it ends."""
        key = self._address(address)
        mine, row = self.tally.mine, self.tally.row(key)
        if row is None:
            return Denial.GATEWAY_FULL
        mine.totals[OPEN] += 1
        mine.totals[HALF_OPEN] += 1
        mine.connections[row] += 1
        denial = self._turned_away(key, row, now)
        if denial is not None:
            self.left(address, None)
        return denial

    def _turned_away(self, key: int, row: int, now: float) -> Denial | None:
        """Why one that is counted already has to go again."""
        bounds = self.bounds
        if self.open > bounds.connections_max:
            return Denial.GATEWAY_FULL
        if self.half_open > bounds.half_open_max:
            return Denial.HALF_OPEN
        if self.tally.connections(key) > bounds.connections_per_address_max:
            return Denial.ADDRESS_FULL
        if self._locked_out(key, now):
            return Denial.FAILED_LOGINS
        if not self._take(key, row, bounds.attempts_per_address_per_second, now):
            return Denial.ADDRESS_RATE
        return None

    def locked_out(self, address: str, now: float) -> bool:
        return self._locked_out(self._address(address), now)

    def _locked_out(self, key: int, now: float) -> bool:
        failed = self.tally.failures(key, self._failures_since(now))
        return failed >= self.bounds.failed_logins_per_address

    def failed(self, address: str, now: float) -> None:
        """A login from there was wrong. Whoever tried has a connection, so there is a row."""
        row = self.tally.row(self._address(address))
        if row is not None:
            self.tally.fail(row, _milliseconds(now), self._failures_since(now))

    def enter(self, tenant: Tenant, address: str, now: float) -> Denial | None:
        """A login was right; may this tenant have one more connection, from there? Counted if so."""
        if not tenant.network.admit(address):
            return Denial.NETWORK_RULE
        key = self._tenant(tenant.id)
        mine, row = self.tally.mine, self.tally.row(key)
        if row is None:
            return Denial.GATEWAY_FULL
        mine.connections[row] += 1
        denial = None
        if self.tally.connections(key) > tenant.limits.connections_max:
            denial = Denial.TENANT_FULL
        elif not self._take(key, row, tenant.limits.connection_attempts_per_second, now):
            denial = Denial.TENANT_RATE
        if denial is not None:
            mine.connections[row] -= 1
            return denial
        mine.totals[HALF_OPEN] -= 1
        return None

    def left(self, address: str, tenant: str | None) -> None:
        """A connection ended; `tenant` if it had entered."""
        mine = self.tally.mine
        mine.totals[OPEN] -= 1
        self._less(self._address(address))
        if tenant is None:
            mine.totals[HALF_OPEN] -= 1
        else:
            self._less(self._tenant(tenant))

    def _less(self, key: int) -> None:
        row = self.tally.mine.find(key)
        assert row is not None, "a row that counts connections stays"
        self.tally.mine.connections[row] -= 1

    def _take(self, key: int, row: int, rate: float, now: float) -> bool:
        """One of what comes back at `rate` a second, up to a burst; told by when all of it will be back."""
        burst_seconds = max(1.0 / rate, BURST_SECONDS)
        full_at = min(self.tally.full_at(key), now + burst_seconds)  # the rate may have been lower before
        full_at = max(full_at, now) + 1.0 / rate
        if full_at - now > burst_seconds + SOON_SECONDS:
            return False
        self.tally.mine.full_at[row] = full_at
        return True

    def _failures_since(self, now: float) -> int:
        return _milliseconds(now - self.bounds.failed_logins_seconds)

    def _address(self, address: str) -> int:
        return self.tally.key(f"address {address}")

    def _tenant(self, tenant: str) -> int:
        return self.tally.key(f"tenant {tenant}")


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
