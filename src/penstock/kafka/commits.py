"""Committed offsets of groups, and their lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.offsets import At, Isolation, find
from penstock.kafka.outcomes import outcome
from penstock.kafka.partitions import TopicPartition, by_topic
from penstock.kafka.refusals import check
from penstock.kafka.routing import group_coordinator
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.client import Client

BY_NAME_LAST: Final = 9  # the last version of OffsetFetch and OffsetCommit that names topics
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class Committed:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    committed: int  # −1: nothing is committed
    end: int
    start: int

    @property
    def records(self) -> int:
        """Offsets still to be read; from the log's start if nothing is committed or it is gone."""
        return max(0, self.end - max(self.committed, self.start))


async def committed(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, Committed]:
    """What the group has committed; for every partition it has a commit for, unless given."""
    topics = None
    if partitions is not None:
        topics = [{"Name": name, "PartitionIndexes": ps} for name, ps in by_topic(partitions).items()]

    def body(version: int) -> dict[str, Any]:
        stable = {"RequireStable": require_stable} if version >= 7 else {}
        if version >= 8:
            return {"Groups": [{"GroupId": group, "Topics": topics}], **stable}
        return {"GroupId": group, "Topics": topics, **stable}

    answer = await client.call(
        "OffsetFetch", body, to=group_coordinator(group), newest=BY_NAME_LAST, timeout=timeout
    )
    found = answer["Groups"][0] if "Groups" in answer else answer
    check("OffsetFetch", found.get("ErrorCode", 0), None, f"group {group!r}")
    results = {}
    for t in found["Topics"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["Name"], p["PartitionIndex"])
            check("OffsetFetch", p["ErrorCode"], None, f"partition {key} of group {group!r}")
            if p["CommittedOffset"] != NO_OFFSET:
                epoch = p.get("CommittedLeaderEpoch", -1)
                results[key] = Committed(p["CommittedOffset"], epoch, p["Metadata"] or "")
    return results


async def commit(
    client: Client, group: str, offsets: Mapping[TopicPartition, Committed], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, PenstockError | None]:
    """Set the offsets of a group that has no members."""
    topics = [
        {
            "Name": name,
            "Partitions": [
                {
                    "PartitionIndex": i,
                    "CommittedOffset": offsets[TopicPartition(name, i)].offset,
                    "CommittedLeaderEpoch": offsets[TopicPartition(name, i)].leader_epoch,
                    "CommittedMetadata": offsets[TopicPartition(name, i)].metadata,
                }
                for i in indexes
            ],
        }
        for name, indexes in by_topic(offsets).items()
    ]
    body = {"GroupId": group, "Topics": topics}
    answer = await client.call(
        "OffsetCommit", body, to=group_coordinator(group), newest=BY_NAME_LAST, timeout=timeout
    )
    return _outcomes("OffsetCommit", answer, group)


async def forget(
    client: Client, group: str, partitions: Collection[TopicPartition], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, PenstockError | None]:
    """Delete commits for topics that the group does not consume now."""
    topics = [
        {"Name": name, "Partitions": [{"PartitionIndex": i} for i in indexes]}
        for name, indexes in by_topic(partitions).items()
    ]
    body = {"GroupId": group, "Topics": topics}
    answer = await client.call("OffsetDelete", body, to=group_coordinator(group), timeout=timeout)
    check("OffsetDelete", answer["ErrorCode"], None, f"group {group!r}")
    return _outcomes("OffsetDelete", answer, group)


async def lag(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, Lag | PenstockError]:
    """Lag of each partition given, or of each that the group has a commit for."""
    known = await committed(client, group, partitions, timeout=timeout)
    wanted = list(known) if partitions is None else list(partitions)
    ends = await find(client, dict.fromkeys(wanted, At.LATEST), isolation=isolation, timeout=timeout)
    starts = await find(client, dict.fromkeys(wanted, At.EARLIEST), timeout=timeout)
    results: dict[TopicPartition, Lag | PenstockError] = {}
    for partition in wanted:
        end, start = ends[partition], starts[partition]
        if isinstance(end, PenstockError):
            results[partition] = end
        elif isinstance(start, PenstockError):
            results[partition] = start
        else:
            at = known[partition].offset if partition in known else NO_OFFSET
            results[partition] = Lag(at, end.offset, start.offset)
    return results


def _outcomes(api: str, answer: Mapping[str, Any], group: str) -> dict[TopicPartition, PenstockError | None]:
    results: dict[TopicPartition, PenstockError | None] = {}
    for t in answer["Topics"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["Name"], p["PartitionIndex"])
            results[key] = outcome(api, p["ErrorCode"], None, f"partition {key} of group {group!r}", None)
    return results
