"""The verdict: the rules of `rules`, asked in order, and what follows from their answers.

`decide` is the whole scaler. It is called once for each sample, takes what the last verdict
remembered, and returns what is asked for now. It reads no clock and keeps nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.scale import rules
from penstock.scale.encoding import value_for, visible_lowering, visible_raise
from penstock.scale.facts import facts_of
from penstock.scale.partitions import state_of
from penstock.scale.sizing import (
    believed,
    clamped,
    learned,
    members_for,
    members_sharing,
    replicas_of,
    rung_above,
    rung_below,
    step_above,
    step_below,
)
from penstock.scale.values import Change, Finding, GroupState, Memory, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scale.facts import GroupFacts
    from penstock.scale.policy import Policy
    from penstock.scale.rules import Situation
    from penstock.scale.window import Window


def decide(window: Window, memory: Memory, *, interval: float) -> Verdict | None:
    """What to ask for after the window's newest sample. None: nothing is known yet to hold on to."""
    policy = window.policy
    facts = facts_of(window)
    asked = _asked_before(facts, memory, policy)
    if asked is None:
        return None
    memory = learned(memory, facts.at, facts.capacity, facts.busiest)
    if memory.asked != asked or memory.begun_at is None:
        begun_at = facts.at if memory.begun_at is None else memory.begun_at
        memory = replace(memory, asked=asked, begun_at=begun_at)
    states = {each.key: state_of(each, policy) for each in facts.partitions}
    situation = rules.situation_of(facts, states, policy, memory, asked, interval)
    change, replicas, findings = _change(situation)
    active = rules.g10_active(situation)
    now = facts.at
    remembered = memory
    if change is not Change.HOLD:
        moment = {"raised_at": now} if change is Change.UP else {"lowered_at": now}
        remembered = replace(memory, asked=replicas, **moment)
    return Verdict(
        at=now,
        change=change,
        replicas=replicas,
        active=active.holds,
        reason=f"{change}: {findings[-1].rule}: {findings[-1].because}",
        memory=remembered,
        findings=(*findings, active),
        states=states,
        stuck=situation.stuck,
        lag=round(sum(each.lag_now for each in facts.partitions)),
        lag_seconds=max((each.age for each in situation.judged), default=0.0),
        value=value_for(replicas, replicas_of(facts.members, policy)),
    )


def _change(situation: Situation) -> tuple[Change, int, list[Finding]]:
    """The order of the rules: gates, then up, then down, else hold. The last finding decided."""
    found: list[Finding] = []

    def holds(finding: Finding) -> bool:
        found.append(finding)
        return finding.holds

    hold = (Change.HOLD, situation.asked, found)
    for gate in (rules.g1_group_at_rest, rules.g2_warmed_up, rules.g3_settled):
        if not holds(gate(situation)):
            return hold
    if holds(rules.g4_persistent(situation)) or holds(rules.g5_steep(situation)):
        pressure = found[-1]
        if not (holds(rules.g6_up_interval_over(situation)) and holds(rules.g7_asked_arrived(situation))):
            return hold
        more = _more(situation, found)
        return (Change.UP, more, [*found, pressure]) if more > situation.asked else hold
    if holds(rules.g8_low(situation)) and holds(rules.g9_cooled_down(situation)):
        fewer = _fewer(situation, found)
        return (Change.DOWN, fewer, found) if fewer < situation.asked else hold
    return hold


def _more(situation: Situation, found: list[Finding]) -> int:
    """S1: enough for arrivals with headroom, or for arrivals and the backlog within the drain time."""
    facts, policy, asked = situation.facts, situation.policy, situation.asked
    loads = [
        max(each.arrival * (1 + policy.headroom), each.arrival + each.lag / policy.drain)
        for each in situation.judged
    ]
    capacity = situation.memory.capacity or 0.0
    wanted = _needed(loads, capacity, policy) if capacity else asked
    if wanted <= asked:
        # By the numbers there is enough, yet it falls behind: one rung more.
        members = asked * policy.consumers_per_replica
        share = policy.group_type == "share"
        above = step_above(members) if share else rung_above(members, len(facts.partitions))
        wanted = replicas_of(above, policy)
    lagging = sum(1 for each in situation.judged if each.lag > 0)
    seen = visible_raise(asked, wanted, policy.tolerance) if wanted > asked else asked
    more = max(asked, clamped(seen, partitions=len(facts.partitions), lagging=lagging, policy=policy))
    found.append(
        Finding("S1 size up", more > asked, f"{wanted} needed at {capacity:.0f} records/s each, {more} asked")
    )
    return more


def _fewer(situation: Situation, found: list[Finding]) -> int:
    """S2: as few as carry the window's peak with headroom. Unknown capacity is probed a rung at a time."""
    facts, policy, asked = situation.facts, situation.policy, situation.asked
    memory = situation.memory
    total = sum(each.arrival for each in facts.partitions)
    swell = max(facts.peak / total, 1.0) if total > 0 else 1.0
    loads = [each.arrival * swell * (1 + policy.headroom) for each in facts.partitions]
    capacity = memory.capacity or 0.0
    wanted = _needed(loads, capacity, policy) if capacity else asked
    if total <= 0:
        wanted = 1
    if wanted >= asked and not believed(memory, facts.at, policy):
        members = asked * policy.consumers_per_replica
        share = policy.group_type == "share"
        below = step_below(members) if share else rung_below(members, len(facts.partitions))
        wanted = replicas_of(below, policy)
    fewer = min(
        asked, clamped(wanted, partitions=len(facts.partitions), lagging=len(facts.partitions), policy=policy)
    )
    if fewer < asked and not visible_lowering(asked, fewer, policy.tolerance):
        fewer = asked
    text = f"{wanted} needed at {capacity:.0f} records/s each for a peak of {facts.peak:.0f}/s, {fewer} asked"
    found.append(Finding("S2 size down", fewer < asked, text))
    return fewer


def _needed(loads: Sequence[float], capacity: float, policy: Policy) -> int:
    counted = members_sharing if policy.group_type == "share" else members_for
    return replicas_of(counted(loads, capacity), policy)


def _asked_before(facts: GroupFacts, memory: Memory, policy: Policy) -> int | None:
    """What was asked last; before the first verdict, what is there. None when neither can be told."""
    if memory.asked is not None:
        return max(min(memory.asked, policy.replicas_max), policy.replicas_min, 1)
    if facts.members > 0 and facts.state is GroupState.STABLE:
        return max(min(replicas_of(facts.members, policy), policy.replicas_max), policy.replicas_min, 1)
    if facts.members == 0 and policy.replicas_min == 0 and facts.state in (GroupState.EMPTY, GroupState.DEAD):
        return 1
    return None
