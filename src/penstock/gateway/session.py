"""One client's connection: its two directions, and what stands between a request and its answer.

`Session` is the client's protocol for asyncio; the broker's is `upstream.Upstream`. Bytes go through
two splicers. `_Asking` is told of requests as they begin and end, `_Answering` of answers. Between
them is one queue in the order of requests: what was forwarded waits in it for the broker's answer,
what is answered here stands in it with its answer, so that a client gets its answers in order
however they came about.

Back pressure: whoever cannot write stops the other side from reading. A client is also not read
while one of its requests is being worked on here, and while too many of them are in flight.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.gateway.admission import Denial
from penstock.gateway.dialogue import Dialogue
from penstock.gateway.repeats import Repeats, facts
from penstock.gateway.routes import API_VERSIONS, BEFORE_LOGIN, Route, routes
from penstock.gateway.states import (
    BROKER_FULL,
    CLIENT_FULL,
    DRAINING,
    IN_FLIGHT,
    NOT_NOW,
    Event,
    Life,
    State,
    advance,
)
from penstock.gateway.tenancy import Inward, Outward, Teaching
from penstock.model.errors import Fault, PenstockError
from penstock.model.errors.gateway import AnswerUnexpected
from penstock.model.errors.plans import FrameMalformed, FrameTooLarge, NameRefused
from penstock.wire.names import Names
from penstock.wire.splice import HOLD, TAKE, Limits, Requests, Responses

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.gateway.config import Broker, Holder
    from penstock.gateway.repeats import Known
    from penstock.gateway.sampling import Witness
    from penstock.gateway.server import Gateway
    from penstock.gateway.tenancy import Realm
    from penstock.gateway.topics import Misses
    from penstock.gateway.upstream import Upstream
    from penstock.model.errors.plans import AnswerRefused
    from penstock.wire.splice import Action, Buffer, Program, Seen

    Then = Callable[[bytes], bytes | None]
    # correlation id, route, when it was sent, what was seen in it, what to do with its answer, and
    # what it is known as if it is known by heart; then all that was seen is the last offset delta.
    # A request that was answered here has no route, and its answer in the place of what was seen.
    Waiting = tuple[int, Route | None, float, Any, "Then | None", "Known | None"]

JOINED_BYTES_MAX: Final = 32 * 1024

_clock: Final = time.perf_counter


class _Asking:
    """Requests, from the client."""

    __slots__ = ("correlation_id", "known", "route", "routes", "session", "size")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.routes: dict[tuple[int, int], Route] = {}  # none before the login
        self.route: Route | None = None
        self.known: Known | None = None  # the request at hand, if it was just learned
        self.correlation_id = 0
        self.size = 0

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program | Action:
        session = self.session
        if session.pauses & NOT_NOW:
            session.hold()
            return HOLD
        if session.gated() and session.waits(api_key, size + 4):
            return HOLD
        route = self.routes.get((api_key, version))
        if route is None:
            return session.unusual(api_key, version, size)
        self.route = route
        self.correlation_id = correlation_id
        self.size = size
        return route.request

    def end(self, seen: Seen | None) -> None:
        session, route = self.session, self.route
        usage = session.usage
        usage.requests += 1
        usage.bytes_in += self.size + 4
        session.counted(self.size + 4)
        known, self.known = self.known, None
        if seen is not None and seen[0][0] == 0:
            return  # acks=0: there will be no answer
        waiting = session.waiting
        if known is None or seen is None:
            waiting.append((self.correlation_id, route, _clock(), seen, None, None))
        else:
            waiting.append((self.correlation_id, route, _clock(), seen[1][3], None, known))
        if len(waiting) >= session.in_flight_max:
            session.pause(IN_FLIGHT)

    def learn(self, frame: tuple[bytes, int, int], made: bytes, seen: Seen) -> None:
        session, route = self.session, self.route
        assert route is not None
        repeats = session.repeats
        self.known = repeats.learn_request(frame, made, route, seen)
        if repeats.gives_up:
            session.requests.learn = session.responses.learn = None

    def taken(self, frame: bytes) -> None:
        session = self.session
        if session.life.serves:
            session.usage.requests += 1
            session.usage.bytes_in += len(frame) + 4
            session.counted(len(frame) + 4)
        session.dialogue.take(frame)

    def refused(self, frame: bytes, error: NameRefused | AnswerRefused) -> None:
        session = self.session
        session.usage.requests += 1
        session.usage.bytes_in += len(frame) + 4
        session.counted(len(frame) + 4)
        session.dialogue.refuse(frame, error)


class _Answering:
    """Answers, from the broker."""

    __slots__ = ("route", "session", "size")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.route: Route | None = None
        self.size = 0

    def begin(self, correlation_id: int, size: int) -> Program | Action:
        session = self.session
        waiting = session.waiting
        if waiting and waiting[0][1] is None:
            session.flush()
        if not waiting or waiting[0][0] != correlation_id:
            expected = waiting[0][0] if waiting else "nothing"
            raise AnswerUnexpected(found=f"correlation id {correlation_id}", expected=expected)
        _, route, _, _, then, _ = waiting[0]
        assert route is not None, "answers of our own have been flushed"
        self.route = route
        self.size = size
        if then is not None:
            return TAKE
        if route.teaches or route.lists:
            names = session.teaching
            names.lists_brokers = route.lists
            names.needs_brokers = route.lists and route.teaches
            session.responses.names = names
        else:
            session.responses.names = session.inward
        return route.response

    def end(self, seen: Seen | None) -> None:
        session, route = self.session, self.route
        assert route is not None
        _, _, started, sent, _, known = session.waiting.popleft()
        usage = session.usage
        usage.bytes_out += self.size + 4
        if seen is not None:
            session.watched(route, facts(sent, known), seen, _clock() - started)
        elif route.timed:
            usage.service_seconds += _clock() - started

    def learn(self, frame: tuple[bytes, int, int], made: bytes, seen: Seen) -> None:
        del seen
        session = self.session
        known = session.waiting[0][5]
        if known is not None:
            session.repeats.learn_answer(frame, made, known)

    def taken(self, frame: bytes) -> None:
        session = self.session
        _, _, started, _, then, _ = session.waiting.popleft()
        assert then is not None
        session.usage.service_seconds += _clock() - started
        answer = then(frame)
        if answer is not None:
            session.usage.bytes_out += len(answer)
            session.to_client.append(answer)

    def refused(self, frame: bytes, error: NameRefused | AnswerRefused) -> None:
        raise error


class Session:
    """A client's connection: asyncio's protocol without its base, which cannot be compiled with it."""

    __slots__ = (
        "active", "asking", "began", "broker", "broker_transport", "dialogue", "in_flight_max", "inward",
        "life", "limits", "mark", "misses", "number", "outward", "pauses", "realm", "repeats", "requests",
        "responses", "server", "teaching", "tenant_wanted", "to_broker", "to_client", "transport", "upstream",
        "usage", "waiting", "witness",
    )  # fmt: skip

    def __init__(self, server: Gateway, number: int, address: str, broker: Broker | None) -> None:
        self.server = server
        self.number = number
        self.life = Life(address)
        self.broker = broker  # None until SNI or the login says which
        self.tenant_wanted = ""  # by SNI; empty if the host name names none
        self.usage = server.nobody
        self.in_flight_max = server.settings.bounds.in_flight_max
        self.began = server.now()
        self.active = True  # since the last sweep
        self.pauses = 0
        self.transport: asyncio.Transport | None = None
        self.upstream: Upstream | None = None
        self.broker_transport: asyncio.Transport | None = None  # the upstream's
        self.misses: Misses | None = None  # of the requests, once there is a broker
        self.realm: Realm | None = None
        self.witness: Witness | None = None  # of a tenant whose requests are sampled
        self.mark: Callable[[list[Buffer]], list[Buffer]] | None = None  # what answers are told besides
        self.waiting: deque[Waiting] = deque()
        self.to_broker: list[Buffer] = []
        self.to_client: list[Buffer] = []
        self.asking = _Asking(self)
        bounds = server.settings.bounds
        self.limits = Limits(bounds.frame_bytes_max, bounds.held_bytes_max)
        self.requests = Requests(self.asking, Names(), self.limits)
        self.dialogue = Dialogue(self)

    # asyncio's calls, for the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass
        if self.life.state is State.CLOSED:  # it took too long, and was given up meanwhile
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
        self._sent(out)

    def _sent(self, out: list[Buffer]) -> None:
        if out:
            self.send(out)
        misses = self.misses
        if misses is not None and misses.ids and self.requests.between_frames:
            self.dialogue.look_up()

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
        self.dialogue.stop()
        self.server.left(self)

    # The broker's side

    def link(self, upstream: Upstream, realm: Realm) -> None:
        """The broker is reached and knows us: from here on bytes go both ways."""
        self.upstream = upstream
        self.realm = realm
        sessions: dict[int, None] = {}
        fetching = realm.fetch_sessions(upstream.broker.id)
        self.outward = Outward(realm, sessions, fetching)
        self.inward = Inward(realm, sessions, fetching)
        self.teaching = Teaching(realm, sessions, fetching)
        self.misses = self.inward.misses = self.teaching.misses = self.outward.misses
        self.requests.names = self.server.outward_names(self.outward)
        answering = _Answering(self)
        self.responses = Responses(answering, self.inward, self.limits)
        self.repeats = Repeats(self)
        self.limit_requests(self.limits)
        self.requests.by_heart, self.requests.learn = self.repeats.asked, self.asking.learn
        self.responses.by_heart, self.responses.learn = self.repeats.answered, answering.learn
        self.asking.routes = routes(restricted=realm.restricted)
        self.server.samples.attach(self, realm.tenant)
        upstream.stall = self.broker_stalls
        upstream.resume = self.broker_lost
        upstream.hand_over(self.from_broker)
        assert upstream.transport is not None
        self.broker_transport = upstream.transport
        upstream.transport.set_write_buffer_limits(high=self.server.settings.bounds.write_buffer_bytes_max)
        self.life = advance(self.life, Event.LINKED)

    def limit_requests(self, limits: Limits) -> None:
        """What is larger is refused, whether or not its like is known by heart."""
        self.requests.limits = limits
        self.repeats.whole_bytes_max = min(limits.whole_bytes_max, limits.frame_bytes_max)

    def from_broker(self, data: bytes) -> None:
        out = self.to_client = []
        try:
            self.responses.feed(data, out)
            if self.waiting and self.waiting[0][1] is None:
                self.flush()
        except PenstockError as failure:
            self.write(out)
            self.fail(failure)
            return
        if out:
            self.write(out)
        if self.pauses:
            self.eased()

    def broker_stalls(self, full: bool) -> None:
        if full:
            self.pause(BROKER_FULL)
        else:
            self.unpause(BROKER_FULL)

    def broker_lost(self, failure: Exception | None) -> None:
        del failure
        if self.life.state is not State.CLOSED:
            self.close("the broker closed its connection")
        assert self.upstream is not None
        self.server.parted(self.upstream)

    # What goes where

    def send(self, out: list[Buffer]) -> None:
        """To the broker."""
        transport = self.broker_transport
        if transport is None or transport.is_closing():
            return
        _write(transport, out)

    def write(self, out: list[Buffer]) -> None:
        """To the client."""
        transport = self.transport
        if not out or transport is None or transport.is_closing():
            return
        _write(transport, out if self.mark is None else self.mark(out))

    def answer(self, frame: bytes) -> None:
        """An answer of our own, behind those that are still to come."""
        if self.witness is not None:
            self.witness.answered_here(frame)
        self.usage.bytes_out += len(frame)
        if not self.waiting:
            self.write([frame])
            return
        self.waiting.append((0, None, 0.0, frame, None, None))
        if len(self.waiting) >= self.in_flight_max:
            self.pause(IN_FLIGHT)

    def flush(self) -> None:
        """Our own answers that are next in line."""
        waiting = self.waiting
        while waiting and waiting[0][1] is None:
            self.to_client.append(waiting.popleft()[3])

    def forward(self, frame: bytes, correlation_id: int, route: Route, then: Then | None = None) -> None:
        """A request that was built here. Inside a feed it goes with what is being sent."""
        self.waiting.append((correlation_id, route, _clock(), None, then, None))
        self.to_broker.append(frame)

    # Whether the client is read

    def pause(self, reason: int) -> None:
        if not self.pauses & ~DRAINING:  # then it may still be read, to the end of a frame
            self.hold()
        self.pauses |= reason

    def hold(self) -> None:
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
        self._sent(out)

    def eased(self) -> None:
        """Answers have gone out: perhaps the client may be read again, or is done."""
        if self.pauses & IN_FLIGHT and len(self.waiting) <= self.in_flight_max // 2:
            self.unpause(IN_FLIGHT)
        if self.pauses & DRAINING and not self.waiting and self.requests.between_frames:
            self.close("drained")

    # What a session whose tenant has limits does besides

    def counted(self, size: int) -> None:
        """A request of so many bytes was counted."""

    def gated(self) -> bool:
        """Has the tenant used up any of its limits?"""
        return False

    def waits(self, api_key: int, size: int) -> bool:
        """The next frame is such a request: must it wait for its turn?"""
        del api_key, size
        return False

    def wait_seconds(self) -> float:
        """How long it is still not read, for having had too much."""
        return 0.0

    def drain(self) -> None:
        """Take nothing new; close when everything in flight is answered."""
        self.life = advance(self.life, Event.DRAIN)
        if self.life.state is State.CLOSED:
            self.close("drained")
            return
        if self.requests.between_frames:
            self.pause(DRAINING)
        else:
            self.pauses |= DRAINING  # the frame that has begun is still read, the next one is held
        self.eased()

    # What is out of the ordinary

    def unusual(self, api_key: int, version: int, size: int) -> Action:
        """A request that has no route: before the login, or of a version nobody knows."""
        bound = self.server.settings.bounds.unauthenticated_bytes_max
        if size > bound:
            raise FrameTooLarge(size=size, limit=bound)
        if api_key == API_VERSIONS or (api_key in BEFORE_LOGIN and not self.life.serves):
            return TAKE
        reason = "it is not served" if self.life.serves else "it came before a login"
        self.server.denied(self, Denial.API_REFUSED, api=api_key)
        raise FrameMalformed(api=api_key, version=version, reason=reason)

    def watched(self, route: Route, sent: Seen | None, seen: Seen, seconds: float) -> None:
        """What was seen in an answer that matters beyond its bytes."""
        assert self.realm is not None
        if not route.produces:
            self.usage.service_seconds += seconds
            for name, _, error in seen:
                if not error and name is not None:
                    self.realm.topics.forget(name)
            self.deleted(seen)
            return
        assert sent is not None
        acks = sent[0][0]
        if acks == 1:  # for acks=all the broker waits for others
            self.usage.service_seconds += seconds
        ids = None if route.by_id else self.realm.topics.by_name
        self.server.acks.answered(acks, sent[1:], seen, ids, int(time.time()))

    def deleted(self, seen: Seen) -> None:
        """Topics are gone: nothing to count here."""

    def held_off(self, holder: Holder) -> Denial | None:
        """A login was right; why its broker may not have it now, if it may not."""
        del holder
        return None

    def tune(self) -> None:
        """Its broker's limits begin or cease to hold: there are none here."""

    def fail(self, failure: PenstockError) -> None:
        """Bytes that cannot be passed on: nothing remains but to close."""
        if isinstance(failure, FrameTooLarge):
            reason = Denial.TOO_LARGE
        elif failure.fault is Fault.CALLER:
            reason = Denial.MALFORMED
        else:
            reason = Denial.UPSTREAM
        self.server.denied(self, reason, error=failure)
        self.close(str(failure))

    def close(self, why: str) -> None:
        """What was written still goes out."""
        self.life = advance(self.life, Event.CLOSE, why=why)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self, why: str) -> None:
        self.life = advance(self.life, Event.CLOSE, why=why)
        if self.transport is not None:
            self.transport.abort()


def _write(transport: asyncio.Transport, out: list[Buffer]) -> None:
    """Few small pieces are cheaper joined: one buffer for the kernel, one record for TLS."""
    if len(out) == 1:
        transport.write(out[0])
    elif sum(map(len, out)) <= JOINED_BYTES_MAX:
        transport.write(b"".join(out))
    else:
        transport.writelines(out)
