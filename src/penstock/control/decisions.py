"""What each request to the control plane changes in the registry. Pure.

Every function takes the current registry and returns the changes to commit together: the entities, and
the operation that performs the effects outside the registry and is audited. Time, randomness and hashes
of secrets are passed in; ids are drawn here.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.control.capacity_units import ADOPTED_CAPACITY, TABLES, check_size
from penstock.control.cluster_placement import (
    adopted_cluster,
    cell_for,
    physical_for,
    require_capability,
)
from penstock.control.operations import STEPS
from penstock.control.registry import Change, Drop, Put, Registry
from penstock.fleet.adopted.capabilities import Capability
from penstock.model.entities import (
    ANYWHERE,
    GRANT_OPERATIONS,
    GRANT_PATTERNS,
    GRANT_RESOURCES,
    ApiKey,
    ClusterState,
    Entity,
    Grant,
    LogicalCluster,
    NetworkRule,
    Operation,
    OperationState,
    OperatorToken,
    PhysicalCluster,
    Role,
    ServiceAccount,
    Tenancy,
    Zones,
)
from penstock.model.errors.control import (
    EntityMissing,
    LimitReached,
    MoveNeedsLink,
    NameTaken,
    ProvisionerMissing,
    RequestInvalid,
    RequestReused,
    StateConflict,
    VersionConflict,
)
from penstock.model.events import Dimension
from penstock.model.ids import (
    ID_ALPHABET,
    LogicalClusterId,
    PhysicalClusterId,
    ServiceAccountId,
    new_logical_cluster_id,
    new_physical_cluster_id,
    new_service_account_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.model.entities import OperatorRole
    from penstock.model.ids import Choice

OPERATION_ID_LENGTH: Final = 10
ACCOUNTS_MAX: Final = 100  # of one logical cluster
KEYS_MAX: Final = 100  # of one logical cluster
GRANTS_MAX: Final = 200  # of one account
NETWORKS_MAX: Final = 100
UNITS_MAX: Final = 1_000
NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
NAME_RULE: Final = "use 1 to 63 of a-z, 0-9, dot, dash and underscore, with a letter or digit at both ends"
DEFAULT_ACCOUNT: Final = "owner"


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """Who makes the request, when, and with which idempotency key; plus the source of randomness."""

    actor: str
    now_ms: int
    choose: Choice
    request: str = ""
    fingerprint: str = ""
    loads: Mapping[str, float] = field(default_factory=dict)  # measured, by cell
    provisions: bool = True  # whether physical clusters can be provisioned
    reaches: Callable[[str], bool] = lambda _cluster: True  # whether a physical cluster is in the settings


@dataclass(frozen=True, slots=True)
class Decision:
    """Committed in one transaction. `subject` is what the caller is shown."""

    operation: Operation
    changes: tuple[Change, ...]
    subject: Entity | None
    before: Entity | None = None
    repeated: bool = False  # the request was decided before: nothing changes


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    name: str
    units: int = 1
    tenancy: Tenancy = Tenancy.SHARED
    zones: Zones = Zones.MULTI
    network: NetworkRule = ANYWHERE
    overrides: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    adopted: str = ""  # the adopted cluster to use; none: brokers are provisioned
    auto_create_topics: bool = False


def decided_before(registry: Registry, context: DecisionContext, kind: type[Entity]) -> Decision | None:
    """The decision on an earlier request with the same key; an error if that request was different."""
    operation = registry.operation_of(context.request) if context.request else None
    if operation is None:
        return None
    if operation.fingerprint != context.fingerprint:
        raise RequestReused
    return Decision(operation, (), registry.get(kind, operation.subject), repeated=True)


def create_cluster(registry: Registry, context: DecisionContext, request: ClusterRequest) -> Decision:
    _check_name(request.name, "name")
    _check_network(request.network)
    _check_overrides(request.overrides)
    # For a shared cluster, `check_size` below reports the size that would fit.
    if request.units < 1 or (request.tenancy is Tenancy.DEDICATED and request.units > UNITS_MAX):
        raise RequestInvalid(where="units", reason=f"{request.units} is not between 1 and {UNITS_MAX}")
    if (taken := registry.cluster_named(request.name)) is not None:
        raise NameTaken(kind="logical cluster", name=request.name, id=taken.id)
    existing = _adopted(registry, request, context.reaches)
    tenant = _unused(registry, LogicalCluster, lambda: new_logical_cluster_id(context.choose))
    changes: list[Change] = []
    if existing is not None:
        physical = existing
        check_size(request.units, TABLES[physical.capacity])
        cell = cell_for(registry, physical, request.units, context.loads, context.choose)
        if request.tenancy is Tenancy.DEDICATED:
            changes.append(Put(physical.changed(context.now_ms, tenancy=Tenancy.DEDICATED)))
    elif request.tenancy is Tenancy.DEDICATED:
        if not context.provisions:
            raise ProvisionerMissing(reason="it was started without a provisioner")
        physical = PhysicalCluster(
            id=_unused(registry, PhysicalCluster, lambda: new_physical_cluster_id(context.choose)),
            version=1,
            changed_ms=context.now_ms,
            name=request.name,
            provider="",  # set when it is provisioned
            tenancy=Tenancy.DEDICATED,
            adopted=request.adopted,
            capacity=ADOPTED_CAPACITY if request.adopted else "laptop",
        )
        changes.append(Put(physical))
        cell = ""
    else:
        physical = physical_for(registry, request.zones, context.reaches)
        check_size(request.units, TABLES[physical.capacity])
        cell = cell_for(registry, physical, request.units, context.loads, context.choose)
    cluster = LogicalCluster(
        id=tenant,
        version=1,
        changed_ms=context.now_ms,
        name=request.name,
        cluster=PhysicalClusterId(physical.id),
        cell=cell,
        units=request.units,
        tenancy=request.tenancy,
        zones=request.zones,
        network=request.network,
        overrides=dict(request.overrides),
        labels=dict(request.labels),
        auto_create_topics=request.auto_create_topics,
    )
    account = _account(registry, context, cluster.tenant, DEFAULT_ACCOUNT, Role.OWNER, ())
    operation = new_operation(registry, context, "cluster.create", cluster.id, cluster.tenant)
    return Decision(operation, (*changes, Put(cluster), Put(account), Put(operation)), cluster)


def update_cluster(
    registry: Registry,
    context: DecisionContext,
    cluster_id: str,
    expected: int | None,
    values: Mapping[str, object],
) -> Decision:
    """`values`: units, network, overrides, labels, name, auto_create_topics; missing ones stay unchanged."""
    before = registry.cluster(cluster_id)
    _check_version(before, expected)
    _check_quiet(registry, before)
    network = values.get("network")
    if isinstance(network, NetworkRule):
        _check_network(network)
    overrides = values.get("overrides")
    if isinstance(overrides, dict):
        _check_overrides(overrides)
    if "units" in values and before.tenancy is Tenancy.SHARED:
        units = int(str(values["units"]))
        check_size(units, TABLES[registry.need(PhysicalCluster, before.cluster).capacity])
    name = values.get("name", before.name)
    if name != before.name:
        _check_name(str(name), "name")
        if (taken := registry.cluster_named(str(name))) is not None:
            raise NameTaken(kind="logical cluster", name=name, id=taken.id)
    after = before.changed(context.now_ms, **values)
    operation = new_operation(registry, context, "cluster.update", after.id, after.tenant)
    return Decision(operation, (Put(after), Put(operation)), after, before)


def delete_cluster(
    registry: Registry, context: DecisionContext, cluster_id: str, expected: int | None
) -> Decision:
    before = registry.cluster(cluster_id)
    _check_version(before, expected)
    _check_quiet(registry, before)
    after = before.changed(context.now_ms, state=ClusterState.DELETING)
    operation = new_operation(registry, context, "cluster.delete", after.id, after.tenant)
    return Decision(operation, (Put(after), Put(operation)), after, before)


def move_cluster(registry: Registry, context: DecisionContext, cluster_id: str, cell: str | None) -> Decision:
    """To the given cell (`cell-2`, or `east/cell-2`), or to any other cell with room."""
    before = registry.cluster(cluster_id)
    _check_quiet(registry, before)
    physical = registry.need(PhysicalCluster, before.cluster)
    if cell is not None and "/" in cell:
        target, _, cell = cell.partition("/")
        _check_move(registry, before, physical, target)
    require_capability(physical, Capability.REASSIGNMENTS, "moving a tenant")
    if cell is None:
        others = replace(physical, cells=tuple(c for c in physical.cells if c.id != before.cell))
        if not others.cells:
            raise RequestInvalid(where="cell", reason=f"{physical.id} has no cell besides {before.cell}")
        cell = cell_for(registry, others, before.units, context.loads, context.choose)
    if physical.cell(cell) is None:
        raise EntityMissing(kind="cell", id=cell)
    if cell == before.cell:
        raise StateConflict(
            kind="logical cluster", id=before.id, state="ready", reason=f"it is in {cell} already"
        )
    after = before.changed(context.now_ms, cell=cell, moving_from=before.cell, state=ClusterState.MOVING)
    operation = new_operation(registry, context, "cluster.move", after.id, after.tenant)
    operation = replace(operation, arguments={"from": before.cell, "to": cell})
    return Decision(operation, (Put(after), Put(operation)), after, before)


def _check_move(registry: Registry, cluster: LogicalCluster, physical: PhysicalCluster, target: str) -> None:
    """Raises unless the target is the cluster's own physical cluster, by id or name."""
    if target in (physical.id, physical.name):
        return
    for other in registry.all(PhysicalCluster):
        if target in (other.id, other.name):
            raise MoveNeedsLink(id=cluster.id, source=physical.name, target=other.name)
    raise EntityMissing(kind="physical cluster", id=target)


