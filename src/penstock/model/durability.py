"""Records of `_penstock.durability`: what happened to logs, as collectors and gateways observed it.

A `LogEvent` has a subject (a partition, a topic, a broker or a collector), the source that observed it with
its sequence number, and facts. `FACTS` gives the type of the facts of each kind of event. Times of one source
never fall. An offset or a size of -1 is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

from penstock.model.key_names import DURABILITY_TOPIC, FINDINGS_TOPIC
from penstock.model.schema import Event, read_fields

UNKNOWN: Final = -1
UNLIMITED: Final = -1  # of a retention


class What(StrEnum):
    """What a log event is about. The class of its facts has the same name."""

    PLACEMENT = "placement"
    REMOVED = "removed"
    POLICY = "policy"
    REPLICA = "replica"
    DELETED = "deleted"
    ACKED = "acked"
    SEGMENT = "segment"
    STORED = "stored"
    GROUP = "group"
    INTENT = "intent"
    SCRUBBED = "scrubbed"
    LINK = "link"
    BACKUP = "backup"
    TOPIC = "topic"
    BROKER = "broker"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition's state in the metadata log."""

    topic: str
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    recovering: bool = False  # the leader was elected uncleanly and has not recovered yet
    snapshot: bool = False  # read from a snapshot: changes in between were not seen


@dataclass(frozen=True, slots=True)
class Removed:
    """The topic was deleted: its history ends."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The configuration in force for a partition from this event on."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    cleanup: str = "delete"
    min_isr: int = 1
    unclean: bool = False
    segment_bytes: int = 1 << 30
    tiered: bool = False
    copy_disabled: bool = False

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica's own positions. They are read in an order in which a sound log never looks unsound."""

    broker: int
    start: int
    end: int  # log end offset, also of a follower
    local_start: int = UNKNOWN
    tiered: int = UNKNOWN  # last tiered offset
    pending: int = UNKNOWN  # first offset that is not tiered yet
    stable: int = UNKNOWN  # leader only
    high_watermark: int = UNKNOWN  # leader only
    size: int = UNKNOWN  # local bytes
    end_epoch: int = UNKNOWN
    # Leader only: the first record that time retention must keep until `kept_until_ms`.
    kept_offset: int = UNKNOWN
    kept_until_ms: int = UNKNOWN
    kept_retention_ms: int = UNKNOWN  # the retention.ms that this is based on


@dataclass(frozen=True, slots=True)
class Deleted:
    """The log may start at `before`: by DeleteRecords, or as a mirror or restored topic starts there."""

    before: int
    actor: str
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Acked:
    """Offsets acknowledged to producers with acks=all, from `_penstock.acks`."""

    first: int
    last: int
    records: int
    bytes: int = 0
    max_timestamp_ms: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Segment:
    """A state of a remote segment in the tier-metadata topic."""

    id: str
    state: int  # 0 copy started, 1 copy finished, 2 delete started, 3 delete finished
    start: int = UNKNOWN  # known from the first state on
    end: int = UNKNOWN
    max_timestamp_ms: int = UNKNOWN
    bytes: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Stored:
    """What the object store has of a remote segment."""

    segment: str
    missing: tuple[str, ...] = ()  # objects
    wrong: tuple[str, ...] = ()  # objects, each with the reason


@dataclass(frozen=True, slots=True)
class Group:
    """A committed offset that fell, or that is outside the log."""

    group: str
    offset: int
    before: int = UNKNOWN
    start: int = UNKNOWN
    end: int = UNKNOWN
    reset: bool = False  # recorded as intended


@dataclass(frozen=True, slots=True)
class Intent:
    """A recorded intention, without which a legal change looks like a loss."""

    action: str  # `config`, `restore`, `link`, `unclean-election`, `topic-delete`, `topic-restore`
    actor: str
    until_ms: int = UNKNOWN  # how long it explains changes; default: a minute
    since_ms: int = UNKNOWN  # from when on; default: the time of the event


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The batches of a range as one place has them: a replica (`broker 1`), `tier` or `backup`."""

    place: str
    first: int
    last: int
    digest: str  # empty: the place has nothing there, or nothing to compare
    holes: tuple[tuple[int, ...], ...] = ()  # first and last offset of each unexplained one
    sequence_errors: tuple[str, ...] = ()
    run: int = UNKNOWN  # only what one run has read is compared
    damaged: tuple[tuple[int, ...], ...] = ()  # first and last offset of what is not what its CRC states


@dataclass(frozen=True, slots=True)
class Link:
    """Both ends of a mirrored partition."""

    link: str
    first_start: int  # of the source, when the mirror was created
    source_start: int
    source_end: int
    start: int
    end: int
    differing: int = UNKNOWN  # first offset whose batch differs


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup promises and what its catalogue has."""

    promised_first: int
    promised_last: int
    missing: tuple[tuple[int, ...], ...] = ()  # first and last offset of each gap


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's id in the metadata log; the subject is its name."""

    topic_id: str  # empty: deleted


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's registration and log directories."""

    offline_dirs: tuple[str, ...] = ()
    epoch: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A collector's sign of life."""

    number: int  # plus one for each heartbeat of the source
    period_ms: int
    position: str = ""
    behind_ms: int = 0
    skew_ms: int = 0
    unseen: tuple[str, ...] = ()  # some of the partitions that it should have observed and did not
    unseen_count: int = 0
    disabled: tuple[str, ...] = ()  # rules it cannot feed, each with the reason
    stopped: bool = False  # in order


