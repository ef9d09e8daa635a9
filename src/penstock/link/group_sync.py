"""Which group offsets to commit on the mirror.

Offsets are the same on both sides, so they are copied as they are, but without a leader epoch: a source's
epoch would send clients into endless metadata refreshes. An offset that is not mirrored yet is clamped to
the end of the mirror, so a group reads again what it has not seen, and never skips. A group with members
here is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.group_offsets import CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.admin.partitions import TopicPartition

INTERNAL_GROUPS: Final = "_penstock."  # what their names begin with; they are not copied
WITHOUT_MEMBERS: Final = frozenset(("", "Empty", "Dead"))


@dataclass(frozen=True, slots=True)
class MirrorRange:
    start: int
    end: int  # the high watermark


@dataclass(frozen=True, slots=True)
class GroupCommits:
    offsets: Mapping[TopicPartition, CommittedOffset]
    clamped: int = 0


def group_commits(
    source: Mapping[TopicPartition, CommittedOffset],
    here: Mapping[TopicPartition, CommittedOffset],
    ranges: Mapping[TopicPartition, MirrorRange],
    *,
    state_here: str,
) -> GroupCommits:
    """What to commit for one group: changed offsets of mirrored partitions."""
    if state_here not in WITHOUT_MEMBERS:
        return GroupCommits({})
    commits: dict[TopicPartition, CommittedOffset] = {}
    clamped = 0
    for partition, committed in source.items():
        if partition not in ranges:
            continue
        inside = min(max(committed.offset, ranges[partition].start), ranges[partition].end)
        clamped += inside != committed.offset
        if partition not in here or here[partition].offset != inside:
            commits[partition] = CommittedOffset(inside, -1, committed.metadata)
    return GroupCommits(commits, clamped)


@dataclass(frozen=True, slots=True)
class ShareStarts:
    offsets: Mapping[TopicPartition, int]
    clamped: int = 0


def share_starts(
    source: Mapping[TopicPartition, int],
    here: Mapping[TopicPartition, int],
    ranges: Mapping[TopicPartition, MirrorRange],
    *,
    state_here: str,
) -> ShareStarts:
    """The start offsets of a share group. Records that it has in flight on the source are delivered again."""
    committed = {place: CommittedOffset(start) for place, start in source.items() if start >= 0}
    known = {place: CommittedOffset(start) for place, start in here.items() if start >= 0}
    commits = group_commits(committed, known, ranges, state_here=state_here)
    return ShareStarts({place: one.offset for place, one in commits.offsets.items()}, commits.clamped)