def create_account(
    registry: Registry,
    context: DecisionContext,
    cluster_id: str,
    name: str,
    role: Role,
    grants: Sequence[Grant],
) -> Decision:
    cluster = _live(registry, cluster_id)
    _check_name(name, "name")
    _check_grants(grants)
    if role is not Role.OWNER:
        physical = registry.need(PhysicalCluster, cluster.cluster)
        require_capability(physical, Capability.ACLS, "a limited service account")
    accounts = registry.accounts(cluster.id)
    for other in accounts:
        if other.name == name:
            raise NameTaken(kind="service account", name=name, id=other.id)
    if len(accounts) >= ACCOUNTS_MAX:
        raise LimitReached(id=cluster.id, count=len(accounts), count_max=ACCOUNTS_MAX, what="accounts")
    account = _account(registry, context, cluster.tenant, name, role, tuple(grants))
    operation = new_operation(registry, context, "account.create", account.id, cluster.tenant)
    return Decision(operation, (Put(account), Put(operation)), account)


def update_account(
    registry: Registry,
    context: DecisionContext,
    account_id: str,
    expected: int | None,
    grants: Sequence[Grant],
) -> Decision:
    before = registry.need(ServiceAccount, account_id)
    _check_version(before, expected)
    _live(registry, before.tenant)
    _check_grants(grants)
    # Remembered until Kafka has deleted them: an unknown ACL would count as created by the tenant.
    revoked = tuple(dict.fromkeys(g for g in (*before.revoked, *before.grants) if g not in grants))
    after = before.changed(context.now_ms, grants=tuple(grants), revoked=revoked)
    operation = new_operation(registry, context, "account.update", after.id, after.tenant)
    return Decision(operation, (Put(after), Put(operation)), after, before)


