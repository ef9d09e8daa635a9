"""Records of the internal topics, field by field.

Times are milliseconds since 1970 in UTC, as in Kafka; every other unit is in the
field's name. `schema` defines the JSON form and the rules for changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Final

from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, Zone
from penstock.model.key_names import (
    ACKS_TOPIC,
    AUDIT_TOPIC,
    GATEWAYS_TOPIC,
    HEALTH_TOPIC,
    LOAD_HOURS_TOPIC,
    LOAD_TOPIC,
    PRESSURE_TOPIC,
    QUOTA_TOPIC,
    REGISTRY_TOPIC,
    USAGE_TOPIC,
)
from penstock.model.schema import Event


class Dimension(StrEnum):
    """What a tenant's usage is measured in. Reports of newer gateways may have further dimensions."""

    INGRESS_BYTES = "ingress_bytes"
    EGRESS_BYTES = "egress_bytes"
    REQUESTS = "requests"
    REQUEST_TIME_US = "request_time_us"  # broker service time, without long polls and acks=all waits
    GATEWAY_TIME_US = "gateway_time_us"  # processor time of gateways
    CONNECTIONS = "connections"  # a level: those open now
    CONNECTION_ATTEMPTS = "connection_attempts"
    PARTITIONS = "partitions"  # a level
    PARTITION_CHANGES = "partition_changes"  # created or deleted


@dataclass(frozen=True, slots=True)
class UsageReport(Event):
    """One tenant's usage, counted by one gateway process since its start.

    Counters are cumulative: a duplicate is harmless, and the next report makes up for a lost one. A killed
    process loses at most one interval, in the tenant's favour. Usage between two reports of one
    incarnation is their difference; a new incarnation starts at zero.
    """

    kind: ClassVar[str] = "usage"
    topic: ClassVar[str] = USAGE_TOPIC

    cluster: PhysicalClusterId
    gateway: str
    incarnation: str  # id of the gateway process, never reused
    sequence: int  # plus one for each report of the incarnation on this tenant
    tenant: LogicalClusterId
    time_ms: int
    used: Mapping[str, int]  # by dimension, since the incarnation started
    throttled_ms: Mapping[str, int] = field(default_factory=dict)  # as `used`
    levels: Mapping[str, int] = field(default_factory=dict)  # by dimension, at this moment

    def __post_init__(self) -> None:
        self.require(self.sequence >= 0, "sequence", "zero or more")
        for name in ("used", "throttled_ms", "levels"):
            self.require(min(getattr(self, name).values(), default=0) >= 0, name, "zero or more, each")

    @property
    def key(self) -> bytes:
        """The tenant: its coordinator reads one partition for it."""
        return self.tenant.encode()


@dataclass(frozen=True, slots=True)
class QuotaShares(Event):
    """How a tenant's coordinator splits its quota over the gateways.

    A gateway applies the highest (epoch, sequence) it has received and ignores lower ones. If nothing
    newer arrives, it falls back to an even split `valid_ms` after `time_ms`.
    """

    kind: ClassVar[str] = "quota"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = QUOTA_TOPIC

    tenant: LogicalClusterId
    epoch: int  # of the coordinator; its successor has a higher one
    sequence: int  # within the epoch
    time_ms: int
    valid_ms: int
    quota: Mapping[str, float]  # by dimension, per second, for the whole cluster
    shares: Mapping[str, Mapping[str, float]]  # by gateway, then by dimension, per second
    lazy: tuple[str, ...] = ()  # dimensions in which gateways may exceed their shares, up to `limits`
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # as `shares`; what is enforced
    used: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what `shares` are based on
    throttled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # fraction of the time
    levels: Mapping[str, int] = field(default_factory=dict)  # by dimension, for the whole cluster, now

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
        """A greater one replaces a smaller one, in whatever order they arrive."""
        return self.epoch, self.sequence


@dataclass(frozen=True, slots=True)
class GatewayHeartbeat(Event):
    """A gateway's registration, repeated while it runs. `gateway_names` folds them into who has a name."""

    kind: ClassVar[str] = "gateway"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = GATEWAYS_TOPIC

    cluster: PhysicalClusterId
    gateway: str
    instance: str  # its host and settings file: a successor on the same host has the same
    incarnation: str  # id of the gateway process, never reused
    time_ms: int
    started_ms: int
    bootstrap: str = ""  # advertised addresses, one for each broker; empty with SNI
    domain: str = ""  # of SNI host names
    port: int = 0  # that clients use with SNI
    tls: bool = False
    workers: int = 1
    version: str = ""  # of the software
    connections: int = 0
    state_age_ms: int = 0  # since the end of `_penstock.state` was read
    stopped: bool = False  # it drains, and has given up its name
    boot: str = ""  # of its host's kernel: hosts may share a name; empty if unknown

    def __post_init__(self) -> None:
        self.require(0 <= self.port <= 65535, "port", "a port")
        self.require(self.workers >= 1, "workers", "one or more")

    @property
    def key(self) -> bytes:
        return self.gateway.encode()

    @property
    def serves(self) -> bool:
        """Clients can reach it. Its first heartbeat only claims the name."""
        return bool(self.bootstrap or self.domain)


