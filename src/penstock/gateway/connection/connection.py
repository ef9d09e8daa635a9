"""One client's connection to one broker: bytes in, bytes and effects out. No sockets, no clock, no tasks.

`from_client` and `from_broker` take what was read, with the time. They append what must be written to
`to_client` and `to_broker`, and anything rarer to `effects`. `process.session` is the asyncio side.

Bytes pass two splicers, which call `stages` as frames begin and end. Between them is one queue in request
order: a forwarded request waits there for the broker's response, and a response made by the gateway is queued
there too, so a client always receives its responses in order.

Back-pressure: when one side cannot be written to, the other is not read. A client is also not read while the
gateway works on one of its requests, while it waits for a quota, and while too many requests are in flight.

Processor time: one call does at most `SLICE_WORK`, and nothing at all while the tenant has used up its slice
of the event loop's time (`limits.ready_queue`). The rest is kept in order, and `next_slice` continues.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.effects import Close, Deny, LogIn
from penstock.gateway.connection.fast_path import FastPath
from penstock.gateway.connection.in_flight import InFlight, local_response
from penstock.gateway.connection.large_requests import LargeRequests
from penstock.gateway.connection.large_responses import FRAME_BYTES_MAX, LargeResponses
from penstock.gateway.connection.local_requests import LocalRequests
from penstock.gateway.connection.local_work import LocalWork
from penstock.gateway.connection.login import login_error, login_response
from penstock.gateway.connection.request_sampling import ConnectionSample
from penstock.gateway.connection.routes import Route, routes
from penstock.gateway.connection.stages import RequestStages, ResponseStages, denial_of
from penstock.gateway.connection.states import (
    BROKER_FULL,
    BROKER_SLICE,
    CLIENT_FULL,
    CLIENT_SLICE,
    CLOSED,
    DRAINING,
    HELD,
    IN_FLIGHT,
    LOCAL_WORK,
    MUTED,
    RESPONSE_MEMORY,
    SLICED,
    THROTTLED,
    Event,
    Life,
    State,
    advance,
)  # fmt: skip
from penstock.gateway.connection.throttle import Throttle
from penstock.gateway.connection.time_limits import close_overdue
from penstock.gateway.limits.admission import Denial
from penstock.gateway.tenancy.tenant_names import Inward, LearningInward, Outward
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import UpstreamUnreachable
from penstock.model.errors.plans import RequestFrameMalformed
from penstock.wire.names import Names
from penstock.wire.splice import Limits, Requests, Responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.config import Broker, GatewayConfig, Principal
    from penstock.gateway.connection.effects import Effect
    from penstock.gateway.connection.in_flight import OnResponse
    from penstock.gateway.connection.services import Owner, Services
    from penstock.gateway.limits.metering import Usage
    from penstock.gateway.limits.throttle_queue import ThrottleQueue
    from penstock.gateway.tenancy.tenant_names import TenantContext
    from penstock.gateway.tenancy.topic_ids import UnknownIds
    from penstock.wire.frames import Request
    from penstock.wire.splice import Buffer

RENEWED_AFTER: Final = 0.8  # of a login's lifetime: a request may be in flight when it ends
NEVER: Final = float("inf")
SLICE_WORK: Final = 64  # of one call, in units of `wire.splice`: a quarter of a millisecond


class Connection:
    """A client's connection, from accept to close. Every method that takes `now` may produce output."""

    __slots__ = (
        "_resumable", "active", "broker", "closed", "context", "early_requests", "effects", "fast_path",
        "held", "in_flight", "in_flight_max", "inward", "large_requests", "large_responses", "last_active",
        "learning_inward", "life", "limits", "local_requests", "now", "number", "outward", "pauses",
        "renew_at", "requests", "responded_at", "responses", "routes", "sample", "services", "throttle",
        "to_broker", "to_client", "unknown_ids", "usage", "waiter", "work",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        number: int,
        address: str,
        broker: Broker | None,
        usage: Usage,
        waiter: Owner,
        now: float,
    ) -> None:
        bounds = services.bounds
        self.services = services
        self.number = number
        self.broker = broker  # None until SNI or the login selects one
        self.usage = usage  # the tenant's after login
        self.waiter = waiter  # continues this connection when it has waited for a quota, and pauses it
        self.life = Life(address)
        self.closed = False
        self.now = self.last_active = now
        self.active = True  # since the last sweep
        self.pauses = 0
        self.in_flight: deque[InFlight] = deque()
        self.in_flight_max = bounds.in_flight_max
        self.responded_at = now  # when the broker's last response arrived
        self.to_broker: list[Buffer] = []
        self.to_client: list[Buffer] = []
        self.effects: list[Effect] = []
        self.limits = Limits(bounds.frame_bytes_max, bounds.held_bytes_max)
        self.requests = Requests(RequestStages(self), Names(), self.limits)
        self.requests.slice_work = SLICE_WORK
        self.routes: dict[tuple[int, int], Route] = {}  # empty before login
        self.local_requests = LocalRequests(self)
        self.work = LocalWork(self)
        self.context: TenantContext | None = None  # from login on, as the next
        self.throttle: Throttle | None = None
        self.sample: ConnectionSample | None = None  # if the tenant's requests are sampled
        self.unknown_ids: UnknownIds | None = None
        self.renew_at = NEVER  # when to log in to the broker again
        self.held = 0  # bytes of frames that are unfinished or wait
        self.large_requests = LargeRequests(self)
        self.large_responses = LargeResponses(self)
        self.early_requests = 0  # before login
        self._resumable = False  # something that prevented reading a frame is over

    # Bytes

    def from_client(self, data: bytes, now: float) -> None:
        if self.closed:
            return
        self.now = now
        self.active = True
        usage = self.usage
        if usage.processor_seconds >= usage.slice_ends_at or self.pauses & SLICED:
            self.requests.park(data)
            self.pauses |= CLIENT_SLICE
            self._count_held()
            return
        throttle = self.throttle
        if throttle is not None:
            throttle.expect(len(self.in_flight))
        try:
            self.requests.feed(data, self.to_broker)
        except PenstockError as failure:
            self.fail(failure)
            return
        self._requests_read()
        if self.held or self.requests.held_bytes:
            self._count_held()

    def _requests_read(self) -> None:
        throttle = self.throttle
        if throttle is not None:
            throttle.in_flight_before = len(self.in_flight)
            if not self.requests.between_frames:
                throttle.arrived(self.requests.arrived, self.now)
            self._look_up_ids()
            if self.pauses & DRAINING:
                self._responses_sent()

    def from_broker(self, data: bytes, now: float) -> None:
        if self.closed:
            return
        self.now = now
        usage = self.usage
        if usage.processor_seconds >= usage.slice_ends_at or self.pauses & BROKER_SLICE:
            self.responses.park(data)
            self.pauses |= BROKER_SLICE
            self._count_held()
            return
        try:
            self.responses.feed(data, self.to_client)
            self.flush()
        except PenstockError as failure:
            self.fail(failure)
        if self.pauses or self._resumable:
            self._responses_sent()
        if self.held or self.responses.held_bytes:
            self._count_held()

    def next_slice(self, now: float) -> None:
        """Continue with what was read before; `pauses` shows whether there is more."""
        if self.closed:
            return
        self.now = now
        sides = self.pauses & SLICED
        self.pauses &= ~SLICED
        try:
            if sides & BROKER_SLICE:
                self.responses.proceed(self.to_client)
                self.flush()
            if sides & CLIENT_SLICE:
                if self.throttle is not None:
                    self.throttle.expect(len(self.in_flight))
                self.requests.proceed(self.to_broker)
                self._requests_read()
        except PenstockError as failure:
            self.fail(failure)
        self._responses_sent()

    def _responses_sent(self) -> None:
        """Continue with a client whose in-flight queue has shrunk; close a drained one."""
        if self.closed:
            return
        if self.pauses & IN_FLIGHT and len(self.in_flight) <= self.in_flight_max // 2:
            self.unpause(IN_FLIGHT)
        self._resume()
        if not self.pauses & DRAINING or self.closed:
            return
        if not self.in_flight and not self.work.active and self.requests.between_frames:
            self.close("drained")

    # The queue

    def enqueue(self, entry: InFlight) -> None:
        self.in_flight.append(entry)
        if len(self.in_flight) >= self.in_flight_max:
            self.pauses |= IN_FLIGHT

    def respond(self, frame: bytes) -> None:
        """Send a response made by the gateway, after those still in flight."""
        if self.sample is not None:
            self.sample.record_response(int.from_bytes(frame[4:8], "big", signed=True), len(frame), None)
        self.usage.bytes_out += len(frame)
        if self.in_flight:
            self.enqueue(local_response(frame))
        else:
            self.to_client.append(frame)

    def flush(self) -> None:
        """Move local responses that are due next to `to_client`."""
        in_flight = self.in_flight
        while in_flight and in_flight[0].route is None:
            self.to_client.append(in_flight.popleft().response)

    def forward(
        self, frame: bytes, correlation_id: int, route: Route, then: OnResponse | None = None
    ) -> None:
        """Send a client's request that the gateway has rebuilt."""
        self.enqueue(InFlight(correlation_id, route, self.now, None, then))
        self.to_broker.append(frame)

    def request(self, frame: bytes, correlation_id: int, route: Route, then: Callable[[bytes], None]) -> None:
        """Send a request of the gateway's own, in order with the client's."""
        entry = InFlight(correlation_id, route, self.now, None, then)
        entry.own = True
        self.enqueue(entry)
        self.to_broker.append(frame)

    def responded(self, entry: InFlight, size: int) -> float:
        """Charge a response that arrives, once; returns the broker's time for it.

        A pipelined request is served after the one before it, so its time starts with that response. A
        response that arrives in pieces comes here with its first piece, and again if it takes the fast path.
        """
        if entry.seconds >= 0:
            return entry.seconds
        throttle, now, started = self.throttle, self.now, entry.sent_at
        assert throttle is not None, "a broker responds to linked connections only"
        if self.responded_at > started:
            started = self.responded_at
        self.responded_at = now
        throttle.received(size, now)
        entry.seconds = now - started
        if entry.counts_service_time():
            throttle.served(entry.seconds, now)
        return entry.seconds

    def waiting_since(self) -> float | None:
        """Since when the broker works on a request of this connection; None if on none, or on a long poll."""
        if not self.in_flight:
            return None
        first = self.in_flight[0]
        if first.route is None or not first.route.counts_service_time:
            return None
        return max(first.sent_at, self.responded_at)

    # Pauses of the client

    @property
    def reads_client(self) -> bool:
        """Whether the client's side should be read. A draining one is read to the end of its frame."""
        return not self.pauses or self._serves(self.pauses)

    def _serves(self, pauses: int) -> bool:
        return not pauses or (pauses == DRAINING and not self.requests.between_frames)

    @property
    def reads_broker(self) -> bool:
        if self.pauses & (CLIENT_FULL | BROKER_SLICE | RESPONSE_MEMORY):
            return False
        return not self.pauses & HELD or self.large_responses.bytes > 0  # these are reserved

    def pause(self, reason: int) -> None:
        self.pauses |= reason

    def unpause(self, reason: int) -> None:
        """Remove a reason; `_resume` continues with the frames it held."""
        if self.pauses & reason:
            self.pauses &= ~reason
            self._resumable = True

    def _resume(self) -> None:
        while self._resumable and self._serves(self.pauses & ~HELD) and not self.closed:
            self._resumable = False
            try:
                self.requests.resume(self.to_broker)
            except PenstockError as failure:
                self.fail(failure)
                return
        self._look_up_ids()
        self._count_held()

    def _look_up_ids(self) -> None:
        unknown_ids = self.unknown_ids
        if unknown_ids is not None and unknown_ids.ids and self.requests.between_frames:
            self.local_requests.look_up_topic_ids()

    def _count_held(self) -> None:
        held = self.requests.held_bytes
        if self.throttle is not None:
            held += max(0, self.responses.held_bytes - self.large_responses.bytes)
        if held != self.held:
            self.held = held
            self.services.held.count(self.waiter, self.usage if self.throttle else None, held, self.now)

    def hold(self, on: bool) -> None:
        """The tenant's connections hold too many bytes, or no longer do."""
        self.pauses = self.pauses | HELD if on else self.pauses & ~HELD

    def give_up(self, held: int, limit: int) -> None:
        """Close: a budget for unfinished frames is exceeded, and this one does not end."""
        if not self.closed:
            self.deny(Denial.HELD_BYTES, error=f"it holds {held} bytes of unfinished frames; limit {limit}")
            self.abort("it did not finish its frame")

    def client_full(self, full: bool, now: float) -> None:
        """The client does not read its responses, or reads them again."""
        self._toggle(CLIENT_FULL, full, now)
        self.large_responses.tick()

    def broker_full(self, full: bool, now: float) -> None:
        """The broker does not keep up, or does again."""
        self._toggle(BROKER_FULL, full, now)

    def _toggle(self, reason: int, on: bool, now: float) -> None:
        self.now = now
        if on:
            self.pause(reason)
        else:
            self.unpause(reason)
            self._resume()

    def reconfigure(self, config: GatewayConfig) -> None:
        """Apply a changed configuration."""
        if self.broker is not None:
            self.broker = config.broker_of.get(self.broker.id, self.broker)
        if self.context is not None:
            self.routes = routes(restricted=self.context.restricted)

    # Quota

    def queued(self, throttle: Throttle, api_key: int, size: int) -> bool:
        """Queue the next frame if a limit it uses is exhausted, unless it has passed here already."""
        if self.large_requests.waits or not throttle.holds(api_key, size, self.now):
            return False
        self.pause(THROTTLED)
        return True

    def proceed(self, queue: ThrottleQueue, now: float) -> None:
        """The next frame has waited in this queue for long enough."""
        self.now = now
        throttle = self.throttle
        assert throttle is not None, "only linked connections wait"
        throttle.proceeds(queue, len(self.in_flight))
        self.unpause(THROTTLED)
        self._resume()
        throttle.proceeded(len(self.in_flight))

    def broker_limits_changed(self, now: float) -> None:
        """Limits of the broker begin or cease to apply."""
        tuner, throttle = self.services.tuner, self.throttle
        if tuner is None or throttle is None or self.context is None:
            return
        throttle.share = tuner.share(self.broker, self.context.tenant.id, now)
        if throttle.share is not None:
            throttle.share.quota.throttled_seconds = throttle.quota.pressure_throttled_seconds

    # Login

    def accepted(self) -> None:
        """The TLS handshake, if any, is complete."""
        self.life = advance(self.life, Event.ACCEPTED)

    def log_in(self, request: Request) -> None:
        """Let the process authenticate the client; nothing more is read meanwhile."""
        if not self.life.serves and self.life.state is not State.HANDSHAKE:
            raise RequestFrameMalformed(
                api=request.api, version=request.version, reason="a login is in progress"
            )
        self.pause(LOCAL_WORK)
        self.effects.append(LogIn(request))

    def logged_in(self, principal: Principal, usage: Usage) -> None:
        """The login is accepted; `linked` follows when the broker is connected."""
        self.life = advance(self.life, Event.LOGGED_IN, principal=principal)
        self.usage = usage

    def linked(
        self, request: Request, context: TenantContext, broker: Broker, lifetime_ms: int, now: float
    ) -> None:
        """The broker is connected and logged in to; from here on bytes flow both ways."""
        self.now = now
        services, tenant = self.services, context.tenant
        self.context = context
        self.broker = broker
        quota = services.quotas.apply(tenant.id, tenant.quota, now)
        quota.bind(self.usage)
        self.usage.throttled_seconds = quota.throttled_seconds
        self.usage.pressure_throttled_seconds = quota.pressure_throttled_seconds
        self.usage.granted = quota.granted
        work = None if services.calibration is None else services.calibration.of(broker)
        self.throttle = Throttle(quota, self.usage, work, self.waiter)
        self.throttle.joins(broker, services.client_zones.of_address(self.life.address))
        self.broker_limits_changed(now)
        self._rename(context, int(broker.id))
        self.limit_requests(tenant.limits.request_bytes_max)
        self.hold(services.held.pauses(self.usage))
        self.routes = routes(restricted=context.restricted)
        self.broker_login_renewed(lifetime_ms)
        self.life = advance(self.life, Event.LINKED)
        self.respond(login_response(request))
        sampled = services.sampling.of(tenant)
        if sampled is not None:
            self.sample = ConnectionSample(self, sampled)
        self.unpause(LOCAL_WORK)
        self._resume()

    def _rename(self, context: TenantContext, broker: int) -> None:
        sessions: dict[int, None] = {}
        fetching = context.fetch_sessions(broker)
        outward = self.outward = Outward(context, sessions, fetching)
        self.inward = Inward(context, sessions, fetching)
        self.learning_inward = LearningInward(context, sessions, fetching)
        self.unknown_ids = self.inward.unknown_ids = self.learning_inward.unknown_ids = outward.unknown_ids
        assert self.throttle is not None
        outward.fetch_bytes_max = self.throttle.fetch_bytes_max
        fast_path = self.fast_path = FastPath(self, outward, self.throttle, self.services.acks)
        stages = ResponseStages(self)
        limits = Limits(FRAME_BYTES_MAX, self.services.bounds.response_bytes_max)
        self.responses = Responses(stages, self.inward, limits)
        self.responses.slice_work = SLICE_WORK
        self.responses.fast_path, self.responses.learn = fast_path.pass_response, stages.learn
        self.requests.names = self.services.names(outward)
        self.requests.fast_path, self.requests.learn = fast_path.pass_request, self.requests.handler.learn

    def limit_requests(self, largest: int | None) -> None:
        """Refuse larger requests, on the fast path too."""
        limits = self.limits
        if largest is not None:
            limits = Limits(min(largest, limits.frame_bytes_max), limits.held_bytes_max)
        self.requests.limits = limits
        self.fast_path.whole_bytes_max = min(limits.whole_bytes_max, limits.frame_bytes_max)

    def logged_in_again(self, request: Request, principal: Principal, now: float) -> None:
        """The client re-authenticated (KIP-368) as the same account; another one closes the connection."""
        self.now = now
        try:
            self.life = advance(self.life, Event.LOGGED_IN_AGAIN, principal=principal)
        except PenstockError as failure:
            self.deny(Denial.BAD_CREDENTIALS, error=failure)
            self.close(str(failure))
            return
        self.respond(login_response(request))
        self.unpause(LOCAL_WORK)
        self._resume()

    def login_rejected(self, request: Request, reason: Denial, *, silent: bool, seconds: float) -> None:
        """Refuse a login and close a little later, so that guessing takes time."""
        self.deny(reason)
        if not silent:
            self.respond(login_error(request))
        self.effects.append(Close(reason, seconds))

    def wants_broker_login(self, now: float) -> bool:
        """Whether it is time to log in to the broker again, and the connection can."""
        if now < self.renew_at or self.pauses & LOCAL_WORK or self.life.state is not State.SERVING:
            return False
        return self.requests.between_frames

    def broker_login_renewed(self, lifetime_ms: int) -> None:
        """The login is valid for so long; 0 means forever."""
        self.renew_at = self.now + lifetime_ms / 1000 * RENEWED_AFTER if lifetime_ms else NEVER

    def renew_broker_login(self, user: str, password: str, now: float) -> None:
        """Log in to the broker again before its login expires, in order with the client's requests.

        Clients are not involved: many never re-authenticate, and the broker would close their connections.
        """
        self.now = now
        # Queued after the client's requests, which may be a long poll or a group rebalance.
        self.work.start(self.local_requests.renew(user, password), self.services.bounds.idle_seconds)

    # Time

    def resolved(self, result: object, now: float) -> None:
        """A `Call` has returned a result, or failed with an exception."""
        self.now = now
        if self.work.active and not self.closed:
            self.work.resume(result)
            self._responses_sent()

    def tick(self, now: float) -> None:
        """End what has lasted its time: being muted, and work of the gateway."""
        self.now = now
        self.large_responses.tick()
        if self.closed:
            return
        if self.throttle is not None and self.throttle.muted_until and now >= self.throttle.muted_until:
            self.throttle.muted_until = 0.0
            self.unpause(MUTED)
            self._resume()
        if self.work.overdue(now):
            self.work.stop()
            number, address = ("?", "?") if self.broker is None else (self.broker.id, self.broker.address)
            self.fail(UpstreamUnreachable(broker=number, address=address, reason="no response in time"))

    def sweep(self, now: float) -> None:
        """Close what has taken too long. Called once a second."""
        self.tick(now)
        close_overdue(self, now)

    # Exceptions

    def drain(self, now: float) -> None:
        """Accept no new requests; close when all in flight have their response."""
        if self.closed:
            return
        self.now = now
        self.life = advance(self.life, Event.DRAIN)
        if self.life.state is State.CLOSED:
            self.close("drained")
            return
        self.pause(DRAINING)  # a frame that is being streamed is read to its end, the next one is held
        self._responses_sent()

    def deny(self, reason: Denial, *, api: object = None, error: object = None) -> None:
        self.effects.append(Deny(reason, api, error))

    def fail(self, failure: PenstockError) -> None:
        """Count the failure and close: these bytes cannot be passed on."""
        self.deny(denial_of(failure), error=failure)
        self.to_broker.clear()
        self.close(str(failure))

    def close(self, reason: str) -> None:
        """Close when what was written has been sent."""
        self._close(reason)
        self.effects.append(Close(reason))

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._close(reason)
        self.effects.append(Close(reason, at_once=True))

    def ended(self, now: float) -> None:
        """The client's side is gone."""
        self.now = now
        self._close("")
        if self.held:
            self.services.held.count(self.waiter, None if self.throttle is None else self.usage, 0, now)
        self.large_requests.release()
        self.large_responses.release()
        if self.throttle is not None:
            self.throttle.closed(now)
        if self.sample is not None:
            self.sample.closed()
        self.work.stop()
        self.local_requests.share_session.ended()

    def _close(self, reason: str) -> None:
        self.closed = True
        self.active = True  # from here on it has `CLOSING_SECONDS`
        self.pause(CLOSED)
        self.life = advance(self.life, Event.CLOSE, close_reason=reason)
