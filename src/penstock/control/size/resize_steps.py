"""The steps of growing and shrinking a physical cluster. Each is idempotent, also across control planes.

Replicas move by plans of the planner, run like any other plan: they share the executor's budget, survive this
control plane, and can be paced. A step that moves replicas finds its latest plan by its actor and continues
from there, so it returns soon and is called again until it is done.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from penstock.balance.actions import Purpose
from penstock.balance.cluster_observation import observe
from penstock.balance.goals import GOALS
from penstock.balance.model import Resource
from penstock.balance.plan_document import PlanState
from penstock.control.load.planning import PlanRequest, unsettled_tenants
from penstock.control.operations import Step
from penstock.control.size import resizing
from penstock.control.step_outcome import Outcome, Pending, no_changes
from penstock.kafka.admin import brokers as broker_calls
from penstock.kafka.admin import configs
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.entities import LogicalCluster, Operation, PhysicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import BrokerNotEmpty, ResizePlanCancelled
from penstock.model.errors.control import ProvisionerMissing
from penstock.model.fault_points import declare, reach
from penstock.model.ids import tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.balance.executing import Observation
    from penstock.balance.plan_document import PlanHeader
    from penstock.control.load.plan_service import PlanService
    from penstock.control.load.planning import PlanMaker
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster, Provisioner
    from penstock.control.registry import Change, Registry

POLL_SECONDS: Final = 1.0  # between two looks at a plan
STOPPED_SECONDS: Final = 2.0  # between two looks at a broker that someone else stops
ROUNDS_MAX: Final = 4  # plans that fill brokers; then they carry what can be moved
MEASURED_SECONDS: Final = 150.0  # after a plan, until rates and loads are those of its outcome
JOINING_SECONDS: Final = 20.0  # until gateways elsewhere serve a new broker
CORDONED: Final = "cordoned.log.dirs"  # KIP-1066, from metadata.version 4.3
EVERYTHING: Final = "*"
SHARE: Final = 0.9  # of the fair load: a new broker with as much is filled
LOAD_GOAL, LOAD_FLOOR = next((goal.name, goal.floor) for goal in GOALS if goal.resource is Resource.LOAD)
RESIZE_STEPS: Final = frozenset(
    (
        Step.START, Step.FILL, Step.CORDON, Step.UNCORDON, Step.EMPTY, Step.STOP, Step.UNREGISTER,
        Step.FORGET,
    )
)  # fmt: skip

PROPOSED: Final = declare("control.resize.proposed", "a plan to fill or empty brokers is stored, and not run")

log = structlog.get_logger("penstock.control")


class ResizeSteps:
    """Performs the steps on the known clusters."""

    def __init__(
        self, clusters: Clusters, registry: Callable[[], Registry], provisioner: Provisioner | None
    ) -> None:
        self._clusters, self._registry, self._provisioner = clusters, registry, provisioner
        self.plans: PlanService | None = None  # of the leadership term
        self.maker: PlanMaker | None = None

    async def perform(self, step: Step, operation: Operation) -> Outcome | Pending:
        match step:
            case Step.START:
                return await self.start(operation)
            case Step.FILL:
                return await self.fill(operation)
            case Step.CORDON:
                return await self.cordon(operation)
            case Step.UNCORDON:
                return await self.uncordon(operation)
            case Step.EMPTY:
                return await self.empty(operation)
            case Step.STOP:
                return await self.stop(operation)
            case Step.UNREGISTER:
                return await self.unregister(operation)
            case _:
                return await self.forget(operation)

    def _physical(self, operation: Operation) -> PhysicalCluster:
        return self._registry().need(PhysicalCluster, operation.subject)

    def _provider(self) -> Provisioner:
        if self._provisioner is None:
            raise ProvisionerMissing(reason="it was started without a provisioner")
        return self._provisioner

    # Growing

    async def start(self, operation: Operation) -> Outcome:
        provided = await self._provider().grow(self._physical(operation), resizing.brokers_of(operation))
        self._clusters.add(provided)

        def started(registry: Registry, now_ms: int) -> tuple[Change, ...]:
            bootstrap = provided.tenants_bootstrap
            return resizing.grown(registry, operation, provided.brokers, bootstrap, now_ms)

        return started

    async def fill(self, operation: Operation) -> Outcome | Pending:
        assert self.plans is not None
        if operation.action == resizing.FILL and (left := _left(operation.created_ms, JOINING_SECONDS)) > 0:
            return Pending(left, "gateways get to know the new brokers")
        actor = f"{resizing.GROWTH}/{operation.id}"
        plan = await self.plans.latest(operation.subject, actor)
        if plan is not None and (waiting := await self._follow(plan)) is not None:
            return waiting
        done = partial(resizing_done, resizing.filled, operation)
        if plan is not None:
            if not plan.moves or self._rounds(operation, actor) >= ROUNDS_MAX:
                return done
            if LOAD_GOAL in plan.goals_run and (waiting := self._measure(operation, plan)) is not None:
                return waiting
            if self._carries_its_share(operation):
                return done
        made = await self._propose(operation, PlanRequest(operation.subject, Purpose.FILL), actor)
        return Pending(0.0, _progress(made)) if made.moves else done

    def _measure(self, operation: Operation, plan: PlanHeader) -> Pending | None:
        """Waits until loads are those of the plan's outcome; there is no need to while brokers are idle."""
        assert self.maker is not None
        left = _left(plan.changed_ms, MEASURED_SECONDS)
        if left <= 0 or is_idle(self.maker.loads(operation.subject).values()):
            return None
        return Pending(min(left, 5.0), f"measuring the load of the new brokers, {left:.0f} s left")

    def _carries_its_share(self, operation: Operation) -> bool:
        assert self.maker is not None
        loads = self.maker.loads(operation.subject)
        new, physical = resizing.brokers_of(operation), self._physical(operation)
        return all(
            carries_share([loads.get(int(b)) for b in cell.brokers], [loads.get(int(b)) for b in joining])
            for cell in physical.cells
            if (joining := [broker for broker in cell.brokers if broker in new])
        )

    # Shrinking

    async def cordon(self, operation: Operation) -> Outcome:
        await self._set_cordon(operation, EVERYTHING)
        return no_changes

    async def uncordon(self, operation: Operation) -> Outcome:
        await self._set_cordon(operation, None)
        return partial(resizing_done, resizing.kept, operation)

    async def empty(self, operation: Operation) -> Outcome | Pending:
        assert self.plans is not None
        actor = f"{resizing.SHRINKING}/{operation.id}"
        plan = await self.plans.latest(operation.subject, actor)
        if plan is not None and (waiting := await self._follow(plan)) is not None:
            return waiting
        seen = await observe(self._clusters.client(operation.subject))
        leaving = resizing.brokers_of(operation)
        held = holdings(seen, leaving)
        if not held:
            return no_changes
        if any(key in seen.under_way for keys in held.values() for key in keys):
            return Pending(POLL_SECONDS, "reassignments of others are under way")
        tenants = {tenant_of(topic) for keys in held.values() for topic, _ in keys}
        if tenants <= self._unsettled(operation.subject):
            return Pending(STOPPED_SECONDS, f"tenant {min(tenants)} is moved, created or deleted")
        made = await self._propose(operation, PlanRequest(operation.subject, Purpose.EMPTY), actor)
        if not made.moves:
            _require_empty(held)
        return Pending(0.0, _progress(made))

    def _unsettled(self, physical: str) -> set[str]:
        """Tenants whose partitions no plan moves for the moment."""
        return unsettled_tenants(
            one for one in self._registry().all(LogicalCluster) if one.cluster == physical
        )

    async def stop(self, operation: Operation) -> Outcome | Pending:
        physical, leaving = self._physical(operation), resizing.brokers_of(operation)
        client = self._clusters.client(physical.id)
        seen = await observe(client)
        _require_empty(holdings(seen, leaving))
        if await self._provider_stops(physical, leaving):
            return no_changes
        running = sorted(set(leaving) & seen.alive)
        if running:
            shown = ", ".join(map(str, running))
            return Pending(STOPPED_SECONDS, f"broker {shown} is empty; stop it where it runs")
        return no_changes

    async def _provider_stops(self, physical: PhysicalCluster, leaving: Collection[int]) -> bool:
        return self._provisioner is not None and await self._provisioner.shrink(physical, leaving)

    async def unregister(self, operation: Operation) -> Outcome | Pending:
        """Kafka unregisters a broker that holds replicas, so they are counted here."""
        client = self._clusters.client(operation.subject)
        leaving = resizing.brokers_of(operation)
        _require_empty(holdings(await observe(client), leaving))
        listed = (await broker_calls.describe(client, fenced=True)).brokers
        for broker in leaving:
            if broker not in listed:
                continue
            if not listed[broker].fenced:
                return Pending(POLL_SECONDS, f"the controller still counts on broker {broker}")
            await broker_calls.unregister(client, broker)
            log.info("broker unregistered", cluster=operation.subject, broker=broker)
        return no_changes

    async def forget(self, operation: Operation) -> Outcome:
        physical = self._physical(operation)
        provided: ProvidedCluster | None = None
        if self._provisioner is not None:
            provided = await self._provisioner.forget(physical, resizing.brokers_of(operation))
        if provided is not None:
            self._clusters.add(provided)
        bootstrap = "" if provided is None else provided.tenants_bootstrap

        def gone(registry: Registry, now_ms: int) -> tuple[Change, ...]:
            return resizing.shrunk(registry, operation, bootstrap, now_ms)

        return gone

    async def _set_cordon(self, operation: Operation, value: str | None) -> None:
        """Kafka places topics of others, and its own, by itself. An older one does not know the key."""
        client = self._clusters.client(operation.subject)
        for broker in resizing.brokers_of(operation):
            change = {configs.broker(broker): configs.changes({CORDONED: value})}
            try:
                results_or_raise(await configs.alter(client, change))
            except PenstockError as failure:
                log.warning(
                    "broker not cordoned in Kafka",
                    cluster=operation.subject,
                    broker=broker,
                    error=str(failure),
                )

    # Plans

    async def _propose(self, operation: Operation, request: PlanRequest, actor: str) -> PlanHeader:
        """Makes a plan and runs it, if there is anything to move."""
        assert self.plans is not None
        assert self.maker is not None
        known = await self.maker.modelled(request)
        plan, names = await self.maker.plan(request, known, time.monotonic())
        purpose = str(request.purpose)
        made = await self.plans.propose(plan, names, cluster=operation.subject, actor=actor, purpose=purpose)
        reach(PROPOSED)
        await self.plans.start(made.id)
        return made.header

    async def _follow(self, plan: PlanHeader) -> Pending | None:
        """None once the plan has ended."""
        assert self.plans is not None
        if plan.state is PlanState.CANCELLED:
            raise ResizePlanCancelled(plan=plan.id)
        if plan.state is PlanState.PROPOSED:
            await self.plans.start(plan.id)
        return None if plan.state.ended else Pending(POLL_SECONDS, _progress(plan))

    def _rounds(self, operation: Operation, actor: str) -> int:
        assert self.plans is not None
        headers = self.plans.documents.headers.values()
        return sum(header.cluster == operation.subject and header.actor == actor for header in headers)