class Probe(StrEnum):
    """What is timed. Produce: sending to acknowledgement. Consume: sending to delivery."""

    PRODUCE = "produce"
    CONSUME = "consume"
    CALL = "call"  # sending a request without data to its response


class ProbeRole(StrEnum):
    """What a probe shows. Only `path` counts for the SLO: the others show which part is at fault."""

    PATH = "path"  # what clients get: a partition with as many replicas as tenants' topics have
    ALONE = "alone"  # the broker's network, handlers and disk: it has the only replica
    PAIR = "pair"  # the follower: one other replica, in another zone
    REACH = "reach"  # the way through the gateway, without the disk
    INNER = "inner"  # the broker's own listener, without gateway and disk
    SESSION = "session"  # whether the controller considers the broker alive
    DIRECTORY = "directory"  # the log directory: a file is written, flushed and read on the broker's host
    CONNECT = "connect"  # a new connection, in stages
    WAITING = "waiting"  # a probe without a result yet: `error` names its role
    SELF = "self"  # the checker itself: how late its own loop was


@dataclass(frozen=True, slots=True)
class HealthProbe(Event):
    """One probe of one broker, as a client sees it (Kora §4.4)."""

    kind: ClassVar[str] = "health"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = HEALTH_TOPIC

    cluster: PhysicalClusterId
    broker: BrokerId
    zone: Zone
    partition: int  # of the probe topic, pinned to this broker; −1: none, as for `self`
    probe: Probe
    checker: str  # id of the health checker's process
    sequence: int  # plus one for each probe of the checker on this partition
    time_ms: int  # when the probe was due: latency counts from then, whenever it was sent
    latency_us: int | None  # None if it failed
    error: str | None = None  # the error's name in Kafka or Penstock; None if it succeeded
    role: ProbeRole = ProbeRole.PATH
    leader: int | None = None  # when it was sent; None: unknown
    follower: int | None = None  # of a pair
    vantage: str = ""  # where the checker runs, such as a zone
    stages: Mapping[str, int] = field(default_factory=dict)  # microseconds of a connection's stages

    def __post_init__(self) -> None:
        succeeded = self.latency_us is not None
        self.require(succeeded == (self.error is None), "error", "present exactly when `latency_us` is not")
        self.require((self.latency_us or 0) >= 0, "latency_us", "zero or more")

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def moved(self) -> bool:
        """Whether another broker led the partition, so that the probe shows nothing about this one."""
        return self.leader is not None and self.leader != self.broker

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.broker}".encode()


class Phase(StrEnum):
    BEGAN = "began"
    LASTS = "lasts"  # repeated from time to time, for readers that start later
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BrokerPressure(Event):
    """A broker has been too slow for its load for a while, as one gateway measures it.

    The gateway measures the requests in flight to the broker and their age. Long polls and rebalances, in
    which a broker waits on purpose, do not count.
    """

    kind: ClassVar[str] = "pressure"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = PRESSURE_TOPIC

    cluster: PhysicalClusterId
    broker: BrokerId
    gateway: str
    incarnation: str
    time_ms: int
    began_ms: int  # with gateway, incarnation and broker, identifies this period of pressure
    phase: Phase
    in_flight: int  # requests without a response, mean of the last samples
    waited_us: int  # how long the oldest of them has waited, mean of the last samples
    handlers_busy: float | None = None  # 0 to 1, of its request handlers over the last seconds

    def __post_init__(self) -> None:
        self.require(self.began_ms <= self.time_ms, "began_ms", "at most `time_ms`")
        self.require(self.in_flight >= 0, "in_flight", "zero or more")
        self.require(self.waited_us >= 0, "waited_us", "zero or more")
        busy = self.handlers_busy
        self.require(busy is None or 0 <= busy <= 1, "handlers_busy", "between 0 and 1")

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.broker}".encode()


