"""Find the value of a message that cannot be encoded, and the reason.

Encoders do not check types; `struct` or a missing method stops them. Only then are the values compared with
the definition to find the field at fault.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.wire.codec_runtime import FORMATS
from penstock.wire.codegen.decoder import UNKNOWN_TAGS, present
from penstock.wire.definitions import STRUCT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.wire.definitions import Field, Message

_STRING_BYTES_MAX = 32767  # an int16 length in versions that are not flexible


def explain(
    message: Message, version: int, values: Mapping[str, Any], failure: BaseException
) -> tuple[str, str]:
    """The path of the first value that does not fit, and the reason."""
    flexible = message.is_flexible(version)
    for path, reason in _struct(message.fields, version, flexible, values, ""):
        return path or message.name, reason
    return message.name, f"cannot be encoded: {failure}"


def _struct(
    fields: tuple[Field, ...], version: int, flexible: bool, values: Any, path: str
) -> Iterator[tuple[str, str]]:
    if not hasattr(values, "items"):
        yield path.rstrip("."), f"is {values!r}, not a mapping of field names"
        return
    shown = {field.name: field for field in present(fields, version)}
    declared = {field.name for field in fields}
    for name, value in values.items():
        if name in shown:
            yield from _value(shown[name], version, flexible, value, path + name)
        elif name == UNKNOWN_TAGS:
            if value and not flexible:
                yield path + name, f"has tags, which version {version} cannot carry"
        elif name not in declared:
            yield path + name, f"is not a field here; known are {', '.join(shown)}"
        else:
            field = next(field for field in fields if field.name == name)
            if not field.ignorable and value not in (None, field.default, (), []):
                yield path + name, f"is {value!r}, which version {version} cannot carry"
    for name, field in shown.items():
        if name not in values and field.default_null and version not in field.nullable:
            yield path + name, "is missing, and its default, null, is not allowed in this version"


def _value(field: Field, version: int, flexible: bool, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if value is None:
        if version not in field.nullable:
            yield path, "is null, which this version does not allow"
    elif field.array:
        if not isinstance(value, (list, tuple)):
            yield path, f"is {value!r}, not a list"
            return
        for index, element in enumerate(value):
            yield from _element(field, version, flexible, element, f"{path}[{index}]")
    else:
        yield from _element(field, version, flexible, value, path)


def _element(field: Field, version: int, flexible: bool, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if field.kind == STRUCT:
        yield from _struct(field.fields, version, flexible, value, path + ".")
    elif field.kind == "string":
        if not isinstance(value, str):
            yield path, f"is {value!r}, not a string"
        elif not flexible and len(value.encode(errors="replace")) > _STRING_BYTES_MAX:
            yield path, f"is longer than {_STRING_BYTES_MAX} bytes"
    elif field.kind in ("bytes", "records"):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            yield path, f"is {value!r}, not bytes"
    elif field.kind == "uuid":
        if not isinstance(value, UUID):
            yield path, f"is {value!r}, not a uuid.UUID"
    else:
        try:
            struct.pack(">" + FORMATS[field.kind], value)
        except struct.error:
            yield path, f"is {value!r}, which is not of type {field.kind}"
