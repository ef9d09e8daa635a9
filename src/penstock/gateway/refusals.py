"""Answers that say no, for any API, in the shape Kafka itself would give them.

An error code belongs where the API has one: at the top of the answer, or in an element for each
thing that was asked for. Which things those are follows from the definitions: an answer's array
whose elements carry an error code mirrors the request's array that it shares a field with, or the
request's only array. Two APIs turn what they were asked about inside out; those are written by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.wire.definitions import STRUCT, load
from penstock.wire.frames import Response, encode_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.wire.definitions import Field
    from penstock.wire.frames import Request

_CODES: Final = ("ErrorCode", "PartitionErrorCode", "AcknowledgeErrorCode")
_TEXT: Final = "ErrorMessage"


def refusal(
    request: Request, code: int, text: str | None = None, *, or_nothing: bool = False
) -> bytes | None:
    """The frame that refuses a request; None if its API has no place for an error.

    With `or_nothing` it is then an answer without anything in it, as from a cluster that has nothing:
    for requests that changed nothing and would have been told nothing.
    """
    version = request.version
    response = load().response(request.api)
    by_hand = _BY_HAND.get(request.api)
    if by_hand is not None:
        body = by_hand(request.body, code, text)
    else:
        body = _struct(response.fields, load().request(request.api).fields, request.body, version, code, text)
    if not or_nothing and not _says(response.fields, body):
        return None
    return encode_response(request.api, version, Response(request.correlation_id, body))


def _says(fields: Sequence[Field], body: Mapping[str, Any]) -> bool:
    """Does an error code stand anywhere in this answer?"""
    for field in fields:
        value = body.get(field.name)
        if value is None:
            continue
        if field.name in _CODES:
            return True
        if field.kind == STRUCT and any(
            _says(field.fields, inner) for inner in (value if field.array else [value])
        ):
            return True
    return False


def _struct(
    fields: Sequence[Field],
    asked_fields: Sequence[Field],
    asked: Mapping[str, Any],
    version: int,
    code: int,
    text: str | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        if field.name in _CODES:
            body[field.name] = code
        elif field.name == _TEXT and version in field.nullable:
            body[field.name] = text
        elif field.array and field.kind == STRUCT:
            body[field.name] = _mirrored(field, asked_fields, asked, version, code, text)
        elif field.name in asked and not field.array and field.kind != STRUCT:
            body[field.name] = asked[field.name]
    return body


def _mirrored(
    field: Field,
    asked_fields: Sequence[Field],
    asked: Mapping[str, Any],
    version: int,
    code: int,
    text: str | None,
) -> list[dict[str, Any]]:
    if not _carries_code(field):
        return _echoed(field, asked)
    source = _source(field, asked_fields, asked)
    if source is None:
        return []
    elements = []
    for value in asked[source.name] or []:
        if source.kind == STRUCT:
            elements.append(_struct(field.fields, source.fields, value, version, code, text))
        else:
            element = _struct(field.fields, (), {}, version, code, text)
            key = next((f.name for f in field.fields if f.kind == source.kind and f.name != _TEXT), None)
            if key is not None and key not in _CODES:
                element[key] = value
            elements.append(element)
    return elements


def _echoed(field: Field, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the error is about, where it is a list of its own, such as the parts of a quota's entity."""
    names = {inner.name for inner in field.fields}
    return [
        {name: value for name, value in one.items() if name in names} for one in asked.get(field.name) or []
    ]


def _scram_users(asked: Mapping[str, Any], code: int, text: str | None) -> dict[str, Any]:
    names = dict.fromkeys(one["Name"] for key in ("Deletions", "Upsertions") for one in asked.get(key, ()))
    return {"Results": [{"User": name, "ErrorCode": code, "ErrorMessage": text} for name in names]}


def _log_dirs(asked: Mapping[str, Any], code: int, text: str | None) -> dict[str, Any]:
    del text
    results = [
        {
            "TopicName": topic["Name"],
            "Partitions": [{"PartitionIndex": number, "ErrorCode": code} for number in topic["Partitions"]],
        }
        for directory in asked.get("Dirs", ())
        for topic in directory["Topics"]
    ]
    return {"Results": results}


_BY_HAND: Final = {"AlterUserScramCredentials": _scram_users, "AlterReplicaLogDirs": _log_dirs}


def _carries_code(field: Field) -> bool:
    return any(f.name in _CODES or (f.kind == STRUCT and _carries_code(f)) for f in field.fields)


def _source(field: Field, asked_fields: Sequence[Field], asked: Mapping[str, Any]) -> Field | None:
    """The request's array that this array of the answer speaks of."""
    arrays = [f for f in asked_fields if f.array and f.name in asked]
    names = {f.name for f in field.fields}
    shared = [f for f in arrays if f.name == field.name or names & {inner.name for inner in f.fields}]
    if shared:
        return shared[0]
    return arrays[0] if len(arrays) == 1 else None
