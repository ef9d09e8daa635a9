"""Requests and responses as sent on a connection: size, header, body.

A flexible body has a flexible header. The one exception is the response to ApiVersions, which a client
reads before it knows what the broker supports (KIP-511).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.wire import RequestMalformed
from penstock.wire.codec import decode, decode_at, definition, encode
from penstock.wire.codec_runtime import TRUNCATED
from penstock.wire.definitions import load

if TYPE_CHECKING:
    from collections.abc import Mapping

API_VERSIONS: Final = "ApiVersions"

_size = struct.Struct(">i")
_request_start = struct.Struct(">hhi")


@dataclass(frozen=True, slots=True)
class Request:
    api: str
    version: int
    correlation_id: int
    client_id: str | None
    body: Mapping[str, Any]
    header_tags: dict[int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Response:
    correlation_id: int
    body: dict[str, Any]
    header_tags: dict[int, bytes] | None = None


def request_header_version(api: str, version: int) -> int:
    return 2 if load().request(api).is_flexible(version) else 1


def response_header_version(api: str, version: int) -> int:
    return 1 if api != API_VERSIONS and load().response(api).is_flexible(version) else 0


def encode_request(request: Request) -> bytes:
    """Encode a request with its size field."""
    values: dict[str, Any] = {
        "RequestApiKey": load().api_key(request.api),
        "RequestApiVersion": request.version,
        "CorrelationId": request.correlation_id,
        "ClientId": request.client_id,
    }
    if request.header_tags:
        values["_tags"] = request.header_tags
    header_version = request_header_version(request.api, request.version)
    header = encode("RequestHeader", header_version, values)
    return _framed(header, encode(request.api + "Request", request.version, request.body))


def encode_response(api: str, version: int, response: Response) -> bytes:
    """Encode a response with its size field."""
    values: dict[str, Any] = {"CorrelationId": response.correlation_id}
    if response.header_tags:
        values["_tags"] = response.header_tags
    header = encode("ResponseHeader", response_header_version(api, version), values)
    return _framed(header, encode(api + "Response", version, response.body))


def decode_request(frame: bytes) -> Request:
    """Decode a request without its size field."""
    if len(frame) < _request_start.size:
        raise RequestMalformed(message="RequestHeader", version="?", reason=TRUNCATED)
    key, version, _ = _request_start.unpack_from(frame)
    api = load().api_name(key)
    definition(api + "Request", version)
    header, position = decode_at("RequestHeader", request_header_version(api, version), frame, 0)
    body = decode(api + "Request", version, frame, position)
    return Request(api, version, header["CorrelationId"], header["ClientId"], body, header.get("_tags"))


def decode_response(api: str, version: int, frame: bytes) -> Response:
    """Decode a response without its size field."""
    header, position = decode_at("ResponseHeader", response_header_version(api, version), frame, 0)
    body = decode(api + "Response", version, frame, position)
    return Response(header["CorrelationId"], body, header.get("_tags"))


def _framed(header: bytes, body: bytes) -> bytes:
    return b"".join((_size.pack(len(header) + len(body)), header, body))
