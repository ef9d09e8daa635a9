"""How many platform requests of one tenant run at once, so that one tenant's do not delay those of others.

Platform requests share connections and a number of calls at once (`tenancy.platform_client`). A tenant with
many connections would take all of them; beyond its turns, its requests wait for each other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from penstock.model.ids import LogicalClusterId

REQUESTS_AT_ONCE: Final = 4  # of one tenant


class PlatformTurns:
    """The turns of all tenants; one that has no request takes no memory."""

    def __init__(self, at_once: int = REQUESTS_AT_ONCE) -> None:
        self._at_once = at_once
        self._turns: WeakValueDictionary[LogicalClusterId, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant: LogicalClusterId) -> asyncio.Semaphore:
        """Enter it for the time of a request."""
        turns = self._turns.get(tenant)
        if turns is None:
            turns = self._turns[tenant] = asyncio.Semaphore(self._at_once)
        return turns
