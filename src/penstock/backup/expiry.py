"""Which objects of a backup may be deleted, because no restore to a time within `keep_days` needs them.

A segment goes only if all of this holds: it was stored before the window of `keep_days`; at no time of the
window that the catalogue shows was its last offset at or above the log start of an existing partition; so it
is for every segment of the partition with a lower base offset; no hold covers it; no restore is running. The
last segment of a partition that exists stays: the archiver resumes from it. Without a catalogue that covers
the window, or if its last entry is old, nothing goes.

An entry of the catalogue goes when a later one describes the start of the window, unless it is the last one
that has a topic which is still archived. A part goes when no entry refers to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.tier.format import INDEXES, LOG, MANIFEST
from penstock.tier.sweep import DAY_MS, DELETE_ORDER, UNFINISHED_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.tier.format import SegmentKey
    from penstock.tier.sweep import Hold, SegmentObjects

HOUR_MS: Final = 3_600_000
SAMPLE_MS: Final = HOUR_MS  # between the entries that are read
FRESH_MS: Final = HOUR_MS  # the last entry is not older
# Hourly runs must delete what a week of backup grows by in an hour, 0.6 %.
OBJECTS_SHARE_MAX: Final = 0.02
OBJECTS_MAX: Final = 20_000
UNKNOWN: Final = -1

Place = tuple[str, int]  # topic id and partition


class Sample(NamedTuple):
    """What existed at the time of an entry."""

    at_ms: int
    topic_ids: frozenset[str]
    starts: Mapping[Place, int]  # log start of each partition, where known

    def start(self, place: Place) -> float:
        """Offsets from here on existed; everything, if the log start is not known."""
        if place[0] not in self.topic_ids:
            return float("inf")
        return self.starts.get(place, UNKNOWN)


class StoredEntry(NamedTuple):
    at_ms: int
    parts: frozenset[str]  # their SHA-256


class StoredGap(NamedTuple):
    key: str
    place: Place
    last: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ExpiryFacts:
    segments: tuple[SegmentObjects, ...]
    last_offsets: Mapping[SegmentKey, int]  # from the manifests of `candidates`
    gaps: tuple[StoredGap, ...]
    samples: tuple[Sample, ...]  # as `sampled` chose them
    entries: tuple[StoredEntry, ...]  # oldest first
    parts: Mapping[str, int]  # SHA-256 → when it was stored
    last_entries: Mapping[str, int]  # topic id → the last entry that has it
    holds: tuple[Hold, ...]
    restore_running: bool
    keep_days: float


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    segments: tuple[SegmentObjects, ...] = ()
    gaps: tuple[str, ...] = ()
    entries: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    postponed: int = 0  # segments beyond the limit of this run
    kept: Mapping[str, int] = field(default_factory=dict)  # reason → segments
    refused: str = ""

    @property
    def keys(self) -> list[str]:
        """Objects of segments, in the order in which they go."""
        return [
            one.key.path(suffix) for one in self.segments for suffix in DELETE_ORDER if suffix in one.suffixes
        ]


def sampled(times: Sequence[int], now_ms: int, keep_days: float) -> tuple[int, ...]:
    """The entries to read: the last one before the window, one an hour, and the newest; none if the catalogue
    does not cover the window."""
    first = bisect_right(times, _window_start(now_ms, keep_days)) - 1
    if first < 0:
        return ()
    chosen = [times[first]]
    for at in times[first + 1 :]:
        if at - chosen[-1] >= SAMPLE_MS:
            chosen.append(at)
    return tuple(dict.fromkeys((*chosen, times[-1])))


def candidates(
    segments: Collection[SegmentObjects],
    samples: Collection[Sample],
    holds: Collection[Hold],
    now_ms: int,
    keep_days: float,
) -> dict[Place, list[SegmentKey]]:
    """Segments that may go if their last offsets allow it, of each partition by offset: those whose manifests
    have to be read."""
    window_ms = _window_start(now_ms, keep_days)
    chosen: dict[Place, list[SegmentKey]] = {}
    for one in sorted(segments, key=_order):
        place = (one.key.topic_id, one.key.partition)
        old = MANIFEST in one.suffixes and one.modified_ms < window_ms
        held = any(hold.covers(one.key) for hold in holds)
        if old and not held and one.key.base_offset < needed_from(samples, place):
            chosen.setdefault(place, []).append(one.key)
    return chosen


def needed_from(samples: Iterable[Sample], place: Place) -> float:
    """The lowest offset of a partition that a restore within the window may need."""
    return min((sample.start(place) for sample in samples), default=UNKNOWN)


def decide(facts: ExpiryFacts, now_ms: int) -> ExpiryPlan:
    refused = _refusal(facts, now_ms)
    if refused:
        return ExpiryPlan(refused=refused)
    window_ms = _window_start(now_ms, facts.keep_days)
    kept: Counter[str] = Counter()
    due: list[SegmentObjects] = []
    blocked: set[Place] = set()
    newest = _last_of_each(facts.segments)
    for one in sorted(facts.segments, key=_order):
        place = (one.key.topic_id, one.key.partition)
        reason = _reason_to_keep(one, facts, now_ms, window_ms)
        if not reason and MANIFEST in one.suffixes:
            if place in blocked:
                reason = "needed with another segment"
            elif newest[place] == one.key and one.key.topic_id in facts.samples[-1].topic_ids:
                reason = "the last one of its partition"
        if reason:
            kept[reason] += 1
            blocked.add(place)
        else:
            due.append(one)
    chosen = due[: segments_max(facts.segments)]
    entries = _entries(facts, window_ms)
    return ExpiryPlan(
        tuple(chosen),
        _gaps(facts, window_ms),
        entries,
        _parts(facts, set(entries), now_ms),
        len(due) - len(chosen),
        dict(kept),
    )


def _refusal(facts: ExpiryFacts, now_ms: int) -> str:
    if facts.restore_running:
        return "a restore is running"
    if not facts.samples:
        return f"the catalogue does not cover the last {facts.keep_days:g} days"
    if now_ms - facts.samples[-1].at_ms > FRESH_MS:
        return "the last entry of the catalogue is older than an hour"
    if facts.samples[-1].at_ms - now_ms > FRESH_MS:
        return "the last entry of the catalogue is more than an hour ahead of this clock"
    return ""


def _reason_to_keep(one: SegmentObjects, facts: ExpiryFacts, now_ms: int, window_ms: int) -> str:
    """Empty: it may go."""
    if any(hold.covers(one.key) for hold in facts.holds):
        return "held"
    if MANIFEST not in one.suffixes:
        return "" if now_ms - one.modified_ms > UNFINISHED_MS else "upload under way"
    if one.modified_ms >= window_ms:
        return "stored recently"
    last = facts.last_offsets.get(one.key)
    if last is None:
        return "needed"
    needed = needed_from(facts.samples, (one.key.topic_id, one.key.partition))
    return "needed" if last >= needed else ""


def _entries(facts: ExpiryFacts, window_ms: int) -> tuple[int, ...]:
    if any(hold.topic_id is None for hold in facts.holds):
        return ()
    archived = {one.key.topic_id for one in facts.segments}
    pinned = {at for topic_id, at in facts.last_entries.items() if topic_id in archived}
    times = [one.at_ms for one in facts.entries]
    first = bisect_right(times, window_ms) - 1
    return tuple(at for at in times[: max(first, 0)] if at not in pinned)


def _parts(facts: ExpiryFacts, gone: Collection[int], now_ms: int) -> tuple[str, ...]:
    used = {part for entry in facts.entries if entry.at_ms not in gone for part in entry.parts}
    return tuple(
        digest
        for digest, stored_ms in sorted(facts.parts.items())
        if digest not in used and now_ms - stored_ms > DAY_MS  # an entry that refers to it may be on its way
    )


def _gaps(facts: ExpiryFacts, window_ms: int) -> tuple[str, ...]:
    held = [hold for hold in facts.holds if hold.topic_id is None]
    topics = {hold.topic_id for hold in facts.holds}
    return tuple(
        gap.key
        for gap in facts.gaps
        if not held
        and gap.place[0] not in topics
        and gap.modified_ms < window_ms
        and gap.last < needed_from(facts.samples, gap.place)
    )


def _last_of_each(segments: Iterable[SegmentObjects]) -> dict[Place, SegmentKey]:
    newest: dict[Place, SegmentKey] = {}
    for one in sorted(segments, key=_order):
        if MANIFEST in one.suffixes:
            newest[one.key.topic_id, one.key.partition] = one.key
    return newest


def _order(one: SegmentObjects) -> SegmentKey:
    return one.key


def segments_max(segments: Collection[SegmentObjects]) -> int:
    """Segments of one run, of two or three objects each; at least one, so that small backups expire too."""
    objects = sum(len(one.suffixes) for one in segments)
    return max(1, min(OBJECTS_MAX, int(objects * OBJECTS_SHARE_MAX)) // len((MANIFEST, LOG, INDEXES)))


def _window_start(now_ms: int, keep_days: float) -> int:
    return now_ms - int(keep_days * DAY_MS)
