"""Read groups, offsets and transaction markers from Kafka, in batches.

A call has at most `GROUPS_PER_CALL` groups or `TOPICS_PER_CALL` topics: small enough that decoding
one response does not block the event loop, large enough that ten thousand groups take a few hundred
calls. A group's coordinator and type are cached until a broker disagrees.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.kafka.admin import offsets as kafka_offsets
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.admin.groups import assigned
from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.broker_errors import broker_error
from penstock.kafka.routing import CoordinatorKind, LeaderOf, NodeWithId
from penstock.model import offset_map
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.errors.wire import (
    ApiUnsupported,
    BrokerUnknown,
    BrokerUnreachable,
    CallTimedOut,
    KafkaMissing,
)
from penstock.scale.decision.values import NO_COMMIT, GroupState, Log, offsets
from penstock.scale.sampler.source import GroupSnapshot, Position
from penstock.wire import records
from penstock.wire.error_codes import STALE_COORDINATOR, Code

if TYPE_CHECKING:
    from array import array
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from penstock.kafka.client import Client

GROUPS_PER_CALL: Final = 25
TOPICS_PER_CALL: Final = 5
CALLS_CONCURRENT_MAX: Final = 4
CALL_SECONDS_MAX: Final = 5.0  # a node that hangs must not delay the groups of the others for longer
ATTEMPTS: Final = 3  # each after looking up the coordinator again
BY_NAME_LAST: Final = 9  # newest version of OffsetFetch with topic names
FETCH_BY_NAME_LAST: Final = 12
MARKER_BYTES_MAX: Final = 64 << 10

Response = dict[str, Any]
T = TypeVar("T")


class KafkaLagSource:
    """A `LagSource` that calls Kafka."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._coordinators: dict[str, int] = {}
        self._consumer_protocol: set[str] = set()  # groups of the KIP-848 protocol

    async def groups(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        described = await self._described(names, share=share)
        existing = [name for name, group in described.items() if isinstance(group, GroupSnapshot)]
        if share:
            positions = await self._batched(existing, "DescribeShareGroupOffsets", _offsets_request, _share)
        else:
            positions = await self._batched(
                existing, "OffsetFetch", _offsets_request, _positions, BY_NAME_LAST
            )
        for name, position in positions.items():
            group = described[name]
            if isinstance(position, PenstockError):
                described[name] = position
            elif isinstance(group, GroupSnapshot):
                described[name] = replace(group, positions=position)
        return described

    async def logs(self, topics: Collection[str]) -> dict[str, Log | PenstockError]:
        logs: dict[str, Log | PenstockError] = {}

        async def read(names: Sequence[str]) -> None:
            try:
                logs.update(await self._logs(names))
            except PenstockError as failure:
                logs.update(dict.fromkeys(names, failure))

        await _gather_limited(partial(read, chunk) for chunk in _chunks(sorted(topics), TOPICS_PER_CALL))
        return logs

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        fetched = {"Partition": partition, "FetchOffset": begin, "PartitionMaxBytes": MARKER_BYTES_MAX}
        body = {
            "ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": MARKER_BYTES_MAX, "SessionEpoch": -1,
            "Topics": [{"Topic": topic, "Partitions": [fetched]}],
        }  # fmt: skip
        response = await self._client.call(
            "Fetch", body, to=LeaderOf(topic, partition), version_max=FETCH_BY_NAME_LAST
        )
        result = response["Responses"][0]["Partitions"][0]
        if result["ErrorCode"] != Code.NONE or not result["Records"]:
            return 0
        markers = 0
        for batch in records.batches(result["Records"]):
            if batch.is_control:
                markers += max(0, min(batch.last_offset + 1, end) - max(batch.base_offset, begin))
        return markers

    async def _described(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        """Groups without their positions. Groups that do not exist are left out."""
        if share:
            return _existing(await self._batched(names, "ShareGroupDescribe", _ids_request, _snapshot))
        classic = [name for name in names if name not in self._consumer_protocol]
        results = await self._batched(
            classic, "DescribeGroups", lambda some: {"Groups": list(some)}, _snapshot
        )
        others = [name for name, each in results.items() if isinstance(each, KafkaMissing)]
        others += self._consumer_protocol.intersection(names)
        for name, each in (
            await self._batched(others, "ConsumerGroupDescribe", _ids_request, _snapshot)
        ).items():
            if isinstance(each, ApiUnsupported) and name in results:
                continue  # a broker older than KIP-848 has no such groups
            if isinstance(each, GroupSnapshot):
                self._consumer_protocol.add(name)
            else:  # deleted, or of the classic protocol now: the next round tries both
                self._consumer_protocol.discard(name)
            results[name] = each
        return _existing(results)

    async def _batched(
        self,
        names: Collection[str],
        api: str,
        body: Callable[[Sequence[str]], Mapping[str, Any]],
        read: Callable[[Response], T],
        version_max: int | None = None,
    ) -> dict[str, T | PenstockError]:
        """Calls each group's coordinator in batches; an error for each group that cannot be read."""
        results: dict[str, T | PenstockError] = {}
        silent: dict[int, PenstockError] = {}  # nodes that do not respond are called once

        async def call(node: int, chunk: Sequence[str]) -> None:
            try:
                if node in silent:
                    raise silent[node]
                response = await self._client.call(
                    api, body(chunk), to=NodeWithId(node), version_max=version_max, retry=False,
                    timeout=CALL_SECONDS_MAX,
                )  # fmt: skip
            except PenstockError as failure:
                if isinstance(failure, CallTimedOut | BrokerUnreachable | ApiUnsupported):
                    silent[node] = failure
                results.update(dict.fromkeys(chunk, failure))
                return
            for group in response["Groups"]:
                results[group["GroupId"]] = _read(api, group, read)

        pending: Sequence[str] = list(names)
        for _ in range(ATTEMPTS):
            if not pending:
                break
            results.update(await self._find_coordinators(pending))
            await _gather_limited(partial(call, *each) for each in self._by_coordinator(pending))
            pending = [name for name in pending if _may_have_moved(results.get(name))]
            for name in pending:
                self._coordinators.pop(name, None)
        lost = {name: broker_error(api, Code.COORDINATOR_NOT_AVAILABLE, None, name) for name in pending}
        return {**lost, **results}

    def _by_coordinator(self, names: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
        by_node: dict[int, list[str]] = {}
        for name in names:
            if name in self._coordinators:
                by_node.setdefault(self._coordinators[name], []).append(name)
        return [(node, chunk) for node, some in by_node.items() for chunk in _chunks(some, GROUPS_PER_CALL)]

    async def _find_coordinators(self, names: Sequence[str]) -> dict[str, PenstockError]:
        """Looks up the coordinators that are not cached; returns the groups for which that failed."""
        failed: dict[str, PenstockError] = {}

        async def find(chunk: Sequence[str]) -> None:
            body = {"KeyType": CoordinatorKind.GROUP.value, "CoordinatorKeys": list(chunk)}
            try:
                response = await self._client.call(
                    "FindCoordinator", body, retry=False, timeout=CALL_SECONDS_MAX
                )
            except PenstockError as failure:
                failed.update(dict.fromkeys(chunk, failure))
                return
            for each in response["Coordinators"]:
                if each["ErrorCode"] == Code.NONE:
                    self._coordinators[each["Key"]] = each["NodeId"]
                else:
                    message = each["ErrorMessage"]
                    failed[each["Key"]] = broker_error("FindCoordinator", each["ErrorCode"], message)

        unknown = [name for name in names if name not in self._coordinators]
        await _gather_limited(partial(find, chunk) for chunk in _chunks(unknown, 4 * GROUPS_PER_CALL))
        return failed

    async def _logs(self, names: Sequence[str]) -> dict[str, Log | PenstockError]:
        described = await kafka_topics.describe(self._client, names, timeout=CALL_SECONDS_MAX)
        logs: dict[str, Log | PenstockError] = {}
        existing: dict[str, kafka_topics.Topic] = {}
        for name, topic in described.items():
            error = topic if isinstance(topic, PenstockError) else _without_leader(topic)
            if isinstance(topic, kafka_topics.Topic) and error is None:
                existing[name] = topic
            elif error is not None and not isinstance(error, KafkaMissing):
                logs[name] = error
        keys = {
            name: [TopicPartition(name, each.index) for each in topic.partitions]
            for name, topic in existing.items()
        }
        partitions = [each for some in keys.values() for each in some]
        list_offsets = partial(kafka_offsets.list_offsets, self._client, timeout=CALL_SECONDS_MAX)
        latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
        ends = await list_offsets(latest, isolation=IsolationLevel.READ_COMMITTED)
        starts = await list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        for name, topic in existing.items():
            start, end = _offsets_of(keys[name], starts), _offsets_of(keys[name], ends)
            if isinstance(start, PenstockError):
                logs[name] = start
            elif isinstance(end, PenstockError):
                logs[name] = end
            else:
                logs[name] = Log(str(topic.id), start, end)
        return logs


def _without_leader(topic: kafka_topics.Topic) -> PenstockError | None:
    """The error of a partition without a leader: listing its offsets would only wait."""
    for each in topic.partitions:
        if each.leader < 0:
            return broker_error("Metadata", Code.LEADER_NOT_AVAILABLE, None, f"{topic.name}-{each.index}")
    return None


def _offsets_of(
    keys: Sequence[TopicPartition], listed: Mapping[TopicPartition, kafka_offsets.Offset | PenstockError]
) -> array[int] | PenstockError:
    """The offsets of these partitions, or the error of one that is unavailable."""
    known: list[int] = []
    for key in keys:
        offset = listed[key]
        if isinstance(offset, PenstockError):
            return offset
        known.append(offset.offset)
    return offsets(known)


def _offsets_request(groups: Sequence[str]) -> Mapping[str, Any]:
    return {"Groups": [{"GroupId": name, "Topics": None} for name in groups]}


def _ids_request(groups: Sequence[str]) -> Mapping[str, Any]:
    return {"GroupIds": list(groups)}


def _existing(results: Mapping[str, T | PenstockError]) -> dict[str, T | PenstockError]:
    return {name: each for name, each in results.items() if not isinstance(each, KafkaMissing)}


def _may_have_moved(result: object) -> bool:
    """Whether looking up the coordinator again may help."""
    if isinstance(result, PenstockError) and result.facts.get("error_code") in STALE_COORDINATOR:
        return True
    return result is None or isinstance(result, UnavailableError | BrokerUnknown)


def _read(api: str, group: Response, read: Callable[[Response], T]) -> T | PenstockError:
    """What a coordinator returned about one group, or the error that this group alone has."""
    code = group["ErrorCode"]
    if code == Code.NONE and group.get("GroupState") == "Dead" and not group["Members"]:
        code = Code.GROUP_ID_NOT_FOUND  # before version 6, DescribeGroups returns a missing group as dead
    if code != Code.NONE:
        return broker_error(api, code, group.get("ErrorMessage"), f"group {group['GroupId']!r}")
    try:
        return read(group)
    except PenstockError as failure:  # members of another kind of application
        return failure


def _snapshot(response: Response) -> GroupSnapshot:
    members = response["Members"]
    owners: dict[str, dict[int, int]] = {}
    member_hash = 0
    for number, member in enumerate(sorted(members, key=lambda each: str(each["MemberId"]))):
        member_hash = zlib.crc32(member["MemberId"].encode(), member_hash)
        for topic, partition in _owned(member):
            owners.setdefault(topic, {})[partition] = number
    state = GroupState.of(response["GroupState"])
    # DescribeGroups returns no generation for classic groups; a hash of the member ids replaces it.
    return GroupSnapshot(state, len(members), response.get("GroupEpoch", member_hash), {}, owners)


def _owned(member: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    if "MemberAssignment" in member:
        return assigned(member["MemberAssignment"])
    topics = member["Assignment"]["TopicPartitions"]
    return ((topic["TopicName"], partition) for topic in topics for partition in topic["Partitions"])


def _positions(response: Response) -> dict[str, dict[int, Position]]:
    positions: dict[str, dict[int, Position]] = {}
    for topic in response["Topics"]:
        for each in topic["Partitions"]:
            offset = each["CommittedOffset"]
            if offset != NO_COMMIT and each["ErrorCode"] == Code.NONE:
                done = offset_map.decode(offset, each["Metadata"]) if each["Metadata"] else None
                position = Position(offset, done.done_count if done else 0)
                positions.setdefault(topic["Name"], {})[each["PartitionIndex"]] = position
    return positions


def _share(response: Response) -> dict[str, dict[int, Position]]:
    """Positions of a share group: it has no commits, and Kafka returns its lag (KIP-1226)."""
    positions: dict[str, dict[int, Position]] = {}
    for topic in response["Topics"]:
        for each in topic["Partitions"]:
            if each["StartOffset"] >= 0 and each["ErrorCode"] == Code.NONE:
                lag = each.get("Lag", -1)
                position = Position(each["StartOffset"], lag=lag if lag >= 0 else None)
                positions.setdefault(topic["TopicName"], {})[each["PartitionIndex"]] = position
    return positions


async def _gather_limited(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Runs all calls, a few at a time; returns results in order and raises the first failure."""
    semaphore = asyncio.Semaphore(CALLS_CONCURRENT_MAX)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with semaphore:
            return await call()

    return list(await asyncio.gather(*map(one, calls)))


def _chunks(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[begin : begin + size] for begin in range(0, len(names), size)]
