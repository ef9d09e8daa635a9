"""Requests and responses of the HTTP API. Requests are validated; no response shows a secret twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from penstock.control.acls import Origin
from penstock.control.gateways.gateway_directory import GatewayDirectory, GatewayState, RegisteredGateway
from penstock.model.api_keys import ROTATION_SECONDS
from penstock.model.entities import (
    ApiKey,
    ClusterState,
    Grant,
    LogicalCluster,
    NetworkRule,
    Operation,
    OperationState,
    OperatorRole,
    PhysicalCluster,
    Role,
    ServiceAccount,
    Tenancy,
    Zones,
)
from penstock.model.events import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.events import AuditEvent

T = TypeVar("T")

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Networks = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)]
Labels = Annotated[
    dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]], Field(max_length=64)
]
Overrides = dict[Dimension, Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]]
Units = Annotated[int, Field(ge=1, le=1000)]


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Problem(BaseModel):
    """RFC 9457, with the error code and a hint."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    fault: str
    retriable: bool
    active: str | None = None
    """URL of the active control plane, if this one is not active."""


class NetworkSchema(RequestBody):
    allow: Networks = []
    """Networks that may connect; if any are given, all others are denied."""
    deny: Networks = []

    def to_rule(self) -> NetworkRule:
        return NetworkRule(tuple(self.allow), tuple(self.deny))


class GrantSchema(RequestBody):
    resource: Annotated[str, Field(max_length=20)]
    """topic, group or transactional-id."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    operation: Annotated[str, Field(max_length=20)]
    """A Kafka ACL operation in lower case: all, read, write, create, delete, alter, describe, …"""
    pattern: Annotated[str, Field(max_length=10)] = "literal"

    def to_grant(self) -> Grant:
        return Grant(self.resource, self.name, self.operation, self.pattern)


class NewCluster(RequestBody):
    name: Name
    units: Units | None = None
    """Size in capacity units; alternatively give `needs`."""
    needs: Annotated[
        dict[Dimension, Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]], Field()
    ] = {}
    tenancy: Tenancy = Tenancy.SHARED
    adopted: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """The adopted cluster to use; omitted: any shared one, or new brokers for a dedicated one."""
    zones: Zones = Zones.MULTI
    network: NetworkSchema = NetworkSchema()
    overrides: Overrides = {}
    labels: Labels = {}
    auto_create_topics: bool = False
    """Create a topic when a client asks for one that does not exist."""


class ClusterChange(RequestBody):
    """Omitted fields stay unchanged."""

    name: Name | None = None
    units: Units | None = None
    network: NetworkSchema | None = None
    overrides: Overrides | None = None
    labels: Labels | None = None
    auto_create_topics: bool | None = None

    def values(self) -> dict[str, Any]:
        values = self.model_dump(exclude_none=True, exclude={"network"})
        if "overrides" in values:
            values["overrides"] = {str(name): value for name, value in values["overrides"].items()}
        if self.network is not None:
            values["network"] = self.network.to_rule()
        return values


class ClusterMove(RequestBody):
    cell: Annotated[str, Field(max_length=128)] | None = None
    """`cell-2`, or `east/cell-2` with its physical cluster; omitted: any other cell with room."""


class NewAccount(RequestBody):
    name: Name
    role: Role = Role.LIMITED
    grants: Annotated[list[GrantSchema], Field(max_length=200)] = []


class AccountChange(RequestBody):
    grants: Annotated[list[GrantSchema], Field(max_length=200)]
    """The complete list: grants that are not listed are revoked."""


class NewKey(RequestBody):
    account: Annotated[str, Field(max_length=63)] | None = None
    """Id or name of a service account; omitted: the cluster's owner."""
    description: Annotated[str, Field(max_length=255)] = ""


class KeyRotation(RequestBody):
    grace_seconds: Annotated[float, Field(ge=0, le=30 * 24 * 3600, allow_inf_nan=False)] = ROTATION_SECONDS
    """How long the old key stays valid beside the new one; 0 for a key that has leaked."""


class NewToken(RequestBody):
    name: Name
    role: OperatorRole
    clusters: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=100)] = []


