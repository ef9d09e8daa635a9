"""Requests built from the definitions, with a chosen name in every field that takes one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.gateway.tenancy.apis import Treatment, treatment
from penstock.wire.codec import encode
from penstock.wire.definitions import STRUCT, load
from penstock.wire.field_rules import Kind, is_endpoint, rule_of
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.wire.definitions import Field

# Fields that decide how a name beside them is treated: its resource type, key type, or protocol.
BESIDE = {
    "ResourceType": 2,
    "KeyType": 0,
    "ProtocolType": "consumer",
    "Acks": 1,
    "PatternType": 3,
    # of ACLs: everything, from any host
    "ResourcePatternType": 3,
    "ResourceTypeFilter": 2,
    "PatternTypeFilter": 1,
    "Operation": 2,
    "PermissionType": 3,
    "Host": "*",
    "HostFilter": "*",
}
NAMES = frozenset((Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID, Kind.COORDINATOR_KEY, Kind.CONFIG_RESOURCE))
NO_ID = UUID(int=0)


@dataclass(frozen=True)
class Chosen:
    topic: str | None
    group: str | None
    transactional_id: str | None
    topic_id: UUID = NO_ID
    regex: str | None = None
    principal: str | None = None


PASSED_ON = frozenset((Treatment.SPLICED, Treatment.REBUILT))


@cache
def served(how: frozenset[Treatment] = PASSED_ON) -> list[tuple[str, int]]:
    """Every API with one of these treatments, in every version."""
    definitions = load()
    return [
        (api, version)
        for api in definitions.apis().values()
        if "broker" in definitions.request(api).listeners
        for version in definitions.request(api).valid_versions
        if treatment(api, version) in how
    ]


def body_of(api: str, version: int, chosen: Chosen) -> dict[str, Any]:
    return _struct(load().request(api).fields, f"{api}Request", version, chosen)


def _struct(fields: tuple[Field, ...], path: str, version: int, chosen: Chosen) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        here = f"{path}.{field.name}"
        if field.kind == STRUCT:
            inner = _struct(field.fields, here, version, chosen)
            body[field.name] = [inner] if field.array else inner
            continue
        value = _value(field, here, version, chosen)
        body[field.name] = [value] if field.array else value
    return body


def _value(field: Field, path: str, version: int, chosen: Chosen) -> Any:
    rule = rule_of(path, field)
    kind = rule.kind if rule is not None else Kind.PLAIN
    nullable = version in field.nullable and not field.array
    by_kind = {
        Kind.TOPIC: chosen.topic,
        Kind.GROUP: chosen.group,
        Kind.TRANSACTIONAL_ID: chosen.transactional_id,
        Kind.COORDINATOR_KEY: chosen.group,
        Kind.CONFIG_RESOURCE: chosen.topic,
        Kind.TOPIC_REGEX: chosen.regex,
        Kind.TRANSACTIONAL_ID_REGEX: chosen.regex,
        Kind.CONFIG_NAME: "retention.ms",
        Kind.ACL_RESOURCE: chosen.topic,
        Kind.PRINCIPAL: chosen.principal,
    }
    if kind in by_kind:
        value = by_kind[kind]
        return value if value is not None or nullable else ""
    if kind is Kind.TOPIC_ID:
        return chosen.topic_id
    if kind is Kind.RECORDS:
        return write([Record(0, 0, None, b"planted")])
    if kind in (Kind.SUBSCRIPTION, Kind.ASSIGNMENT):
        return embedded(kind, chosen.topic or "")
    if field.name in BESIDE:
        return BESIDE[field.name]
    plain = {"string": "x", "bytes": b"", "uuid": NO_ID, "bool": False, "float64": 0.0}
    return plain.get(field.kind, 0)


def embedded(kind: Kind, topic: str) -> bytes:
    if kind is Kind.SUBSCRIPTION:
        body: dict[str, Any] = {"Topics": [topic], "UserData": None, "OwnedPartitions": []}
        return b"\0\1" + encode("ConsumerProtocolSubscription", 1, body)
    body = {"AssignedPartitions": [{"Topic": topic, "Partitions": [0]}], "UserData": None}
    return b"\0\1" + encode("ConsumerProtocolAssignment", 1, body)


def names_in(api: str, version: int, body: Mapping[str, Any]) -> Iterator[tuple[Kind, Any]]:
    """Every name in a request, with its kind."""
    yield from _names(load().request(api).fields, f"{api}Request", version, body)


def _names(
    fields: tuple[Field, ...], path: str, version: int, body: Mapping[str, Any]
) -> Iterator[tuple[Kind, Any]]:
    for index, field in enumerate(fields):
        if version not in field.versions or is_endpoint(fields[index : index + 3]):
            continue
        here, value = f"{path}.{field.name}", body.get(field.name)
        values = (value or []) if field.array else [value]
        if field.kind == STRUCT:
            for inner in values:
                if inner is not None:
                    yield from _names(field.fields, here, version, inner)
            continue
        rule = rule_of(here, field)
        for one in values:
            if rule is not None:
                yield rule.kind, one
