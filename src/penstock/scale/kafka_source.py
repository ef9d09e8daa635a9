"""Groups, logs and markers from a real cluster, on `penstock.kafka`, in batches.

Each call carries at most `GROUPS_A_CALL` groups or `TOPICS_A_CALL` topics: small enough that
decoding one answer keeps nobody waiting, large enough that ten thousand groups are a few hundred
calls. Who coordinates a group and of which kind it is, is remembered until a broker disagrees.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.kafka import offsets as kafka_offsets
from penstock.kafka import topics as kafka_topics
from penstock.kafka.groups import assigned
from penstock.kafka.offsets import At, Isolation
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.routing import CoordinatorKind, LeaderOf, NodeWithId
from penstock.model import offsetmap
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import ApiUnsupported, KafkaMissing
from penstock.scale.source import GroupLook, Position
from penstock.scale.values import NO_COMMIT, GroupState, Log, offsets
from penstock.wire import records
from penstock.wire.codes import MISSING, STALE_COORDINATOR, Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from penstock.kafka.client import Client

GROUPS_A_CALL: Final = 25
TOPICS_A_CALL: Final = 5
CALLS_AT_ONCE: Final = 4
ATTEMPTS: Final = 2  # the second after asking anew who coordinates
BY_NAME_LAST: Final = 9  # versions of OffsetFetch that name topics
FETCH_BY_NAME_LAST: Final = 12
MARKER_BYTES_MAX: Final = 64 << 10

Answers = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """What a coordinator said about one group."""

    code: int
    value: T


class KafkaLagSource:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._coordinators: dict[str, int] = {}
        self._modern: set[str] = set()  # groups of the newer consumer protocol

    async def groups(self, names: Collection[str], *, share: bool) -> dict[str, GroupLook | None]:
        """A look at each; None where its coordinator cannot tell now; left out where there is none."""
        described = await self._described(names, share=share)
        there = [name for name, found in described.items() if found is not None]
        if share:
            positions = await self._batched(there, "DescribeShareGroupOffsets", _offsets_wanted, _share)
        else:
            positions = await self._batched(there, "OffsetFetch", _offsets_wanted, _positions, BY_NAME_LAST)
        looks: dict[str, GroupLook | None] = {}
        for name, found in described.items():
            place = positions.get(name)
            if found is None or place is None or place.code != Code.NONE:
                looks[name] = None
            else:
                looks[name] = replace(found, positions=place.value)
        return looks

    async def logs(self, topics: Collection[str]) -> dict[str, Log | None]:
        found: dict[str, Log | None] = {}
        parts = _chunks(sorted(topics), TOPICS_A_CALL)
        for answers in await _some_at_once(partial(self._logs, part) for part in parts):
            found.update(answers)
        return found

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        wanted = {"Partition": partition, "FetchOffset": begin, "PartitionMaxBytes": MARKER_BYTES_MAX}
        body = {
            "ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": MARKER_BYTES_MAX, "SessionEpoch": -1,
            "Topics": [{"Topic": topic, "Partitions": [wanted]}],
        }  # fmt: skip
        answer = await self._client.call(
            "Fetch", body, to=LeaderOf(topic, partition), newest=FETCH_BY_NAME_LAST
        )
        found = answer["Responses"][0]["Partitions"][0]
        if found["ErrorCode"] != Code.NONE or not found["Records"]:
            return 0
        marked = 0
        for batch in records.batches(found["Records"]):
            if batch.is_control:
                marked += max(0, min(batch.last_offset + 1, end) - max(batch.base_offset, begin))
        return marked

    async def close(self) -> None:
        await self._client.close()

    async def _described(self, names: Collection[str], *, share: bool) -> dict[str, GroupLook | None]:
        """By group, without positions; None: not to be had now. What does not exist is left out."""
        if share:
            return _existing(await self._batched(names, "ShareGroupDescribe", _ids_wanted, _look))
        classic = [name for name in names if name not in self._modern]
        told = await self._batched(classic, "DescribeGroups", lambda part: {"Groups": list(part)}, _look)
        others = [name for name, each in told.items() if each is not None and each.code in MISSING]
        others += self._modern.intersection(names)
        for name, each in (await self._modern_ones(others)).items():
            if each is not None and each.code == Code.NONE:
                self._modern.add(name)
            else:
                self._modern.discard(name)  # deleted, or of the other kind now: the next round asks anew
            told[name] = each
        return _existing(told)

    async def _modern_ones(self, names: Collection[str]) -> dict[str, Told[GroupLook] | None]:
        try:
            return await self._batched(names, "ConsumerGroupDescribe", _ids_wanted, _look)
        except ApiUnsupported:  # a broker from before such groups: it has none
            return {}

    async def _batched(
        self,
        names: Collection[str],
        api: str,
        body: Callable[[Sequence[str]], Mapping[str, Any]],
        read: Callable[[Answers], T],
        newest: int | None = None,
    ) -> dict[str, Told[T] | None]:
        """One answer for each group, asked of its coordinator in batches; None where it failed.

        Raises only when nobody at all could be asked: then the brokers are not to be seen.
        """
        results: dict[str, Told[T] | None] = {}
        failure: PenstockError | None = None
        left = list(names)
        for _ in range(ATTEMPTS):
            if not left:
                break
            try:
                parts = await self._by_coordinator(left)
            except PenstockError as caught:
                failure = caught
                continue

            async def ask(node: int, part: Sequence[str]) -> PenstockError | None:
                try:
                    answer = await self._client.call(
                        api, body(part), to=NodeWithId(node), newest=newest, again=False
                    )
                except PenstockError as caught:
                    return caught
                for found in answer["Groups"]:
                    results[found["GroupId"]] = Told(_code(found), read(found))
                return None

            failures = await _some_at_once(partial(ask, node, part) for node, part in parts)
            failure = next((each for each in failures if each is not None), failure)
            left = [
                name for name in left if (told := results.get(name)) is None or told.code in STALE_COORDINATOR
            ]
            for name in left:
                self._coordinators.pop(name, None)
        if left and failure is not None and len(left) == len(names):
            raise failure
        return results | dict.fromkeys(left)

    async def _by_coordinator(self, names: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
        unknown = [name for name in names if name not in self._coordinators]
        await _some_at_once(partial(self._find, part) for part in _chunks(unknown, 4 * GROUPS_A_CALL))
        by_node: dict[int, list[str]] = {}
        for name in names:
            if name in self._coordinators:
                by_node.setdefault(self._coordinators[name], []).append(name)
        return [(node, part) for node, mine in by_node.items() for part in _chunks(mine, GROUPS_A_CALL)]

    async def _find(self, names: Sequence[str]) -> None:
        body = {"KeyType": CoordinatorKind.GROUP.value, "CoordinatorKeys": list(names)}
        answer = await self._client.call("FindCoordinator", body)
        for found in answer["Coordinators"]:
            if found["ErrorCode"] == Code.NONE:
                self._coordinators[found["Key"]] = found["NodeId"]

    async def _logs(self, names: Sequence[str]) -> dict[str, Log | None]:
        described = await kafka_topics.describe(self._client, names)
        there = {name: topic for name, topic in described.items() if not isinstance(topic, PenstockError)}
        places = [
            TopicPartition(name, each.index) for name, topic in there.items() for each in topic.partitions
        ]
        ends = await kafka_offsets.find(
            self._client, dict.fromkeys(places, At.LATEST), isolation=Isolation.READ_COMMITTED
        )
        starts = await kafka_offsets.find(self._client, dict.fromkeys(places, At.EARLIEST))
        logs: dict[str, Log | None] = {
            name: None
            for name, topic in described.items()
            if isinstance(topic, PenstockError) and not _gone(topic)
        }
        for name, topic in there.items():
            keys = [TopicPartition(name, each.index) for each in topic.partitions]
            begin = [starts[key] for key in keys]
            end = [ends[key] for key in keys]
            if any(isinstance(each, PenstockError) for each in (*begin, *end)):
                logs[name] = None
                continue
            logs[name] = Log(
                str(topic.id),
                offsets([each.offset for each in begin if not isinstance(each, PenstockError)]),
                offsets([each.offset for each in end if not isinstance(each, PenstockError)]),
            )
        return logs


def _offsets_wanted(part: Sequence[str]) -> Mapping[str, Any]:
    return {"Groups": [{"GroupId": name, "Topics": None} for name in part]}


def _ids_wanted(part: Sequence[str]) -> Mapping[str, Any]:
    return {"GroupIds": list(part)}


def _existing(told: Mapping[str, Told[GroupLook] | None]) -> dict[str, GroupLook | None]:
    return {
        name: each.value if each is not None and each.code == Code.NONE else None
        for name, each in told.items()
        if each is None or each.code not in MISSING
    }


def _code(found: Answers) -> int:
    """Its error; before version 6, DescribeGroups calls a group that does not exist dead."""
    if found["ErrorCode"] == Code.NONE and found.get("GroupState") == "Dead" and not found["Members"]:
        return Code.GROUP_ID_NOT_FOUND
    return int(found["ErrorCode"])


def _gone(failure: PenstockError) -> bool:
    return isinstance(failure, KafkaMissing)


def _look(answer: Answers) -> GroupLook:
    members = answer["Members"]
    owners: dict[str, dict[int, int]] = {}
    seal = 0
    for number, member in enumerate(sorted(members, key=lambda each: str(each["MemberId"]))):
        seal = zlib.crc32(member["MemberId"].encode(), seal)
        for topic, partition in _owned(member):
            owners.setdefault(topic, {})[partition] = number
    state = GroupState.of(answer["GroupState"])
    # Classic groups tell no generation: who the members are stands for it.
    return GroupLook(state, len(members), answer.get("GroupEpoch", seal), {}, owners)


def _owned(member: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    if "MemberAssignment" in member:
        return assigned(member["MemberAssignment"])
    parts = member["Assignment"]["TopicPartitions"]
    return ((part["TopicName"], partition) for part in parts for partition in part["Partitions"])


def _positions(answer: Answers) -> dict[str, dict[int, Position]]:
    found: dict[str, dict[int, Position]] = {}
    for topic in answer["Topics"]:
        places: dict[int, Position] = {}
        for each in topic["Partitions"]:
            offset = each["CommittedOffset"]
            if offset != NO_COMMIT and each["ErrorCode"] == Code.NONE:
                done = offsetmap.decode(offset, each["Metadata"]) if each["Metadata"] else None
                places[each["PartitionIndex"]] = Position(offset, done.done_count if done else 0)
        if places:
            found[topic["Name"]] = places
    return found


def _share(answer: Answers) -> dict[str, dict[int, Position]]:
    """Share groups have no commits; Kafka tells the lag itself (KIP-1226)."""
    found: dict[str, dict[int, Position]] = {}
    for topic in answer["Topics"]:
        for each in topic["Partitions"]:
            if each["StartOffset"] >= 0 and each["ErrorCode"] == Code.NONE:
                lag = each.get("Lag", -1)
                position = Position(each["StartOffset"], lag=lag if lag >= 0 else None)
                found.setdefault(topic["TopicName"], {})[each["PartitionIndex"]] = position
    return found


async def _some_at_once(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """All of them, a few under way at a time, in order; the first failure is raised."""
    turn = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with turn:
            return await call()

    return list(await asyncio.gather(*map(one, calls)))


def _chunks(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[begin : begin + size] for begin in range(0, len(names), size)]