Facts = (
    Placement | Removed | Policy | Replica | Deleted | Acked | Segment | Stored | Group | Intent | Scrubbed
    | Link | Backup | Topic | Broker | Heartbeat
)  # fmt: skip
FACTS: Final[dict[What, type[Any]]] = {
    What(each.__name__.lower()): each
    for each in (Placement, Removed, Policy, Replica, Deleted, Acked, Segment, Stored, Group, Intent,
                 Scrubbed, Link, Backup, Topic, Broker, Heartbeat)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogEvent(Event):
    """One observation. A repeat has the same source and sequence."""

    kind: ClassVar[str] = "durability"
    topic: ClassVar[str] = DURABILITY_TOPIC

    cluster: str
    subject: str
    source: str
    sequence: int
    time_ms: int
    what: What
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """The subject, so that its history is in one partition."""
        return f"{self.cluster}/{self.subject}".encode()

    @property
    def order(self) -> tuple[int, str, int]:
        return self.time_ms, self.source, self.sequence

    def read_facts(self) -> Facts:
        """The facts as a value; raises one of the errors of `model.errors.events`."""
        cls = FACTS[self.what]
        facts: Facts = cls(**read_fields(cls, f"{self.kind}/{self.what}", self.facts))
        return facts


def members_of(facts: Facts) -> dict[str, object]:
    """Facts as an event carries them, without defaults."""
    cls = type(facts)
    members = {}
    for name, each in cls.__dataclass_fields__.items():
        value = getattr(facts, name)
        if value != each.default:
            members[name] = _as_json(value)
    return members


def _as_json(value: object) -> object:
    return [_as_json(each) for each in value] if isinstance(value, tuple) else value


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class FindingState(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class FindingRecord(Event):
    """A finding: the newest record of its id counts. `audit.lifecycle` adds what operators did about it."""

    kind: ClassVar[str] = "finding"
    minor: ClassVar[int] = 1  # `topic_name`
    topic: ClassVar[str] = FINDINGS_TOPIC

    id: str  # the same in every run and engine
    rule: str
    severity: Severity
    cluster: str
    subject: str
    detail: str
    first: int  # offsets concerned; -1: none
    last: int
    alert: str  # findings with the same alert have one cause
    first_seen_ms: int
    last_seen_ms: int
    evidence: Mapping[str, object] = field(default_factory=dict)
    state: FindingState = FindingState.OPEN
    actor: str = ""  # who acknowledged or resolved it
    note: str = ""
    topic_name: str = ""  # of the partition or topic that is the subject; empty: another subject

    @property
    def key(self) -> bytes:
        return self.id.encode()

    @property
    def is_open(self) -> bool:
        return self.state is FindingState.OPEN


HANDLING: Final = "handling/"


@dataclass(frozen=True, slots=True)
class FindingHandling(Event):
    """What an operator did about a finding: a separate record, because the auditor writes the finding."""

    kind: ClassVar[str] = "finding-handling"
    topic: ClassVar[str] = FINDINGS_TOPIC

    id: str  # of the finding
    state: FindingState
    severity: Severity  # of the finding at that time
    time_ms: int
    actor: str
    note: str = ""

    @property
    def key(self) -> bytes:
        return f"{HANDLING}{self.id}".encode()


# Subjects of intents. Gateways know topics by name, and no intent knows what the audit calls the cluster: the
# auditor resolves them.
NAMED: Final = "named/"
EVERY_TOPIC: Final = "*"  # no topic has this name
PARTITION: Final = "partition/"


def named_subject(topic: str, partition: int | None = None) -> str:
    """A topic, or a partition of it, by name."""
    return f"{NAMED}{topic}" if partition is None else f"{NAMED}{topic}/{partition}"


def partition_subject(topic_id: str, partition: int) -> str:
    return f"{PARTITION}{topic_id}/{partition}"