def resizing_done(
    change: Callable[[Registry, Operation, int], tuple[Change, ...]],
    operation: Operation,
    registry: Registry,
    now_ms: int,
) -> tuple[Change, ...]:
    return change(registry, operation, now_ms)


def is_idle(loads: Collection[float]) -> bool:
    """Whether no broker carries enough for a difference to matter."""
    return bool(loads) and max(loads) < LOAD_FLOOR


def carries_share(cell: Sequence[float | None], joining: Sequence[float | None]) -> bool:
    """Whether new brokers carry about as much as the others of their cell, as far as that is measured."""
    loads = [load for load in cell if load is not None]
    if len(loads) < len(cell):
        return False
    mean = sum(loads) / len(loads)
    return max(loads) < LOAD_FLOOR or all(load is not None and load >= SHARE * mean for load in joining)


def holdings(seen: Observation, brokers: Collection[int]) -> dict[int, list[tuple[str, int]]]:
    """What these brokers hold, or are about to; also mirrors, which only their link can place elsewhere."""
    holders = {key: {*state.replicas, *state.adding} for key, state in seen.partitions.items()}
    holders |= {key: set(replicas) for key, replicas in seen.mirrors.items()}
    held: dict[int, list[tuple[str, int]]] = {}
    for key, every in sorted(holders.items()):
        for broker in every & set(brokers):
            held.setdefault(broker, []).append((key[0], key[1]))
    return held


def _require_empty(held: dict[int, list[tuple[str, int]]]) -> None:
    for broker, partitions in held.items():
        topic, number = partitions[0]
        raise BrokerNotEmpty(broker=broker, replicas=len(partitions), partition=f"{topic}-{number}")


def _progress(plan: PlanHeader, now_ms: int | None = None) -> str:
    """`plan-x: 3 of 12 moves, 1.2 of 4.0 GB, about 90 s left`."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    done, copied = plan.progress.done, plan.progress.bytes_done
    text = f"{plan.id}: {done} of {plan.moves} moves, {copied / 1e6:.1f} of {plan.size_bytes / 1e6:.1f} MB"
    if plan.progress.waiting:
        return f"{text}; {plan.progress.waiting}"
    elapsed = (now_ms - plan.changed_ms) / 1000
    if 0 < copied < plan.size_bytes and elapsed > 0:
        return f"{text}, about {(plan.size_bytes - copied) * elapsed / copied:.0f} s left"
    return text


def _left(since_ms: int, seconds: float) -> float:
    return since_ms / 1000 + seconds - time.time()
