"""Events as bytes.

JSON is the default: people can read a log with any tool. A codec of your own (Avro, Protobuf)
implements the methods below; `type_of` exists so that a subscriber which waits for few types can
pass over the others without decoding them.

The JSON form begins with the type, which is what makes `type_of` cheap:

    {"type":"payment.requested","id":"r-17","v":1,"time":1700000000000,"payload":{…}}

with `cause` and `request` before `time` for an event that has a cause.
"""

from __future__ import annotations

import json.encoder
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, Protocol

import msgspec

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.event import DERIVED, REQUEST_ID_LENGTH_MAX, Event, derived_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.olep.application import Emit
    from penstock.olep.event import Record

EVENT_BYTES_MAX: Final = 1_000_000  # below the default of Kafka's message.max.bytes
_HEAD: Final = b'{"type":"'
_ID_LENGTH_MAX: Final = REQUEST_ID_LENGTH_MAX + 200  # a derived id is longer than a request's


class Codec(Protocol):
    def encode(self, event: Event) -> bytes:
        """Raises ValueError or TypeError for a payload that has no form in this codec."""

    def encode_caused(self, stream: str, cause: Event, emits: Sequence[Emit]) -> list[bytes]:
        """What a decision emits, with ids derived from its cause. Subclasses need not define it."""
        return [
            self.encode(
                Event(
                    derived_id(stream, cause.offset, index),
                    emit.type,
                    emit.payload,
                    emit.version,
                    cause.id,
                    cause.request,
                    cause.time,
                )
            )
            for index, emit in enumerate(emits)
        ]

    def decode(self, value: bytes, key: str, partition: int, offset: int) -> Event:
        """Raises EventUnreadable."""

    def type_of(self, value: bytes) -> bytes | None:
        """The event's type without decoding the event; none if only decoding can tell."""

    def is_surely(self, types: Collection[str]) -> Callable[[bytes], bool]:
        """A quick test for events of these types; what it does not recognise is decoded. Optional."""
        wanted = frozenset(kind.encode() for kind in types)
        return lambda value: self.type_of(value) in wanted

    def sieve(self, types: Collection[str]) -> Callable[[Sequence[Record]], list[Record]]:
        """Leaves out records that are surely of other types, without decoding them. Optional."""
        wanted = frozenset(kind.encode() for kind in types)

        def is_worth_decoding(record: Record) -> bool:
            kind = None if record.value is None else self.type_of(record.value)
            return kind is None or kind in wanted

        return lambda records: [*filter(is_worth_decoding, records)]


class _Envelope(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The JSON form, field by field in the order in which it is written."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=_ID_LENGTH_MAX)]
    v: Annotated[int, msgspec.Meta(ge=1)]
    cause: str | None = None
    request: str | None = None
    time: int
    payload: dict[str, Any]


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


_PLAIN: Final = frozenset({str, int, bool, type(None)})
_strict: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_refuse)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Envelope).decode
_event: Final[Callable[[tuple[Any, ...]], Event]] = partial(
    tuple.__new__, Event
)  # without Event's own __new__


def _payload(payload: Mapping[str, Any]) -> Any:
    """What the encoder may take as it is. It would write a NaN as null, a set in any order and bytes as
    text, so what holds more than plain values is written by the strict encoder of the standard library."""
    if payload.__class__ is dict and _PLAIN.issuperset(map(type, payload.values())):
        return payload
    return msgspec.Raw(_strict.encode(payload).encode())


class JsonCodec(Codec):
    """UTF-8 JSON, strict: no NaN, no missing fields, no other type than the documented one."""

    def encode(self, event: Event) -> bytes:
        event_id, kind, payload, version, cause, request, time, *_ = event
        return _encode(
            _Envelope(
                type=kind,
                id=event_id,
                v=version,
                cause=cause,
                request=None if cause is None else request,
                time=time,
                payload=_payload(payload),
            )
        )

    def encode_caused(self, stream: str, cause: Event, emits: Sequence[Emit]) -> list[bytes]:
        """As `encode` for each of them, without making an event in between."""
        cause_id, request, time, prefix = cause.id, cause.request, cause.time, f"{stream}.{cause.offset}."
        return [
            _encode(
                _Envelope(
                    type=kind,
                    id=f"{prefix}{index}",
                    v=version,
                    cause=cause_id,
                    request=request,
                    time=time,
                    payload=_payload(payload),
                )
            )
            for index, (_, _, kind, payload, version) in enumerate(emits)
        ]

    def decode(self, value: bytes, key: str, partition: int, offset: int) -> Event:
        try:
            found = _decode(value)
        except RecursionError:
            raise EventUnreadable(reason="it is nested too deeply") from None
        except ValueError as error:
            raise EventUnreadable(reason=f"not a JSON event: {error}") from None
        event_id, cause = found.id, found.cause
        if cause is None and event_id[0] == DERIVED:
            raise EventUnreadable(reason="a derived id without a cause")
        request = found.request or event_id
        return _event(
            (event_id, found.type, found.payload, found.v, cause, request, found.time, key, partition, offset)
        )

    def type_of(self, value: bytes) -> bytes | None:
        if value.startswith(_HEAD):
            return value[len(_HEAD) : value.find(b'"', len(_HEAD))]
        return None

    def is_surely(self, types: Collection[str]) -> Callable[[bytes], bool]:
        return methodcaller("startswith", _heads(types))

    def sieve(self, types: Collection[str]) -> Callable[[Sequence[Record]], list[Record]]:
        wanted = _heads(types)
        return lambda records: [
            record
            for record in records
            if (value := record[2]) is None or value.startswith(wanted) or not value.startswith(_HEAD)
        ]


def _heads(types: Collection[str]) -> tuple[bytes, ...]:
    """How events of these types begin."""
    return tuple(_HEAD + kind.encode() + b'"' for kind in types)


def payload_of(event: Event, fields: Mapping[str, type[Any]]) -> str | None:
    """What is wrong with a payload that should have exactly these fields; none if nothing is."""
    payload = event.payload
    for name, kind in fields.items():
        value = payload.get(name)
        if value.__class__ is not kind:
            return f"`{name}` is {value!r}, expected {kind.__name__}"
    if len(payload) == len(fields):
        return None
    return f"unknown field `{min(payload.keys() - fields.keys())}`"
