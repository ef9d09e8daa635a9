"""Apply plans to a connection's bytes: chunks in, buffers out, frame by frame.

A `Splicer` works for one direction of one connection. It is fed whatever arrived, in any pieces,
and appends what is to be sent to a list. At the start of each frame it asks its handler what to do:
splice it by a `Program`, hand it over whole (`TAKE`), or wait at this frame (`HOLD`). It opens no
socket and keeps no clock.

Frames that carry records and are longer than `Limits.whole_bytes_max` are streamed: nothing of
them is held but the field the walk stopped in. All others are completed first, up to
`Limits.held_bytes_max`, and come out in canonical encoding. Which of the two is decided by the
size of the frame alone, so that the same bytes come out however they arrived.

After an error the connection is to be closed: a frame may be half way through.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from penstock.model.errors.plans import (
    AnswerMalformed,
    AnswerRefused,
    AnswerRefusedInStream,
    AnswerTooLarge,
    FrameMalformed,
    FrameTooLarge,
    NameRefused,
    RefusedInStream,
)
from penstock.wire.plans import Direction, plan
from penstock.wire.primitives import Malformed
from penstock.wire.splicing import whole_splicer
from penstock.wire.streaming import stream_splicer
from penstock.wire.watch import WATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from penstock.wire.names import Names
    from penstock.wire.plans import Plan
    from penstock.wire.rules import Kind

    Buffer = bytes | memoryview
    Seen = list[tuple[Any, ...]]
    Walk = Generator[int, tuple[bytes, int, list[Buffer]], tuple[bytes, int, int]]
    # Passes a frame on without a walk, if it can: (data, position, len(data), out) → its end, or 0.
    ByHeart = Callable[[bytes, int, int, list[Buffer]], int]
    # Is shown what a walk made of a watched frame: (data, position, end), the new frame, what was seen.
    Learn = Callable[[tuple[bytes, int, int], bytes, Seen], None]

MEBIBYTE: Final = 1024 * 1024
SIZE_BYTES: Final = 4
REQUEST_HEAD_BYTES: Final = 14  # size, API, version, correlation id, length of the client id
RESPONSE_HEAD_BYTES: Final = 8  # size, correlation id
PIECES_MAX: Final = 8  # of one frame; more are joined
COPIED_BYTES_MAX: Final = 512  # a shorter span is cheaper to copy than to make a view of

_size = struct.Struct(">i")
_request_head = struct.Struct(">ihhi")
_response_head = struct.Struct(">ii")
_UNREADABLE: Final = (Malformed, IndexError, struct.error)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one direction. What is held is also what a frame can cost in one go: its walk is not
    interrupted, at about half a microsecond for each of the shortest elements, of two bytes."""

    frame_bytes_max: int = 100 * MEBIBYTE  # Kafka's own default, socket.request.max.bytes
    held_bytes_max: int = MEBIBYTE  # of a frame that has to be complete before it is spliced
    whole_bytes_max: int = 32 * 1024  # of a frame with records that is completed rather than streamed


REQUEST_LIMITS: Final = Limits()
RESPONSE_LIMITS: Final = Limits(held_bytes_max=64 * MEBIBYTE)  # a broker is trusted with large Metadata


class Action(Enum):
    TAKE = "take"  # hand the frame over whole, pass nothing on
    HOLD = "hold"  # leave this frame and all behind it until `resume`


TAKE: Final = Action.TAKE
HOLD: Final = Action.HOLD


class Program:
    """A plan made into code for one set of kinds; `watched` ones report the facts of `watch`.

    `whole` and `stream` are what `splicing` and `streaming` make of it, on the first call.
    """

    __slots__ = ("kinds", "plan", "stream", "streams", "watched", "whole")

    def __init__(self, made: Plan, kinds: frozenset[Kind], *, watched: bool) -> None:
        self.plan = made
        self.kinds = kinds
        self.streams = made.streams
        self.watched = watched and made.message in WATCHES
        self.whole: Callable[..., int] = self._first_whole
        self.stream: Callable[..., Walk] = self._first_stream

    def _first_whole(self, *frame: Any) -> int:
        self.whole = whole_splicer(self.plan, self.kinds, watched=self.watched)
        return self.whole(*frame)

    def _first_stream(self, *frame: Any) -> Walk:
        self.stream = stream_splicer(self.plan, self.kinds, watched=self.watched)
        return self.stream(*frame)

    def __repr__(self) -> str:
        return f"<Program {self.plan.message} v{self.plan.version}>"


@cache
def program(
    api_key: int, version: int, direction: Direction, kinds: frozenset[Kind], *, watched: bool = False
) -> Program:
    """The program of an API, made once in a process; `PlanUnknown` if the definitions have none."""
    return Program(plan(api_key, version, direction), kinds, watched=watched)


class RequestHandler(Protocol):
    def begin(self, api_key: int, version: int, correlation_id: int, size: int, /) -> Program | Action:
        """A request begins. Asked once a frame (again after a HOLD)."""

    def end(self, seen: Seen | None, /) -> None:
        """It has been passed on to its last byte, with what its program saw if that is watched."""

    def taken(self, frame: bytes, /) -> None:
        """A frame that was to be taken, without its size."""

    def refused(self, frame: bytes, error: NameRefused | AnswerRefused, /) -> None:
        """A frame of which nothing has been passed on, because of a name in it."""


