"""What the gateway does with each API in each version: the table, as data.

The hand-written part says which APIs are served and how; the rest follows from the plans: an API
whose messages carry no name passes, one that has names is rewritten. An API that is not named here
is refused: a new one in a new Kafka stays shut until somebody has looked at it.

`docs/gateway-apis.md` is made from this by `python -m tools.gateway_apis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.wire.codes import Code
from penstock.wire.definitions import Versions, load
from penstock.wire.plans import Direction, plan
from penstock.wire.rules import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.wire.definitions import Definitions


class Treatment(StrEnum):
    SPLICED = "spliced"  # names are changed in passing
    REBUILT = "rebuilt"  # parsed, judged, and built anew
    ERRAND = "errand"  # done by the platform, from parsed values
    HERE = "answered here"
    DENIED = "denied"  # offered, and refused with Kafka's own error
    REFUSED = "refused"  # not even offered


class Verdict(StrEnum):
    PASSED = "passed"
    REWRITTEN = "rewritten"
    ERRAND = "done by the platform"
    ANSWERED = "answered here"
    REFUSED = "refused"


# Kinds of names that are changed towards the broker, and towards the client.
OUTWARD_KINDS: Final = frozenset(
    (
        Kind.TOPIC,
        Kind.TOPIC_ID,
        Kind.GROUP,
        Kind.TRANSACTIONAL_ID,
        Kind.COORDINATOR_KEY,
        Kind.CONFIG_RESOURCE,
        Kind.CONFIG_NAME,
        Kind.SUBSCRIPTION,
        Kind.ASSIGNMENT,
        Kind.SESSION,
        Kind.SESSION_EPOCH,
        Kind.REPLICA_ID,
        Kind.TOPIC_REGEX,
        Kind.TRANSACTIONAL_ID_REGEX,
    )
)
INWARD_KINDS: Final = frozenset(
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
        Kind.ENDPOINT,
        Kind.CLUSTER_ID,
        Kind.TEXT,
        Kind.CLIENT_HOST,
        Kind.TOPIC_REGEX,
    )
)
# A coordinator gives a group the topics it has subscribed to, by id, whether this gateway has heard of
# them or not: a member that got another id in the place of one would wait for that topic for ever.
UNMASKED: Final = frozenset(("ConsumerGroupHeartbeat", "ShareGroupHeartbeat"))
# A tenant that lives on some of the brokers is shown those: then ids of brokers matter as well.
RESTRICTED_KINDS: Final = frozenset((Kind.BROKER_ID,))

_SPLICED: Final = (
    "Produce",
    "Fetch",
    "ListOffsets",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "TxnOffsetCommit",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "DeleteGroups",
    "OffsetDelete",
    "DescribeTopicPartitions",
    # KIP-848
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    # KIP-932
    "ShareGroupHeartbeat",
    "ShareGroupDescribe",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    # KIP-664
    "ListTransactions",
    "DescribeTransactions",
    "DescribeProducers",
)
_REBUILT: Final = (
    "Metadata",
    "CreateTopics",
    "CreatePartitions",
    "DescribeCluster",
    "DescribeConfigs",
    "ShareFetch",
    "ShareAcknowledge",
)
_ERRANDS: Final = (
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeLogDirs",
    "ListConfigResources",
    "DescribeClientQuotas",
)
_HERE: Final = (
    "SaslHandshake",
    "ApiVersions",
    "SaslAuthenticate",
    "DescribeUserScramCredentials",
    # KIP-714
    "GetTelemetrySubscriptions",
    "PushTelemetry",
)

# Versions that are not served although the definitions have them.
_NARROWED: Final[Mapping[str, tuple[Versions, str]]] = {
    "SaslHandshake": (Versions(1, 1), "before version 1 the login travels outside of Kafka's frames"),
    "AddPartitionsToTxn": (Versions(0, 3), "from version 4 on it is a call between brokers"),
}

_BROKERS: Final = "a call between brokers and controllers"
_OPERATOR: Final = "for operators of the physical cluster"
UNSEEN: Final = "nobody has looked at it yet"
_REASONS: Final[Mapping[str, str]] = {
    "WriteTxnMarkers": _BROKERS,
    "AlterReplicaLogDirs": _OPERATOR,
    "CreateDelegationToken": "API keys take the place of delegation tokens",
    "RenewDelegationToken": "API keys take the place of delegation tokens",
    "ExpireDelegationToken": "API keys take the place of delegation tokens",
    "DescribeDelegationToken": "API keys take the place of delegation tokens",
    "ElectLeaders": _OPERATOR,
    "AlterPartitionReassignments": "the platform places partitions",
    "ListPartitionReassignments": "the platform places partitions",
    "AlterClientQuotas": "the platform sets quotas",
    "AlterUserScramCredentials": "API keys take the place of SCRAM users",
    "DescribeQuorum": "shows the controllers' addresses",
    "UpdateFeatures": _OPERATOR,
    "UnregisterBroker": _OPERATOR,
    "InitializeShareGroupState": _BROKERS,
    "ReadShareGroupState": _BROKERS,
    "WriteShareGroupState": _BROKERS,
    "DeleteShareGroupState": _BROKERS,
    "ReadShareGroupStateSummary": _BROKERS,
    "StreamsGroupHeartbeat": "the broker would create its internal topics past placement",
    "StreamsGroupDescribe": "streams groups are refused",
    "AddRaftVoter": _OPERATOR,
    "RemoveRaftVoter": _OPERATOR,
}
# What Kafka itself answers to somebody without the right, or where the thing is switched off. These are
# offered, so that clients give their callers this very error; other refusals look like an older broker.
DENIALS: Final[Mapping[str, Code]] = {
    "AlterReplicaLogDirs": Code.CLUSTER_AUTHORIZATION_FAILED,
    "CreateDelegationToken": Code.DELEGATION_TOKEN_AUTH_DISABLED,
    "RenewDelegationToken": Code.DELEGATION_TOKEN_AUTH_DISABLED,
    "ExpireDelegationToken": Code.DELEGATION_TOKEN_AUTH_DISABLED,
    "DescribeDelegationToken": Code.DELEGATION_TOKEN_AUTH_DISABLED,
    "ElectLeaders": Code.CLUSTER_AUTHORIZATION_FAILED,
    "AlterPartitionReassignments": Code.CLUSTER_AUTHORIZATION_FAILED,
    "ListPartitionReassignments": Code.CLUSTER_AUTHORIZATION_FAILED,
    "AlterClientQuotas": Code.CLUSTER_AUTHORIZATION_FAILED,
    "AlterUserScramCredentials": Code.CLUSTER_AUTHORIZATION_FAILED,
    "DescribeQuorum": Code.CLUSTER_AUTHORIZATION_FAILED,
    "UpdateFeatures": Code.CLUSTER_AUTHORIZATION_FAILED,
    "UnregisterBroker": Code.CLUSTER_AUTHORIZATION_FAILED,
    "AddRaftVoter": Code.CLUSTER_AUTHORIZATION_FAILED,
    "RemoveRaftVoter": Code.CLUSTER_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Row:
    key: int
    api: str
    version: int
    direction: Direction
    verdict: Verdict
    why: str  # the kinds of name that are rewritten, or the reason of a refusal


def treatment(api: str, version: int) -> Treatment:
    narrowed = _NARROWED.get(api)
    if narrowed is not None and version not in narrowed[0]:
        return Treatment.REFUSED
    if api in _SPLICED:
        return Treatment.SPLICED
    if api in _REBUILT:
        return Treatment.REBUILT
    if api in _ERRANDS:
        return Treatment.ERRAND
    if api in DENIALS:
        return Treatment.DENIED
    return Treatment.HERE if api in _HERE else Treatment.REFUSED


def reason(api: str, version: int) -> str:
    """Why a version of an API is refused."""
    narrowed = _NARROWED.get(api)
    if narrowed is not None and version not in narrowed[0]:
        return narrowed[1]
    return _REASONS.get(api, UNSEEN)


@cache
def served_versions(api: str) -> Versions | None:
    """The versions of an API that tenants may use; None if there are none."""
    known = load().request(api).valid_versions
    served = [version for version in known if treatment(api, version) is not Treatment.REFUSED]
    return Versions(served[0], served[-1]) if served else None


def changed(api: str, direction: Direction) -> frozenset[Kind]:
    """The kinds of name that change in this API's messages, where they have them."""
    kinds = OUTWARD_KINDS if direction is Direction.REQUEST else INWARD_KINDS
    return kinds - {Kind.TOPIC_ID} if api in UNMASKED else kinds


