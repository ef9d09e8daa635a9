"""How an event becomes JSON bytes and back, and what happens when schemas change.

Every record is one flat JSON object whose first member is `"schema": "<kind>/<major>.<minor>"`.
The rules for change:

- A field is added with a default, and the minor version rises. Older readers ignore what they do
  not know; newer readers fill the default in. So a rolling upgrade may mix versions.
- Anything else (a field gone, renamed, or meaning something new) raises the major version. A
  newer major is refused, since to guess would be to lose or double something.
- What is open on purpose (the body of a registry entity, the facts of an audit event, the names
  of counters) is kept as it came, unknown parts included.

Field types are read from the class once. Known are: str, int, float, bool, string enums, ids,
optional values, mappings and tuples of these, and frozen dataclasses of these; `object` is any JSON
value.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, NewType, Self, Union, get_args, get_origin, get_type_hints

from penstock.model.errors.events import EventFieldInvalid, EventOfAnotherKind, EventTooNew, EventUnreadable

SCHEMA: Final = "schema"
EVENT_BYTES_MAX: Final = 1 << 20  # bytes; Kafka's default limit for one record is about as much
VALUE_SHOWN_MAX: Final = 80  # characters of a refused value that an error repeats

Reader = Callable[[object], Any]


class WrongType(Exception):
    """Says what was expected. Internal: leaves this module only as `EventFieldInvalid`."""


@dataclass(frozen=True, slots=True)
class Event:
    """The root of all events. A subclass names its kind, its version and its topic."""

    kind: ClassVar[str]
    major: ClassVar[int] = 1
    minor: ClassVar[int] = 0
    topic: ClassVar[str]

    @property
    def key(self) -> bytes:
        """What the record is partitioned by (and compacted by, where the topic is compacted)."""
        raise NotImplementedError

    @classmethod
    def schema(cls) -> str:
        return f"{cls.kind}/{cls.major}.{cls.minor}"

    def to_bytes(self) -> bytes:
        members: dict[str, object] = {SCHEMA: self.schema()}
        members.update((name, getattr(self, name)) for name in readers_of(type(self)))
        return json.dumps(members, separators=(",", ":"), allow_nan=False, default=dict).encode()

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """Read one record's value; every way of being wrong has its own error."""
        members = cls._members(value)
        known: dict[str, Any] = {}
        for name, (read, required) in readers_of(cls).items():
            if name not in members:
                if required:
                    raise EventUnreadable(kind=cls.kind, reason=f"`{name}` is missing")
                continue
            try:
                known[name] = read(members[name])
            except WrongType as expected:
                raise cls.refusal(name, members[name], str(expected)) from None
        return cls(**known)

    @classmethod
    def refusal(cls, field: str, value: object, expected: str) -> EventFieldInvalid:
        shown = repr(value)
        if len(shown) > VALUE_SHOWN_MAX:
            shown = shown[: VALUE_SHOWN_MAX - 1] + "…"
        return EventFieldInvalid(kind=cls.kind, field=field, value=shown, expected=expected)

    def require(self, holds: bool, field: str, expected: str) -> None:
        """For a class to say what else is true of its fields, when it is made."""
        if not holds:
            raise self.refusal(field, getattr(self, field), expected)

    @classmethod
    def _members(cls, value: bytes | None) -> dict[str, object]:
        if value is None:
            raise EventUnreadable(kind=cls.kind, reason="the record has no value")
        if len(value) > EVENT_BYTES_MAX:
            raise EventUnreadable(kind=cls.kind, reason=f"{len(value)} bytes, at most {EVENT_BYTES_MAX}")
        try:
            members = json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise EventUnreadable(kind=cls.kind, reason=f"not JSON ({error})") from None
        if not isinstance(members, dict) or not isinstance(members.get(SCHEMA), str):
            raise EventUnreadable(kind=cls.kind, reason="no JSON object with a `schema`")
        kind, _, version = members[SCHEMA].partition("/")
        if kind != cls.kind:
            raise EventOfAnotherKind(expected=cls.kind, found=kind)
        major, _, minor = version.partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            raise EventUnreadable(kind=cls.kind, reason=f"`schema` is {members[SCHEMA]!r}")
        if int(major) > cls.major:
            raise EventTooNew(kind=cls.kind, found=version, major=cls.major)
        if int(major) < cls.major:
            raise EventUnreadable(kind=cls.kind, reason=f"schema {version} is older than any that is read")
        return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_known: dict[type, dict[str, tuple[Reader, bool]]] = {}


def readers_of(cls: type) -> dict[str, tuple[Reader, bool]]:
    """For each field of a dataclass its reader, and whether it must be there."""
    if cls not in _known:
        hints = get_type_hints(cls)
        _known[cls] = {
            field.name: (
                _reader(hints[field.name]),
                field.default is MISSING and field.default_factory is MISSING,
            )
            for field in fields(cls)
        }
    return _known[cls]


def _reader(hint: Any) -> Reader:
    """The function that turns a parsed JSON value into one of this type, or raises `WrongType`."""
    if isinstance(hint, NewType):
        return _reader(hint.__supertype__)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        read = _reader(next(option for option in inner if option is not types.NoneType))
        return lambda value: None if value is None else read(value)
    if origin is Mapping:
        return _mapping_reader(_reader(inner[1]))
    if origin is tuple:
        return _tuple_reader(_reader(inner[0]))
    if hint is object:
        return lambda value: value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _value_reader(hint)
    return _SCALARS[hint]


def _value_reader(cls: type) -> Reader:
    """A value within a value. What is not known of it is ignored: it has no version of its own."""

    def value_of(value: object) -> Any:
        if not isinstance(value, dict):
            raise WrongType("an object")
        readers = readers_of(cls)
        for name, (_, required) in readers.items():
            if required and name not in value:
                raise WrongType(f"an object with `{name}`")
        return cls(**{name: read(value[name]) for name, (read, _) in readers.items() if name in value})

    return value_of


def _mapping_reader(read: Reader) -> Reader:
    def mapping(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise WrongType("an object")
        return {name: read(member) for name, member in value.items()}

    return mapping


def _tuple_reader(read: Reader) -> Reader:
    def members(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise WrongType("a list")
        return tuple(read(member) for member in value)

    return members


def _enum_reader(enum: type[StrEnum]) -> Reader:
    choices = {member.value: member for member in enum}

    def choice(value: object) -> StrEnum:
        if not isinstance(value, str) or value not in choices:
            raise WrongType("one of " + ", ".join(choices))
        return choices[value]

    return choice


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    raise WrongType("an integer of 64 bits")


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise WrongType("a number")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise WrongType("a string")


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongType("true or false")


_SCALARS: dict[type, Reader] = {int: _integer, float: _number, str: _text, bool: _truth}
