"""Carries out mitigations: the effects of committed intents, through the executor and the `Restarter`.

Every effect is derived from the mitigation in the registry and from what the cluster shows, and may be
repeated: after a takeover the next control plane continues. An effect that takes long runs in a task of its
broker, so that it delays no judgement. The task ends when another intent replaces its own, when an operator
holds the broker, and when another control plane is the active one.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance.actions import Purpose
from penstock.balance.cluster_observation import observe
from penstock.balance.plan_document import PlannedMove, PlanState
from penstock.control.decisions import change_plan
from penstock.control.health import mitigations
from penstock.control.health.mitigations import ACTOR
from penstock.control.health.probe_tenants import lone_probe_topics
from penstock.control.load.planning import returning_leadership
from penstock.fleet.adopted.capabilities import Capability
from penstock.health.directory_probe import DirectoryProbe
from penstock.health.mitigation import Abilities, Step
from penstock.kafka import isr_exclusion
from penstock.model import fault_points
from penstock.model.entities import Mitigation, Operation, PhysicalCluster
from penstock.model.errors import CallerError, PenstockError
from penstock.model.errors.health import ExclusionIneffective, ExclusionUnsafe, NotRestartable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from penstock.balance.executing import Observation
    from penstock.balance.plan_document import PlanDocument, PlanDocuments, PlanHeader
    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.physical.local_nodes import Nodes
    from penstock.control.registry import Registry
    from penstock.fleet.restarting import Restarter
    from penstock.kafka.client import Client
    from penstock.model.entities import Entity

POLL_SECONDS: Final = 1.0
EFFECT_SECONDS_MAX: Final = 90.0  # of one attempt; then it is begun again
PLAN_PAUSE_MS: Final = 30_000  # from the end of a plan until a move that it dropped is tried again
EXCLUSION_SECONDS: Final = 30.0  # between two looks whether an excluded broker still is
WRITES_MIN: Final = 3  # of the directory probe in a row, before a held broker starts

DEMOTED = fault_points.declare(
    "health.demoted", "a sick broker's leaders have moved; the step is not committed"
)
EXCLUDED = fault_points.declare("health.excluded", "a sick broker is in no ISR; the step is not committed")
ORDERED = fault_points.declare(
    "health.ordered", "the restart of a sick broker is ordered; nothing is committed"
)
RETURNED = fault_points.declare("health.returned", "leaders have returned; the release is not committed")

log = structlog.get_logger("penstock.health")


class PlanProposals(Protocol):
    @property
    def documents(self) -> PlanDocuments: ...
    async def propose_moves(
        self, moves: list[PlannedMove], *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument: ...


class Plane(Protocol):
    """What mitigations need of a control plane."""

    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision: ...
    @property
    def registry(self) -> Registry: ...


class Mitigating:
    def __init__(
        self,
        plane: Plane,
        clusters: Clusters,
        plans: Callable[[], PlanProposals],
        nodes: Nodes | None = None,
    ) -> None:
        self._plane, self._clusters, self._plans, self._nodes = plane, clusters, plans, nodes
        self._running: dict[str, tuple[Mitigation, asyncio.Task[None]]] = {}
        self._controllers: dict[str, Client] = {}
        self._looked_at: dict[str, float] = {}  # at exclusions, by mitigation, monotonic

    def abilities(self, cluster: str) -> Abilities:
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        excludes = physical.lacks(Capability.ISR_EXCLUSION) is None and bool(self._alone(cluster))
        return Abilities(excludes, self._restarter(cluster) is not None)

    def carry_out(self, cluster: str, held: Collection[int] = ()) -> None:
        """Begins or continues the effects of every mitigation of a cluster, except those of held brokers."""
        for mitigation in mitigations.of_cluster(self._plane.registry, cluster).values():
            waits = mitigation.releasing or not (mitigation.done or mitigation.failed)
            begun, task = self._running.get(mitigation.id, (mitigation, None))
            if task is None or task.done():
                if int(mitigation.broker) not in held and (waits or self._look_is_due(mitigation)):
                    started = asyncio.create_task(self._attempt(mitigation))
                    self._running[mitigation.id] = mitigation, started
            elif int(mitigation.broker) in held or _intent(begun) != _intent(mitigation):
                task.cancel()

    def _look_is_due(self, mitigation: Mitigation) -> bool:
        """Whether the broker is excluded, as far as is known: a restart ends that."""
        if not mitigation.done or mitigation.steps[-1] != Step.EXCLUDE:
            return False
        now = time.monotonic()
        if now - self._looked_at.get(mitigation.id, float("-inf")) < EXCLUSION_SECONDS:
            return False
        self._looked_at[mitigation.id] = now
        return True

    def stop(self, cluster: str) -> None:
        """Another control plane continues."""
        for mitigation, task in self._running.values():
            if mitigation.cluster == cluster:
                task.cancel()

    async def close(self) -> None:
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        for client in self._controllers.values():
            await client.close()
        self._controllers.clear()

    async def _attempt(self, mitigation: Mitigation) -> None:
        """One attempt; what is not finished is begun again by the next round."""
        names = {"cluster": mitigation.cluster, "broker": mitigation.broker}
        holds = not mitigation.releasing and mitigation.steps[-1] == Step.HOLD  # as long as it takes
        try:
            async with asyncio.timeout(None if holds else EFFECT_SECONDS_MAX):
                if mitigation.releasing:
                    await self._release(mitigation)
                elif mitigation.done:
                    await self._exclude_again(mitigation)
                else:
                    await self._step(mitigation)
        except (TimeoutError, PenstockError) as failure:
            log.warning("mitigation interrupted", **names, error=str(failure) or "it takes long")
            await asyncio.sleep(POLL_SECONDS)  # rounds follow one another faster
        except Exception:  # it belongs to this broker, not to the control plane
            log.exception("mitigation raised", **names)
            await asyncio.sleep(POLL_SECONDS)

    # Steps

    async def _step(self, mitigation: Mitigation) -> None:
        step = Step(mitigation.steps[-1])
        effects: dict[Step, Callable[[Mitigation], Awaitable[None]]] = {
            Step.DEMOTE: self._demote,
            Step.EXCLUDE: self._exclude,
            Step.HOLD: self._hold,
            Step.RESTART: self._restart,
        }
        failed = ""
        try:
            await effects[step](mitigation)
        except (ExclusionUnsafe, ExclusionIneffective, CallerError) as refusal:
            failed = str(refusal)
        log.info("step ended", broker=mitigation.broker, step=str(step), error=failed)
        ended = partial(mitigations.end_step, key=mitigation.id, step_ms=mitigation.step_ms, failed=failed)
        await self._plane.decide(ended, Mitigation, actor=ACTOR)

    async def _demote(self, mitigation: Mitigation) -> None:
        cluster, broker = str(mitigation.cluster), int(mitigation.broker)
        await self._run_moves(cluster, Purpose.DEMOTE, lambda seen: demotion(seen, broker))
        fault_points.reach(DEMOTED)

    async def _exclude(self, mitigation: Mitigation) -> None:
        cluster, broker = str(mitigation.cluster), int(mitigation.broker)
        client = self._clusters.client(cluster)
        controllers = await self._controllers_of(cluster)
        await isr_exclusion.exclude(client, controllers, broker, expendable=self._alone(cluster))
        fault_points.reach(EXCLUDED)

    async def _exclude_again(self, mitigation: Mitigation) -> None:
        """If it was restarted since: it is back in every ISR, and as slow as before."""
        controllers = await self._controllers_of(str(mitigation.cluster))
        known = (await isr_exclusion.registrations(controllers)).get(int(mitigation.broker))
        if known is not None and not known.excluded and not known.fenced:
            log.warning("exclusion undone by a restart", broker=mitigation.broker)
            await self._exclude(mitigation)

    async def _restart(self, mitigation: Mitigation) -> None:
        restarter, broker = self._need_restarter(mitigation), int(mitigation.broker)
        request = _request(mitigation)
        if (await restarter.state(broker)).request == request:
            return
        await self._check_restart(mitigation)
        await restarter.restart(broker, request)
        fault_points.reach(ORDERED)
        while (await restarter.state(broker)).request != request:
            await asyncio.sleep(POLL_SECONDS)

    async def _hold(self, mitigation: Mitigation) -> None:
        """Stopped, by force if need be; started again once its storage can be written."""
        restarter, broker = self._need_restarter(mitigation), int(mitigation.broker)
        request = _request(mitigation)
        state = await restarter.state(broker)
        if state.request != request:
            await self._check_restart(mitigation)
            await restarter.hold(broker, request)
            fault_points.reach(ORDERED)
            while (await restarter.state(broker)).alive:
                await asyncio.sleep(POLL_SECONDS)
            await self._wait_until_writable(mitigation, partial(restarter.hold, broker, request))
            await restarter.start(broker, request)
        while (await restarter.state(broker)).request != request:
            await asyncio.sleep(POLL_SECONDS)

    async def _wait_until_writable(
        self, mitigation: Mitigation, renew: Callable[[], Awaitable[None]]
    ) -> None:
        """The order lapses unless it is renewed."""
        assert self._nodes is not None
        directory = self._nodes.directory(str(mitigation.cluster), int(mitigation.broker))
        if directory is None:
            return
        probe, writes = DirectoryProbe(directory), 0
        try:
            while writes < WRITES_MIN:
                await renew()
                writes = 0 if await probe.probe() else writes + 1
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await probe.close()

    async def _check_restart(self, mitigation: Mitigation) -> None:
        """No partition may lose its leader or fall below its minimum by a restart."""
        cluster, broker = str(mitigation.cluster), int(mitigation.broker)
        client = self._clusters.client(cluster)
        every = await isr_exclusion.obstacles_now(client, broker, expendable=self._alone(cluster))
        harmed = [each for each in every if each.partition.topic]
        if harmed:
            raise ExclusionUnsafe(broker=broker, reason=str(harmed[0]))

    # Release

    async def _release(self, mitigation: Mitigation) -> None:
        if mitigations.is_member(self._plane.registry, mitigation):
            await self._undo(mitigation)
        fault_points.reach(RETURNED)
        await self._plane.decide(partial(mitigations.end_release, key=mitigation.id), Mitigation, actor=ACTOR)

    async def _undo(self, mitigation: Mitigation) -> None:
        cluster, broker = str(mitigation.cluster), int(mitigation.broker)
        await self._cancel_plans(cluster, Purpose.DEMOTE)
        if Step.EXCLUDE in mitigation.steps:
            await self._end_exclusion(mitigation)
        client = self._clusters.client(cluster)
        while not mitigation.gave_up and not in_sync(await observe(client), broker):
            await asyncio.sleep(POLL_SECONDS)
        if mitigations.others_let_lead(self._plane.registry, mitigation):
            documents = self._plans().documents
            await self._run_moves(
                cluster, Purpose.RESTORE, lambda seen: returning_leadership(documents, seen, cluster, broker)
            )

    async def _end_exclusion(self, mitigation: Mitigation) -> None:
        """Only a restart does."""
        cluster, broker = str(mitigation.cluster), int(mitigation.broker)
        controllers = await self._controllers_of(cluster)
        restarter, request = self._need_restarter(mitigation), f"{_request(mitigation)}-release"
        registration = (await isr_exclusion.registrations(controllers)).get(broker)
        if registration is not None and registration.excluded:
            await restarter.restart(broker, request)
            fault_points.reach(ORDERED)
        while True:
            known = (await isr_exclusion.registrations(controllers)).get(broker)
            if known is not None and not known.excluded and not known.fenced:
                return
            await asyncio.sleep(POLL_SECONDS)

    # Parts

    async def _run_moves(
        self, cluster: str, purpose: Purpose, moves_of: Callable[[Observation], list[PlannedMove]]
    ) -> None:
        """Runs plans until there is nothing left to move; continues those of a predecessor."""
        plans = self._plans()
        while True:
            own = self._own_plans(cluster, purpose)
            running = [header for header in own if not header.state.ended]
            for header in running:
                if header.state is PlanState.PROPOSED:
                    await self._change_plan(header.id, "plan.run")
            if not running:
                moves = moves_of(await observe(self._clusters.client(cluster)))
                if not moves:
                    return
                tried = self._tried(own, int(time.time() * 1000))
                fresh = [move for move in moves if (move.name, move.after) not in tried]
                if fresh:
                    made = await plans.propose_moves(
                        fresh, cluster=cluster, actor=ACTOR, purpose=str(purpose)
                    )
                    await self._change_plan(made.id, "plan.run")
            await asyncio.sleep(POLL_SECONDS / 4 if running else POLL_SECONDS)

    def _tried(self, own: list[PlanHeader], now_ms: int) -> set[tuple[str, tuple[int, ...]]]:
        """Moves of plans that ended a moment ago: one that was dropped would be dropped again."""
        recent = [each.id for each in own if 0 <= now_ms - each.changed_ms < PLAN_PAUSE_MS]
        documents = [self._plans().documents.document(each) for each in recent]
        return {(move.name, move.after) for each in documents if each is not None for move in each.moves}

    async def _cancel_plans(self, cluster: str, purpose: Purpose) -> None:
        """Those of a step that did not end; returns when they have."""
        while running := [each for each in self._own_plans(cluster, purpose) if not each.state.ended]:
            for header in running:
                if header.state is not PlanState.CANCELLING:
                    await self._change_plan(header.id, "plan.cancel")
            await asyncio.sleep(POLL_SECONDS / 4)

    def _own_plans(self, cluster: str, purpose: Purpose) -> list[PlanHeader]:
        key = cluster, ACTOR, str(purpose)
        every = self._plans().documents.headers.values()
        return [each for each in every if (each.cluster, each.actor, each.purpose) == key]

    async def _change_plan(self, plan: str, action: str) -> None:
        change = partial(change_plan, plan=plan, action=action, arguments={})
        await self._plane.decide(change, Operation, actor=ACTOR)

    def _restarter(self, cluster: str) -> Restarter | None:
        return None if self._nodes is None else self._nodes.restarter(cluster)

    def _need_restarter(self, mitigation: Mitigation) -> Restarter:
        restarter = self._restarter(str(mitigation.cluster))
        if restarter is None:
            raise NotRestartable(broker=mitigation.broker, cluster=mitigation.cluster)
        return restarter

    async def _controllers_of(self, cluster: str) -> Client:
        if cluster not in self._controllers:
            provided = self._clusters.get(cluster)
            self._controllers[cluster] = await provided.controllers_client(self._clusters.client(cluster))
        return self._controllers[cluster]

    def _alone(self, cluster: str) -> frozenset[str]:
        return lone_probe_topics(self._plane.registry, cluster)


def demotion(seen: Observation, broker: int) -> list[PlannedMove]:
    """Puts the broker last wherever it leads or is preferred, and another replica is in sync."""
    moves = []
    for (topic, number), state in sorted(seen.partitions.items()):
        if state.reassigning or broker not in (state.leader, state.replicas[0]):
            continue
        others = [b for b in state.replicas if b != broker]
        able = [b for b in others if b in state.isr and b in seen.alive]
        if not able:
            continue
        after = (*able, *(b for b in others if b not in able), broker)
        if state.replicas == after and state.leader != broker:
            continue
        reason = f"broker {broker} is demoted"
        moves.append(
            PlannedMove(topic, state.topic_id, number, state.replicas, after, goal="leads", reason=reason)
        )
    return moves


def in_sync(seen: Observation, broker: int) -> bool:
    """Whether the broker is in the ISR of every partition that it has."""
    if broker not in seen.alive:
        return False
    return all(broker in state.isr for state in seen.partitions.values() if broker in state.replicas)


def _intent(mitigation: Mitigation) -> tuple[int, bool]:
    return mitigation.step_ms, mitigation.releasing


def _request(mitigation: Mitigation) -> str:
    """Of the last step: the same whenever it is repeated."""
    return f"health-{mitigation.broker}-{mitigation.step_ms}"
