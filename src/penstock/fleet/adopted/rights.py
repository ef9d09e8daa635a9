"""The rights that the platform's Kafka user needs, checked one by one and without changing anything.

The broker reports which operations the user may do on the cluster. Topics are created with `validate only`
and coordinators are looked up, because Kafka checks rights first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.fleet.adopted.capabilities import ALTER, ALTER_CONFIGS, DESCRIBE, DESCRIBE_CONFIGS
from penstock.kafka.admin import topics
from penstock.kafka.client import CONTROLLER_ENDPOINTS
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.oauth import OAuthLogin
from penstock.model.errors.fleet import RightsMissing
from penstock.model.errors.wire import KafkaDenied
from penstock.model.key_names import CONTROL_GROUP, REGISTRY_TOPIC
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kafka.client import Client
    from penstock.kafka.security import Security

PLATFORM_PREFIX: Final = "_penstock."
TENANT_PREFIX: Final = "lkc-"
_PROBE: Final = "lkc-000000_rights"  # no tenant has this id
_CLUSTER_OPERATIONS: Final = {
    ALTER: "Alter", DESCRIBE: "Describe", DESCRIBE_CONFIGS: "DescribeConfigs", ALTER_CONFIGS: "AlterConfigs",
}  # fmt: skip
_REQUIRED: Final = frozenset(("Alter", "Describe"))  # without them no user or ACL can be changed
_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on a resource, in the words of `kafka-acls.sh`."""

    resource: str  # cluster, topic, group, transactional-id
    name: str  # a prefix; empty for the cluster
    operations: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{self.resource} {self.name}*" if self.name else self.resource
        return f"{'/'.join(self.operations)} on {where}"

    def command(self, bootstrap: str, principal: str) -> str:
        operations = " ".join(f"--operation {operation}" for operation in self.operations)
        named = (
            f"--{self.resource} {self.name} --resource-pattern-type prefixed" if self.name else "--cluster"
        )
        return (
            f"kafka-acls.sh --bootstrap-server {bootstrap} --command-config admin.properties --add "
            f"--allow-principal '{principal}' {operations} {named}"
        )


async def missing_rights(client: Client) -> list[Right]:
    missing = [*cluster_rights(await cluster_operations(client)), *await _topics(client)]
    return [*missing, *await _group(client), *await _transactional_id(client)]


async def require_rights(client: Client, name: str, bootstrap: str, security: Security) -> None:
    """Raises with every missing right and the commands that grant them.

    It does not raise if only rights are missing without which tenants can still be served: the capability
    table reports those.
    """
    missing = await missing_rights(client)
    if any(right.name or {*right.operations} & _REQUIRED for right in missing):
        principal = principal_of(security)
        raise RightsMissing(
            principal=principal,
            name=name,
            rights="; ".join(map(str, missing)),
            commands="\n".join(f"  {right.command(bootstrap, principal)}" for right in missing),
        )


def principal_of(security: Security) -> str:
    """The Kafka principal, as far as a client can know it."""
    login = security.login
    if login is None:
        return "User:ANONYMOUS" if security.tls is None else "User:<subject of the client certificate>"
    return f"User:{login.principal() if isinstance(login, OAuthLogin) else login.user}"


async def cluster_operations(
    client: Client, *, controllers: bool = False, timeout: float = CALL_SECONDS
) -> frozenset[int]:
    """What the user may do on the cluster, according to a broker or, on their client, a controller."""
    body: dict[str, object] = {"IncludeClusterAuthorizedOperations": True}
    if controllers:
        body["EndpointType"] = CONTROLLER_ENDPOINTS
    response = await client.call("DescribeCluster", body, timeout=timeout)
    bits = response["ClusterAuthorizedOperations"]
    return frozenset(code for code in range(_BITS) if bits >= 0 and bits >> code & 1)


def cluster_rights(allowed: Collection[int]) -> list[Right]:
    """The missing rights on the cluster."""
    missing = tuple(word for code, word in _CLUSTER_OPERATIONS.items() if code not in allowed)
    return [Right("cluster", "", missing)] if missing else []


async def _topics(client: Client) -> list[Right]:
    """Kafka checks rights before it looks whether the topic exists."""
    prefixes = {REGISTRY_TOPIC: PLATFORM_PREFIX, _PROBE: TENANT_PREFIX}
    new = [topics.NewTopic(topic, 1) for topic in prefixes]
    created = await topics.create(client, new, validate_only=True)
    described = await topics.describe(client, list(prefixes))
    return [
        Right("topic", prefix, ("All",))
        for topic, prefix in prefixes.items()
        if isinstance(created[topic], KafkaDenied) or isinstance(described[topic], KafkaDenied)
    ]


async def _group(client: Client) -> list[Right]:
    missing = []
    for group, prefix in ((CONTROL_GROUP, PLATFORM_PREFIX), (_PROBE, TENANT_PREFIX)):
        response = await client.call("FindCoordinator", _coordinator_body(group))
        coordinator = response["Coordinators"][0]
        if coordinator["ErrorCode"] == Code.GROUP_AUTHORIZATION_FAILED:
            missing.append(Right("group", prefix, ("All",)))
    return missing


async def _transactional_id(client: Client) -> list[Right]:
    response = await client.call("FindCoordinator", _coordinator_body(CONTROL_GROUP, kind=1))
    if response["Coordinators"][0]["ErrorCode"] != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return []
    return [Right("transactional-id", PLATFORM_PREFIX, ("Describe", "Write"))]


def _coordinator_body(key: str, *, kind: int = 0) -> dict[str, object]:
    return {"KeyType": kind, "CoordinatorKeys": [key]}
