"""Probes what a cluster allows the platform's user, without changing anything on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.fleet.adopted.capabilities import CLUSTER_ACTION, CapabilityRow, ClusterProbe, capability_table
from penstock.fleet.adopted.rights import TENANT_PREFIX, cluster_operations, cluster_rights, principal_of
from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.kafka import quorum
from penstock.kafka.admin import acls, brokers, configs, quotas, users
from penstock.kafka.admin.acls import Pattern, Permission, ResourceType
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.metrics_agents import identify
from penstock.kafka.security import Security
from penstock.model.errors import PenstockError, UnavailableError
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping, Sequence

    from penstock.kafka.admin.acls import Acl

_CONFIGS: Final = (
    "replica.selector.class", "remote.log.storage.system.enable", "broker.rack",
    "allow.everyone.if.no.acl.found",
)  # fmt: skip
EVERY_USER: Final = "User:*"
ACLS_SHOWN_MAX: Final = 3
CONTROLLERS_SECONDS_MAX: Final = 5.0  # to reach the controller listener
_TENANT_RESOURCES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


async def probe_capabilities(
    client: Client,
    cluster: brokers.Description,
    *,
    bootstrap: str,
    security: Security,
    metrics: Sequence[str] = (),
) -> tuple[CapabilityRow, ...]:
    """The capability table of a cluster, for the client's user.

    Raises while brokers cannot be reached, which shows nothing of what the cluster allows.
    """
    operations = await cluster_operations(client)
    rights = cluster_rights(operations)
    features = {key: feature.level for key, feature in (await brokers.features(client)).items()}
    acls_error, listed = await _acls(client)
    observed = ClusterProbe(
        operations=operations,
        features=features,
        racks={node.id: node.rack for node in cluster.brokers.values()},
        configs=await _broker_configs(client, min(cluster.brokers)),
        # With a name: Kafka 4.3 never responds to a user without rights who asks for all users.
        users_error=await _error(users.describe(client, [PLATFORM_USER])),
        scram_error=await _scram_error(security, cluster),
        acls_error=acls_error,
        open_acls=open_acls(listed),
        quotas_error=await _error(quotas.describe(client)),
        metrics_error=await _metrics_error(metrics, cluster.brokers.keys()),
        controllers_error=await _controllers_error(client, security),
        grant=rights[0].command(bootstrap, principal_of(security)) if rights else "",
    )
    return capability_table(observed)


def open_acls(listed: Sequence[Acl]) -> tuple[str, ...]:
    """ACLs that allow every user something on names of tenants; a few of them, in words."""
    shown = []
    for acl in listed:
        prefix = acl.resource_name if acl.pattern is Pattern.PREFIXED else None
        covers = acl.resource_name == "*" or (
            prefix is not None and (prefix.startswith(TENANT_PREFIX) or TENANT_PREFIX.startswith(prefix))
        )
        allows = acl.principal == EVERY_USER and acl.permission is Permission.ALLOW
        if allows and covers and acl.resource_type in _TENANT_RESOURCES:
            kind = acl.resource_type.name.lower().replace("_", "-")
            shown.append(f"{EVERY_USER} {acl.operation.name.capitalize()} on {kind} {acl.resource_name}")
    more = [f"{len(shown) - ACLS_SHOWN_MAX} more"] if len(shown) > ACLS_SHOWN_MAX else []
    return (*shown[:ACLS_SHOWN_MAX], *more)


async def _acls(client: Client) -> tuple[str | None, Sequence[Acl]]:
    try:
        return None, await acls.describe(client)
    except UnavailableError:
        raise
    except PenstockError as error:
        return error.message, ()


async def _scram_error(security: Security, cluster: brokers.Description) -> str | None:
    """Tenants' users log in with SCRAM on the listener that the platform's user connects to."""
    broker = cluster.brokers[min(cluster.brokers)]
    unauthenticated = Security(None, security.tls, security.server_name)
    try:
        async with await Connection.open(
            broker.address.host, broker.address.port, unauthenticated
        ) as connection:
            response = await connection.call("SaslHandshake", {"Mechanism": SCRAM_MECHANISM})
    except UnavailableError:
        raise
    except PenstockError as error:
        return error.message
    if response["ErrorCode"] == Code.NONE:
        return None
    enabled = ", ".join(response["Mechanisms"]) or "no SASL mechanism"
    return f"{broker.address.host}:{broker.address.port} offers {enabled}, not {SCRAM_MECHANISM}"


async def _broker_configs(client: Client, broker: int) -> Mapping[str, str | None]:
    resource = configs.broker(broker)
    entries = (await configs.describe(client, [resource], names=_CONFIGS))[resource]
    return {} if isinstance(entries, PenstockError) else {key: entry.value for key, entry in entries.items()}


async def _error(call: Awaitable[object]) -> str | None:
    try:
        await call
    except UnavailableError:
        raise
    except PenstockError as error:
        return error.message
    return None


async def _metrics_error(addresses: Sequence[str], ids: Collection[int]) -> str | None:
    if not addresses:
        return "no metrics address was given"
    try:
        _, unreachable = await identify(addresses, ids)
    except PenstockError as error:  # without metrics the cluster still works
        return error.message
    if unreachable:
        return unreachable[0].message
    if len(addresses) < len(ids):
        return f"metrics addresses were given for {len(addresses)} of {len(ids)} brokers"
    return None


async def _controllers_error(client: Client, security: Security) -> str | None:
    """Why the platform may not send a heartbeat in a broker's name to the controller; None if it may."""
    addresses: list[str] = []
    try:
        addresses = sorted(map(str, (await quorum.describe(client)).addresses.values()))
        if not addresses:
            return "the brokers do not name the addresses of the controllers (metadata.version is too low)"
        seconds = CONTROLLERS_SECONDS_MAX
        async with Client(addresses, security, controllers=True, open_seconds=seconds) as controllers:
            operations = await cluster_operations(controllers, controllers=True, timeout=seconds)
    except UnavailableError:
        if not addresses:
            raise
        # Not the address that was tried: another reason at each probe would look like a change.
        return f"the controller listener cannot be reached at {', '.join(addresses)}"
    except PenstockError as error:
        return f"the controller listener: {error.message}"
    return None if CLUSTER_ACTION in operations else "this user lacks the cluster right ClusterAction"
