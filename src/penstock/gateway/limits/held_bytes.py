"""Bytes that connections hold because a frame is unfinished or waits: budgets for a tenant and the process.

Bytes are counted as they arrive. A tenant over its budget is not read any more, on any connection, until
half of the budget is free. One connection is exempt: the one that has held bytes for longest, so that its
frame can end, and then the next. If it does not within `seconds_max`, it is closed. So a tenant holds its
budget, one frame and one read at most, and every frame either ends or is given up.

While all tenants together hold more than the process may, each tenant's budget is an equal part of that.
Connections that have not logged in yet have one small budget together; one that exceeds it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.limits.metering import Usage

FREE_TO_RESUME: Final = 0.5  # of the budget


class Holder(Protocol):
    """A connection."""

    def hold(self, on: bool, /) -> None:
        """Read neither side while this is on."""

    def give_up(self, held: int, limit: int, /) -> None:
        """Close: what it holds exceeds a budget."""


class _Tenant:
    """What the connections of one tenant hold."""

    __slots__ = ("bytes", "exempt", "holders", "paused")

    def __init__(self) -> None:
        self.bytes = 0
        self.holders: dict[Holder, tuple[int, float]] = {}  # bytes, since when; in the order of that time
        self.paused = False
        self.exempt: Holder | None = None


class HeldBytes:
    """All connections of one process."""

    def __init__(self, tenant_max: int, process_max: int, before_login_max: int, seconds_max: float) -> None:
        self._tenant_max = tenant_max
        self._process_max = process_max
        self._before_login_max = before_login_max
        self._seconds_max = seconds_max
        self._tenants: dict[Usage | None, _Tenant] = {}  # those that hold any; None: before login
        self._group: dict[Holder, Usage | None] = {}  # under which a connection is counted
        self.bytes = 0
        # Returns all connections of a tenant.
        self.connections_of: Callable[[Usage], list[Holder]] = lambda _: []

    def pauses(self, usage: Usage) -> bool:
        """Whether a tenant is over its budget, so that a new connection of it is not read either."""
        tenant = self._tenants.get(usage)
        return tenant is not None and tenant.paused

    def count(self, holder: Holder, group: Usage | None, held: int, now: float) -> None:
        """A connection of this tenant now holds so many bytes; None before login."""
        before = self._group.get(holder, group)
        if before is not group:  # it has logged in
            self._set(holder, before, 0, now)
        self._set(holder, group, held, now)
        tenant = self._tenants.get(group)
        if group is None:
            if tenant is not None and tenant.bytes > self._before_login_max:
                self._give_up(holder, tenant, self._before_login_max)
        elif tenant is not None:
            self._balance(group, tenant)

    def sweep(self, now: float) -> None:
        """Close connections that prevent others from being read for too long. Called once a second."""
        for group, tenant in list(self._tenants.items()):
            while group is not None and tenant.paused and tenant.holders:
                oldest = next(iter(tenant.holders))
                if now - tenant.holders[oldest][1] < self._seconds_max:
                    break
                self._give_up(oldest, tenant, self._limit())
                self._balance(group, tenant)
            if group is not None:
                self._balance(group, tenant)

    def _limit(self) -> int:
        if self.bytes <= self._process_max:
            return self._tenant_max
        return min(self._tenant_max, self._process_max // len(self._tenants))

    def _set(self, holder: Holder, group: Usage | None, held: int, now: float) -> None:
        tenant = self._tenants.get(group)
        if tenant is None:
            tenant = self._tenants[group] = _Tenant()
        before, since = tenant.holders.get(holder, (0, now))
        self.bytes += held - before
        tenant.bytes += held - before
        if group is not None:
            group.held_bytes = tenant.bytes
        if held < before:  # a frame has ended: others have waited for longer
            tenant.holders.pop(holder)
            since = now
        if held:
            tenant.holders[holder] = (held, since)
            self._group[holder] = group
        else:
            self._group.pop(holder, None)
            if not tenant.holders and not tenant.paused:
                del self._tenants[group]

    def _give_up(self, holder: Holder, tenant: _Tenant, limit: int) -> None:
        held, since = tenant.holders[holder]
        self._set(holder, self._group[holder], 0, since)
        holder.give_up(held, limit)

    def _balance(self, usage: Usage, tenant: _Tenant) -> None:
        """Pause or resume a tenant, and exempt the connection that has held bytes for longest."""
        limit = self._limit()
        if not tenant.paused and tenant.bytes <= limit:
            return
        if tenant.paused and tenant.bytes <= limit * FREE_TO_RESUME:
            tenant.paused, tenant.exempt = False, None
            for connection in self.connections_of(usage):
                connection.hold(False)
            if not tenant.holders:
                del self._tenants[usage]
            return
        if not tenant.paused:
            tenant.paused = True
            usage.held_pauses += 1
            for connection in self.connections_of(usage):
                connection.hold(True)
        oldest = next(iter(tenant.holders), None)
        if oldest is not tenant.exempt:
            if tenant.exempt is not None:
                tenant.exempt.hold(True)
            if oldest is not None:
                oldest.hold(False)
            tenant.exempt = oldest
