"""What may be asked of the control plane, and what each ask changes. Pure.

Every function takes the registry as it stands and returns the changes to be committed together:
the entities, the operation that carries out what lies outside, and what the audit log says. Time,
randomness and secrets' hashes come in; ids are drawn here.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.control.operations import STEPS
from penstock.control.placing import cell_for, physical_for
from penstock.control.registry import Change, Drop, Put, Registry
from penstock.control.units import ADOPTED_CAPACITY, TABLES, check_size
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
NAME_RULE: Final = "up to 63 small letters, digits, dots, dashes and underscores, no sign at its ends"
DEFAULT_ACCOUNT: Final = "owner"


@dataclass(frozen=True, slots=True)
class Ask:
    """Who asks, when, and under which idempotency key; and where chance comes from."""

    actor: str
    now_ms: int
    choose: Choice
    request: str = ""
    fingerprint: str = ""
    loads: Mapping[str, float] = field(default_factory=dict)  # by cell, as measured
    provisions: bool = True  # whether physical clusters can be made here


@dataclass(frozen=True, slots=True)
class Decided:
    """To be committed in one transaction. `subject` is what the caller is shown."""

    operation: Operation
    changes: tuple[Change, ...]
    subject: Entity | None
    before: Entity | None = None
    repeated: bool = False  # the same request was decided before: nothing changes


@dataclass(frozen=True, slots=True)
class ClusterAsk:
    name: str
    units: int = 1
    tenancy: Tenancy = Tenancy.SHARED
    zones: Zones = Zones.MULTI
    network: NetworkRule = ANYWHERE
    overrides: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    adopted: str = ""  # the adopted cluster that it is to have; none: brokers are made for it


def decided_before(registry: Registry, ask: Ask, kind: type[Entity]) -> Decided | None:
    """The answer to a request that was made before; an error if it asked for something else."""
    operation = registry.operation_of(ask.request) if ask.request else None
    if operation is None:
        return None
    if operation.fingerprint != ask.fingerprint:
        raise RequestReused
    return Decided(operation, (), registry.get(kind, operation.subject), repeated=True)


def create_cluster(registry: Registry, ask: Ask, wanted: ClusterAsk) -> Decided:
    _check_name(wanted.name, "name")
    _check_network(wanted.network)
    _check_overrides(wanted.overrides)
    # A shared one that is too large is told below what would fit.
    if wanted.units < 1 or (wanted.tenancy is Tenancy.DEDICATED and wanted.units > UNITS_MAX):
        raise RequestInvalid(where="units", reason=f"{wanted.units} is not between 1 and {UNITS_MAX}")
    if (taken := registry.cluster_named(wanted.name)) is not None:
        raise NameTaken(kind="logical cluster", name=wanted.name, id=taken.id)
    _check_adopted(registry, wanted)
    tenant = _unused(registry, LogicalCluster, lambda: new_logical_cluster_id(ask.choose))
    changes: list[Change] = []
    if wanted.tenancy is Tenancy.DEDICATED:
        if not ask.provisions:
            raise ProvisionerMissing(reason="it was started without a provisioner")
        physical = PhysicalCluster(
            id=_unused(registry, PhysicalCluster, lambda: new_physical_cluster_id(ask.choose)),
            version=1,
            changed_ms=ask.now_ms,
            name=wanted.name,
            provider="",  # whoever provisions it says
            tenancy=Tenancy.DEDICATED,
            adopted=wanted.adopted,
            capacity=ADOPTED_CAPACITY if wanted.adopted else "laptop",
        )
        changes.append(Put(physical))
        cell = ""
    else:
        physical = physical_for(registry, wanted.zones)
        check_size(wanted.units, TABLES[physical.capacity])
        cell = cell_for(physical, wanted.units, ask.loads, ask.choose)
    cluster = LogicalCluster(
        id=tenant,
        version=1,
        changed_ms=ask.now_ms,
        name=wanted.name,
        cluster=PhysicalClusterId(physical.id),
        cell=cell,
        units=wanted.units,
        tenancy=wanted.tenancy,
        zones=wanted.zones,
        network=wanted.network,
        overrides=dict(wanted.overrides),
        labels=dict(wanted.labels),
    )
    account = _account(registry, ask, cluster.tenant, DEFAULT_ACCOUNT, Role.OWNER, ())
    operation = new_operation(registry, ask, "cluster.create", cluster.id, cluster.tenant)
    return Decided(operation, (*changes, Put(cluster), Put(account), Put(operation)), cluster)


def update_cluster(
    registry: Registry, ask: Ask, cluster_id: str, expected: int | None, values: Mapping[str, object]
) -> Decided:
    """`values`: units, network, overrides, labels, name; what is not there stays."""
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
    after = before.changed(ask.now_ms, **values)
    operation = new_operation(registry, ask, "cluster.update", after.id, after.tenant)
    return Decided(operation, (Put(after), Put(operation)), after, before)


def delete_cluster(registry: Registry, ask: Ask, cluster_id: str, expected: int | None) -> Decided:
    before = registry.cluster(cluster_id)
    _check_version(before, expected)
    _check_quiet(registry, before)
    after = before.changed(ask.now_ms, state=ClusterState.DELETING)
    operation = new_operation(registry, ask, "cluster.delete", after.id, after.tenant)
    return Decided(operation, (Put(after), Put(operation)), after, before)


def move_cluster(registry: Registry, ask: Ask, cluster_id: str, cell: str | None) -> Decided:
    """To a named cell, or to wherever there is room besides where it is."""
    before = registry.cluster(cluster_id)
    _check_quiet(registry, before)
    physical = registry.need(PhysicalCluster, before.cluster)
    if cell is None:
        others = replace(physical, cells=tuple(c for c in physical.cells if c.id != before.cell))
        if not others.cells:
            raise RequestInvalid(where="cell", reason=f"{physical.id} has none besides {before.cell}")
        cell = cell_for(others, before.units, ask.loads, ask.choose)
    if physical.cell(cell) is None:
        raise EntityMissing(kind="cell", id=cell)
    if cell == before.cell:
        raise StateConflict(kind="logical cluster", id=before.id, state="there", reason=f"{cell} is its cell")
    after = before.changed(ask.now_ms, cell=cell, moving_from=before.cell, state=ClusterState.MOVING)
    operation = new_operation(registry, ask, "cluster.move", after.id, after.tenant)
    operation = replace(operation, given={"from": before.cell, "to": cell})
    return Decided(operation, (Put(after), Put(operation)), after, before)


def create_account(
    registry: Registry, ask: Ask, cluster_id: str, name: str, role: Role, grants: Sequence[Grant]
) -> Decided:
    cluster = _live(registry, cluster_id)
    _check_name(name, "name")
    _check_grants(grants)
    present = registry.accounts(cluster.id)
    for other in present:
        if other.name == name:
            raise NameTaken(kind="service account", name=name, id=other.id)
    if len(present) >= ACCOUNTS_MAX:
        raise LimitReached(id=cluster.id, count=len(present), count_max=ACCOUNTS_MAX, what="accounts")
    account = _account(registry, ask, cluster.tenant, name, role, tuple(grants))
    operation = new_operation(registry, ask, "account.create", account.id, cluster.tenant)
    return Decided(operation, (Put(account), Put(operation)), account)


def update_account(
    registry: Registry, ask: Ask, account_id: str, expected: int | None, grants: Sequence[Grant]
) -> Decided:
    before = registry.need(ServiceAccount, account_id)
    _check_version(before, expected)
    _live(registry, before.tenant)
    _check_grants(grants)
    # Until Kafka has let go of them: rules that nobody knows are the tenant's own, and are kept.
    revoked = tuple(dict.fromkeys(g for g in (*before.revoked, *before.grants) if g not in grants))
    after = before.changed(ask.now_ms, grants=tuple(grants), revoked=revoked)
    operation = new_operation(registry, ask, "account.update", after.id, after.tenant)
    return Decided(operation, (Put(after), Put(operation)), after, before)


def delete_account(registry: Registry, ask: Ask, account_id: str, expected: int | None) -> Decided:
    """Its keys go with it."""
    before = registry.need(ServiceAccount, account_id)
    _check_version(before, expected)
    _live(registry, before.tenant)
    keys = [key for key in registry.keys(before.tenant) if key.account == before.id]
    operation = new_operation(registry, ask, "account.delete", before.id, before.tenant)
    return Decided(operation, (*map(Drop, keys), Drop(before), Put(operation)), None, before)


def create_key(
    registry: Registry, ask: Ask, cluster_id: str, account_id: str | None, key: str, sha256: str, text: str
) -> Decided:
    """A key of an account; of the cluster's owner account if none is named."""
    cluster = _live(registry, cluster_id)
    account = _account_of(registry, cluster, account_id)
    made = _key(registry, ask, cluster, account.account, key, sha256, text)
    operation = new_operation(registry, ask, "key.create", made.id, cluster.tenant)
    return Decided(operation, (Put(made), Put(operation)), made)


