"""What to do about a sick broker: the next step of its ladder, or why not. Pure.

| state | first | then |
|---|---|---|
| `cut-off`, `down`, `fenced` | demote | |
| `storage-stuck` | demote | restart, held until its storage can be written |
| `slow`, `slow-follower` | exclude | restart |

Without the capability `isr-exclusion`, or without anything that can restart brokers (only a restart ends an
exclusion), a slow broker is demoted instead. A step that brings clients no improvement within a minute is
followed by the next one. After the last, what was done is undone, and an operator is needed; the broker is
left alone for an hour. A step that helps stays until the broker has been healthy for a minute. Then it is
undone in every mode. A broker that becomes sick while that happens is mitigated from the first step again,
and one that has left the cluster is let go.

Nothing is decided without evidence in the last tick, except to let go. What has no effect for five minutes
is reported.

Guards, in this order: an operator's hold, the mode of the cluster and of the action, faults of the whole
cluster, a limit per hour, one broker at a time (or a tenth), a step that did not help before, and other
interventions. A hold delays the undoing, too, and the first three keep what did not help in place. The
exclusion checks every partition itself, and the executor never takes a partition's leader away without
another in-sync replica.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.health.detector import SICK, SLOWNESS, HealthState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.health.detector import BrokerHealth, Verdict

IMPROVED_SECONDS: Final = 60.0  # until a step without effect is followed by the next
LATE_SECONDS: Final = 300.0  # until an effect that is not there is reported
ACTIONS_PER_HOUR_MAX: Final = 6  # of one cluster
HOUR_SECONDS: Final = 3600.0
GONE: Final = frozenset((HealthState.DOWN, HealthState.FENCED))
LEFT: Final = "it has left the cluster"
BROKERS_SHARE_MAX: Final = 0.1  # that are mitigated at the same time; at least one


class HealthMode(StrEnum):
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
    since: float  # of the last step or, once it is done, of its effect; of the release, if there is one
    done: bool = True  # the effect of the last step is there
    failed: str = ""  # why it is not, and will not be
    improved: bool | None = None  # what clients see; None: unknown
    releasing: bool = False
    gave_up: bool = False  # it is released although the broker is sick


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the cluster allows."""

    excludes: bool = False
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    verdict: Verdict
    mode: HealthMode
    open: Mapping[int, Open]
    abilities: Abilities
    held: Mapping[int, str]  # brokers that an operator holds, with the reason
    acted: Sequence[float] = ()  # when steps were taken, within the last hour
    given_up: frozenset[int] = frozenset()  # brokers for which no step helped, within the last hour
    blocked: Mapping[int, str] = field(default_factory=dict)  # why another intervention forbids any
    modes: Mapping[str, HealthMode] = field(default_factory=dict)  # of single actions, where they differ


@dataclass(frozen=True, slots=True)
class Take:
    """Take this step with a broker."""

    broker: int
    step: Step
    state: HealthState
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Undo what was done: the broker is healthy again, or nothing helped, or it has left the cluster."""

    broker: int
    gave_up: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """What is due and may not be done, or does not end."""

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
    """At most one step or release, and everything that is blocked."""
    decisions: list[Decision] = []
    acts = False
    for broker in sorted({*situation.verdict.brokers, *situation.open}):
        due = _due(situation, broker, now)
        if due is None or (isinstance(due, Release) and acts):
            continue
        if not isinstance(due, Blocked) and (reason := _obstacle(situation, due, acts=acts)):
            due = Blocked(broker, due.step if isinstance(due, Take) else None, reason)
        acts = acts or not isinstance(due, Blocked)
        decisions.append(due)
    return tuple(decisions)


def _due(situation: Situation, broker: int, now: float) -> Decision | None:
    health, mine = situation.verdict.brokers.get(broker), situation.open.get(broker)
    if health is None:
        known = bool(situation.verdict.brokers)  # else nothing has been judged yet
        return Release(broker, LEFT) if known and mine is not None and not mine.releasing else None
    sick = health.judged and health.state in SICK
    if mine is None:
        return _first(situation, broker, health) if sick else None
    late = now - mine.since >= LATE_SECONDS
    if mine.releasing:
        if sick and not mine.gave_up:
            return _first(situation, broker, health)
        return Blocked(broker, None, "what was done is not undone yet") if late else None
    if health.state is HealthState.HEALTHY:
        if health.flapping:
            return Blocked(broker, None, f"it became sick {len(health.spells)} times within an hour")
        return Release(broker) if late or not _under_way(mine) else None
    if _under_way(mine):
        return Blocked(broker, mine.steps[-1], "it has no effect yet") if late else None
    return _next(situation, health, mine, now) if sick else None


def _first(situation: Situation, broker: int, health: BrokerHealth) -> Take:
    return Take(broker, ladder(health.state, situation.abilities)[0], health.state, health.reason)


def _next(situation: Situation, health: BrokerHealth, mine: Open, now: float) -> Decision | None:
    left = [step for step in ladder(health.state, situation.abilities) if step not in mine.steps]
    heals = Step.HOLD in left  # demotion does not help followers of stuck storage
    # Demotion of a broker that is gone costs nothing, and it must not lead as soon as it returns.
    helps = mine.improved is not False or health.state in GONE
    if not (mine.failed or heals) and (now - mine.since < IMPROVED_SECONDS or helps):
        return None
    if left:
        failed = f"; {mine.steps[-1]} failed: {mine.failed}" if mine.failed else ""
        return Take(mine.broker, left[0], health.state, health.reason + failed)
    why = mine.failed or "clients saw no improvement"
    return Release(mine.broker, f"it is still {health.state} after {', '.join(mine.steps)}: {why}")


def _under_way(mine: Open) -> bool:
    return not mine.done and not mine.failed


def _obstacle(situation: Situation, due: Take | Release, *, acts: bool) -> str:
    """Why it may not be done now; empty if it may."""
    broker, whole = due.broker, situation.verdict.cluster
    if isinstance(due, Release) and broker not in situation.verdict.brokers:
        return ""
    if broker in situation.held:
        return f"an operator holds it: {situation.held[broker]}"
    if isinstance(due, Release) and not due.gave_up:
        return ""
    mode = _mode(situation, due.step) if isinstance(due, Take) else situation.mode
    if mode is not HealthMode.AUTO:
        return f"the mode is {mode}"
    if whole:  # nor does it show that a step did not help
        return f"the whole cluster is affected: {whole}"
    return _limit(situation, broker, acts=acts) if isinstance(due, Take) else ""


def _limit(situation: Situation, broker: int, *, acts: bool) -> str:
    others = [other for other in situation.open if other != broker]
    if len(situation.acted) >= ACTIONS_PER_HOUR_MAX:
        return f"{len(situation.acted)} steps were taken within an hour"
    if broker in situation.given_up:
        return "no step helped within the last hour"
    if len(others) >= max(1, int(BROKERS_SHARE_MAX * len(situation.verdict.brokers))):
        return f"broker {others[0]} is mitigated"
    return "another broker is first" if acts else situation.blocked.get(broker, "")


def _mode(situation: Situation, step: Step) -> HealthMode:
    """An action may be more careful than its cluster, never less."""
    order = list(HealthMode)
    return min(situation.mode, situation.modes.get(str(step), HealthMode.AUTO), key=order.index)