@dataclass(frozen=True, slots=True)
class BrokerLoad(Event):
    """One broker's load and what it is made of, averaged over a minute (Kora §4.1.1).

    The averages are complete: a reader of a broker's last record can continue from it. Without a fresh
    scrape `load` is None, `missing` names what could not be measured, and the other fields are the last
    known ones.
    """

    kind: ClassVar[str] = "load"
    minor: ClassVar[int] = 1
    topic: ClassVar[str] = LOAD_TOPIC

    cluster: PhysicalClusterId
    broker: BrokerId
    time_ms: int  # when this was computed
    scrape_age_ms: int | None  # of the scrape it is based on; None if there never was one
    load: float | None  # 0 is idle, 1 is saturated; None if unknown
    missing: tuple[str, ...] = ()  # beans without a sample, or the error of the scrape
    wait_ms: float = 0.0  # E[W]: mean time of a request in the request and response queues
    service_ms: float = 0.0  # time of the handler pool that a request takes
    handlers_busy: float = 0.0  # 0 to 1, of the request handlers' time
    network_busy: float = 0.0  # 0 to 1, of the network processors' time
    requests: float = 0.0  # a second
    bytes_in: float = 0.0  # a second, from producers
    bytes_out: float = 0.0  # a second, to consumers
    replication_bytes_in: float = 0.0  # a second, from leaders
    replication_bytes_out: float = 0.0  # a second, to followers
    replicas: int = 0
    leaders: int = 0
    disk_used_bytes: int | None = None  # None: not reported
    disk_total_bytes: int | None = None
    # Between the last two scrapes alone; None: unknown
    recent_wait_ms: float | None = None
    recent_handlers_busy: float | None = None
    recent_local_ms: float | None = None  # of a produce request, in which the broker itself worked on it
    recent_flush_ms: float | None = None  # of a flush of a log

    def __post_init__(self) -> None:
        for name in ("load", "handlers_busy", "network_busy", "recent_handlers_busy"):
            value = getattr(self, name)
            self.require(value is None or 0 <= value <= 1, name, "between 0 and 1")
        known = self.load is not None and self.scrape_age_ms is not None
        self.require(self.load is None or known, "scrape_age_ms", "present if `load` is")
        self.require(known != bool(self.missing), "missing", "named exactly when `load` is unknown")

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.broker}".encode()


@dataclass(frozen=True, slots=True)
class LoadHour(Event):
    """One hour of a physical cluster, for sizing. Several records of an hour are merged: see `merged`."""

    kind: ClassVar[str] = "load-hour"
    topic: ClassVar[str] = LOAD_HOURS_TOPIC

    cluster: PhysicalClusterId
    hour: int  # since the epoch
    brokers: int
    work: float  # the highest mean load × brokers within the hour
    imbalance: float  # the highest broker load ÷ the mean, then
    samples: int  # observations of all brokers
    bytes_in: float = 0.0  # a second, from producers, on average over the samples
    bytes_out: float = 0.0  # likewise, to consumers
    requests: float = 0.0  # likewise
    replicas: int = 0  # in the last sample
    disk_used_bytes: int = 0  # in the last sample

    def __post_init__(self) -> None:
        for name in ("work", "imbalance", "samples", "brokers"):
            self.require(getattr(self, name) >= 0, name, "zero or more")

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.hour}".encode()

    def merged(self, other: LoadHour) -> LoadHour:
        """Both records of one hour: the higher work, and averages from the one with more samples."""
        more, less = (self, other) if self.samples >= other.samples else (other, self)
        if less.work > more.work:
            return replace(more, work=less.work, imbalance=less.imbalance)
        return more


TOPIC_RATE_FIELDS: Final = 3  # of a row: bytes in, bytes out and messages in, each a second


@dataclass(frozen=True, slots=True)
class TopicRates(Event):
    """The traffic of each topic that clients used on one broker, from `since_ms` to `time_ms`.

    Topics without traffic are left out. A broker with very many topics takes several records with the same
    time, numbered from 0.
    """

    kind: ClassVar[str] = "topic-rates"
    topic: ClassVar[str] = LOAD_TOPIC

    cluster: PhysicalClusterId
    broker: BrokerId
    since_ms: int
    time_ms: int
    # By topic: bytes in, bytes out and messages in, each a second. Names would double the bytes.
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    part: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        self.require(self.since_ms <= self.time_ms, "since_ms", "at most `time_ms`")
        self.require(0 <= self.part < self.parts, "part", "between zero and `parts`")
        valid = all(len(row) == TOPIC_RATE_FIELDS and min(row) >= 0 for row in self.rates.values())
        self.require(valid, "rates", "rows of three numbers, zero or more each")

    @property
    def key(self) -> bytes:
        return f"{self.cluster}/{self.broker}".encode()


ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACK_RANGE_FIELDS: Final = 8  # of a row: all but the topic id


