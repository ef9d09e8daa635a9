"""The platform's entities as values: what the registry stores, one record each.

An entity is written as a whole, with a version that rises by one with every change. What must change
together is one entity. New fields have a default and are at the top level, because nested values have no
version; `body_schema` stays. Fields of a newer writer are kept in `unknown` and written back, so that an
older control plane destroys nothing after a rollback. A newer `body_schema` is rejected: its meaning may
have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar, Final, Self

from penstock.model.errors.events import EventTooNew
from penstock.model.events import RegistryRecord
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, ServiceAccountId, Zone
from penstock.model.schema import read_fields

_ENVELOPE: Final = frozenset({"id", "version", "changed_ms", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """The base of all entities. Version 0 has never been written."""

    kind: ClassVar[str]
    body_schema: ClassVar[int] = 1

    id: str
    version: int = 0
    changed_ms: int = 0
    unknown: Mapping[str, object] = field(default_factory=dict)

    def to_record(self) -> RegistryRecord:
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ENVELOPE}
        body = {**self.unknown, **{name: _plain(value) for name, value in known.items()}}
        return RegistryRecord(
            entity=self.kind,
            id=self.id,
            version=self.version,
            time_ms=self.changed_ms,
            body_schema=self.body_schema,
            body=body,
        )

    @classmethod
    def from_record(cls, record: RegistryRecord) -> Self:
        if record.body_schema > cls.body_schema:
            raise EventTooNew(kind=cls.kind, actual=record.body_schema, major=cls.body_schema)
        known = read_fields(cls, cls.kind, record.body, skip=_ENVELOPE)
        unknown = {name: value for name, value in record.body.items() if name not in known}
        return cls(id=record.id, version=record.version, changed_ms=record.time_ms, unknown=unknown, **known)

    def changed(self, now_ms: int, **values: Any) -> Self:
        """The next version."""
        return replace(self, **{"version": self.version + 1, "changed_ms": now_ms} | values)


def _plain(value: Any) -> Any:
    """The value as JSON would return it."""
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    return _plain(asdict(value)) if hasattr(value, "__dataclass_fields__") else value


class Tenancy(StrEnum):
    SHARED = "shared"
    DEDICATED = "dedicated"  # a physical cluster with one tenant


class Zones(StrEnum):
    SINGLE = "single"
    MULTI = "multi"


class ClusterState(StrEnum):
    PROVISIONING = "provisioning"
    READY = "ready"
    MOVING = "moving"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A broker, and the address that gateways connect to."""

    id: BrokerId
    zone: Zone
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CellMembers:
    id: str
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """Which networks may connect: no denied ones, and only allowed ones if any are listed."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


ANYWHERE: Final = NetworkRule()


class ConditionKind(StrEnum):
    NEEDS_CELL = "needs-cell"  # cells are full, and moves cannot relieve them
    BROKERS_LOST = "brokers-lost"  # the cluster does not list brokers that it had
    BROKERS_UNUSED = "brokers-unused"  # too few new brokers for another cell
    UNUSABLE = "unusable"  # it is another cluster now, or the user lost its rights
    IMBALANCED = "imbalanced"  # a goal has been violated for a while
    BALANCE_BLOCKED = "balance-blocked"  # the cluster should be balanced, and may not be now
    BALANCING = "balancing"  # plans are running
    SIZE_ADVISED = "size-advised"  # the cluster should have another size
    ROLL_PAUSED = "roll-paused"  # a roll waits for an operator


@dataclass(frozen=True, slots=True)
class Condition:
    """A lasting problem of a cluster that an operator should know about."""

    kind: str  # a `ConditionKind`, or one of a newer control plane
    since_ms: int
    detail: str
    remedy: str = ""  # how to end it, according to the provider
    cells: tuple[str, ...] = ()  # affected cells
    brokers: int = 0  # missing brokers


@dataclass(frozen=True, slots=True)
class MissingCapability:
    """What a cluster does not allow, and which features are therefore off."""

    capability: str
    needed_for: str  # the features
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalCluster(Entity):
    """Brokers that carry tenants. Only its provider knows its addresses and secrets."""

    kind: ClassVar[str] = "physical-cluster"

    name: str
    provider: str  # `local` or `adopted`
    kafka_id: str = ""
    tenancy: Tenancy = Tenancy.SHARED
    capacity: str = "laptop"  # its table of capacity units
    brokers: tuple[BrokerEndpoint, ...] = ()
    cells: tuple[CellMembers, ...] = ()
    bootstrap: str = ""  # for tenants: their gateways
    state: ClusterState = ClusterState.PROVISIONING
    conditions: tuple[Condition, ...] = ()
    adopted: str = ""  # name of the adopted cluster
    load_profile: Mapping[str, float] = field(default_factory=dict)  # of its brokers; empty: the default
    missing: tuple[MissingCapability, ...] = ()  # as last probed
    balance_mode: str = "off"  # or `advise`, `auto`: what an imbalance leads to
    health_mode: str = "advise"  # or `off`, `auto`: what a sick broker leads to
    health_actions: Mapping[str, str] = field(default_factory=dict)  # modes of single actions
    health_target: float = 0.0  # availability that is promised; 0: by the number of zones
    healing_mode: str = "ask"  # or `off`, `act`: what a corrupt leader leads to
    hardware: str = ""  # the name of its brokers' hardware profile; empty: unknown
    size_mode: str = "advise"  # or `auto`: what a size that does not fit leads to
    size_bounds: Mapping[str, float] = field(default_factory=dict)  # brokers_min, brokers_max, budget_month

    @property
    def is_shareable(self) -> bool:
        """Whether it stays when a dedicated tenant leaves it: it was not provisioned for that tenant."""
        return self.provider == "adopted" and not self.adopted

    def lacks(self, capability: str) -> MissingCapability | None:
        return next((each for each in self.missing if each.capability == capability), None)

    @property
    def zones(self) -> tuple[Zone, ...]:
        return tuple(sorted({broker.zone for broker in self.brokers}))

    def cell(self, cell_id: str) -> CellMembers | None:
        return next((cell for cell in self.cells if cell.id == cell_id), None)

    def condition(self, kind: ConditionKind) -> Condition | None:
        return next((each for each in self.conditions if each.kind == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalCluster(Entity):
    """A tenant's cluster. Its quota follows from its size in capacity units and `overrides`."""

    kind: ClassVar[str] = "logical-cluster"

    name: str
    cluster: PhysicalClusterId
    cell: str
    units: int = 1
    tenancy: Tenancy = Tenancy.SHARED
    zones: Zones = Zones.MULTI
    state: ClusterState = ClusterState.PROVISIONING
    moving_from: str = ""  # the cell that still has some of its partitions
    network: NetworkRule = ANYWHERE
    overrides: Mapping[str, float] = field(default_factory=dict)  # by dimension
    labels: Mapping[str, str] = field(default_factory=dict)
    auto_create_topics: bool = False  # when a client asks for one that does not exist

    @property
    def tenant(self) -> LogicalClusterId:
        return LogicalClusterId(self.id)


