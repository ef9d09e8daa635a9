"""What travels over the HTTP API: requests that are checked, answers that show no secret twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from penstock.control.rules import Origin
from penstock.model.entities import (
    ApiKey,
    ClusterState,
    Condition,
    Grant,
    LogicalCluster,
    NetworkRule,
    Operation,
    OperationState,
    OperatorRole,
    OperatorToken,
    PhysicalCluster,
    Role,
    ServiceAccount,
    Tenancy,
    Zones,
)
from penstock.model.events import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.rules import OwnRule

T = TypeVar("T")

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Networks = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)]
Labels = Annotated[
    dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]], Field(max_length=64)
]
Overrides = dict[Dimension, Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]]
Units = Annotated[int, Field(ge=1, le=1000)]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Problem(BaseModel):
    """RFC 9457, with our own code and the way out."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    fault: str
    retriable: bool
    active: str | None = None
    """Where the active control plane is, if this one is not it."""


class NetworkShape(Shape):
    allow: Networks = []
    """Networks that may connect; if there are any, no others may."""
    deny: Networks = []

    def rule(self) -> NetworkRule:
        return NetworkRule(tuple(self.allow), tuple(self.deny))


class GrantShape(Shape):
    resource: Annotated[str, Field(max_length=20)]
    """topic, group or transactional-id."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    operation: Annotated[str, Field(max_length=20)]
    """Kafka's word in small letters: all, read, write, create, delete, alter, describe, …"""
    pattern: Annotated[str, Field(max_length=10)] = "literal"

    def grant(self) -> Grant:
        return Grant(self.resource, self.name, self.operation, self.pattern)


class NewCluster(Shape):
    name: Name
    units: Units | None = None
    """Size in capacity units; or say what is needed under `needs`."""
    needs: Annotated[
        dict[Dimension, Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]], Field()
    ] = {}
    tenancy: Tenancy = Tenancy.SHARED
    adopted: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The adopted, empty cluster that a dedicated one is to have; left out: brokers are made for it."""
    zones: Zones = Zones.MULTI
    network: NetworkShape = NetworkShape()
    overrides: Overrides = {}
    labels: Labels = {}


class ClusterChange(Shape):
    """What is left out stays."""

    name: Name | None = None
    units: Units | None = None
    network: NetworkShape | None = None
    overrides: Overrides | None = None
    labels: Labels | None = None

    def values(self) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True, exclude={"network"})
        if "overrides" in given:
            given["overrides"] = {str(name): value for name, value in given["overrides"].items()}
        if self.network is not None:
            given["network"] = self.network.rule()
        return given


class ClusterMove(Shape):
    cell: Annotated[str, Field(max_length=64)] | None = None
    """Left out: wherever there is room."""


class NewAccount(Shape):
    name: Name
    role: Role = Role.LIMITED
    grants: Annotated[list[GrantShape], Field(max_length=200)] = []


class AccountChange(Shape):
    grants: Annotated[list[GrantShape], Field(max_length=200)]
    """All of them: what is not listed is taken."""


class NewKey(Shape):
    account: Annotated[str, Field(max_length=63)] | None = None
    """Id or name of a service account; left out: the cluster's owner."""
    description: Annotated[str, Field(max_length=255)] = ""


class KeyRotation(Shape):
    grace_seconds: Annotated[float, Field(ge=0, le=30 * 24 * 3600, allow_inf_nan=False)] = 0
    """How long the old key stays valid beside the new one."""


class NewToken(Shape):
    name: Name
    role: OperatorRole
    clusters: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=100)] = []


class Import(Shape):
    export: Annotated[str, Field(max_length=256 << 20)]


