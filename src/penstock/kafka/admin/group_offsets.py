"""Read and set the committed offsets of a group, and compute its lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec, list_offsets
from penstock.kafka.admin.partitions import (
    TopicPartition,
    listed,
    partition_errors,
    partition_responses,
    with_fields,
)
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import group_coordinator
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.client import Client

BY_NAME_LAST: Final = 9  # the last version of OffsetFetch and OffsetCommit that names topics
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    committed: int  # −1: none
    end: int
    start: int

    @property
    def records(self) -> int:
        """Offsets left to read; counted from the log start if no offset is committed or it was deleted."""
        return max(0, self.end - max(self.committed, self.start))


async def committed(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, CommittedOffset]:
    """The committed offsets of a group, for these partitions or for all it has committed."""
    topics = listed(partitions)

    def body(version: int) -> dict[str, Any]:
        stable = {"RequireStable": require_stable} if version >= 7 else {}
        if version >= 8:
            return {"Groups": [{"GroupId": group, "Topics": topics}], **stable}
        return {"GroupId": group, "Topics": topics, **stable}

    response = await client.call(
        "OffsetFetch", body, to=group_coordinator(group), version_max=BY_NAME_LAST, timeout=timeout
    )
    fetched = response["Groups"][0] if "Groups" in response else response
    check("OffsetFetch", fetched.get("ErrorCode", 0), None, f"group {group!r}")
    results = {}
    for key, code, _, p in partition_responses(fetched):
        check("OffsetFetch", code, None, f"partition {key} of group {group!r}")
        if p["CommittedOffset"] != NO_OFFSET:
            epoch = p.get("CommittedLeaderEpoch", -1)
            results[key] = CommittedOffset(p["CommittedOffset"], epoch, p["Metadata"] or "")
    return results


async def commit(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, PenstockError | None]:
    """Set the committed offsets of a group without members."""
    topics = with_fields(
        {
            partition: {
                "CommittedOffset": committed.offset,
                "CommittedLeaderEpoch": committed.leader_epoch,
                "CommittedMetadata": committed.metadata,
            }
            for partition, committed in offsets.items()
        }
    )
    body = {"GroupId": group, "Topics": topics}
    response = await client.call(
        "OffsetCommit", body, to=group_coordinator(group), version_max=BY_NAME_LAST, timeout=timeout
    )
    return partition_errors("OffsetCommit", partition_responses(response), f" of group {group!r}")


async def lag(
    client: Client,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, Lag | PenstockError]:
    """The lag of these partitions, or of all for which the group has committed an offset."""
    known = await committed(client, group, partitions, timeout=timeout)
    selected = list(known) if partitions is None else list(partitions)
    ends = await list_offsets(
        client, dict.fromkeys(selected, OffsetSpec.LATEST), isolation=isolation, timeout=timeout
    )
    starts = await list_offsets(client, dict.fromkeys(selected, OffsetSpec.EARLIEST), timeout=timeout)
    results: dict[TopicPartition, Lag | PenstockError] = {}
    for partition in selected:
        end, start = ends[partition], starts[partition]
        if isinstance(end, PenstockError):
            results[partition] = end
        elif isinstance(start, PenstockError):
            results[partition] = start
        else:
            offset = known[partition].offset if partition in known else NO_OFFSET
            results[partition] = Lag(offset, end.offset, start.offset)
    return results
