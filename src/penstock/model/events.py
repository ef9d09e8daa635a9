"""What is written on the internal topics, field by field.

One class for each topic (DESIGN §4). Times are milliseconds since 1970 in UTC, as Kafka's are;
every other unit stands in the name. How these become bytes, and what may change, is `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone
from penstock.model.keys import (
    ACKS_TOPIC,
    AUDIT_TOPIC,
    HEALTH_TOPIC,
    PRESSURE_TOPIC,
    QUOTA_TOPIC,
    REGISTRY_TOPIC,
    USAGE_TOPIC,
)
from penstock.model.schema import Event


class Dimension(StrEnum):
    """What a tenant's use is counted in. Reports may carry names from newer gateways as well."""

    INGRESS_BYTES = "ingress_bytes"
    EGRESS_BYTES = "egress_bytes"
    REQUESTS = "requests"
    REQUEST_TIME_US = "request_time_us"  # upstream service time, without long polls and acks=all waits
    CONNECTIONS = "connections"  # a level: those open now
    CONNECTION_ATTEMPTS = "connection_attempts"
    PARTITIONS = "partitions"  # a level
    PARTITION_CHANGES = "partition_changes"  # created or deleted


@dataclass(frozen=True, slots=True)
class UsageReport(Event):
    """One tenant's use as one run of one gateway has counted it since it started.

    Counters are cumulative, so a repeat is harmless, a lost report is made good by the next one,
    and a kill loses at most the last interval, in the tenant's favour. Use between two reports of
    one incarnation is their difference; a new incarnation begins at zero.
    """

    kind: ClassVar[str] = "usage"
    topic: ClassVar[str] = USAGE_TOPIC

    cluster: PhysicalClusterId
    gateway: str
    incarnation: str  # of the gateway's process, never used again
    sequence: int  # rises by one with each report of the incarnation for this tenant
    tenant: LogicalClusterId
    time_ms: int
    used: Mapping[str, int]  # by dimension, since the incarnation began
    throttled_ms: Mapping[str, int] = field(default_factory=dict)  # by dimension, likewise
    levels: Mapping[str, int] = field(default_factory=dict)  # by dimension, at this moment

    def __post_init__(self) -> None:
        self.require(self.sequence >= 0, "sequence", "zero or more")
        for name in ("used", "throttled_ms", "levels"):
            self.require(min(getattr(self, name).values(), default=0) >= 0, name, "zero or more, each")

    @property
    def key(self) -> bytes:
        """By tenant: the coordinator that owns it reads one partition for it."""
        return self.tenant.encode()


@dataclass(frozen=True, slots=True)
class QuotaShares(Event):
    """How a tenant's quota is split over the gateways, from its coordinator.

    A gateway applies the highest (epoch, sequence) it has seen, ignores lower ones, and falls back
    to an even split `valid_ms` after `time_ms` if nothing newer came.
    """

    kind: ClassVar[str] = "quota"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = QUOTA_TOPIC

    tenant: LogicalClusterId
    epoch: int  # of the coordinator: whoever takes over has a higher one
    sequence: int  # within the epoch
    time_ms: int
    valid_ms: int
    quota: Mapping[str, float]  # by dimension, a second, whole cluster
    shares: Mapping[str, Mapping[str, float]]  # by gateway, then by dimension, a second
    lazy: tuple[str, ...] = ()  # dimensions in which gateways may go beyond their shares, up to `limits`
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # as `shares`: what is enforced
    used: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # as `shares`: what led to them
    throttled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # likewise, part of the time
    levels: Mapping[str, int] = field(default_factory=dict)  # by dimension, whole cluster, at this moment

    def __post_init__(self) -> None:
        self.require(self.valid_ms > 0, "valid_ms", "more than zero")
        self.require(min(self.quota.values(), default=0.0) >= 0, "quota", "zero or more, each")
        for name in ("shares", "limits", "used", "throttled"):
            splits: Mapping[str, Mapping[str, float]] = getattr(self, name)
            least = min((part for split in splits.values() for part in split.values()), default=0.0)
            self.require(least >= 0, name, "zero or more, each")

    @property
    def key(self) -> bytes:
        return self.tenant.encode()

    @property
    def order(self) -> tuple[int, int]:
        """The greater one replaces the smaller one, however they arrive."""
        return self.epoch, self.sequence


class Probe(StrEnum):
    """Produce: from sending to acknowledgement. Consume: from sending to delivery, end to end."""

    PRODUCE = "produce"
    CONSUME = "consume"


@dataclass(frozen=True, slots=True)
class HealthProbe(Event):
    """One probe of one broker, through the gateway, as a client sees it (Kora §4.4)."""

    kind: ClassVar[str] = "health"
    topic: ClassVar[str] = HEALTH_TOPIC

    cluster: PhysicalClusterId
    broker: BrokerId
    zone: Zone
    partition: int  # of the probe topic; sticks to this broker
    probe: Probe
    checker: str  # the run of the health checker
    sequence: int  # rises by one with each probe of the checker to this partition
    time_ms: int  # when the probe began
    latency_us: int | None  # None if it failed
    error: str | None = None  # Kafka's name of the error, or ours; None if it succeeded

    def __post_init__(self) -> None:
        succeeded = self.latency_us is not None
        self.require(succeeded == (self.error is None), "error", "present exactly when `latency_us` is not")
        self.require((self.latency_us or 0) >= 0, "latency_us", "zero or more")

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.broker}".encode()


