"""What a plan consists of: what was requested, the actions with their reasons, and what remains undone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.balance.model import ClusterModel, Floats


class ActionKind(StrEnum):
    LEADERSHIP = "leadership"
    MOVE = "move"
    SWAP = "swap"


class Purpose(StrEnum):
    """What a plan is for."""

    BALANCE = "balance"
    RELIEVE = "relieve"  # one broker, no more than needed
    FILL = "fill"  # new brokers; no other receives anything
    EMPTY = "empty"  # leaving and dead brokers; only their replicas move
    DEMOTE = "demote"  # brokers that may not lead; only leadership moves
    RESTORE = "restore"  # a broker that may lead again; what its demotion moved returns


@dataclass(frozen=True, slots=True)
class Request:
    purpose: Purpose = Purpose.BALANCE
    broker: int | None = None  # to relieve
    cell: int | None = None  # only this one
    topics_excluded: frozenset[int] = frozenset()
    tenants_excluded: frozenset[int] = frozenset()
    actions_max: int | None = None
    bytes_max: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Which goal an action helps, and what the relieved broker carries of its resource."""

    goal: str
    broker: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Action:
    """One partition's new replicas, preferred leader first; brokers are the model's numbers."""

    kind: ActionKind
    goal: str
    partition: int
    source: int
    destination: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes: float
    carried_before: float  # by the source, of the goal's resource
    carried_after: float
    leadership: Reason | None = None  # of a move, if the partition is also led elsewhere afterwards

    @property
    def elects(self) -> bool:
        """Whether the first broker of `after` becomes the leader; otherwise the leader's replica keeps it."""
        return self.kind is ActionKind.LEADERSHIP or self.leadership is not None


@dataclass(frozen=True, slots=True)
class Remainder:
    """A broker that stays above a goal's target, and how many replicas each reason kept there."""

    broker: int
    goal: str
    carried: float
    target: float
    refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a cell lacks for the request, and how many brokers would cover it."""

    cell: int
    what: str  # a resource's goal, or `zones`
    missing: float
    brokers: int


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...]
    goals_run: tuple[str, ...]
    goals_skipped: tuple[str, ...]
    remainders: tuple[Remainder, ...]
    partial: bool  # the deadline or a limit ended it
    totals: Floats = field(compare=False)  # [broker, resource] once it is executed
    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def bytes(self) -> float:
        return sum(action.bytes for action in self.actions)


def executed(model: ClusterModel, actions: Sequence[Action]) -> ClusterModel:
    """The cluster once these actions are done: replicas placed and in sync, preferred leaders elected."""
    replicas, leaders = model.replicas.copy(), model.leaders.copy()
    in_sync = model.in_sync.copy()
    for action in actions:
        replicas[action.partition, : len(action.after)] = action.after
        in_sync[action.partition, : len(action.after)] = True
        if action.elects:
            leaders[action.partition] = 0
    return replace(model, replicas=replicas, leaders=leaders, in_sync=in_sync)
