"""The routes of the HTTP API, by resource."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from penstock.control import decisions
from penstock.control.api.app import (
    Call,
    Caller,
    Change,
    CurrentPlane,
    IfMatch,
    Pages,
    Plane,
    expected_version,
    operation_view,
    set_etag,
)
from penstock.control.api.auth import cluster_for, require, require_role
from penstock.control.api.schemas import (
    Accepted,
    AccountAccepted,
    AccountChange,
    AccountView,
    AclView,
    AuditEvents,
    AuditEventView,
    CellView,
    ClusterAccepted,
    ClusterChange,
    ClusterMove,
    ClusterView,
    ConditionView,
    Differences,
    DifferenceView,
    Exported,
    Import,
    Imported,
    KeyAccepted,
    KeyRotation,
    KeyView,
    NewAccount,
    NewCluster,
    NewKey,
    NewToken,
    OperationView,
    Page,
    PhysicalClusterView,
    StatusView,
    TokenMade,
    TokenView,
)
from penstock.control.audit_log import AuditQuery
from penstock.control.capacity_units import ADOPTED_CAPACITY, TABLES, units_for
from penstock.control.checker import Difference
from penstock.control.cluster_placement import load_key
from penstock.control.decisions import ClusterRequest, Decision
from penstock.control.desired_state import quota_for
from penstock.control.registry import Registry
from penstock.control.registry_import import import_records
from penstock.model.api_keys import hashed, new_api_key, new_token
from penstock.model.entities import (
    ApiKey,
    LogicalCluster,
    Operation,
    OperationState,
    OperatorRole,
    OperatorToken,
    PhysicalCluster,
    ServiceAccount,
)
from penstock.model.events import Dimension

router = APIRouter(prefix="/v1")

Id = Annotated[str, Path(max_length=63)]
Text = Annotated[str, Query(max_length=63)]


def _cluster_view(plane: Plane, cluster: LogicalCluster) -> ClusterView:
    registry = plane.registry
    physical = registry.get(PhysicalCluster, cluster.cluster)
    return ClusterView.of(cluster, quota_for(registry, cluster), physical, plane.gateways)


# The control plane itself


@router.get("/status", operation_id="getStatus", tags=["control"])
async def get_status(plane: CurrentPlane, token: Caller) -> StatusView:
    """Which control plane is active, and how far this one has read the registry."""
    require_role(token, OperatorRole.VIEWER)
    position, end = plane.position
    running, clusters = plane.registry.running(), plane.registry.count(LogicalCluster)
    if token.clusters:
        running = [operation for operation in running if operation.tenant in token.clusters]
        clusters = sum(plane.registry.get(LogicalCluster, each) is not None for each in token.clusters)
    return StatusView(
        role=str(plane.role),
        active=plane.active_url,
        position=position,
        end=end,
        clusters=clusters,
        operations_running=len(running),
        conditions=sum(len(physical.conditions) for physical in plane.registry.all(PhysicalCluster)),
        capabilities_missing=sum(len(physical.missing) for physical in plane.registry.all(PhysicalCluster)),
    )


@router.get("/audit", operation_id="readAuditLog", tags=["control"])
async def list_audit_events(
    plane: CurrentPlane,
    token: Caller,
    offset: Annotated[int | None, Query(ge=0, le=2**62, description="`next` of the previous page.")] = None,
    since_ms: Annotated[int | None, Query(ge=0, le=2**52, description="From a time.")] = None,
    last: Annotated[int | None, Query(ge=1, le=1000, description="The last events, instead.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    actor: Annotated[str, Query(max_length=200)] = "",
    operation: Annotated[str, Query(max_length=200, description="Beginning of the operation.")] = "",
    subject: Annotated[str, Query(max_length=200)] = "",
    cluster: Annotated[str, Query(max_length=200, description="A logical cluster id.")] = "",
) -> AuditEvents:
    """What operators changed, oldest first."""
    require(token, OperatorRole.ADMIN)
    query = AuditQuery(offset, since_ms, last, limit, actor, operation, subject, cluster)
    page = await plane.audit(query)
    return AuditEvents(items=[AuditEventView.of(each) for each in page.events], next=page.next, end=page.end)


@router.get("/check", operation_id="check", tags=["control"])
async def check(plane: CurrentPlane, token: Caller) -> Differences:
    """The differences between Kafka and the declared state."""
    require(token, OperatorRole.ADMIN)
    return _differences(await plane.check())


@router.post("/repair", operation_id="repair", tags=["control"])
async def repair(call: Change) -> Differences:
    """Creates what is missing and deletes what is undeclared; returns the remaining differences."""
    call.may(None, OperatorRole.ADMIN)
    return _differences(await call.plane.repair())


@router.get("/export", operation_id="exportRegistry", tags=["control"])
async def export_registry(plane: CurrentPlane, token: Caller) -> Exported:
    require(token, OperatorRole.ADMIN)
    return Exported(export=plane.registry.export())


@router.post("/import", operation_id="importRegistry", tags=["control"])
async def import_registry(call: Change, body: Import) -> Imported:
    """Into a registry without logical clusters. `repair` then creates what Kafka lacks."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, a: import_records(r, a, body.export), LogicalCluster)
    return Imported(records=max(0, len(decided.changes) - 1))