def delete_account(
    registry: Registry, context: DecisionContext, account_id: str, expected: int | None
) -> Decision:
    """Deletes the account with its keys."""
    before = registry.need(ServiceAccount, account_id)
    _check_version(before, expected)
    _live(registry, before.tenant)
    keys = [key for key in registry.keys(before.tenant) if key.account == before.id]
    operation = new_operation(registry, context, "account.delete", before.id, before.tenant)
    return Decision(operation, (*map(Drop, keys), Drop(before), Put(operation)), None, before)


def create_key(
    registry: Registry,
    context: DecisionContext,
    cluster_id: str,
    account_id: str | None,
    key: str,
    sha256: str,
    text: str,
) -> Decision:
    """A key for an account; for the cluster's owner account if none is given."""
    cluster = _live(registry, cluster_id)
    account = _account_of(registry, cluster, account_id)
    new = _key(registry, context, cluster, account.account, key, sha256, text)
    operation = new_operation(registry, context, "key.create", new.id, cluster.tenant)
    return Decision(operation, (Put(new), Put(operation)), new)


def rotate_key(
    registry: Registry, context: DecisionContext, old_id: str, key: str, sha256: str, grace_ms: int
) -> Decision:
    """A new key beside the old one, which expires after the grace period."""
    old = registry.need(ApiKey, old_id)
    cluster = _live(registry, old.tenant)
    if old.replaced_by:
        raise StateConflict(
            kind="API key", id=old.id, state="replaced", reason=f"rotate {old.replaced_by} instead"
        )
    new = _key(registry, context, cluster, old.account, key, sha256, old.description)
    ending = old.changed(context.now_ms, replaced_by=new.id, expires_ms=context.now_ms + grace_ms)
    operation = new_operation(registry, context, "key.rotate", new.id, cluster.tenant)
    operation = replace(operation, arguments={"replaces": old.id, "grace_ms": grace_ms})
    return Decision(operation, (Put(new), Put(ending), Put(operation)), new, old)


