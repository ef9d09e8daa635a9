"""Which fields of Kafka's protocol carry a name, and of what kind: the table behind the plans.

A *kind* is what a value names: a topic, a group, a broker's address, an error text. Every field that
could carry a name needs a rule, `PLAIN` if it carries none. Such fields are all strings, byte strings,
uuids and records, and those with an entity type in Kafka's definitions. A field without a rule could leak
another tenant's name, so `unruled` lists them and the build fails.

Rules are looked up by the end of a field's path, the longest rule first:

    "ListConfigResourcesResponse.ConfigResources.ResourceName"  exactly this field
    "Configs.Name"                                             `Name` inside any `Configs`
    entity type of the definition                              topicName, groupId, …
    "GroupId"                                                  any field of that name

`decided_by` lists the fields next to it (or around it) that decide what the value names, such as the type
of a config resource. Their values are passed along with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.wire.definitions import STRUCT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.wire.definitions import Definitions, Field, Message


class Kind(StrEnum):
    """The value is also the name of the method that renames it (see `names.Names`)."""

    PLAIN = "plain"  # not a name: forwarded unchanged
    TOPIC = "topic"
    TOPIC_ID = "topic_id"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"
    BROKER_ID = "broker_id"
    REPLICA_ID = "replica_id"  # of the client: −1, unless it acts as a broker
    FOLLOWER = "follower"  # set by followers only; clients leave the default
    ENDPOINT = "endpoint"  # broker id, host and port, one after the other
    HOST = "host"  # an address without a broker id
    PORT = "port"
    CLUSTER_ID = "cluster_id"
    TEXT = "text"  # an error message of the broker, which may quote any name
    COORDINATOR_KEY = "coordinator_key"
    CONFIG_RESOURCE = "config_resource"
    CONFIG_NAME = "config_name"
    ACL_RESOURCE = "acl_resource"
    PRINCIPAL = "principal"
    USER = "user"
    QUOTA_ENTITY = "quota_entity"
    TOPIC_REGEX = "topic_regex"
    TRANSACTIONAL_ID_REGEX = "transactional_id_regex"
    SUBSCRIPTION = "subscription"  # consumer protocol inside a byte string
    ASSIGNMENT = "assignment"
    CLIENT_HOST = "client_host"  # the address a client connects from; behind a gateway, the gateway's
    LOG_DIR = "log_dir"  # a path on a broker's disk
    ENVELOPE = "envelope"  # a whole request or response inside another
    TELEMETRY = "telemetry"  # a client's metrics, OTLP
    OPERATIONS = "operations"  # a bit set of authorized operations
    THROTTLE = "throttle"  # milliseconds
    ERROR = "error"  # error code
    SESSION = "session"  # fetch session id
    SESSION_EPOCH = "session_epoch"  # of a fetch session; follows its id
    FETCH_BYTES = "fetch_bytes"  # that a whole fetch may return
    RECORDS = "records"  # never rewritten, never buffered


@dataclass(frozen=True, slots=True)
class Rule:
    kind: Kind
    decided_by: tuple[str, ...] = ()


_ENTITIES: Final = {
    "topicName": Kind.TOPIC,
    "groupId": Kind.GROUP,
    "transactionalId": Kind.TRANSACTIONAL_ID,
    "brokerId": Kind.BROKER_ID,
    "producerId": Kind.PLAIN,  # a number assigned by the broker, useless without its epoch
}

_CONFIG_BY: Final = ("ResourceType",)
_ACL_BY: Final = ("ResourceType", "ResourcePatternType")
_ACL_FILTER_BY: Final = ("ResourceTypeFilter", "PatternTypeFilter")
_ACL_RESULT_BY: Final = ("ResourceType", "PatternType")

_KINDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.TOPIC: ("ConsumerProtocolSubscription.Topics",),
    Kind.TOPIC_ID: ("TopicId",),
    Kind.GROUP: ("GroupId",),
    Kind.BROKER_ID: (
        "LeaderId",
        "ReplicaId",
        "EndQuorumEpochRequest.Topics.Partitions.PreferredSuccessors",
        "ControllerRegistrationRequest.ControllerId",
        "AddRaftVoterRequest.VoterId",
        "RemoveRaftVoterRequest.VoterId",
        "UpdateRaftVoterRequest.VoterId",
    ),
    Kind.REPLICA_ID: (
        "FetchRequest.ReplicaId",
        "FetchRequest.ReplicaState.ReplicaId",
        "ListOffsetsRequest.ReplicaId",
        "OffsetForLeaderEpochRequest.ReplicaId",
        "FetchSnapshotRequest.ReplicaId",
    ),
    Kind.FOLLOWER: (
        "FetchRequest.ClusterId",
        "FetchRequest.ReplicaState.ReplicaEpoch",
        "FetchRequest.Topics.Partitions.ReplicaDirectoryId",
        "FetchRequest.Topics.Partitions.HighWatermark",
    ),
    Kind.HOST: ("Listeners.Host", "LeaderEndpoints.Host", "CurrentLeader.Host"),
    Kind.PORT: ("Listeners.Port", "LeaderEndpoints.Port", "CurrentLeader.Port"),
    Kind.CLUSTER_ID: ("ClusterId",),
    Kind.TEXT: ("ErrorMessage", "BatchIndexErrorMessage", "AcknowledgeErrorMessage", "StatusDetail"),
    Kind.CONFIG_NAME: ("Configs.Name", "ConfigurationKeys", "TopicConfigs.Key"),
    Kind.PRINCIPAL: (
        "Principal",
        "PrincipalFilter",
        "PrincipalName",
        "OwnerPrincipalName",
        "TokenRequesterPrincipalName",
    ),
    Kind.USER: (
        "User",
        "DescribeUserScramCredentialsRequest.Users.Name",
        "AlterUserScramCredentialsRequest.Deletions.Name",
        "AlterUserScramCredentialsRequest.Upsertions.Name",
    ),
    Kind.TOPIC_REGEX: ("SubscribedTopicRegex", "Subtopologies.SourceTopicRegex"),
    Kind.TRANSACTIONAL_ID_REGEX: ("TransactionalIdPattern",),
    Kind.CLIENT_HOST: ("ClientHost",),
    Kind.LOG_DIR: ("LogDir", "AlterReplicaLogDirsRequest.Dirs.Path"),
    Kind.ENVELOPE: (
        "EnvelopeRequest.RequestData",
        "EnvelopeRequest.RequestPrincipal",
        "EnvelopeRequest.ClientHostAddress",
        "EnvelopeResponse.ResponseData",
    ),
    Kind.TELEMETRY: ("PushTelemetryRequest.Metrics",),
    Kind.OPERATIONS: ("AuthorizedOperations", "ClusterAuthorizedOperations", "TopicAuthorizedOperations"),
    Kind.THROTTLE: ("ThrottleTimeMs",),
    Kind.ERROR: ("ErrorCode", "AcknowledgeErrorCode", "PartitionErrorCode"),
    Kind.SESSION: ("FetchRequest.SessionId", "FetchResponse.SessionId"),
    Kind.SESSION_EPOCH: ("FetchRequest.SessionEpoch",),
    Kind.FETCH_BYTES: ("FetchRequest.MaxBytes",),
    Kind.RECORDS: ("Records", "UnalignedRecords"),
    Kind.PLAIN: (
        # What a client reports about itself, and ids of group members: they are scoped by the group, whose
        # id is renamed.
        "ClientId",
        "ClientSoftwareName",
        "ClientSoftwareVersion",
        "MemberId",
        "JoinGroupResponse.Leader",
        "InstanceId",
        "GroupInstanceId",
        "ProcessId",
        "Reason",
        "CommittedMetadata",
        "OffsetFetchResponse.Topics.Partitions.Metadata",
        "OffsetFetchResponse.Groups.Topics.Partitions.Metadata",
        "ClientTags.Key",
        "ClientTags.Value",
        "UserEndpoint.Host",  # of the application, not of a broker
        "ClientInstanceId",
        # Values with a fixed meaning.
        "AssignorName",
        "ServerAssignor",
        "JoinGroupRequest.Protocols.Name",
        "ProtocolType",
        "ProtocolName",
        "ProtocolData",
        "GroupState",
        "GroupType",
        "StatesFilter",
        "TypesFilter",
        "StateFilters",
        "UnknownStateFilters",
        "TransactionState",
        "EntityType",
        "Ops.Key",
        "Values.Key",
        "PrincipalType",
        "OwnerPrincipalType",
        "TokenRequesterPrincipalType",
        "Mechanism",
        "Mechanisms",
        "Feature",
        "Features.Name",
        "SupportedFeatures.Name",
        "FinalizedFeatures.Name",
        "RequestedMetrics",
        "SubtopologyId",
        "Listeners.Name",
        "LeaderEndpoints.Name",
        "Rack",
        "RackId",
        # Values of configs and their documentation.
        "Configs.Value",
        "TopicConfigs.Value",
        "Synonyms.Name",
        "Synonyms.Value",
        "Documentation",
        # The host in an ACL is a client's.
        "CreateAclsRequest.Creations.Host",
        "DescribeAclsResponse.Resources.Acls.Host",
        "DeleteAclsResponse.FilterResults.MatchingAcls.Host",
        "HostFilter",
        # Secrets: never renamed, never logged.
        "AuthBytes",
        "TokenId",
        "Hmac",
        "Salt",
        "SaltedPassword",
        # A client's own bytes.
        "ConsumerProtocolSubscription.UserData",
        "ConsumerProtocolAssignment.UserData",
        # Directories and incarnations of brokers and voters.
        "Directories.Id",
        "IncarnationId",
        "LogDirs",
        "OfflineLogDirs",
        "CordonedLogDirs",
        "ReplicaDirectoryId",
        "VoterDirectoryId",
        "CandidateDirectoryId",
    ),
}

_RULES: Final[dict[str, Rule]] = {path: Rule(kind) for kind, paths in _KINDS.items() for path in paths} | {
    "FindCoordinatorRequest.Key": Rule(Kind.COORDINATOR_KEY, ("KeyType",)),
    "FindCoordinatorRequest.CoordinatorKeys": Rule(Kind.COORDINATOR_KEY, ("KeyType",)),
    # The response does not repeat the key type: `Names` gets None and has to remember it.
    "FindCoordinatorResponse.Coordinators.Key": Rule(Kind.COORDINATOR_KEY, ("KeyType",)),
    "Resources.ResourceName": Rule(Kind.CONFIG_RESOURCE, _CONFIG_BY),
    "Responses.ResourceName": Rule(Kind.CONFIG_RESOURCE, _CONFIG_BY),
    "Results.ResourceName": Rule(Kind.CONFIG_RESOURCE, _CONFIG_BY),
    "ConfigResources.ResourceName": Rule(Kind.CONFIG_RESOURCE, _CONFIG_BY),
    "CreateAclsRequest.Creations.ResourceName": Rule(Kind.ACL_RESOURCE, _ACL_BY),
    "ResourceNameFilter": Rule(Kind.ACL_RESOURCE, _ACL_FILTER_BY),
    "DescribeAclsResponse.Resources.ResourceName": Rule(Kind.ACL_RESOURCE, _ACL_RESULT_BY),
    "MatchingAcls.ResourceName": Rule(Kind.ACL_RESOURCE, _ACL_RESULT_BY),
    "EntityName": Rule(Kind.QUOTA_ENTITY, ("EntityType",)),
    "Components.Match": Rule(Kind.QUOTA_ENTITY, ("EntityType", "MatchType")),
    "JoinGroupRequest.Protocols.Metadata": Rule(Kind.SUBSCRIPTION, ("ProtocolType",)),
    "JoinGroupResponse.Members.Metadata": Rule(Kind.SUBSCRIPTION, ("ProtocolType",)),
    "Members.MemberMetadata": Rule(Kind.SUBSCRIPTION, ("ProtocolType",)),
    "SyncGroupRequest.Assignments.Assignment": Rule(Kind.ASSIGNMENT, ("ProtocolType",)),
    "SyncGroupResponse.Assignment": Rule(Kind.ASSIGNMENT, ("ProtocolType",)),
    "Members.MemberAssignment": Rule(Kind.ASSIGNMENT, ("ProtocolType",)),
}

_NAME_LIKE: Final = frozenset(("string", "bytes", "uuid", "records"))
_PLAIN: Final = Rule(Kind.PLAIN)
_ENDPOINT: Final = Rule(Kind.ENDPOINT)
_EMBEDDED: Final = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")


def rule_key(path: str) -> str | None:
    """The key of the most specific rule for this path."""
    parts = path.split(".")
    for start in range(len(parts)):
        key = ".".join(parts[start:])
        if key in _RULES:
            return key
    return None


def rule_of(path: str, field: Field) -> Rule | None:
    """The rule of the field at `path`; None if it needs one and has none."""
    key = rule_key(path)
    if field.entity_type is not None and (key is None or "." not in key):
        kind = _ENTITIES.get(field.entity_type)
        return Rule(kind) if kind is not None else None
    if key is not None:
        return _RULES[key]
    return None if field.kind in _NAME_LIKE else _PLAIN


def is_endpoint(fields: tuple[Field, ...]) -> bool:
    """Whether these three adjacent fields of a struct are a broker's id, host and port."""
    if len(fields) != 3:
        return False
    node, host, port = fields
    has_types = node.kind == "int32" and host.kind == "string" and port.kind in ("int32", "uint16")
    has_names = (host.name, port.name) == ("Host", "Port") and node.entity_type == "brokerId"
    return has_types and has_names and not (node.array or host.array or port.array)


