"""One day of the audit: what was observed of each partition, and how much of it was acknowledged. Pure.

`DayFold` takes the events of a day, and of some time before it: where logs ended when the day began. It
keeps a few numbers for each partition, so that a day of any size fits in memory. It judges nothing: findings
come from the rules.

Coverage is the share of appended bytes for which gateways have reported acknowledgements with acks=all. It is
exact for offsets. The bytes of offsets without evidence are estimated by the mean size of an offset in that
log. Markers of transactions take an offset, and no client produces them, so they count as not covered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from penstock.audit.rules.catalogue import RULES
from penstock.audit.rules.state import LATENESS_MS, SLACK_MS
from penstock.model.durability import (
    NAMED,
    PARTITION,
    UNKNOWN,
    Acked,
    Deleted,
    Heartbeat,
    Intent,
    Placement,
    Replica,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.audit import DayUnfinished
from penstock.model.ids import tenant_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.model.durability import FindingRecord, LogEvent

# An unchanged replica is reported once an hour: so long before the day, its last position is certain.
LEAD_IN_MS: Final = 65 * 60 * 1000
SETTLED_MS: Final = 60_000 + LATENESS_MS + SLACK_MS  # after its end, a day has all its findings
HEALING: Final = "heal-"  # actions of intents that healing records


@dataclass(frozen=True, slots=True)
class Day:
    """A day in UTC, or the part of it that is over."""

    name: str
    begin_ms: int
    end_ms: int
    finished: bool


def day_of(day: date, now_ms: int, *, so_far: bool) -> Day:
    """Refuses a day that is not over, unless the part of it so far is requested."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    begin_ms, end_ms = (_ms(each) for each in (begin, begin + timedelta(days=1)))
    finished = now_ms >= end_ms + SETTLED_MS
    if begin_ms > now_ms or not (finished or so_far):
        raise DayUnfinished(day=day.isoformat())
    return Day(day.isoformat(), begin_ms, min(end_ms, now_ms), finished)


@dataclass(slots=True)
class PartitionDay:
    topic: str = ""
    before: int = UNKNOWN  # high watermark when the day began
    first: int = UNKNOWN  # the first one in the day
    last: int = UNKNOWN
    offset_bytes: float = 0.0  # mean size of an offset in the leader's log
    acked_offsets: int = 0
    acked_bytes: int = 0

    @property
    def appended(self) -> int:
        begun = self.before if self.before != UNKNOWN else self.first
        return max(0, self.last - begun) if self.last != UNKNOWN else 0


@dataclass(slots=True)
class CollectorDay:
    last_ms: int = 0
    gap_ms: int = 0  # the longest time without a heartbeat
    beats: int = 0
    unseen_max: int = 0
    disabled: set[str] = field(default_factory=set)


@dataclass(slots=True)
class DayFold:
    """Add every event once, those of one subject in order."""

    day: Day
    partitions: dict[str, PartitionDay] = field(default_factory=dict)
    collectors: dict[str, CollectorDay] = field(default_factory=dict)
    subjects: set[str] = field(default_factory=set)  # with an event in the day
    events: int = 0
    unreadable: int = 0
    intents: Counter[tuple[str, str]] = field(default_factory=Counter)  # by actor and action
    healing: list[tuple[int, str, str, str]] = field(default_factory=list)  # time, subject, action, actor

    def add(self, event: LogEvent) -> None:
        if event.time_ms >= self.day.end_ms:
            return
        inside = event.time_ms >= self.day.begin_ms
        try:
            facts = event.read_facts()
        except PenstockError:
            self.unreadable += inside
            return
        if inside:
            self.events += 1
            if not event.subject.startswith(NAMED):
                self.subjects.add(event.subject)
        match facts:
            case Placement() if event.subject.startswith(PARTITION):
                self._placement(event.subject, facts, inside=inside)
            case Replica():
                self._replica(event.subject, facts, inside=inside)
            case Acked() if inside:
                partition = self._partition(event.subject)
                partition.acked_offsets += facts.records
                partition.acked_bytes += facts.bytes
            case Heartbeat():
                self._heartbeat(event.subject, facts, event.time_ms)
            case Intent() | Deleted() if inside and event.subject.startswith(NAMED):
                self._intent(event, facts)
            case _:
                pass

    def name_topics(self, topics: Mapping[str, str]) -> None:
        """Topics by subject, for partitions whose placement did not change in the day."""
        for subject, partition in self.partitions.items():
            partition.topic = partition.topic or topics.get(subject, "")

    def _partition(self, subject: str) -> PartitionDay:
        return self.partitions.setdefault(subject, PartitionDay())

    def _placement(self, subject: str, facts: Placement, *, inside: bool) -> None:
        partition = self._partition(subject)
        partition.topic = facts.topic
        if inside and not facts.snapshot and facts.partition_epoch == 0 and partition.last == UNKNOWN:
            partition.before = 0  # created in the day

    def _replica(self, subject: str, facts: Replica, *, inside: bool) -> None:
        """Only a leader's replica has a high watermark."""
        if facts.high_watermark == UNKNOWN:
            return
        partition = self._partition(subject)
        if not inside:
            partition.before = max(partition.before, facts.high_watermark)
            return
        if partition.first == UNKNOWN:
            partition.first = facts.high_watermark
        partition.last = max(partition.last, facts.high_watermark)
        start = facts.local_start if facts.local_start != UNKNOWN else facts.start
        if facts.size > 0 and facts.end > start:
            partition.offset_bytes = facts.size / (facts.end - start)

    def _heartbeat(self, subject: str, facts: Heartbeat, time_ms: int) -> None:
        collector = self.collectors.setdefault(subject, CollectorDay())
        since_ms = max(collector.last_ms, self.day.begin_ms)
        collector.last_ms = max(collector.last_ms, time_ms)
        if time_ms < self.day.begin_ms:
            return
        collector.gap_ms = max(collector.gap_ms, time_ms - since_ms)
        collector.beats += 1
        collector.unseen_max = max(collector.unseen_max, facts.unseen_count)
        collector.disabled.update(facts.disabled)

    def _intent(self, event: LogEvent, facts: Intent | Deleted) -> None:
        action = facts.action if isinstance(facts, Intent) else "log-start"
        if action.startswith(HEALING):
            self.healing.append(
                (event.time_ms, event.subject.removeprefix(NAMED), action.removeprefix(HEALING), facts.actor)
            )
        else:
            self.intents[facts.actor, action] += 1


