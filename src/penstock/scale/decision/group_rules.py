"""Rules G1 to G10 about a group: each returns whether it holds, with the numbers it compared.

`verdict` evaluates them in order. Their numbers are stable: logs, metrics, `penstock scale explain`
and the docs use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.scale.decision.partition_state import STUCK, beyond_one_consumer
from penstock.scale.decision.values import GroupState, PartitionState, RuleResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scale.decision.partition_facts import GroupFacts, PartitionFacts
    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.values import Memory, PartitionKey

UNMOVED_SAMPLES_MAX: Final = 3  # a position unmoved for longer gives no trend
ARRIVED_SHARE: Final = 0.9  # of the requested replicas must be running
DETECTION_SAMPLES: Final = 2  # smoothing delays a rise by one sample, and the next comes one later


class Situation(NamedTuple):
    """The input of every rule."""

    facts: GroupFacts
    states: Mapping[PartitionKey, PartitionState]
    policy: Policy
    memory: Memory
    requested: int
    interval: float  # seconds between samples
    voters: tuple[
        PartitionFacts[float], ...
    ]  # partitions that fall behind and can be helped by more replicas
    stuck: tuple[PartitionKey, ...]
    evaluated: tuple[PartitionFacts[float], ...]  # partitions with a known position that are not stuck


def situation_of(
    facts: GroupFacts,
    states: Mapping[PartitionKey, PartitionState],
    policy: Policy,
    memory: Memory,
    requested: int,
    interval: float,
) -> Situation:
    voters, evaluated, stuck = [], [], []
    for each, state in zip(facts.partitions, states.values(), strict=True):
        if state in STUCK:
            stuck.append(each.key)
        elif each.known_for > 0:
            evaluated.append(each)
        if state is PartitionState.FALLING_BEHIND and not beyond_one_consumer(each):
            voters.append(each)
    return Situation(
        facts, states, policy, memory, requested, interval, tuple(voters), tuple(stuck), tuple(evaluated)
    )


def g1_not_rebalancing(situation: Situation) -> RuleResult:
    """The group is stable or empty: during a rebalance, commits and members are meaningless."""
    state = situation.facts.state
    holds = state in (GroupState.STABLE, GroupState.EMPTY)
    return RuleResult("G1 not rebalancing", holds, f"group is {state}")


def g2_warmed_up(situation: Situation) -> RuleResult:
    span, need = situation.facts.span, situation.policy.warm_up
    return RuleResult("G2 warmed up", span >= need, f"{span:.0f} s of samples, {need:.0f} s needed")


def g3_settled(situation: Situation) -> RuleResult:
    """Members have been unchanged for the settle time: a rebalance stalls the whole group.

    A group whose members come and go without end never settles. After one sustain time of that it may
    scale up all the same: otherwise one crash-looping member would block every decision.
    """
    facts, need = situation.facts, situation.policy.settle
    limit = need + situation.policy.sustain
    text = f"members unchanged for {facts.steady_for:.0f} s, {need:.0f} s needed"
    if facts.steady_for < need and facts.unsettled_for >= limit:
        return RuleResult(
            "G3 settled", True, f"{text}, but they have changed for {facts.unsettled_for:.0f} s"
        )
    return RuleResult("G3 settled", facts.steady_for >= min(need, facts.span), text)


def g4_persistent(situation: Situation) -> RuleResult:
    """Some partition has been falling behind for the whole sustain time (the paper's rule).

    Samples come at an interval, so the rule holds at the sample nearest to the end of that time.
    """
    sustain = situation.policy.sustain
    worst = max(situation.voters, key=lambda each: each.above_for, default=None)
    if worst is None:
        return RuleResult("G4 persistent", False, "no partition is falling behind")
    text = f"{worst.key} high for {worst.above_for:.0f} s ({worst.lag:.0f} records), sustain {sustain:.0f} s"
    return RuleResult("G4 persistent", worst.above_for >= sustain - situation.interval / 2, text)


def g5_steep(situation: Situation) -> RuleResult:
    """Waiting longer would miss the objective.

    Holds when the age of the oldest record, extrapolated to when a new replica would help, exceeds
    the objective. A short burst never gets there; a steep step does, before the sustain time ends.
    """
    policy = situation.policy
    still_max = UNMOVED_SAMPLES_MAX * situation.interval
    ahead = policy.start + DETECTION_SAMPLES * situation.interval
    growing = [each for each in situation.voters if each.age_slope > 0 and each.recent_change > 0]
    moving = [each for each in growing if each.unmoved_for <= still_max]
    worst = max(moving, key=lambda each: each.age + each.age_slope * ahead, default=None)
    if worst is None:
        return RuleResult("G5 steep", False, "no partition's age is growing")
    projected = worst.age + worst.age_slope * ahead
    allowed = f"{policy.objective:.0f} s allowed"
    text = f"{worst.key} {worst.age:.0f} s behind, {projected:.0f} s when helped, {allowed}"
    return RuleResult("G5 steep", projected > policy.objective, text)


def g6_up_interval_over(situation: Situation) -> RuleResult:
    raised, need = situation.memory.scaled_up_at, situation.policy.up_interval
    return _since("G6 scale-up interval over", situation, raised, need)


def g7_replicas_arrived(situation: Situation) -> RuleResult:
    """The requested replicas have joined: until then the samples do not show their effect.

    A replica that never joins (unschedulable, crash loop) delays the next request by one cool-down.
    """
    members, requested = situation.facts.members, situation.requested
    raised = situation.memory.scaled_up_at
    waited = raised is None or not 0 <= situation.facts.at - raised < situation.policy.cool_down
    holds = waited or members >= ARRIVED_SHARE * requested * situation.policy.consumers_per_replica
    return RuleResult("G7 replicas arrived", holds, f"{members} members, {requested} replicas requested")


def g8_low(situation: Situation) -> RuleResult:
    """Every partition that is not stuck has been low for long enough, and the members have settled."""
    facts, need = situation.facts, situation.policy.low_seconds
    if facts.steady_for < min(situation.policy.settle, facts.span):
        return RuleResult("G8 low", False, f"members changed {facts.steady_for:.0f} s ago")
    worst = min(situation.evaluated, key=lambda each: each.below_for, default=None)
    if worst is None:
        return RuleResult("G8 low", False, "no partition can be evaluated")
    text = f"{worst.key} low for {worst.below_for:.0f} s, {need:.0f} s needed"
    return RuleResult("G8 low", worst.below_for >= need, text)


def g9_cooled_down(situation: Situation) -> RuleResult:
    memory = situation.memory
    changes = [at for at in (memory.first_at, memory.scaled_up_at, memory.scaled_down_at) if at is not None]
    return _since("G9 cooled down", situation, max(changes, default=None), situation.policy.cool_down)


def g10_active(situation: Situation) -> RuleResult:
    """Records wait, or arrived within the idle time. Those of a stuck partition count too.

    Without a commit and with `latest`, the number that waits is unknown. As for KEDA's kafka scaler, such a
    partition counts as one record: at zero replicas, no member would ever commit a position.
    """
    facts, policy = situation.facts, situation.policy
    waiting = sum(each.lag_now for each in facts.partitions) + facts.uncommitted
    if waiting > policy.activation:
        text = f"{waiting:.0f} records wait, threshold {policy.activation:.0f}"
        return RuleResult("G10 active", True, text)
    quiet = min((each.quiet_for for each in facts.partitions), default=facts.span)
    awake = facts.members > 0 and quiet < min(policy.idle, facts.span)
    text = f"nothing waits, last arrival {quiet:.0f} s ago, idle after {policy.idle:.0f} s"
    return RuleResult("G10 active", awake, text)


def _since(rule: str, situation: Situation, when: float | None, need: float) -> RuleResult:
    if when is None:
        return RuleResult(rule, True, "no change yet")
    # After the clock was set back, a change in the future must not block the scaler.
    passed = situation.facts.at - when
    text = f"last change {passed:.0f} s ago, {need:.0f} s needed"
    return RuleResult(rule, passed >= need or passed < 0, text)
