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
from penstock.fleet.credentials.gateway_credentials import gateway_token, parse_gateway_token
from penstock.gateway.process.tenant_source import tenant_of
from penstock.gateway.tenancy.platform_client import PlatformClient
from penstock.gateway.tenancy.tenant_acls import ACLS_OF_ACCOUNT_MAX, ENTRIES_MAX
from penstock.kafka.admin.acls import acl_entry, acl_of
from penstock.model.entities import LogicalCluster, PhysicalCluster
from penstock.model.errors.control import (
    ClusterNotConnected,
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
    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

WAITING_MAX: Final = 64  # calls of one cluster's gateways, in progress or waiting
ACCOUNTS_MAX: Final = 500  # of one call
PARTITIONS_MAX: Final = 100_000
CONFIGS_MAX: Final = 1_000  # of one call
NUMBER_MAX: Final = 2**31 - 1  # Kafka's int32

log = structlog.get_logger("penstock.control")


class GatewayCalls:
    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._platform: dict[str, tuple[Client, PlatformClient]] = {}
        self._waiting: dict[str, int] = {}

    def authenticate(self, registry: Registry, token: str) -> tuple[str, str]:
        """The cluster and name of the gateway that sent a token."""
        named = parse_gateway_token(token)
        if named is None:
            raise TokenRefused
        cluster, gateway = named
        if not self._clusters.has(cluster):
            # Only the key of a connected cluster shows whether the token is right.
            raise (
                TokenRefused
                if registry.get(PhysicalCluster, cluster) is None
                else ClusterNotConnected(cluster=cluster)
            )
        expected = gateway_token(cluster, gateway, self._clusters.get(cluster).key)
        if not hmac.compare_digest(expected.encode(), token.encode()):
            raise TokenRefused
        return cluster, gateway

    async def execute(
        self, registry: Registry, token: str, tenant: str, call: str, arguments: Mapping[str, Any]
    ) -> Any:
        cluster, gateway = self.authenticate(registry, token)
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
        client = self._clusters.client(cluster)
        if cluster not in self._platform or self._platform[cluster][0] is not client:
            self._platform[cluster] = client, PlatformClient(client)
        return self._platform[cluster][1]


async def _acls_of(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    accounts = [ServiceAccountId(_text(each)) for each in _bounded(arguments["accounts"], ACCOUNTS_MAX)]
    own = [account for account in accounts if account in tenant.accounts]
    return [asdict(acl_entry(acl)) for acl in await platform.acls_of(tenant, own)]


async def _create_acls(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    bindings = _bindings(arguments)
    principals = {acl.principal for acl in bindings}
    accounts = [each for each in tenant.accounts if f"User:{tenant.user_of(each)}" in principals]
    async with platform.additions.of(tenant.id):
        present = {*await platform.acls_of(tenant, accounts), *bindings}
        for principal in principals:
            if sum(acl.principal == principal for acl in present) > ACLS_OF_ACCOUNT_MAX:
                raise RequestInvalid(where="acls", reason=f"an account has at most {ACLS_OF_ACCOUNT_MAX}")
        return _codes(bindings, await platform.create(tenant, bindings))


async def _delete_acls(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    bindings = _bindings(arguments)
    return _codes(bindings, await platform.delete(tenant, bindings))


async def _log_dirs(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    partitions = {
        name: [_number(each) for each in _bounded(numbers, PARTITIONS_MAX)]
        for name, numbers in dict(arguments["partitions"]).items()
    }
    _bounded([n for numbers in partitions.values() for n in numbers], PARTITIONS_MAX)
    return await platform.log_dirs(tenant, _number(arguments["broker"]), partitions)


async def _partitions_of(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    return await platform.partitions_of(_number(arguments["broker"]), tenant)


async def _groups_with_configs(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    del arguments
    return await platform.groups_with_configs(tenant)


async def _broker_configs(platform: PlatformClient, tenant: Tenant, arguments: Mapping[str, Any]) -> Any:
    names = [_text(name) for name in _bounded(arguments["names"], CONFIGS_MAX)]
    return await platform.broker_configs(tenant, _number(arguments["broker"]), names)


def _bindings(arguments: Mapping[str, Any]) -> list[Acl]:
    return [
        acl_of(AclEntry(**{key: _text(value) for key, value in dict(entry).items()}))
        for entry in _bounded(arguments["acls"], ENTRIES_MAX)
    ]


def _bounded(values: Any, at_most: int) -> list[Any]:
    if not isinstance(values, list) or len(values) > at_most:
        raise ValueError(f"expected a list of at most {at_most}")
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


def _number(value: Any) -> int:
    """Of a broker or a partition."""
    if not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"expected a number from 0 to {NUMBER_MAX}")
    return value


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
