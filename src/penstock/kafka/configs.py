"""Configuration of topics, brokers (one, or the cluster's default), groups and loggers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.refusals import check
from penstock.kafka.routing import ANYONE, NodeWithId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.routing import Route
    from penstock.model.errors import PenstockError


class ResourceKind(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.name!r}" if self.name else "cluster default"


CLUSTER_DEFAULT = Resource(ResourceKind.BROKER, "")  # what every broker takes that has no value of its own


def topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


def broker(node_id: int) -> Resource:
    return Resource(ResourceKind.BROKER, str(node_id))


def group(name: str) -> Resource:
    return Resource(ResourceKind.GROUP, name)


class Source(IntEnum):
    """Where a value comes from, as Kafka numbers it."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER_DYNAMIC = 2
    CLUSTER_DYNAMIC = 3
    BROKER_STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    value: str | None  # None if it is sensitive
    source: Source
    read_only: bool
    sensitive: bool


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    value: str | None = None
    operation: Operation = Operation.SET


def changes(values: Mapping[str, str | None]) -> list[Change]:
    """Set each to its value; delete those whose value is None."""
    return [
        Change(name, value, Operation.DELETE if value is None else Operation.SET)
        for name, value in values.items()
    ]


async def describe(
    client: Client,
    resources: Sequence[Resource],
    *,
    names: Sequence[str] | None = None,
    timeout: float = CALL_SECONDS,
) -> dict[Resource, dict[str, Entry] | PenstockError]:
    """Every value that holds, or only those named."""

    async def ask(route: Route, asked: list[Resource]) -> dict[Resource, dict[str, Entry] | PenstockError]:
        wanted = [
            {"ResourceType": r.kind, "ResourceName": r.name, "ConfigurationKeys": _list(names)} for r in asked
        ]
        answer = await client.call("DescribeConfigs", {"Resources": wanted}, to=route, timeout=timeout)
        results: dict[Resource, dict[str, Entry] | PenstockError] = {}
        for r in answer["Results"]:
            resource = Resource(ResourceKind(r["ResourceType"]), r["ResourceName"])
            entries = {c["Name"]: _entry(c) for c in r["Configs"]}
            code, message = r["ErrorCode"], r["ErrorMessage"]
            results[resource] = outcome("DescribeConfigs", code, message, str(resource), entries)
        return results

    parts = await asyncio.gather(*(ask(route, asked) for route, asked in _by_route(resources).items()))
    return {resource: result for part in parts for resource, result in part.items()}


async def alter(
    client: Client,
    wanted: Mapping[Resource, Sequence[Change]],
    *,
    validate_only: bool = False,
    timeout: float = CALL_SECONDS,
) -> dict[Resource, PenstockError | None]:
    """Change single values; what is not named stays."""

    async def ask(route: Route, asked: list[Resource]) -> dict[Resource, PenstockError | None]:
        body = {"Resources": [_altered(r, wanted[r]) for r in asked], "ValidateOnly": validate_only}
        answer = await client.call("IncrementalAlterConfigs", body, to=route, timeout=timeout)
        results: dict[Resource, PenstockError | None] = {}
        for r in answer["Responses"]:
            resource = Resource(ResourceKind(r["ResourceType"]), r["ResourceName"])
            code, message = r["ErrorCode"], r["ErrorMessage"]
            results[resource] = outcome("IncrementalAlterConfigs", code, message, str(resource), None)
        return results

    parts = await asyncio.gather(*(ask(route, asked) for route, asked in _by_route(wanted).items()))
    return {resource: result for part in parts for resource, result in part.items()}


async def list_resources(
    client: Client, kinds: Sequence[ResourceKind] = (), *, timeout: float = CALL_SECONDS
) -> list[Resource]:
    """Resources that have dynamic configuration; of every kind if none is given."""
    body = {"ResourceTypes": [kind.value for kind in kinds]}
    answer = await client.call("ListConfigResources", body, timeout=timeout)
    check("ListConfigResources", answer["ErrorCode"])
    return [
        Resource(ResourceKind(r.get("ResourceType", ResourceKind.CLIENT_METRICS)), r["ResourceName"])
        for r in answer["ConfigResources"]
    ]


def _by_route(resources: Iterable[Resource]) -> dict[Route, list[Resource]]:
    """One broker's own configuration is asked of that broker, anything else of anyone."""
    grouped: dict[Route, list[Resource]] = {}
    for resource in resources:
        own = resource.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and resource.name
        route: Route = NodeWithId(int(resource.name)) if own else ANYONE
        grouped.setdefault(route, []).append(resource)
    return grouped


def _altered(resource: Resource, wanted: Sequence[Change]) -> dict[str, Any]:
    configs = [{"Name": c.name, "ConfigOperation": c.operation, "Value": c.value} for c in wanted]
    return {"ResourceType": resource.kind, "ResourceName": resource.name, "Configs": configs}


def _entry(c: Mapping[str, Any]) -> Entry:
    source = c["ConfigSource"]
    known = Source(source) if source in Source.__members__.values() else Source.UNKNOWN
    return Entry(c["Name"], c["Value"], known, c["ReadOnly"], c["IsSensitive"])


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
