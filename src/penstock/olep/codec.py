"""Events as bytes.

JSON is the default, so that any tool can show a log. A codec you write (Avro, Protobuf) implements the
methods of `Codec`. `type_of` lets a subscriber skip types that it does not handle without decoding them.

The JSON form starts with the type, which makes `type_of` cheap:

    {"type":"payment.requested","id":"r-17","v":1,"time":1700000000000,"payload":{…}}

An event with a cause ends with `cause` and `request`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.model.errors.olep import EventUnreadable
from penstock.olep import encoding
from penstock.olep.event import Event, derived_id

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.olep.application import Emit
    from penstock.olep.event import Record

Upcaster = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # of payloads, one version up
EVENT_BYTES_MAX: Final = 1_000_000  # below the default of Kafka's message.max.bytes
_PREFIX: Final = b'{"type":"'


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


class JsonCodec(Codec):
    """Strict UTF-8 JSON: no NaN, no missing fields, only the documented types."""

    encode = staticmethod(encoding.encode)
    encode_caused = staticmethod(encoding.encode_caused)
    decode = staticmethod(encoding.decode)

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
            if (value := record.value) is None or value.startswith(prefixes) or not value.startswith(_PREFIX)
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
