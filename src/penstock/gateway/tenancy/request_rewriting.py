"""Requests that are parsed, checked and rebuilt: metadata, new topics and partitions, share sessions,
configs.

Each function takes a client's request and returns the one for the broker, in the broker's names. Topics
refused here never reach the broker; `merged` adds their entries to its response.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.balance.replica_placement import (
    PARTITIONS_MAX,
    REPLICAS_DEFAULT,
    PlacementRequest,
    fits,
)
from penstock.gateway.tenancy.tenant_configs import (
    TENANT_CONFIGS,
    config_refusal,
    may_conflict,
    tiering_refusal,
)
from penstock.gateway.tenancy.tenant_names import GROUP_CONFIG, TOPIC_CONFIG
from penstock.model.ids import KAFKA_NAME_LENGTH_MAX
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.balance.replica_placement import Placement
    from penstock.gateway.config import Broker, Tenant
    from penstock.gateway.tenancy.topic_ids import TopicIds
    from penstock.wire.frames import Request

    Body = Mapping[str, Any]

NO_ID: Final = UUID(int=0)
PARTITIONS_DEFAULT: Final = 1
AUTO_CREATION_FIRST: Final = 4  # of Metadata; before, the broker decides
# In one request: a topic takes ten microseconds to place, and a setting one to check. More elements are
# allowed for the replicas that a client assigns.
TOPICS_MAX: Final = 660
TOPIC_CONFIGS_MAX: Final = 2_000
INCREMENTAL: Final = "IncrementalAlterConfigs"
SET, DELETE = 0, 1  # its operations
_SET_HERE: Final = (1, 8)  # config sources: set on the topic, on the group


@dataclass(frozen=True, slots=True)
class Refused:
    """A topic refused by the gateway."""

    name: str  # the tenant's
    code: int
    text: str | None

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in a response."""
        return {"Name": self.name, "ErrorCode": self.code, "ErrorMessage": self.text}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The request for the broker (None if nothing is left), and the topics refused here."""

    request: Request | None
    refused: tuple[Refused, ...] = field(default=())

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [one.entry for one in self.refused]


def unknown_ids(request: Request, topics: TopicIds) -> list[UUID]:
    """Ids in a request that must be looked up before it can be checked."""
    requested = request.body.get("Topics") or []
    ids = [topic["TopicId"] for topic in requested if topic.get("TopicId", NO_ID).int]
    return [topic_id for topic_id in ids if topic_id.bytes not in topics.by_id]


def metadata(request: Request, prefix: str, topics: TopicIds) -> Request:
    """Prefix names, mask unknown ids, and never auto-create topics, which would bypass placement."""
    body = dict(request.body)
    requested = body.get("Topics")
    if requested is not None:
        body["Topics"] = [_metadata_topic(topic, prefix, topics) for topic in requested]
    if request.version >= AUTO_CREATION_FIRST:
        body["AllowAutoTopicCreation"] = False
    return replace(request, body=body)


def _metadata_topic(topic: Mapping[str, Any], prefix: str, topics: TopicIds) -> dict[str, Any]:
    changed = dict(topic)
    if topic.get("Name") is not None:
        changed["Name"] = prefix + topic["Name"]
    topic_id = topic.get("TopicId", NO_ID)
    if topic_id.int and topic_id.bytes not in topics.by_id:
        changed["TopicId"] = UUID(bytes=topics.masked(topic_id.bytes))
    return changed


def share(request: Request, prefix: str, topics: TopicIds) -> Request:
    """Rewrite a share session's fetch. Its ids were looked up before: a session names an id only once, and
    unlike a fetch session it cannot restart without losing acknowledgements.
    """
    body = dict(request.body)
    if body["GroupId"] is not None:
        body["GroupId"] = prefix + body["GroupId"]
    # Forgotten ids pass unchanged, deleted topics' too: they only remove topics from the client's session.
    requested = body["Topics"]
    if request.api == "ShareFetch":  # Kafka 4.3 fails a fetch that contains an unknown id, as a whole
        requested = [topic for topic in requested if _is_known(topic, topics)]
    body["Topics"] = [_share_topic(topic, topics) for topic in requested]
    return replace(request, body=body)


def _is_known(topic: Mapping[str, Any], topics: TopicIds) -> bool:
    return topic["TopicId"].bytes in topics.by_id or not topic["TopicId"].int


def _share_topic(topic: Mapping[str, Any], topics: TopicIds) -> dict[str, Any]:
    topic_id = topic["TopicId"].bytes
    return {**topic, "TopicId": UUID(bytes=topic_id if _is_known(topic, topics) else topics.masked(topic_id))}


def create_topics(request: Request, tenant: Tenant, brokers: Sequence[Broker], place: Placement) -> Rebuilt:
    prefix = tenant.prefix.decode()
    accepted, refused = [], []
    partitions_left, configs_left = PARTITIONS_MAX, TOPIC_CONFIGS_MAX
    for number, topic in enumerate(request.body["Topics"]):
        configs_left -= len(topic["Configs"])
        if number >= TOPICS_MAX or configs_left < 0:
            refused.append(_too_many_topics(topic["Name"]))
            continue
        placed = _new_topic(topic, tenant, tuple(brokers), place, partitions_left)
        if isinstance(placed, Refused):
            refused.append(placed)
        else:
            accepted.append({**placed, "Name": prefix + topic["Name"]})
            partitions_left -= len(placed["Assignments"])
    rebuilt = replace(request, body={**request.body, "Topics": accepted}) if accepted else None
    return Rebuilt(rebuilt, tuple(refused))


def _new_topic(
    topic: Mapping[str, Any], tenant: Tenant, brokers: tuple[Broker, ...], place: Placement, count_max: int
) -> dict[str, Any] | Refused:
    name = topic["Name"]
    if refusal := _bad_name(name, tenant) or _bad_configs(name, topic["Configs"]):
        return refusal
    if text := tiering_refusal({config["Name"]: config["Value"] for config in topic["Configs"]}):
        return Refused(name, Code.INVALID_CONFIG, text)
    assigned = topic["Assignments"]
    if len(assigned) > count_max:
        return _too_many_at_once(name, len(assigned))
    if assigned:
        if not _may_assign(assigned, tenant, brokers):
            return _misplaced(name)
        return {**topic}
    count = topic["NumPartitions"] if topic["NumPartitions"] != -1 else PARTITIONS_DEFAULT
    copies = topic["ReplicationFactor"]
    if copies == -1:
        copies = min(REPLICAS_DEFAULT, len(brokers))
    if not 0 < count <= count_max:
        return _too_many_at_once(name, count)
    placed = place(_placement(tenant, name, 0, count, copies, brokers))
    if placed is None:
        able = sum(broker.id not in tenant.cordoned for broker in brokers)
        text = f"{copies} replicas do not fit on {able} brokers."
        if able < len(brokers):
            text = f"{copies} replicas do not fit: {able} of {len(brokers)} brokers take new replicas now."
        return Refused(name, Code.INVALID_REPLICATION_FACTOR, text)
    assignments = [{"PartitionIndex": n, "BrokerIds": list(ids)} for n, ids in enumerate(placed)]
    return {**topic, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": assignments}


def create_partitions(
    request: Request,
    tenant: Tenant,
    brokers: Sequence[Broker],
    place: Placement,
    present: Mapping[str, tuple[int, int]],
) -> Rebuilt:
    """Place new partitions; `present` maps the tenant's topics to their partitions and replicas."""
    prefix = tenant.prefix.decode()
    accepted, refused = [], []
    partitions_left = PARTITIONS_MAX
    for number, topic in enumerate(request.body["Topics"]):
        name = topic["Name"]
        if number >= TOPICS_MAX:
            refused.append(_too_many_topics(name))
            continue
        changed: dict[str, Any] = {**topic, "Name": prefix + name}
        count, copies = present.get(name, (0, 0))
        more = topic["Count"] - count
        assigned = topic["Assignments"]
        added = max(more, len(assigned or ()), 0)
        if added > partitions_left:
            refused.append(_too_many_at_once(name, added))
            continue
        partitions_left -= added
        if assigned is not None:
            if not _may_assign(assigned, tenant, brokers):
                refused.append(_misplaced(name))
                continue
        elif count and more > 0:
            placed = place(_placement(tenant, name, count, more, copies, tuple(brokers)))
            if placed is None:
                refused.append(_misplaced(name))
                continue
            changed["Assignments"] = [{"BrokerIds": list(ids)} for ids in placed]
        accepted.append(changed)  # the broker refuses what is impossible, in its own words
    rebuilt = replace(request, body={**request.body, "Topics": accepted}) if accepted else None
    return Rebuilt(rebuilt, tuple(refused))


