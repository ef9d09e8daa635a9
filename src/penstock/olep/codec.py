"""Events as bytes.

JSON is the default, so that any tool can show a log. A codec you write (Avro, Protobuf) implements the
methods of `Codec`. `type_of` lets a subscriber skip types that it does not handle without decoding them.

The JSON form starts with the type, which makes `type_of` cheap:

    {"type":"payment.requested","id":"r-17","v":1,"time":1700000000000,"payload":{…}}

An event with a cause ends with `cause` and `request`.
"""

from __future__ import annotations

import json.encoder
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, Protocol

import msgspec

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.event import DERIVED, REQUEST_ID_LENGTH_MAX, Event, derived_id

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.olep.application import Emit
    from penstock.olep.event import Record

Upcaster = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # of payloads, one version up
EVENT_BYTES_MAX: Final = 1_000_000  # below the default of Kafka's message.max.bytes
_PREFIX: Final = b'{"type":"'
_ID_LENGTH_MAX: Final = REQUEST_ID_LENGTH_MAX + 200  # a derived id is longer than a request's


class Codec(Protocol):
    def encode(self, event: Event) -> bytes:
        """Raises ValueError or TypeError for a payload that this codec cannot represent."""

    def encode_caused(self, stream: str, cause: Event, emits: Sequence[Emit]) -> list[bytes]:
        """The events of a decision, with ids derived from its cause. Optional: calls `encode` by default."""
        ids = (derived_id(stream, cause.offset, index) for index in range(len(emits)))
        return [
            self.encode(
                Event(event_id, each.type, each.payload, each.version, cause.id, cause.request, cause.time)
            )
            for event_id, each in zip(ids, emits)
        ]

    def decode(self, value: bytes, key: str, partition: int, offset: int) -> Event:
        """Raises EventUnreadable."""

    def type_of(self, value: bytes) -> bytes | None:
        """The event's type without decoding the event; None if it must be decoded."""

    def type_matcher(self, types: Collection[str]) -> Callable[[bytes], bool]:
        """A fast test for events of these types. May miss some: those are decoded. Optional."""
        names = frozenset(kind.encode() for kind in types)
        return lambda value: self.type_of(value) in names

    def type_filter(self, types: Collection[str]) -> Callable[[Sequence[Record]], list[Record]]:
        """Drops records that are known to be of other types without decoding them. Optional."""
        names = frozenset(kind.encode() for kind in types)

        def is_worth_decoding(record: Record) -> bool:
            kind = None if record.value is None else self.type_of(record.value)
            return kind is None or kind in names

        return lambda records: [*filter(is_worth_decoding, records)]


