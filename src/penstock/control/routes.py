"""The routes of the HTTP API, noun by noun."""

from __future__ import annotations

import hashlib
import secrets
import string
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from penstock.control import decisions
from penstock.control.access import require
from penstock.control.api import (
    Call,
    Caller,
    Change,
    IfMatch,
    Pages,
    Plane,
    Served,
    expected_version,
    located,
    tag,
)
from penstock.control.decisions import ClusterAsk, Decided
from penstock.control.importing import import_records
from penstock.control.placing import load_key
from penstock.control.registry import Registry
from penstock.control.shapes import (
    Accepted,
    AccountAccepted,
    AccountChange,
    AccountShown,
    CellShown,
    ClusterAccepted,
    ClusterChange,
    ClusterMove,
    ClusterShown,
    ConditionShown,
    Differences,
    DifferenceShown,
    Exported,
    Import,
    Imported,
    KeyAccepted,
    KeyRotation,
    KeyShown,
    NewAccount,
    NewCluster,
    NewKey,
    NewToken,
    OperationShown,
    Page,
    PhysicalShown,
    RuleShown,
    StatusShown,
    TokenMade,
    TokenShown,
)
from penstock.control.units import ADOPTED_CAPACITY, TABLES, units_for
from penstock.control.wanted import quota_for
from penstock.gateway.config import API_KEY_LENGTH, API_SECRET_LENGTH
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

TOKEN_LENGTH: Final = 48
_KEY_LETTERS: Final = string.ascii_uppercase + string.digits
_SECRET_LETTERS: Final = string.ascii_letters + string.digits

router = APIRouter(prefix="/v1")

Id = Annotated[str, Path(max_length=63)]
Text = Annotated[str, Query(max_length=63)]


def new_key() -> tuple[str, str]:
    return _drawn(_KEY_LETTERS, API_KEY_LENGTH), _drawn(_SECRET_LETTERS, API_SECRET_LENGTH)