def rotate_key(registry: Registry, ask: Ask, old_id: str, key: str, sha256: str, grace_ms: int) -> Decided:
    """A new key beside the old one, which ends when the grace is over."""
    old = registry.need(ApiKey, old_id)
    cluster = _live(registry, old.tenant)
    if old.replaced_by:
        raise StateConflict(
            kind="API key", id=old.id, state="replaced", reason=f"by {old.replaced_by}, which can be rotated"
        )
    made = _key(registry, ask, cluster, old.account, key, sha256, old.description)
    ending = old.changed(ask.now_ms, replaced_by=made.id, ends_ms=ask.now_ms + grace_ms)
    operation = new_operation(registry, ask, "key.rotate", made.id, cluster.tenant)
    operation = replace(operation, given={"replaces": old.id, "grace_ms": grace_ms})
    return Decided(operation, (Put(made), Put(ending), Put(operation)), made, old)


def revoke_key(registry: Registry, ask: Ask, key_id: str, expected: int | None) -> Decided:
    before = registry.need(ApiKey, key_id)
    _check_version(before, expected)
    operation = new_operation(registry, ask, "key.revoke", before.id, before.tenant)
    return Decided(operation, (Drop(before), Put(operation)), None, before)


def create_token(
    registry: Registry, ask: Ask, name: str, role: OperatorRole, clusters: Sequence[str], sha256: str
) -> Decided:
    _check_name(name, "name")
    if registry.get(OperatorToken, name) is not None:
        raise NameTaken(kind="operator token", name=name, id=name)
    held = tuple(LogicalClusterId(registry.cluster(cluster).id) for cluster in clusters)
    token = OperatorToken(
        id=name, version=1, changed_ms=ask.now_ms, name=name, role=role, secret_sha256=sha256, clusters=held
    )
    operation = new_operation(registry, ask, "token.create", token.id, None)
    return Decided(operation, (Put(token), Put(operation)), token)


