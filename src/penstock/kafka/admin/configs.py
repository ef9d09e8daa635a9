"""Read and change the configuration of topics, brokers, the cluster default, groups and loggers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import ANY_NODE, NodeWithId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.routing import Route
    from penstock.model.errors import PenstockError

V = TypeVar("V")


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


CLUSTER_DEFAULT = Resource(ResourceKind.BROKER, "")  # applies to brokers without a value for that key


def topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


def broker(node_id: int) -> Resource:
    return Resource(ResourceKind.BROKER, str(node_id))


def group(name: str) -> Resource:
    return Resource(ResourceKind.GROUP, name)


class Source(IntEnum):
    """Where a value comes from: Kafka's ConfigSource."""

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
    value: str | None  # None if sensitive
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
    """Every effective value, or only those named."""

    async def call(route: Route, routed: list[Resource]) -> dict[Resource, dict[str, Entry] | PenstockError]:
        requested = [
            {"ResourceType": r.kind, "ResourceName": r.name, "ConfigurationKeys": _list(names)}
            for r in routed
        ]
        response = await client.call("DescribeConfigs", {"Resources": requested}, to=route, timeout=timeout)
        results: dict[Resource, dict[str, Entry] | PenstockError] = {}
        for r in response["Results"]:
            resource = Resource(ResourceKind(r["ResourceType"]), r["ResourceName"])
            entries = {c["Name"]: _entry(c) for c in r["Configs"]}
            code, message = r["ErrorCode"], r["ErrorMessage"]
            results[resource] = outcome("DescribeConfigs", code, message, str(resource), entries)
        return results

    return await _call_by_route(resources, call)


async def alter(
    client: Client,
    altered: Mapping[Resource, Sequence[Change]],
    *,
    validate_only: bool = False,
    timeout: float = CALL_SECONDS,
) -> dict[Resource, PenstockError | None]:
    """Change single values; others stay as they are."""

    async def call(route: Route, routed: list[Resource]) -> dict[Resource, PenstockError | None]:
        body = {"Resources": [_alter_resource(r, altered[r]) for r in routed], "ValidateOnly": validate_only}
        response = await client.call("IncrementalAlterConfigs", body, to=route, timeout=timeout)
        results: dict[Resource, PenstockError | None] = {}
        for r in response["Responses"]:
            resource = Resource(ResourceKind(r["ResourceType"]), r["ResourceName"])
            code, message = r["ErrorCode"], r["ErrorMessage"]
            results[resource] = outcome("IncrementalAlterConfigs", code, message, str(resource), None)
        return results

    return await _call_by_route(altered, call)


async def list_resources(
    client: Client, kinds: Sequence[ResourceKind] = (), *, timeout: float = CALL_SECONDS
) -> list[Resource]:
    """Resources with dynamic configuration, of these kinds or of all."""
    body = {"ResourceTypes": [kind.value for kind in kinds]}
    response = await client.call("ListConfigResources", body, timeout=timeout)
    check("ListConfigResources", response["ErrorCode"])
    return [
        Resource(ResourceKind(r.get("ResourceType", ResourceKind.CLIENT_METRICS)), r["ResourceName"])
        for r in response["ConfigResources"]
    ]


async def _call_by_route(
    resources: Iterable[Resource], call: Callable[[Route, list[Resource]], Awaitable[dict[Resource, V]]]
) -> dict[Resource, V]:
    """Call each route with its resources: a broker for its own, any node for all others."""
    grouped: dict[Route, list[Resource]] = {}
    for resource in resources:
        single_broker = resource.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and resource.name
        route: Route = NodeWithId(int(resource.name)) if single_broker else ANY_NODE
        grouped.setdefault(route, []).append(resource)
    responses = await asyncio.gather(*(call(route, routed) for route, routed in grouped.items()))
    return {resource: result for results in responses for resource, result in results.items()}


def _alter_resource(resource: Resource, altered: Sequence[Change]) -> dict[str, Any]:
    configs = [{"Name": c.name, "ConfigOperation": c.operation, "Value": c.value} for c in altered]
    return {"ResourceType": resource.kind, "ResourceName": resource.name, "Configs": configs}


def _entry(c: Mapping[str, Any]) -> Entry:
    source = c["ConfigSource"]
    known = Source(source) if source in Source.__members__.values() else Source.UNKNOWN
    return Entry(c["Name"], c["Value"], known, c["ReadOnly"], c["IsSensitive"])


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