class Phase(StrEnum):
    BEGAN = "began"
    LASTS = "lasts"  # told again from time to time, for whoever comes later
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BrokerPressure(Event):
    """A broker has more asked of it than it answers in time, and that for a while, as one gateway sees it.

    Seen from outside, by what is in flight towards the broker and how long it has been: long polls and
    rebalances, in which brokers wait on purpose, do not count.
    """

    kind: ClassVar[str] = "pressure"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = PRESSURE_TOPIC

    cluster: PhysicalClusterId
    broker: BrokerId
    gateway: str
    incarnation: str
    time_ms: int
    began_ms: int  # together with gateway, incarnation and broker: which spell of pressure it is
    phase: Phase
    in_flight: int  # requests without an answer, mean of the last samples
    waited_us: int  # how long the oldest of them has waited, mean of the last samples
    handlers_busy: float | None = None  # 0 to 1, its request handlers over the last seconds; None: not known

    def __post_init__(self) -> None:
        self.require(self.began_ms <= self.time_ms, "began_ms", "at most `time_ms`")
        self.require(self.in_flight >= 0, "in_flight", "zero or more")
        self.require(self.waited_us >= 0, "waited_us", "zero or more")
        busy = self.handlers_busy
        self.require(busy is None or 0 <= busy <= 1, "handlers_busy", "between 0 and 1")

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.broker}".encode()


ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1


@dataclass(frozen=True, slots=True)
class AckRange(Event):
    """Offsets a gateway saw acknowledged on one partition within one second.

    Everything in `first..last` counted by `records` must stay readable until retention takes it;
    if `records` is less than the span, others wrote in between. The topic goes by its id, since a
    topic made again under the same name owes nothing for its predecessor.
    """

    kind: ClassVar[str] = "ack"
    topic: ClassVar[str] = ACKS_TOPIC

    cluster: PhysicalClusterId
    topic_id: str  # Kafka's form, 22 characters
    partition: int
    second: int  # since 1970
    gateway: str
    incarnation: str
    acks: int  # what the producers had asked for: all (-1) or the leader (1); never mixed in one range
    first: int  # offsets, both inclusive
    last: int
    records: int
    log_start: int  # highest log start offset seen in the answers

    def __post_init__(self) -> None:
        self.require(self.acks in (ACKS_ALL, ACKS_LEADER), "acks", "-1 or 1")
        self.require(0 <= self.first <= self.last, "first", "at least 0 and at most `last`")
        self.require(0 < self.records <= self.last - self.first + 1, "records", "1 to the span of the range")

    @property
    def key(self) -> bytes:
        return f"{self.topic_id}-{self.partition}".encode()


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AuditEvent(Event):
    """Something changed, or somebody tried: who, what, on what, from what to what.

    Both kinds of history are of this shape: what people and services do to the platform, and what
    happens to the log's own metadata (log start offsets, epochs, segments, settings), which the
    durability audit judges. `source` and `sequence` let a reader see that none is missing.
    """

    kind: ClassVar[str] = "audit"
    topic: ClassVar[str] = AUDIT_TOPIC

    id: str  # unique; the same event written twice has the same id
    time_ms: int
    source: str  # the component that saw it, with its run
    sequence: int  # rises by one with each event of the source
    cluster: PhysicalClusterId
    operation: str  # noun and verb: `topic.create`, `log-start.rise`
    subject_kind: str  # `topic`, `partition`, `service-account`, …
    subject: str  # its id, not its name
    actor: str  # who did it: a principal, or the component itself
    outcome: Outcome
    tenant: LogicalClusterId | None = None
    before: Mapping[str, object] | None = None  # what it was, if it was
    after: Mapping[str, object] | None = None  # what it is, if it is
    cause: str | None = None  # id of the event, operation or request that led to this one
    reason: str | None = None  # in words, where something was refused or failed

    @property
    def key(self) -> bytes:
        """By subject: one subject's history is in order."""
        return f"{self.subject_kind}/{self.subject}".encode()


@dataclass(frozen=True, slots=True)
class RegistryRecord(Event):
    """One entity of the platform, whole, at one version: an envelope around its body.

    Topics of these are compacted; a record without a value deletes the entity of its key. The
    body is kept as it came, so that a follower of an older version passes on what it does not
    know. Versions rise by one with each change, and a writer that finds another one than it
    expected has lost a race.
    """

    kind: ClassVar[str] = "registry"
    topic: ClassVar[str] = REGISTRY_TOPIC

    entity: str  # `logical-cluster`, `service-account`, `api-key`, …
    id: str
    version: int
    time_ms: int
    body_schema: int  # of this kind of entity
    body: Mapping[str, object]

    def __post_init__(self) -> None:
        self.require(self.version >= 1, "version", "one or more")
        self.require("/" not in self.entity and bool(self.entity), "entity", "a word without a slash")

    @property
    def key(self) -> bytes:
        return registry_key(self.entity, self.id)


def registry_key(entity: str, entity_id: str) -> bytes:
    """The key of an entity's records, its deletion's too."""
    return f"{entity}/{entity_id}".encode()


def entity_of(key: bytes) -> tuple[str, str]:
    """Which entity a record is about, from its key alone, as one must for a deletion."""
    entity, slash, entity_id = key.decode().partition("/")
    if not slash:
        raise RegistryRecord.refusal("key", key, "<entity>/<id>")
    return entity, entity_id


EVENTS: Final[tuple[type[Event], ...]] = (
    UsageReport,
    QuotaShares,
    HealthProbe,
    BrokerPressure,
    AckRange,
    AuditEvent,
    RegistryRecord,
)
