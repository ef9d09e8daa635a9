"""Requests that are parsed, judged and built anew: of metadata, of new topics, of share sessions.

Each function takes what the client asked for and gives what the broker is asked instead, in the
broker's names. Topics that are refused here never reach the broker; their answers are put beside
those of the others by `merged`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.gateway.placement import PARTITIONS_MAX, Ask, fits
from penstock.gateway.tenancy import CONFIGS_ALLOWED, GROUP_CONFIG, TOPIC_CONFIG
from penstock.model.ids import KAFKA_NAME_LENGTH_MAX
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.gateway.config import Broker, Tenant
    from penstock.gateway.placement import Placement
    from penstock.gateway.topics import TopicIds
    from penstock.wire.frames import Request

NO_ID: Final = UUID(int=0)
REPLICAS_DEFAULT: Final = 3
PARTITIONS_DEFAULT: Final = 1
AUTO_CREATION_FIRST: Final = 4  # of Metadata; before, brokers decide


@dataclass(frozen=True, slots=True)
class Refused:
    name: str  # the tenant's
    code: int
    text: str

    @property
    def entry(self) -> dict[str, Any]:
        """As it stands in the list of an answer."""
        return {"Name": self.name, "ErrorCode": self.code, "ErrorMessage": self.text}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What goes to the broker (None if nothing is left to ask) and what was refused here."""

    request: Request | None
    refused: tuple[Refused, ...] = field(default=())

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [one.entry for one in self.refused]


def unknown_ids(request: Request, topics: TopicIds) -> list[UUID]:
    """Ids in a request that have to be looked up before it can be judged."""
    asked = request.body.get("Topics") or []
    ids = [topic["TopicId"] for topic in asked if topic.get("TopicId", NO_ID) != NO_ID]
    return [topic_id for topic_id in ids if topic_id.bytes not in topics.by_id]


def metadata(request: Request, prefix: str, topics: TopicIds) -> Request:
    """Own names, known ids, and no topic made in passing: those go past placement."""
    body = dict(request.body)
    asked = body.get("Topics")
    if asked is not None:
        body["Topics"] = [_metadata_topic(topic, prefix, topics) for topic in asked]
    if request.version >= AUTO_CREATION_FIRST:
        body["AllowAutoTopicCreation"] = False
    return replace(request, body=body)


def _metadata_topic(topic: Mapping[str, Any], prefix: str, topics: TopicIds) -> dict[str, Any]:
    changed = dict(topic)
    if topic.get("Name") is not None:
        changed["Name"] = prefix + topic["Name"]
    topic_id = topic.get("TopicId", NO_ID)
    if topic_id != NO_ID and topic_id.bytes not in topics.by_id:
        changed["TopicId"] = UUID(bytes=topics.masked(topic_id.bytes))
    return changed


def share(request: Request, prefix: str, topics: TopicIds) -> Request:
    """A share session's fetch. Its ids were looked up before: what a session begins with it never names
    again, and unlike a fetch session it cannot be told to begin anew without losing acknowledgements."""
    body = dict(request.body)
    if body["GroupId"] is not None:
        body["GroupId"] = prefix + body["GroupId"]
    for key in ("Topics", "ForgottenTopicsData"):
        if key in body:
            body[key] = [_share_topic(topic, topics) for topic in body[key]]
    return replace(request, body=body)


def _share_topic(topic: Mapping[str, Any], topics: TopicIds) -> dict[str, Any]:
    topic_id = topic["TopicId"].bytes
    known = topic_id in topics.by_id or topic["TopicId"] == NO_ID
    return {**topic, "TopicId": UUID(bytes=topic_id if known else topics.masked(topic_id))}


def create_topics(request: Request, tenant: Tenant, brokers: Sequence[Broker], place: Placement) -> Rebuilt:
    prefix = tenant.prefix.decode()
    kept, refused = [], []
    for topic in request.body["Topics"]:
        judged = _new_topic(topic, tenant, tuple(brokers), place)
        if isinstance(judged, Refused):
            refused.append(judged)
        else:
            kept.append({**judged, "Name": prefix + topic["Name"]})
    asked = replace(request, body={**request.body, "Topics": kept}) if kept else None
    return Rebuilt(asked, tuple(refused))


