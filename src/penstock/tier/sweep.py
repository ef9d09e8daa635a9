"""Which objects of a tier store may be deleted.

A segment is deleted only if all of this holds: its tombstone is older than `keep_days`; the tier metadata,
read to its end in this run, has no live entry of it; no hold covers it; and no restore is running. An
upload without a manifest goes after a day. One run deletes at most 1 % of the objects and at most 1,000,
but always one segment, so that small stores are swept too. Orphans and missing objects are only reported.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.tier.format import INDEXES, LOG, MANIFEST, TOMBSTONE
from penstock.tier.metadata import SegmentState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.tier.format import SegmentKey, Tombstone
    from penstock.tier.metadata import Segment

DAY_MS: Final = 86_400_000
UNFINISHED_MS: Final = DAY_MS
OBJECTS_SHARE_MAX: Final = 0.01  # of a run
OBJECTS_MAX: Final = 1000
# The manifest goes first: without it the segment does not exist. The tombstone goes last: a run that was
# interrupted leaves the reason to continue.
DELETE_ORDER: Final = (MANIFEST, LOG, INDEXES, TOMBSTONE)


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """What the store has of one segment."""

    key: SegmentKey
    suffixes: frozenset[str]
    modified_ms: int  # the newest
    tombstone: Tombstone | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Keeps objects: of one topic, or all."""

    name: str
    topic_id: str | None = None

    def covers(self, key: SegmentKey) -> bool:
        return self.topic_id is None or self.topic_id == key.topic_id


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run knows. Without complete metadata, or during a restore, nothing is deleted."""

    segments: tuple[SegmentObjects, ...]
    metadata: Mapping[str, Segment]  # live ones, by segment id
    metadata_complete: bool
    restore_running: bool
    holds: tuple[Hold, ...]
    keep_days: float


@dataclass(frozen=True, slots=True)
class SweepPlan:
    delete: tuple[SegmentObjects, ...] = ()
    postponed: int = 0  # segments beyond the limit of this run
    orphans: tuple[SegmentKey, ...] = ()  # stored, without metadata and without a tombstone
    missing: tuple[Segment, ...] = ()  # finished in the metadata, not whole in the store
    kept: Mapping[str, int] = field(default_factory=dict)  # reason → segments
    refused: str = ""

    @property
    def keys(self) -> list[tuple[SegmentKey, str]]:
        """Objects to delete, in order."""
        return [(one.key, suffix) for one in self.delete for suffix in DELETE_ORDER if suffix in one.suffixes]


def decide(facts: Facts, now_ms: int) -> SweepPlan:
    due: list[SegmentObjects] = []
    orphans: list[SegmentKey] = []
    kept: Counter[str] = Counter()
    for one in facts.segments:
        reason = _reason_to_keep(one, facts, now_ms)
        if reason is None:
            due.append(one)
        elif reason:
            kept[reason] += 1
        else:
            orphans.append(one.key)
    missing = _missing(facts.segments, facts.metadata.values())
    refused = ""
    if facts.restore_running:
        refused = "a restore is running"
    elif not facts.metadata_complete:
        refused = "the tier metadata was not read to its end"
    chosen = [] if refused else _within_limit(due, sum(len(one.suffixes) for one in facts.segments))
    return SweepPlan(tuple(chosen), len(due) - len(chosen), tuple(orphans), missing, dict(kept), refused)


def _reason_to_keep(one: SegmentObjects, facts: Facts, now_ms: int) -> str | None:
    """None: it may go. An empty reason: an orphan."""
    if one.key.segment_id in facts.metadata:
        return "live"
    if any(hold.covers(one.key) for hold in facts.holds):
        return "held"
    if one.tombstone is not None:
        return None if now_ms - one.tombstone.at_ms > facts.keep_days * DAY_MS else "deleted recently"
    if TOMBSTONE in one.suffixes:
        return "unreadable tombstone"
    if MANIFEST in one.suffixes:
        return ""
    return None if now_ms - one.modified_ms > UNFINISHED_MS else "upload under way"


def _within_limit(due: Iterable[SegmentObjects], objects: int) -> list[SegmentObjects]:
    limit = min(OBJECTS_MAX, int(objects * OBJECTS_SHARE_MAX))
    chosen: list[SegmentObjects] = []
    for one in sorted(due, key=lambda one: one.tombstone.at_ms if one.tombstone else one.modified_ms):
        if chosen and len(one.suffixes) > limit:
            break
        chosen.append(one)
        limit -= len(one.suffixes)
    return chosen


def _missing(stored: Collection[SegmentObjects], live: Iterable[Segment]) -> tuple[Segment, ...]:
    whole = {one.key.segment_id for one in stored if {MANIFEST, LOG} <= one.suffixes}
    return tuple(
        segment
        for segment in live
        if segment.state is SegmentState.FINISHED and segment.segment_id not in whole
    )
