"""Memory for large responses, such as Metadata of a hundred thousand topics: bounded for all connections.

A response is rewritten in memory, and its size is known before it is read. Those without room wait, first
in, first out, with their broker's side unread, until clients have read others. A tenant that holds any gets
at most half, and a response is always admitted if there is no other. While some wait, one whose client does
not read it within `seconds_max` is given up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from penstock.gateway.limits.held_bytes import Holder

if TYPE_CHECKING:
    from penstock.gateway.limits.metering import Usage


class Reserver(Holder, Protocol):
    """A connection."""

    def reserved(self) -> None:
        """There is room for the response that waited."""


class ResponseMemory:
    """Bytes of the large responses that one worker holds."""

    def __init__(self, bytes_max: int, seconds_max: float) -> None:
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._by_tenant: Counter[Usage] = Counter()
        self._holders: dict[Reserver, tuple[Usage, int, float]] = {}  # with bytes and time, oldest first
        self._waiting: dict[Reserver, tuple[Usage, int]] = {}
        self.bytes = 0

    def reserve(self, holder: Reserver, usage: Usage, size: int, now: float) -> bool:
        """Whether it has room; if not, it is called when there is, and reserves again."""
        if holder in self._holders or holder in self._waiting:
            return holder in self._holders
        if not self._fits(usage, size):
            self._waiting[holder] = (usage, size)
            usage.response_waits += 1
            return False
        self._hold(holder, usage, size, now)
        return True

    def release(self, holder: Reserver, now: float) -> None:
        """Its response is read, or its connection is gone."""
        self._waiting.pop(holder, None)
        held = self._holders.pop(holder, None)
        if held is not None:
            usage, size, _ = held
            self.bytes -= size
            self._by_tenant[usage] -= size
            if not self._by_tenant[usage]:
                del self._by_tenant[usage]
        for waiting, (usage, size) in list(self._waiting.items()):
            if self.bytes and self.bytes + size > self._bytes_max:
                break  # the first has waited for longest
            if self._fits(usage, size):
                del self._waiting[waiting]
                self._hold(waiting, usage, size, now)
                waiting.reserved()

    def sweep(self, now: float) -> None:
        """Close connections that hold memory for too long while others wait. Called once a second."""
        for holder, (_, size, since) in list(self._holders.items()):
            if not self._waiting or now - since < self._seconds_max:
                break
            self.release(holder, now)
            holder.give_up(size, self._bytes_max)

    def _fits(self, usage: Usage, size: int) -> bool:
        own = self._by_tenant[usage]  # a Counter: 0 is not stored
        if own and own + size > self._bytes_max // 2:
            return False
        return not self.bytes or self.bytes + size <= self._bytes_max

    def _hold(self, holder: Reserver, usage: Usage, size: int, now: float) -> None:
        self.bytes += size
        self._by_tenant[usage] += size
        self._holders[holder] = (usage, size, now)
