"""What is counted on the way: use by tenant, and what was acknowledged.

`Usage` is cumulative from the start of the process, so that a report that is repeated or lost does
no harm. `Acks` gathers acknowledged offsets by topic id, partition and second; what is complete is
taken out as `AckRange` events. Both are plain values that the data path adds to; nobody is asked.
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

# A gap between two acknowledged batches means that others wrote in between; a range may bridge it.
NEVER_REACHED: Final = 1 << 60
RANGES_OPEN_MAX: Final = 50_000  # beyond, new ranges are not kept: evidence is bounded, too


class Usage:
    """One tenant's counters on this gateway."""

    __slots__ = (
        "attempts",
        "bytes_in",
        "bytes_in_next",
        "bytes_out",
        "calibration",
        "connections",
        "gates",
        "granted",
        "partition_changes",
        "pressed_seconds",
        "refused",
        "requests",
        "requests_next",
        "service_seconds",
        "throttled_seconds",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        self.bytes_in_next = self.requests_next = NEVER_REACHED  # from where on somebody is to be asked
        self.gates = 0  # limits that it has used up, as bits
        self.service_seconds = 0.0
        self.calibration = 0.0  # seconds to be taken off that, below 0: what was no work of the broker's
        self.connections = 0
        self.attempts = 0
        self.partition_changes = 0  # of tenants that have a limit on them
        self.throttled_seconds: Mapping[Dimension, float] = {}  # by what was too much of its own quota
        self.pressed_seconds: Mapping[Dimension, float] = {}  # likewise of what a broker could do
        self.refused: Counter[str] = Counter()  # right logins that were not let in, by reason
        self.granted: Callable[[], Mapping[Dimension, float]] = dict  # what holds here of its quota

    def request_time_us(self) -> float:
        """What brokers worked for it, as far as that can be told."""
        return (self.service_seconds + self.calibration) * 1e6

    def report(self, source: Source, tenant: LogicalClusterId, sequence: int, time_ms: int) -> UsageReport:
        used = {
            Dimension.INGRESS_BYTES: self.bytes_in,
            Dimension.EGRESS_BYTES: self.bytes_out,
            Dimension.REQUESTS: self.requests,
            Dimension.REQUEST_TIME_US: int(self.request_time_us()),
            Dimension.CONNECTION_ATTEMPTS: self.attempts,
            Dimension.PARTITION_CHANGES: self.partition_changes,
        }
        levels = {str(Dimension.CONNECTIONS): self.connections}
        return UsageReport(
            cluster=source.cluster,
            gateway=source.gateway,
            incarnation=source.incarnation,
            sequence=sequence,
            tenant=tenant,
            time_ms=time_ms,
            used={str(name): value for name, value in used.items()},
            throttled_ms={str(name): int(value * 1000) for name, value in self.throttled_seconds.items()},
            levels=levels,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Which run of which gateway counts."""

    cluster: PhysicalClusterId
    gateway: str
    incarnation: str


class Acks:
    """Acknowledged offsets. A key is (topic id, partition, acks, second)."""

    __slots__ = ("dropped", "ranges")

    def __init__(self) -> None:
        self.ranges: dict[tuple[bytes, int, int, int], list[int]] = {}
        self.dropped = 0

    def add(
        self, topic_id: bytes, partition: int, acks: int, second: int, first: int, count: int, log_start: int
    ) -> list[int] | None:
        """Returns the range it belongs to, open until its second is over; None if there is no room."""
        key = (topic_id, partition, acks, second)
        found = self.ranges.get(key)
        last = first + count - 1
        if found is not None:
            if first < found[0]:
                found[0] = first
            if last > found[1]:
                found[1] = last
            found[2] += count
            if log_start > found[3]:
                found[3] = log_start
        elif len(self.ranges) < RANGES_OPEN_MAX:
            found = self.ranges[key] = [first, last, count, log_start]
        else:
            self.dropped += 1
        return found

    def answered(
        self,
        acks: int,
        sent: list[tuple[Any, ...]],
        answered: list[tuple[Any, ...]],
        ids: Mapping[bytes, bytes] | None,
        second: int,
    ) -> None:
        """What a produce request sent, and what its answer said; `ids` by name, None if rows have ids.

        Rows are those of `wire.watch`: (topic, partition, bytes, last offset delta) and
        (topic, partition, error, base offset, log start).
        """
        if len(answered) == 1 and len(sent) == 1:  # what small producers do all day
            topic, partition, error, base, log_start = answered[0]
            count = sent[0][3] + 1
            topic_id = topic if ids is None else ids.get(topic)
            if not error and base >= 0 and count > 0 and topic_id is not None:
                self.add(topic_id, partition, acks, second, base, count, max(log_start, 0))
            return
        counts = {(row[0], row[1]): row[3] + 1 for row in sent}
        for topic, partition, error, base, log_start in answered:
            count = counts.get((topic, partition), 0)
            if error or base < 0 or count <= 0:
                continue
            topic_id = topic if ids is None else ids.get(topic)
            if topic_id is not None:
                self.add(topic_id, partition, acks, second, base, count, max(log_start, 0))

    def complete(self, source: Source, before_second: int) -> Iterator[AckRange]:
        """Take out every range of the seconds before this one."""
        for key in [key for key in self.ranges if key[3] < before_second]:
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
                records=min(records, last - first + 1),  # a batch that was sent again is counted once
                log_start=log_start,
            )
