"""Slows down clients whose connections are closed because they break a limit.

Connecting again costs a client little, and the gateway and the broker a login each. So breaches are counted,
by address and key: beyond `breaches_per_key` in a minute, logins of that key from that address are processed
one after another, 0.25 s apart at first and twice as far apart with each further breach, up to a fifth of
`breach_wait_seconds`. One that would wait for more than all of it is denied. Other clients of the tenant are
not affected, until breaches of all its keys exceed `breaches_per_tenant`: then its rate of logins is a tenth.
An address before login counts as a tenant does.

Counts are shared by the workers, in bounded memory (`shared_counters`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.backoff import Backoff

if TYPE_CHECKING:
    from penstock.gateway.limits.shared_counters import SharedCounters
    from penstock.gateway.settings import Bounds

WINDOW_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 0.25  # between two logins of a key beyond its bound
WAITING: Final = 5  # logins of a key, when they are furthest apart: a client connects to several brokers
SLOWED_RATE: Final = 0.1  # of the rate of a tenant or address beyond its bound


class Breaches:
    """All clients of a gateway."""

    def __init__(self, bounds: Bounds, counters: SharedCounters) -> None:
        self._bounds = bounds
        self._counters = counters

    def count(self, network: str, tenant: str, key: str, now: float) -> None:
        """A connection was closed for a breach; tenant and key are empty before login."""
        names = [_of_key(network, key), _of_tenant(tenant)] if tenant else [_of_address(network)]
        for name in names:
            row = self._counters.row(self._counters.key(name))
            if row is not None:
                self._counters.fail(row, _milliseconds(now), _milliseconds(now - WINDOW_SECONDS))

    def login_wait(self, network: str, key: str, now: float) -> float | None:
        """Seconds until a login of this key is due, which reserves its turn. None if too many wait."""
        counters, of_key = self._counters, self._counters.key(_of_key(network, key))
        beyond = (
            counters.failures(of_key, _milliseconds(now - WINDOW_SECONDS)) - self._bounds.breaches_per_key
        )
        row = counters.row(of_key) if beyond > 0 else None
        if row is None:
            return 0.0
        due = max(counters.full_at(of_key), now)
        if due - now > self._bounds.breach_wait_seconds:
            return None
        longest = self._bounds.breach_wait_seconds / WAITING
        pause = Backoff(min(FIRST_SECONDS, longest), longest).seconds(beyond)
        counters.own.full_at[row] = due + pause
        return due - now

    def tenant_rate(self, tenant: str, rate: float, now: float) -> float:
        """The rate at which a tenant may log in."""
        return self._slowed(_of_tenant(tenant), rate, now)

    def address_rate(self, network: str, rate: float, now: float) -> float:
        """The rate at which an address may connect."""
        return self._slowed(_of_address(network), rate, now)

    def _slowed(self, name: str, rate: float, now: float) -> float:
        counted = self._counters.failures(self._counters.key(name), _milliseconds(now - WINDOW_SECONDS))
        return rate * SLOWED_RATE if counted > self._bounds.breaches_per_tenant else rate


def _of_key(network: str, key: str) -> str:
    return f"breaches {network} {key}"


def _of_tenant(tenant: str) -> str:
    return f"breaches of {tenant}"


def _of_address(network: str) -> str:
    return f"breaches at {network}"


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
