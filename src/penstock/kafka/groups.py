"""Groups of every kind (classic, consumer, share, streams): list, describe, delete."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.refusals import check, refusal
from penstock.kafka.routing import NodeWithId, group_coordinator
from penstock.wire.codec import decode_at
from penstock.wire.codes import Code
from penstock.wire.definitions import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

CONSUMER_PROTOCOL: Final = "consumer"
_DEAD: Final = "Dead"  # how DescribeGroups before version 6 says that there is no such group


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Listed:
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
    target: frozenset[TopicPartition] = frozenset()  # what it is to have once the group has settled
    tasks: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)  # streams only


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    type: GroupType
    state: str
    assignor: str
    epoch: int  # −1: classic groups tell none
    members: tuple[Member, ...]


async def list_all(
    client: Client,
    *,
    states: Sequence[str] = (),
    types: Sequence[GroupType] = (),
    timeout: float = CALL_SECONDS,
) -> dict[str, Listed]:
    """Every group of the cluster; each broker knows those it coordinates."""

    async def ask(node_id: int) -> list[Listed]:
        def body(version: int) -> dict[str, Any]:
            filters: dict[str, Any] = {"StatesFilter": list(states)} if version >= 4 else {}
            return filters | ({"TypesFilter": [t.value for t in types]} if version >= 5 else {})

        answer = await client.call("ListGroups", body, to=NodeWithId(node_id), timeout=timeout)
        check("ListGroups", answer["ErrorCode"], None, f"broker {node_id}")
        return [
            Listed(
                g["GroupId"],
                _type(g.get("GroupType", "")),
                g.get("GroupState", ""),
                g["ProtocolType"],
                node_id,
            )
            for g in answer["Groups"]
        ]

    nodes = (await client.cluster(renew=True)).nodes
    found = await asyncio.gather(*map(ask, sorted(nodes)))
    return {listed.id: listed for part in found for listed in part}


async def describe(
    client: Client,
    groups: Sequence[str],
    *,
    type_: GroupType = GroupType.UNKNOWN,
    timeout: float = CALL_SECONDS,
) -> dict[str, Group | PenstockError]:
    """Describe each; if their type is not known, the kinds are tried in turn."""
    kinds = list(_DESCRIBED) if type_ is GroupType.UNKNOWN else [type_]

    async def one(group: str) -> Group | PenstockError:
        for kind in kinds[:-1]:
            found = await _describe(client, group, kind, timeout)
            if isinstance(found, Group) or found.facts.get("error_code") != Code.GROUP_ID_NOT_FOUND:
                return found
        return await _describe(client, group, kinds[-1], timeout)

    return dict(zip(groups, await asyncio.gather(*map(one, groups))))


async def delete(
    client: Client, groups: Sequence[str], *, timeout: float = CALL_SECONDS
) -> dict[str, PenstockError | None]:
    """Delete groups that have no members, their committed offsets with them."""

    async def one(group: str) -> PenstockError | None:
        body = {"GroupsNames": [group]}
        answer = await client.call("DeleteGroups", body, to=group_coordinator(group), timeout=timeout)
        code = answer["Results"][0]["ErrorCode"]
        return outcome("DeleteGroups", code, None, f"group {group!r}", None)

    return dict(zip(groups, await asyncio.gather(*map(one, groups))))


async def _describe(client: Client, group: str, kind: GroupType, timeout: float) -> Group | PenstockError:
    api, key, read = _DESCRIBED[kind]
    answer = await client.call(api, {key: [group]}, to=group_coordinator(group), timeout=timeout)
    g = answer["Groups"][0]
    code = g["ErrorCode"]
    if kind is GroupType.CLASSIC and g["GroupState"] == _DEAD and not g["Members"]:
        code = code or Code.GROUP_ID_NOT_FOUND
    if code != Code.NONE:
        return refusal(api, code, g.get("ErrorMessage"), f"group {group!r}")
    return read(g)


def _classic(g: Mapping[str, Any]) -> Group:
    consumers = g["ProtocolType"] == CONSUMER_PROTOCOL
    members = tuple(
        Member(
            id=m["MemberId"],
            instance_id=m.get("GroupInstanceId"),
            client_id=m["ClientId"],
            host=m["ClientHost"].removeprefix("/"),
            assignment=assigned(m["MemberAssignment"]) if consumers else frozenset(),
        )
        for m in g["Members"]
    )
    return Group(g["GroupId"], GroupType.CLASSIC, g["GroupState"], g["ProtocolData"], -1, members)


def assigned(assignment: bytes) -> frozenset[TopicPartition]:
    """The partitions in a classic consumer's assignment, which stands behind its own version."""
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
        Member(
            id=m["MemberId"],
            instance_id=m.get("InstanceId"),
            client_id=m["ClientId"],
            host=m["ClientHost"].removeprefix("/"),
            assignment=_partitions(m["Assignment"]),
            target=_partitions(m.get("TargetAssignment")),
        )
        for m in g["Members"]
    )
    return Group(g["GroupId"], kind, g["GroupState"], g["AssignorName"], g["GroupEpoch"], members)


def _streams(g: Mapping[str, Any]) -> Group:
    members = tuple(
        Member(
            id=m["MemberId"],
            instance_id=m["InstanceId"],
            client_id=m["ClientId"],
            host=m["ClientHost"].removeprefix("/"),
            assignment=frozenset(),
            tasks={
                role: tuple((t["SubtopologyId"], p) for t in m["Assignment"][key] for p in t["Partitions"])
                for role, key in (
                    ("active", "ActiveTasks"),
                    ("standby", "StandbyTasks"),
                    ("warmup", "WarmupTasks"),
                )
            },
        )
        for m in g["Members"]
    )
    return Group(g["GroupId"], GroupType.STREAMS, g["GroupState"], "", g["GroupEpoch"], members)


def _partitions(assignment: Mapping[str, Any] | None) -> frozenset[TopicPartition]:
    topics: Iterable[Mapping[str, Any]] = assignment["TopicPartitions"] if assignment else ()
    return frozenset(TopicPartition(t["TopicName"], p) for t in topics for p in t["Partitions"])


def _listed(g: Mapping[str, Any], node_id: int) -> Listed:
    kind, state = _type(g.get("GroupType", "")), g.get("GroupState", "")
    return Listed(g["GroupId"], kind, state, g["ProtocolType"], node_id)


def _type(name: str) -> GroupType:
    known = {t.value: t for t in GroupType}
    return known.get(name.lower(), GroupType.UNKNOWN)


# Tried in this order when the type is not known: the classic call answers for every group that the
# newer ones refuse, so it comes last.
_DESCRIBED: Final[dict[GroupType, tuple[str, str, Callable[[Mapping[str, Any]], Group]]]] = {
    GroupType.CONSUMER: ("ConsumerGroupDescribe", "GroupIds", lambda g: _modern(g, GroupType.CONSUMER)),
    GroupType.SHARE: ("ShareGroupDescribe", "GroupIds", lambda g: _modern(g, GroupType.SHARE)),
    GroupType.STREAMS: ("StreamsGroupDescribe", "GroupIds", _streams),
    GroupType.CLASSIC: ("DescribeGroups", "Groups", _classic),
}