class BrokerStatus(StrEnum):
    """What the platform does with a broker; see `BrokerState`."""

    NORMAL = "normal"
    JOINING = "joining"  # new: being filled
    LEAVING = "leaving"  # being emptied
    DEMOTED = "demoted"  # leads nothing
    EXCLUDED = "excluded"  # in no ISR, still replicating
    CORDONED = "cordoned"  # takes no new replica


_TAKES_NO_REPLICA: Final = frozenset((BrokerStatus.LEAVING, BrokerStatus.CORDONED))
_LEADS_NOTHING: Final = frozenset((BrokerStatus.LEAVING, BrokerStatus.DEMOTED, BrokerStatus.EXCLUDED))


@dataclass(frozen=True, slots=True)
class StatusClaim:
    """A status that one actor has set. Other actors neither change nor clear it."""

    status: BrokerStatus
    actor: str  # a component, such as `health`, or `operator/<token>`
    reason: str
    since_ms: int

    @property
    def owner(self) -> str:
        """The component that may clear it. All operators are one."""
        return owner_of(self.actor)


def owner_of(actor: str) -> str:
    return actor.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState(Entity):
    """The claims on one broker. It exists while there are any; a broker without one is normal.

    Everything that places, elects, moves or restarts obeys it. Claims of different actors coexist: a broker
    that health and an operator have demoted leads nothing until both have restored it.
    """

    kind: ClassVar[str] = "broker-state"

    cluster: PhysicalClusterId
    broker: BrokerId
    claims: tuple[StatusClaim, ...] = ()

    @property
    def statuses(self) -> tuple[BrokerStatus, ...]:
        """Without repetition, in order of their definition; `normal` if there is no claim."""
        claimed = {claim.status for claim in self.claims} or {BrokerStatus.NORMAL}
        return tuple(status for status in BrokerStatus if status in claimed)

    @property
    def takes_replicas(self) -> bool:
        return _TAKES_NO_REPLICA.isdisjoint(self.statuses)

    @property
    def leads(self) -> bool:
        return _LEADS_NOTHING.isdisjoint(self.statuses)

    @property
    def takes_load(self) -> bool:
        """Whether plans may move load to it. A sick broker looks idle, and must not be filled."""
        return set(self.statuses) <= {BrokerStatus.NORMAL, BrokerStatus.JOINING}