def _placement(
    tenant: Tenant, topic: str, first: int, count: int, replicas: int, brokers: tuple[Broker, ...]
) -> PlacementRequest:
    return PlacementRequest(
        tenant.id, topic, first, count, replicas, brokers, tenant.cordoned, tenant.demoted
    )


def _may_assign(assigned: Sequence[Body], tenant: Tenant, brokers: Sequence[Broker]) -> bool:
    """Whether a client's assignment is on the tenant's brokers that take new replicas."""
    able = [broker for broker in brokers if broker.id not in tenant.cordoned]
    return fits([one["BrokerIds"] for one in assigned], able, tenant.demoted)


def partitions_present(response: Mapping[str, Any], prefix: str) -> dict[str, tuple[int, int]]:
    """Partitions and replicas by the tenant's topic name, from a Metadata response."""
    present = {}
    for topic in response["Topics"]:
        name = topic["Name"]
        if topic["ErrorCode"] == Code.NONE and name is not None and name.startswith(prefix):
            partitions = topic["Partitions"]
            present[name.removeprefix(prefix)] = (len(partitions), len(partitions[0]["ReplicaNodes"]))
    return present


def merged(
    response: Mapping[str, Any] | None, key: str, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The broker's response with the gateway's entries appended to the list named `key`."""
    body: dict[str, Any] = dict(response) if response is not None else {"ThrottleTimeMs": 0, key: []}
    return {**body, key: [*body[key], *entries]}


def describe_configs(request: Request, prefix: str) -> tuple[Request | None, list[Mapping[str, Any]]]:
    """The request for topics and groups, and the resources the broker must not be asked about."""
    own, others = [], []
    for resource in request.body["Resources"]:
        if resource["ResourceType"] in (TOPIC_CONFIG, GROUP_CONFIG):
            own.append({**resource, "ResourceName": prefix + resource["ResourceName"]})
        else:
            others.append(resource)
    rebuilt = replace(request, body={**request.body, "Resources": own}) if own else None
    return rebuilt, others


def alter_configs(request: Request, tenant: Tenant) -> tuple[list[Body], list[Body]]:
    """The resources that may be passed on, in the broker's names, and the entries of those refused here.

    Kafka decides on each resource separately, and so does the gateway. `AlterConfigs` may repeat settings
    that a tenant cannot change; `replaced_configs` checks them.
    """
    prefix = tenant.prefix.decode()
    accepted: list[Body] = []
    refused: list[Body] = []
    for resource in request.body["Resources"]:
        refusal = _refused_resource(resource, tenant)
        if refusal is None and request.api == INCREMENTAL:
            refusal = _bad_configs(resource["ResourceName"], resource["Configs"])
        if refusal is None:
            accepted.append({**resource, "ResourceName": prefix + resource["ResourceName"]})
        else:
            refused.append(config_entry(resource, refusal))
    return accepted, refused


def needs_current(api: str, resources: Sequence[Body]) -> bool:
    """Whether a change depends on the settings that the resources have."""
    return api != INCREMENTAL or any(
        one["ResourceType"] == TOPIC_CONFIG and may_conflict(_set_values(one["Configs"])) for one in resources
    )


def changed_configs(api: str, resource: Body, current: Mapping[str, Any], prefix: str) -> Body:
    """The change of one resource as an incremental one, or the entry that refuses it."""
    change = merged_configs if api == INCREMENTAL else replaced_configs
    return change(resource, current, prefix)


def merged_configs(resource: Body, current: Mapping[str, Any], prefix: str) -> Body:
    """An incremental change of one resource as it is, or the entry that refuses it."""
    shown = {**resource, "ResourceName": resource["ResourceName"].removeprefix(prefix)}
    if current["ErrorCode"] != Code.NONE:
        return config_entry(shown, Refused("", current["ErrorCode"], None))
    removed = {c["Name"] for c in resource["Configs"] if c["ConfigOperation"] == DELETE}
    kept = {name: value for name, value in _set_here(current).items() if name not in removed}
    text = tiering_refusal({**kept, **_set_values(resource["Configs"])})
    return config_entry(shown, Refused("", Code.INVALID_CONFIG, text)) if text else resource


def _set_values(configs: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    return {c["Name"]: c["Value"] for c in configs if c.get("ConfigOperation", SET) == SET}


def _set_here(current: Mapping[str, Any]) -> dict[str, str | None]:
    return {c["Name"]: c["Value"] for c in current["Configs"] if c["ConfigSource"] in _SET_HERE}


def replaced_configs(resource: Body, current: Mapping[str, Any], prefix: str) -> Body:
    """`AlterConfigs` of one resource as incremental changes, or the entry that refuses it.

    The request replaces all settings that were set. Here it replaces those that a tenant may change: others,
    such as the platform's throttles, stay. A client that sends them back as they are changes nothing.
    """
    shown = {**resource, "ResourceName": resource["ResourceName"].removeprefix(prefix)}
    if current["ErrorCode"] != Code.NONE:
        return config_entry(shown, Refused("", current["ErrorCode"], None))
    present = _set_here(current)
    requested = [
        config
        for config in resource["Configs"]
        if config["Name"] in TENANT_CONFIGS or (config["Name"], config["Value"]) not in present.items()
    ]
    if refusal := _bad_configs("", requested):
        return config_entry(shown, refusal)
    if text := tiering_refusal(_set_values(requested)):
        return config_entry(shown, Refused("", Code.INVALID_CONFIG, text))
    names = {config["Name"] for config in requested}
    removed = [name for name in present if name in TENANT_CONFIGS and name not in names]
    changes = [{**config, "ConfigOperation": SET} for config in requested]
    changes += [{"Name": name, "ConfigOperation": DELETE, "Value": None} for name in removed]
    return {**resource, "Configs": changes}


def _refused_resource(resource: Body, tenant: Tenant) -> Refused | None:
    name = resource["ResourceName"]
    if resource["ResourceType"] not in (TOPIC_CONFIG, GROUP_CONFIG):
        text = "Tenants can change settings of topics and groups only."
        return Refused(name, Code.CLUSTER_AUTHORIZATION_FAILED, text)
    if resource["ResourceType"] == TOPIC_CONFIG and len(name.encode()) > _name_bytes_max(tenant):
        return _bad_name(name, tenant)
    return None


def config_entry(resource: Body, refusal: Refused) -> Body:
    """The entry of a refused resource in a response about settings."""
    return {
        "ErrorCode": refusal.code,
        "ErrorMessage": refusal.text,
        "ResourceType": resource["ResourceType"],
        "ResourceName": resource["ResourceName"],
    }


def _name_bytes_max(tenant: Tenant) -> int:
    return KAFKA_NAME_LENGTH_MAX - len(tenant.prefix)


def _bad_name(name: str, tenant: Tenant) -> Refused | None:
    length_max = _name_bytes_max(tenant)
    if len(name.encode()) > length_max:
        text = f"The topic name is {len(name)} characters long, at most {length_max} are allowed."
        return Refused(name, Code.INVALID_TOPIC_EXCEPTION, text)
    if not name or name in (".", "..") or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        return Refused(
            name, Code.INVALID_TOPIC_EXCEPTION, "A topic name consists of letters, digits, '.', '_' and '-'."
        )
    return None


def _bad_configs(name: str, configs: Sequence[Mapping[str, Any]]) -> Refused | None:
    for config in configs:
        text = config_refusal(config["Name"], config["Value"], config.get("ConfigOperation"))
        if text is not None:
            return Refused(name, Code.INVALID_CONFIG, text)
    return None


def _too_many_at_once(name: str, count: int) -> Refused:
    text = f"{count} partitions were requested; 1 to {PARTITIONS_MAX} are allowed in one request."
    return Refused(name, Code.INVALID_PARTITIONS, text)


def _too_many_topics(name: str) -> Refused:
    text = f"At most {TOPICS_MAX} topics with {TOPIC_CONFIGS_MAX} settings are allowed in one request."
    return Refused(name, Code.POLICY_VIOLATION, text)


def _misplaced(name: str) -> Refused:
    text = "Replicas must be on brokers of this cluster, in distinct zones."
    return Refused(name, Code.INVALID_REPLICA_ASSIGNMENT, text)
