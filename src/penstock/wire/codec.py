"""Encode plain dicts as Kafka messages and decode them, in every version Kafka defines.

Keys are Kafka's field names (`TopicId`, first letter in upper case). Values are `int`, `bool`, `float`,
`str`, `bytes`, `uuid.UUID`, lists, dicts, and None for null. A `records` field decodes to a memoryview
into the input; any bytes-like object encodes.

Encoding: an omitted field takes the default of Kafka's definition. As in Kafka's own classes, a field that
the version lacks is dropped if it is ignorable or holds its default, and refused otherwise. Decoding: a
dict has exactly the version's fields. Unknown tagged fields are kept under `_tags` as {tag: bytes} and
encode again.

A codec is Python source generated from the definition, compiled on first use and cached.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.wire import RequestMalformed, ResponseMalformed, ValueUnfit, VersionUnknown
from penstock.wire.codec_runtime import TRUNCATED, Malformed
from penstock.wire.codegen.decoder import UNKNOWN_TAGS, decoder
from penstock.wire.codegen.encoder import Unfit, encoder
from penstock.wire.definitions import Message, load
from penstock.wire.encoding_errors import explain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.wire.codegen.decoder import Decode
    from penstock.wire.codegen.encoder import Encode

__all__ = ["UNKNOWN_TAGS", "decode", "decode_at", "definition", "encode"]

_READ_FAILURES: Final = (Malformed, IndexError, struct.error, UnicodeDecodeError)
_WRITE_FAILURES: Final = (Unfit, struct.error, AttributeError, TypeError, ValueError, KeyError)


def encode(name: str, version: int, values: Mapping[str, Any]) -> bytes:
    write = _encoder(name, version)
    try:
        return b"".join(write(values))
    except _WRITE_FAILURES as failure:
        path, reason = explain(load().message(name), version, values, failure)
        raise ValueUnfit(message=name, version=version, path=path, reason=reason) from failure


def decode(name: str, version: int, data: bytes, position: int = 0) -> dict[str, Any]:
    """The values of a message that takes up all of `data` from `position` on."""
    values, end = decode_at(name, version, data, position)
    if end != len(data):
        raise _malformed(name, version, f"{len(data) - end} bytes follow its last field")
    return values


def decode_at(name: str, version: int, data: bytes, position: int) -> tuple[dict[str, Any], int]:
    """The values of a message that starts at `position`, and where it ends."""
    read = _decoder(name, version)
    try:
        return read(data, position)
    except _READ_FAILURES as failure:
        if isinstance(failure, Malformed):
            reason = str(failure)
        elif isinstance(failure, UnicodeDecodeError):
            reason = "a string is not UTF-8"
        else:
            reason = TRUNCATED
        raise _malformed(name, version, reason) from failure


def definition(name: str, version: int) -> Message:
    """The definition of a message; raises if it does not have this version."""
    message = load().message(name)
    if version not in message.valid_versions:
        raise VersionUnknown(
            message=name, version=version, kafka_version=load().kafka_version, valid=message.valid_versions
        )
    return message


@cache
def _encoder(name: str, version: int) -> Encode:
    return encoder(definition(name, version), version)


@cache
def _decoder(name: str, version: int) -> Decode:
    return decoder(definition(name, version), version)


def _malformed(name: str, version: int, reason: str) -> RequestMalformed | ResponseMalformed:
    sent_by_client = load().message(name).type == "request" or name == "RequestHeader"
    error = RequestMalformed if sent_by_client else ResponseMalformed
    return error(message=name, version=version, reason=reason)