def broker_state_id(cluster: str, broker: int) -> str:
    return f"{cluster}/{broker}"


class Actor(StrEnum):
    """The components that intervene in a running cluster."""

    BALANCE = "balance"
    ROLL = "roll"
    HEALTH = "health"
    RESTORE = "restore"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class OpenIntervention:
    """What one actor does to a cluster now: to these brokers, in these zones, with these partitions."""

    actor: Actor
    key: str  # which one of the actor's, such as an operation or a plan
    reason: str
    since_ms: int
    brokers: tuple[BrokerId, ...] = ()
    zones: tuple[Zone, ...] = ()
    partitions: tuple[str, ...] = ()  # as `topic-3`
    until_ms: int = 0  # when it lapses unless it is renewed; 0: only when it is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention(Entity):
    """Everything that intervenes in one physical cluster. Its id is the cluster's.

    It exists while anything does. `control.interventions` decides what may be open at the same time.
    """

    kind: ClassVar[str] = "intervention"

    open: tuple[OpenIntervention, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mitigation(Entity):
    """What health does to one broker: the intent that its effects follow. It exists until they are undone."""

    kind: ClassVar[str] = "mitigation"

    cluster: PhysicalClusterId
    broker: BrokerId
    state: str  # of the broker's health, that the last step is for
    steps: tuple[str, ...] = ()  # taken so far
    step_ms: int = 0  # when the last one was decided
    done: bool = False  # its effect is there
    failed: str = ""  # why it is not, and will not be
    hurt: float = 0.0  # share of client probes that suffered when it was decided
    releasing: bool = False  # everything is being undone
    gave_up: str = ""  # why it is undone although the broker is not healthy
    incident: str = ""


class IncidentState(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"  # an operator knows of it
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentEntry:
    """What happened, in order of time."""

    time_ms: int
    what: str  # `finding`, a step, `blocked`, `released`, `undone`, `failed`, `acknowledged`, `resolved`
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident(Entity):
    """A sick broker, and what was done about it."""

    kind: ClassVar[str] = "incident"

    cluster: PhysicalClusterId
    broker: BrokerId
    health: str  # the state that it was opened for
    state: IncidentState = IncidentState.OPEN
    opened_ms: int = 0
    resolved_ms: int | None = None
    evidence: str = ""
    ruled_out: tuple[str, ...] = ()
    entries: tuple[IncidentEntry, ...] = ()
    probes_failed: int = 0  # of what clients get, while it was open
    probes_sent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHold(Entity):
    """An operator works on a broker: health leaves it alone until then."""

    kind: ClassVar[str] = "broker-hold"

    cluster: PhysicalClusterId
    broker: BrokerId
    reason: str = ""
    until_ms: int = 0
    actor: str = ""


class RollState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    ABORTING = "aborting"  # nothing stops any more; what is down comes back
    DONE = "done"
    ABORTED = "aborted"

    @property
    def ended(self) -> bool:
        return self in (RollState.DONE, RollState.ABORTED)


RESTART_PHASES: Final = ("stop", "start", "recovery", "catch-up", "leaders")


@dataclass(frozen=True, slots=True)
class RolledNode:
    """A node whose restart was ordered, and when each phase of it ended. 0: not yet."""

    id: int
    incarnation: str = ""  # of the process that ends
    ordered_ms: int = 0
    stopped_ms: int = 0
    started_ms: int = 0
    ready_ms: int = 0
    in_sync_ms: int = 0
    led_ms: int = 0

    @property
    def spans(self) -> tuple[float | None, ...]:
        """Seconds of each of `RESTART_PHASES`; None if it has not ended."""
        times = (self.ordered_ms, self.stopped_ms, self.started_ms, self.ready_ms, self.in_sync_ms)
        ends = (*times, self.led_ms)
        return tuple((b - a) / 1000 if a and b else None for a, b in pairwise(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll(Entity):
    """A planned restart of nodes of one physical cluster."""

    kind: ClassVar[str] = "roll"

    cluster: PhysicalClusterId
    scope: tuple[int, ...]  # nodes to restart
    request: str  # names its orders; another one for a roll-back
    state: RollState = RollState.RUNNING
    document: str = ""  # digest of the fleet document that nodes start with; empty: the provider's
    document_before: str = ""
    roll_back: bool = False
    allow_downtime: bool = False
    allow_unavailable: tuple[str, ...] = ()  # topics
    reason: str = ""  # why it is paused
    evidence: tuple[str, ...] = ()
    nodes: tuple[RolledNode, ...] = ()
    deadline_ms: int = 0
    estimate_seconds: float = 0.0
    created_ms: int = 0
    ended_ms: int | None = None

    @property
    def remaining(self) -> int:
        led = {node.id for node in self.nodes if node.led_ms}
        return len([node for node in self.scope if node not in led])


class Role(StrEnum):
    """What a service account may do within its logical cluster."""

    OWNER = "owner"  # everything
    LIMITED = "limited"  # only what is granted


GRANT_OPERATIONS: Final = frozenset(
    ("all", "read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs")
)
GRANT_RESOURCES: Final = frozenset(("topic", "group", "transactional-id"))
GRANT_PATTERNS: Final = frozenset(("literal", "prefixed"))


@dataclass(frozen=True, slots=True)
class Grant:
    """A granted ACL below the tenant's prefix; names are as the tenant sees them."""

    resource: str  # `topic`, `group`, `transactional-id`
    name: str
    operation: str  # a Kafka ACL operation in lower case: `read`, `write`, `describe-configs`
    pattern: str = "literal"  # or `prefixed`


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount(Entity):
    kind: ClassVar[str] = "service-account"

    tenant: LogicalClusterId
    name: str
    generation: int = 1  # of its Kafka password
    role: Role = Role.OWNER
    grants: tuple[Grant, ...] = ()
    revoked: tuple[Grant, ...] = ()  # revoked; Kafka may still have their ACLs
    ready: bool = False  # its Kafka user exists

    @property
    def account(self) -> ServiceAccountId:
        return ServiceAccountId(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Entity):
    """Only a hash of its secret is stored. One SHA-256 suffices: the secret is long and random."""

    kind: ClassVar[str] = "api-key"

    tenant: LogicalClusterId
    account: ServiceAccountId
    secret_sha256: str = field(repr=False)
    description: str = ""
    created_ms: int = 0
    replaced_by: str = ""  # by rotation
    expires_ms: int | None = None  # when a rotated key expires


class OperationState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Entity):
    """A change in several steps. The active control plane continues at `steps_done`."""

    kind: ClassVar[str] = "operation"

    action: str  # `cluster.create`
    subject: str  # id of the changed entity
    tenant: LogicalClusterId | None = None
    actor: str = ""
    state: OperationState = OperationState.RUNNING
    steps_done: int = 0
    steps_total: int = 0
    step: str = ""  # the current one
    detail: str = ""  # progress: `12 of 40 topics deleted`
    arguments: Mapping[str, object] = field(default_factory=dict)
    error_code: str = ""
    error: str = ""
    attempts: int = 0  # of the current step
    request: str = ""  # hash of the caller's idempotency key
    fingerprint: str = ""  # hash of that request
    created_ms: int = 0
    ended_ms: int | None = None

    @property
    def ended(self) -> bool:
        return self.state is not OperationState.RUNNING


class OperatorRole(StrEnum):
    ADMIN = "admin"  # everything
    CLUSTER_ADMIN = "cluster-admin"  # logical clusters (those listed, or all) and what is in them
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorToken(Entity):
    """An operator who may call the HTTP API."""

    kind: ClassVar[str] = "operator-token"

    name: str
    role: OperatorRole
    secret_sha256: str = field(repr=False)
    clusters: tuple[LogicalClusterId, ...] = ()  # that the token is confined to, whatever its role; none: all


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveControlPlane(Entity):
    """The active control plane, so that others can refer callers to it."""

    kind: ClassVar[str] = "active-control-plane"

    url: str
    incarnation: str
    since_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)  # digests of what all must have in common


ENTITIES: Final[dict[str, type[Entity]]] = {
    entity.kind: entity
    for entity in (
        PhysicalCluster,
        BrokerState,
        Intervention,
        Mitigation,
        Incident,
        BrokerHold,
        Roll,
        LogicalCluster,
        ServiceAccount,
        ApiKey,
        Operation,
        OperatorToken,
        ActiveControlPlane,
    )
}