@dataclass(frozen=True, slots=True)
class AckRange:
    """Offsets of one partition that were acknowledged through a gateway, one row of `AckRanges`.

    The `records` acknowledged records within `first..last` must stay readable until retention deletes
    them. If there are fewer than the range has offsets, other producers wrote in between. The topic is
    identified by its id, since a recreated topic of the same name has none of these records.
    """

    topic_id: str  # Kafka's form, 22 characters
    partition: int
    acks: int  # of the producers: all (-1) or the leader (1); never mixed in one range
    first: int
    offsets: int  # from `first` on
    records: int
    bytes: int  # of the record batches, as they were sent
    max_timestamp_ms: int  # largest of the records, as the broker stored it; -1 if they have none
    log_start: int  # highest log start offset in the responses

    @property
    def last(self) -> int:
        return self.first + self.offsets - 1


@dataclass(frozen=True, slots=True)
class AckRanges(Event):
    """Ack evidence of one gateway process: ranges acknowledged between `since_ms` and `time_ms`.

    All records of an incarnation are in one partition, numbered from 0. A duplicate has the same number; a
    missing number is a record that was lost. Without a record that is `final`, the process was killed, or
    still runs. `penstock.model.ack_evidence` reads them.
    """

    kind: ClassVar[str] = "acks"
    topic: ClassVar[str] = ACKS_TOPIC

    cluster: PhysicalClusterId
    gateway: str
    incarnation: str
    sequence: int  # plus one for each record of the incarnation
    since_ms: int
    time_ms: int
    # By topic id: the other fields of `AckRange`, in their order. Names would double the bytes.
    ranges: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    lost: int = 0  # ranges lost by this incarnation so far, for lack of room
    final: bool = False  # the process has ended in order, and this is its last record

    def __post_init__(self) -> None:
        self.require(self.sequence >= 0, "sequence", "zero or more")
        self.require(self.lost >= 0, "lost", "zero or more")
        valid = all(_is_ack_range(row) for rows in self.ranges.values() for row in rows)
        self.require(valid, "ranges", "rows of eight numbers that are an AckRange")

    @property
    def key(self) -> bytes:
        """The incarnation: its records are in order in one partition."""
        return self.incarnation.encode()

    def __iter__(self) -> Iterator[AckRange]:
        return (AckRange(topic_id, *row) for topic_id, rows in self.ranges.items() for row in rows)


def _is_ack_range(row: tuple[int, ...]) -> bool:
    if len(row) != ACK_RANGE_FIELDS:
        return False
    partition, acks, first, offsets, records, size, max_timestamp, log_start = row
    in_range = partition >= 0 and first >= 0 and 0 < records <= offsets and size >= 0
    return in_range and acks in (ACKS_ALL, ACKS_LEADER) and max_timestamp >= -1 and log_start >= 0


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AuditEvent(Event):
    """A change or an attempted one: actor, operation, subject, and the values before and after.

    Two histories share this form: what people and services do to the platform, and what happens to the
    metadata of logs (log start offsets, epochs, segments, settings), which the durability audit checks.
    From `source` and `sequence` a reader can detect missing events.
    """

    kind: ClassVar[str] = "audit"
    topic: ClassVar[str] = AUDIT_TOPIC

    id: str  # unique; a duplicate has the same id
    time_ms: int
    source: str  # the reporting component and the id of its process
    sequence: int  # plus one for each event of the source
    cluster: PhysicalClusterId
    operation: str  # noun and verb: `topic.create`, `log-start.rise`
    subject_kind: str  # `topic`, `partition`, `service-account`, …
    subject: str  # its id, not its name
    actor: str  # a principal, or the component itself
    outcome: Outcome
    tenant: LogicalClusterId | None = None
    before: Mapping[str, object] | None = None  # None if it did not exist
    after: Mapping[str, object] | None = None  # None if it no longer exists
    cause: str | None = None  # id of the event, operation or request that caused this one
    reason: str | None = None  # in words, if it was refused or failed

    @property
    def key(self) -> bytes:
        """The subject, so that its history is in order."""
        return f"{self.subject_kind}/{self.subject}".encode()


@dataclass(frozen=True, slots=True)
class RegistryRecord(Event):
    """One version of a platform entity: an envelope around its body.

    Its topics are compacted; a record without a value deletes the entity. The body is kept unchanged, so
    that an older reader passes on fields it does not know. Each change raises the version by one. A writer
    that finds another version than it expected has lost a race.
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
    """The key of an entity's records, including its deletion."""
    return f"{entity}/{entity_id}".encode()


def entity_of(key: bytes) -> tuple[str, str]:
    """The kind and id of the entity of a record's key. A deletion has nothing but its key."""
    entity, slash, entity_id = key.decode().partition("/")
    if not slash:
        raise RegistryRecord.invalid("key", key, "<entity>/<id>")
    return entity, entity_id
