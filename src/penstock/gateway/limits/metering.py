"""Counters on the data path: usage by tenant, and acknowledged offsets.

`Usage` is cumulative from the start of the process, so a repeated or lost report does no harm. `Acks`
collects acknowledged offsets by topic id, partition and second; completed ranges leave as `AckRange` events.
Both are plain values that the data path adds to.
"""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.events import ACKS_ALL, ACKS_LEADER, AckRange, Dimension, UsageReport
from penstock.model.ids import PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.model.ids import LogicalClusterId

NEVER_REACHED: Final = 1 << 60
RANGES_OPEN_MAX: Final = 50_000  # further ranges are dropped, to bound memory


class Usage:
    """One tenant's counters on this gateway."""

    __slots__ = (
        "attempts", "bytes_in", "bytes_in_check_at", "bytes_out", "calibration", "connections", "exhausted",
        "granted", "partition_changes", "pressure_throttled_seconds", "refused", "requests",
        "requests_check_at", "service_seconds", "throttled_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        # The counter values at which the quota is checked next.
        self.bytes_in_check_at = self.requests_check_at = NEVER_REACHED
        self.exhausted = 0  # bits of exhausted limits
        self.service_seconds = 0.0
        self.calibration = 0.0  # seconds to add to that, below 0: what was not the broker's work
        self.connections = 0
        self.attempts = 0
        self.partition_changes = 0  # of tenants with a limit on them
        self.throttled_seconds: Mapping[Dimension, float] = {}  # by the tenant's own quota
        self.pressure_throttled_seconds: Mapping[Dimension, float] = {}  # by a broker's limits
        self.refused: Counter[str] = Counter()  # successful logins that were not admitted, by reason
        self.granted: Callable[[], Mapping[Dimension, float]] = dict  # the part of its quota in force here

    def request_time_us(self) -> float:
        """The broker time spent on this tenant, as far as it can be measured."""
        return (self.service_seconds + self.calibration) * 1e6

    def used(self) -> dict[Dimension, float]:
        return {
            Dimension.INGRESS_BYTES: self.bytes_in,
            Dimension.EGRESS_BYTES: self.bytes_out,
            Dimension.REQUESTS: self.requests,
            Dimension.REQUEST_TIME_US: self.request_time_us(),
            Dimension.CONNECTION_ATTEMPTS: self.attempts,
            Dimension.PARTITION_CHANGES: self.partition_changes,
        }

    def report(self, source: Source, tenant: LogicalClusterId, sequence: int, time_ms: int) -> UsageReport:
        return UsageReport(
            cluster=source.cluster,
            gateway=source.gateway,
            incarnation=source.incarnation,
            sequence=sequence,
            tenant=tenant,
            time_ms=time_ms,
            used={str(name): int(value) for name, value in self.used().items()},
            throttled_ms={str(name): int(value * 1000) for name, value in self.throttled_seconds.items()},
            levels={str(Dimension.CONNECTIONS): self.connections},
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Which run of which gateway reports."""

    cluster: PhysicalClusterId
    gateway: str
    incarnation: str


class Acks:
    """Acknowledged offsets by (topic id, partition, acks, second)."""

    __slots__ = ("dropped", "ranges", "second")

    def __init__(self) -> None:
        self.ranges: dict[tuple[bytes, int, int, int], list[int]] = {}
        self.dropped = 0
        self.second = 0  # since the epoch, set by the gateway once a second

    def add(
        self, topic_id: bytes, partition: int, acks: int, first: int, count: int, log_start: int
    ) -> list[int] | None:
        """Add a batch; returns its range, which stays open until its second is over, or None without room."""
        key = (topic_id, partition, acks, self.second)
        ack_range = self.ranges.get(key)
        last = first + count - 1
        if ack_range is not None:
            if first < ack_range[0]:
                ack_range[0] = first
            if last > ack_range[1]:
                ack_range[1] = last
            ack_range[2] += count
            if log_start > ack_range[3]:
                ack_range[3] = log_start
        elif len(self.ranges) < RANGES_OPEN_MAX:
            ack_range = self.ranges[key] = [first, last, count, log_start]
        else:
            self.dropped += 1
        return ack_range

    def record(
        self,
        acks: int,
        sent: list[tuple[Any, ...]],
        responded: list[tuple[Any, ...]],
        ids: Mapping[bytes, bytes] | None,
    ) -> None:
        """Record a Produce request and its response; `ids` maps names to ids, None if rows carry ids.

        Rows are those of `wire.field_observer`: (topic, partition, bytes, last offset delta) and (topic,
        partition, error, base offset, log start).
        """
        if len(responded) == 1 and len(sent) == 1:  # the usual case of small producers
            topic, partition, error, base, log_start = responded[0]
            count = sent[0][3] + 1
            topic_id = topic if ids is None else ids.get(topic)
            if not error and base >= 0 and count > 0 and topic_id is not None:
                self.add(topic_id, partition, acks, base, count, max(log_start, 0))
            return
        counts = {(row[0], row[1]): row[3] + 1 for row in sent}
        for topic, partition, error, base, log_start in responded:
            count = counts.get((topic, partition), 0)
            if error or base < 0 or count <= 0:
                continue
            topic_id = topic if ids is None else ids.get(topic)
            if topic_id is not None:
                self.add(topic_id, partition, acks, base, count, max(log_start, 0))

    def complete(self, source: Source) -> Iterator[AckRange]:
        """Remove and yield every range of the seconds before this one."""
        for key in [key for key in self.ranges if key[3] < self.second]:
            topic_id, partition, acks, second = key
            first, last, records, log_start = self.ranges.pop(key)
            yield AckRange(
                cluster=source.cluster,
                topic_id=base64.urlsafe_b64encode(topic_id).decode().rstrip("="),
                partition=partition,
                second=second,
                gateway=source.gateway,
                incarnation=source.incarnation,
                acks=ACKS_ALL if acks < 0 else ACKS_LEADER,
                first=first,
                last=last,
                records=min(records, last - first + 1),  # a batch sent again counts once
                log_start=log_start,
            )
