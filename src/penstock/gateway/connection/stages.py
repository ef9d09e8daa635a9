"""The stages that every frame passes, in order.

A request: back-pressure, quota, route, rename, count and charge, sample, queue.
A response: match, rename, count, evidence (acknowledged offsets), sample; `Connection` marks throttled ones.

`Requests` and `Responses` of `penstock.wire.splice` call `begin` when a frame starts and `end` when it has
been rewritten. A frame that the fast path recognises passes the same stages in `FastPath`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.connection.in_flight import InFlight
from penstock.gateway.connection.large_requests import LARGE_REQUEST_BYTES_MIN
from penstock.gateway.connection.large_responses import LARGE_BYTES_MIN
from penstock.gateway.connection.muting import charge_partitions
from penstock.gateway.connection.routes import API_VERSIONS, BEFORE_LOGIN
from penstock.gateway.connection.states import BROKER_SLICE, CLIENT_SLICE, NO_NEW_FRAMES
from penstock.gateway.limits.admission import Denial
from penstock.model.errors import Fault
from penstock.model.errors.gateway import ResponseUnexpected, TooManyEarlyRequests
from penstock.model.errors.plans import RequestElementsTooMany, RequestFrameMalformed, RequestFrameTooLarge
from penstock.wire.splice import HOLD, TAKE, Program, spliced

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.fast_path import CachedRequest
    from penstock.gateway.connection.routes import Route
    from penstock.gateway.tenancy.tenant_names import Inward
    from penstock.model.errors import PenstockError
    from penstock.wire.splice import Action, Observations, Refusal


class RequestStages:
    """Frames from the client."""

    __slots__ = ("cached", "connection", "correlation_id", "route", "size")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.route: Route | None = None  # of the current frame
        self.cached: CachedRequest | None = None  # if it was just learned
        self.correlation_id = 0
        self.size = 0

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program | Action:
        connection = self.connection
        if connection.pauses & NO_NEW_FRAMES:
            return HOLD
        throttle = connection.throttle
        if throttle is not None and throttle.exhausted() and connection.queued(throttle, api_key, size + 4):
            return HOLD
        route = self.route = connection.routes.get((api_key, version))
        self.correlation_id = correlation_id
        self.size = size + 4
        if route is None:
            return self._unrouted(api_key, version, size)
        if size > route.request_bytes_max:
            raise RequestFrameTooLarge(size=size, limit=route.request_bytes_max)
        if size > LARGE_REQUEST_BYTES_MIN and route.produces and not connection.large_requests.reserve(size):
            return HOLD
        return route.request

    def end(self, seen: Observations | None) -> None:
        """The request has been rewritten and is on its way."""
        connection, route = self.connection, self.route
        assert route is not None
        silent = seen is not None and seen[0][0] == 0  # acks=0: no response will come
        self._count(silent=silent)
        if self.size > LARGE_REQUEST_BYTES_MIN and route.produces:
            connection.large_requests.release()
        cached, self.cached = self.cached, None
        if silent:
            return
        entry = InFlight(self.correlation_id, route, connection.now, seen)
        if cached is not None and seen is not None:
            entry.cached = cached
            row = seen[1]
            entry.record_bytes, entry.last_offset_delta, entry.max_timestamp = row[2], row[3], row[4]
        connection.enqueue(entry)

    def taken(self, frame: bytes) -> None:
        """The gateway handles this request itself."""
        connection = self.connection
        if connection.throttle is not None:
            self._count()
        connection.local_requests.handle(frame, self.route)

    def refused(self, frame: bytes, error: Refusal) -> None:
        self._count()
        self.connection.local_requests.refuse(frame, error)

    def sliced(self) -> None:
        self.connection.pause(CLIENT_SLICE)

    def learn(self, frame: tuple[bytes, int, int], made: bytes, seen: Observations) -> None:
        connection, route = self.connection, self.route
        assert route is not None
        fast_path = connection.fast_path
        self.cached = fast_path.learn_request(frame, made, route, seen)
        if fast_path.disabled:
            connection.requests.learn = connection.responses.learn = None

    def _unrouted(self, api_key: int, version: int, size: int) -> Action:
        """Handle a request without a route: before login, or of an unknown version."""
        connection = self.connection
        bound = connection.services.bounds.unauthenticated_bytes_max
        if size > bound:
            raise RequestFrameTooLarge(size=size, limit=bound)
        if not connection.life.serves:
            connection.early_requests += 1
            most = connection.services.bounds.unauthenticated_requests_max
            if connection.early_requests > most:
                connection.deny(Denial.EARLY_REQUESTS, api=api_key)
                raise TooManyEarlyRequests(limit=most)
        if api_key == API_VERSIONS or (api_key in BEFORE_LOGIN and not connection.life.serves):
            return TAKE
        reason = "the API is not served" if connection.life.serves else "it came before login"
        connection.deny(Denial.API_REFUSED, api=api_key)
        raise RequestFrameMalformed(api=api_key, version=version, reason=reason)

    def _count(self, *, silent: bool = False) -> None:
        connection, throttle = self.connection, self.connection.throttle
        assert throttle is not None
        throttle.count(self.size, connection.now)
        if connection.sample is not None and self.route is not None:
            connection.sample.record_request(self.route, self.correlation_id, self.size, silent=silent)


class ResponseStages:
    """Frames from the broker."""

    __slots__ = ("connection", "route", "size")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.route: Route | None = None  # of the current frame
        self.size = 0

    def begin(self, correlation_id: int, size: int) -> Program | Action:
        connection = self.connection
        in_flight = connection.in_flight
        connection.flush()
        if not in_flight or in_flight[0].correlation_id != correlation_id:
            expected = in_flight[0].correlation_id if in_flight else "nothing"
            raise ResponseUnexpected(actual=f"correlation id {correlation_id}", expected=expected)
        entry = in_flight[0]
        route = self.route = entry.route
        assert route is not None, "local responses have been flushed"
        self.size = size + 4
        connection.responded(entry, self.size)
        if size > LARGE_BYTES_MIN and not connection.large_responses.reserve(entry, size):
            return HOLD
        if entry.then is not None or route.deletes_topics:
            return TAKE
        choose_names(self.connection, route)
        return route.response

    def end(self, seen: Observations | None) -> None:
        """The response has been rewritten."""
        connection, route = self.connection, self.route
        assert route is not None
        entry = connection.in_flight.popleft()
        connection.usage.bytes_out += self.size
        if self.size > LARGE_BYTES_MIN:
            connection.large_responses.written()
        error: int | None = None
        if seen is not None:
            self._observed(route, entry.observed_in_request(), seen)
            error = _first_error(seen)
        if connection.sample is not None:
            connection.sample.record_response(entry.correlation_id, self.size, entry.seconds, error)

    def sliced(self) -> None:
        self.connection.pause(BROKER_SLICE)

    def learn(self, frame: tuple[bytes, int, int], made: bytes, seen: Observations) -> None:
        del seen
        connection = self.connection
        cached = connection.in_flight[0].cached
        if cached is not None:
            connection.fast_path.learn_response(frame, made, cached)

    def taken(self, frame: bytes) -> None:
        """A response to a request that the gateway built, or to DeleteTopics."""
        connection = self.connection
        entry = connection.in_flight.popleft()
        if self.size > LARGE_BYTES_MIN:
            connection.large_responses.written()
        seen: Observations = []
        response = self._deleted(frame, seen) if entry.then is None else entry.then(frame)
        if response is not None:
            connection.usage.bytes_out += len(response)
            connection.to_client.append(response)
            if connection.sample is not None:
                error = _first_error(seen)
                connection.sample.record_response(entry.correlation_id, len(response), entry.seconds, error)

    def _observed(self, route: Route, sent: Observations | None, seen: Observations) -> None:
        """Act on fields observed in a response: acknowledged offsets, deleted topics and records."""
        connection = self.connection
        context, throttle = connection.context, connection.throttle
        assert context is not None
        assert throttle is not None
        principal, intents = connection.life.principal, connection.services.intents
        if route.deletes_records:
            assert principal is not None
            for name, partition, error, before in seen:
                if not error and name is not None:
                    intents.records_deleted(principal, name.decode(), partition, before)
            return
        if not route.produces:
            names = [name for name, _, error in seen if not error and name is not None]
            for name in names:
                context.topics.forget(name)
                context.reservations.deleted(name[len(context.prefix) :].decode())
                assert principal is not None
                intents.intended(principal, "topic-delete", name.decode())
            deleted = throttle.deleted(names)
            wait = throttle.spend_changes(float(deleted), connection.now)
            charge_partitions(connection, deleted, wait)
            return
        assert sent is not None
        ids = None if route.by_id else context.topics.by_name
        connection.services.acks.record(sent[0][0], sent[1:], seen, ids)

    def _deleted(self, frame: bytes, seen: Observations) -> bytes:
        """The response to DeleteTopics. Only its end shows how long the client is muted for it, and the wait
        is at its beginning: so it is rewritten twice.
        """
        connection, route = self.connection, self.route
        assert route is not None
        assert isinstance(route.response, Program)
        whole = len(frame).to_bytes(4, "big") + frame
        choose_names(connection, route)
        spliced(route.response, connection.responses.names, whole, seen)
        self._observed(route, None, seen)
        choose_names(connection, route)
        return spliced(route.response, connection.responses.names, whole)

    def refused(self, frame: bytes, error: Refusal) -> None:
        raise error


def choose_names(connection: Connection, route: Route) -> None:
    """Select what renames the next response."""
    if route.has_topic_ids or route.lists_brokers:
        names: Inward = connection.learning_inward
        names.lists_brokers = route.lists_brokers
        names.needs_brokers = route.lists_brokers and route.has_topic_ids
    else:
        names = connection.inward
    throttle = connection.throttle
    names.wait_ms = (
        0 if throttle is None or not throttle.marks() else throttle.wait_ms(route.api, connection.now)
    )
    connection.responses.names = names


def _first_error(seen: Observations) -> int | None:
    """Produce and DeleteTopics have one in each row."""
    return next((row[2] for row in seen if row[2]), None)


def denial_of(failure: PenstockError) -> Denial:
    """How a failure that closes a connection is counted."""
    if isinstance(failure, RequestFrameTooLarge):
        return Denial.TOO_LARGE
    if isinstance(failure, RequestElementsTooMany):
        return Denial.TOO_MANY_ELEMENTS
    return Denial.MALFORMED if failure.fault is Fault.CALLER else Denial.UPSTREAM
