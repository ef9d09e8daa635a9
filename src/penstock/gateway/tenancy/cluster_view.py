"""What a tenant is shown of the physical cluster: its part, and nothing about the machines.

Each function takes Kafka's response, or the tenant's configuration, and returns a response body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.balance.replica_placement import REPLICAS_DEFAULT
from penstock.gateway.tenancy.request_rewriting import PARTITIONS_DEFAULT
from penstock.gateway.tenancy.tenant_configs import SHOWN_BROKER_CONFIGS
from penstock.kafka.admin import quotas
from penstock.kafka.admin.configs import ResourceKind
from penstock.model.events import Dimension
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Body = dict[str, Any]

RATE_OF: Final = {
    Dimension.INGRESS_BYTES: (quotas.PRODUCER_BYTES, 1.0),
    Dimension.EGRESS_BYTES: (quotas.CONSUMER_BYTES, 1.0),
    # Kafka counts request time in percent of one thread.
    Dimension.REQUEST_TIME_US: (quotas.REQUEST_PERCENTAGE, 100 / 1e6),
}
_STATIC: Final = 4  # config source: the broker's properties file
_STRING: Final = 2  # config type


def log_dirs(response: Mapping[str, Any], prefix: str, version: int) -> Body:
    """Sizes of the tenant's replicas; paths are numbered and disk sizes left out."""
    results = []
    for number, directory in enumerate(response["Results"]):
        topics = [
            {**topic, "Name": topic["Name"].removeprefix(prefix)}
            for topic in directory["Topics"]
            if topic["Name"].startswith(prefix)
        ]
        results.append({"ErrorCode": directory["ErrorCode"], "LogDir": f"/{number}", "Topics": topics})
    body: Body = {"Results": results}
    return {**body, "ErrorCode": response.get("ErrorCode", Code.NONE)} if version >= 3 else body


def config_resources(
    kinds: Sequence[int], topics: Iterable[str], groups: Iterable[str], brokers: Iterable[int], prefix: str
) -> Body:
    """The tenant's topics, its groups with settings, and the brokers it is shown."""
    visible = [
        *((ResourceKind.TOPIC, name.removeprefix(prefix)) for name in topics if name.startswith(prefix)),
        *((ResourceKind.GROUP, name.removeprefix(prefix)) for name in groups if name.startswith(prefix)),
        *((ResourceKind.BROKER, str(broker)) for broker in brokers),
    ]
    resources = [{"ResourceName": name, "ResourceType": kind} for kind, name in visible if kind in kinds]
    return {"ErrorCode": Code.NONE, "ConfigResources": resources}


def client_quotas(request: Mapping[str, Any], quota: Mapping[Dimension, float]) -> Body:
    """The tenant's limits on this gateway, as the quota of the default user."""
    values = [
        {"Key": RATE_OF[dimension][0], "Value": rate * RATE_OF[dimension][1]}
        for dimension, rate in quota.items()
        if dimension in RATE_OF
    ]
    entries = []
    if values and _matches_default_user(request["Components"], strict=request["Strict"]):
        entries = [{"Entity": [{"EntityType": quotas.USER, "EntityName": None}], "Values": values}]
    return {"ErrorCode": Code.NONE, "ErrorMessage": None, "Entries": entries}


def _matches_default_user(components: Sequence[Mapping[str, Any]], *, strict: bool) -> bool:
    if not components:
        return not strict
    fitting = (quotas.DEFAULT, quotas.ANY)
    return all(
        component["EntityType"] == quotas.USER and component["MatchType"] in fitting
        for component in components
    )


def broker_config(
    resource: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    brokers: int,
    version: int,
    *,
    auto_create_topics: bool = False,
) -> Body:
    """A broker's settings: some as the broker has them, and those the gateway decides. All read-only."""
    decided = {
        "auto.create.topics.enable": str(auto_create_topics).lower(),
        "default.replication.factor": str(min(REPLICAS_DEFAULT, brokers)),
        "num.partitions": str(PARTITIONS_DEFAULT),
    }
    shown = {entry["Name"]: entry["Value"] for entry in entries if entry["Name"] in SHOWN_BROKER_CONFIGS}
    requested = resource["ConfigurationKeys"]
    keys = None if requested is None else frozenset(requested)
    return {
        "ErrorCode": Code.NONE,
        "ErrorMessage": None,
        "ResourceType": ResourceKind.BROKER,
        "ResourceName": resource["ResourceName"],
        "Configs": [
            {
                "Name": name,
                "Value": value,
                "ReadOnly": True,
                "ConfigSource": _STATIC,
                "IsSensitive": False,
                "Synonyms": [],
                **({"ConfigType": _STRING} if version >= 3 else {}),
            }
            for name, value in sorted((shown | decided).items())
            if keys is None or name in keys
        ],
    }


def scram_users(users: Sequence[Mapping[str, Any]] | None) -> Body:
    """No SCRAM users exist: API keys replace them."""
    results = [
        {
            "User": user["Name"],
            "ErrorCode": Code.RESOURCE_NOT_FOUND,
            "ErrorMessage": "API keys replace SCRAM users.",
            "CredentialInfos": [],
        }
        for user in users or ()
    ]
    return {"ErrorCode": Code.NONE, "ErrorMessage": None, "Results": results}
