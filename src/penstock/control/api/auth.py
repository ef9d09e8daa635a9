"""Authentication and authorization of API calls: an operator token by its hash, and its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.api_keys import hashed
from penstock.model.entities import OperatorRole
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


def require(token: OperatorToken, needed: OperatorRole, cluster: str | None = None) -> None:
    """`cluster`: the logical cluster of the call; a confined token may access no other."""
    if _RANK[token.role] < _RANK[needed]:
        raise RoleRefused(role=token.role, needed=needed)
    confined = token.role is OperatorRole.CLUSTER_ADMIN and token.clusters
    if confined and cluster is not None and cluster not in token.clusters:
        raise RoleRefused(role=f"{token.role} of {', '.join(token.clusters)}", needed=f"a right to {cluster}")
    if confined and cluster is None and needed is not OperatorRole.VIEWER:
        raise RoleRefused(role=f"{token.role} of {', '.join(token.clusters)}", needed=OperatorRole.ADMIN)
