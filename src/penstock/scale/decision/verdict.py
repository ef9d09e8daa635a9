"""The verdict: evaluate the group rules in order and size the replicas.

`decide_all` is the whole scaler. It is called once for the samples of a record, with the memory of the
previous verdicts, and returns the replicas to request now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.scale.decision import group_rules
from penstock.scale.decision.hpa_metric import is_visible_scale_down, value_for, visible_scale_up
from penstock.scale.decision.partition_facts import measure
from penstock.scale.decision.partition_state import states_of
from penstock.scale.decision.sizing import (
    capacity_is_current,
    clamped,
    members_for,
    replicas_of,
    share_group_members,
    step_above,
    step_below,
    useful_count_above,
    useful_count_below,
    with_capacity,
    within_limits,
)
from penstock.scale.decision.values import Change, GroupState, Memory, RuleResult, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scale.decision.group_rules import Situation
    from penstock.scale.decision.partition_facts import GroupFacts
    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.values import PartitionState
    from penstock.scale.decision.window import Window


def decide(window: Window, memory: Memory, *, interval: float) -> Verdict | None:
    """The verdict after the window's newest sample; None while no replica count is known to hold."""
    return decide_all([window], [memory], [interval])[0]


def decide_all(
    windows: Sequence[Window], memories: Sequence[Memory], intervals: Sequence[float]
) -> list[Verdict | None]:
    """The verdict for each window; `intervals` are the seconds between its samples."""
    measured = measure(windows)
    states = states_of(measured.columns, measured.policy)
    return [
        _verdict(facts, states[own], window.policy, memory, interval)
        for window, facts, own, memory, interval in zip(
            windows, measured.groups, measured.slices, memories, intervals, strict=True
        )
    ]


def _verdict(
    facts: GroupFacts, partition_states: Sequence[PartitionState], policy: Policy, memory: Memory,
    interval: float,
) -> Verdict | None:  # fmt: skip
    requested = _current_request(facts, memory, policy)
    if requested is None:
        return None
    memory = with_capacity(memory, facts.at, facts.capacity, facts.busiest)
    if memory.requested != requested or memory.first_at is None:
        first_at = facts.at if memory.first_at is None else memory.first_at
        memory = replace(memory, requested=requested, first_at=first_at)
    states = {each.key: state for each, state in zip(facts.partitions, partition_states, strict=True)}
    situation = group_rules.situation_of(facts, states, policy, memory, requested, interval)
    change, replicas, rule_results = _change(situation)
    active = group_rules.g10_active(situation)
    now = facts.at
    remembered = memory
    if change is not Change.HOLD:
        moment = {"scaled_up_at": now} if change is Change.UP else {"scaled_down_at": now}
        remembered = replace(memory, requested=replicas, **moment)
    return Verdict(
        at=now,
        change=change,
        replicas=replicas,
        active=active.holds,
        reason=f"{change}: {rule_results[-1].rule}: {rule_results[-1].reason}",
        memory=remembered,
        rule_results=(*rule_results, active),
        states=states,
        stuck=situation.stuck,
        lag=round(sum(each.lag_now for each in facts.partitions)),
        lag_seconds=max((each.age for each in situation.evaluated), default=0.0),
        value=value_for(replicas, replicas_of(facts.members, policy)),
    )


def _change(situation: Situation) -> tuple[Change, int, list[RuleResult]]:
    """Evaluates gates, then scale-up, then scale-down rules, else holds. The last result decided."""
    results: list[RuleResult] = []

    def holds(finding: RuleResult) -> bool:
        results.append(finding)
        return finding.holds

    hold = (Change.HOLD, situation.requested, results)
    for gate in (group_rules.g1_not_rebalancing, group_rules.g2_warmed_up, group_rules.g3_settled):
        if not holds(gate(situation)):
            return hold
    if holds(group_rules.g4_persistent(situation)) or holds(group_rules.g5_steep(situation)):
        pressure = results[-1]
        for gate in (group_rules.g6_up_interval_over, group_rules.g7_replicas_arrived):
            if not holds(gate(situation)):
                return hold
        more = _scale_up_size(situation, results)
        return (Change.UP, more, [*results, pressure]) if more > situation.requested else hold
    if holds(group_rules.g8_low(situation)) and holds(group_rules.g9_cooled_down(situation)):
        fewer = _scale_down_size(situation, results)
        return (Change.DOWN, fewer, results) if fewer < situation.requested else hold
    return hold