def walk(message: Message) -> Iterator[tuple[str, Field, Rule | None]]:
    """Every field of a message that is not a struct, with its path and its rule."""
    yield from _walk(message.fields, message.name)


def _walk(fields: tuple[Field, ...], path: str) -> Iterator[tuple[str, Field, Rule | None]]:
    endpoint_fields_left = 0
    for index, field in enumerate(fields):
        here = f"{path}.{field.name}"
        if is_endpoint(fields[index : index + 3]):
            endpoint_fields_left = 3
        if endpoint_fields_left:
            endpoint_fields_left -= 1
            yield here, field, _ENDPOINT
        elif field.kind == STRUCT:
            yield from _walk(field.fields, here)
        else:
            yield here, field, rule_of(here, field)


def _messages(definitions: Definitions) -> Iterator[Message]:
    embedded = [name for name in _EMBEDDED if name in definitions.names()]
    names = [*definitions.names("request"), *definitions.names("response"), *embedded]
    for name in names:
        message = definitions.message(name)
        if message.valid_versions:
            yield message


def unruled(definitions: Definitions) -> list[str]:
    """Paths of fields that need a rule and have none."""
    return [path for message in _messages(definitions) for path, _, rule in walk(message) if rule is None]


def unused(definitions: Definitions) -> list[str]:
    """Rules that no field of these definitions uses."""
    used = {rule_key(path) for message in _messages(definitions) for path, _, _ in walk(message)}
    return sorted(set(_RULES) - used)
