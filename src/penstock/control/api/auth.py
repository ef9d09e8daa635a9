"""Authentication and authorization of API calls: an operator token by its hash, and its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.api_keys import hashed
from penstock.model.entities import LogicalCluster, OperatorRole
from penstock.model.errors.control import RoleRefused, TokenRefused

if TYPE_CHECKING:
    from penstock.control.registry import Registry
    from penstock.model.entities import OperatorToken

_RANK = {OperatorRole.VIEWER: 0, OperatorRole.CLUSTER_ADMIN: 1, OperatorRole.ADMIN: 2}


def token_of(registry: Registry, authorization: str | None) -> OperatorToken:
    scheme, _, secret = (authorization or "").partition(" ")
    token = None
    if scheme.lower() == "bearer" and secret:
        token = registry.token(hashed(secret.strip()))
    if token is None:
        raise TokenRefused
    return token


def require_role(token: OperatorToken, needed: OperatorRole) -> None:
    """For calls that show a confined token its clusters only; all others call `require`."""
    if _RANK[token.role] < _RANK[needed]:
        raise RoleRefused(role=token.role, needed=needed)


def require(token: OperatorToken, needed: OperatorRole, cluster: str | None = None) -> None:
    """`cluster`: the logical cluster of the call, None if it concerns the platform or a cluster's limits. A
    confined token may access its clusters only, whatever its role.
    """
    require_role(token, needed)
    if token.clusters and cluster not in token.clusters:
        right = "one that is not confined" if cluster is None else "a right to that logical cluster"
        raise RoleRefused(role=f"{token.role} of {', '.join(token.clusters)}", needed=right)


def cluster_for(
    registry: Registry, token: OperatorToken, needed: OperatorRole, name_or_id: str
) -> LogicalCluster:
    """A logical cluster that the token may access. A confined token cannot learn whether others exist."""
    cluster = registry.get(LogicalCluster, name_or_id) or registry.cluster_named(name_or_id)
    if cluster is not None or token.clusters:
        require(token, needed, "" if cluster is None else cluster.id)
    return registry.cluster(name_or_id)