class Import(RequestBody):
    export: Annotated[str, Field(max_length=256 << 20)]


class View(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def of_attributes(cls, entity: object, **others: Any) -> Self:
        """The entity's attributes of the same name, and those given here."""
        return cls(**{n: getattr(entity, n) for n in cls.model_fields if n not in others}, **others)


class OperationView(View):
    id: str
    action: str
    subject: str
    cluster: str | None
    state: OperationState
    step: str
    steps_done: int
    steps_total: int
    detail: str
    error_code: str
    error: str
    actor: str
    created_ms: int
    ended_ms: int | None
    version: int

    @classmethod
    def of(cls, operation: Operation) -> OperationView:
        return cls.of_attributes(operation, cluster=operation.tenant)


class ClusterView(View):
    id: str
    name: str
    state: ClusterState
    tenancy: Tenancy
    zones: Zones
    units: int
    quota: dict[str, float]
    """By dimension: from its size and its overrides."""
    network: NetworkSchema
    overrides: dict[str, float]
    labels: dict[str, str]
    auto_create_topics: bool
    physical_cluster: str
    adopted: str | None
    """The adopted cluster that it uses."""
    cell: str
    bootstrap: str
    tls: bool
    """Whether its gateways use TLS."""
    version: int

    @classmethod
    def of(
        cls,
        cluster: LogicalCluster,
        quota: Mapping[str, float],
        physical: PhysicalCluster | None,
        gateways: GatewayDirectory,
    ) -> ClusterView:
        return cls.of_attributes(
            cluster,
            quota=quota,
            network=NetworkSchema(allow=list(cluster.network.allow), deny=list(cluster.network.deny)),
            physical_cluster=cluster.cluster,
            adopted=_adopted_name(physical),
            bootstrap=gateways.bootstrap(cluster, physical),
            tls=gateways.uses_tls(cluster.cluster),
        )


def _adopted_name(physical: PhysicalCluster | None) -> str | None:
    if physical is None:
        return None
    return physical.name if physical.is_shareable else physical.adopted or None


class AccountView(View):
    id: str
    cluster: str
    name: str
    role: Role
    grants: list[GrantSchema]
    ready: bool
    version: int

    @classmethod
    def of(cls, account: ServiceAccount) -> AccountView:
        grants = [
            GrantSchema(resource=g.resource, name=g.name, operation=g.operation, pattern=g.pattern)
            for g in account.grants
        ]
        return cls.of_attributes(account, cluster=account.tenant, grants=grants)


class AclView(View):
    resource: str
    name: str
    """`*`, literal: everything of that kind in the cluster."""
    pattern: str
    operation: str
    permission: str
    """allow or deny; only tenants create deny ACLs."""
    origin: Origin
    """role: of an owner; granted: a grant; tenant: created by the tenant through Kafka."""


class KeyView(View):
    id: str
    cluster: str
    account: str
    description: str
    created_ms: int
    replaced_by: str
    expires_ms: int | None
    version: int

    @classmethod
    def of(cls, key: ApiKey) -> KeyView:
        return cls.of_attributes(key, cluster=key.tenant)


class ConditionView(View):
    kind: str
    """`needs-cell`: cells are full, and moving tenants cannot relieve them. `imbalanced`: a goal has been
    violated for a while. `balance-blocked`: nothing may move now. `balancing`: plans are running.
    `brokers-lost`, `brokers-unused`, `unusable`: of adopted clusters."""
    since_ms: int
    detail: str
    remedy: str
    """What would end it."""
    cells: list[str]
    brokers: int
    """How many are missing."""


class MissingCapabilityView(View):
    """Something that a cluster does not allow."""

    capability: str
    needed_for: str
    """The features that are off."""
    reason: str
    remedy: str


class CellView(View):
    id: str
    physical_cluster: str
    brokers: list[int]
    load: float | None
    """Null: unknown, because a broker's is."""
    clusters: int
    conditions: list[ConditionView]


class PhysicalClusterView(View):
    id: str
    name: str
    provider: str
    kafka_id: str
    tenancy: Tenancy
    state: ClusterState
    zones: list[str]
    brokers: int
    cells: int
    bootstrap: str
    capacity: str
    """The table of capacity units: laptop or published."""
    balance_mode: str
    """`off`, `advise` or `auto`."""
    hardware: str
    """The hardware profile of its brokers; empty: unknown."""
    size_mode: str
    """`advise` or `auto`."""
    size_bounds: dict[str, float]
    conditions: list[ConditionView]
    missing: list[MissingCapabilityView]
    version: int

    @classmethod
    def of(cls, physical: PhysicalCluster) -> PhysicalClusterView:
        conditions = [ConditionView.of_attributes(condition) for condition in physical.conditions]
        missing = [MissingCapabilityView.of_attributes(each) for each in physical.missing]
        brokers, cells = len(physical.brokers), len(physical.cells)
        return cls.of_attributes(
            physical, brokers=brokers, cells=cells, conditions=conditions, missing=missing
        )


class GatewayView(View):
    """A gateway that has registered itself."""

    cluster: str
    gateway: str
    state: GatewayState
    silent_seconds: float
    """Since its latest heartbeat."""
    instance: str
    """Its host and settings file."""
    bootstrap: str
    """Its advertised addresses; with SNI, `*.domain:port`."""
    tls: bool
    workers: int
    connections: int
    state_age_seconds: float
    """Since the gateway last read the end of `_penstock.state`."""
    version: str
    started_ms: int

    @classmethod
    def of(cls, gateway: RegisteredGateway) -> GatewayView:
        heartbeat = gateway.heartbeat
        return cls.of_attributes(
            heartbeat,
            state=gateway.state,
            silent_seconds=round(gateway.silent_seconds, 1),
            bootstrap=heartbeat.bootstrap or f"*.{heartbeat.domain}:{heartbeat.port}",
            state_age_seconds=heartbeat.state_age_ms / 1000,
        )


class GatewayCall(RequestBody):
    tenant: Annotated[str, Field(max_length=63)]
    call: Annotated[str, Field(max_length=63)]
    arguments: dict[str, Any] = Field(default_factory=dict)


class GatewayCallResult(BaseModel):
    result: Any


class TokenView(View):
    name: str
    role: OperatorRole
    clusters: list[str]


class DifferenceView(View):
    kind: str
    what: str
    name: str
    detail: str


class StatusView(View):
    role: str
    active: str
    position: int
    end: int
    clusters: int
    operations_running: int
    conditions: int
    """Problems of physical clusters that an operator should know about."""
    capabilities_missing: int
    """How many features of adopted clusters are off for lack of a capability."""


class Page(BaseModel, Generic[T]):
    items: list[T]
    cursor: str | None = None
    """For the next page; null on the last one."""


class Accepted(BaseModel):
    """The change was accepted as an operation."""

    operation: OperationView


class ClusterAccepted(Accepted):
    cluster: ClusterView | None


class AccountAccepted(Accepted):
    account: AccountView | None


class KeyAccepted(Accepted):
    key: KeyView | None
    secret: str | None
    """Only in the first response, and never again."""


class TokenMade(BaseModel):
    token: TokenView
    secret: str | None


class AuditEventView(View):
    id: str
    time_ms: int
    actor: str
    operation: str
    subject_kind: str
    subject: str
    cluster: str | None
    """The logical cluster, if the event is about one."""
    outcome: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str | None

    @classmethod
    def of(cls, event: AuditEvent) -> AuditEventView:
        return cls(
            id=event.id,
            time_ms=event.time_ms,
            actor=event.actor,
            operation=event.operation,
            subject_kind=event.subject_kind,
            subject=event.subject,
            cluster=event.tenant,
            outcome=str(event.outcome),
            before=None if event.before is None else dict(event.before),
            after=None if event.after is None else dict(event.after),
            reason=event.reason,
        )


class AuditEvents(BaseModel):
    items: list[AuditEventView]
    next: int
    """The offset to continue from."""
    end: int
    """Where the log ends now: with `next` there, there are no further events yet."""


class Differences(BaseModel):
    differences: list[DifferenceView]


class Exported(BaseModel):
    export: str


class Imported(BaseModel):
    records: int
