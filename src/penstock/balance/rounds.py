"""When a cluster is balanced: one decision for one physical cluster, from what is seen now.

`planner` decides what would move. This module decides whether anything may move now:

- A goal must be violated without a break for a while. Noise ends the count.
- One plan runs at a time, and loads must settle before the next one.
- Moves and bytes an hour and a day are bounded, and a partition that moved rests.
- Nothing starts while data is missing or the cluster is not whole. The reason is a condition, not a log line.

Each decision starts from the state of the cluster, not from events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOUR_SECONDS: Final = 3600.0
DAY_SECONDS: Final = 24 * HOUR_SECONDS


class BalancerMode(StrEnum):
    """What an imbalance leads to."""

    OFF = "off"
    ADVISE = "advise"  # a plan that waits for an operator
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how much an automatic plan may move."""

    violated_seconds: float = 180.0  # without a break, before a round starts
    settle_seconds: float = 300.0  # after a plan, until loads reflect it
    rest_seconds: float = HOUR_SECONDS  # before a partition that moved may move again
    moves_hour_max: int = 1_000
    moves_day_max: int = 5_000
    bytes_hour_max: float = 500e9
    bytes_day_max: float = 5e12


PACE: Final = Pace()


@dataclass(frozen=True, slots=True)
class RecentPlan:
    """A plan that ran on the cluster, automatic or requested by an operator."""

    started: float  # seconds, on the same clock as `now`
    ended: float | None  # none: still running
    moves: int
    bytes: float
    partitions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterCondition:
    """What is seen of a physical cluster now."""

    violated: Mapping[
        str, str
    ]  # triggering goals that are violated, and by what: `broker 3 carries 1.6 times its share`
    obstacles: Sequence[str] = ()  # why nothing may move: `broker 2 is not alive`
    plans: Sequence[RecentPlan] = ()  # of the last day


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one plan may move."""

    moves: int
    bytes: float
    resting: frozenset[tuple[str, int]]  # partitions that may not move yet


@dataclass(frozen=True, slots=True)
class RoundDecision:
    """The outcome of a round, and the state that the next round continues from."""

    violated_since: Mapping[str, float] = field(default_factory=dict)  # by goal
    plan: Allowance | None = None  # make a plan within it, now
    run: bool = False  # and run it
    imbalanced: str = ""  # why the cluster counts as imbalanced
    blocked: str = ""  # why it is not balanced although it should be
    balancing: bool = False  # a plan is running


def decide(
    before: RoundDecision, seen: ClusterCondition, mode: BalancerMode, now: float, pace: Pace = PACE
) -> RoundDecision:
    """Whether to make a plan now, and what to report."""
    since = {goal: before.violated_since.get(goal, now) for goal in seen.violated}
    due = [goal for goal, first in since.items() if now - first >= pace.violated_seconds]
    imbalanced = "; ".join(f"{goal}: {seen.violated[goal]}" for goal in due)
    balancing = any(plan.ended is None for plan in seen.plans)
    waiting = RoundDecision(since, imbalanced=imbalanced, balancing=balancing)
    if mode is BalancerMode.OFF or not due or balancing:
        return waiting
    if seen.obstacles:
        return RoundDecision(since, imbalanced=imbalanced, blocked="; ".join(seen.obstacles))
    if any(plan.ended is not None and now - plan.ended < pace.settle_seconds for plan in seen.plans):
        return waiting
    allowance = _allowance(seen.plans, now, pace)
    if allowance.moves <= 0 or allowance.bytes <= 0:
        return RoundDecision(since, imbalanced=imbalanced, blocked=_spent(seen.plans, now, pace))
    return RoundDecision(since, allowance, run=mode is BalancerMode.AUTO, imbalanced=imbalanced)


def _allowance(plans: Sequence[RecentPlan], now: float, pace: Pace) -> Allowance:
    hour, day = _moved(plans, now - HOUR_SECONDS), _moved(plans, now - DAY_SECONDS)
    resting = [
        plan.partitions for plan in plans if plan.ended is not None and now - plan.ended < pace.rest_seconds
    ]
    return Allowance(
        min(pace.moves_hour_max - hour[0], pace.moves_day_max - day[0]),
        min(pace.bytes_hour_max - hour[1], pace.bytes_day_max - day[1]),
        frozenset().union(*resting),
    )


def _moved(plans: Sequence[RecentPlan], after: float) -> tuple[int, float]:
    """Moves and bytes of the plans that started after a time."""
    recent = [plan for plan in plans if plan.started > after]
    return sum(plan.moves for plan in recent), sum(plan.bytes for plan in recent)


def _spent(plans: Sequence[RecentPlan], now: float, pace: Pace) -> str:
    moves, size = _moved(plans, now - HOUR_SECONDS)
    if moves >= pace.moves_hour_max or size >= pace.bytes_hour_max:
        return f"this hour's limit is reached: {counted(moves, 'move')}, {size / 1e9:.1f} GB"
    moves, size = _moved(plans, now - DAY_SECONDS)
    return f"this day's limit is reached: {counted(moves, 'move')}, {size / 1e9:.1f} GB"
