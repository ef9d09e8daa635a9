"""Limits on a tenant's partitions: how many there are, and how fast they change (KIP-599).

A topic that would exceed the number is refused; partitions are reserved before they are created.

Each change costs a token of a bucket that may go into debt. A request that begins during debt is refused. One
that goes into debt continues if its client does not know the error for it (`STRICT_FIRST`); its connection
waits longer. Requests with `ValidateOnly` are free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.limits.partition_reservations import Reservations
from penstock.gateway.tenancy.request_rewriting import PARTITIONS_DEFAULT, Refused
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.wire.frames import Request

CREATE_TOPICS: Final = "CreateTopics"
# The first versions whose clients understand THROTTLING_QUOTA_EXCEEDED.
STRICT_FIRST: Final = {CREATE_TOPICS: 6, "CreatePartitions": 3}


def _no_other_workers(pending: int) -> int:
    del pending
    return 0


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
    reservations: Reservations | None = None,
    now: float = 0.0,
    share: Callable[[int], int] = _no_other_workers,
) -> PartitionDecision:
    """Check a request against both limits, and reserve what it may create.

    `present` maps topics to their partitions and replicas; `spend` takes tokens and returns the debt in
    seconds; `share` publishes the partitions pending here and returns those pending in other workers.
    """
    strict = request.version >= STRICT_FIRST[request.api]
    free = bool(request.body.get("ValidateOnly"))
    held = reservations or Reservations()
    before = 0.0 if free else spend(0.0)
    allowed, refused = [], []
    changes, wait = 0, 0.0
    for topic in request.body["Topics"]:
        name = topic["Name"]
        known = max(present.get(name, (0, 0))[0], held.count(name))
        more = 0 if request.api == CREATE_TOPICS and name in present else _more(request.api, topic, known)
        debt = 0.0 if free else spend(0.0) if strict else before
        if debt > 0:
            wait = max(wait, debt)
            refused.append(_too_fast(name, debt, strict=strict))
            continue
        if partitions_max is not None and more > 0:
            refusal = _reserved(held, name, known, more, present, partitions_max, now, share)
            if refusal is not None:
                refused.append(refusal)
                continue
            if free:
                held.release(name)
        if not free:
            wait = max(wait, spend(float(more)))
            changes += more
        allowed.append(topic)
    share(held.pending)
    remaining = replace(request, body={**request.body, "Topics": allowed})
    return PartitionDecision(remaining, tuple(refused), changes, wait)


def _reserved(
    held: Reservations,
    name: str,
    known: int,
    more: int,
    present: Mapping[str, tuple[int, int]],
    partitions_max: int,
    now: float,
    share: Callable[[int], int],
) -> Refused | None:
    """Reserve partitions, or return why there is no room for them."""
    exist = held.total(present, now)
    if held.is_pending(name):
        text = "Another request is creating partitions of this topic; try again."
        return Refused(name, Code.REQUEST_TIMED_OUT, text)
    # Reserved first and counted afterwards: of two workers, both may refuse, but never do both allow.
    held.reserve(name, known + more, more, now)
    exist += share(held.pending)
    if exist + more <= partitions_max:
        return None
    held.release(name)
    text = f"At most {partitions_max} partitions are allowed: {exist} exist and {more} were requested."
    return Refused(name, Code.POLICY_VIOLATION, text)


def _too_fast(name: str, seconds: float, *, strict: bool) -> Refused:
    code = Code.THROTTLING_QUOTA_EXCEEDED if strict else Code.POLICY_VIOLATION
    text = f"Partitions are created or deleted too fast; try again in {seconds:.0f} seconds."
    return Refused(name, code, text)


def _more(api: str, topic: Mapping[str, Any], known: int) -> int:
    """The partitions that a request adds to those known."""
    if api != CREATE_TOPICS:
        return max(0, int(topic["Count"]) - known)
    count = len(topic["Assignments"]) or int(topic["NumPartitions"])
    return max(0, (PARTITIONS_DEFAULT if count == -1 else count) - known)
