"""The states of a link, as a table.

A change commits to `_penstock.links` before its effect, so a process that takes over continues it. The
diagram of `docs/link.md` is drawn from this table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.errors.link import LinkStateConflict

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    CREATING = "creating"
    REVERSING = "reversing"  # of a link back: the destination is closed, and its tails are saved
    TRUNCATING = "truncating"  # of a link back: its replicas truncate to what both sides have
    MIRRORING = "mirroring"
    PAUSED = "paused"
    PROMOTING = "promoting"
    FAILING_OVER = "failing-over"
    ACTIVE = "active"


class Action(StrEnum):
    REVERSE = "reverse"
    TRUNCATE = "truncate"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    FAILOVER = "failover"
    CANCEL = "cancel"  # by the link itself, if a promotion fails before real brokers lead
    FINISH = "finish"


TRANSITIONS: Final[Mapping[tuple[State, Action], State]] = {
    (State.CREATING, Action.START): State.MIRRORING,
    (State.CREATING, Action.REVERSE): State.REVERSING,
    (State.REVERSING, Action.TRUNCATE): State.TRUNCATING,
    (State.TRUNCATING, Action.START): State.MIRRORING,
    # The other side died meanwhile: the topics open with what they have.
    (State.REVERSING, Action.FAILOVER): State.FAILING_OVER,
    (State.TRUNCATING, Action.FAILOVER): State.FAILING_OVER,
    (State.MIRRORING, Action.PAUSE): State.PAUSED,
    (State.PAUSED, Action.RESUME): State.MIRRORING,
    (State.MIRRORING, Action.PROMOTE): State.PROMOTING,
    (State.MIRRORING, Action.FAILOVER): State.FAILING_OVER,
    (State.PAUSED, Action.FAILOVER): State.FAILING_OVER,
    # The source died during a planned promotion.
    (State.PROMOTING, Action.FAILOVER): State.FAILING_OVER,
    (State.PROMOTING, Action.CANCEL): State.MIRRORING,
    (State.PROMOTING, Action.FINISH): State.ACTIVE,
    (State.FAILING_OVER, Action.FINISH): State.ACTIVE,
}


class Step(StrEnum):
    """Steps of a promotion, in order. Each is idempotent, and recorded when it is done."""

    FENCED = "fenced"  # the source accepts no more records; skipped by a failover
    DRAINED = "drained"  # everything is here; skipped by a failover
    STEPPED_DOWN = "stepped-down"  # real brokers lead
    ABORTED = "aborted"  # no transaction is open
    OPENED = "opened"  # clients may write
    REMOVED = "removed"  # the shadow is in no replica list, and not registered


STEPS: Final = tuple(Step)
_OF_FAILOVER: Final = STEPS[STEPS.index(Step.STEPPED_DOWN) :]


def next_state(link: str, state: State, action: Action) -> State:
    """The state after an action; raises if the action is not possible now."""
    after = TRANSITIONS.get((state, action))
    if after is None:
        possible = ", ".join(sorted(a for s, a in TRANSITIONS if s is state)) or "nothing"
        raise LinkStateConflict(link=link, state=state, action=action, possible=possible)
    return after


def steps_left(state: State, done: Step | None) -> tuple[Step, ...]:
    """What a promotion or a failover has still to do."""
    steps = STEPS if state is State.PROMOTING else _OF_FAILOVER
    after = STEPS.index(done) + 1 if done is not None else 0
    return tuple(step for step in steps if STEPS.index(step) >= after)


def diagram() -> str:
    """The table as a Mermaid diagram."""
    arrows = [f"    {before} --> {after}: {action}" for (before, action), after in TRANSITIONS.items()]
    text = "\n".join(["stateDiagram-v2", f"    [*] --> {State.CREATING}", *arrows])
    return text.replace(State.FAILING_OVER, "failing_over")
