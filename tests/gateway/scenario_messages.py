"""The messages of scenarios: their bodies from a few fields, and what is shown of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.wire.records import Record, write
from tests.gateway.wires import TENANT

if TYPE_CHECKING:
    from collections.abc import Iterator

Body = dict[str, Any]

UNKNOWN_TOPIC = 3
MASK = (1 << 128) - 1  # of unknown topic ids
VERSIONS = {  # where a line names none
    "ApiVersions": 0, "CreatePartitions": 3, "CreateTopics": 5, "DeleteTopics": 1, "DescribeAcls": 3,
    "Fetch": 12, "Heartbeat": 0, "ListGroups": 3, "Metadata": 12, "Produce": 11, "SaslAuthenticate": 2,
    "SaslHandshake": 1, "DescribeConfigs": 4, "AlterConfigs": 2, "FindCoordinator": 3, "JoinGroup": 5,
    "ConsumerGroupDescribe": 1, "ShareGroupDescribe": 1, "IncrementalAlterConfigs": 1, "ShareFetch": 1,
    "PushTelemetry": 0,
}  # fmt: skip


def topic_id(name: str) -> UUID:
    """The id of a topic in scenarios; `~orders` is the masked id of `orders`."""
    plain = UUID(bytes=name.removeprefix("~").encode().ljust(16, b".")[:16])
    return UUID(int=plain.int ^ MASK) if name.startswith("~") else plain


def records(size: int) -> bytes:
    return write([Record(0, 0, None, bytes(size))])


def request_body(api: str, version: int, fields: Body) -> Body:  # noqa: C901 - one case for each API
    """The body of a request; fields without a meaning here are passed on by their name in Kafka."""
    topic = fields.pop("topic", "orders")
    repeated = int(fields.pop("repeated", "1"))
    body: Body
    row: Body
    named: Body
    match api:
        case "Produce":
            body = _produce(topic, version, fields)
        case "Fetch":
            named = {"TopicId": topic_id(topic)} if version >= 13 else {"Topic": topic}
            row = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
            session, epoch = int(fields.pop("session", "0")), int(fields.pop("epoch", "-1"))
            body = {"MaxWaitMs": 1, "MinBytes": 1, "MaxBytes": int(fields.pop("max", "1000000"))}
            body |= {"SessionId": session, "SessionEpoch": epoch}
            body["Topics"] = [{**named, "Partitions": [row]}]
        case "ShareFetch":
            body = {"GroupId": fields.pop("group", "g"), "MemberId": fields.pop("member", "m")}
            body |= {"ShareSessionEpoch": int(fields.pop("epoch", "0")), "MaxWaitMs": 1, "MinBytes": 1}
            body |= {"MaxBytes": 1000, "MaxRecords": 1, "BatchSize": 1, "ForgottenTopicsData": []}
            body["Topics"] = [{"TopicId": topic_id(topic), "Partitions": []}]
        case "Heartbeat":
            body = {"GroupId": fields.pop("group", "g"), "GenerationId": 1, "MemberId": "m"}
        case "JoinGroup":
            body = {"GroupId": fields.pop("group", "g"), "SessionTimeoutMs": 1, "MemberId": ""}
            body |= {"Protocols": [], "ProtocolType": "consumer"}
        case "Metadata":
            by_id = fields.pop("by", "name") == "id"
            named = {"TopicId": topic_id(topic), "Name": None} if by_id else {"Name": topic}
            body = {"Topics": [named], **({"AllowAutoTopicCreation": False} if version >= 4 else {})}
        case "CreateTopics":
            count = int(fields.pop("partitions", "1"))
            row = {"Name": topic, "NumPartitions": count, "ReplicationFactor": 1, "Assignments": []}
            body = {"Topics": [{**row, "Configs": []}], "TimeoutMs": 1, "ValidateOnly": False}
        case "CreatePartitions":
            count = int(fields.pop("partitions", "2"))
            body = {"Topics": [{"Name": topic, "Count": count, "Assignments": None}], "TimeoutMs": 1}
        case "DeleteTopics":
            body = {"TopicNames": [topic], "TimeoutMs": 1}
        case "SaslHandshake" | "SaslAuthenticate":
            mechanism = fields.pop("mechanism", "PLAIN")
            body = {"Mechanism": mechanism} if api == "SaslHandshake" else {"AuthBytes": b"\0key\0secret"}
        case "FindCoordinator":
            key = fields.pop("key", "g")
            body = {"KeyType": 0, **({"CoordinatorKeys": [key]} if version >= 4 else {"Key": key})}
        case "ConsumerGroupDescribe" | "ShareGroupDescribe":
            body = {"GroupIds": [fields.pop("group", "g")], "IncludeAuthorizedOperations": False}
        case "PushTelemetry":
            body = _push()
        case "DescribeAcls":
            body = {"ResourceTypeFilter": 1, "PatternTypeFilter": 1, "Operation": 1, "PermissionType": 1}
        case "DescribeConfigs" | "AlterConfigs" | "IncrementalAlterConfigs":
            body = {"Resources": _resources(api, topic, fields)}
        case _:
            body = {}
    lists = {name: value * repeated for name, value in body.items() if isinstance(value, list)}
    return body | lists | _typed(fields)


def _push() -> Body:
    """Client metrics for a subscription that does not exist."""
    body = {"ClientInstanceId": UUID(int=1), "SubscriptionId": 1, "CompressionType": 0}
    return body | {"Terminating": False, "Metrics": b""}


def _produce(topic: str, version: int, fields: Body) -> Body:
    rows = [{"Index": 0, "Records": records(int(fields.pop("bytes", "10")))}]
    named: Body = {"TopicId": topic_id(topic)} if version >= 13 else {"Name": topic}
    body: Body = {"TransactionalId": None, "Acks": int(fields.pop("acks", "1")), "TimeoutMs": 1}
    return body | {"TopicData": [{**named, "PartitionData": rows}]}


def _resources(api: str, topic: str, fields: Body) -> list[Body]:
    """Resources of a request about settings; that of the topic `refused` has one of the platform."""
    kind, refused = int(fields.pop("kind", "2")), fields.pop("refused", None)
    setting = fields.pop("config", "retention.ms")
    resources: list[Body] = []
    for name in fields.pop("topics", topic).split("+"):
        config: Body = {"Name": "follower.replication.throttled.replicas" if name == refused else setting}
        config |= {"Value": "1"} | ({"ConfigOperation": 0} if api == "IncrementalAlterConfigs" else {})
        keys = (
            {"ConfigurationKeys": None} if api == "DescribeConfigs" else {"Configs": [config] * bool(setting)}
        )
        resources.append({"ResourceType": kind, "ResourceName": name, **keys})
    return resources


def response_body(api: str, version: int, fields: Body) -> Body:
    topic, error = fields.pop("topic", "orders"), int(fields.pop("error", "0"))
    ours = TENANT.prefix.decode() + topic
    body: Body
    row: Body
    named: Body
    match api:
        case "Produce":
            row = {"Index": 0, "ErrorCode": error, "BaseOffset": int(fields.pop("offset", "5"))}
            row |= {"LogAppendTimeMs": -1, "LogStartOffset": 0, "RecordErrors": [], "ErrorMessage": None}
            named = {"TopicId": topic_id(topic)} if version >= 13 else {"Name": ours}
            body = {
                "Responses": [{**named, "PartitionResponses": [row]}],
                "ThrottleTimeMs": 0,
            }
        case "Fetch":
            row = {"PartitionIndex": 0, "ErrorCode": 0, "HighWatermark": 1, "AbortedTransactions": None}
            row["Records"] = records(int(fields.pop("bytes", "10")))
            named = {"TopicId": topic_id(topic)} if version >= 13 else {"Topic": ours}
            body = {"ErrorCode": error, "SessionId": int(fields.pop("session", "0")), "ThrottleTimeMs": 0}
            body["Responses"] = [{**named, "Partitions": [row]}]
        case "Metadata":
            nodes = [{"NodeId": 1, "Host": "10.1.2.3", "Port": 9092, "Rack": None}]
            partitions = _partitions(int(fields.pop("partitions", "1")))
            row = {"ErrorCode": error, "Name": ours, "TopicId": topic_id(topic), "Partitions": partitions}
            if error:
                name = ours if error == UNKNOWN_TOPIC and fields.pop("by", "name") == "name" else None
                row = {"ErrorCode": error, "Name": name, "TopicId": topic_id(topic), "Partitions": []}
            brokers = nodes if fields.pop("brokers", "1") != "0" else []
            body = {"Brokers": brokers, "ClusterId": "c", "ControllerId": 1, "Topics": [row]}
        case "CreateTopics":
            row = {"Name": ours, "ErrorCode": error, "ErrorMessage": None, "NumPartitions": 1}
            body = {"Topics": [{**row, "ReplicationFactor": 1, "Configs": [], "TopicId": topic_id(topic)}]}
        case "CreatePartitions":
            body = {"Results": [{"Name": ours, "ErrorCode": error, "ErrorMessage": None}]}
        case "DeleteTopics":
            body = {"Responses": [{"Name": ours, "ErrorCode": error}]}
        case "ListGroups":
            groups = [
                {"GroupId": name, "ProtocolType": ""} for name in fields.pop("groups", "").split("+") if name
            ]
            body = {"ErrorCode": error, "Groups": groups * int(fields.pop("repeated", "1"))}
        case "ConsumerGroupDescribe" | "ShareGroupDescribe":
            body = {"Groups": [_described_group(api, topic, error)]}
        case "FindCoordinator":
            body = {"ErrorCode": error, "NodeId": 1, "Host": "10.1.2.3", "Port": 9092}
        case "JoinGroup":
            body = {"ErrorCode": error, "GenerationId": 1, "ProtocolName": "", "Leader": "", "MemberId": "m"}
            body["Members"] = []
        case "DescribeConfigs":
            row = {"ErrorCode": error, "ErrorMessage": None, "ResourceType": 2, "ResourceName": ours}
            row["Configs"] = _settings(fields.pop("settings", ""))
            body = {"Results": [row]}
        case "AlterConfigs" | "IncrementalAlterConfigs":
            names = fields.pop("topics", topic).split("+")
            row = {"ErrorCode": error, "ErrorMessage": None, "ResourceType": 2}
            body = {"Responses": [{**row, "ResourceName": TENANT.prefix.decode() + name} for name in names]}
        case _:
            body = {"ErrorCode": error}
    return body | _typed(fields)


def _described_group(api: str, topic: str, error: int) -> Body:
    prefix = TENANT.prefix.decode()
    assigned = {"TopicId": topic_id(topic), "TopicName": prefix + topic, "Partitions": [0]}
    member: Body = {"MemberId": "m", "ClientId": "c", "ClientHost": "/10.1.2.3", "MemberEpoch": 1}
    member |= {"SubscribedTopicNames": [], "Assignment": {"TopicPartitions": [assigned]}}
    if api == "ConsumerGroupDescribe":
        member |= {"TargetAssignment": {"TopicPartitions": [assigned]}, "MemberType": 1}
    group = {"ErrorCode": error, "GroupId": prefix + "g", "Members": [member], "GroupState": "Stable"}
    return group | {"GroupEpoch": 1, "AssignmentEpoch": 1, "AssignorName": "x"}


def _partitions(count: int) -> list[Body]:
    partition = {"ErrorCode": 0, "LeaderId": 1, "LeaderEpoch": 0, "ReplicaNodes": [1], "IsrNodes": [1]}
    return [{"PartitionIndex": n, **partition, "OfflineReplicas": []} for n in range(count)]


def _settings(names: str) -> list[Body]:
    """Settings of a topic, all set to 1."""
    entry = {"Value": "1", "ReadOnly": False, "ConfigSource": 1, "IsSensitive": False}
    entry |= {"Synonyms": [], "ConfigType": 2, "Documentation": None}
    return [{"Name": name, **entry} for name in names.split("+") if name]


def fact(body: Any, name: str) -> Any:
    """A value of a message by its short name: the first one found, in nested elements too."""
    fields = {
        "group": ("GroupId",), "topic": ("Name", "Topic", "ResourceName"), "error": ("ErrorCode",),
        "throttle": ("ThrottleTimeMs",), "max": ("MaxBytes",), "session": ("SessionId",), "key": ("Key",),
        "epoch": ("SessionEpoch", "ShareSessionEpoch"), "host": ("Host",), "topic_id": ("TopicId",),
        "topics": ("TopicNames",), "groups": ("Groups",), "names": ("ResourceName",), "configs": ("Name",),
        "operations": ("ConfigOperation",), "errors": ("ErrorCode",),
    }.get(name, (name,))  # fmt: skip
    values = list(_values(body, fields))
    if name == "groups":
        return values[0] and [group["GroupId"] for group in values[0]]
    if name in ("names", "configs", "operations", "errors"):
        return [str(value) for value in values]
    if name == "error":
        return next((value for value in values if value), 0)
    return values[0] if values else None


def _values(body: Any, fields: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(body, dict):
        yield from (value for key, value in body.items() if key in fields)
        for value in body.values():
            yield from _values(value, fields)
    elif isinstance(body, list):
        for value in body:
            yield from _values(value, fields)


def shown(value: Any) -> str:
    """A value as scenarios write it."""
    if isinstance(value, UUID):
        masked = value.bytes[0] >= 0x80
        plain = UUID(int=value.int ^ MASK) if masked else value
        return "~" * masked + plain.bytes.rstrip(b".").decode()
    if isinstance(value, list):
        return "+".join(value)
    return str(value)


def _typed(fields: Body) -> Body:
    """Fields that are passed on, numbers as such."""
    return {
        name: int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else value
        for name, value in fields.items()
    }
