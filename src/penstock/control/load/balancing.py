"""Balances physical clusters by themselves: carries out the decisions of `balance.rounds`.

Each physical cluster is `off`, or in `advise` or `auto` mode. In each round the active control plane looks at
a cluster that is not off: which goals are violated, what blocks moves, which plans ran lately. A plan is
proposed and, in `auto` mode, run like one of an operator, under the actor `balance`. Recent plans are read
from their topic, so a successor keeps the pace; only how long a goal has been violated is measured again.

Conditions on the physical cluster show the outcome: `imbalanced`, `balance-blocked`, `balancing`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance.broker_load import NO_AGENT
from penstock.balance.cluster_observation import cluster_health
from penstock.balance.goals import GOALS, violations
from penstock.balance.plan_document import PlanState, changes_since
from penstock.balance.rounds import (
    DAY_SECONDS,
    PACE,
    BalancerMode,
    ClusterCondition,
    RecentPlan,
    RoundDecision,
    decide,
)
from penstock.control.decisions import Decision, change_plan, new_operation
from penstock.control.health.interventions import obstacles_to
from penstock.control.load.planning import PlanRequest
from penstock.control.registry import Put
from penstock.control.size.resizing import under_way
from penstock.fleet.adopted.capabilities import Capability
from penstock.model.entities import (
    Actor,
    BrokerStatus,
    Condition,
    ConditionKind,
    LogicalCluster,
    Operation,
    PhysicalCluster,
)
from penstock.model.errors import PenstockError
from penstock.model.ids import BrokerId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from penstock.balance.executing import Health, Observation
    from penstock.balance.plan_document import PlanDocument, PlanDocuments, PlanHeader
    from penstock.balance.rounds import Allowance, Pace
    from penstock.control.decisions import DecisionContext
    from penstock.control.load.planning import ModelledCluster, PlanMaker
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry
    from penstock.model.entities import Entity
    from penstock.model.events import BrokerLoad

ACTOR: Final = "balance"
ROUND_SECONDS: Final = 60.0
ADVICE_SECONDS: Final = 3600.0  # after that, a plan that was not run is made again
SHOWN_MAX: Final = 5  # brokers or partitions that a condition names
UNUSABLE: Final = ConditionKind.UNUSABLE
KINDS: Final = (ConditionKind.IMBALANCED, ConditionKind.BALANCE_BLOCKED, ConditionKind.BALANCING)

log = structlog.get_logger("penstock.control")


class Plans(Protocol):
    """The stored plans."""

    @property
    def documents(self) -> PlanDocuments: ...


class Plane(Protocol):
    """What balancing needs of a control plane."""

    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def plans(self) -> Plans: ...
    @property
    def plan_maker(self) -> PlanMaker: ...
    @property
    def broker_loads(self) -> Mapping[str, tuple[BrokerLoad, ...]]: ...


@dataclass
class BalanceCounts:
    """What plans have moved since this control plane became active, by physical cluster."""

    moves: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # moves and bytes done, by plan
    _started: bool = False

    def update(self, headers: Iterable[PlanHeader]) -> None:
        """Adds what is new. What plans had done before the first call is not counted."""
        seen = {}
        for header in headers:
            now = header.progress.done, header.progress.bytes_done
            before = self._seen.get(header.id, (0, 0) if self._started else now)
            self.moves[header.cluster] += max(now[0] - before[0], 0)
            self.bytes[header.cluster] += max(now[1] - before[1], 0)
            seen[header.id] = now
        self._seen, self._started = seen, True


class Balancing:
    """The rounds of one control plane; it acts only while that is the active one."""

    def __init__(
        self,
        plane: Plane,
        health: Callable[[str, Observation], Awaitable[Health]],
        is_active: Callable[[], bool],
        pace: Pace = PACE,
        *,
        restoring: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`restoring` is the restore that is not complete in a physical cluster."""
        self._plane, self._health, self._is_active, self._pace = plane, health, is_active, pace
        self._restoring = restoring
        self._rounds: dict[str, RoundDecision] = {}
        self.counts = BalanceCounts()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if not self._is_active():
                self._rounds.clear()  # another control plane counts for itself
                self.counts = BalanceCounts()
                continue
            try:
                clusters = [physical.id for physical in self._plane.registry.all(PhysicalCluster)]
            except PenstockError:  # the registry is being read again
                continue
            for cluster in clusters:
                await self._try_round(cluster)

    async def _try_round(self, cluster: str) -> None:
        """What fails is decided again in the next round."""
        try:
            await self.run_round(cluster, time.time())
        except PenstockError as failure:
            log.warning("cluster not balanced", cluster=cluster, error=str(failure))
        except Exception:  # it belongs to this cluster, not to the control plane
            log.exception("round raised", cluster=cluster)

    async def run_round(self, cluster: str, now: float) -> None:
        """One round for one physical cluster."""
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        mode = mode_of(physical)
        if mode is BalancerMode.OFF:
            self._rounds.pop(cluster, None)
            await self._report(physical, {})
            return
        known = await self._plane.plan_maker.modelled(PlanRequest(cluster))
        seen = known.reading.seen
        condition = ClusterCondition(
            violated(known),
            obstacles(self._plane.registry, physical, known, self._loads(cluster))
            + _health_obstacles(await self._health(cluster, seen))
            + await self._restore_obstacles(cluster),
            recent_plans(self._plane.plans.documents, cluster, now),
        )
        before = self._rounds.get(cluster, RoundDecision())
        after = self._rounds[cluster] = decide(before, condition, mode, now, self._pace)
        blocked = after.blocked
        if after.plan is not None:
            blocked = await self._balance(cluster, known, after.plan, now, run=after.run)
        running = self._running(cluster)
        expected = {
            ConditionKind.IMBALANCED: after.imbalanced,
            ConditionKind.BALANCE_BLOCKED: blocked,
            ConditionKind.BALANCING: ", ".join(running),
        }
        await self._report(self._plane.registry.need(PhysicalCluster, cluster), expected)

    async def _restore_obstacles(self, cluster: str) -> tuple[str, ...]:
        """A restore in place decides its next move from the replicas that it has placed."""
        restore = "" if self._restoring is None else await self._restoring(cluster)
        return (f"restore {restore} is running",) if restore else ()

    async def _balance(
        self, cluster: str, known: ModelledCluster, allowance: Allowance, now: float, *, run: bool
    ) -> str:
        """Proposes a plan, and runs it if it may. Returns why there is nothing to run, if so."""
        proposed = self._proposed(cluster)
        seen = known.reading.seen
        if not run and proposed is not None and _current(proposed, seen, now):
            return ""  # it waits for an operator
        if proposed is not None:
            await self._change(proposed.id, "plan.cancel")
        request = PlanRequest(
            cluster, moves_max=allowance.moves, bytes_max=allowance.bytes, resting=allowance.resting
        )
        made = await self._plane.plan_maker.propose(request, ACTOR)
        if not made.moves:
            await self._change(made.id, "plan.cancel")
            lacking = [
                f"{m.cell or cluster} lacks {m.what}, {m.brokers} more brokers would cover it"
                for m in made.header.missing
            ]
            return "no move would help" + (f": {'; '.join(lacking)}" if lacking else "")
        log.info("cluster balanced", cluster=cluster, plan=made.id, moves=len(made.moves), runs=run)
        if run:
            await self._change(made.id, "plan.run")
        return ""

    async def _change(self, plan: str, action: str) -> None:
        changed = partial(change_plan, plan=plan, action=action, arguments={})
        await self._plane.decide(changed, Operation, actor=ACTOR)

    async def _report(self, physical: PhysicalCluster, expected: Mapping[ConditionKind, str]) -> None:
        if any(_detail(physical, kind) != expected.get(kind, "") for kind in KINDS):
            noted = partial(note_balance, physical_id=physical.id, expected=expected)
            await self._plane.decide(noted, PhysicalCluster, actor=ACTOR)

    def _loads(self, cluster: str) -> tuple[BrokerLoad, ...]:
        return self._plane.broker_loads.get(cluster, ())

    def _running(self, cluster: str) -> list[str]:
        headers = self._plane.plans.documents.headers.values()
        active = (PlanState.RUNNING, PlanState.CANCELLING)
        return sorted(each.id for each in headers if each.cluster == cluster and each.state in active)

    def _proposed(self, cluster: str) -> PlanDocument | None:
        """The plan that was proposed before and not run."""
        documents = self._plane.plans.documents
        for header in documents.headers.values():
            own = header.cluster == cluster and header.actor == ACTOR
            if own and header.state is PlanState.PROPOSED:
                return documents.document(header.id)
        return None


