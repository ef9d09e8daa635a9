"""The state of each partition: rules P1 to P7 in order; the first that holds decides.

Modelled on the evaluator of LinkedIn's Burrow: each rule is a small predicate of the facts. Facts and
parameters are columns, with one value for each partition of all groups, so a rule is evaluated once for
all of them. Only *falling behind* may cause a scale-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.scale.decision.values import NO_OWNER, PartitionState
from penstock.scale.decision.window import is_high

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.scale.decision.partition_facts import PartitionFacts
    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.window import PolicyColumns

    Facts = PartitionFacts[Any]
    Parameters = Policy | PolicyColumns
    Rule = Callable[[Facts, Parameters], Any]


def p1_unknown(facts: Facts, policy: Parameters) -> Any:
    """No commit yet, or its history is shorter than the warm-up time."""
    return (facts.known_for <= 0) | (facts.known_for < policy.warm_up)


def p2_idle(facts: Facts, policy: Parameters) -> Any:
    """No lag and no arrivals."""
    return (facts.lag_now <= 0) & (facts.quiet_for >= np.minimum(policy.idle, policy.sustain))


def p3_stopped(facts: Facts, policy: Parameters) -> Any:
    """Records wait, the position does not move, and no member owns the partition."""
    return (facts.lag_now > 0) & (facts.owner == NO_OWNER) & (facts.unmoved_for >= policy.stall)


def p4_stalled(facts: Facts, policy: Parameters) -> Any:
    """Records wait and the position does not move although a member owns it, e.g. a poison record.

    The waiting record must also be that old. With rare records, each handled before the next
    sample, the position does not move between samples either.
    """
    return (facts.lag_now > 0) & (facts.unmoved_for >= policy.stall) & (facts.age >= policy.stall)


def p5_keeping_up(facts: Facts, policy: Parameters) -> Any:
    """Lag is not high."""
    return (facts.above_for <= 0) & ~is_high(policy, facts.lag, facts.age)


def p6_catching_up(facts: Facts, policy: Parameters) -> Any:
    """Lag is high but drains: within the drain time, or with its age within the objective."""
    return (facts.slope < 0) & ((facts.drain_seconds <= policy.drain) | (facts.age <= policy.objective))


def p7_falling_behind(facts: Facts, policy: Parameters) -> Any:
    """Lag is high and does not fall, or is past the objective and drains too slowly."""
    return np.full(np.shape(facts.lag), True)


RULES: Final[tuple[tuple[Rule, PartitionState], ...]] = (
    (p1_unknown, PartitionState.UNKNOWN),
    (p2_idle, PartitionState.IDLE),
    (p3_stopped, PartitionState.STOPPED),
    (p4_stalled, PartitionState.STALLED),
    (p5_keeping_up, PartitionState.KEEPING_UP),
    (p6_catching_up, PartitionState.CATCHING_UP),
    (p7_falling_behind, PartitionState.FALLING_BEHIND),
)

STUCK: Final = (PartitionState.STALLED, PartitionState.STOPPED)


def states_of(facts: Facts, policy: Parameters) -> list[PartitionState]:
    """The state of each partition: the first rule that holds names it."""
    first = np.argmax([rule(facts, policy) for rule, _ in RULES], axis=0)
    return [RULES[index][1] for index in np.atleast_1d(first).tolist()]


def beyond_one_consumer(facts: PartitionFacts[float]) -> bool:
    """Whether the partition is alone on its member: it has one consumer, so more replicas cannot help."""
    return facts.owner != NO_OWNER and facts.shared_with == 0