def _scale_up_size(situation: Situation, results: list[RuleResult]) -> int:
    """S1: enough for arrivals with headroom, and for arrivals plus the backlog within the drain time."""
    facts, policy, requested = situation.facts, situation.policy, situation.requested
    loads = [
        max(each.arrival * (1 + policy.headroom), each.arrival + each.lag / policy.drain)
        for each in situation.evaluated
    ]
    capacity = situation.memory.capacity or 0.0
    needed = _needed(loads, capacity, policy) if capacity else requested
    if needed <= requested:
        # The numbers call it enough, yet it falls behind: take the next useful count.
        members = requested * policy.consumers_per_replica
        share = policy.group_type == "share"
        above = step_above(members) if share else useful_count_above(members, len(facts.partitions))
        needed = replicas_of(above, policy)
    lagging = sum(1 for each in situation.evaluated if each.lag > 0)
    visible = visible_scale_up(requested, needed, policy.tolerance) if needed > requested else requested
    more = max(requested, clamped(visible, partitions=len(facts.partitions), lagging=lagging, policy=policy))
    text = (
        f"{needed} needed at {capacity * policy.consumers_per_replica:.0f} records/s each, {more} requested"
    )
    results.append(RuleResult("S1 size up", more > requested, text))
    return more


def _scale_down_size(situation: Situation, results: list[RuleResult]) -> int:
    """S2: as few as handle the peak with headroom. If capacity is unknown, the next useful count below."""
    facts, policy, requested = situation.facts, situation.policy, situation.requested
    memory = situation.memory
    total = sum(each.arrival for each in facts.partitions)
    peak = facts.peak()
    swell = max(peak / total, 1.0) if total > 0 else 1.0
    loads = [each.arrival * swell * (1 + policy.headroom) for each in facts.partitions]
    capacity = memory.capacity or 0.0
    needed = _needed(loads, capacity, policy) if capacity else requested
    if total <= 0:
        needed = 1
    if needed >= requested and not capacity_is_current(memory, facts.at, policy):
        members = requested * policy.consumers_per_replica
        share = policy.group_type == "share"
        below = step_below(members) if share else useful_count_below(members, len(facts.partitions))
        needed = replicas_of(below, policy)
    count = len(facts.partitions)
    fewer = min(requested, clamped(needed, partitions=count, lagging=count, policy=policy))
    if fewer < requested and not is_visible_scale_down(requested, fewer, policy.tolerance):
        fewer = requested
    load = f"{capacity * policy.consumers_per_replica:.0f} records/s each for a peak of {peak:.0f}/s"
    text = f"{needed} needed at {load}, {fewer} requested"
    results.append(RuleResult("S2 size down", fewer < requested, text))
    return fewer


def _needed(loads: Sequence[float], capacity: float, policy: Policy) -> int:
    counted = share_group_members if policy.group_type == "share" else members_for
    return replicas_of(counted(loads, capacity), policy)


def _current_request(facts: GroupFacts, memory: Memory, policy: Policy) -> int | None:
    """The replicas requested last; before the first verdict those that run; None if unknown."""
    if memory.requested is not None:
        return within_limits(memory.requested, policy)
    if facts.members > 0 and facts.state is GroupState.STABLE:
        return within_limits(replicas_of(facts.members, policy), policy)
    if facts.members == 0 and policy.replicas_min == 0 and facts.state in (GroupState.EMPTY, GroupState.DEAD):
        return 1
    return None