class _Envelope(msgspec.Struct, omit_defaults=True):
    """The JSON form, with its fields in the order they are written."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=_ID_LENGTH_MAX)]
    v: Annotated[int, msgspec.Meta(ge=1)]
    time: int
    payload: dict[str, Any]
    cause: str | None = None
    request: str | None = None


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"JSON cannot represent a {type(value).__name__}")


_PLAIN: Final = frozenset({str, int, bool, type(None)})
_strict: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_refuse)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Envelope).decode


def _payload(payload: Mapping[str, Any]) -> Any:
    """The payload, or its bytes from the standard library's strict encoder.

    msgspec would write NaN as null, a set in any order and bytes as text, so it gets plain values only."""
    if payload.__class__ is dict and _PLAIN.issuperset(map(type, payload.values())):
        return payload
    return msgspec.Raw(_strict.encode(payload).encode())


class JsonCodec(Codec):
    """Strict UTF-8 JSON: no NaN, no missing fields, only the documented types."""

    def encode(self, event: Event) -> bytes:
        cause = event.cause
        request = None if cause is None else event.request
        payload = _payload(event.payload)
        return _encode(_Envelope(event.type, event.id, event.version, event.time, payload, cause, request))

    def encode_caused(self, stream: str, cause: Event, emits: Sequence[Emit]) -> list[bytes]:
        """Equals `encode` of each event, without creating the events."""
        cause_id, request, time, prefix = cause.id, cause.request, cause.time, f"{stream}.{cause.offset}."
        values = []
        for index, emit in enumerate(emits):
            payload, event_id = _payload(emit.payload), f"{prefix}{index}"
            values.append(
                _encode(_Envelope(emit.type, event_id, emit.version, time, payload, cause_id, request))
            )
        return values

    def decode(self, value: bytes, key: str, partition: int, offset: int) -> Event:
        try:
            envelope = _decode(value)
        except RecursionError:
            raise EventUnreadable(reason="it is nested too deeply") from None
        except ValueError as error:
            raise EventUnreadable(reason=f"not a JSON event: {error}") from None
        event_id, cause = envelope.id, envelope.cause
        if cause is None and event_id[0] == DERIVED:
            raise EventUnreadable(reason="a derived id without a cause")
        request = envelope.request or event_id
        kind, payload, time = envelope.type, envelope.payload, envelope.time
        return Event(event_id, kind, payload, envelope.v, cause, request, time, key, partition, offset)

    def type_of(self, value: bytes) -> bytes | None:
        if value.startswith(_PREFIX):
            return value[len(_PREFIX) : value.find(b'"', len(_PREFIX))]
        return None

    def type_matcher(self, types: Collection[str]) -> Callable[[bytes], bool]:
        return methodcaller("startswith", _prefixes(types))

    def type_filter(self, types: Collection[str]) -> Callable[[Sequence[Record]], list[Record]]:
        prefixes = _prefixes(types)
        return lambda records: [
            record
            for record in records
            if (value := record[2]) is None or value.startswith(prefixes) or not value.startswith(_PREFIX)
        ]


class Upcasting(Codec):
    """Reads old versions of events as their newest one, for executors, views and all other readers.

    `steps` maps a type and a version to a pure function from its payload to that of the next version:

        codec = Upcasting({("pay", 1): lambda payload: {**payload, "currency": "EUR"}})
        open_log(kafka, "accounts", codec=codec)

    An event whose step raises is unreadable. Only the newest version is written."""

    def __init__(self, steps: Mapping[tuple[str, int], Upcaster], codec: Codec | None = None) -> None:
        self._steps = dict(steps)
        self._codec = codec or JsonCodec()

    def encode(self, event: Event) -> bytes:
        return self._codec.encode(event)

    def encode_caused(self, stream: str, cause: Event, emits: Sequence[Emit]) -> list[bytes]:
        return self._codec.encode_caused(stream, cause, emits)

    def type_of(self, value: bytes) -> bytes | None:
        return self._codec.type_of(value)

    def type_matcher(self, types: Collection[str]) -> Callable[[bytes], bool]:
        return self._codec.type_matcher(types)

    def type_filter(self, types: Collection[str]) -> Callable[[Sequence[Record]], list[Record]]:
        return self._codec.type_filter(types)

    def decode(self, value: bytes, key: str, partition: int, offset: int) -> Event:
        event = self._codec.decode(value, key, partition, offset)
        while (step := self._steps.get((event.type, event.version))) is not None:
            try:
                payload = step(event.payload)
            except Exception as error:
                reason = f"version {event.version} of {event.type} cannot be upcast: {error!r}"
                raise EventUnreadable(reason=reason) from error
            event = event._replace(payload=payload, version=event.version + 1)
        return event


def _prefixes(types: Collection[str]) -> tuple[bytes, ...]:
    """The bytes with which events of these types start."""
    return tuple(_PREFIX + kind.encode() + b'"' for kind in types)


def decode_record(codec: Codec, partition: int, record: Record, offset: int) -> Event:
    """The event of a record, as if it had this offset. Raises EventUnreadable."""
    if record.value is None:
        raise EventUnreadable(reason="it has no value")
    try:
        key = record.key.decode() if record.key else ""
    except UnicodeDecodeError:
        raise EventUnreadable(reason="its key is not UTF-8") from None
    return codec.decode(record.value, key, partition, offset)


def payload_problem(event: Event, fields: Mapping[str, type[Any]]) -> str | None:
    """What is wrong with a payload that must have exactly these fields, or None."""
    payload = event.payload
    for name, kind in fields.items():
        value = payload.get(name)
        if value.__class__ is not kind:
            return f"`{name}` is {value!r}, expected {kind.__name__}"
    if len(payload) == len(fields):
        return None
    return f"unknown field `{min(payload.keys() - fields.keys())}`"