def _differences(differences: tuple[Difference, ...]) -> Differences:
    return Differences(differences=[DifferenceView.of_attributes(each) for each in differences])


# Logical clusters


@router.get("/clusters", operation_id="listClusters", tags=["clusters"], response_model=Page[ClusterView])
async def list_clusters(plane: CurrentPlane, token: Caller, pages: Pages, name: Text = "") -> Response:
    require_role(token, OperatorRole.VIEWER)
    registry = plane.registry
    allowed = set(token.clusters)

    def matches(cluster: LogicalCluster) -> bool:
        return (not name or cluster.name == name) and (not allowed or cluster.id in allowed)

    return pages.entities(registry, LogicalCluster, lambda c: _cluster_view(plane, c), matches)


@router.post("/clusters", operation_id="createCluster", status_code=202, tags=["clusters"])
async def create_cluster(call: Change, body: NewCluster, response: Response) -> ClusterAccepted:
    """Placed in a cell with room. The cluster is usable when the operation is done."""
    call.may(None)

    def decide(registry: Registry, context: decisions.DecisionContext) -> Decision:
        return decisions.create_cluster(registry, context, _cluster_request(registry, body))

    if body.adopted is not None and call.registry.operation_of(call.request) is None:
        await call.plane.admit(body.adopted)
    decided = await call.decide(decide, LogicalCluster)
    return accepted(call, decided, response)


def _cluster_request(registry: Registry, body: NewCluster) -> ClusterRequest:
    """The request, with needs converted to capacity units of the cluster it would live on."""
    units = body.units
    if units is None:
        capacity = next((p.capacity for p in registry.all(PhysicalCluster)), "laptop")
        if body.adopted is not None:
            named = (p.capacity for p in registry.all(PhysicalCluster) if p.name == body.adopted)
            capacity = next(named, ADOPTED_CAPACITY)
        needs = {Dimension(name): value for name, value in body.needs.items()}
        units = units_for(needs, TABLES[capacity])
    return ClusterRequest(
        body.name,
        units,
        body.tenancy,
        body.zones,
        body.network.to_rule(),
        {str(name): value for name, value in body.overrides.items()},
        body.labels,
        body.adopted or "",
        body.auto_create_topics,
    )


@router.get("/clusters/{cluster}", operation_id="getCluster", tags=["clusters"])
async def get_cluster(plane: CurrentPlane, token: Caller, cluster: Id, response: Response) -> ClusterView:
    """By id or name."""
    logical = cluster_for(plane.registry, token, OperatorRole.VIEWER, cluster)
    set_etag(response, logical)
    return _cluster_view(plane, logical)


@router.patch("/clusters/{cluster}", operation_id="updateCluster", status_code=202, tags=["clusters"])
async def update_cluster(
    call: Change, cluster: Id, body: ClusterChange, response: Response, if_match: IfMatch = None
) -> ClusterAccepted:
    version = expected_version(if_match)
    call.cluster(cluster)
    if body.units is not None or body.overrides is not None:
        call.may(None)  # a confined token cannot raise its own limits
    decided = await call.decide(
        lambda r, a: decisions.update_cluster(r, a, cluster, version, body.values()), LogicalCluster
    )
    return accepted(call, decided, response)