def _drawn(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _shown(registry: Registry, cluster: LogicalCluster) -> ClusterShown:
    physical = registry.get(PhysicalCluster, cluster.cluster)
    return ClusterShown.of(cluster, quota_for(registry, cluster), physical)


def _operation(decided: Decided) -> OperationShown:
    return OperationShown.of(decided.operation)


# The control plane itself


@router.get("/status", operation_id="getStatus", tags=["control"])
async def get_status(plane: Served, token: Caller) -> StatusShown:
    """Who is active, and how far this one has read the registry."""
    require(token, OperatorRole.VIEWER)
    position, end = plane.position
    return StatusShown(
        role=str(plane.role),
        active=plane.active_url,
        position=position,
        end=end,
        clusters=plane.registry.count(LogicalCluster),
        operations_running=len(plane.registry.running()),
    )


@router.get("/check", operation_id="check", tags=["control"])
async def check(plane: Served, token: Caller) -> Differences:
    """What Kafka has otherwise than it is declared."""
    require(token, OperatorRole.ADMIN)
    return _differences(await plane.check())


@router.post("/repair", operation_id="repair", tags=["control"])
async def repair(call: Change) -> Differences:
    """Give what is missing, take what nobody declared; what is left is answered."""
    call.may(None, OperatorRole.ADMIN)
    return _differences(await call.plane.repair())


@router.get("/export", operation_id="exportRegistry", tags=["control"])
async def export_registry(plane: Served, token: Caller) -> Exported:
    require(token, OperatorRole.ADMIN)
    return Exported(export=plane.registry.export())


@router.post("/import", operation_id="importRegistry", tags=["control"])
async def import_registry(call: Change, given: Import) -> Imported:
    """Into a registry without logical clusters. What Kafka lacks is made by `repair`."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, a: import_records(r, a, given.export), LogicalCluster)
    return Imported(records=max(0, len(decided.changes) - 1))


def _differences(found: object) -> Differences:
    assert isinstance(found, tuple)
    return Differences(
        differences=[DifferenceShown(kind=d.kind, what=d.what, name=d.name, detail=d.detail) for d in found]
    )


# Logical clusters


@router.get("/clusters", operation_id="listClusters", tags=["clusters"], response_model=Page[ClusterShown])
async def list_clusters(plane: Served, token: Caller, pages: Pages, name: Text = "") -> Response:
    require(token, OperatorRole.VIEWER)
    registry = plane.registry
    held = set(token.clusters)

    def wanted(cluster: LogicalCluster) -> bool:
        return (not name or cluster.name == name) and (not held or cluster.id in held)

    return pages.entities(registry, LogicalCluster, lambda c: _shown(registry, c), wanted)


@router.post("/clusters", operation_id="createCluster", status_code=202, tags=["clusters"])
async def create_cluster(call: Change, given: NewCluster, response: Response) -> ClusterAccepted:
    """Somewhere there is room. It works when the operation is done."""
    call.may(None)

    def decide(registry: Registry, ask: decisions.Ask) -> Decided:
        return decisions.create_cluster(registry, ask, _asked(registry, given))

    if given.adopted is not None and call.registry.operation_of(call.request) is None:
        await call.plane.admit(given.adopted)
    decided = await call.decide(decide, LogicalCluster)
    return accepted(call, decided, response)


def _asked(registry: Registry, given: NewCluster) -> ClusterAsk:
    """The units that the needs come to, by the table of the cluster it would live on."""
    units = given.units
    if units is None:
        capacity = next((p.capacity for p in registry.all(PhysicalCluster)), "laptop")
        if given.adopted is not None:
            capacity = ADOPTED_CAPACITY
        needs = {Dimension(name): value for name, value in given.needs.items()}
        units = units_for(needs, TABLES[capacity])
    return ClusterAsk(
        given.name,
        units,
        given.tenancy,
        given.zones,
        given.network.rule(),
        {str(name): value for name, value in given.overrides.items()},
        given.labels,
        given.adopted or "",
    )


@router.get("/clusters/{cluster}", operation_id="getCluster", tags=["clusters"])
async def get_cluster(plane: Served, token: Caller, cluster: Id, response: Response) -> ClusterShown:
    """By id or name."""
    found = plane.registry.cluster(cluster)
    require(token, OperatorRole.VIEWER, found.id)
    tag(response, found)
    return _shown(plane.registry, found)


@router.patch("/clusters/{cluster}", operation_id="updateCluster", status_code=202, tags=["clusters"])
async def update_cluster(
    call: Change, cluster: Id, given: ClusterChange, response: Response, if_match: IfMatch = None
) -> ClusterAccepted:
    version = expected_version(if_match)
    call.may(call.registry.cluster(cluster).id)
    decided = await call.decide(
        lambda r, a: decisions.update_cluster(r, a, cluster, version, given.values()), LogicalCluster
    )
    return accepted(call, decided, response)


@router.delete("/clusters/{cluster}", operation_id="deleteCluster", status_code=202, tags=["clusters"])
async def delete_cluster(
    call: Change, cluster: Id, response: Response, if_match: IfMatch = "*"
) -> ClusterAccepted:
    """With its topics, groups, accounts and keys."""
    version = expected_version(if_match)
    call.may(call.registry.cluster(cluster).id)
    decided = await call.decide(lambda r, a: decisions.delete_cluster(r, a, cluster, version), LogicalCluster)
    return accepted(call, decided, response)


@router.post("/clusters/{cluster}/move", operation_id="moveCluster", status_code=202, tags=["clusters"])
async def move_cluster(call: Change, cluster: Id, given: ClusterMove, response: Response) -> ClusterAccepted:
    """To another cell, while its clients go on."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(
        lambda r, a: decisions.move_cluster(r, a, cluster, given.cell), LogicalCluster
    )
    return accepted(call, decided, response)


def accepted(call: Call, decided: Decided, response: Response) -> ClusterAccepted:
    located(response, decided)
    tag(response, decided.subject)
    subject = decided.subject
    shown = _shown(call.registry, subject) if isinstance(subject, LogicalCluster) else None
    return ClusterAccepted(operation=_operation(decided), cluster=shown)


# Service accounts


@router.get(
    "/clusters/{cluster}/accounts",
    operation_id="listAccounts",
    tags=["accounts"],
    response_model=Page[AccountShown],
)
async def list_accounts(plane: Served, token: Caller, pages: Pages, cluster: Id) -> Response:
    found = plane.registry.cluster(cluster)
    require(token, OperatorRole.VIEWER, found.id)
    return pages.among(plane.registry.accounts(found.id), AccountShown.of)


@router.post("/clusters/{cluster}/accounts", operation_id="createAccount", status_code=202, tags=["accounts"])
async def create_account(call: Change, cluster: Id, given: NewAccount, response: Response) -> AccountAccepted:
    call.may(call.registry.cluster(cluster).id)
    grants = [grant.grant() for grant in given.grants]
    decided = await call.decide(
        lambda r, a: decisions.create_account(r, a, cluster, given.name, given.role, grants), ServiceAccount
    )
    return _account_accepted(decided, response)


@router.get("/accounts/{account}", operation_id="getAccount", tags=["accounts"])
async def get_account(plane: Served, token: Caller, account: Id, response: Response) -> AccountShown:
    found = plane.registry.need(ServiceAccount, account)
    require(token, OperatorRole.VIEWER, found.tenant)
    tag(response, found)
    return AccountShown.of(found)