def revoke_key(registry: Registry, context: DecisionContext, key_id: str, expected: int | None) -> Decision:
    before = registry.need(ApiKey, key_id)
    _check_version(before, expected)
    operation = new_operation(registry, context, "key.revoke", before.id, before.tenant)
    return Decision(operation, (Drop(before), Put(operation)), None, before)


def create_token(
    registry: Registry,
    context: DecisionContext,
    name: str,
    role: OperatorRole,
    clusters: Sequence[str],
    sha256: str,
) -> Decision:
    _check_name(name, "name")
    if registry.get(OperatorToken, name) is not None:
        raise NameTaken(kind="operator token", name=name, id=name)
    allowed = tuple(LogicalClusterId(registry.cluster(cluster).id) for cluster in clusters)
    token = OperatorToken(
        id=name,
        version=1,
        changed_ms=context.now_ms,
        name=name,
        role=role,
        secret_sha256=sha256,
        clusters=allowed,
    )
    operation = new_operation(registry, context, "token.create", token.id, None)
    return Decision(operation, (Put(token), Put(operation)), token)


def delete_token(registry: Registry, context: DecisionContext, name: str) -> Decision:
    before = registry.need(OperatorToken, name)
    operation = new_operation(registry, context, "token.delete", before.id, None)
    return Decision(operation, (Drop(before), Put(operation)), None, before)


# Shared parts


def change_plan(
    registry: Registry, context: DecisionContext, plan: str, action: str, arguments: Mapping[str, object]
) -> Decision:
    """Runs, cancels or paces a plan, which its own topic stores: the operation changes it there."""
    operation = new_operation(registry, context, action, plan, None)
    operation = replace(operation, arguments=dict(arguments))
    return Decision(operation, (Put(operation),), None)


def new_operation(
    registry: Registry, context: DecisionContext, action: str, subject: str, tenant: LogicalClusterId | None
) -> Operation:
    steps = STEPS[action]
    new = _unused(registry, Operation, lambda: "op-" + _letters(context.choose, OPERATION_ID_LENGTH))
    return Operation(
        id=new,
        version=1,
        changed_ms=context.now_ms,
        action=action,
        subject=subject,
        tenant=tenant,
        actor=context.actor,
        state=OperationState.RUNNING if steps else OperationState.DONE,
        steps_total=len(steps),
        step=str(steps[0]) if steps else "",
        request=context.request,
        fingerprint=context.fingerprint,
        created_ms=context.now_ms,
        ended_ms=None if steps else context.now_ms,
    )


def _account(
    registry: Registry,
    context: DecisionContext,
    tenant: LogicalClusterId,
    name: str,
    role: Role,
    grants: tuple[Grant, ...],
) -> ServiceAccount:
    new = _unused(registry, ServiceAccount, lambda: new_service_account_id(context.choose))
    return ServiceAccount(
        id=new, version=1, changed_ms=context.now_ms, tenant=tenant, name=name, role=role, grants=grants
    )


def _key(
    registry: Registry,
    context: DecisionContext,
    cluster: LogicalCluster,
    account: ServiceAccountId,
    key: str,
    sha256: str,
    description: str,
) -> ApiKey:
    if (count := len(registry.keys(cluster.id))) >= KEYS_MAX:
        raise LimitReached(id=cluster.id, count=count, count_max=KEYS_MAX, what="API keys")
    return ApiKey(
        id=key,
        version=1,
        changed_ms=context.now_ms,
        tenant=cluster.tenant,
        account=account,
        secret_sha256=sha256,
        description=description,
        created_ms=context.now_ms,
    )


