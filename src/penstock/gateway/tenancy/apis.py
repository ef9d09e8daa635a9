"""What the gateway does with each API in each version: one table, as data.

The lists below state which APIs are served and how. The rest follows from the plans: an API whose messages
carry no name passes unchanged, one that carries names is rewritten. An API not listed here is refused, so a
new API of a new Kafka version stays closed until it has been reviewed.

`docs/gateway-apis.md` is generated from this by `python -m tools.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.wire.definitions import Versions, load
from penstock.wire.error_codes import Code
from penstock.wire.field_rules import Kind
from penstock.wire.plans import Direction, plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.wire.definitions import Definitions


class Treatment(StrEnum):
    SPLICED = "spliced"  # names are changed in passing
    REBUILT = "rebuilt"  # parsed, checked and encoded again
    PLATFORM = "platform"  # executed by the platform, from parsed values
    LOCAL = "local"
    DENIED = "denied"  # listed in ApiVersions, and refused with Kafka's own error
    REFUSED = "refused"  # not listed in ApiVersions


class Verdict(StrEnum):
    PASSED = "passed"
    REWRITTEN = "rewritten"
    PLATFORM = "executed by the platform"
    LOCAL = "answered by the gateway"
    REFUSED = "refused"


# Kinds of names that change on the way to the broker, and to the client.
_RENAMED_KINDS: Final = frozenset(
    (
        Kind.TOPIC,
        Kind.TOPIC_ID,
        Kind.GROUP,
        Kind.TRANSACTIONAL_ID,
        Kind.COORDINATOR_KEY,
        Kind.CONFIG_RESOURCE,
        Kind.SUBSCRIPTION,
        Kind.ASSIGNMENT,
        Kind.SESSION,
        Kind.TOPIC_REGEX,
    )
)
OUTWARD_KINDS: Final = _RENAMED_KINDS | {
    Kind.CONFIG_NAME, Kind.FETCH_BYTES, Kind.FOLLOWER, Kind.REPLICA_ID, Kind.SESSION_EPOCH,
    Kind.TRANSACTIONAL_ID_REGEX,
}  # fmt: skip
INWARD_KINDS: Final = _RENAMED_KINDS | {
    Kind.ENDPOINT, Kind.CLUSTER_ID, Kind.TEXT, Kind.CLIENT_HOST, Kind.THROTTLE
}  # fmt: skip
# A coordinator assigns the group's subscribed topics by id, whether or not this gateway has seen the ids. A
# member that received a masked id would wait for that topic forever; descriptions would show an invented one.
UNMASKED: Final = frozenset(
    ("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "ConsumerGroupDescribe", "ShareGroupDescribe")
)
# A tenant limited to some brokers is shown only those, so broker ids matter as well.
RESTRICTED_KINDS: Final = frozenset((Kind.BROKER_ID,))


@dataclass(frozen=True, slots=True, eq=False)  # rows of a table: two with the same values are still two
class RequestLimits:
    """What one request may have. Together they bound the time and memory it costs the gateway, and the size
    of the frame that leaves: each element grows by a prefix at most."""

    bytes_max: int
    elements_max: int  # of all arrays, nested ones too; each array and each tagged field counts as one more


_KIB: Final = 1024
PRODUCE: Final = RequestLimits(1 << 30, 5_000)  # in bytes, the limits of gateway and tenant apply
# What a client cannot split. A broker stores a group's members and offsets in one record, by default of 1 MiB
# at most.
CONSUMED: Final = RequestLimits(1024 * _KIB, 15_000)
MEMBERS: Final = RequestLimits(1024 * _KIB, 10_000)
SHARED: Final = RequestLimits(512 * _KIB, 5_000)
# Lists of an administrator, which can be split.
PARTITIONS: Final = RequestLimits(512 * _KIB, 10_000)
NAMES: Final = RequestLimits(512 * _KIB, 5_000)
CHANGES: Final = RequestLimits(256 * _KIB, 2_000)
ENTRIES: Final = RequestLimits(256 * _KIB, 1_000)
SINGLE: Final = RequestLimits(64 * _KIB, 200)

# An API is listed with its limits, so none can be read without.
_APIS: Final[Mapping[tuple[Treatment, RequestLimits], str]] = {
    (Treatment.SPLICED, PRODUCE): "Produce",
    (Treatment.SPLICED, CONSUMED): """
        Fetch ListOffsets OffsetForLeaderEpoch OffsetCommit OffsetFetch TxnOffsetCommit AddPartitionsToTxn
    """,
    (Treatment.SPLICED, MEMBERS): "JoinGroup SyncGroup ConsumerGroupHeartbeat ShareGroupHeartbeat",
    (Treatment.SPLICED, PARTITIONS): """
        DeleteRecords OffsetDelete DescribeProducers
        DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets
    """,
    (Treatment.SPLICED, NAMES): """
        DeleteTopics DescribeTopicPartitions FindCoordinator LeaveGroup DescribeGroups DeleteGroups
        ConsumerGroupDescribe ShareGroupDescribe ListTransactions DescribeTransactions
    """,
    (Treatment.SPLICED, SINGLE): "Heartbeat ListGroups InitProducerId AddOffsetsToTxn EndTxn",
    (Treatment.REBUILT, SHARED): "ShareFetch ShareAcknowledge",
    (Treatment.REBUILT, NAMES): "Metadata DescribeConfigs",
    (Treatment.REBUILT, PARTITIONS): "CreateTopics CreatePartitions",  # with replicas of each partition
    (Treatment.REBUILT, CHANGES): "AlterConfigs IncrementalAlterConfigs",
    (Treatment.REBUILT, SINGLE): "DescribeCluster",
    (Treatment.PLATFORM, PARTITIONS): "DescribeLogDirs",
    (Treatment.PLATFORM, ENTRIES): "CreateAcls DeleteAcls DescribeClientQuotas",
    (Treatment.PLATFORM, SINGLE): "DescribeAcls ListConfigResources",
    (Treatment.LOCAL, ENTRIES): "DescribeUserScramCredentials",
    (Treatment.LOCAL, SINGLE): """
        SaslHandshake ApiVersions SaslAuthenticate GetTelemetrySubscriptions PushTelemetry
    """,
}

# Kafka's topic tool lists the reassignments of all partitions that it describes, and ignores that it may not.
# A request that is too large would end it.
_REFUSED_LIMITS: Final[Mapping[str, RequestLimits]] = {"ListPartitionReassignments": PARTITIONS}

# Versions that are not served although Kafka defines them.
_NARROWED: Final[Mapping[str, tuple[Versions, str]]] = {
    "SaslHandshake": (Versions(1, 1), "version 0 sends the login outside Kafka's frames"),
    "AddPartitionsToTxn": (Versions(0, 3), "from version 4 on it is sent between brokers"),
}

_TOKENS: Final = ("API keys replace delegation tokens", Code.DELEGATION_TOKEN_AUTH_DISABLED)
_OPERATOR: Final = ("for operators of the physical cluster", Code.CLUSTER_AUTHORIZATION_FAILED)
_PLACEMENT: Final = ("the platform places partitions", Code.CLUSTER_AUTHORIZATION_FAILED)
_BROKERS: Final = ("sent between brokers and controllers", None)
UNREVIEWED: Final = "not reviewed yet"
# Why an API is refused, and the error Kafka itself returns without the right, or where the feature is
# disabled. APIs with an error are listed in ApiVersions, so clients report this very error; the others look
# like an older broker.
_REFUSED: Final[Mapping[str, tuple[str, Code | None]]] = {
    "WriteTxnMarkers": _BROKERS,
    "AlterReplicaLogDirs": _OPERATOR,
    "CreateDelegationToken": _TOKENS,
    "RenewDelegationToken": _TOKENS,
    "ExpireDelegationToken": _TOKENS,
    "DescribeDelegationToken": _TOKENS,
    "ElectLeaders": _OPERATOR,
    "AlterPartitionReassignments": _PLACEMENT,
    "ListPartitionReassignments": _PLACEMENT,
    "AlterClientQuotas": ("the platform sets quotas", Code.CLUSTER_AUTHORIZATION_FAILED),
    "AlterUserScramCredentials": ("API keys replace SCRAM users", Code.CLUSTER_AUTHORIZATION_FAILED),
    "DescribeQuorum": ("it exposes the controllers' addresses", Code.CLUSTER_AUTHORIZATION_FAILED),
    "UpdateFeatures": _OPERATOR,
    "UnregisterBroker": _OPERATOR,
    "InitializeShareGroupState": _BROKERS,
    "ReadShareGroupState": _BROKERS,
    "WriteShareGroupState": _BROKERS,
    "DeleteShareGroupState": _BROKERS,
    "ReadShareGroupStateSummary": _BROKERS,
    "StreamsGroupHeartbeat": ("the broker would create internal topics without placement", None),
    "StreamsGroupDescribe": ("streams groups are refused", None),
    "AddRaftVoter": _OPERATOR,
    "RemoveRaftVoter": _OPERATOR,
}
DENIALS: Final = {api: code for api, (_, code) in _REFUSED.items() if code is not None}
_TREATMENTS: Final = dict.fromkeys(DENIALS, Treatment.DENIED) | {
    api: treatment for (treatment, _), apis in _APIS.items() for api in apis.split()
}
_LIMITS: Final = {api: limits for (_, limits), apis in _APIS.items() for api in apis.split()}


@dataclass(frozen=True, slots=True)
class Row:
    key: int
    api: str
    version: int
    direction: Direction
    verdict: Verdict
    why: str  # the kinds of name rewritten, or the reason for refusal


def treatment(api: str, version: int) -> Treatment:
    narrowed = _NARROWED.get(api)
    if narrowed is not None and version not in narrowed[0]:
        return Treatment.REFUSED
    return _TREATMENTS.get(api, Treatment.REFUSED)


def request_limits(api: str, version: int) -> RequestLimits:
    """The limits of a request. One that is refused may still be read, to respond with its error."""
    refused = treatment(api, version) in (Treatment.DENIED, Treatment.REFUSED)
    return _REFUSED_LIMITS.get(api, SINGLE) if refused else _LIMITS[api]


def limited() -> dict[RequestLimits, list[str]]:
    """The APIs with each of the limits. Those that are refused have the last."""
    every: dict[RequestLimits, list[str]] = {}
    for (_, limits), names in sorted(_APIS.items(), key=lambda row: -row[0][1].elements_max):
        every.setdefault(limits, []).extend(names.split())
    return every


def reason(api: str, version: int) -> str:
    """Why a version of an API is refused."""
    narrowed = _NARROWED.get(api)
    if narrowed is not None and version not in narrowed[0]:
        return narrowed[1]
    return _REFUSED[api][0] if api in _REFUSED else UNREVIEWED


@cache
def served_versions(api: str) -> Versions | None:
    """The versions of an API that tenants may use; None if there are none."""
    known = load().request(api).valid_versions
    served = [version for version in known if treatment(api, version) is not Treatment.REFUSED]
    return Versions(served[0], served[-1]) if served else None


def renamed_kinds(api: str, direction: Direction) -> frozenset[Kind]:
    """The kinds of name that change in this API's messages."""
    kinds = OUTWARD_KINDS if direction is Direction.REQUEST else INWARD_KINDS
    return kinds - {Kind.TOPIC_ID} if api in UNMASKED else kinds