def verdict(api_key: int, api: str, version: int, direction: Direction) -> tuple[Verdict, str]:
    match treatment(api, version):
        case Treatment.REFUSED:
            return Verdict.REFUSED, reason(api, version)
        case Treatment.DENIED:
            return Verdict.REFUSED, f"{reason(api, version)}: {DENIALS[api].name}"
        case Treatment.HERE:
            return Verdict.ANSWERED, ""
        case Treatment.ERRAND:
            return Verdict.ERRAND, "from parsed values, for accounts with all rights"
        case Treatment.REBUILT | Treatment.SPLICED:
            kinds = plan(api_key, version, direction).kinds & changed(api, direction)
            if not kinds:
                return Verdict.PASSED, ""
            return Verdict.REWRITTEN, ", ".join(sorted(kinds)).replace("_", " ")


def table(definitions: Definitions) -> Iterator[Row]:
    """Every API that a broker serves to clients, version by version, requests first."""
    for key, api in definitions.apis().items():
        if "broker" not in definitions.request(api).listeners:
            continue
        for direction in Direction:
            for version in definitions.message(api + direction.capitalize()).valid_versions:
                yield Row(key, api, version, direction, *verdict(key, api, version, direction))


# Older versions than are served, in the list all the same, and refused when somebody tries them.
# librdkafka takes the absence of Produce 0 to 2 for the absence of compression (KAFKA-18659), and does
# not log in at all where SaslHandshake 0 is missing, although it then uses 1 (librdkafka 4983). Brokers
# list them, too.
_FIRST_REPORTED: Final = {"Produce": 0, "SaslHandshake": 0}


# Brokers offer these only where somebody takes clients' metrics there; here the gateway does.
_OFFERED_ALONE: Final = ("GetTelemetrySubscriptions", "PushTelemetry")


def offered(brokers: Mapping[str, Versions]) -> dict[str, Versions]:
    """What ApiVersions answers: what the broker and this table both know, and what needs no broker."""
    found = {api: versions for api in _OFFERED_ALONE if (versions := served_versions(api)) is not None}
    for api, theirs in brokers.items():
        ours = served_versions(api)
        if ours is None:
            continue
        first, last = max(ours.first, theirs.first), min(ours.last, theirs.last)
        if api in _FIRST_REPORTED:
            first = min(first, max(_FIRST_REPORTED[api], theirs.first))
        if first <= last:
            found[api] = Versions(first, last)
    return found
