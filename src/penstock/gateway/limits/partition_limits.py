"""Limits on a tenant's partitions: how many there are, and how fast they change (KIP-599).

A topic that would exceed the number is refused. Each change costs a token of a bucket that may go into debt.
During debt, clients that know the error get THROTTLING_QUOTA_EXCEEDED (`STRICT_FIRST`); older ones succeed
and wait longer. Requests with `ValidateOnly` are free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.tenancy.request_rewriting import PARTITIONS_DEFAULT, Refused
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.wire.frames import Request

CREATE_TOPICS: Final = "CreateTopics"
# The first versions whose clients understand THROTTLING_QUOTA_EXCEEDED.
STRICT_FIRST: Final = {CREATE_TOPICS: 6, "CreatePartitions": 3}


@dataclass(frozen=True, slots=True)
class PartitionDecision:
    request: Request  # without the refused topics
    refused: tuple[Refused, ...]
    changes: int  # partitions that the remaining topics create
    throttle_seconds: float  # of the client


def decide_partitions(
    request: Request,
    present: Mapping[str, tuple[int, int]],
    partitions_max: int | None,
    spend: Callable[[float], float],
) -> PartitionDecision:
    """Check a request against both limits. `present` maps topics to their partitions and replicas; `spend`
    takes tokens and returns the debt in seconds.
    """
    strict = request.version >= STRICT_FIRST[request.api]
    total = sum(count for count, _ in present.values())
    allowed, refused = [], []
    changes, wait = 0, 0.0
    for topic in request.body["Topics"]:
        more = _more(request.api, topic, present)
        if partitions_max is not None and total + more > partitions_max and more > 0:
            text = (
                f"At most {partitions_max} partitions are allowed: {total} exist and {more} were requested."
            )
            refused.append(Refused(topic["Name"], Code.POLICY_VIOLATION, text))
            continue
        if not request.body.get("ValidateOnly"):
            debt = spend(0.0)
            if strict and debt > 0:
                wait = max(wait, debt)
                text = "Partitions are created or deleted too fast; try again later."
                refused.append(Refused(topic["Name"], Code.THROTTLING_QUOTA_EXCEEDED, text))
                continue
            wait = max(wait, spend(float(more)))
            changes += more
        total += more
        allowed.append(topic)
    remaining = replace(request, body={**request.body, "Topics": allowed})
    return PartitionDecision(remaining, tuple(refused), changes, wait)


def _more(api: str, topic: Mapping[str, Any], present: Mapping[str, tuple[int, int]]) -> int:
    if api != CREATE_TOPICS:
        return max(0, int(topic["Count"]) - present.get(topic["Name"], (0, 0))[0])
    if topic["Name"] in present:
        return 0  # the broker refuses it
    if topic["Assignments"]:
        return len(topic["Assignments"])
    count = int(topic["NumPartitions"])
    return PARTITIONS_DEFAULT if count == -1 else max(0, count)
