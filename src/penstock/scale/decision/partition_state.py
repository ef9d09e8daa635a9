"""The state of one partition: rules P1 to P7 in order; the first that holds decides.

Modelled on the evaluator of LinkedIn's Burrow: each rule is a small predicate of the facts. Only
*falling behind* may cause a scale-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.scale.decision.values import NO_OWNER, PartitionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.scale.decision.partition_facts import PartitionFacts
    from penstock.scale.decision.policy import Policy

    Rule = Callable[[PartitionFacts, Policy], bool]


def p1_unknown(facts: PartitionFacts, policy: Policy) -> bool:
    """No commit yet, or its history is shorter than the warm-up time."""
    return facts.known_for <= 0 or facts.known_for < policy.warm_up


def p2_idle(facts: PartitionFacts, policy: Policy) -> bool:
    """No lag and no arrivals."""
    return facts.lag_now <= 0 and facts.quiet_for >= min(policy.idle, policy.sustain)


def p3_stopped(facts: PartitionFacts, policy: Policy) -> bool:
    """Records wait, the position does not move, and no member owns the partition."""
    return facts.lag_now > 0 and facts.owner == NO_OWNER and facts.unmoved_for >= policy.stall


def p4_stalled(facts: PartitionFacts, policy: Policy) -> bool:
    """Records wait and the position does not move although a member owns it, e.g. a poison record.

    The waiting record must also be that old. With rare records, each handled before the next
    sample, the position does not move between samples either.
    """
    return facts.lag_now > 0 and facts.unmoved_for >= policy.stall and facts.age >= policy.stall


def p5_keeping_up(facts: PartitionFacts, policy: Policy) -> bool:
    """Lag is not high."""
    return facts.above_for <= 0 and not _high(facts, policy)


def p6_catching_up(facts: PartitionFacts, policy: Policy) -> bool:
    """Lag is high but drains: within the drain time, or with its age within the objective."""
    return facts.slope < 0 and (facts.drain_seconds <= policy.drain or facts.age <= policy.objective)


def p7_falling_behind(facts: PartitionFacts, policy: Policy) -> bool:
    """Lag is high and does not fall, or is past the objective and drains too slowly."""
    return True


RULES: Final[tuple[tuple[Rule, PartitionState], ...]] = (
    (p1_unknown, PartitionState.UNKNOWN),
    (p2_idle, PartitionState.IDLE),
    (p3_stopped, PartitionState.STOPPED),
    (p4_stalled, PartitionState.STALLED),
    (p5_keeping_up, PartitionState.KEEPING_UP),
    (p6_catching_up, PartitionState.CATCHING_UP),
    (p7_falling_behind, PartitionState.FALLING_BEHIND),
)

STUCK: Final = frozenset({PartitionState.STALLED, PartitionState.STOPPED})


def state_of(facts: PartitionFacts, policy: Policy) -> PartitionState:
    """The first rule that holds names the state."""
    for rule, state in RULES:
        if rule(facts, policy):
            return state
    raise AssertionError("the last rule always holds")


def beyond_one_consumer(facts: PartitionFacts) -> bool:
    """Whether the partition is alone on its member: it has one consumer, so more replicas cannot help."""
    return facts.owner != NO_OWNER and facts.shared_with == 0


def _high(facts: PartitionFacts, policy: Policy) -> bool:
    records = bool(policy.lag_threshold) and facts.lag > policy.lag_threshold
    seconds = bool(policy.lag_seconds_threshold) and facts.age > policy.lag_seconds_threshold
    return records or seconds
