"""One client connection: both directions, and the queue of requests in flight.

`Session` is the client's asyncio protocol; the broker's is `upstream.Upstream`. Bytes pass through two
splicers, which call `_RequestHandler` and `_ResponseHandler` as frames begin and end. Between them is one
queue in request order. A forwarded request waits there for the broker's response; a response made by the
gateway is queued there too, so a client always receives its responses in order.

Back-pressure: when one side cannot be written to, the other is not read. A client is also not read while
the gateway works on one of its requests, and while too many of its requests are in flight.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.gateway.admission import Denial
from penstock.gateway.connection_states import (
    BROKER_FULL,
    CLIENT_FULL,
    DRAINING,
    IN_FLIGHT,
    NO_NEW_FRAMES,
    Event,
    Life,
    State,
    advance,
)
from penstock.gateway.fast_path import SessionFastPath, observed_in_request
from penstock.gateway.local_requests import LocalRequests
from penstock.gateway.routes import API_VERSIONS, BEFORE_LOGIN, Route, routes
from penstock.gateway.tenant_names import Inward, LearningInward, Outward
from penstock.model.errors import Fault, PenstockError
from penstock.model.errors.gateway import ResponseUnexpected
from penstock.model.errors.plans import NameRefused, RequestFrameMalformed, RequestFrameTooLarge
from penstock.wire.names import Names
from penstock.wire.splice import HOLD, TAKE, Limits, Requests, Responses

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.gateway.config import Broker, Principal
    from penstock.gateway.fast_path import CachedRequest
    from penstock.gateway.request_sampling import ConnectionSample
    from penstock.gateway.server import Gateway
    from penstock.gateway.tenant_names import TenantContext
    from penstock.gateway.topic_ids import UnknownIds
    from penstock.gateway.upstream import Upstream
    from penstock.model.errors.plans import ResponseRefused
    from penstock.wire.splice import Action, Buffer, Observations, Program

    OnResponse = Callable[[bytes], bytes | None]
    # Correlation id, route, send time, what was observed in the request, what to do with its response, and
    # its cache entry on the fast path. With a cache entry, the observation is the last offset delta alone. A
    # response made by the gateway has no route, and the frame itself in place of the observation.
    InFlight = tuple[int, Route | None, float, Any, "OnResponse | None", "CachedRequest | None"]

JOINED_BYTES_MAX: Final = 32 * 1024

_clock: Final = time.perf_counter


class _RequestHandler:
    """Handles frames from the client."""

    __slots__ = ("correlation_id", "known", "route", "routes", "session", "size")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.routes: dict[tuple[int, int], Route] = {}  # empty before login
        self.route: Route | None = None
        self.known: CachedRequest | None = None  # of the current request, if it was just learned
        self.correlation_id = 0
        self.size = 0

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program | Action:
        session = self.session
        if session.pauses & NO_NEW_FRAMES:
            session.stop_reading()
            return HOLD
        if session.is_throttled() and session.queue_if_throttled(api_key, size + 4):
            return HOLD
        route = self.routes.get((api_key, version))
        if route is None:
            return session.unrouted(api_key, version, size)
        self.route = route
        self.correlation_id = correlation_id
        self.size = size
        return route.request

    def end(self, seen: Observations | None) -> None:
        session, route = self.session, self.route
        session.count_request(self.size + 4)
        known, self.known = self.known, None
        if seen is not None and seen[0][0] == 0:
            return  # acks=0: no response will come
        in_flight = session.in_flight
        if known is None or seen is None:
            in_flight.append((self.correlation_id, route, _clock(), seen, None, None))
        else:
            in_flight.append((self.correlation_id, route, _clock(), seen[1][3], None, known))
        if len(in_flight) >= session.in_flight_max:
            session.pause(IN_FLIGHT)

    def learn(self, frame: tuple[bytes, int, int], made: bytes, seen: Observations) -> None:
        session, route = self.session, self.route
        assert route is not None
        fast_path = session.fast_path
        self.known = fast_path.learn_request(frame, made, route, seen)
        if fast_path.disabled:
            session.requests.learn = session.responses.learn = None

    def taken(self, frame: bytes) -> None:
        session = self.session
        if session.life.serves:
            session.count_request(len(frame) + 4)
        session.local_requests.handle(frame)

    def refused(self, frame: bytes, error: NameRefused | ResponseRefused) -> None:
        self.session.count_request(len(frame) + 4)
        self.session.local_requests.refuse(frame, error)


class _ResponseHandler:
    """Handles frames from the broker."""

    __slots__ = ("route", "session", "size")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.route: Route | None = None
        self.size = 0

    def begin(self, correlation_id: int, size: int) -> Program | Action:
        session = self.session
        in_flight = session.in_flight
        if in_flight and in_flight[0][1] is None:
            session.flush()
        if not in_flight or in_flight[0][0] != correlation_id:
            expected = in_flight[0][0] if in_flight else "nothing"
            raise ResponseUnexpected(actual=f"correlation id {correlation_id}", expected=expected)
        _, route, _, _, then, _ = in_flight[0]
        assert route is not None, "local responses have been flushed"
        self.route = route
        self.size = size
        if then is not None:
            return TAKE
        if route.has_topic_ids or route.lists_brokers:
            names = session.learning_inward
            names.lists_brokers = route.lists_brokers
            names.needs_brokers = route.lists_brokers and route.has_topic_ids
            session.responses.names = names
        else:
            session.responses.names = session.inward
        return route.response

    def end(self, seen: Observations | None) -> None:
        session, route = self.session, self.route
        assert route is not None
        _, _, started, sent, _, known = session.in_flight.popleft()
        usage = session.usage
        usage.bytes_out += self.size + 4
        if seen is not None:
            session.observed(route, observed_in_request(sent, known), seen, _clock() - started)
        elif route.counts_service_time:
            usage.service_seconds += _clock() - started

    def learn(self, frame: tuple[bytes, int, int], made: bytes, seen: Observations) -> None:
        del seen
        session = self.session
        known = session.in_flight[0][5]
        if known is not None:
            session.fast_path.learn_response(frame, made, known)

    def taken(self, frame: bytes) -> None:
        session = self.session
        _, _, started, _, then, _ = session.in_flight.popleft()
        assert then is not None
        session.usage.service_seconds += _clock() - started
        response = then(frame)
        if response is not None:
            session.usage.bytes_out += len(response)
            session.to_client.append(response)

    def refused(self, frame: bytes, error: NameRefused | ResponseRefused) -> None:
        raise error


class Session:
    """A client's connection: an asyncio protocol without the base class, which mypyc cannot compile."""

    __slots__ = (
        "active", "add_throttle_time", "broker", "broker_transport", "context", "fast_path", "in_flight",
        "in_flight_max", "inward", "last_active", "learning_inward", "life", "limits", "local_requests",
        "number", "outward", "pauses", "request_handler", "requests", "responses", "sample", "server",
        "sni_tenant", "to_broker", "to_client", "transport", "unknown_ids", "upstream", "usage",
    )  # fmt: skip

    def __init__(self, server: Gateway, number: int, address: str, broker: Broker | None) -> None:
        self.server = server
        self.number = number
        self.life = Life(address)
        self.broker = broker  # None until SNI or the login selects one
        self.sni_tenant = ""  # empty unless the SNI host name selects a tenant
        self.usage = server.anonymous_usage
        self.in_flight_max = server.settings.bounds.in_flight_max
        self.last_active = server.now()
        self.active = True  # since the last sweep
        self.pauses = 0
        self.transport: asyncio.Transport | None = None
        self.upstream: Upstream | None = None
        self.broker_transport: asyncio.Transport | None = None  # the upstream's
        self.unknown_ids: UnknownIds | None = None  # in requests, once linked to a broker
        self.context: TenantContext | None = None
        self.sample: ConnectionSample | None = None  # if the tenant's requests are sampled
        self.add_throttle_time: Callable[[list[Buffer]], list[Buffer]] | None = None  # to responses
        self.in_flight: deque[InFlight] = deque()
        self.to_broker: list[Buffer] = []
        self.to_client: list[Buffer] = []
        self.request_handler = _RequestHandler(self)
        bounds = server.settings.bounds
        self.limits = Limits(bounds.frame_bytes_max, bounds.held_bytes_max)
        self.requests = Requests(self.request_handler, Names(), self.limits)
        self.local_requests = LocalRequests(self)

    # The client's side: asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass
        if self.life.state is State.CLOSED:  # the handshake timed out meanwhile
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=self.server.settings.bounds.write_buffer_bytes_max)
        self.server.accepted(self)

    def data_received(self, data: bytes) -> None:
        self.active = True
        out = self.to_broker = []
        try:
            self.requests.feed(data, out)
        except PenstockError as failure:
            self.fail(failure)
            return
        self._send(out)

    def _send(self, out: list[Buffer]) -> None:
        if out:
            self.send(out)
        unknown_ids = self.unknown_ids
        if unknown_ids is not None and unknown_ids.ids and self.requests.between_frames:
            self.local_requests.look_up_topic_ids()

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        self.pause(CLIENT_FULL)
        if self.upstream is not None and self.upstream.transport is not None:
            self.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.upstream is not None and self.upstream.transport is not None:
            self.upstream.transport.resume_reading()
        self.unpause(CLIENT_FULL)

    def connection_lost(self, failure: Exception | None) -> None:
        del failure
        self.life = advance(self.life, Event.CLOSE)
        if self.upstream is not None:
            self.upstream.close()
        self.local_requests.stop()
        self.server.session_closed(self)

    # The broker's side

    def link(self, upstream: Upstream, context: TenantContext) -> None:
        """Join the client to its broker connection; from here on bytes flow both ways."""
        self.upstream = upstream
        self.context = context
        sessions: dict[int, None] = {}
        fetching = context.fetch_sessions(upstream.broker.id)
        self.outward = Outward(context, sessions, fetching)
        self.inward = Inward(context, sessions, fetching)
        self.learning_inward = LearningInward(context, sessions, fetching)
        self.unknown_ids = self.inward.unknown_ids = self.learning_inward.unknown_ids = (
            self.outward.unknown_ids
        )
        self.requests.names = self.server.outward_names(self.outward)
        response_handler = _ResponseHandler(self)
        self.responses = Responses(response_handler, self.inward, self.limits)
        self.fast_path = SessionFastPath(self)
        self.limit_requests(self.limits)
        self.requests.fast_path, self.requests.learn = self.fast_path.pass_request, self.request_handler.learn
        self.responses.fast_path, self.responses.learn = self.fast_path.pass_response, response_handler.learn
        self.request_handler.routes = routes(restricted=context.restricted)
        self.server.sampling.attach(self, context.tenant)
        upstream.on_backpressure = self.broker_backpressure
        upstream.on_close = self.broker_lost
        upstream.hand_over(self.from_broker)
        assert upstream.transport is not None
        self.broker_transport = upstream.transport
        upstream.transport.set_write_buffer_limits(high=self.server.settings.bounds.write_buffer_bytes_max)
        self.life = advance(self.life, Event.LINKED)

    def limit_requests(self, limits: Limits) -> None:
        """Refuse larger requests, on the fast path too."""
        self.requests.limits = limits
        self.fast_path.whole_bytes_max = min(limits.whole_bytes_max, limits.frame_bytes_max)

    def from_broker(self, data: bytes) -> None:
        out = self.to_client = []
        try:
            self.responses.feed(data, out)
            if self.in_flight and self.in_flight[0][1] is None:
                self.flush()
        except PenstockError as failure:
            self.write(out)
            self.fail(failure)
            return
        if out:
            self.write(out)
        if self.pauses:
            self.responses_sent()

    def broker_backpressure(self, full: bool) -> None:
        if full:
            self.pause(BROKER_FULL)
        else:
            self.unpause(BROKER_FULL)

    def broker_lost(self, failure: Exception | None) -> None:
        del failure
        if self.life.state is not State.CLOSED:
            self.close("the broker closed its connection")
        assert self.upstream is not None
        self.server.upstream_closed(self.upstream)

    # Writing

    def send(self, out: list[Buffer]) -> None:
        """Write to the broker."""
        transport = self.broker_transport
        if transport is None or transport.is_closing():
            return
        _write(transport, out)

    def write(self, out: list[Buffer]) -> None:
        """Write to the client."""
        transport = self.transport
        if not out or transport is None or transport.is_closing():
            return
        _write(transport, out if self.add_throttle_time is None else self.add_throttle_time(out))

    def respond(self, frame: bytes) -> None:
        """Send a response made by the gateway, after those still in flight."""
        if self.sample is not None:
            self.sample.record_local_response(frame)
        self.usage.bytes_out += len(frame)
        if not self.in_flight:
            self.write([frame])
            return
        self.in_flight.append((0, None, 0.0, frame, None, None))
        if len(self.in_flight) >= self.in_flight_max:
            self.pause(IN_FLIGHT)

    def flush(self) -> None:
        """Move local responses that are due next to `to_client`."""
        in_flight = self.in_flight
        while in_flight and in_flight[0][1] is None:
            self.to_client.append(in_flight.popleft()[3])

    def forward(
        self, frame: bytes, correlation_id: int, route: Route, then: OnResponse | None = None
    ) -> None:
        """Send a request that the gateway built. Inside a feed it joins the bytes being sent."""
        self.in_flight.append((correlation_id, route, _clock(), None, then, None))
        self.to_broker.append(frame)

    # Pausing the client

    def pause(self, reason: int) -> None:
        if not self.pauses & ~DRAINING:  # a draining client is read to the end of its frame
            self.stop_reading()
        self.pauses |= reason

    def stop_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def unpause(self, reason: int) -> None:
        if not self.pauses & reason:
            return
        self.pauses &= ~reason
        if self.pauses and not (self.pauses == DRAINING and not self.requests.between_frames):
            return
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.resume_reading()
        out = self.to_broker = []
        try:
            self.requests.resume(out)
        except PenstockError as failure:
            self.fail(failure)
            return
        self._send(out)

    def responses_sent(self) -> None:
        """Resume a client whose in-flight queue has shrunk; close a drained one."""
        if self.pauses & IN_FLIGHT and len(self.in_flight) <= self.in_flight_max // 2:
            self.unpause(IN_FLIGHT)
        if self.pauses & DRAINING and not self.in_flight and self.requests.between_frames:
            self.close("drained")

    # Overridden by `ThrottledSession`

    def count_request(self, size: int) -> None:
        usage = self.usage
        usage.requests += 1
        usage.bytes_in += size

    def is_throttled(self) -> bool:
        """Whether the tenant has exhausted any of its limits."""
        return False

    def queue_if_throttled(self, api_key: int, size: int) -> bool:
        """Queue the next frame if its limit is exhausted; returns whether it was queued."""
        del api_key, size
        return False

    def throttle_seconds(self) -> float:
        """How long this client will still not be read because of its quota."""
        return 0.0

    def drain(self) -> None:
        """Accept no new requests; close when all in flight have their response."""
        self.life = advance(self.life, Event.DRAIN)
        if self.life.state is State.CLOSED:
            self.close("drained")
            return
        if self.requests.between_frames:
            self.pause(DRAINING)
        else:
            self.pauses |= DRAINING  # the current frame is read to its end, the next one is held
        self.responses_sent()

    # Exceptions

    def unrouted(self, api_key: int, version: int, size: int) -> Action:
        """Handle a request without a route: before login, or of an unknown version."""
        bound = self.server.settings.bounds.unauthenticated_bytes_max
        if size > bound:
            raise RequestFrameTooLarge(size=size, limit=bound)
        if api_key == API_VERSIONS or (api_key in BEFORE_LOGIN and not self.life.serves):
            return TAKE
        reason = "the API is not served" if self.life.serves else "it came before login"
        self.server.denied(self, Denial.API_REFUSED, api=api_key)
        raise RequestFrameMalformed(api=api_key, version=version, reason=reason)

    def observed(self, route: Route, sent: Observations | None, seen: Observations, seconds: float) -> None:
        """Act on fields observed in a response: acknowledged offsets, deleted topics."""
        assert self.context is not None
        if not route.produces:
            self.usage.service_seconds += seconds
            for name, _, error in seen:
                if not error and name is not None:
                    self.context.topics.forget(name)
            self.deleted(seen)
            return
        assert sent is not None
        acks = sent[0][0]
        if acks == 1:  # with acks=all the broker waits for its followers
            self.usage.service_seconds += seconds
        ids = None if route.by_id else self.context.topics.by_name
        self.server.acks.record(acks, sent[1:], seen, ids, int(time.time()))

    def deleted(self, seen: Observations) -> None:
        """Called with the result of DeleteTopics."""

    def broker_denial(self, principal: Principal) -> Denial | None:
        """Why the broker cannot take a successful login now, if so."""
        del principal
        return None

    def broker_limits_changed(self) -> None:
        """Called when limits of the session's broker begin or cease to apply."""

    def fail(self, failure: PenstockError) -> None:
        """Count the failure and close: these bytes cannot be passed on."""
        if isinstance(failure, RequestFrameTooLarge):
            reason = Denial.TOO_LARGE
        elif failure.fault is Fault.CALLER:
            reason = Denial.MALFORMED
        else:
            reason = Denial.UPSTREAM
        self.server.denied(self, reason, error=failure)
        self.close(str(failure))

    def close(self, reason: str) -> None:
        """Close after flushing what was written."""
        self.life = advance(self.life, Event.CLOSE, close_reason=reason)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self, reason: str) -> None:
        self.life = advance(self.life, Event.CLOSE, close_reason=reason)
        if self.transport is not None:
            self.transport.abort()


def _write(transport: asyncio.Transport, out: list[Buffer]) -> None:
    """Write; a few small buffers are joined, which saves a system call or a TLS record."""
    if len(out) == 1:
        transport.write(out[0])
    elif sum(map(len, out)) <= JOINED_BYTES_MAX:
        transport.write(b"".join(out))
    else:
        transport.writelines(out)