def _new_topic(
    topic: Mapping[str, Any], tenant: Tenant, brokers: tuple[Broker, ...], place: Placement
) -> dict[str, Any] | Refused:
    name = topic["Name"]
    if refusal := _bad_name(name, tenant) or _bad_configs(name, topic["Configs"]):
        return refusal
    chosen = topic["Assignments"]
    if chosen:
        if not fits([a["BrokerIds"] for a in chosen], brokers):
            return _misplaced(name)
        return {**topic}
    count = topic["NumPartitions"] if topic["NumPartitions"] != -1 else PARTITIONS_DEFAULT
    copies = topic["ReplicationFactor"]
    if copies == -1:
        copies = min(REPLICAS_DEFAULT, len(brokers))
    if not 0 < count <= PARTITIONS_MAX:
        return Refused(name, Code.INVALID_PARTITIONS, f"Partitions are 1 to {PARTITIONS_MAX}, not {count}.")
    placed = place(Ask(tenant.id, name, 0, count, copies, brokers))
    if placed is None:
        return Refused(
            name,
            Code.INVALID_REPLICATION_FACTOR,
            f"{copies} replicas, {len(brokers)} brokers to put them on.",
        )
    assignments = [{"PartitionIndex": n, "BrokerIds": list(ids)} for n, ids in enumerate(placed)]
    return {**topic, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": assignments}


def create_partitions(
    request: Request,
    tenant: Tenant,
    brokers: Sequence[Broker],
    place: Placement,
    present: Mapping[str, tuple[int, int]],
) -> Rebuilt:
    """`present` is what there is: partitions and replicas by the tenant's topic name."""
    prefix = tenant.prefix.decode()
    kept, refused = [], []
    for topic in request.body["Topics"]:
        name = topic["Name"]
        changed: dict[str, Any] = {**topic, "Name": prefix + name}
        count, copies = present.get(name, (0, 0))
        more = topic["Count"] - count
        given = topic["Assignments"]
        if given is not None:
            if not fits([a["BrokerIds"] for a in given], brokers):
                refused.append(_misplaced(name))
                continue
        elif count and 0 < more <= PARTITIONS_MAX:
            placed = place(Ask(tenant.id, name, count, more, copies, tuple(brokers)))
            if placed is None:
                refused.append(_misplaced(name))
                continue
            changed["Assignments"] = [{"BrokerIds": list(ids)} for ids in placed]
        elif more > PARTITIONS_MAX:
            text = f"At most {PARTITIONS_MAX} partitions at once."
            refused.append(Refused(name, Code.INVALID_PARTITIONS, text))
            continue
        kept.append(changed)  # what cannot be is the broker's to refuse, in its words
    asked = replace(request, body={**request.body, "Topics": kept}) if kept else None
    return Rebuilt(asked, tuple(refused))


def partitions_present(answer: Mapping[str, Any], prefix: str) -> dict[str, tuple[int, int]]:
    """Partitions and replicas by the tenant's topic name, from a Metadata answer."""
    found = {}
    for topic in answer["Topics"]:
        name = topic["Name"]
        if topic["ErrorCode"] == Code.NONE and name is not None and name.startswith(prefix):
            partitions = topic["Partitions"]
            found[name.removeprefix(prefix)] = (len(partitions), len(partitions[0]["ReplicaNodes"]))
    return found


def merged(answer: Mapping[str, Any] | None, key: str, here: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The broker's answer with the entries that were made here behind it; `key` names the list."""
    body: dict[str, Any] = dict(answer) if answer is not None else {"ThrottleTimeMs": 0, key: []}
    return {**body, key: [*body[key], *here]}


def describe_configs(request: Request, prefix: str) -> tuple[Request | None, list[Mapping[str, Any]]]:
    """What the broker is asked of topics and groups, and the resources that are none of its business."""
    kept, others = [], []
    for resource in request.body["Resources"]:
        if resource["ResourceType"] in (TOPIC_CONFIG, GROUP_CONFIG):
            kept.append({**resource, "ResourceName": prefix + resource["ResourceName"]})
        else:
            others.append(resource)
    asked = replace(request, body={**request.body, "Resources": kept}) if kept else None
    return asked, others


def _bad_name(name: str, tenant: Tenant) -> Refused | None:
    room = KAFKA_NAME_LENGTH_MAX - len(tenant.prefix)
    if len(name.encode()) > room:
        text = f"The topic name is {len(name)} characters long, at most {room} are allowed."
        return Refused(name, Code.INVALID_TOPIC_EXCEPTION, text)
    if not name or name in (".", "..") or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        return Refused(
            name, Code.INVALID_TOPIC_EXCEPTION, "A topic name is of letters, digits, '.', '_', '-'."
        )
    return None


def _bad_configs(name: str, configs: Sequence[Mapping[str, Any]]) -> Refused | None:
    for config in configs:
        if config["Name"].encode() not in CONFIGS_ALLOWED:
            return Refused(name, Code.INVALID_CONFIG, f"{config['Name']} is not a tenant's to set.")
    return None


def _misplaced(name: str) -> Refused:
    text = "Partitions lie on the brokers of this cluster, replicas in distinct zones."
    return Refused(name, Code.INVALID_REPLICA_ASSIGNMENT, text)
