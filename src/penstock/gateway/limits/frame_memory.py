"""Memory for large frames, reserved when their size is known: bounded for all connections.

Two uses: responses that the gateway rewrites in memory, such as Metadata of a hundred thousand topics, until
their clients have read them; and requests for which a broker allocates memory, until it has read them. Frames
without room wait, first in, first out, with their sender unread. A tenant that holds any gets at most half,
and a frame is always admitted if there is no other. While some wait, one that has not ended within
`seconds_max` is given up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from penstock.gateway.limits.held_bytes import Holder

if TYPE_CHECKING:
    from penstock.gateway.limits.metering import Usage


class Reserver(Holder, Protocol):
    """A connection."""

    def response_reserved(self) -> None:
        """There is room for the response that waited."""

    def request_reserved(self) -> None:
        """There is room for the request that waited."""


class FrameMemory:
    """Bytes of large frames: responses of one worker, or its requests to one broker."""

    def __init__(self, bytes_max: int, seconds_max: float, *, requests: bool = False) -> None:
        self._requests = requests
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
            if self._requests:
                usage.request_waits += 1
            else:
                usage.response_waits += 1
            return False
        self._hold(holder, usage, size, now)
        return True

    def release(self, holder: Reserver, now: float) -> None:
        """Its frame has been read, or its connection is gone."""
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
                if self._requests:
                    waiting.request_reserved()
                else:
                    waiting.response_reserved()

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