def delete_token(registry: Registry, ask: Ask, name: str) -> Decided:
    before = registry.need(OperatorToken, name)
    operation = new_operation(registry, ask, "token.delete", before.id, None)
    return Decided(operation, (Drop(before), Put(operation)), None, before)


# What they share


def new_operation(
    registry: Registry, ask: Ask, action: str, subject: str, tenant: LogicalClusterId | None
) -> Operation:
    steps = STEPS[action]
    made = _unused(registry, Operation, lambda: "op-" + _letters(ask.choose, OPERATION_ID_LENGTH))
    return Operation(
        id=made,
        version=1,
        changed_ms=ask.now_ms,
        action=action,
        subject=subject,
        tenant=tenant,
        actor=ask.actor,
        state=OperationState.RUNNING if steps else OperationState.DONE,
        steps_total=len(steps),
        step=str(steps[0]) if steps else "",
        request=ask.request,
        fingerprint=ask.fingerprint,
        made_ms=ask.now_ms,
        ended_ms=None if steps else ask.now_ms,
    )


def _account(
    registry: Registry, ask: Ask, tenant: LogicalClusterId, name: str, role: Role, grants: tuple[Grant, ...]
) -> ServiceAccount:
    made = _unused(registry, ServiceAccount, lambda: new_service_account_id(ask.choose))
    return ServiceAccount(
        id=made, version=1, changed_ms=ask.now_ms, tenant=tenant, name=name, role=role, grants=grants
    )


