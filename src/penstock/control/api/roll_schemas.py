"""Requests and responses of the routes for rolls and generations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.control.api.schemas import Accepted, RequestBody, View
from penstock.control.rolling.roll_planning import RollPlan, RollSelection
from penstock.fleet.node_generations import NodeGeneration
from penstock.model.entities import Roll, RolledNode, RollState

NODES_MAX = 1_000
DEADLINE_SECONDS_MAX = 7 * 24 * 3600


class NewRoll(RequestBody):
    physical_cluster: Annotated[str, Field(max_length=63)]
    nodes: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=NODES_MAX)] = []
    """None: every node that does not run what the fleet file describes."""
    zones: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=20)] = []
    allow_downtime: bool = False
    """The only controller, and the only broker, may restart."""
    allow_unavailable: Annotated[list[Annotated[str, Field(max_length=249)]], Field(max_length=1_000)] = []
    """Topics whose partitions may be unavailable while their broker restarts."""
    deadline_seconds: Annotated[float | None, Field(gt=0, le=DEADLINE_SECONDS_MAX)] = None
    """After that the roll pauses."""

    def selection(self, now_ms: int) -> RollSelection:
        deadline = now_ms + int(self.deadline_seconds * 1000) if self.deadline_seconds else 0
        return RollSelection(
            self.physical_cluster,
            tuple(self.nodes),
            tuple(self.zones),
            self.allow_downtime,
            tuple(self.allow_unavailable),
            deadline,
        )


class RollDeadline(RequestBody):
    deadline_seconds: Annotated[float | None, Field(gt=0, le=DEADLINE_SECONDS_MAX)] = None


class RolledNodeView(View):
    id: int
    ordered_ms: int
    stop_seconds: float | None
    start_seconds: float | None
    recovery_seconds: float | None
    catch_up_seconds: float | None
    leader_return_seconds: float | None

    @classmethod
    def of(cls, node: RolledNode) -> RolledNodeView:
        spans = node.spans
        return cls(
            id=node.id,
            ordered_ms=node.ordered_ms,
            stop_seconds=spans[0],
            start_seconds=spans[1],
            recovery_seconds=spans[2],
            catch_up_seconds=spans[3],
            leader_return_seconds=spans[4],
        )


class RollView(View):
    id: str
    cluster: str
    """The physical cluster."""
    state: RollState
    scope: list[int]
    nodes_done: int
    nodes: list[RolledNodeView]
    roll_back: bool
    reason: str
    """Why it is paused."""
    evidence: list[str]
    estimate_seconds: float
    deadline_ms: int
    created_ms: int
    ended_ms: int | None

    @classmethod
    def of(cls, roll: Roll) -> RollView:
        rows = [RolledNodeView.of(node) for node in roll.nodes]
        return cls.of_attributes(roll, nodes=rows, nodes_done=len(roll.scope) - roll.remaining)


class RollAccepted(Accepted):
    roll: RollView


class GenerationDifferenceView(View):
    part: str
    running: str
    desired: str


class GenerationView(View):
    id: int
    name: str
    zone: str
    role: str
    kafka: str
    """The version that it runs; empty if it is down."""
    running: str | None
    """Digest of what it runs with; none if it is down."""
    desired: str
    behind: list[GenerationDifferenceView]
    """What a restart would change."""

    @classmethod
    def of(cls, node: NodeGeneration) -> GenerationView:
        running = node.running
        return cls.of_attributes(
            node,
            kafka="" if running is None else running.kafka,
            running=None if running is None else running.digest,
            desired=node.desired.digest,
            behind=[GenerationDifferenceView.of_attributes(each) for each in node.behind],
        )


class GenerationsView(View):
    nodes: list[GenerationView]


class FeatureView(View):
    feature: str
    level: int
    """In force."""
    level_max: int
    """That every registered node supports."""
    enables: str
    limited_by: list[int]
    """Nodes that support less than others."""


class VersionsView(View):
    nodes: dict[str, int]
    """Nodes of a local cluster, by the version that they run."""
    features: list[FeatureView]


class FinalizeAccepted(Accepted):
    features: list[FeatureView]


class RollPlanView(View):
    scope: list[int]
    batches: list[list[int]]
    """Nodes that restart together, in this order."""
    estimate_seconds: float
    at_risk: list[str]
    """Partitions that are unavailable while their broker restarts."""
    blockers: list[str]

    @classmethod
    def of(cls, plan: RollPlan) -> RollPlanView:
        return cls(
            scope=list(plan.request.scope),
            batches=[list(batch) for batch in plan.batches],
            estimate_seconds=plan.request.estimate_seconds,
            at_risk=list(plan.at_risk),
            blockers=list(plan.blockers),
        )
