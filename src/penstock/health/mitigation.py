"""What to do about a sick broker: the next step of its ladder, or why not. Pure.

| state | first | then |
|---|---|---|
| `cut-off`, `down`, `fenced` | demote | |
| `storage-stuck` | demote | restart, held until its storage can be written |
| `slow`, `slow-follower` | exclude | restart |

Without the capability `isr-exclusion`, or without anything that can restart brokers (only a restart ends an
exclusion), a slow broker is demoted instead. A step that brings clients no improvement within a minute is
followed by the next one. After the last, what was done is undone, and an operator is needed; the broker is
left alone for an hour. A step that helps stays until the broker has been healthy for a minute.

Guards, in this order: an operator's hold, the mode of the cluster and of the action, faults of the whole
cluster, a limit per hour, one broker at a time (or a tenth), a step that did not help before, and other
interventions. The exclusion checks every partition itself, and the executor never takes a partition's leader
away without another in-sync replica.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.health.detector import SICK, SLOWNESS, HealthState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.health.detector import Verdict

IMPROVED_SECONDS: Final = 60.0  # until a step without effect is followed by the next
ACTIONS_PER_HOUR_MAX: Final = 6  # of one cluster
HOUR_SECONDS: Final = 3600.0
GONE: Final = frozenset((HealthState.DOWN, HealthState.FENCED))
BROKERS_SHARE_MAX: Final = 0.1  # that are mitigated at the same time; at least one


class Mode(StrEnum):
    OFF = "off"
    ADVISE = "advise"  # only reports what it would do
    AUTO = "auto"


class Step(StrEnum):
    DEMOTE = "demote"  # it leads nothing
    EXCLUDE = "exclude"  # it is in no ISR, and keeps replicating
    HOLD = "hold"  # it is stopped, and started once its storage can be written
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Open:
    """A mitigation under way."""

    broker: int
    state: HealthState  # that it began with
    steps: tuple[Step, ...]  # taken so far
    since: float  # of the last step
    done: bool = True  # the effect of the last step is there
    failed: str = ""  # why it is not, and will not be
    improved: bool | None = None  # what clients see; None: unknown
    releasing: bool = False


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the cluster allows."""

    excludes: bool = False
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    verdict: Verdict
    mode: Mode
    open: Mapping[int, Open]
    abilities: Abilities
    held: Mapping[int, str]  # brokers that an operator holds, with the reason
    acted: Sequence[float] = ()  # when steps were taken, within the last hour
    given_up: frozenset[int] = frozenset()  # brokers for which no step helped, within the last hour
    blocked: Mapping[int, str] = field(default_factory=dict)  # why another intervention forbids any
    modes: Mapping[str, Mode] = field(default_factory=dict)  # of single actions, where they differ


@dataclass(frozen=True, slots=True)
class Take:
    """Take this step with a broker."""

    broker: int
    step: Step
    state: HealthState
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Undo what was done: the broker is healthy again, or nothing helped."""

    broker: int
    gave_up: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A step that is due and may not be taken, or a ladder that has ended without success."""

    broker: int
    step: Step | None
    reason: str


Decision = Take | Release | Blocked


def ladder(state: HealthState, abilities: Abilities) -> tuple[Step, ...]:
    restart = (Step.RESTART,) if abilities.restarts else ()
    if state in SLOWNESS:
        first = Step.EXCLUDE if abilities.excludes and abilities.restarts else Step.DEMOTE
        return (first, *restart)
    if state is HealthState.STORAGE_STUCK:
        return (Step.DEMOTE, *((Step.HOLD,) if abilities.restarts else ()))
    return (Step.DEMOTE,) if state in SICK else ()


def decide(situation: Situation, now: float) -> tuple[Decision, ...]:
    """At most one step or release, and every step that is blocked."""
    decisions: list[Decision] = []
    acts = False
    for broker, health in sorted(situation.verdict.brokers.items()):
        mine = situation.open.get(broker)
        if mine is not None and mine.releasing:
            continue
        if mine is not None and health.state is HealthState.HEALTHY and not health.flapping:
            if not acts and not _under_way(mine):
                decisions.append(Release(broker))
                acts = True
            continue
        due = _due(situation, broker, now)
        if due is None:
            continue
        if isinstance(due, Take) and (reason := _obstacle(situation, due, acts=acts)):
            due = Blocked(broker, due.step, reason)
        acts = acts or not isinstance(due, Blocked)
        decisions.append(due)
    return tuple(decisions)


def _due(situation: Situation, broker: int, now: float) -> Decision | None:
    health, mine = situation.verdict.brokers[broker], situation.open.get(broker)
    if health.state not in SICK:
        if mine is not None and health.flapping and health.state is HealthState.HEALTHY:
            return Blocked(broker, None, f"it became sick {len(health.spells)} times within an hour")
        return None
    steps = ladder(health.state, situation.abilities)
    if mine is None:
        return Take(broker, steps[0], health.state, health.reason)
    if _under_way(mine):
        return None
    left = [step for step in steps if step not in mine.steps]
    heals = Step.HOLD in left  # demotion does not help followers of stuck storage
    # Demotion of a broker that is gone costs nothing, and it must not lead as soon as it returns.
    helps = mine.improved is not False or health.state in GONE
    if not (mine.failed or heals) and (now - mine.since < IMPROVED_SECONDS or helps):
        return None
    if left:
        return Take(broker, left[0], health.state, health.reason)
    why = mine.failed or "clients saw no improvement"
    return Release(broker, f"it is still {health.state} after {', '.join(mine.steps)}: {why}")


def _under_way(mine: Open) -> bool:
    return not mine.done and not mine.failed


def _obstacle(situation: Situation, take: Take, *, acts: bool) -> str:
    """Why the step may not be taken now; empty if it may."""
    broker = take.broker
    others = [other for other in situation.open if other != broker]
    mode = _mode(situation, take.step)
    if broker in situation.held:
        return f"an operator holds it: {situation.held[broker]}"
    if mode is not Mode.AUTO:
        return f"the mode is {mode}"
    if situation.verdict.cluster:
        return f"the whole cluster is affected: {situation.verdict.cluster}"
    if len(situation.acted) >= ACTIONS_PER_HOUR_MAX:
        return f"{len(situation.acted)} steps were taken within an hour"
    if broker in situation.given_up:
        return "no step helped within the last hour"
    if len(others) >= max(1, int(BROKERS_SHARE_MAX * len(situation.verdict.brokers))):
        return f"broker {others[0]} is mitigated"
    return "another broker is first" if acts else situation.blocked.get(broker, "")


def _mode(situation: Situation, step: Step) -> Mode:
    """An action may be more careful than its cluster, never less."""
    order = list(Mode)
    return min(situation.mode, situation.modes.get(str(step), Mode.AUTO), key=order.index)
