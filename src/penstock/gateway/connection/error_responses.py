"""Error responses for any API, in the shape Kafka itself would give them.

An error code goes where the API has one: at the top of the response, or in one element for each requested
item. The definitions show which items: a response array whose elements carry an error code mirrors the
request array that shares a field with it, or the request's only array. Two APIs do not follow this and are
written by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.wire.definitions import STRUCT, load
from penstock.wire.frames import Response, encode_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.wire.definitions import Field
    from penstock.wire.frames import Request

_CODES: Final = ("ErrorCode", "PartitionErrorCode", "AcknowledgeErrorCode")
_TEXT: Final = "ErrorMessage"


class _Error(NamedTuple):
    version: int
    code: int
    text: str | None


def error_response(
    request: Request, code: int, text: str | None = None, *, or_empty: bool = False
) -> bytes | None:
    """The frame that refuses a request; None if its API has no error code.

    With `or_empty`, the result for such an API is an empty response, as from a cluster that has nothing. This
    suits requests that change nothing.
    """
    version = request.version
    response = load().response(request.api)
    by_hand = _BY_HAND.get(request.api)
    if by_hand is not None:
        body = by_hand(request.body, code, text)
    else:
        error = _Error(version, code, text)
        body = _struct(response.fields, load().request(request.api).fields, request.body, error)
    if not or_empty and not _has_error_code(response.fields, body):
        return None
    return encode_response(request.api, version, Response(request.correlation_id, body))


def _has_error_code(fields: Sequence[Field], body: Mapping[str, Any]) -> bool:
    """Whether an error code occurs anywhere in this response."""
    for field in fields:
        value = body.get(field.name)
        if value is None:
            continue
        if field.name in _CODES:
            return True
        if field.kind == STRUCT and any(
            _has_error_code(field.fields, inner) for inner in (value if field.array else [value])
        ):
            return True
    return False


def _struct(
    fields: Sequence[Field], request_fields: Sequence[Field], request: Mapping[str, Any], error: _Error
) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for field in fields:
        if error.version not in field.versions:
            continue
        if field.name in _CODES:
            body[field.name] = error.code
        elif field.name == _TEXT and error.version in field.nullable:
            body[field.name] = error.text
        elif field.array and field.kind == STRUCT:
            body[field.name] = _mirrored(field, request_fields, request, error)
        elif field.name in request and not field.array and field.kind != STRUCT:
            body[field.name] = request[field.name]
    return body


def _mirrored(
    field: Field, request_fields: Sequence[Field], request: Mapping[str, Any], error: _Error
) -> list[dict[str, Any]]:
    if not _carries_code(field):
        return _echoed(field, request)
    source = _source(field, request_fields, request)
    if source is None:
        return []
    elements = []
    for value in request[source.name] or []:
        if source.kind == STRUCT:
            elements.append(_struct(field.fields, source.fields, value, error))
        else:
            element = _struct(field.fields, (), {}, error)
            key = next((f.name for f in field.fields if f.kind == source.kind and f.name != _TEXT), None)
            if key is not None and key not in _CODES:
                element[key] = value
            elements.append(element)
    return elements


def _echoed(field: Field, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items the error is about, where the API repeats them, such as a quota's entity."""
    names = {inner.name for inner in field.fields}
    return [
        {name: value for name, value in one.items() if name in names} for one in request.get(field.name) or []
    ]


def _scram_users(request: Mapping[str, Any], code: int, text: str | None) -> dict[str, Any]:
    names = dict.fromkeys(one["Name"] for key in ("Deletions", "Upsertions") for one in request.get(key, ()))
    return {"Results": [{"User": name, "ErrorCode": code, "ErrorMessage": text} for name in names]}


def _log_dirs(request: Mapping[str, Any], code: int, text: str | None) -> dict[str, Any]:
    del text
    results = [
        {
            "TopicName": topic["Name"],
            "Partitions": [{"PartitionIndex": number, "ErrorCode": code} for number in topic["Partitions"]],
        }
        for directory in request.get("Dirs", ())
        for topic in directory["Topics"]
    ]
    return {"Results": results}


_BY_HAND: Final = {"AlterUserScramCredentials": _scram_users, "AlterReplicaLogDirs": _log_dirs}


def _carries_code(field: Field) -> bool:
    return any(f.name in _CODES or (f.kind == STRUCT and _carries_code(f)) for f in field.fields)


def _source(field: Field, request_fields: Sequence[Field], request: Mapping[str, Any]) -> Field | None:
    """The request array that this response array mirrors."""
    arrays = [f for f in request_fields if f.array and f.name in request]
    names = {f.name for f in field.fields}
    shared = [f for f in arrays if f.name == field.name or names & {inner.name for inner in f.fields}]
    if shared:
        return shared[0]
    return arrays[0] if len(arrays) == 1 else None