@router.get(
    "/accounts/{account}/rules", operation_id="listRules", tags=["accounts"], response_model=Page[RuleShown]
)
async def list_rules(plane: Served, token: Caller, pages: Pages, account: Id) -> Response:
    """What it may do: by its role, by its grants, and by what its tenant made through Kafka."""
    found = plane.registry.need(ServiceAccount, account)
    require(token, OperatorRole.VIEWER, found.tenant)
    rules = {_sha256(repr(rule)): RuleShown.of(rule) for rule in await plane.rules(found)}
    return pages.page(lambda after: (r for r in sorted(rules) if r > after), rules.__getitem__, str)


@router.patch("/accounts/{account}", operation_id="updateAccount", status_code=202, tags=["accounts"])
async def update_account(
    call: Change, account: Id, given: AccountChange, response: Response, if_match: IfMatch = None
) -> AccountAccepted:
    version = expected_version(if_match)
    call.may(call.registry.need(ServiceAccount, account).tenant)
    grants = [grant.grant() for grant in given.grants]
    decided = await call.decide(
        lambda r, a: decisions.update_account(r, a, account, version, grants), ServiceAccount
    )
    return _account_accepted(decided, response)


@router.delete("/accounts/{account}", operation_id="deleteAccount", status_code=202, tags=["accounts"])
async def delete_account(
    call: Change, account: Id, response: Response, if_match: IfMatch = "*"
) -> AccountAccepted:
    """Its keys go with it."""
    version = expected_version(if_match)
    call.may(_tenant_of(call, ServiceAccount, account))
    decided = await call.decide(lambda r, a: decisions.delete_account(r, a, account, version), ServiceAccount)
    return _account_accepted(decided, response)


def _account_accepted(decided: Decided, response: Response) -> AccountAccepted:
    located(response, decided)
    tag(response, decided.subject)
    shown = AccountShown.of(decided.subject) if isinstance(decided.subject, ServiceAccount) else None
    return AccountAccepted(operation=_operation(decided), account=shown)


def _tenant_of(call: Call, kind: type[ServiceAccount | ApiKey], entity_id: str) -> str | None:
    """Of what may be gone already, when a deletion is sent again: then its operation knows."""
    found = call.registry.get(kind, entity_id)
    if found is None and (before := call.registry.operation_of(call.request)) is not None:
        return before.tenant
    return call.registry.need(kind, entity_id).tenant


# API keys


@router.get("/clusters/{cluster}/keys", operation_id="listKeys", tags=["keys"], response_model=Page[KeyShown])
async def list_keys(plane: Served, token: Caller, pages: Pages, cluster: Id) -> Response:
    found = plane.registry.cluster(cluster)
    require(token, OperatorRole.VIEWER, found.id)
    return pages.among(plane.registry.keys(found.id), KeyShown.of)


@router.post("/clusters/{cluster}/keys", operation_id="createKey", status_code=202, tags=["keys"])
async def create_key(call: Change, cluster: Id, given: NewKey, response: Response) -> KeyAccepted:
    """Its secret is in this answer and nowhere else."""
    call.may(call.registry.cluster(cluster).id)
    key, secret = new_key()
    decided = await call.decide(
        lambda r, a: decisions.create_key(
            r, a, cluster, given.account, key, _sha256(secret), given.description
        ),
        ApiKey,
    )
    return _key_accepted(decided, response, secret)


@router.get("/keys/{key}", operation_id="getKey", tags=["keys"])
async def get_key(plane: Served, token: Caller, key: Id, response: Response) -> KeyShown:
    found = plane.registry.need(ApiKey, key)
    require(token, OperatorRole.VIEWER, found.tenant)
    tag(response, found)
    return KeyShown.of(found)


@router.post("/keys/{key}/rotate", operation_id="rotateKey", status_code=202, tags=["keys"])
async def rotate_key(call: Change, key: Id, given: KeyRotation, response: Response) -> KeyAccepted:
    """A new key for the same account; the old one ends after the grace."""
    call.may(_tenant_of(call, ApiKey, key))
    new, secret = new_key()
    grace_ms = int(given.grace_seconds * 1000)
    decided = await call.decide(
        lambda r, a: decisions.rotate_key(r, a, key, new, _sha256(secret), grace_ms), ApiKey
    )
    return _key_accepted(decided, response, secret)


@router.delete("/keys/{key}", operation_id="revokeKey", status_code=202, tags=["keys"])
async def revoke_key(call: Change, key: Id, response: Response, if_match: IfMatch = "*") -> KeyAccepted:
    """Its connections are closed."""
    version = expected_version(if_match)
    call.may(_tenant_of(call, ApiKey, key))
    decided = await call.decide(lambda r, a: decisions.revoke_key(r, a, key, version), ApiKey)
    return _key_accepted(decided, response, None)