def _key(
    registry: Registry,
    ask: Ask,
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
        changed_ms=ask.now_ms,
        tenant=cluster.tenant,
        account=account,
        secret_sha256=sha256,
        description=description,
        made_ms=ask.now_ms,
    )


def _account_of(registry: Registry, cluster: LogicalCluster, account: str | None) -> ServiceAccount:
    present = registry.accounts(cluster.id)
    for one in present:
        if account in (one.id, one.name) or (account is None and one.name == DEFAULT_ACCOUNT):
            return one
    raise EntityMissing(kind="service account", id=account or DEFAULT_ACCOUNT)


def _live(registry: Registry, cluster_id: str) -> LogicalCluster:
    cluster = registry.cluster(cluster_id)
    if cluster.state is ClusterState.DELETING:
        raise StateConflict(
            kind="logical cluster", id=cluster.id, state=cluster.state, reason="nothing is added to it"
        )
    return cluster


def _check_quiet(registry: Registry, cluster: LogicalCluster) -> None:
    """One thing at a time for the cluster itself; its keys and accounts may go on."""
    if cluster.state is ClusterState.DELETING:
        raise StateConflict(
            kind="logical cluster", id=cluster.id, state=cluster.state, reason="it will be gone soon"
        )
    for operation in registry.running():
        if operation.subject == cluster.id:
            raise StateConflict(
                kind="logical cluster",
                id=cluster.id,
                state=cluster.state,
                reason=f"{operation.action} is under way as {operation.id}",
            )


def _check_version(entity: Entity, expected: int | None) -> None:
    if expected is not None and entity.version != expected:
        raise VersionConflict(kind=entity.kind, id=entity.id, found=entity.version, expected=expected)


def _check_adopted(registry: Registry, wanted: ClusterAsk) -> None:
    if not wanted.adopted:
        return
    if wanted.tenancy is not Tenancy.DEDICATED:
        raise RequestInvalid(where="adopted", reason="only a dedicated cluster lives on an adopted one")
    for physical in registry.all(PhysicalCluster):
        if physical.adopted == wanted.adopted:
            raise StateConflict(
                kind="adopted cluster", id=wanted.adopted, state="taken", reason=f"{physical.id} is on it"
            )


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        raise RequestInvalid(
            where=where,
            reason=f"{name!r} is no name: {NAME_RULE}",
        )


def _check_network(rule: NetworkRule) -> None:
    for where, networks in (("network.allow", rule.allow), ("network.deny", rule.deny)):
        if len(networks) > NETWORKS_MAX:
            raise RequestInvalid(where=where, reason=f"{len(networks)} networks, at most {NETWORKS_MAX}")
        for network in networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise RequestInvalid(where=where, reason=str(error)) from None


def _check_overrides(overrides: Mapping[str, float]) -> None:
    for name, value in overrides.items():
        if name not in list(Dimension):
            raise RequestInvalid(where="overrides", reason=f"{name!r} is none of {', '.join(Dimension)}")
        if not 0 < value < 1e15:
            raise RequestInvalid(where=f"overrides.{name}", reason=f"{value!r} is not above zero")


def _check_grants(grants: Sequence[Grant]) -> None:
    if len(grants) > GRANTS_MAX:
        raise RequestInvalid(where="grants", reason=f"{len(grants)} grants, at most {GRANTS_MAX}")
    for grant in grants:
        for where, value, known in (
            ("resource", grant.resource, GRANT_RESOURCES),
            ("operation", grant.operation, GRANT_OPERATIONS),
            ("pattern", grant.pattern, GRANT_PATTERNS),
        ):
            if value not in known:
                raise RequestInvalid(
                    where=f"grants.{where}", reason=f"{value!r} is none of {', '.join(sorted(known))}"
                )
        if not grant.name or len(grant.name) > 200:
            raise RequestInvalid(where="grants.name", reason="1 to 200 characters are needed")


def _unused(registry: Registry, kind: type[Entity], draw: Callable[[], str]) -> str:
    while True:
        made = draw()
        if registry.get(kind, made) is None:
            return made


def _letters(choose: Choice, length: int) -> str:
    return "".join(choose(ID_ALPHABET) for _ in range(length))