class Shown(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class OperationShown(Shown):
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
    made_ms: int
    ended_ms: int | None
    version: int

    @classmethod
    def of(cls, operation: Operation) -> OperationShown:
        return cls(
            cluster=operation.tenant,
            **{n: getattr(operation, n) for n in cls.model_fields if n != "cluster"},
        )


class ClusterShown(Shown):
    id: str
    name: str
    state: ClusterState
    tenancy: Tenancy
    zones: Zones
    units: int
    quota: dict[str, float]
    """By dimension: what its size gives, and its overrides."""
    network: NetworkShape
    overrides: dict[str, float]
    labels: dict[str, str]
    physical_cluster: str
    adopted: str | None
    """The adopted cluster that it has to itself."""
    cell: str
    bootstrap: str
    version: int

    @classmethod
    def of(
        cls, cluster: LogicalCluster, quota: Mapping[str, float], physical: PhysicalCluster | None
    ) -> ClusterShown:
        return cls(
            id=cluster.id,
            name=cluster.name,
            state=cluster.state,
            tenancy=cluster.tenancy,
            zones=cluster.zones,
            units=cluster.units,
            quota=dict(quota),
            network=NetworkShape(allow=list(cluster.network.allow), deny=list(cluster.network.deny)),
            overrides=dict(cluster.overrides),
            labels=dict(cluster.labels),
            physical_cluster=cluster.cluster,
            cell=cluster.cell,
            adopted=(physical.adopted or None) if physical is not None else None,
            bootstrap=physical.bootstrap if physical is not None else "",
            version=cluster.version,
        )


class AccountShown(Shown):
    id: str
    cluster: str
    name: str
    role: Role
    grants: list[GrantShape]
    ready: bool
    version: int

    @classmethod
    def of(cls, account: ServiceAccount) -> AccountShown:
        grants = [
            GrantShape(resource=g.resource, name=g.name, operation=g.operation, pattern=g.pattern)
            for g in account.grants
        ]
        return cls(
            id=account.id,
            cluster=account.tenant,
            name=account.name,
            role=account.role,
            grants=grants,
            ready=account.ready,
            version=account.version,
        )


class RuleShown(Shown):
    resource: str
    name: str
    """`*`, literal: everything of that kind in the cluster."""
    pattern: str
    operation: str
    permission: str
    """allow, or deny: the latter comes from the tenant alone."""
    origin: Origin
    """role: an owner has it; granted: here; tenant: made by the tenant, through Kafka."""

    @classmethod
    def of(cls, rule: OwnRule) -> RuleShown:
        return cls(**{name: getattr(rule, name) for name in cls.model_fields})


class KeyShown(Shown):
    id: str
    cluster: str
    account: str
    description: str
    made_ms: int
    replaced_by: str
    ends_ms: int | None
    version: int

    @classmethod
    def of(cls, key: ApiKey) -> KeyShown:
        return cls(cluster=key.tenant, **{n: getattr(key, n) for n in cls.model_fields if n != "cluster"})


class ConditionShown(Shown):
    kind: str
    """`needs-cell`: cells are full, and moving tenants cannot relieve them."""
    since_ms: int
    detail: str
    remedy: str
    """What would end it."""
    cells: list[str]
    brokers: int
    """How many are missing."""

    @classmethod
    def of(cls, condition: Condition) -> ConditionShown:
        values = {name: getattr(condition, name) for name in cls.model_fields}
        return cls(**values | {"cells": list(condition.cells)})


class CellShown(Shown):
    id: str
    physical_cluster: str
    brokers: list[int]
    load: float
    clusters: int
    conditions: list[ConditionShown]


class PhysicalShown(Shown):
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
    conditions: list[ConditionShown]
    version: int

    @classmethod
    def of(cls, physical: PhysicalCluster) -> PhysicalShown:
        return cls(
            id=physical.id,
            name=physical.name,
            provider=physical.provider,
            kafka_id=physical.kafka_id,
            tenancy=physical.tenancy,
            state=physical.state,
            zones=list(physical.zones),
            brokers=len(physical.brokers),
            cells=len(physical.cells),
            bootstrap=physical.bootstrap,
            conditions=[ConditionShown.of(condition) for condition in physical.conditions],
            version=physical.version,
        )


class TokenShown(Shown):
    name: str
    role: OperatorRole
    clusters: list[str]

    @classmethod
    def of(cls, token: OperatorToken) -> TokenShown:
        return cls(name=token.name, role=token.role, clusters=list(token.clusters))


class DifferenceShown(Shown):
    kind: str
    what: str
    name: str
    detail: str


class StatusShown(Shown):
    role: str
    active: str
    position: int
    end: int
    clusters: int
    operations_running: int


class Page(BaseModel, Generic[T]):
    items: list[T]
    cursor: str | None = None
    """For the next page; none: this was the last."""


class Accepted(BaseModel):
    """An operation is under way."""

    operation: OperationShown


class ClusterAccepted(Accepted):
    cluster: ClusterShown | None


class AccountAccepted(Accepted):
    account: AccountShown | None


class KeyAccepted(Accepted):
    key: KeyShown | None
    secret: str | None
    """Only in the first answer, and never again."""


class TokenMade(BaseModel):
    token: TokenShown
    secret: str | None


class Differences(BaseModel):
    differences: list[DifferenceShown]


class Exported(BaseModel):
    export: str


class Imported(BaseModel):
    records: int
