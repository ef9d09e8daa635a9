"""What a tenant is shown of the physical cluster: its own part, and nothing of the machines.

Each function takes what Kafka said (or the tenant's configuration) and gives the body of an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.rebuild import PARTITIONS_DEFAULT, REPLICAS_DEFAULT
from penstock.kafka import quotas
from penstock.kafka.configs import ResourceKind
from penstock.model.events import Dimension
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Body = dict[str, Any]

RATE_OF: Final = {
    Dimension.INGRESS_BYTES: (quotas.PRODUCER_BYTES, 1.0),
    Dimension.EGRESS_BYTES: (quotas.CONSUMER_BYTES, 1.0),
    # Kafka counts request time in percent of one thread.
    Dimension.REQUEST_TIME_US: (quotas.REQUEST_PERCENTAGE, 100 / 1e6),
}
# What tools ask of brokers and what tells nothing of machines. The rest is the platform's.
BROKER_CONFIGS: Final = (
    "compression.type",
    "delete.topic.enable",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.min.session.timeout.ms",
    "log.cleanup.policy",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.ms",
    "log.segment.bytes",
    "message.max.bytes",
    "min.insync.replicas",
    "offsets.retention.minutes",
    "transaction.max.timeout.ms",
)
_STATIC: Final = 4  # the source of a config: the broker's own file
_STRING: Final = 2  # the type of a config


def log_dirs(answer: Mapping[str, Any], prefix: str, version: int) -> Body:
    """Sizes of own replicas. Paths are numbered, and of disks nothing is told: both are the machine's."""
    results = []
    for number, directory in enumerate(answer["Results"]):
        topics = [
            {**topic, "Name": topic["Name"].removeprefix(prefix)}
            for topic in directory["Topics"]
            if topic["Name"].startswith(prefix)
        ]
        results.append({"ErrorCode": directory["ErrorCode"], "LogDir": f"/{number}", "Topics": topics})
    body: Body = {"Results": results}
    return {**body, "ErrorCode": answer.get("ErrorCode", Code.NONE)} if version >= 3 else body


def config_resources(
    kinds: Sequence[int], topics: Iterable[str], groups: Iterable[str], brokers: Iterable[int], prefix: str
) -> Body:
    """Own topics, own groups that have settings, and the brokers one is shown."""
    found = [
        *((ResourceKind.TOPIC, name.removeprefix(prefix)) for name in topics if name.startswith(prefix)),
        *((ResourceKind.GROUP, name.removeprefix(prefix)) for name in groups if name.startswith(prefix)),
        *((ResourceKind.BROKER, str(broker)) for broker in brokers),
    ]
    resources = [{"ResourceName": name, "ResourceType": kind} for kind, name in found if kind in kinds]
    return {"ErrorCode": Code.NONE, "ConfigResources": resources}


def client_quotas(asked: Mapping[str, Any], quota: Mapping[Dimension, float]) -> Body:
    """The tenant's limits on this gateway, as those of any user that has none of its own."""
    values = [
        {"Key": RATE_OF[dimension][0], "Value": rate * RATE_OF[dimension][1]}
        for dimension, rate in quota.items()
        if dimension in RATE_OF
    ]
    entries = []
    if values and _finds_default_user(asked["Components"], strict=asked["Strict"]):
        entries = [{"Entity": [{"EntityType": quotas.USER, "EntityName": None}], "Values": values}]
    return {"ErrorCode": Code.NONE, "ErrorMessage": None, "Entries": entries}


def _finds_default_user(components: Sequence[Mapping[str, Any]], *, strict: bool) -> bool:
    if not components:
        return not strict
    fitting = (quotas.DEFAULT, quotas.ANY)
    return all(part["EntityType"] == quotas.USER and part["MatchType"] in fitting for part in components)


def broker_config(
    resource: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], brokers: int, version: int
) -> Body:
    """A broker's settings: some of its own, and what the gateway decides in its place. All read-only."""
    decided = {
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(min(REPLICAS_DEFAULT, brokers)),
        "num.partitions": str(PARTITIONS_DEFAULT),
    }
    found = {entry["Name"]: entry["Value"] for entry in entries if entry["Name"] in BROKER_CONFIGS}
    keys = resource["ConfigurationKeys"]
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
            for name, value in sorted((found | decided).items())
            if keys is None or name in keys
        ],
    }


def scram_users(users: Sequence[Mapping[str, Any]] | None) -> Body:
    """There are none: API keys take their place."""
    results = [
        {
            "User": user["Name"],
            "ErrorCode": Code.RESOURCE_NOT_FOUND,
            "ErrorMessage": "API keys take the place of SCRAM users.",
            "CredentialInfos": [],
        }
        for user in users or ()
    ]
    return {"ErrorCode": Code.NONE, "ErrorMessage": None, "Results": results}