def _account_of(registry: Registry, cluster: LogicalCluster, account: str | None) -> ServiceAccount:
    for one in registry.accounts(cluster.id):
        if account in (one.id, one.name) or (account is None and one.name == DEFAULT_ACCOUNT):
            return one
    raise EntityMissing(kind="service account", id=account or DEFAULT_ACCOUNT)


def _live(registry: Registry, cluster_id: str) -> LogicalCluster:
    cluster = registry.cluster(cluster_id)
    if cluster.state is ClusterState.DELETING:
        raise _conflict(cluster, "it is being deleted")
    return cluster


def _conflict(cluster: LogicalCluster, reason: str) -> StateConflict:
    return StateConflict(kind="logical cluster", id=cluster.id, state=cluster.state, reason=reason)


def _check_quiet(registry: Registry, cluster: LogicalCluster) -> None:
    """One operation at a time on the cluster itself; its keys and accounts may still change."""
    _live(registry, cluster.id)
    for operation in registry.running():
        if operation.subject == cluster.id:
            raise _conflict(cluster, f"{operation.action} is running as {operation.id}")


def _check_version(entity: Entity, expected: int | None) -> None:
    if expected is not None and entity.version != expected:
        raise VersionConflict(kind=entity.kind, id=entity.id, actual=entity.version, expected=expected)


def _adopted(
    registry: Registry, request: ClusterRequest, reaches: Callable[[str], bool]
) -> PhysicalCluster | None:
    """The registered cluster to use; None if brokers are provisioned, or a shared cluster is chosen."""
    if not request.adopted:
        return None
    if (physical := adopted_cluster(registry, request.adopted, request.tenancy, reaches)) is not None:
        return physical
    if request.tenancy is not Tenancy.DEDICATED:
        raise EntityMissing(kind="shared adopted cluster", id=request.adopted)
    for physical in registry.all(PhysicalCluster):
        if physical.adopted == request.adopted:
            raise StateConflict(
                kind="adopted cluster", id=request.adopted, state="in use", reason=f"{physical.id} uses it"
            )
    return None


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        raise RequestInvalid(where=where, reason=f"{name!r} is not a valid name: {NAME_RULE}")


def _check_network(rule: NetworkRule) -> None:
    for where, networks in (("network.allow", rule.allow), ("network.deny", rule.deny)):
        if len(networks) > NETWORKS_MAX:
            raise RequestInvalid(
                where=where, reason=f"{len(networks)} networks, at most {NETWORKS_MAX} are allowed"
            )
        for network in networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise RequestInvalid(where=where, reason=str(error)) from None


def _check_overrides(overrides: Mapping[str, float]) -> None:
    for name, value in overrides.items():
        if name not in list(Dimension):
            raise RequestInvalid(where="overrides", reason=f"{name!r} is not one of {', '.join(Dimension)}")
        if not 0 < value < 1e15:
            raise RequestInvalid(where=f"overrides.{name}", reason=f"{value!r} is not between 0 and 1e15")


def _check_grants(grants: Sequence[Grant]) -> None:
    if len(grants) > GRANTS_MAX:
        raise RequestInvalid(where="grants", reason=f"{len(grants)} grants, at most {GRANTS_MAX} are allowed")
    for grant in grants:
        for where, value, known in (
            ("resource", grant.resource, GRANT_RESOURCES),
            ("operation", grant.operation, GRANT_OPERATIONS),
            ("pattern", grant.pattern, GRANT_PATTERNS),
        ):
            if value not in known:
                reason = f"{value!r} is not one of {', '.join(sorted(known))}"
                raise RequestInvalid(where=f"grants.{where}", reason=reason)
        if not grant.name or len(grant.name) > 200:
            reason = f"{len(grant.name)} characters, 1 to 200 are allowed"
            raise RequestInvalid(where="grants.name", reason=reason)


def _unused(registry: Registry, kind: type[Entity], draw: Callable[[], str]) -> str:
    while True:
        new = draw()
        if registry.get(kind, new) is None:
            return new


def _letters(choose: Choice, length: int) -> str:
    return "".join(choose(ID_ALPHABET) for _ in range(length))