@router.delete("/clusters/{cluster}", operation_id="deleteCluster", status_code=202, tags=["clusters"])
async def delete_cluster(
    call: Change, cluster: Id, response: Response, if_match: IfMatch = "*"
) -> ClusterAccepted:
    """Deletes the cluster with its topics, groups, accounts and keys."""
    version = expected_version(if_match)
    call.cluster(cluster)
    decided = await call.decide(lambda r, a: decisions.delete_cluster(r, a, cluster, version), LogicalCluster)
    return accepted(call, decided, response)


@router.post("/clusters/{cluster}/move", operation_id="moveCluster", status_code=202, tags=["clusters"])
async def move_cluster(call: Change, cluster: Id, body: ClusterMove, response: Response) -> ClusterAccepted:
    """Moves the cluster to another cell, while its clients keep working."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, a: decisions.move_cluster(r, a, cluster, body.cell), LogicalCluster)
    return accepted(call, decided, response)


def accepted(call: Call, decided: Decision, response: Response) -> ClusterAccepted:
    subject = decided.subject
    shown = _cluster_view(call.plane, subject) if isinstance(subject, LogicalCluster) else None
    return ClusterAccepted(operation=operation_view(decided, response), cluster=shown)


# Service accounts


@router.get(
    "/clusters/{cluster}/accounts",
    operation_id="listAccounts",
    tags=["accounts"],
    response_model=Page[AccountView],
)
async def list_accounts(plane: CurrentPlane, token: Caller, pages: Pages, cluster: Id) -> Response:
    logical = cluster_for(plane.registry, token, OperatorRole.VIEWER, cluster)
    return pages.among(plane.registry.accounts(logical.id), AccountView.of)


@router.post("/clusters/{cluster}/accounts", operation_id="createAccount", status_code=202, tags=["accounts"])
async def create_account(call: Change, cluster: Id, body: NewAccount, response: Response) -> AccountAccepted:
    call.cluster(cluster)
    grants = [grant.to_grant() for grant in body.grants]
    decided = await call.decide(
        lambda r, a: decisions.create_account(r, a, cluster, body.name, body.role, grants), ServiceAccount
    )
    return _account_accepted(decided, response)


@router.get("/accounts/{account}", operation_id="getAccount", tags=["accounts"])
async def get_account(plane: CurrentPlane, token: Caller, account: Id, response: Response) -> AccountView:
    entity = plane.registry.need(ServiceAccount, account)
    require(token, OperatorRole.VIEWER, entity.tenant)
    set_etag(response, entity)
    return AccountView.of(entity)


@router.get(
    "/accounts/{account}/acls", operation_id="listAcls", tags=["accounts"], response_model=Page[AclView]
)
async def list_acls(plane: CurrentPlane, token: Caller, pages: Pages, account: Id) -> Response:
    """The account's ACLs: from its role, its grants, and created by its tenant through Kafka."""
    entity = plane.registry.need(ServiceAccount, account)
    require(token, OperatorRole.VIEWER, entity.tenant)
    acls = {hashed(repr(acl)): AclView.of_attributes(acl) for acl in await plane.acls(entity)}
    return pages.page(lambda after: (r for r in sorted(acls) if r > after), acls.__getitem__, str)


@router.patch("/accounts/{account}", operation_id="updateAccount", status_code=202, tags=["accounts"])
async def update_account(
    call: Change, account: Id, body: AccountChange, response: Response, if_match: IfMatch = None
) -> AccountAccepted:
    version = expected_version(if_match)
    call.may(call.registry.need(ServiceAccount, account).tenant)
    grants = [grant.to_grant() for grant in body.grants]
    decided = await call.decide(
        lambda r, a: decisions.update_account(r, a, account, version, grants), ServiceAccount
    )
    return _account_accepted(decided, response)