def health_of_clusters(clusters: Clusters) -> Callable[[str, Observation], Awaitable[Health]]:
    async def health(cluster: str, seen: Observation) -> Health:
        return await cluster_health(clusters.client(cluster), seen)

    return health


def mode_of(physical: PhysicalCluster) -> BalancerMode:
    """Off, if a newer control plane has set a mode that this one does not know."""
    return next((mode for mode in BalancerMode if mode == physical.balance_mode), BalancerMode.OFF)


def violated(known: ModelledCluster) -> dict[str, str]:
    """The violated goals, and by which brokers; without values, which change in every round."""
    brokers: dict[str, list[int]] = {}
    for each in violations(known.named.model, GOALS, metrics=known.metrics):
        brokers.setdefault(each.goal, []).append(int(known.named.model.brokers.ids[each.broker]))
    trigger = {goal.name: goal.trigger for goal in GOALS}
    return {
        goal: f"more than {trigger[goal]:g} of its fair share on broker {_shown(ids)}"
        for goal, ids in brokers.items()
    }


def obstacles(
    registry: Registry, physical: PhysicalCluster, known: ModelledCluster, loads: Iterable[BrokerLoad]
) -> tuple[str, ...]:
    """Why nothing may move now."""
    reasons = [
        f"the cluster is unusable: {each.detail}" for each in physical.conditions if each.kind == UNUSABLE
    ]
    brokers = [int(broker.id) for broker in physical.brokers]
    reasons += obstacles_to(registry, physical.id, Actor.BALANCE, int(time.time() * 1000), brokers)
    reasons += _resizing(registry, physical)
    if (lacking := physical.lacks(Capability.REASSIGNMENTS)) is not None:
        reasons.append(f"the capability {lacking.capability} is missing: {lacking.reason}")
    alive, states = known.reading.seen.alive, registry.broker_states(physical.id)
    for endpoint in physical.brokers:
        state = states.get(BrokerId(int(endpoint.id)))
        leaving = state is not None and BrokerStatus.LEAVING in state.statuses
        if int(endpoint.id) not in alive and not leaving:
            reasons.append(f"broker {endpoint.id} is not alive")
    unknown = [each for each in loads if each.load is None and int(each.broker) in alive]
    if any(each.missing != (NO_AGENT,) for each in unknown):
        reasons += [f"no load of broker {each.broker}" for each in unknown]
    if under_way := known.reading.seen.under_way:
        reasons.append(f"reassignment of {_shown(sorted(f'{t}-{p}' for t, p in under_way))}")
    tenants = (each for each in registry.all(LogicalCluster) if each.cluster == physical.id)
    moving = {each.id for each in tenants if each.moving_from}
    if moving:
        reasons.append(f"tenant {_shown(sorted(moving))} moves to another cell")
    return tuple(reasons)