class ResponseHandler(Protocol):
    def begin(self, correlation_id: int, size: int, /) -> Program | Action: ...
    def end(self, seen: Seen | None, /) -> None: ...
    def taken(self, frame: bytes, /) -> None: ...
    def refused(self, frame: bytes, error: NameRefused | AnswerRefused, /) -> None: ...


class Splicer:
    """One direction of one connection. `Requests` and `Responses` read the head of a frame.

    Whenever the handler is called, all that earlier frames gave is in the list that was fed, so it
    may append to that list itself: an answer of its own between two forwarded ones, or a request
    it has rewritten in the place of one it took.
    """

    __slots__ = (
        "_chosen", "_held", "_seen", "_short", "_walk", "by_heart", "handler", "learn", "limits", "names",
        "passing",
    )  # fmt: skip

    head_bytes: int
    usual_limits: Limits
    malformed: ClassVar[type[FrameMalformed | AnswerMalformed]]
    too_large: ClassVar[type[FrameTooLarge | AnswerTooLarge]]
    refused_late: ClassVar[type[RefusedInStream | AnswerRefusedInStream]]

    def __init__(self, handler: Any, names: Names, limits: Limits | None = None) -> None:
        self.handler = handler
        self.names = names
        self.limits = limits or self.usual_limits
        self.passing = 0  # bytes of records that pass unseen; see `passed`
        self.by_heart: ByHeart | None = None
        self.learn: Learn | None = None
        self._held = bytearray()
        self._short = 0  # bytes that must be held before it is worth looking again
        self._chosen: Program | Action | None = None
        self._walk: Walk | None = None
        self._seen: Seen | None = None

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    @property
    def between_frames(self) -> bool:
        """Nothing has been passed on of a frame that is not complete."""
        return self._walk is None

    def passed(self, count: int) -> None:
        """So many of the `passing` bytes went another way, such as through `splice(2)`."""
        assert 0 <= count < self.passing, "the last of them has to be fed"
        self.passing -= count

    def begin(self, data: bytes, position: int) -> tuple[int, Program | Action]:
        raise NotImplementedError

    def resume(self, out: list[Buffer]) -> None:
        """Look again at a frame that was held."""
        data = bytes(self._held)
        self._held.clear()
        self._short = 0
        self._frames(data, 0, 0, out)

    def feed(self, data: bytes, out: list[Buffer]) -> None:
        """Take what arrived; append what is to be sent, in order."""
        position = start = 0
        if self._walk is not None:
            passing = self.passing
            if passing:
                here = len(data)
                if here < passing:
                    self.passing = passing - here
                    out.append(data)
                    return
                out.append(data if here == passing else memoryview(data)[:passing])
                position = passing
                self.passing = 0
            ended = self._advance(data, position, out)
            if ended is None:
                return
            data, position, start = ended
        elif self._held:
            held = self._held
            if len(held) + len(data) < self._short:
                held += data
                return
            data = b"".join((held, data))
            held.clear()
        self._frames(data, position, start, out)

    def _frames(self, data: bytes, position: int, start: int, out: list[Buffer]) -> None:
        """Splice every frame that is complete in `data`; `data[start:position]` is still to be sent."""
        here = len(data)
        by_heart = self.by_heart
        head_bytes = self._short = self.head_bytes
        while here - position >= head_bytes:
            if start < position:  # before the handler is asked: it may write between two frames
                out.append(span(data, start, position))
                start = position
            if by_heart is not None:
                end = by_heart(data, position, here, out)
                if end:
                    self._chosen = None
                    start = position = end
                    continue
            chosen = self._chosen
            if chosen is None:
                size, chosen = self.begin(data, position)
            else:
                (size,) = _size.unpack_from(data, position)
                self._chosen = None
            end = position + SIZE_BYTES + size
            if chosen.__class__ is not Program:
                if chosen is HOLD or end > here:
                    self._wait(chosen, size, here - position)
                    break
                self.handler.taken(data[position + SIZE_BYTES : end])
                start = position = end
                continue
            if size > self.limits.whole_bytes_max and chosen.streams:
                ended = self._start(chosen, data, position, size, out)
                if ended is None:
                    return
                data, position, start = ended
                here = len(data)
                continue
            if end > here:
                self._wait(chosen, size, here - position)
                break
            start = self._whole(chosen, data, position, end, out)
            position = end
        if start < position:
            out.append(span(data, start, position))
        if position < here:
            self._held += memoryview(data)[position:] if position else data

    def _wait(self, chosen: Program | Action, size: int, held: int) -> None:
        """The frame at hand is not complete, or not wanted yet."""
        if chosen is HOLD:
            self._short = held + 1  # whatever comes: it is asked for again
            return
        if size > self.limits.held_bytes_max:
            raise self.too_large(size=size, limit=self.limits.held_bytes_max)
        self._chosen = chosen
        self._short = SIZE_BYTES + size

    def _whole(self, chosen: Program, data: bytes, position: int, end: int, out: list[Buffer]) -> int:
        seen: Seen | None = [] if chosen.watched else None
        mark = len(out)
        try:
            start = chosen.whole(data, position, end, out, self.names, seen)
        except _UNREADABLE as failure:
            del out[mark:]
            raise self._unreadable(chosen, failure) from failure
        except (NameRefused, AnswerRefused) as refused:
            del out[mark:]
            self.handler.refused(data[position + SIZE_BYTES : end], refused)
            return end
        if len(out) - mark > PIECES_MAX:
            out[mark:] = [b"".join(out[mark:])]
        if seen is not None and self.learn is not None:
            self.learn((data, position, end), b"".join((*out[mark:], data[start:end])), seen)
        self.handler.end(seen)
        return start

    def _start(
        self, chosen: Program, data: bytes, position: int, size: int, out: list[Buffer]
    ) -> tuple[bytes, int, int] | None:
        self._seen = [] if chosen.watched else None
        self._walk = chosen.stream(data, position, size, self.names, out, self._seen)
        self._chosen = chosen
        return self._advance(None, 0, out)

    def _advance(self, data: bytes | None, position: int, out: list[Buffer]) -> tuple[bytes, int, int] | None:
        """Let the walk go on; where its frame ended, if it did."""
        walk, chosen = self._walk, self._chosen
        assert walk is not None
        assert isinstance(chosen, Program)
        try:
            self.passing = next(walk) if data is None else walk.send((data, position, out))
        except StopIteration as ended:
            self._walk = self._chosen = None
            seen, self._seen = self._seen, None
            self.handler.end(seen)
            return ended.value  # type: ignore[no-any-return]  # what `Walk` returns
        except _UNREADABLE as failure:
            raise self._unreadable(chosen, failure) from failure
        except (NameRefused, AnswerRefused) as refused:
            raise self.refused_late(**refused.facts) from refused
        return None

    def _unreadable(self, chosen: Program, failure: Exception) -> FrameMalformed | AnswerMalformed:
        reason = str(failure) if isinstance(failure, Malformed) else "it ends before its last field does"
        return self.malformed(api=chosen.plan.api, version=chosen.plan.version, reason=reason)


