"""How many incremental fetch sessions a tenant holds on a broker, and whether it may open one more.

A broker has one cache of them for everybody, a thousand slots unless it is told otherwise, and keeps
a session when its connection has gone: one tenant took 999 of them, and the others got none. A
session counts until it is closed or has been still for as long as the broker keeps a still one from
being evicted. Beyond its share a tenant's fetches carry no session, which costs it bytes and nothing
else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STILL_SECONDS: Final = 120.0  # Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS
OPENING: Final = 0  # the epoch of a full fetch that asks for a session
NONE: Final = -1  # the epoch of a fetch without one; it closes the session it names


class FetchSessions:
    """One tenant's, on one broker. The session that was used last stands last."""

    __slots__ = ("clock", "limit", "used")

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.clock = clock
        self.used: OrderedDict[int, float] = OrderedDict()

    def epoch(self, session_id: int, epoch: int) -> int:
        """The epoch that a fetch goes on with; `session_id` is 0 if it names no session of its own."""
        if epoch > OPENING:
            if session_id in self.used:
                self.use(session_id)
            return epoch
        self.used.pop(session_id, None)  # a full fetch closes the session it names
        return NONE if epoch == OPENING and self.full() else epoch

    def use(self, session_id: int) -> None:
        self.used[session_id] = self.clock()
        self.used.move_to_end(session_id)

    def full(self) -> bool:
        used, still_since = self.used, self.clock() - STILL_SECONDS
        while used and next(iter(used.values())) < still_since:
            used.popitem(last=False)
        return len(used) >= self.limit