def _resizing(registry: Registry, physical: PhysicalCluster) -> list[str]:
    running = under_way(registry, physical.id)
    return [] if running is None else [f"{running.action} is under way ({running.id})"]


def _health_obstacles(health: Health) -> tuple[str, ...]:
    under = sorted(f"{topic}-{number}" for topic, number in health.under_min_isr)
    return (f"{_shown(under)} below the minimum of in-sync replicas",) if under else ()


def recent_plans(documents: PlanDocuments, cluster: str, now: float) -> tuple[RecentPlan, ...]:
    """The plans of the last day that ran, also those of operators."""
    plans = []
    for header in documents.headers.values():
        changed = header.changed_ms / 1000
        never_ran = header.state is PlanState.CANCELLED and not header.progress.done
        if header.cluster != cluster or header.state is PlanState.PROPOSED or never_ran:
            continue
        if header.state.ended and now - changed > DAY_SECONDS:
            continue
        document = documents.document(header.id)
        moves = () if document is None else document.moves
        plans.append(
            RecentPlan(
                changed,
                changed if header.state.ended else None,
                header.progress.done if header.state.ended else header.moves,
                header.progress.bytes_done if header.state.ended else header.size_bytes,
                frozenset((move.topic, move.partition) for move in moves),
            )
        )
    return tuple(plans)


def set_balance_mode(
    registry: Registry, context: DecisionContext, physical_id: str, mode: BalancerMode
) -> Decision:
    before = registry.need(PhysicalCluster, physical_id)
    after = before.changed(context.now_ms, balance_mode=str(mode))
    operation = new_operation(registry, context, "physical.balance", physical_id, None)
    operation = replace(operation, detail=f"balancing is {mode}")
    return Decision(operation, (Put(after), Put(operation)), after, before)


def note_balance(
    registry: Registry, context: DecisionContext, physical_id: str, expected: Mapping[ConditionKind, str]
) -> Decision:
    """Sets, changes or removes the conditions; their start times stay."""
    before = registry.need(PhysicalCluster, physical_id)
    conditions = tuple(each for each in before.conditions if each.kind not in KINDS)
    for kind in KINDS:
        if detail := expected.get(kind, ""):
            known = before.condition(kind)
            since = context.now_ms if known is None else known.since_ms
            conditions += (Condition(str(kind), since, detail, REMEDIES[kind]),)
    after = before.changed(context.now_ms, conditions=conditions)
    operation = new_operation(registry, context, "physical.condition", physical_id, None)
    shown = "; ".join(f"{kind}: {detail}" for kind, detail in expected.items() if detail)
    operation = replace(operation, detail=shown or "balanced")
    return Decision(operation, (Put(after), Put(operation)), after, before)


REMEDIES: Final = {
    ConditionKind.IMBALANCED: "run the proposed plan: `penstock balance list`",
    ConditionKind.BALANCE_BLOCKED: "end what blocks it",
    ConditionKind.BALANCING: "",
}


def _detail(physical: PhysicalCluster, kind: ConditionKind) -> str:
    known = physical.condition(kind)
    return "" if known is None else known.detail


def _current(proposed: PlanDocument, seen: Observation, now: float) -> bool:
    """Whether it could still be run, and is not old."""
    age = now - proposed.header.created_ms / 1000
    return age < ADVICE_SECONDS and not changes_since(proposed.moves, seen, seen.alive)


def _shown(items: Iterable[object]) -> str:
    every = [str(item) for item in items]
    more = len(every) - SHOWN_MAX
    return ", ".join(every[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
