"""Events as JSON, and the rules for changing their schemas.

A record is one flat JSON object whose first member is `"schema": "<kind>/<major>.<minor>"`.

- A new field has a default and raises the minor version. Older readers ignore unknown fields and newer
  readers fill in the default, so a rolling upgrade may mix versions.
- Any other change (a field removed, renamed or with a new meaning) raises the major version. Readers
  refuse a newer major version rather than guess.
- Open parts (the body of a registry entity, the facts of an audit event, the names of counters) are kept
  unchanged, including what the reader does not know.

Field types are read from the class once: str, int, float, bool, string enums, ids, optional values,
mappings and tuples of these, and frozen dataclasses of these. `object` is any JSON value.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, NewType, Self, Union, get_args, get_origin, get_type_hints

from penstock.model.errors.events import EventFieldInvalid, EventOfAnotherKind, EventTooNew, EventUnreadable

SCHEMA: Final = "schema"
EVENT_BYTES_MAX: Final = 1 << 20  # about Kafka's default limit for one record
VERSION_DIGITS_MAX: Final = 9
VALUE_SHOWN_MAX: Final = 80  # characters of an invalid value that an error shows

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Reader = Callable[[object], Any]


class WrongType(Exception):
    """Carries what was expected. Leaves this module only as `EventFieldInvalid`."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of all events. A subclass sets its kind, version and topic."""

    kind: ClassVar[str]
    major: ClassVar[int] = 1
    minor: ClassVar[int] = 0
    topic: ClassVar[str]

    @property
    def key(self) -> bytes:
        """The record's key: it decides the partition, and compaction on compacted topics."""
        raise NotImplementedError

    @classmethod
    def schema(cls) -> str:
        return f"{cls.kind}/{cls.major}.{cls.minor}"

    def to_bytes(self) -> bytes:
        members: dict[str, object] = {SCHEMA: self.schema()}
        members.update((name, getattr(self, name)) for name in readers_of(type(self)))
        return json.dumps(members, separators=(",", ":"), allow_nan=False, default=_members).encode()

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Self:
        """Read a record's value; raises one of the errors of `model.errors.events`."""
        return cls(**read_fields(cls, cls.kind, cls._members(value)))

    @classmethod
    def invalid(cls, field: str, value: object, expected: str) -> EventFieldInvalid:
        return _field_invalid(cls.kind, field, value, expected)

    def require(self, holds: bool, field: str, expected: str) -> None:
        """Raise unless `holds`; for further checks in a subclass's `__post_init__`."""
        if not holds:
            raise self.invalid(field, getattr(self, field), expected)

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
            raise EventOfAnotherKind(expected=cls.kind, actual=kind)
        major, _, minor = version.partition(".")
        if not all(number.isdecimal() and len(number) <= VERSION_DIGITS_MAX for number in (major, minor)):
            raise EventUnreadable(kind=cls.kind, reason=f"`schema` is {members[SCHEMA]!r}")
        if int(major) > cls.major:
            raise EventTooNew(kind=cls.kind, actual=version, major=cls.major)
        if int(major) < cls.major:
            raise EventUnreadable(kind=cls.kind, reason=f"schema {version} is too old to be read")
        return members


def _members(value: Any) -> dict[str, object]:
    """A mapping, or a dataclass inside an event, as JSON has it."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def read_fields(
    cls: type, kind: str, members: Mapping[str, object], *, skip: Collection[str] = ()
) -> dict[str, Any]:
    """The values of a dataclass's fields that are among the members; raises if a required one is not."""
    values: dict[str, Any] = {}
    for name, (read, required) in readers_of(cls).items():
        if name in skip:
            continue
        if name in members:
            try:
                values[name] = read(members[name])
            except WrongType as expected:
                raise _field_invalid(kind, name, members[name], str(expected)) from None
        elif required:
            raise EventUnreadable(kind=kind, reason=f"`{name}` is missing")
    return values


def _field_invalid(kind: str, field: str, value: object, expected: str) -> EventFieldInvalid:
    shown = repr(value)
    if len(shown) > VALUE_SHOWN_MAX:
        shown = shown[: VALUE_SHOWN_MAX - 1] + "…"
    return EventFieldInvalid(kind=kind, field=field, value=shown, expected=expected)


_known: dict[type, dict[str, tuple[Reader, bool]]] = {}


def readers_of(cls: type) -> dict[str, tuple[Reader, bool]]:
    """For each field of a dataclass: its reader, and whether it is required."""
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
    """A function that converts a parsed JSON value to this type, or raises `WrongType`."""
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
    """A dataclass inside an event. It has no version, so unknown members are ignored."""

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
        return {_text(name): read(member) for name, member in value.items()}

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
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise WrongType("a finite number")


def _text(value: object) -> str:
    """JSON can escape half of a surrogate pair, which could not be written again."""
    if isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value)):
        return value
    raise WrongType("a string of Unicode characters")


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongType("true or false")


_SCALARS: dict[type, Reader] = {int: _integer, float: _number, str: _text, bool: _truth}