@router.delete("/accounts/{account}", operation_id="deleteAccount", status_code=202, tags=["accounts"])
async def delete_account(
    call: Change, account: Id, response: Response, if_match: IfMatch = "*"
) -> AccountAccepted:
    """Deletes the account with its keys."""
    version = expected_version(if_match)
    call.may(_tenant_of(call, ServiceAccount, account))
    decided = await call.decide(lambda r, a: decisions.delete_account(r, a, account, version), ServiceAccount)
    return _account_accepted(decided, response)


def _account_accepted(decided: Decision, response: Response) -> AccountAccepted:
    shown = AccountView.of(decided.subject) if isinstance(decided.subject, ServiceAccount) else None
    return AccountAccepted(operation=operation_view(decided, response), account=shown)


def _tenant_of(call: Call, kind: type[ServiceAccount | ApiKey], entity_id: str) -> str | None:
    """The tenant of an entity; from the operation, if a repeated deletion finds it gone."""
    entity = call.registry.get(kind, entity_id)
    if entity is None and (before := call.registry.operation_of(call.request)) is not None:
        return before.tenant
    return call.registry.need(kind, entity_id).tenant


# API keys


@router.get("/clusters/{cluster}/keys", operation_id="listKeys", tags=["keys"], response_model=Page[KeyView])
async def list_keys(plane: CurrentPlane, token: Caller, pages: Pages, cluster: Id) -> Response:
    logical = cluster_for(plane.registry, token, OperatorRole.VIEWER, cluster)
    return pages.among(plane.registry.keys(logical.id), KeyView.of)


@router.post("/clusters/{cluster}/keys", operation_id="createKey", status_code=202, tags=["keys"])
async def create_key(call: Change, cluster: Id, body: NewKey, response: Response) -> KeyAccepted:
    """The secret is in this response and nowhere else."""
    call.cluster(cluster)
    key = new_api_key(secrets.choice)
    decided = await call.decide(
        lambda r, a: decisions.create_key(
            r, a, cluster, body.account, key.id, key.secret_sha256, body.description
        ),
        ApiKey,
    )
    return _key_accepted(decided, response, key.secret)


@router.get("/keys/{key}", operation_id="getKey", tags=["keys"])
async def get_key(plane: CurrentPlane, token: Caller, key: Id, response: Response) -> KeyView:
    entity = plane.registry.need(ApiKey, key)
    require(token, OperatorRole.VIEWER, entity.tenant)
    set_etag(response, entity)
    return KeyView.of(entity)


@router.post("/keys/{key}/rotate", operation_id="rotateKey", status_code=202, tags=["keys"])
async def rotate_key(call: Change, key: Id, body: KeyRotation, response: Response) -> KeyAccepted:
    """A new key for the same account; the old one expires after the grace period."""
    call.may(_tenant_of(call, ApiKey, key))
    new = new_api_key(secrets.choice)
    grace_ms = int(body.grace_seconds * 1000)
    decided = await call.decide(
        lambda r, a: decisions.rotate_key(r, a, key, new.id, new.secret_sha256, grace_ms), ApiKey
    )
    return _key_accepted(decided, response, new.secret)


@router.delete("/keys/{key}", operation_id="revokeKey", status_code=202, tags=["keys"])
async def revoke_key(call: Change, key: Id, response: Response, if_match: IfMatch = "*") -> KeyAccepted:
    """Revokes the key and closes its connections."""
    version = expected_version(if_match)
    call.may(_tenant_of(call, ApiKey, key))
    decided = await call.decide(lambda r, a: decisions.revoke_key(r, a, key, version), ApiKey)
    return _key_accepted(decided, response, None)


def _key_accepted(decided: Decision, response: Response, secret: str | None) -> KeyAccepted:
    shown = KeyView.of(decided.subject) if isinstance(decided.subject, ApiKey) else None
    secret = None if decided.repeated else secret
    return KeyAccepted(operation=operation_view(decided, response), key=shown, secret=secret)


# Operations


