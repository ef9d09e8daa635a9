"""How many share sessions a tenant holds on a broker, over all workers of the gateway.

A broker has one cache of share sessions for all its clients (`group.share.max.share.sessions`, 2,000 by
default) and evicts none for want of room: one tenant could take them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.limits.shared_counters import SharedCounters

if TYPE_CHECKING:
    from penstock.gateway.config import Tenant


class ShareSessions:
    """Each connection holds at most one, so they are counted like connections."""

    def __init__(self, counters: SharedCounters | None = None) -> None:
        self.counters = counters or SharedCounters()

    def reserve(self, tenant: Tenant, broker_id: int) -> bool:
        """Count a session, if there is room for it. Call `release` when it ends."""
        key = self._key(tenant, broker_id)
        own, row = self.counters.own, self.counters.row(key)
        if row is None:
            return False
        own.connections[row] += 1
        if self.counters.connections(key) > tenant.limits.share_sessions_max:
            own.connections[row] -= 1
            return False
        return True

    def release(self, tenant: Tenant, broker_id: int) -> None:
        row = self.counters.own.find(self._key(tenant, broker_id))
        assert row is not None, "a row that counts sessions stays"
        self.counters.own.connections[row] -= 1

    def _key(self, tenant: Tenant, broker_id: int) -> int:
        return self.counters.key(f"share sessions {tenant.id} {broker_id}")
