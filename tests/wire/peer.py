"""kio as an independent implementation: its classes, and our values as their instances."""

from __future__ import annotations

import io
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from penstock.wire.codegen.decoder import present
from penstock.wire.definitions import STRUCT, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import Field as DataclassField

    from penstock.wire.definitions import Field

SUFFIXES = {EntityType.request: "Request", EntityType.response: "Response"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# kio gives these integers a richer type, with a narrower range than the wire's.
NARROWED: dict[str, st.SearchStrategy[int]] = {
    "error_code": st.sampled_from([int(code.value) for code in ErrorCode]),
    "timedelta_i32": st.integers(0, 2**31 - 1),
    "timedelta_i64": st.integers(0, 10**12),
    "datetime_i64": st.integers(0, 10**12),
}
NO_TIME = -1


def messages() -> dict[str, list[int]]:
    """Names of the messages that kio has too, with the versions that both have."""
    known: dict[str, list[int]] = {}
    for kio_name, versions in schema_name_map.items():
        camel = "".join(part.capitalize() for part in kio_name.split("_"))
        for version, kinds in versions.items():
            for kind in kinds:
                name = _spelled(camel + SUFFIXES.get(kind, ""))
                if name and version in load().message(name).valid_versions:
                    known.setdefault(name, []).append(version)
    return {name: sorted(versions) for name, versions in sorted(known.items())}


@cache
def _spellings() -> dict[str, str]:
    return {name.lower(): name for name in load().names()}


def _spelled(name: str) -> str | None:
    return _spellings().get(name.lower())


@cache
def kio_class(name: str, version: int) -> type:
    for kio_name, versions in schema_name_map.items():
        for kind in versions.get(version, {}):
            camel = "".join(part.capitalize() for part in kio_name.split("_"))
            if (camel + SUFFIXES.get(kind, "")).lower() == name.lower():
                return load_entity_schema(kio_name, version, kind)
    raise LookupError(f"kio has no {name} v{version}")


class Narrower:
    """Keeps values within what kio can hold; hashable, so that strategies are built once."""

    def __init__(self, name: str, version: int) -> None:
        self.kinds: dict[str, str] = {}
        self._walk(load().message(name).fields, kio_class(name, version), version, name)

    def _walk(self, fields: tuple[Field, ...], cls: type, version: int, path: str) -> None:
        for ours, theirs in zip(present(fields, version), fields_of(cls), strict=True):
            inner = f"{path}.{ours.name}"
            if ours.kind == STRUCT:
                self._walk(ours.fields, struct_class(theirs.type), version, inner)
            else:
                self.kinds[inner] = theirs.metadata["kafka_type"]

    def __call__(self, path: str) -> st.SearchStrategy[Any] | None:
        return NARROWED.get(self.kinds.get(path, ""))


def struct_class(annotation: Any) -> type:
    """The dataclass inside `X`, `X | None`, `tuple[X, ...]` and the like."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    for inner in get_args(annotation):
        if inner is not Ellipsis and inner is not type(None):
            return struct_class(inner)
    raise TypeError(annotation)


def as_entity(fields: tuple[Field, ...], cls: type, version: int, values: Mapping[str, Any]) -> Any:
    members: dict[str, Any] = {}
    for ours, theirs in zip(present(fields, version), fields_of(cls), strict=True):
        value = values[ours.name]
        if value is not None and ours.array:
            value = tuple(_element(ours, theirs, version, element) for element in value)
        elif value is not None:
            value = _element(ours, theirs, version, value)
        members[theirs.name] = value
    return cls(**members)


def _element(ours: Field, theirs: DataclassField[Any], version: int, value: Any) -> Any:
    if ours.kind == STRUCT:
        return as_entity(ours.fields, struct_class(theirs.type), version, value)
    return _scalar(theirs.metadata["kafka_type"], value)


def _scalar(kind: str, value: Any) -> Any:
    if kind == "uuid":
        return None if value == UUID(int=0) else value
    if kind == "error_code":
        return ErrorCode(value)
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return None if value == NO_TIME else EPOCH + timedelta(milliseconds=value)
    return value


def kio_encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_decode(cls: type, data: bytes) -> tuple[Any, int]:
    decoded: tuple[Any, int] = entity_reader(cls)(data, 0)
    return decoded
