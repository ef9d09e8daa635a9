"""Whether and when to send a call again. Pure: time and chance come in.

A call is repeatable if doing it twice leaves the cluster as doing it once would. Only such a call
is sent again after it may have arrived (a lost connection, a time-out); one that surely did not
arrive, or that the broker answered with "not here" for every item, may always be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.wire import (
    BrokerUnknown,
    BrokerUnreachable,
    CallTimedOut,
    ConnectionLost,
    KafkaBusy,
    KafkaMissing,
)
from penstock.wire.codes import (
    MISSING,
    RETRIABLE,
    STALE_CONTROLLER,
    STALE_COORDINATOR,
    STALE_METADATA,
    Code,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BACKOFF_SECONDS_FIRST: Final = 0.1
BACKOFF_SECONDS_MAX: Final = 1.0
MISSING_ATTEMPTS_MAX: Final = 4  # a new topic takes a moment to be known everywhere

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
# Brokers may hold these back for as long as they are told to.
_PATIENT: Final = frozenset(("DeleteRecords", "ElectLeaders", "Fetch", "FetchSnapshot"))
# Answers with one code for each partition: their callers look at them, item by item.
_JUDGED_BY_CALLER: Final = frozenset(
    ("ApiVersions", "DeleteRecords", "DescribeProducers", "Fetch", "ListOffsets", "Metadata", "Produce",
     "WriteTxnMarkers")
)  # fmt: skip
# Retriable in Kafka's eyes, but an answer for us: what is missing stays missing, what is done is done.
_FINAL: Final = frozenset((Code.ELECTION_NOT_NEEDED, Code.PREFERRED_LEADER_NOT_AVAILABLE,
                           Code.ELIGIBLE_LEADERS_NOT_AVAILABLE))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Again:
    after_seconds: float
    renew_cluster: bool = False  # ask for metadata before
    renew_route: bool = False  # forget this leader, coordinator or controller


def is_read(api: str) -> bool:
    return api in _READS or api.startswith(_READ_PREFIXES)


def is_repeatable(api: str) -> bool:
    return is_read(api) or api in _REPEATABLE


def is_impatient(api: str) -> bool:
    """Whether a slow answer is better asked for again: it can be repeated, and nothing delays it."""
    return is_repeatable(api) and api not in _PATIENT


def backoff_seconds(attempt: int, chance: float) -> float:
    """Doubles with every attempt; `chance` (0 to 1) spreads callers apart."""
    full: float = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2**attempt)
    return full * (0.5 + 0.5 * chance)


def after_failure(api: str, failure: Exception, attempt: int, chance: float) -> Again | None:
    """What to do about a call that got no answer; None: give up."""
    # Refusals come from looking for the node: the call itself was not sent.
    surely_not_done = isinstance(failure, BrokerUnreachable | KafkaBusy)
    perhaps_done = isinstance(failure, ConnectionLost | CallTimedOut)
    not_yet_known = isinstance(failure, KafkaMissing | BrokerUnknown) and attempt + 1 < MISSING_ATTEMPTS_MAX
    if surely_not_done or not_yet_known or (perhaps_done and is_repeatable(api)):
        return Again(backoff_seconds(attempt, chance), renew_cluster=True, renew_route=True)
    return None


def after_answer(api: str, answer: Mapping[str, Any], attempt: int, chance: float) -> Again | None:
    """What to do about the error codes in an answer; None: take it as it is."""
    if api in _JUDGED_BY_CALLER:
        return None
    codes = list(error_codes(answer))
    if not any(_worth_waiting_for(code, api, attempt) for code in codes):
        return None
    if not is_read(api) and not all(_worth_waiting_for(code, api, attempt) for code in codes):
        return None  # a part was done: sending all of it again would fail on that part
    throttle = answer.get("ThrottleTimeMs", 0) / 1000 if Code.THROTTLING_QUOTA_EXCEEDED in codes else 0.0
    found = frozenset(codes)
    return Again(
        max(backoff_seconds(attempt, chance), throttle),
        renew_cluster=bool(found & (STALE_METADATA | STALE_CONTROLLER)),
        renew_route=bool(found & (STALE_METADATA | STALE_COORDINATOR | STALE_CONTROLLER)),
    )


def error_codes(answer: Mapping[str, Any]) -> Iterator[int]:
    """Every `ErrorCode` of an answer; the top one only if it is set or the only one."""
    nested = False
    for value in answer.values():
        if isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    for code in error_codes(item):
                        nested = True
                        yield code
    own = answer.get("ErrorCode")
    if own is not None and (own or not nested):
        yield own


def _worth_waiting_for(code: int, api: str, attempt: int) -> bool:
    if code not in RETRIABLE or code in _FINAL:
        return False
    if code in MISSING:
        return attempt + 1 < MISSING_ATTEMPTS_MAX
    return code != Code.REQUEST_TIMED_OUT or is_repeatable(api)
