"""One request of a client, from the time it is read until its response is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.connection.fast_path import CachedRequest
    from penstock.gateway.connection.routes import Route
    from penstock.wire.splice import Observations

    OnResponse = Callable[[bytes], bytes | None]


class InFlight:
    """An entry of the queue in which responses leave.

    With a route, the broker's response is awaited: `then`, if set, gets that frame and returns what the
    client receives. Without a route, `response` was made by the gateway and waits for those before it.
    """

    __slots__ = (
        "cached", "correlation_id", "last_offset_delta", "max_timestamp", "observed", "own", "record_bytes",
        "response", "route", "seconds", "sent_at", "then",
    )  # fmt: skip

    def __init__(
        self,
        correlation_id: int,
        route: Route | None,
        sent_at: float,
        observed: Observations | None = None,
        then: OnResponse | None = None,
    ) -> None:
        self.correlation_id = correlation_id
        self.route = route
        self.sent_at = sent_at
        self.observed = observed  # fields of the request
        self.then = then
        self.seconds = -1.0  # that the broker took; below 0 until its response arrives
        self.own = False  # sent by the gateway for itself: the client gets no response
        self.cached: CachedRequest | None = None  # on the fast path, which keeps these instead
        self.last_offset_delta = self.max_timestamp = -1
        self.record_bytes = 0
        self.response = b""

    def counts_service_time(self) -> bool:
        """Whether the broker works all the time until it responds.

        It waits for data and members in long polls, and for its followers with acks=all.
        """
        route = self.route
        if route is None or not route.counts_service_time:
            return False
        if not route.produces:
            return True
        acks = self.cached.acks if self.cached is not None else self.observed[0][0] if self.observed else 0
        return bool(acks == 1)

    def observed_in_request(self) -> Observations | None:
        """What was observed in the request, on either path."""
        cached = self.cached
        if cached is None:
            return self.observed
        row = (cached.topic, cached.index, self.record_bytes, self.last_offset_delta, self.max_timestamp)
        return [(cached.acks,), row]


def local_response(frame: bytes) -> InFlight:
    """A response made by the gateway."""
    entry = InFlight(0, None, 0.0)
    entry.response = frame
    return entry
