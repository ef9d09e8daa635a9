"""The nouns of the platform as whole values: what the registry keeps, one record each.

An entity is written whole, with a version that rises by one with every change; what must change
together is one entity. A field is added with a default and at the top level (a value within an
entity has no version of its own), and `body_schema` stays. What a newer writer added is kept in
`unknown` and written back, so that an older control plane, after a rollback, destroys nothing. A
`body_schema` that is newer than ours is refused: its meaning may have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from penstock.model.errors.events import EventFieldInvalid, EventTooNew, EventUnreadable
from penstock.model.events import RegistryRecord
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, ServiceAccountId, Zone
from penstock.model.schema import WrongType, readers_of

_ENVELOPE: Final = frozenset({"id", "version", "changed_ms", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """The root: whose record it is, and at which version. Version 0 was never written."""

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
            raise EventTooNew(kind=cls.kind, found=record.body_schema, major=cls.body_schema)
        known: dict[str, Any] = {}
        readers = _body_readers(cls)
        for name, (read, required) in readers.items():
            if name not in record.body:
                if required:
                    raise EventUnreadable(kind=cls.kind, reason=f"`{name}` is missing")
                continue
            try:
                known[name] = read(record.body[name])
            except WrongType as expected:
                shown = repr(record.body[name])[:80]
                raise EventFieldInvalid(kind=cls.kind, field=name, value=shown, expected=expected) from None
        unknown = {name: value for name, value in record.body.items() if name not in readers}
        return cls(id=record.id, version=record.version, changed_ms=record.time_ms, unknown=unknown, **known)

    def changed(self, now_ms: int, **values: Any) -> Self:
        """The next version."""
        return replace(self, **{"version": self.version + 1, "changed_ms": now_ms} | values)


_known_readers: dict[type, dict[str, Any]] = {}


def _body_readers(cls: type) -> dict[str, Any]:
    """Made once: a registry of thousands of entities is read record by record at every start."""
    if cls not in _known_readers:
        readers = readers_of(cls).items()
        _known_readers[cls] = {name: reader for name, reader in readers if name not in _ENVELOPE}
    return _known_readers[cls]


def _plain(value: Any) -> Any:
    """As JSON would have it back."""
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    return _plain(asdict(value)) if hasattr(value, "__dataclass_fields__") else value


class Tenancy(StrEnum):
    SHARED = "shared"
    DEDICATED = "dedicated"  # a shared one with one tenant


class Zones(StrEnum):
    SINGLE = "single"
    MULTI = "multi"


class ClusterState(StrEnum):
    PROVISIONING = "provisioning"
    READY = "ready"
    MOVING = "moving"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A broker, and where gateways reach it."""

    id: BrokerId
    zone: Zone
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CellPlace:
    id: str
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """Which networks may connect: none that is denied; if any is allowed, only allowed ones."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


ANYWHERE: Final = NetworkRule()


class ConditionKind(StrEnum):
    NEEDS_CELL = "needs-cell"  # cells are full, and moves cannot relieve them


@dataclass(frozen=True, slots=True)
class Condition:
    """Something about a cluster that a person should know, for as long as it lasts."""

    kind: str  # a `ConditionKind`, or one that a newer control plane knows
    since_ms: int
    detail: str
    remedy: str = ""  # what would end it, as its provider says
    cells: tuple[str, ...] = ()  # which it is about
    brokers: int = 0  # how many are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalCluster(Entity):
    """Brokers that carry tenants. How it is reached and with which secrets its provider knows."""

    kind: ClassVar[str] = "physical-cluster"

    name: str
    provider: str  # `local` or `adopted`
    kafka_id: str = ""
    tenancy: Tenancy = Tenancy.SHARED
    capacity: str = "laptop"  # which table of capacity units goes for it
    brokers: tuple[BrokerPlace, ...] = ()
    cells: tuple[CellPlace, ...] = ()
    bootstrap: str = ""  # what tenants are told: their gateways
    state: ClusterState = ClusterState.PROVISIONING
    conditions: tuple[Condition, ...] = ()
    adopted: str = ""  # the name it was adopted under

    @property
    def zones(self) -> tuple[Zone, ...]:
        return tuple(sorted({broker.zone for broker in self.brokers}))

    def cell(self, cell_id: str) -> CellPlace | None:
        return next((cell for cell in self.cells if cell.id == cell_id), None)

    def condition(self, kind: ConditionKind) -> Condition | None:
        return next((each for each in self.conditions if each.kind == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalCluster(Entity):
    """What a tenant gets. Its quota is its size in capacity units, but for `overrides`."""

    kind: ClassVar[str] = "logical-cluster"

    name: str
    cluster: PhysicalClusterId
    cell: str
    units: int = 1
    tenancy: Tenancy = Tenancy.SHARED
    zones: Zones = Zones.MULTI
    state: ClusterState = ClusterState.PROVISIONING
    moving_from: str = ""  # the cell it still has partitions in
    network: NetworkRule = ANYWHERE
    overrides: Mapping[str, float] = field(default_factory=dict)  # by dimension
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> LogicalClusterId:
        return LogicalClusterId(self.id)


class Role(StrEnum):
    """What a service account may do within its logical cluster."""

    OWNER = "owner"  # everything
    LIMITED = "limited"  # what it is granted


GRANT_OPERATIONS: Final = frozenset(
    ("all", "read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs")
)
GRANT_RESOURCES: Final = frozenset(("topic", "group", "transactional-id"))
GRANT_PATTERNS: Final = frozenset(("literal", "prefixed"))


@dataclass(frozen=True, slots=True)
class Grant:
    """A right below the tenant's prefix; names are the tenant's own."""

    resource: str  # `topic`, `group`, `transactional-id`
    name: str
    operation: str  # Kafka's, in small letters: `read`, `write`, `describe-configs`
    pattern: str = "literal"  # or `prefixed`


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount(Entity):
    kind: ClassVar[str] = "service-account"

    tenant: LogicalClusterId
    name: str
    generation: int = 1  # of its password towards Kafka
    role: Role = Role.OWNER
    grants: tuple[Grant, ...] = ()
    revoked: tuple[Grant, ...] = ()  # taken back, and Kafka may still have them
    ready: bool = False  # its Kafka user is there

    @property
    def account(self) -> ServiceAccountId:
        return ServiceAccountId(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Entity):
    """Its secret is nowhere; its hash is enough, since the secret is long and random."""

    kind: ClassVar[str] = "api-key"

    tenant: LogicalClusterId
    account: ServiceAccountId
    secret_sha256: str = field(repr=False)
    description: str = ""
    made_ms: int = 0
    replaced_by: str = ""  # by rotation
    ends_ms: int | None = None  # when a rotated key ends


class OperationState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Entity):
    """Something that takes several steps. Whoever is active carries on where it stands."""

    kind: ClassVar[str] = "operation"

    action: str  # `cluster.create`
    subject: str  # the id it is about
    tenant: LogicalClusterId | None = None
    actor: str = ""
    state: OperationState = OperationState.RUNNING
    steps_done: int = 0
    steps_total: int = 0
    step: str = ""  # the one under way
    detail: str = ""  # in words: `12 of 40 topics deleted`
    given: Mapping[str, object] = field(default_factory=dict)
    error_code: str = ""
    error: str = ""
    attempts: int = 0  # of the step under way
    request: str = ""  # hash of the caller's idempotency key
    fingerprint: str = ""  # of what was asked for under it
    made_ms: int = 0
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
    """Who may call the HTTP API."""

    kind: ClassVar[str] = "operator-token"

    name: str
    role: OperatorRole
    secret_sha256: str = field(repr=False)
    clusters: tuple[LogicalClusterId, ...] = ()  # what a cluster admin is confined to; none: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Entity):
    """The active control plane, so that others can say where it is."""

    kind: ClassVar[str] = "holder"

    url: str
    incarnation: str
    since_ms: int


ENTITIES: Final[dict[str, type[Entity]]] = {
    entity.kind: entity
    for entity in (
        PhysicalCluster,
        LogicalCluster,
        ServiceAccount,
        ApiKey,
        Operation,
        OperatorToken,
        Holder,
    )
}