@dataclass(slots=True)
class Coverage:
    partitions: int = 0
    appended_offsets: int = 0
    acked_offsets: int = 0
    appended_bytes: float = 0.0
    acked_bytes: int = 0

    def add(self, one: PartitionDay) -> None:
        acked = min(one.acked_offsets, one.appended)
        size = one.offset_bytes or (one.acked_bytes / one.acked_offsets if one.acked_offsets else 0.0)
        self.partitions += 1
        self.appended_offsets += one.appended
        self.acked_offsets += acked
        self.acked_bytes += one.acked_bytes
        self.appended_bytes += one.acked_bytes + (one.appended - acked) * size

    @property
    def share(self) -> float | None:
        """None if nothing was appended."""
        if self.appended_bytes:
            return self.acked_bytes / self.appended_bytes
        return self.acked_offsets / self.appended_offsets if self.appended_offsets else None


def coverage(partitions: Iterable[PartitionDay]) -> dict[str, Coverage]:
    """By tenant; the empty one has topics of the platform and of no tenant."""
    result: dict[str, Coverage] = {}
    for one in partitions:
        result.setdefault(tenant_of(one.topic), Coverage()).add(one)
    return dict(sorted(result.items()))


def report(fold: DayFold, cluster: str, findings: Iterable[FindingRecord]) -> dict[str, Any]:
    """The day as JSON members."""
    day = fold.day
    every = sorted(findings, key=lambda each: (each.first_seen_ms, each.id))
    in_day = [each for each in every if each.first_seen_ms < day.end_ms and each.last_seen_ms >= day.begin_ms]
    before = [each for each in every if each.is_open and each.last_seen_ms < day.begin_ms]
    kinds = Counter(subject.partition("/")[0] for subject in fold.subjects)
    return {
        "day": day.name,
        "finished": day.finished,
        "until": shown_time(day.end_ms),
        "cluster": cluster,
        "events": fold.events,
        "unreadable": fold.unreadable,
        "subjects": dict(sorted(kinds.items())),
        "coverage": [
            _coverage_row(tenant, each) for tenant, each in coverage(fold.partitions.values()).items()
        ],
        "disabled": _disabled(fold),
        "collectors": [_collector_row(name, each, day) for name, each in sorted(fold.collectors.items())],
        "findings": [_finding_row(each) for each in in_day],
        "open_before": len(before),
        "actions": [
            {"time": shown_time(time_ms), "subject": subject, "action": action, "actor": actor}
            for time_ms, subject, action, actor in sorted(fold.healing)
        ],
        "intents": [
            {"actor": actor, "action": action, "count": count}
            for (actor, action), count in sorted(fold.intents.items())
        ],
    }


def _coverage_row(tenant: str, each: Coverage) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "partitions": each.partitions,
        "appended_offsets": each.appended_offsets,
        "acked_offsets": each.acked_offsets,
        "appended_bytes": round(each.appended_bytes),
        "acked_bytes": each.acked_bytes,
        "share": each.share,
    }


def _disabled(fold: DayFold) -> list[dict[str, str]]:
    """Rules that found nothing because nothing feeds them, and those that a collector could not feed."""
    rows = [{"rule": each.name, "reason": f"fed by {each.fed_by}"} for each in RULES if each.missing]
    for name, collector in sorted(fold.collectors.items()):
        for text in sorted(collector.disabled):
            rule, _, reason = text.partition(": ")
            rows.append({"rule": rule, "reason": f"{name}: {reason}" if reason else name})
    return rows


def _collector_row(name: str, each: CollectorDay, day: Day) -> dict[str, Any]:
    age_ms = max(0, day.end_ms - each.last_ms)
    return {
        "collector": name.removeprefix("collector/"),
        "heartbeats": each.beats,
        "age_seconds": age_ms / 1000,
        "gap_seconds_max": max(each.gap_ms, min(age_ms, day.end_ms - day.begin_ms)) / 1000,
        "unseen_partitions_max": each.unseen_max,
    }


def _finding_row(each: FindingRecord) -> dict[str, Any]:
    return {
        "id": each.id,
        "severity": str(each.severity),
        "rule": each.rule,
        "subject": each.subject,
        "topic": each.topic_name,
        "first": each.first,
        "last": each.last,
        "state": str(each.state),
        "first_seen": shown_time(each.first_seen_ms),
        "last_seen": shown_time(each.last_seen_ms),
        "detail": each.detail,
        "actor": each.actor,
        "note": each.note,
    }


def shown_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
