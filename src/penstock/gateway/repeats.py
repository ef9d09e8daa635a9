"""One connection's usual requests without a walk: Produce by heart, and Fetch as it is.

What is known of a Produce request is what `wire.repeats` found and what the walk made of it. A request
that differs in its number and its records alone gets what that one got; its answer likewise. A fetch by
topic ids has nothing to be rewritten (`wire.passing`) as long as its ids and its session are known.
Everything that is counted for a request that is walked is counted here as well. What does not match in
every byte goes the usual way.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.fetches import OPENING
from penstock.gateway.routes import FETCH
from penstock.gateway.states import IN_FLIGHT, NOT_NOW
from penstock.wire.passing import answer_passes, records_length, request_passes
from penstock.wire.repeats import (
    ANSWER_AT,
    HEAD_AT,
    TAGS_EMPTY,
    answer_shape,
    request_shape,
)
from penstock.wire.splice import span
from penstock.wire.watch import BATCH_HEADER_BYTES

if TYPE_CHECKING:
    from penstock.gateway.routes import Route
    from penstock.gateway.session import Session
    from penstock.wire.repeats import RequestShape
    from penstock.wire.splice import Buffer, Seen

KNOWN_MAX: Final = 64  # of one connection, some 300 bytes each: a partition each, for one client
LENGTHS_MAX: Final = 4  # of heads; each costs an unknown request one lookup
STRANGE_MAX: Final = 64  # requests of other shapes before a connection is taken for one that sends such
_LENGTHS_BYTES: Final = 3  # of a record batch in a frame that is not streamed

_request: Final = struct.Struct(">iIi").unpack_from
_answer: Final = struct.Struct(">ii").unpack_from
_delta: Final = struct.Struct(">i").unpack_from
_offset: Final = struct.Struct(">q").unpack_from
_fetch_session: Final = struct.Struct(">ii").unpack_from
_clock: Final = time.perf_counter
_time: Final = time.time
_tags: Final = TAGS_EMPTY
_empty: Final = len(TAGS_EMPTY)
_FETCH: Final = FETCH << 16  # API and version as one number


class Known:
    """A request that was sent before, and its answer once there was one."""

    __slots__ = (
        "acks", "answer_head", "answer_renamed", "answer_size", "answer_start", "answer_tail", "by_id",
        "growth", "head", "index", "kind", "log_start", "offset_at", "range", "range_id", "records_at",
        "renamed", "route", "second", "tail_at", "topic",
    )  # fmt: skip

    def __init__(self, shape: RequestShape, route: Route, head: bytes, renamed: bytes, topic: bytes) -> None:
        self.route = route
        self.kind = route.version  # Produce is API 0, so this is what its two fields are as one number
        self.by_id = route.by_id
        self.acks = shape.acks
        self.index = shape.index
        self.records_at = shape.records_at
        self.topic = topic  # as the broker knows it
        self.head = head
        self.renamed = renamed
        self.growth = len(renamed) - len(head)
        self.answer_size = -1  # none yet
        self.answer_start = self.answer_head = self.answer_renamed = self.answer_tail = b""
        self.offset_at = self.tail_at = self.log_start = 0
        self.second = -1  # to which `range` belongs, the range of acknowledged offsets being gathered
        self.range: list[int] = []
        self.range_id: bytes | None = None

    def sent(self, last_offset_delta: int) -> Seen:
        """What a walk of the request would have seen."""
        return [(self.acks,), (self.topic, self.index, 0, last_offset_delta)]


class Repeats:
    """Both directions of one connection."""

    __slots__ = (
        "fetching", "heads", "known", "known_ids", "lengths", "misses", "session", "sessions", "strange",
        "topics", "whole_bytes_max",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session = session
        self.known: Known | None = None  # the latest
        self.heads: dict[bytes, Known] = {}
        self.lengths: list[int] = []
        self.strange = 0
        self.whole_bytes_max = 0  # of a frame; set by `Session.limit_requests`
        self.topics = session.outward.topics
        self.known_ids = self.topics.by_id
        self.sessions = session.outward.sessions
        self.fetching = session.outward.fetching
        self.misses = session.outward.misses

    def asked(self, data: bytes, position: int, here: int, out: list[Buffer]) -> int:
        """Pass a request on if it is known by heart; where it ends, 0 if it is not."""
        known, session = self.known, self.session
        if session.pauses & NOT_NOW or session.gated():
            return 0
        head: tuple[int, int, int] = _request(data, position)
        size, kind, correlation_id = head
        end = position + 4 + size
        if end > here or size > self.whole_bytes_max:
            return 0
        if kind >= _FETCH:
            return self.fetch(data, position, end, kind - _FETCH, correlation_id, out)
        if known is None:
            return 0
        if kind != known.kind or data[position + HEAD_AT : position + known.records_at] != known.head:
            known = self.another(data, position, kind)
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
            out.append(b"".join([start, number, known.renamed, span(data, at, end)]))
        usage = session.usage
        usage.requests += 1
        usage.bytes_in += size + 4
        session.counted(size + 4)
        if known.acks:
            waiting = session.waiting
            delta: tuple[int] = _delta(data, body + BATCH_HEADER_BYTES - 4)
            waiting.append((correlation_id, known.route, _clock(), delta[0], None, known))
            if len(waiting) >= session.in_flight_max:
                session.pause(IN_FLIGHT)
        return end

    def fetch(
        self, data: bytes, position: int, end: int, version: int, correlation_id: int, out: list[Buffer]
    ) -> int:
        """Pass a fetch on if nothing in it has to be changed."""
        session = self.session
        route = session.asking.routes.get((FETCH, version))
        at = request_passes(data, position, end, version, self.known_ids)
        if not at or route is None:
            return 0
        session_id, epoch = _fetch_session(data, at)
        if epoch > OPENING:
            if session_id not in self.sessions:
                return 0
            self.fetching.epoch(session_id, epoch)
        elif session_id or epoch == OPENING:
            return 0
        out.append(span(data, position, end))
        usage = session.usage
        usage.requests += 1
        usage.bytes_in += end - position
        session.counted(end - position)
        waiting = session.waiting
        waiting.append((correlation_id, route, _clock(), None, None, None))
        if len(waiting) >= session.in_flight_max:
            session.pause(IN_FLIGHT)
        return end

    def another(self, data: bytes, position: int, kind: int) -> Known | None:
        """Not the latest one; perhaps another."""
        start = position + HEAD_AT
        for length in self.lengths:
            known = self.heads.get(data[start : start + length])
            if known is not None and known.kind == kind:
                self.known = known
                return known
        return None

    def answered(self, data: bytes, position: int, here: int, out: list[Buffer]) -> int:
        """Pass on the answer to such a request if it is known, too; where it ends, 0 if it is not."""
        session = self.session
        waiting = session.waiting
        if not waiting:
            return 0
        number, route, started, sent, then, known = waiting[0]
        if known is None:
            if route is None or not route.passes or then is not None:
                return 0
            return self.fetched(data, position, here, number, out)
        delta: int = sent
        answered: tuple[int, int] = _answer(data, position)
        size, correlation_id = answered
        end = position + 4 + size
        if (
            size != known.answer_size
            or end > here
            or correlation_id != number
            or data[position + ANSWER_AT : position + known.offset_at] != known.answer_head
            or data[position + known.tail_at : end] != known.answer_tail
        ):
            return 0
        at = position + known.offset_at
        if known.by_id:
            out.append(data[position:end])
        else:
            head = data[position + 4 : position + ANSWER_AT]
            out.append(b"".join([known.answer_start, head, known.answer_renamed, data[at:end]]))
        waiting.popleft()
        usage = session.usage
        usage.bytes_out += size + 4
        if known.acks == 1:  # for acks=all the broker waits for others
            usage.service_seconds += _clock() - started
        offset: tuple[int] = _offset(data, at)
        first = offset[0]
        if first < 0 or delta < 0:
            return end
        topic_id = known.topic if known.by_id else self.topics.by_name.get(known.topic)
        second = int(_time())
        if second != known.second or topic_id != known.range_id:
            self.gather(known, topic_id, second, first, delta)
            return end
        gathered = known.range
        if first < gathered[0]:
            gathered[0] = first
        if first + delta > gathered[1]:
            gathered[1] = first + delta
        gathered[2] += delta + 1
        return end

    def fetched(self, data: bytes, position: int, here: int, number: int, out: list[Buffer]) -> int:
        """Pass on the answer to a fetch if nothing in it has to be changed."""
        answered: tuple[int, int] = _answer(data, position)
        size, correlation_id = answered
        end = position + 4 + size
        if end > here or correlation_id != number:
            return 0
        at = answer_passes(data, position, end, self.known_ids)
        if not at:
            return 0
        (session_id,) = _delta(data, at)
        if session_id and (session_id not in self.sessions or self.misses.open):
            return 0
        out.append(span(data, position, end))
        session = self.session
        session.waiting.popleft()
        session.usage.bytes_out += size + 4
        return end

    def gather(self, known: Known, topic_id: bytes | None, second: int, first: int, delta: int) -> None:
        """The first answer of a second: its range is looked up, the later ones have it at hand."""
        if topic_id is None:
            return
        found = self.session.server.acks.add(
            topic_id, known.index, known.acks, second, first, delta + 1, max(known.log_start, 0)
        )
        if found is not None:
            known.range, known.range_id, known.second = found, topic_id, second

    # Learning, from what the walk has made of a frame

    def learn_request(
        self, frame: tuple[bytes, int, int], made: bytes, route: Route, seen: Seen
    ) -> Known | None:
        data, position, end = frame
        shape = request_shape(data, position, end, route.version) if len(seen) == 2 else None
        if shape is None or (route.by_id and made != data[position:end]):
            self.strange += 1
            return None
        behind = end - position - shape.records_at
        head = data[position + HEAD_AT : end - behind]
        if len(self.heads) >= KNOWN_MAX:
            self.heads.clear()
            self.lengths.clear()
        if len(head) not in self.lengths:
            if len(self.lengths) >= LENGTHS_MAX:
                self.strange += 1
                return None
            self.lengths.append(len(head))
        renamed = made[HEAD_AT : len(made) - behind]
        known = self.known = self.heads[head] = Known(shape, route, head, renamed, seen[1][0])
        return known

    def learn_answer(self, frame: tuple[bytes, int, int], made: bytes, known: Known) -> None:
        data, position, end = frame
        shape = answer_shape(data, position, end, known.route.version)
        if shape is None or shape.topic != known.topic or shape.index != known.index:
            self.strange += 1
            return
        known.answer_size = end - position - 4
        known.offset_at = shape.offset_at
        known.log_start = shape.log_start
        known.answer_head = data[position + ANSWER_AT : position + shape.offset_at]
        known.tail_at = shape.offset_at + 8
        known.answer_tail = data[position + known.tail_at : end]
        known.answer_start = made[:4]
        known.answer_renamed = made[ANSWER_AT : len(made) - (end - position - shape.offset_at)]
        known.second = -1

    @property
    def gives_up(self) -> bool:
        """Nothing is learned any more from a connection whose requests are of other shapes."""
        return self.strange >= STRANGE_MAX


def facts(sent: Any, known: Known | None) -> Seen | None:
    """What was seen in a request, however it went; None if nobody looked."""
    found: Seen | None = sent if known is None else known.sent(sent)
    return found
