"""Fair shares of the event loop: connections with more to do than their slice allowed, by tenant.

Deficit round robin over tenants, in measured time. In one pass of the event loop a tenant's connections are
served as their bytes arrive, until they have used `SLICE_SECONDS` together. What they receive beyond waits
here. After each pass one waiting tenant is served for one slice, and the loop continues with whatever has
arrived meanwhile. So a tenant gets the whole processor while no other needs it, and an equal share while they
do, on however many connections. A frame is never interrupted: time beyond the slice is subtracted from the
next ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.gateway.limits.metering import SLICE_SECONDS

if TYPE_CHECKING:
    from penstock.gateway.limits.metering import Usage

OVERDRAWN_SECONDS_MAX: Final = 100 * SLICE_SECONDS  # a tenant is not passed over for longer than this
NEVER: Final = float("inf")
Connection = TypeVar("Connection")


class ReadyQueue(Generic[Connection]):
    """The connections of one event loop that wait for a slice."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[Usage, deque[Connection]] = OrderedDict()  # in the order of service
        self._charged: list[Usage] = []  # tenants that have used half a slice or more

    def __len__(self) -> int:
        return len(self._tenants)

    def charge(self, usage: Usage) -> None:
        """A tenant's time has reached `processor_check_at`."""
        usage.processor_check_at = NEVER
        self._charged.append(usage)

    def add(self, usage: Usage, connection: Connection) -> None:
        """Queue a connection after the tenant's others; it must not be queued yet."""
        usage.slices_queued += 1
        self._tenants.setdefault(usage, deque()).append(connection)

    def end_pass(self) -> Usage | None:
        """A pass of the event loop is over: renew slices. Returns the tenant to serve, with `take`."""
        for usage in self._charged:
            if usage not in self._tenants:
                _renew(usage)
        self._charged.clear()
        for _ in range(len(self._tenants)):
            usage = next(iter(self._tenants))
            self._tenants.move_to_end(usage)
            _renew(usage)
            if usage.processor_seconds < usage.slice_ends_at:
                return usage
        return None

    def take(self, usage: Usage) -> Connection | None:
        """The tenant's next connection; None if its slice is used up, or none waits."""
        waiting = self._tenants.get(usage)
        if waiting is None or usage.processor_seconds >= usage.slice_ends_at:
            return None
        connection = waiting.popleft()
        if not waiting:
            del self._tenants[usage]
        return connection


def _renew(usage: Usage) -> None:
    """Add a slice. Unused time is not saved, overdrawn time is subtracted."""
    used = usage.processor_seconds
    ends_at = max(usage.slice_ends_at, used - OVERDRAWN_SECONDS_MAX) + SLICE_SECONDS
    usage.slice_ends_at = min(ends_at, used + SLICE_SECONDS)
    usage.processor_check_at = usage.slice_ends_at - SLICE_SECONDS / 2
