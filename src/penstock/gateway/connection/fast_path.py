"""The fast path of one connection: repeated Produce requests, and fetches that need no rewriting.

A cached Produce request is one whose shape `wire.produce_fast_path` recognised, together with its rewritten
head. A later request that differs only in correlation id and records gets the same head; its response
likewise. A fetch by topic ids needs no rewriting (`wire.fetch_fast_path`) while its ids and session are
known. Everything counted for a rewritten request is counted here as well. A frame that does not match in
every byte takes the normal path.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.in_flight import InFlight
from penstock.gateway.connection.routes import FETCH
from penstock.gateway.connection.states import NO_NEW_FRAMES
from penstock.gateway.limits.ack_ranges import CLOSED, OpenRange
from penstock.gateway.limits.metering import NEVER_REACHED
from penstock.gateway.tenancy.fetch_sessions import INITIAL_EPOCH
from penstock.wire.fetch_fast_path import (
    records_length,
    request_rack,
    request_session_at,
    response_session_at,
)
from penstock.wire.field_observer import BATCH_HEADER_BYTES
from penstock.wire.produce_fast_path import HEAD_AT, RESPONSE_AT, TAGS_EMPTY, request_shape, response_shape
from penstock.wire.splice import span

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.routes import Route
    from penstock.gateway.connection.throttle import Throttle
    from penstock.gateway.limits.ack_ranges import Acks
    from penstock.gateway.tenancy.tenant_names import Outward
    from penstock.wire.produce_fast_path import RequestShape
    from penstock.wire.splice import Buffer, Observations

CACHED_MAX: Final = 64  # per connection, about 300 bytes each: one per partition of one client
HEAD_LENGTHS_MAX: Final = 4  # each costs an unknown request one lookup
UNCACHEABLE_MAX: Final = 64  # requests of other shapes after which a connection is no longer learned from
_LENGTHS_BYTES: Final = 3  # of a record batch in a frame that is not streamed
_THROTTLE_AT: Final = 9  # in a fetch response: after size, correlation id and an empty list of tags
_BYTES_TO_SESSION: Final = 5  # from the largest size of a fetch to its session: size and isolation level

_request: Final = struct.Struct(">iIi").unpack_from
_response: Final = struct.Struct(">ii").unpack_from
_delta: Final = struct.Struct(">i").unpack_from
_batch: Final = struct.Struct(">i8xq").unpack_from  # last offset delta and largest timestamp
_offset: Final = struct.Struct(">q").unpack_from
_fetch_session: Final = struct.Struct(">ii").unpack_from
_tags: Final = TAGS_EMPTY
_empty: Final = len(TAGS_EMPTY)
_DELTA_AT: Final = BATCH_HEADER_BYTES - 20  # in a record batch
NO_RANGE: Final = OpenRange(0, CLOSED, 0, -1, 0)
_FETCH: Final = FETCH << 16  # API key and version as one number


class CachedRequest:
    """A Produce request seen before, and its response once there was one."""

    __slots__ = (
        "acks", "by_id", "growth", "head", "index", "log_start", "offset_at", "range", "range_id",
        "records_at", "renamed_head", "renamed_response_head", "response_head", "response_size",
        "response_start", "response_tail", "route", "tail_at", "topic", "version",
    )  # fmt: skip

    def __init__(self, shape: RequestShape, route: Route, head: bytes, renamed: bytes, topic: bytes) -> None:
        self.route = route
        self.version = route.version  # also API key and version as one number: Produce is API 0
        self.by_id = route.by_id
        self.acks = shape.acks
        self.index = shape.index
        self.records_at = shape.records_at
        self.topic = topic  # as the broker knows it
        self.head = head
        self.renamed_head = renamed
        self.growth = len(renamed) - len(head)
        self.response_size = -1  # none yet
        self.response_start = self.response_head = self.renamed_response_head = self.response_tail = b""
        self.offset_at = self.tail_at = self.log_start = 0
        self.range: OpenRange = NO_RANGE
        self.range_id: bytes | None = None


class FastPath:
    """Both directions of one connection."""

    __slots__ = (
        "acks", "by_head", "connection", "fetching", "head_lengths", "known", "known_ids", "rack_read",
        "sessions", "throttle", "topics", "uncacheable", "unknown_ids", "whole_bytes_max",
    )  # fmt: skip

    def __init__(self, connection: Connection, outward: Outward, throttle: Throttle, acks: Acks) -> None:
        self.connection = connection
        self.throttle = throttle
        self.acks = acks
        self.known: CachedRequest | None = None  # used last
        self.by_head: dict[bytes, CachedRequest] = {}
        self.head_lengths: list[int] = []
        self.uncacheable = 0
        self.rack_read = False  # a client is in one rack for as long as it is connected
        self.whole_bytes_max = 0  # of a frame; set by `Connection.limit_requests`
        self.topics = outward.topics
        self.known_ids = self.topics.by_id
        self.sessions = outward.sessions
        self.fetching = outward.fetching
        self.unknown_ids = outward.unknown_ids

    def pass_request(self, data: bytes, position: int, here: int, out: list[Buffer]) -> int:
        """Pass on a cached request; returns where it ends, 0 if it is not cached."""
        known, connection = self.known, self.connection
        if connection.pauses & NO_NEW_FRAMES or self.throttle.exhausted():
            return 0
        head: tuple[int, int, int] = _request(data, position)
        size, kind, correlation_id = head
        end = position + 4 + size
        if end > here or size > self.whole_bytes_max:
            return 0
        if kind >= _FETCH:
            return self.pass_fetch_request(data, position, end, kind - _FETCH, correlation_id, out)
        if known is None:
            return 0
        if kind != known.version or data[position + HEAD_AT : position + known.records_at] != known.head:
            known = self.find(data, position, kind)
            if known is None:
                return 0
        at = position + known.records_at
        if end - at < _LENGTHS_BYTES + BATCH_HEADER_BYTES + _empty:
            return 0
        length, body = records_length(data, at)
        if body + length - 1 != end - _empty or data[end - _empty : end] != _tags:
            return 0
        if known.by_id:
            if known.topic not in self.known_ids:
                return 0
            out.append(span(data, position, end))
        else:
            number = data[position + 4 : position + HEAD_AT]
            start = (size + known.growth).to_bytes(4, "big")
            out.append(b"".join([start, number, known.renamed_head, span(data, at, end)]))
        self.throttle.count(size + 4, connection.now)
        if connection.sample is not None:
            connection.sample.record_request(known.route, correlation_id, size + 4, silent=not known.acks)
        if known.acks:
            batch: tuple[int, int] = _batch(data, body + _DELTA_AT)
            entry = InFlight(correlation_id, known.route, connection.now)
            entry.cached = known
            entry.last_offset_delta, entry.max_timestamp = batch
            entry.record_bytes = length - 1
            connection.enqueue(entry)
        return end

    def pass_fetch_request(
        self, data: bytes, position: int, end: int, version: int, correlation_id: int, out: list[Buffer]
    ) -> int:
        """Pass on a fetch that needs no rewriting; returns where it ends, or 0."""
        connection = self.connection
        route = connection.routes.get((FETCH, version))
        at = request_session_at(data, position, end, version, self.known_ids)
        if not at or route is None:
            return 0
        session_id, epoch = _fetch_session(data, at)
        if epoch > INITIAL_EPOCH:
            if session_id not in self.sessions:
                return 0
            self.fetching.epoch(session_id, epoch)
        elif session_id or epoch == INITIAL_EPOCH:
            return 0
        if not self.rack_read:
            self.read_rack(data, at)
        limit, limit_at = self.throttle.fetch_bytes_max(), at - _BYTES_TO_SESSION
        if limit < NEVER_REACHED and _delta(data, limit_at)[0] > limit:
            out.append(data[position:limit_at] + limit.to_bytes(4, "big") + data[limit_at + 4 : end])
        else:
            out.append(span(data, position, end))
        self.throttle.count(end - position, connection.now)
        if connection.sample is not None:
            connection.sample.record_request(route, correlation_id, end - position)
        connection.enqueue(InFlight(correlation_id, route, connection.now))
        return end

    def read_rack(self, data: bytes, session_at: int) -> None:
        """Learn the client's zone from its first fetch."""
        self.rack_read = True
        rack, broker = request_rack(data, session_at, self.known_ids), self.connection.broker
        if rack and broker is not None:
            self.throttle.joins(broker, rack)

    def find(self, data: bytes, position: int, kind: int) -> CachedRequest | None:
        """A cached request other than the one used last."""
        start = position + HEAD_AT
        for length in self.head_lengths:
            known = self.by_head.get(data[start : start + length])
            if known is not None and known.version == kind:
                self.known = known
                return known
        return None

    def pass_response(self, data: bytes, position: int, here: int, out: list[Buffer]) -> int:
        """Pass on a response that matches the cache; returns where it ends, or 0."""
        connection = self.connection
        in_flight = connection.in_flight
        if not in_flight:
            return 0
        entry = in_flight[0]
        known = entry.cached
        if known is None:
            if entry.route is None or not entry.route.skips_rewrite or entry.then is not None:
                return 0
            return self.pass_fetch_response(data, position, here, entry, out)
        if self.throttle.marks():
            return 0
        head: tuple[int, int] = _response(data, position)
        size, correlation_id = head
        end = position + 4 + size
        if (
            size != known.response_size
            or end > here
            or correlation_id != entry.correlation_id
            or data[position + RESPONSE_AT : position + known.offset_at] != known.response_head
            or data[position + known.tail_at : end] != known.response_tail
        ):
            return 0
        at = position + known.offset_at
        if known.by_id:
            out.append(data[position:end])
        else:
            number_bytes = data[position + 4 : position + RESPONSE_AT]
            out.append(
                b"".join([known.response_start, number_bytes, known.renamed_response_head, data[at:end]])
            )
        in_flight.popleft()
        seconds = connection.responded(entry, size + 4)
        connection.usage.bytes_out += size + 4
        if connection.sample is not None:
            connection.sample.record_response(correlation_id, size + 4, seconds)
        offset: tuple[int] = _offset(data, at)
        first, delta = offset[0], entry.last_offset_delta
        if first < 0 or delta < 0:
            return end
        topic_id = known.topic if known.by_id else self.topics.by_name.get(known.topic)
        ack_range = known.range
        if first != ack_range.last + 1 or topic_id != known.range_id:
            self.find_ack_range(known, topic_id, entry, first)
            return end
        ack_range.last = first + delta
        ack_range.bytes += entry.record_bytes
        if entry.max_timestamp > ack_range.max_timestamp:
            ack_range.max_timestamp = entry.max_timestamp
        return end

    def pass_fetch_response(
        self, data: bytes, position: int, here: int, entry: InFlight, out: list[Buffer]
    ) -> int:
        """Pass on a fetch response that needs no rewriting; returns where it ends, or 0."""
        head: tuple[int, int] = _response(data, position)
        size, correlation_id = head
        end = position + 4 + size
        if end > here or correlation_id != entry.correlation_id:
            return 0
        at = response_session_at(data, position, end, self.known_ids)
        if not at:
            return 0
        (session_id,) = _delta(data, at)
        if session_id and (session_id not in self.sessions or self.unknown_ids.open):
            return 0
        connection = self.connection
        connection.in_flight.popleft()
        seconds = connection.responded(entry, size + 4)
        connection.usage.bytes_out += size + 4
        if self.throttle.marks():
            rest = position + _THROTTLE_AT + 4
            wait_ms = max(_delta(data, rest - 4)[0], self.throttle.wait_ms("Fetch", connection.now))
            out.append(data[position : rest - 4] + wait_ms.to_bytes(4, "big"))
            out.append(span(data, rest, end))
        else:
            out.append(span(data, position, end))
        if connection.sample is not None:
            connection.sample.record_response(correlation_id, size + 4, seconds)
        return end

    def find_ack_range(
        self, known: CachedRequest, topic_id: bytes | None, entry: InFlight, first: int
    ) -> None:
        """Look up the range that a batch extends, or open one; the batches behind it reuse it."""
        if topic_id is None:
            return
        last, log_start = first + entry.last_offset_delta, max(known.log_start, 0)
        batch = OpenRange(first, last, entry.record_bytes, entry.max_timestamp, log_start)
        ack_range = self.acks.add(topic_id, known.index, known.acks, batch)
        if ack_range is not None:
            known.range, known.range_id = ack_range, topic_id

    # Learning, from a frame and its rewritten form

    def learn_request(
        self, frame: tuple[bytes, int, int], rewritten: bytes, route: Route, observed: Observations
    ) -> CachedRequest | None:
        data, position, end = frame
        shape = request_shape(data, position, end, route.version) if len(observed) == 2 else None
        if shape is None or (route.by_id and rewritten != data[position:end]):
            self.uncacheable += 1
            return None
        tail_bytes = end - position - shape.records_at
        head = data[position + HEAD_AT : end - tail_bytes]
        if len(self.by_head) >= CACHED_MAX:
            self.by_head.clear()
            self.head_lengths.clear()
        if len(head) not in self.head_lengths:
            if len(self.head_lengths) >= HEAD_LENGTHS_MAX:
                self.uncacheable += 1
                return None
            self.head_lengths.append(len(head))
        renamed = rewritten[HEAD_AT : len(rewritten) - tail_bytes]
        known = self.known = self.by_head[head] = CachedRequest(shape, route, head, renamed, observed[1][0])
        return known

    def learn_response(self, frame: tuple[bytes, int, int], rewritten: bytes, known: CachedRequest) -> None:
        data, position, end = frame
        shape = response_shape(data, position, end, known.route.version)
        if shape is None or shape.topic != known.topic or shape.index != known.index:
            self.uncacheable += 1
            return
        known.response_size = end - position - 4
        known.offset_at = shape.offset_at
        known.log_start = shape.log_start
        known.response_head = data[position + RESPONSE_AT : position + shape.offset_at]
        known.tail_at = shape.offset_at + 8
        known.response_tail = data[position + known.tail_at : end]
        known.response_start = rewritten[:4]
        known.renamed_response_head = rewritten[
            RESPONSE_AT : len(rewritten) - (end - position - shape.offset_at)
        ]
        known.range = NO_RANGE  # the log start may have changed

    @property
    def disabled(self) -> bool:
        """Whether this connection sends other shapes, so that learning from it is pointless."""
        return self.uncacheable >= UNCACHEABLE_MAX
