"""Requests and responses of the routes for balancing plans."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from penstock.balance.actions import Purpose
from penstock.balance.executing import Status
from penstock.balance.plan_document import PlanHeader, PlannedMove, PlanState
from penstock.control.api.schemas import Accepted, RequestBody, View


class DroppedView(View):
    reason: str
    moves: int


class UnmetGoalView(View):
    broker: int
    goal: str
    carried: float
    target: float
    refused: dict[str, int]
    """How many of its replicas each reason kept there."""


class MissingCapacityView(View):
    cell: str
    what: str
    missing: float
    brokers: int
    """How many more would cover it."""


class PlanView(View):
    id: str
    cluster: str
    """The physical cluster."""
    state: PlanState
    purpose: str
    actor: str
    created_ms: int
    changed_ms: int
    moves: int
    moves_done: int
    """As last reported; the moves themselves show their present state."""
    moves_copying: int
    moves_dropped: int
    bytes: int
    """What all moves copy together."""
    bytes_done: int
    rate: float
    """Bytes a second that one broker sends or receives at most."""
    rate_now: float
    """The same, after slowing down for brokers under pressure; 0 before the plan runs."""
    waiting: str
    """Why nothing starts now; empty if something does."""
    roll_back: bool
    partial: bool
    """Whether a deadline or a limit ended planning."""
    goals_run: list[str]
    goals_skipped: list[str]
    unmet: list[UnmetGoalView]
    """Brokers that stay above a goal's target, and why."""
    missing: list[MissingCapacityView]
    """What cells lack for the plan."""
    dropped: list[DroppedView]
    error: str

    @classmethod
    def of(cls, header: PlanHeader) -> Self:
        progress = header.progress
        return cls.of_attributes(
            header,
            moves_done=progress.done,
            moves_copying=progress.copying,
            moves_dropped=len(header.dropped_moves),
            bytes=header.size_bytes,
            bytes_done=progress.bytes_done,
            rate_now=progress.rate,
            waiting=progress.waiting,
            goals_run=list(header.goals_run),
            goals_skipped=list(header.goals_skipped),
            unmet=[UnmetGoalView.of_attributes(each, refused=dict(each.refused)) for each in header.unmet],
            missing=[MissingCapacityView.of_attributes(each) for each in header.missing],
            dropped=[DroppedView(reason=each.reason, moves=len(each.moves)) for each in header.dropped],
        )


class MoveView(View):
    number: int
    """In the plan, from 0."""
    topic: str
    partition: int
    before: list[int]
    """Brokers, the preferred leader first."""
    after: list[int]
    goal: str
    reason: str
    bytes: int
    carried_before: float
    """What the source carries of the goal's resource before and after the move."""
    carried_after: float
    state: Status
    detail: str

    @classmethod
    def of(cls, number: int, move: PlannedMove, state: Status, detail: str) -> Self:
        return cls.of_attributes(
            move, number=number, before=list(move.before), after=list(move.after), state=state, detail=detail
        )


class NewPlan(RequestBody):
    physical_cluster: Annotated[str, Field(max_length=63)]
    purpose: Purpose = Purpose.BALANCE
    broker: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    """The broker to relieve, fill, empty, demote or restore. Without it, those in such a state."""
    cell: Annotated[str | None, Field(max_length=63)] = None
    """Only the brokers of this cell."""
    goals: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=20)] = []
    """Which goals run; all, if none is given. No move breaks another one."""
    exclude_topics: Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=1_000)] = []
    """Topics that stay, by their names on the physical cluster."""
    exclude_tenants: Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=1_000)] = []
    """Logical clusters whose topics stay, id or name."""
    moves_max: Annotated[int | None, Field(ge=1)] = None
    bytes_max: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None


class PlanRun(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cluster: Annotated[str | None, Field(max_length=63)] = None
    """If given, the plan must be one of this physical cluster."""
    take_over: bool = False
    """Replace reassignments of other clients instead of waiting for them."""


class PlanCancel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    roll_back: bool = False
    """Also undo the moves that were made."""


class PlanPace(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rate: Annotated[float, Field(gt=0, le=1e12)]
    """Bytes a second that one broker sends or receives, at least 1,000,000."""


class PlanAccepted(Accepted):
    plan: PlanView
