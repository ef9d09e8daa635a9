"""How many incremental fetch sessions a tenant holds on a broker, and whether it may open another.

A broker has one cache for all its clients, a thousand slots by default, and keeps a session after its
connection has closed: one tenant took 999 of them, and the others got none. A session counts until it is
closed, or has been idle for as long as the broker protects an idle one from eviction. Beyond its share, a
tenant's fetches carry no session, which only costs bandwidth.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

EVICTABLE_SECONDS: Final = 120.0  # Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS
INITIAL_EPOCH: Final = 0  # of a full fetch that opens a session
FINAL_EPOCH: Final = -1  # of a fetch without a session; it closes the session it names


class FetchSessions:
    """One tenant's sessions on one broker, least recently used first."""

    __slots__ = ("clock", "limit", "used")

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.clock = clock
        self.used: OrderedDict[int, float] = OrderedDict()

    def epoch(self, session_id: int, epoch: int) -> int:
        """The epoch to send; `session_id` is 0 if the fetch names no session of its connection."""
        if epoch not in (INITIAL_EPOCH, FINAL_EPOCH):  # the broker keeps the session, whatever the epoch
            if session_id in self.used:
                self.use(session_id)
            return epoch
        self.used.pop(session_id, None)  # a full fetch closes the session it names
        return FINAL_EPOCH if epoch == INITIAL_EPOCH and self.full() else epoch

    def use(self, session_id: int) -> None:
        self.used[session_id] = self.clock()
        self.used.move_to_end(session_id)

    def full(self) -> bool:
        used, evictable_before = self.used, self.clock() - EVICTABLE_SECONDS
        while used and next(iter(used.values())) < evictable_before:
            used.popitem(last=False)
        return len(used) >= self.limit