def _key_accepted(decided: Decided, response: Response, secret: str | None) -> KeyAccepted:
    located(response, decided)
    tag(response, decided.subject)
    shown = KeyShown.of(decided.subject) if isinstance(decided.subject, ApiKey) else None
    return KeyAccepted(operation=_operation(decided), key=shown, secret=None if decided.repeated else secret)


# Operations


@router.get(
    "/operations", operation_id="listOperations", tags=["operations"], response_model=Page[OperationShown]
)
async def list_operations(
    plane: Served, token: Caller, pages: Pages, cluster: Text = "", state: OperationState | None = None
) -> Response:
    require(token, OperatorRole.VIEWER)
    held = set(token.clusters)
    found = plane.registry.cluster_named(cluster)
    tenant = found.id if found is not None else cluster

    def wanted(operation: Operation) -> bool:
        ours = not held or operation.tenant in held
        return (
            ours
            and (not tenant or operation.tenant == tenant)
            and (state is None or operation.state is state)
        )

    return pages.entities(plane.registry, Operation, OperationShown.of, wanted)


@router.get("/operations/{operation}", operation_id="getOperation", tags=["operations"])
async def get_operation(plane: Served, token: Caller, operation: Id, response: Response) -> OperationShown:
    found = plane.registry.need(Operation, operation)
    require(token, OperatorRole.VIEWER, found.tenant)
    tag(response, found)
    return OperationShown.of(found)


# Physical clusters and cells


@router.get(
    "/physical-clusters",
    operation_id="listPhysicalClusters",
    tags=["physical clusters"],
    response_model=Page[PhysicalShown],
)
async def list_physical(plane: Served, token: Caller, pages: Pages) -> Response:
    require(token, OperatorRole.VIEWER)
    return pages.entities(plane.registry, PhysicalCluster, PhysicalShown.of)


@router.get("/physical-clusters/{physical}", operation_id="getPhysicalCluster", tags=["physical clusters"])
async def get_physical(plane: Served, token: Caller, physical: Id, response: Response) -> PhysicalShown:
    require(token, OperatorRole.VIEWER)
    found = plane.registry.need(PhysicalCluster, physical)
    tag(response, found)
    return PhysicalShown.of(found)


@router.get("/cells", operation_id="listCells", tags=["physical clusters"], response_model=Page[CellShown])
async def list_cells(plane: Served, token: Caller, pages: Pages) -> Response:
    """With the load that placement goes by."""
    require(token, OperatorRole.VIEWER)
    cells = sorted(_cells(plane), key=_cell_key)
    return pages.page(lambda after: (c for c in cells if _cell_key(c) > after), lambda c: c, _cell_key)


def _cell_key(cell: CellShown) -> str:
    """A cell's id is its own within its physical cluster only."""
    return load_key(cell.physical_cluster, cell.id)


def _cells(plane: Plane) -> list[CellShown]:
    tenants: dict[str, int] = {}
    for cluster in plane.registry.all(LogicalCluster):
        key = load_key(cluster.cluster, cluster.cell)
        tenants[key] = tenants.get(key, 0) + 1
    return [
        CellShown(
            id=cell.id,
            physical_cluster=physical.id,
            brokers=list(cell.brokers),
            load=plane.loads.get(load_key(physical.id, cell.id), 0.0),
            clusters=tenants.get(load_key(physical.id, cell.id), 0),
            conditions=[ConditionShown.of(c) for c in physical.conditions if cell.id in c.cells],
        )
        for physical in plane.registry.all(PhysicalCluster)
        for cell in physical.cells
    ]


# Operators' tokens


@router.get("/tokens", operation_id="listTokens", tags=["tokens"], response_model=Page[TokenShown])
async def list_tokens(plane: Served, token: Caller, pages: Pages) -> Response:
    require(token, OperatorRole.ADMIN)
    return pages.entities(plane.registry, OperatorToken, TokenShown.of)


@router.post("/tokens", operation_id="createToken", status_code=201, tags=["tokens"])
async def create_token(call: Change, given: NewToken) -> TokenMade:
    """Its secret is in this answer and nowhere else."""
    call.may(None, OperatorRole.ADMIN)
    secret = _drawn(_SECRET_LETTERS, TOKEN_LENGTH)
    decided = await call.decide(
        lambda r, a: decisions.create_token(r, a, given.name, given.role, given.clusters, _sha256(secret)),
        OperatorToken,
    )
    made = decided.subject or call.registry.need(OperatorToken, given.name)
    assert isinstance(made, OperatorToken)
    return TokenMade(token=TokenShown.of(made), secret=None if decided.repeated else secret)


@router.delete("/tokens/{name}", operation_id="deleteToken", tags=["tokens"])
async def delete_token(call: Change, name: Id) -> Accepted:
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, a: decisions.delete_token(r, a, name), OperatorToken)
    return Accepted(operation=_operation(decided))