class Requests(Splicer):
    """From a client towards a broker."""

    __slots__ = ()
    head_bytes = REQUEST_HEAD_BYTES
    usual_limits = REQUEST_LIMITS
    malformed = FrameMalformed
    too_large = FrameTooLarge
    refused_late = RefusedInStream

    def __init__(self, handler: RequestHandler, names: Names, limits: Limits | None = None) -> None:
        super().__init__(handler, names, limits)

    def begin(self, data: bytes, position: int) -> tuple[int, Program | Action]:
        size, api_key, version, correlation_id = _request_head.unpack_from(data, position)
        if size > self.limits.frame_bytes_max:
            raise FrameTooLarge(size=size, limit=self.limits.frame_bytes_max)
        if size < REQUEST_HEAD_BYTES - SIZE_BYTES:
            raise FrameMalformed(api=api_key, version=version, reason=f"its size is {size}")
        return size, self.handler.begin(api_key, version, correlation_id, size)


class Responses(Splicer):
    """From a broker towards a client."""

    __slots__ = ()
    head_bytes = RESPONSE_HEAD_BYTES
    usual_limits = RESPONSE_LIMITS
    malformed = AnswerMalformed
    too_large = AnswerTooLarge
    refused_late = AnswerRefusedInStream

    def __init__(self, handler: ResponseHandler, names: Names, limits: Limits | None = None) -> None:
        super().__init__(handler, names, limits)

    def begin(self, data: bytes, position: int) -> tuple[int, Program | Action]:
        size, correlation_id = _response_head.unpack_from(data, position)
        if size > self.limits.frame_bytes_max:
            raise AnswerTooLarge(size=size, limit=self.limits.frame_bytes_max)
        if size < RESPONSE_HEAD_BYTES - SIZE_BYTES:
            raise AnswerMalformed(api="?", version="?", reason=f"its size is {size}")
        return size, self.handler.begin(correlation_id, size)


def span(data: bytes, start: int, end: int) -> Buffer:
    """A part of what arrived, copied only if that is cheaper."""
    if end - start < COPIED_BYTES_MAX:
        return data[start:end]
    return data if start == 0 and end == len(data) else memoryview(data)[start:end]


def spliced(made: Program, names: Names, frame: bytes) -> bytes:
    """One whole frame, with its size before it, spliced by hand; `NameRefused` and the like pass through."""
    pieces: list[Buffer] = []
    end = len(frame)
    try:
        start = made.whole(frame, 0, end, pieces, names, [] if made.watched else None)
    except _UNREADABLE as failure:
        error = FrameMalformed if made.plan.direction is Direction.REQUEST else AnswerMalformed
        raise error(api=made.plan.api, version=made.plan.version, reason=str(failure)) from failure
    return b"".join((*pieces, frame[start:]))
