"""Decide whether and when to send a request again. Pure: randomness is an argument.

A request is repeatable if sending it twice has the same effect as sending it once. Only a repeatable
request is sent again after it may have arrived (lost connection, timeout). Any request is sent again if
it certainly did not arrive, or if the broker rejected every item because it is not responsible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.backoff import Backoff
from penstock.model.errors.wire import (
    BrokerUnknown,
    BrokerUnreachable,
    CallTimedOut,
    ConnectionLost,
    KafkaBusy,
    KafkaMissing,
    TokenUnavailable,
)
from penstock.wire.error_codes import (
    MISSING,
    RETRIABLE,
    STALE_CONTROLLER,
    STALE_COORDINATOR,
    STALE_METADATA,
    Code,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BACKOFF: Final = Backoff(0.1, 1.0)
MISSING_ATTEMPTS_MAX: Final = 4  # metadata of a new topic takes a moment to spread

_READ_PREFIXES: Final = ("Describe", "List", "Find", "Get")
_READS: Final = frozenset(
    ("ApiVersions", "ConsumerGroupDescribe", "Fetch", "FetchSnapshot", "Metadata", "OffsetFetch",
     "OffsetForLeaderEpoch", "ShareGroupDescribe", "StreamsGroupDescribe")
)  # fmt: skip
_REPEATABLE: Final = frozenset(
    ("AlterClientQuotas", "AlterConfigs", "AlterPartitionReassignments", "AlterReplicaLogDirs",
     "AlterShareGroupOffsets", "AlterUserScramCredentials", "CreateAcls", "DeleteAcls", "DeleteRecords",
     "ElectLeaders", "IncrementalAlterConfigs", "OffsetCommit", "OffsetDelete")
)  # fmt: skip
# Brokers may delay these responses up to a timeout in the request.
_LONG_RUNNING: Final = frozenset(("DeleteRecords", "ElectLeaders", "Fetch", "FetchSnapshot"))
# Responses with one error code per partition, which the callers evaluate.
_EVALUATED_BY_CALLER: Final = frozenset(
    ("ApiVersions", "DeleteRecords", "DescribeProducers", "Fetch", "ListOffsets", "Metadata", "Produce",
     "WriteTxnMarkers")
)  # fmt: skip
# Retriable for Kafka, but final for us: a retry would get the same response.
_FINAL: Final = frozenset((Code.ELECTION_NOT_NEEDED, Code.PREFERRED_LEADER_NOT_AVAILABLE,
                           Code.ELIGIBLE_LEADERS_NOT_AVAILABLE))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Retry:
    after_seconds: float | None  # None: do not send it again, but do refresh what is doubtful
    refresh_cluster: bool = False  # fetch metadata first
    refresh_route: bool = False  # look up the leader, coordinator or controller again


def is_read(api: str) -> bool:
    return api in _READS or api.startswith(_READ_PREFIXES)


def is_repeatable(api: str) -> bool:
    return is_read(api) or api in _REPEATABLE


def can_retry_when_slow(api: str) -> bool:
    """Whether to try another node if the response is slow: repeatable, and normally fast."""
    return is_repeatable(api) and api not in _LONG_RUNNING


def backoff_seconds(attempt: int, chance: float) -> float:
    """Doubles with every attempt; `chance` (0 to 1) spreads callers apart."""
    return BACKOFF.seconds(attempt + 1) * (0.5 + 0.5 * chance)


def after_failure(api: str, failure: Exception, attempt: int, chance: float) -> Retry | None:
    """How to retry a request without a response; None to give up.

    A node that does not respond may have lost its role, whether or not the request is sent again."""
    # A broker's error comes from finding the node: the request itself was not sent.
    certainly_not_sent = isinstance(failure, BrokerUnreachable | KafkaBusy | TokenUnavailable)
    possibly_done = isinstance(failure, ConnectionLost | CallTimedOut)
    not_known_yet = isinstance(failure, KafkaMissing | BrokerUnknown) and attempt + 1 < MISSING_ATTEMPTS_MAX
    if certainly_not_sent or not_known_yet or possibly_done:
        repeat = not possibly_done or is_repeatable(api)
        after_seconds = backoff_seconds(attempt, chance) if repeat else None
        return Retry(after_seconds, refresh_cluster=True, refresh_route=True)
    return None


def after_response(api: str, response: Mapping[str, Any], attempt: int, chance: float) -> Retry | None:
    """How to retry after the error codes in a response; None to accept it."""
    if api in _EVALUATED_BY_CALLER:
        return None
    codes = list(error_codes(response))
    if not any(_worth_waiting_for(code, api, attempt) for code in codes):
        return None
    if not is_read(api) and not all(_worth_waiting_for(code, api, attempt) for code in codes):
        return None  # some items were done: sending them again would fail
    throttle = response.get("ThrottleTimeMs", 0) / 1000 if Code.THROTTLING_QUOTA_EXCEEDED in codes else 0.0
    distinct = frozenset(codes)
    return Retry(
        max(backoff_seconds(attempt, chance), throttle),
        refresh_cluster=bool(distinct & (STALE_METADATA | STALE_CONTROLLER)),
        refresh_route=bool(distinct & (STALE_METADATA | STALE_COORDINATOR | STALE_CONTROLLER)),
    )


def error_codes(response: Mapping[str, Any]) -> Iterator[int]:
    """Every `ErrorCode` in a response; the top-level one only if it is set or the only one."""
    nested = False
    for value in response.values():
        if isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    for code in error_codes(item):
                        nested = True
                        yield code
    top_level = response.get("ErrorCode")
    if top_level is not None and (top_level or not nested):
        yield top_level


def _worth_waiting_for(code: int, api: str, attempt: int) -> bool:
    if code not in RETRIABLE or code in _FINAL:
        return False
    if code in MISSING:
        return attempt + 1 < MISSING_ATTEMPTS_MAX
    return code != Code.REQUEST_TIMED_OUT or is_repeatable(api)
