"""The JSON form of events: what runs for every event of a log, compiled where there is a C compiler."""

from __future__ import annotations

import json.encoder
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.event import DERIVED, Envelope, Event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.olep.application import Emit
    from penstock.olep.codec import Codec
    from penstock.olep.event import Record


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"JSON cannot represent a {type(value).__name__}")


_PLAIN: Final = frozenset({str, int, bool, type(None)})
_strict: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_refuse)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Envelope).decode


def _payload(payload: Mapping[str, Any]) -> Any:
    """The payload, or its bytes from the standard library's strict encoder.

    msgspec would write NaN as null, a set in any order and bytes as text, so it gets plain values only."""
    if payload.__class__ is dict and _PLAIN.issuperset(map(type, payload.values())):
        return payload
    return msgspec.Raw(_strict.encode(payload).encode())


def encode(event: Event) -> bytes:
    cause = event.cause
    request = None if cause is None else event.request
    payload = _payload(event.payload)
    return _encode(Envelope(event.type, event.id, event.version, event.time, payload, cause, request))


def encode_caused(stream: str, cause: Event, emits: Sequence[Emit]) -> list[bytes]:
    """Equals `encode` of each event, without creating the events."""
    cause_id, request, time, prefix = cause.id, cause.request, cause.time, f"{stream}.{cause.offset}."
    values = []
    for index, emit in enumerate(emits):
        payload, event_id = _payload(emit.payload), f"{prefix}{index}"
        values.append(_encode(Envelope(emit.type, event_id, emit.version, time, payload, cause_id, request)))
    return values


def decode(value: bytes, key: str, partition: int, offset: int) -> Event:
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
