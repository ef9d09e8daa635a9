"""Decodes values of a schema registry: Confluent's wire format, with Avro or Protobuf.

A value starts with a zero byte and the id of its writer's schema; a Protobuf value then names a message in
it. Workers fetch each schema once over HTTP. The table's columns are those of the subject's newest version
when the run starts; values of other versions are resolved to them.

A value with an unknown schema id is rejected. If the registry cannot be reached, the run fails: its records
may be good.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from penstock.model.errors.pipeline import RegistryUnusable
from penstock.pipeline.reading.avro_protobuf import (
    REGISTRY_PREFIX_BYTES,
    SCHEMAS_MAX,
    avro_columns,
    columns_of,
    message_columns,
    message_of,
    read_avro,
    read_message,
)

if TYPE_CHECKING:
    import pyarrow as pa

AVRO: Final = "AVRO"  # also what a registry means if it names no type
PROTOBUF: Final = "PROTOBUF"
REFERENCES_MAX: Final = 100
ATTEMPTS: Final = 4
ATTEMPT_SECONDS: Final = 10.0
BETWEEN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry's address and login."""

    url: str
    user: str | None = None
    password: str = field(default="", repr=False)
    authority: str | None = None  # the certificates to trust, as PEM

    def get(self, path: str) -> dict[str, Any] | None:
        """What the registry has at a path; None if it has nothing. Raises RegistryUnusable."""
        address = f"{self.url.rstrip('/')}/{path}"
        request = Request(address, headers={"Accept": "application/json"})  # noqa: S310 - the settings check it
        if self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        trust = None if self.authority is None else ssl.create_default_context(cadata=self.authority)
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                with urlopen(request, timeout=ATTEMPT_SECONDS, context=trust) as response:  # noqa: S310
                    content: dict[str, Any] = json.load(response)
                    return content
            except HTTPError as error:
                if error.code == 404:
                    return None
                if error.code < 500 or not attempts_left:
                    raise RegistryUnusable(url=self.url, reason=f"{error.code} {error.reason}") from error
            except (URLError, TimeoutError, ConnectionError, ValueError) as error:
                if not attempts_left:
                    raise RegistryUnusable(url=self.url, reason=str(error)) from error
            time.sleep(BETWEEN_SECONDS)
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    kind: str
    text: str  # Avro: JSON; Protobuf: a serialized file descriptor in base64
    references: tuple[tuple[str, RegisteredSchema], ...] = ()  # by name, those they need first


def newest_schema(registry: Registry, subject: str) -> RegisteredSchema:
    """The newest version of a subject. Raises RegistryUnusable."""
    entry = registry.get(f"subjects/{quote(subject, safe='')}/versions/latest?format=serialized")
    if entry is None:
        raise RegistryUnusable(url=registry.url, reason=f"it has no subject {subject!r}")
    return _schema(registry, entry)


@lru_cache(maxsize=SCHEMAS_MAX)
def schema_with_id(registry: Registry, schema_id: int) -> RegisteredSchema | None:
    entry = registry.get(f"schemas/ids/{schema_id}?format=serialized")
    return None if entry is None else _schema(registry, entry)


def _schema(registry: Registry, entry: dict[str, Any], depth: int = REFERENCES_MAX) -> RegisteredSchema:
    references = []
    for each in entry.get("references") or ():
        path = f"subjects/{quote(each['subject'], safe='')}/versions/{each['version']}?format=serialized"
        referenced = registry.get(path)
        if referenced is None or not depth:
            raise RegistryUnusable(url=registry.url, reason=f"it lacks the reference {each['name']!r}")
        references.append((each["name"], _schema(registry, referenced, depth - 1)))
    return RegisteredSchema(entry.get("schemaType") or AVRO, entry["schema"], tuple(references))


def registry_columns(schema: RegisteredSchema, message: str | None) -> dict[str, str]:
    """Name → type of the table's columns. Raises ValueError or KeyError if no table can hold them."""
    if schema.kind == AVRO:
        return avro_columns(schema.text)
    if schema.kind == PROTOBUF:
        return message_columns(_message(schema, message).DESCRIPTOR)
    raise ValueError(f"its type is {schema.kind}, expected {AVRO} or {PROTOBUF}")


@dataclass(frozen=True, slots=True)
class RegistryDecoder:
    """Decodes values of any version to the columns of `reader`."""

    schema: pa.Schema
    registry: Registry
    reader: RegisteredSchema

    def decode(self, values: pa.Array) -> list[pa.Array]:
        return columns_of([self._row(value) for value in values.to_pylist()], self.schema)

    def _row(self, value: bytes) -> dict[str, Any]:
        if len(value) <= REGISTRY_PREFIX_BYTES or value[0]:
            raise ValueError("not in a schema registry's wire format")
        schema_id = int.from_bytes(value[1:REGISTRY_PREFIX_BYTES], "big")
        writer = schema_with_id(self.registry, schema_id)
        if writer is None:
            raise ValueError(f"the registry has no schema {schema_id}")
        if writer.kind != self.reader.kind:
            raise ValueError(f"schema {schema_id} is {writer.kind}, expected {self.reader.kind}")
        body = value[REGISTRY_PREFIX_BYTES:]
        if writer.kind == AVRO:
            return read_avro(body, _parsed_avro(writer), _parsed_avro(self.reader))
        path, at = _message_path(body)
        return read_message(_message(writer, None, path), body[at:])


@lru_cache(maxsize=SCHEMAS_MAX)
def _parsed_avro(schema: RegisteredSchema) -> Any:
    return _parse_avro(schema, {})


def _parse_avro(schema: RegisteredSchema, named: dict[str, Any]) -> Any:
    """Parses a schema after those it refers to, whose names it needs."""
    import fastavro

    for _, reference in schema.references:
        _parse_avro(reference, named)
    return fastavro.parse_schema(json.loads(schema.text), named)


def _message_path(body: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of the file a value is, and where it starts. A single zero names the first message."""
    count, at = _zigzag(body, 0)
    path = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        path.append(index)
    return tuple(path) or (0,), at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]  # IndexError: the value ends too early
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at


@lru_cache(maxsize=SCHEMAS_MAX)
def _message(schema: RegisteredSchema, name: str | None, path: tuple[int, ...] = (0,)) -> Any:
    """The class of a message of the file, by its full name or by its place."""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet()
    _add_files(files, "penstock.proto", schema)
    file = files.file[-1]
    if name is None:
        first, *rest = path
        message = file.message_type[first]
        name = f"{file.package}.{message.name}" if file.package else message.name
        for index in rest:
            message = message.nested_type[index]
            name += f".{message.name}"
    return message_of(files, name)


def _add_files(files: Any, name: str, schema: RegisteredSchema) -> None:
    for reference, referenced in schema.references:
        _add_files(files, reference, referenced)
    if all(each.name != name for each in files.file):
        file = files.file.add()
        file.ParseFromString(base64.b64decode(schema.text))
        file.name = name
