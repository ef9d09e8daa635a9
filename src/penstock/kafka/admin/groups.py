"""List, describe and delete groups of every type: classic, consumer, share, streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import NodeWithId, group_coordinator
from penstock.wire.codec import decode_at
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

CONSUMER_PROTOCOL: Final = "consumer"
_DEAD: Final = "Dead"  # the state DescribeGroups before version 6 reports for a missing group


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class GroupListing:
    id: str
    type: GroupType
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition] = frozenset()  # its assignment once the rebalance is complete
    tasks: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)  # streams only


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    type: GroupType
    state: str
    assignor: str
    epoch: int  # −1: classic groups have none
    members: tuple[Member, ...]


async def list_all(
    client: Client,
    *,
    states: Sequence[str] = (),
    types: Sequence[GroupType] = (),
    timeout: float = CALL_SECONDS,
) -> dict[str, GroupListing]:
    """Every group of the cluster. Each broker lists only the groups it coordinates."""

    async def list_on(node_id: int) -> list[GroupListing]:
        def body(version: int) -> dict[str, Any]:
            filters: dict[str, Any] = {"StatesFilter": list(states)} if version >= 4 else {}
            return filters | ({"TypesFilter": [t.value for t in types]} if version >= 5 else {})

        response = await client.call("ListGroups", body, to=NodeWithId(node_id), timeout=timeout)
        check("ListGroups", response["ErrorCode"], None, f"broker {node_id}")
        return [_listing(g, node_id) for g in response["Groups"]]

    nodes = (await client.cluster(refresh=True)).real_nodes
    by_node = await asyncio.gather(*map(list_on, nodes))
    return {listing.id: listing for listings in by_node for listing in listings}


async def describe(
    client: Client,
    groups: Sequence[str],
    *,
    type_: GroupType = GroupType.UNKNOWN,
    timeout: float = CALL_SECONDS,
) -> dict[str, Group | PenstockError]:
    """Describe each group; if the type is unknown, the types are tried in turn."""
    kinds = list(_DESCRIBED) if type_ is GroupType.UNKNOWN else [type_]

    async def one(group: str) -> Group | PenstockError:
        for kind in kinds[:-1]:
            result = await _describe(client, group, kind, timeout)
            if isinstance(result, Group) or result.facts.get("error_code") != Code.GROUP_ID_NOT_FOUND:
                return result
        return await _describe(client, group, kinds[-1], timeout)

    return dict(zip(groups, await asyncio.gather(*map(one, groups))))


async def delete(
    client: Client, groups: Sequence[str], *, timeout: float = CALL_SECONDS
) -> dict[str, PenstockError | None]:
    """Delete groups without members, together with their committed offsets."""

    async def one(group: str) -> PenstockError | None:
        body = {"GroupsNames": [group]}
        response = await client.call("DeleteGroups", body, to=group_coordinator(group), timeout=timeout)
        code = response["Results"][0]["ErrorCode"]
        return outcome("DeleteGroups", code, None, f"group {group!r}", None)

    return dict(zip(groups, await asyncio.gather(*map(one, groups))))


async def _describe(client: Client, group: str, kind: GroupType, timeout: float) -> Group | PenstockError:
    api, key, read = _DESCRIBED[kind]
    response = await client.call(api, {key: [group]}, to=group_coordinator(group), timeout=timeout)
    g = response["Groups"][0]
    code = g["ErrorCode"]
    if kind is GroupType.CLASSIC and g["GroupState"] == _DEAD and not g["Members"]:
        code = code or Code.GROUP_ID_NOT_FOUND
    if code != Code.NONE:
        return broker_error(api, code, g.get("ErrorMessage"), f"group {group!r}")
    return read(g)


def _classic(g: Mapping[str, Any]) -> Group:
    consumers = g["ProtocolType"] == CONSUMER_PROTOCOL
    members = tuple(
        _member(m, assignment=assigned(m["MemberAssignment"]) if consumers else frozenset())
        for m in g["Members"]
    )
    return Group(g["GroupId"], GroupType.CLASSIC, g["GroupState"], g["ProtocolData"], -1, members)


def _member(
    m: Mapping[str, Any], *, assignment: frozenset[TopicPartition] = frozenset(), **more: Any
) -> Member:
    instance_id = m.get("GroupInstanceId", m.get("InstanceId"))  # of the classic and the newer APIs
    host = m["ClientHost"].removeprefix("/")
    return Member(m["MemberId"], instance_id, m["ClientId"], host, assignment, **more)


def assigned(assignment: bytes) -> frozenset[TopicPartition]:
    """The partitions in a classic consumer's assignment, which is prefixed with its version."""
    if len(assignment) < 2:
        return frozenset()
    name = "ConsumerProtocolAssignment"
    version = min(int.from_bytes(assignment[:2], "big"), load().message(name).valid_versions.last)
    values, _ = decode_at(name, version, bytes(assignment), 2)  # newer versions only append
    return frozenset(
        TopicPartition(t["Topic"], p) for t in values["AssignedPartitions"] for p in t["Partitions"]
    )


def _modern(g: Mapping[str, Any], kind: GroupType) -> Group:
    members = tuple(
        _member(m, assignment=_partitions(m["Assignment"]), target=_partitions(m.get("TargetAssignment")))
        for m in g["Members"]
    )
    return Group(g["GroupId"], kind, g["GroupState"], g["AssignorName"], g["GroupEpoch"], members)


def _streams(g: Mapping[str, Any]) -> Group:
    roles = {"active": "ActiveTasks", "standby": "StandbyTasks", "warmup": "WarmupTasks"}

    def tasks(assignment: Mapping[str, Any], key: str) -> tuple[tuple[str, int], ...]:
        return tuple((t["SubtopologyId"], p) for t in assignment[key] for p in t["Partitions"])

    members = tuple(
        _member(m, tasks={role: tasks(m["Assignment"], key) for role, key in roles.items()})
        for m in g["Members"]
    )
    return Group(g["GroupId"], GroupType.STREAMS, g["GroupState"], "", g["GroupEpoch"], members)


def _partitions(assignment: Mapping[str, Any] | None) -> frozenset[TopicPartition]:
    topics: Iterable[Mapping[str, Any]] = assignment["TopicPartitions"] if assignment else ()
    return frozenset(TopicPartition(t["TopicName"], p) for t in topics for p in t["Partitions"])


def _listing(g: Mapping[str, Any], node_id: int) -> GroupListing:
    kind, state = _type(g.get("GroupType", "")), g.get("GroupState", "")
    return GroupListing(g["GroupId"], kind, state, g["ProtocolType"], node_id)


def _type(name: str) -> GroupType:
    known = {t.value: t for t in GroupType}
    return known.get(name.lower(), GroupType.UNKNOWN)


# Tried in this order when the type is unknown. DescribeGroups accepts every group that the newer APIs
# reject, so it comes last.
_DESCRIBED: Final[dict[GroupType, tuple[str, str, Callable[[Mapping[str, Any]], Group]]]] = {
    GroupType.CONSUMER: ("ConsumerGroupDescribe", "GroupIds", lambda g: _modern(g, GroupType.CONSUMER)),
    GroupType.SHARE: ("ShareGroupDescribe", "GroupIds", lambda g: _modern(g, GroupType.SHARE)),
    GroupType.STREAMS: ("StreamsGroupDescribe", "GroupIds", _streams),
    GroupType.CLASSIC: ("DescribeGroups", "Groups", _classic),
}
