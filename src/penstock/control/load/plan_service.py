"""Runs plans in the active control plane, and lets leaders return; all through the executor of each cluster.

A plan that is running or cancelling is run by whichever control plane is active, from its document alone. A
failure belongs to its plan: it is reported in the plan's progress, and the plan is tried again. During a roll
only plans begin that copy nothing: those by which health demotes a sick broker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.balance import leader_return
from penstock.balance.cluster_observation import observe
from penstock.balance.plan_document import Origin, PlanState, document_of, new_document, new_plan_id
from penstock.balance.plan_job import LeaderReturnJob, PlanJob
from penstock.cancellation import run_separately
from penstock.control.operations import BACKOFF
from penstock.model.errors import PenstockError
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.balance.execute import Executor
    from penstock.balance.plan_document import Names, PlanDocument, PlanDocuments, PlanHeader, PlannedMove
    from penstock.balance.planner import Plan
    from penstock.control.load.plan_store import PlanStore, PlanWriter
    from penstock.control.physical.cluster_access import Clusters
    from penstock.model.entities import Operation

REPORT_SECONDS: Final = 2.0  # between two reports of a plan's progress
OBSTACLE_SECONDS: Final = 5.0  # between two looks at plans that may not start
RETURN_SECONDS: Final = 15.0  # between two looks for leaders that can return
KEPT_MS: Final = 7 * 24 * 3600 * 1000  # how long an ended plan is kept
EXPIRE_SECONDS: Final = 600.0

log = structlog.get_logger("penstock.control")


class PlanService:
    """The plans of one leadership term."""

    def __init__(
        self,
        store: PlanStore,
        writer: PlanWriter,
        clusters: Clusters,
        executor: Callable[[str], Executor],
        is_owner: Callable[[], bool] = lambda: True,
        may_lead: Callable[[str, int], bool] = lambda cluster, broker: True,
        obstacle: Callable[[str], str] = lambda cluster: "",
    ) -> None:
        self._store = store
        self._writer = writer
        self._clusters = clusters
        self._executor = executor
        self._is_owner = is_owner
        self._may_lead = may_lead
        self._obstacle = obstacle  # why no plan may start on a cluster now; empty if one may
        self._jobs: dict[str, PlanJob] = {}
        self._ready = asyncio.Event()
        self._lock = asyncio.Lock()  # from reading a header to writing the next one

    async def run(self) -> None:
        """Until cancelled. After a failed write, as when a broker of the home cluster dies, it starts over.

        A control plane that is not the active one any more does not: it would fence its successor.
        """
        while True:
            try:
                await run_separately(self._run_once())
            except* PenstockError as failures:
                log.warning("plans interrupted", error=str(failures.exceptions[0]))
            self._ready.clear()
            await asyncio.sleep(BACKOFF.seconds(1))
            while not self._is_owner():
                await asyncio.sleep(BACKOFF.most_seconds)

    async def _run_once(self) -> None:
        self._jobs.clear()
        await self._writer.init()
        self._ready.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.until_failed())
            group.create_task(self._run_plans(group))
            group.create_task(self._expire())
            group.create_task(self._return_leaders(group))

    # Requests

    @property
    def documents(self) -> PlanDocuments:
        return self._store.documents

    async def propose(
        self, plan: Plan, names: Names, *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument:
        """Stores what the planner returned, to be run later."""
        return await self._add(document_of(plan, names, self._origin(cluster, actor, purpose)))

    async def propose_moves(
        self, moves: Sequence[PlannedMove], *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument:
        return await self._add(new_document(moves, self._origin(cluster, actor, purpose)))

    async def change(self, operation: Operation) -> None:
        """The effect of `plan.run`, `plan.cancel` and `plan.pace`. Idempotent."""
        await self._ready.wait()
        async with self._lock:
            header = self._store.need(operation.subject).header
            after = _changed(header, operation)
            if after is not None:
                await self._put(after)

    async def latest(self, cluster: str, actor: str) -> PlanHeader | None:
        """The plan that an actor proposed last, once everything is read that was written before."""
        await self._ready.wait()
        headers = self._store.documents.headers.values()
        own = [header for header in headers if header.cluster == cluster and header.actor == actor]
        return max(own, key=lambda header: header.created_ms, default=None)

    async def start(self, plan: str) -> None:
        """Runs a proposed plan. Idempotent."""
        await self._ready.wait()
        async with self._lock:
            header = self._store.need(plan).header
            if header.state is PlanState.PROPOSED:
                await self._put(header.started(_now_ms()))

    def _origin(self, cluster: str, actor: str, purpose: str) -> Origin:
        return Origin(new_plan_id(secrets.choice), cluster, _now_ms(), actor, purpose)

    async def _add(self, document: PlanDocument) -> PlanDocument:
        await self._ready.wait()
        await self._writer.write(document)
        return self._store.need(document.id)

    async def _put(self, header: PlanHeader) -> None:
        await self._writer.put(header)
        job = self._jobs.get(header.id)
        if job is not None:
            job.header = header  # acted on once it is stored

    # Plans

    async def _run_plans(self, group: asyncio.TaskGroup) -> None:
        while True:
            self._store.changed.clear()
            for header in list(self._store.documents.headers.values()):
                active = header.state in (PlanState.RUNNING, PlanState.CANCELLING)
                if not active or header.id in self._jobs or not self._clusters.has(header.cluster):
                    continue
                document = self._store.need(header.id)
                copies = header.state is PlanState.RUNNING and any(move.adding for move in document.moves)
                if copies and (obstacle := self._obstacle(header.cluster)):
                    await self._note_waiting(header.id, obstacle)
                    continue
                job = self._jobs[header.id] = PlanJob(document)
                group.create_task(self._run_plan(job, group))
            await wait_at_most(self._store.changed, OBSTACLE_SECONDS)  # what was in the way may have ended

    async def _note_waiting(self, plan: str, reason: str) -> None:
        """Why a plan that was run has not begun."""
        async with self._lock:
            header = self._store.need(plan).header
            if header.state is PlanState.RUNNING and header.progress.waiting != reason:
                await self._put(replace(header, progress=replace(header.progress, waiting=reason)))

    async def _run_plan(self, job: PlanJob, group: asyncio.TaskGroup) -> None:
        plan, attempt = job.header.id, 0
        reporting = group.create_task(self._report(job))
        while True:
            try:
                await self._executor(job.header.cluster).run(job)
                break
            except PenstockError as failure:
                attempt += 1
                log.warning("plan interrupted", plan=plan, error=str(failure))
                job.progress = replace(job.progress, waiting=str(failure))
            except Exception as defect:  # it belongs to this plan: a successor would die of it, too
                attempt += 1
                log.exception("plan raised", plan=plan)
                job.progress = replace(job.progress, waiting=f"{type(defect).__name__}: {defect}")
            await asyncio.sleep(BACKOFF.seconds(attempt))
        async with self._lock:  # so the report is not in the middle of a transaction
            reporting.cancel()
            outcome = replace(job.outcome, changed_ms=_now_ms())
            await self._put(outcome)
        log.info("plan ended", plan=plan, state=str(outcome.state), dropped=len(job.dropped))
        self._jobs.pop(plan, None)

    async def _report(self, job: PlanJob) -> None:
        """Stores progress while the plan runs."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            async with self._lock:
                now = job.reported
                if now != self._store.need(now.id).header:
                    await self._put(now)

    async def _expire(self) -> None:
        """Deletes plans that ended long ago."""
        while True:
            oldest = _now_ms() - KEPT_MS
            for header in list(self._store.documents.headers.values()):
                if header.changed_ms < oldest and header.id not in self._jobs:
                    await self._writer.delete(header.id)
            await asyncio.sleep(EXPIRE_SECONDS)

    # Leaders

    async def _return_leaders(self, group: asyncio.TaskGroup) -> None:
        """One loop per cluster: one that cannot be reached delays no other."""
        loops: set[str] = set()
        while True:
            for provided in self._clusters.known:
                if provided.id not in loops:
                    loops.add(provided.id)
                    group.create_task(self._return_leaders_of(provided.id))
            await asyncio.sleep(RETURN_SECONDS)

    async def _return_leaders_of(self, cluster: str) -> None:
        since: dict[int, float] = {}
        while True:
            try:
                if self._clusters.has(cluster):
                    since = await self._return_round(cluster, since)
            except PenstockError as failure:
                log.warning("leaders not returned", cluster=cluster, error=str(failure))
            except Exception:  # it belongs to this cluster, not to the control plane
                log.exception("return of leaders raised", cluster=cluster)
            await asyncio.sleep(RETURN_SECONDS)

    async def _return_round(self, cluster: str, since: dict[int, float]) -> dict[int, float]:
        executor = self._executor(cluster)
        seen = await observe(self._clusters.client(cluster))
        if not seen.under_way:  # else a predecessor's copies, which a plan is about to continue
            await executor.tidy(seen.alive)
        now = time.monotonic()
        since = leader_return.caught_up(seen, since, now)
        if moves := leader_return.returning(seen, since, now, partial(self._may_lead, cluster)):
            log.info("leaders return", cluster=cluster, partitions=len(moves))
            await executor.run(LeaderReturnJob(moves))
        return since


def _changed(header: PlanHeader, operation: Operation) -> PlanHeader | None:
    """The header after a change; None if it was made before."""
    arguments: dict[str, Any] = dict(operation.arguments)
    now = _now_ms()
    match operation.action:
        case "plan.run" if header.state is PlanState.PROPOSED:
            return header.started(now, take_over=bool(arguments.get("take_over")))
        case "plan.cancel" if not header.state.ended:
            return header.cancelled(now, roll_back=bool(arguments.get("roll_back")))
        case "plan.pace" if not header.state.ended:
            return header.paced(now, float(arguments["rate"]))
        case _:
            return None


def _now_ms() -> int:
    return int(time.time() * 1000)
