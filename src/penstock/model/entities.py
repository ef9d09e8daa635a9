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


@dataclass(frozen=True, slots=True)
class Condition:
    """A lasting problem of a cluster that an operator should know about."""

    kind: str  # a `ConditionKind`, or one of a newer control plane
    since_ms: int
    detail: str
    remedy: str = ""  # how to end it, according to the provider
    cells: tuple[str, ...] = ()  # affected cells
    brokers: int = 0  # missing brokers


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
        LogicalCluster,
        ServiceAccount,
        ApiKey,
        Operation,
        OperatorToken,
        ActiveControlPlane,
    )
}
