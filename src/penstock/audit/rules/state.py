"""The state of one subject: what the rules remember of its history. Bounded, and storable as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from penstock.model.durability import (
    UNKNOWN,
    Heartbeat,
    LogEvent,
    Placement,
    Policy,
    Replica,
    Scrubbed,
    Segment,
)
from penstock.model.key_names import AUDIT_STATE_TOPIC
from penstock.model.schema import Event

# Events of different sources may arrive this much later than their order in time demands.
LATENESS_MS: Final = 4_000
# Evidence may carry a time this much after what it explains: clocks differ, and gateways take a second.
SLACK_MS: Final = 6_000
INTENT_MS: Final = 60_000  # how long a recorded intent explains changes, unless it gives an end
BUFFERED_MAX: Final = 1_000  # events; beyond, the oldest are released early
SOURCES_MAX: Final = 64
POLICIES_MAX: Final = 32
SAMPLES_MAX: Final = 8
INTENTS_MAX: Final = 16
KNOWN_MAX: Final = 32
RECREATED_MAX: Final = 32
RISES_MAX: Final = 32
SEGMENTS_MAX: Final = 10_000
SCRUBS_MAX: Final = 64
MARKS_MAX: Final = 256
TOPIC: Final = "topic/"  # subjects that are topics, by name


@dataclass(frozen=True, slots=True)
class Since:
    """A policy, and from when on it was in force."""

    time_ms: int
    policy: Policy


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica as it was last observed in the ISR; `left`: it was outside the ISR since."""

    time_ms: int
    replica: Replica
    left: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """A record that time retention must keep: `offset`, until `until_ms`, under `retention_ms`."""

    time_ms: int
    offset: int
    until_ms: int
    retention_ms: int


@dataclass(frozen=True, slots=True)
class Rise:
    """A log start that rose from `first` to `to` between two observations, and waits for its explanation."""

    broker: int
    first: int
    to: int
    since_ms: int
    time_ms: int
    size: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """An intent in force from `time_ms` to `until_ms`."""

    action: str
    actor: str
    time_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Recreated:
    """A topic that has a new id, and waits for the intent that explains it."""

    before: str
    after: str
    deleted_ms: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Tiered:
    """A remote segment in its newest state."""

    time_ms: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class SubjectState(Event):
    """What the rules know of one subject, after the events they have processed."""

    kind: ClassVar[str] = "audit-state"
    # 2: `topic_deleted_ms`, `recreated`; `run` and `damaged` of scrubs. 3: `acked_wait_…`, `acked_settled`
    minor: ClassVar[int] = 3
    topic: ClassVar[str] = AUDIT_STATE_TOPIC

    cluster: str
    subject: str
    # Events that wait for earlier ones of other sources, in order.
    waiting: tuple[LogEvent, ...] = ()
    watermark_ms: int = 0  # events up to this time have been processed
    sequences: Mapping[str, int] = field(default_factory=dict)  # by source: the last one processed
    late: int = 0  # events that arrived after later ones had been processed
    dropped: int = 0  # suspicions that a later observation resolved
    # Facts.
    placement: Placement | None = None
    policies: tuple[Since, ...] = ()
    replicas: Mapping[str, Seen] = field(default_factory=dict)  # by broker
    samples: tuple[Sample, ...] = ()
    deleted_to: int = 0  # DeleteRecords allowed the log to start here
    legal_to: int = 0  # the log was seen to start here legally
    acked_end: int = 0  # behind the last offset acknowledged to acks=all
    acked_ms: int = 0
    acked_wait_end: int = 0  # the same, as it was at `acked_wait_ms`
    acked_wait_ms: int = 0
    acked_settled: int = 0  # and before that
    acked_bytes: int = 0
    segments: Mapping[str, Tiered] = field(default_factory=dict)  # by segment id; those not deleted
    tier_bytes: int = 0  # of finished segments
    intents: tuple[Recorded, ...] = ()
    scrubs: tuple[Scrubbed, ...] = ()
    topic_id: str = ""
    topic_deleted_ms: int = 0  # 0: it exists
    heartbeat: Heartbeat | None = None
    heartbeat_ms: int = 0
    # What waits for its explanation, and what has been reported.
    rises: tuple[Rise, ...] = ()
    changes: tuple[int, ...] = ()  # times of policies that wait for an intent
    recreated: tuple[Recreated, ...] = ()
    known: tuple[tuple[int, ...], ...] = ()  # first and last offset of reported losses
    marks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of rules, by rule and key

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.subject}".encode()

    @property
    def topic_name(self) -> str:
        """Of a partition or a topic, if it is known; empty for other subjects."""
        if self.placement is not None:
            return self.placement.topic
        return self.subject.removeprefix(TOPIC) if self.subject.startswith(TOPIC) else ""

    def acked_by(self, time_ms: int) -> int:
        """Behind the last offset that was acknowledged long enough before a time."""
        if time_ms - self.acked_ms > SLACK_MS:
            return self.acked_end
        return self.acked_wait_end if time_ms - self.acked_wait_ms > SLACK_MS else self.acked_settled

    def known_end(self, end: int) -> SubjectState:
        """What was acknowledged beyond an end is reported, or not expected any more."""
        settled, waiting = min(self.acked_settled, end), min(self.acked_wait_end, end)
        return replace(
            self, acked_end=min(self.acked_end, end), acked_wait_end=waiting, acked_settled=settled
        )

    @property
    def policy(self) -> Policy | None:
        return self.policies[-1].policy if self.policies else None

    def leads(self, broker: int) -> bool:
        return self.placement is not None and self.placement.leader == broker

    def in_sync(self, broker: int) -> bool:
        return self.placement is not None and broker in self.placement.isr

    def intends(self, action: str, time_ms: int) -> bool:
        """Whether such an intent was in force at a time, give or take the difference of clocks."""
        return any(
            each.action == action and each.time_ms - SLACK_MS <= time_ms <= each.until_ms + SLACK_MS
            for each in self.intents
        )

    def policies_between(self, since_ms: int, until_ms: int) -> tuple[Policy, ...]:
        """Every policy in force at some time between, give or take the difference of clocks."""
        result = []
        for number, each in enumerate(self.policies):
            ends_ms = self.policies[number + 1].time_ms if number + 1 < len(self.policies) else None
            starts = each.time_ms <= until_ms + SLACK_MS
            if starts and (ends_ms is None or ends_ms >= since_ms - SLACK_MS):
                result.append(each.policy)
        return tuple(result)

    def is_known(self, first: int, last: int) -> bool:
        """Whether a loss that includes these offsets has been reported."""
        return any(range_[0] <= first and last <= range_[1] for range_ in self.known)

    @property
    def unknown_size(self) -> bool:
        return any(each.segment.bytes == UNKNOWN for each in self.segments.values())
