"""The group's rules, G1 to G10: each a function of the situation that says yes or no, and why.

They decide nothing alone; `verdict` asks them in order. The numbers are stable names: logs,
metrics, `penstock scale explain` and the docs use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.scale.partitions import STUCK, beyond_one_consumer
from penstock.scale.values import Finding, GroupState, PartitionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scale.facts import GroupFacts, PartitionFacts
    from penstock.scale.policy import Policy
    from penstock.scale.values import Memory, PartitionKey

STILL_SAMPLES_MAX: Final = 3  # a position that stands still longer says nothing about a trend
ARRIVED_SHARE: Final = 0.9  # of what was asked for counts as there
SEEN_LATE_SAMPLES: Final = 2  # smoothing shows a rise one sample late, and the next look is one away


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a rule may look at."""

    facts: GroupFacts
    states: Mapping[PartitionKey, PartitionState]
    policy: Policy
    memory: Memory
    asked: int
    interval: float  # seconds between samples
    voters: tuple[PartitionFacts, ...]  # partitions that fall behind and that more replicas can help
    stuck: tuple[PartitionKey, ...]
    judged: tuple[PartitionFacts, ...]  # partitions with a known position that are not stuck


def situation_of(
    facts: GroupFacts,
    states: Mapping[PartitionKey, PartitionState],
    policy: Policy,
    memory: Memory,
    asked: int,
    interval: float,
) -> Situation:
    behind = PartitionState.FALLING_BEHIND
    pairs = [(each, states[each.key]) for each in facts.partitions]
    return Situation(
        facts, states, policy, memory, asked, interval,
        voters=tuple(each for each, state in pairs if state is behind and not beyond_one_consumer(each)),
        stuck=tuple(each.key for each, state in pairs if state in STUCK),
        judged=tuple(each for each, state in pairs if each.known_for > 0 and state not in STUCK),
    )  # fmt: skip


def g1_group_at_rest(situation: Situation) -> Finding:
    """Kafka's own gate: during a rebalance commits and members say nothing."""
    state = situation.facts.state
    return Finding("G1 group at rest", state in (GroupState.STABLE, GroupState.EMPTY), f"group is {state}")


def g2_warmed_up(situation: Situation) -> Finding:
    span, need = situation.facts.span, situation.policy.warm_up
    return Finding("G2 warmed up", span >= need, f"{span:.0f} s of samples, {need:.0f} s needed")


def g3_settled(situation: Situation) -> Finding:
    """New members need time to show their effect; a rebalance stalls everybody."""
    steady, need = situation.facts.steady_for, situation.policy.settle
    holds = steady >= min(need, situation.facts.span)
    return Finding("G3 settled", holds, f"members unchanged for {steady:.0f} s, {need:.0f} s needed")


def g4_persistent(situation: Situation) -> Finding:
    """Some partition has fallen behind for the whole sustain time (the paper's rule).

    Samples come at an interval, so this is told at the one that lies nearest to its end.
    """
    sustain = situation.policy.sustain
    worst = max(situation.voters, key=lambda each: each.above_for, default=None)
    if worst is None:
        return Finding("G4 persistent", False, "no partition is falling behind")
    text = f"{worst.key} high for {worst.above_for:.0f} s ({worst.lag:.0f} records), sustain {sustain:.0f} s"
    return Finding("G4 persistent", worst.above_for >= sustain - situation.interval / 2, text)


def g5_steep(situation: Situation) -> Finding:
    """Waiting longer would miss the objective.

    The last responsible moment: the age of the oldest record, carried on at its present pace for
    as long as a new replica takes to help, passes the objective. A burst that ends sooner never
    gets here, and a step does so before the sustain time when it must.
    """
    policy = situation.policy
    still_max = STILL_SAMPLES_MAX * situation.interval
    ahead = policy.start + SEEN_LATE_SAMPLES * situation.interval
    growing = [each for each in situation.voters if each.age_slope > 0 and each.lately > 0]
    moving = [each for each in growing if each.still_for <= still_max]
    worst = max(moving, key=lambda each: each.age + each.age_slope * ahead, default=None)
    if worst is None:
        return Finding("G5 steep", False, "no partition's lag is growing older")
    projected = worst.age + worst.age_slope * ahead
    allowed = f"{policy.objective:.0f} s allowed"
    text = f"{worst.key} {worst.age:.0f} s behind, {projected:.0f} s when helped, {allowed}"
    return Finding("G5 steep", projected > policy.objective, text)


def g6_up_interval_over(situation: Situation) -> Finding:
    return _since(
        "G6 scale-up interval over", situation, situation.memory.raised_at, situation.policy.up_interval
    )


def g7_asked_arrived(situation: Situation) -> Finding:
    """What was asked for is there: until then more would be asked for on stale evidence.

    A replica that never comes (no room, a crash loop) delays by one cool-down and no longer.
    """
    members, asked = situation.facts.members, situation.asked
    raised = situation.memory.raised_at
    waited = raised is None or not 0 <= situation.facts.at - raised < situation.policy.cool_down
    holds = waited or members >= ARRIVED_SHARE * asked * situation.policy.consumers_per_replica
    return Finding("G7 asked arrived", holds, f"{members} members, {asked} replicas asked for")


def g8_low(situation: Situation) -> Finding:
    """Every partition that is not stuck has been low for long enough."""
    need = situation.policy.low_seconds
    worst = min(situation.judged, key=lambda each: each.below_for, default=None)
    if worst is None:
        return Finding("G8 low", False, "no partition can be judged")
    text = f"{worst.key} low for {worst.below_for:.0f} s, {need:.0f} s needed"
    return Finding("G8 low", worst.below_for >= need, text)


def g9_cooled_down(situation: Situation) -> Finding:
    memory = situation.memory
    changes = [at for at in (memory.begun_at, memory.raised_at, memory.lowered_at) if at is not None]
    return _since("G9 cooled down", situation, max(changes, default=None), situation.policy.cool_down)


def g10_active(situation: Situation) -> Finding:
    """Records wait, or did lately. A stuck partition counts: its records do wait."""
    facts, policy = situation.facts, situation.policy
    waiting = sum(each.lag_now for each in facts.partitions)
    if waiting > policy.activation:
        return Finding("G10 active", True, f"{waiting:.0f} records wait, threshold {policy.activation:.0f}")
    quiet = min((each.quiet_for for each in facts.partitions), default=facts.span)
    awake = facts.members > 0 and quiet < min(policy.idle, facts.span)
    return Finding(
        "G10 active", awake, f"nothing waits, last arrival {quiet:.0f} s ago, idle after {policy.idle:.0f} s"
    )


def _since(rule: str, situation: Situation, when: float | None, need: float) -> Finding:
    if when is None:
        return Finding(rule, True, "no change yet")
    # A clock that was set back must not lock the scaler: a change in the future counts as long ago.
    passed = situation.facts.at - when
    return Finding(rule, passed >= need or passed < 0, f"last change {passed:.0f} s ago, {need:.0f} s needed")
