"""Requests and responses as they stand on a connection: size, header, body.

Header versions follow from the body's: a flexible body has a flexible header, and the response to
ApiVersions never has one, since a client reads it before it knows what the broker speaks (KIP-511).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.wire import RequestMalformed, ResponseMalformed
from penstock.wire.codec import decode_at, definition, encode
from penstock.wire.definitions import load

if TYPE_CHECKING:
    from collections.abc import Mapping

API_VERSIONS: Final = "ApiVersions"
SIZE_BYTES: Final = 4

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
    """The request with its size before it, ready to send."""
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
    """The response with its size before it, ready to send."""
    values: dict[str, Any] = {"CorrelationId": response.correlation_id}
    if response.header_tags:
        values["_tags"] = response.header_tags
    header = encode("ResponseHeader", response_header_version(api, version), values)
    return _framed(header, encode(api + "Response", version, response.body))


def decode_request(frame: bytes) -> Request:
    """A request without its size, to its last byte."""
    if len(frame) < _request_start.size:
        raise RequestMalformed(
            message="RequestHeader", version="?", reason="it ends before its last field does"
        )
    key, version, _ = _request_start.unpack_from(frame)
    api = load().api_name(key)
    definition(api + "Request", version)
    header, position = decode_at("RequestHeader", request_header_version(api, version), frame, 0)
    body, end = decode_at(api + "Request", version, frame, position)
    if end != len(frame):
        reason = f"{len(frame) - end} bytes follow its last field"
        raise RequestMalformed(message=api + "Request", version=version, reason=reason)
    return Request(api, version, header["CorrelationId"], header["ClientId"], body, header.get("_tags"))


def decode_response(api: str, version: int, frame: bytes) -> Response:
    """A response without its size, to its last byte."""
    header, position = decode_at("ResponseHeader", response_header_version(api, version), frame, 0)
    body, end = decode_at(api + "Response", version, frame, position)
    if end != len(frame):
        reason = f"{len(frame) - end} bytes follow its last field"
        raise ResponseMalformed(message=api + "Response", version=version, reason=reason)
    return Response(header["CorrelationId"], body, header.get("_tags"))


def _framed(header: bytes, body: bytes) -> bytes:
    return b"".join((_size.pack(len(header) + len(body)), header, body))
