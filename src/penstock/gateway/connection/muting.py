"""Mutes a client whose requests the gateway cannot delay any other way: it is not read for a while.

Two costs are known only when a request has been handled: partitions that it changed, and a refusal. A refused
request reaches no broker, so no quota of the tenant slows it down; a client may repeat it as fast as it can.
Beyond `refusals_per_second` of a tenant, each refusal mutes its connection until the rate is kept again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.effects import Wake
from penstock.gateway.connection.states import MUTED
from penstock.model.events import Dimension

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection

REFUSED_BYTES: Final = 4096  # a refusal of so many bytes costs twice as much as that of an empty request


def charge_partitions(connection: Connection, count: int, wait: float) -> None:
    """Count partition changes, and mute the client for as long as they cost."""
    connection.usage.partition_changes += count
    _mute(connection, wait, Dimension.PARTITION_CHANGES)


def charge_refusal(connection: Connection) -> None:
    """Count the refusal of the request that was read last."""
    throttle = connection.throttle
    if throttle is not None:  # before login, few requests are read at all
        rate = connection.services.bounds.refusals_per_second
        amount = 1.0 + connection.requests.handler.size / REFUSED_BYTES
        _mute(connection, throttle.quota.charge_refusal(rate, amount, connection.now), Dimension.REQUESTS)


def _mute(connection: Connection, seconds: float, reason: Dimension) -> None:
    throttle = connection.throttle
    assert throttle is not None
    if seconds > 0 and throttle.mute(seconds, connection.now, reason):
        connection.pause(MUTED)
        connection.effects.append(Wake(throttle.muted_until - connection.now))
