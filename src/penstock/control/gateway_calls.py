"""Executes for gateways what needs rights on the whole cluster, which their credentials do not give.

A gateway proves with its token that it holds the tenants' key of a cluster. It may act for the tenants of
that cluster, as the registry has them, and for no other; `PlatformClient` checks every name once more.
"""

from __future__ import annotations

import hmac
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.control.desired_state import tenant_state
from penstock.fleet.gateway_credentials import gateway_token, parse_gateway_token
from penstock.gateway.process.tenant_source import tenant_of
from penstock.gateway.tenancy.platform_client import PlatformClient
from penstock.gateway.tenancy.tenant_acls import ACLS_OF_ACCOUNT_MAX, ENTRIES_MAX
from penstock.kafka.admin.acls import acl_entry, acl_of
from penstock.model.entities import LogicalCluster
from penstock.model.errors.control import (
    GatewayCallRefused,
    GatewayCallsTooMany,
    RequestInvalid,
    TokenRefused,
)
from penstock.model.errors.plans import NameRefused
from penstock.model.ids import ServiceAccountId
from penstock.model.tenant_acls import AclEntry
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry
    from penstock.gateway.config import Tenant
    from penstock.kafka.admin.acls import Acl
    from penstock.model.errors import PenstockError

WAITING_MAX: Final = 64  # calls of one cluster's gateways, in progress or waiting
ACCOUNTS_MAX: Final = 500  # of one call
PARTITIONS_MAX: Final = 100_000

log = structlog.get_logger("penstock.control")


class GatewayCalls:
    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._platform: dict[str, PlatformClient] = {}
        self._waiting: dict[str, int] = {}

    def authenticate(self, token: str) -> tuple[str, str]:
        """The cluster and name of the gateway that sent a token."""
        named = parse_gateway_token(token)
        if named is None or not self._clusters.has(named[0]):
            raise TokenRefused
        cluster, gateway = named
        expected = gateway_token(cluster, gateway, self._clusters.get(cluster).key)
        if not hmac.compare_digest(expected.encode(), token.encode()):
            raise TokenRefused
        return cluster, gateway

    async def execute(
        self, registry: Registry, token: str, tenant: str, call: str, arguments: Mapping[str, Any]
    ) -> Any:
        cluster, gateway = self.authenticate(token)
        refused = GatewayCallRefused(
            gateway=gateway, cluster=cluster, reason=f"{tenant} is not one of its tenants"
        )
        logical = registry.get(LogicalCluster, tenant)
        state = tenant_state(registry, tenant) if logical is not None else None
        if logical is None or logical.cluster != cluster or state is None:
            raise refused
        if call not in _CALLS:
            raise RequestInvalid(where="call", reason=f"{call!r} is unknown")
        if self._waiting.get(cluster, 0) >= WAITING_MAX:
            raise GatewayCallsTooMany(cluster=cluster, waiting=WAITING_MAX)
        self._waiting[cluster] = self._waiting.get(cluster, 0) + 1
        try:
            result = await _CALLS[call](self._client(cluster), tenant_of(state), arguments)
        except (KeyError, TypeError, ValueError) as failure:
            raise RequestInvalid(
                where="arguments", reason=f"{type(failure).__name__}: {failure}"
            ) from failure
        except NameRefused as failure:
            reason = f"{failure.facts['path']} is not of {tenant}"
            log.warning("gateway call refused", cluster=cluster, gateway=gateway, tenant=tenant, call=call)
            raise GatewayCallRefused(gateway=gateway, cluster=cluster, reason=reason) from failure
        finally:
            self._waiting[cluster] -= 1
        if call in _CHANGES:
            log.info("gateway call executed", cluster=cluster, gateway=gateway, tenant=tenant, call=call)
        return result

    def _client(self, cluster: str) -> PlatformClient:
        if cluster not in self._platform:
            self._platform[cluster] = PlatformClient(self._clusters.client(cluster))
        return self._platform[cluster]


async def _acls_of(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    accounts = [ServiceAccountId(account) for account in _bounded(arguments["accounts"], ACCOUNTS_MAX)]
    own = [account for account in accounts if account in tenant.accounts]
    return [asdict(acl_entry(acl)) for acl in await platform.acls_of(tenant, own)]


async def _create_acls(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    bindings = _bindings(arguments)
    principals = {acl.principal for acl in bindings}
    accounts = [each for each in tenant.accounts if f"User:{tenant.user_of(each)}" in principals]
    present = {*await platform.acls_of(tenant, accounts), *bindings}
    for principal in principals:
        if sum(acl.principal == principal for acl in present) > ACLS_OF_ACCOUNT_MAX:
            raise RequestInvalid(where="acls", reason=f"an account has at most {ACLS_OF_ACCOUNT_MAX}")
    return _codes(bindings, await platform.create(tenant, bindings))


async def _delete_acls(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    bindings = _bindings(arguments)
    return _codes(bindings, await platform.delete(tenant, bindings))


async def _log_dirs(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    partitions = {str(name): [int(n) for n in numbers] for name, numbers in arguments["partitions"].items()}
    _bounded([n for numbers in partitions.values() for n in numbers], PARTITIONS_MAX)
    return await platform.log_dirs(tenant, int(arguments["broker"]), partitions)


async def _partitions_of(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    return await platform.partitions_of(int(arguments["broker"]), tenant)


async def _groups_with_configs(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    del arguments
    return await platform.groups_with_configs(tenant)


async def _broker_configs(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    names = [str(name) for name in arguments["names"]]
    return await platform.broker_configs(tenant, int(arguments["broker"]), names)


def _bindings(arguments: Mapping[str, Any]) -> list[Acl]:
    return [acl_of(AclEntry(**entry)) for entry in _bounded(arguments["acls"], ENTRIES_MAX)]


def _bounded(values: list[Any], at_most: int) -> list[Any]:
    if len(values) > at_most:
        raise ValueError(f"expected a list of at most {at_most}")
    return values


def _codes(bindings: list[Acl], outcomes: Mapping[Acl, PenstockError | None]) -> list[int | None]:
    """Kafka's error codes, in order. Its texts may name other tenants and are dropped."""
    codes: list[int | None] = []
    for failure in (outcomes[acl] for acl in bindings):
        code = None if failure is None else failure.facts.get("error_code")
        codes.append(
            None if failure is None else code if isinstance(code, int) else Code.UNKNOWN_SERVER_ERROR
        )
    return codes


_CALLS: Final[Mapping[str, Callable[[PlatformClient, Tenant, Mapping[str, Any]], Awaitable[Any]]]] = {
    "acls_of": _acls_of,
    "create_acls": _create_acls,
    "delete_acls": _delete_acls,
    "log_dirs": _log_dirs,
    "partitions_of": _partitions_of,
    "groups_with_configs": _groups_with_configs,
    "broker_configs": _broker_configs,
}
_CHANGES: Final = frozenset(("create_acls", "delete_acls"))