@router.get(
    "/operations", operation_id="listOperations", tags=["operations"], response_model=Page[OperationView]
)
async def list_operations(
    plane: CurrentPlane, token: Caller, pages: Pages, cluster: Text = "", state: OperationState | None = None
) -> Response:
    require_role(token, OperatorRole.VIEWER)
    allowed = set(token.clusters)
    named = plane.registry.cluster_named(cluster)
    tenant = named.id if named is not None else cluster

    def matches(operation: Operation) -> bool:
        return (
            (not allowed or operation.tenant in allowed)
            and (not tenant or operation.tenant == tenant)
            and (state is None or operation.state is state)
        )

    return pages.entities(plane.registry, Operation, OperationView.of, matches)


@router.get("/operations/{operation}", operation_id="getOperation", tags=["operations"])
async def get_operation(
    plane: CurrentPlane, token: Caller, operation: Id, response: Response
) -> OperationView:
    entity = plane.registry.need(Operation, operation)
    require(token, OperatorRole.VIEWER, entity.tenant)
    set_etag(response, entity)
    return OperationView.of(entity)


# Physical clusters and cells


@router.get(
    "/physical-clusters",
    operation_id="listPhysicalClusters",
    tags=["physical clusters"],
    response_model=Page[PhysicalClusterView],
)
async def list_physical(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    require(token, OperatorRole.VIEWER)
    return pages.entities(plane.registry, PhysicalCluster, PhysicalClusterView.of)


@router.get("/physical-clusters/{physical}", operation_id="getPhysicalCluster", tags=["physical clusters"])
async def get_physical(
    plane: CurrentPlane, token: Caller, physical: Id, response: Response
) -> PhysicalClusterView:
    """By id or name, with what it does not allow and the features that are therefore off."""
    require(token, OperatorRole.VIEWER)
    named = (p for p in plane.registry.all(PhysicalCluster) if p.name == physical)
    entity = next(named, None) or plane.registry.need(PhysicalCluster, physical)
    set_etag(response, entity)
    return PhysicalClusterView.of(entity)


@router.get("/cells", operation_id="listCells", tags=["physical clusters"], response_model=Page[CellView])
async def list_cells(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    """All cells, with the load that placement uses."""
    require(token, OperatorRole.VIEWER)
    cells = sorted(_cells(plane), key=_cell_key)
    return pages.page(lambda after: (c for c in cells if _cell_key(c) > after), lambda c: c, _cell_key)


def _cell_key(cell: CellView) -> str:
    """A cell's id is unique within its physical cluster only."""
    return load_key(cell.physical_cluster, cell.id)


def _cells(plane: Plane) -> list[CellView]:
    tenants = Counter(load_key(c.cluster, c.cell) for c in plane.registry.all(LogicalCluster))
    return [
        CellView(
            id=cell.id,
            physical_cluster=physical.id,
            brokers=list(cell.brokers),
            load=plane.loads.get(load_key(physical.id, cell.id)),
            clusters=tenants[load_key(physical.id, cell.id)],
            conditions=[ConditionView.of_attributes(c) for c in physical.conditions if cell.id in c.cells],
        )
        for physical in plane.registry.all(PhysicalCluster)
        for cell in physical.cells
    ]


# Operators' tokens


@router.get("/tokens", operation_id="listTokens", tags=["tokens"], response_model=Page[TokenView])
async def list_tokens(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    require(token, OperatorRole.ADMIN)
    return pages.entities(plane.registry, OperatorToken, TokenView.of_attributes)


@router.post("/tokens", operation_id="createToken", status_code=201, tags=["tokens"])
async def create_token(call: Change, body: NewToken) -> TokenMade:
    """The secret is in this response and nowhere else."""
    call.may(None, OperatorRole.ADMIN)
    secret = new_token(secrets.choice)
    decided = await call.decide(
        lambda r, a: decisions.create_token(r, a, body.name, body.role, body.clusters, hashed(secret)),
        OperatorToken,
    )
    token_entity = decided.subject or call.registry.need(OperatorToken, body.name)
    assert isinstance(token_entity, OperatorToken)
    return TokenMade(token=TokenView.of_attributes(token_entity), secret=None if decided.repeated else secret)


@router.delete("/tokens/{name}", operation_id="deleteToken", tags=["tokens"])
async def delete_token(call: Change, name: Id) -> Accepted:
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, a: decisions.delete_token(r, a, name), OperatorToken)
    return Accepted(operation=OperationView.of(decided.operation))