def verdict(api_key: int, api: str, version: int, direction: Direction) -> tuple[Verdict, str]:
    match treatment(api, version):
        case Treatment.REFUSED:
            return Verdict.REFUSED, reason(api, version)
        case Treatment.DENIED:
            return Verdict.REFUSED, f"{reason(api, version)}: {DENIALS[api].name}"
        case Treatment.LOCAL:
            return Verdict.LOCAL, ""
        case Treatment.PLATFORM:
            return Verdict.PLATFORM, "from parsed values, for owner accounts"
        case Treatment.REBUILT | Treatment.SPLICED:
            kinds = plan(api_key, version, direction).kinds & renamed_kinds(api, direction)
            if not kinds:
                return Verdict.PASSED, ""
            return Verdict.REWRITTEN, ", ".join(sorted(kinds)).replace("_", " ")


def table(definitions: Definitions) -> Iterator[Row]:
    """Every API that a broker serves to clients, by version, requests first."""
    for key, api in definitions.apis().items():
        if "broker" not in definitions.request(api).listeners:
            continue
        for direction in Direction:
            for version in definitions.message(api + direction.capitalize()).valid_versions:
                yield Row(key, api, version, direction, *verdict(key, api, version, direction))


# Versions listed in ApiVersions although calls to them are refused. librdkafka takes a missing Produce 0 to 2
# for missing compression (KAFKA-18659), and does not log in at all without SaslHandshake 0, although it then
# uses 1 (librdkafka 4983). Brokers list them, too.
_FIRST_REPORTED: Final = {"Produce": 0, "SaslHandshake": 0}
# Brokers list these only with a metrics plugin; the gateway handles them itself.
_OFFERED_ALONE: Final = ("GetTelemetrySubscriptions", "PushTelemetry")


def offered(brokers: Mapping[str, Versions]) -> dict[str, Versions]:
    """The versions for ApiVersions: what both the broker and this table know, and what needs no broker."""
    offered_versions = {
        api: versions for api in _OFFERED_ALONE if (versions := served_versions(api)) is not None
    }
    for api, broker_versions in brokers.items():
        served = served_versions(api)
        if served is None:
            continue
        first, last = max(served.first, broker_versions.first), min(served.last, broker_versions.last)
        if api in _FIRST_REPORTED:
            first = min(first, max(_FIRST_REPORTED[api], broker_versions.first))
        if first <= last:
            offered_versions[api] = Versions(first, last)
    return offered_versions
