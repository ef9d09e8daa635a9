"""One leadership term of a control plane: from taking over to losing leadership.

A term fences its predecessor, reads everything committed, and only then decides. It decides on a registry
that is ahead of the topic, and replies once the follower has read the decision back: no caller is shown
uncommitted state. Any failed commit ends the term. The uncommitted registry is discarded, and the next
term starts from the topic.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from penstock.cancellation import run_separately
from penstock.control import operations
from penstock.control.decisions import Decision
from penstock.control.effects import Effects
from penstock.control.gateways.state_publisher import StatePublisher
from penstock.control.health.interventions import obstacles_to
from penstock.control.load.plan_service import PlanService
from penstock.control.load.plan_store import PlanWriter
from penstock.control.registry import Put, Registry
from penstock.control.rolling.roll_service import RollService, RollSupport
from penstock.control.size import resizing
from penstock.control.size.controller_steps import ControllerSteps
from penstock.control.step_outcome import Pending
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer, bounds
from penstock.model import fault_points
from penstock.model.entities import Actor, Entity, Operation
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NotActive, StepDefect
from penstock.model.events import AuditEvent
from penstock.model.events import Outcome as Audited
from penstock.model.ids import BrokerId, PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.control.home import Home
    from penstock.control.load.plan_store import PlanStore
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster, Provisioner
    from penstock.control.registry import Change
    from penstock.kafka.compacted_topic import CompactedTopicReader

TRANSACTIONAL_ID: Final = "_penstock.control"
BATCH_MAX: Final = 200  # decisions per transaction
QUEUE_MAX: Final = 5_000
OPERATIONS_MAX: Final = 100
EXPIRE_SECONDS: Final = 600.0

LONG: Final = resizing.ACTIONS | operations.CONTROLLER_CHANGES | {"fleet.roll", "fleet.finalize"}

INTENT = fault_points.declare("control.intent", "an intent is committed, and none of its steps is done")

log = structlog.get_logger("penstock.control")


@dataclass(slots=True)
class Proposal:
    decide: Callable[[Registry], Decision]
    result: asyncio.Future[Decision]


class LeadershipTerm:
    """`run` it once; then start another."""

    def __init__(
        self,
        home: Home,
        clusters: Clusters,
        follower: CompactedTopicReader,
        registry: Callable[[], Registry],
        provisioner: Provisioner | None,
        is_owner: Callable[[], bool],
        plans: PlanStore,
        rolls: RollSupport | None = None,
        slow: Callable[[str], str] = lambda cluster: "",
    ) -> None:
        self._home = home
        self._clusters = clusters
        self._follower = follower
        self._registry = registry
        self._provisioner = provisioner
        self.is_owner = is_owner
        self._producer = TransactionalProducer(clusters.client(home.cluster), TRANSACTIONAL_ID)
        self._uncommitted = Registry()
        self._proposals: deque[Proposal] = deque()
        self._proposed = asyncio.Event()
        self._ended = False
        self._wake = asyncio.Event()
        self.publishers: dict[str, StatePublisher] = {}
        self._publishing: dict[str, asyncio.Task[None]] = {}
        self._running: set[str] = set()
        self._operation_slots = asyncio.Semaphore(OPERATIONS_MAX)
        self._locks: dict[str, asyncio.Lock] = {}
        self._audited = 0
        self.incarnation = secrets.token_hex(4)
        self._group: asyncio.TaskGroup | None = None
        self.ready = asyncio.Event()
        self.effects = Effects(
            clusters, self.publishers, registry, provisioner, self.add_cluster,
            hold=self._obstacle_to_plans, slow=slow,
        )  # fmt: skip
        writer = PlanWriter(clusters.client(home.cluster), plans)
        self.plans = PlanService(
            plans, writer, clusters, self.effects.executor, is_owner, self._may_lead, self._obstacle_to_plans
        )
        self.effects.plans = self.effects.resize.plans = self.plans
        self.effects.controllers = ControllerSteps(clusters, registry, rolls.layout if rolls else None)
        self.rolls = self.effects.rolls = RollService(
            clusters, registry, self.propose, self.effects.executor, rolls or RollSupport()
        )

    async def run(self) -> None:
        """Runs until cancelled, fenced, or failed by Kafka."""
        try:
            await self._producer.init()
            _, end = await bounds(self._clusters.client(self._home.cluster), self._follower.partition)
            await self._follower.wait_for_offset(end - 1)
            self._uncommitted = self._registry().copy()
            log.info("active", epoch=self._producer.epoch, incarnation=self.incarnation)
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._write())
                await self.propose(partial(self._home.opening_changes, self.incarnation))
                for provided in self._clusters.known:
                    self._start_publisher(provided.id)
                group.create_task(self._run_operations())
                group.create_task(self._expire_operations())
                group.create_task(self.plans.run())
                self.ready.set()
        finally:
            self._ended = True  # nothing reads proposals any more
            self.ready.clear()
            self._reject(self._proposals)
            self._proposals.clear()
            await self.rolls.close()

    def registry_changed(self, tenants: set[str]) -> None:
        """The follower has applied records about these tenants."""
        self._wake.set()
        for publisher in self.publishers.values():
            publisher.mark_changed(tenants)

    async def propose(self, decide: Callable[[Registry], Decision]) -> Decision:
        """Returns when the decision is committed and read back."""
        if self._ended or len(self._proposals) >= QUEUE_MAX or not self.is_owner():
            raise self._home.not_active(self._registry())
        result: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._proposals.append(Proposal(decide, result))
        self._proposed.set()
        return await result

    # Writing

    async def _write(self) -> None:
        while True:
            await self._proposed.wait()
            self._proposed.clear()
            while self._proposals:
                batch = [self._proposals.popleft() for _ in range(min(BATCH_MAX, len(self._proposals)))]
                try:
                    await self._commit(batch)
                except BaseException:
                    self._reject(batch)
                    raise

    def _reject(self, proposals: Iterable[Proposal]) -> None:
        for proposal in proposals:
            if not proposal.result.done():
                proposal.result.set_exception(self._home.not_active(self._registry()))

    async def _commit(self, batch: Sequence[Proposal]) -> None:
        records: list[ProducerRecord] = []
        decided: list[tuple[Proposal, Decision]] = []
        for proposal in batch:
            try:
                decision = proposal.decide(self._uncommitted)
                self._uncommitted.accept(decision.changes)
            except PenstockError as rejection:
                if not proposal.result.done():
                    proposal.result.set_exception(rejection)
                continue
            records += self._records(decision)
            decided.append((proposal, decision))
        if records:
            written = await self._producer.commit(records)
            await self._follower.wait_for_offset(written[self._follower.partition])
        for proposal, decision in decided:
            if not proposal.result.done():
                proposal.result.set_result(decision)

    def _records(self, decision: Decision) -> list[ProducerRecord]:
        if not decision.changes:
            return []
        partition = self._follower.partition
        records = [ProducerRecord(partition, change.key, change.value) for change in decision.changes]
        if decision.operation.steps_done == 0 and decision.operation.actor:
            records.append(ProducerRecord(self._home.audit, None, self._audit(decision).to_bytes()))
        return records

    def _audit(self, decision: Decision) -> AuditEvent:
        self._audited += 1
        operation = decision.operation
        return AuditEvent(
            id=f"{operation.id}-{self.incarnation}",
            time_ms=operation.created_ms,
            source=f"control/{self.incarnation}",
            sequence=self._audited,
            cluster=PhysicalClusterId(self._home.cluster),
            operation=operation.action,
            subject_kind=operation.action.partition(".")[0],
            subject=operation.subject,
            actor=operation.actor,
            outcome=Audited.DONE,
            tenant=operation.tenant,
            before=_audit_body(decision.before),
            after=_audit_body(decision.subject),
        )

    # Operations

    async def _run_operations(self) -> None:
        assert self._group is not None
        while True:
            for operation in self._registry().running():
                if operation.id not in self._running:
                    self._running.add(operation.id)
                    self._group.create_task(self._run_operation(operation.id))
            await self._wake.wait()
            self._wake.clear()

    async def _run_operation(self, operation_id: str) -> None:
        """Runs one operation to its end. Operations of one tenant never run concurrently."""
        first = self._registry().need(Operation, operation_id)
        lock = self._locks.setdefault(lock_key(first), asyncio.Lock())
        fault_points.reach(INTENT)
        try:
            while True:
                operation = self._registry().get(Operation, operation_id)
                if operation is None or operation.ended:
                    return
                wait = await self._attempt_step(operation, lock)
                if wait:
                    await asyncio.sleep(wait)
        finally:
            self._running.discard(operation_id)
            self._wake.set()

    async def _attempt_step(self, operation: Operation, lock: asyncio.Lock) -> float:
        """Attempts one step; returns how long to wait before the next attempt."""

        async def report(detail: str) -> None:
            await self._change(operation.id, lambda r, o, now: [Put(o.changed(now, detail=detail))])

        number = operation.steps_done
        try:
            # The slot last: an operation that waits for others of its tenant must not hold one.
            async with lock, self._operation_slots:
                if not self.is_owner():
                    raise self._home.not_active(self._registry())
                done = await run_separately(self.effects.perform(operation, report))
                if isinstance(done, Pending):
                    if done.detail != operation.detail:
                        await report(done.detail)
                    return done.seconds
                fault_points.reach(operations.EFFECT_UNCOMMITTED[operation.action, number])
                await self._change(
                    operation.id, lambda r, o, now: (*operations.advanced(r, o, now), *done(r, now))
                )
        except NotActive:
            raise
        except Exception as failed:  # noqa: BLE001 - belongs to this operation, not to the term
            error = _as_error(failed, operation)
            log.warning("step failed", operation=operation.id, step=operation.step, error=str(error))
            await self._change(operation.id, lambda r, o, now: _failure(o, error, now))
            return operations.BACKOFF.seconds(operation.attempts + 1)
        return 0.0

    async def _change(
        self, operation_id: str, change: Callable[[Registry, Operation, int], Sequence[Change]]
    ) -> None:
        def decide(registry: Registry) -> Decision:
            operation = registry.need(Operation, operation_id)
            changes = tuple(change(registry, operation, int(time.time() * 1000)))
            # Without an actor it is not audited again: the audit log has the start of the operation.
            return Decision(replace(operation, actor=""), changes, None)

        await self.propose(decide)

    async def _expire_operations(self) -> None:
        def decide(registry: Registry) -> Decision:
            internal = Operation(id="op-", action="", subject="")
            return Decision(internal, operations.expired_operations(registry, int(time.time() * 1000)), None)

        while True:
            await self.propose(decide)
            await asyncio.sleep(EXPIRE_SECONDS)

    def _may_lead(self, cluster: str, broker: int) -> bool:
        state = self._registry().broker_states(cluster).get(BrokerId(broker))
        return state is None or state.leads

    def _obstacle_to_plans(self, cluster: str) -> str:
        now_ms = int(time.time() * 1000)
        return "; ".join(obstacles_to(self._registry(), cluster, Actor.BALANCE, now_ms))

    # Clusters

    def _start_publisher(self, cluster: str) -> None:
        assert self._group is not None
        if cluster in self.publishers:
            return
        client = self._clusters.client(cluster)
        publisher = StatePublisher(client, cluster, self._registry, self.is_owner)
        running = self._run_publisher(publisher)
        try:
            self._publishing[cluster] = self._group.create_task(running)
        except RuntimeError:  # the group is ending, and so is this term; the next one starts a publisher
            running.close()
            return
        self.publishers[cluster] = publisher

    async def _run_publisher(self, publisher: StatePublisher) -> None:
        """An unreachable cluster delays only its own tenants; the home cluster ends the term."""
        try:
            await run_separately(publisher.run())
        except* PenstockError as failures:
            if publisher.cluster == self._home.cluster:
                raise
            log.warning("state not published", cluster=publisher.cluster, error=str(failures.exceptions[0]))
            self.publishers.pop(publisher.cluster, None)
        await asyncio.sleep(operations.BACKOFF.most_seconds)
        if self._clusters.has(publisher.cluster):
            self._start_publisher(publisher.cluster)

    async def add_cluster(self, provided: ProvidedCluster) -> None:
        await self._home.prepare(self._clusters.client(provided.id), provided)
        self._start_publisher(provided.id)

    def remove_cluster(self, cluster: str) -> None:
        """Publishes nothing to it any more."""
        self.publishers.pop(cluster, None)
        if (publishing := self._publishing.pop(cluster, None)) is not None:
            publishing.cancel()


def lock_key(operation: Operation) -> str:
    """Steps of operations with the same key never run at the same time.

    A growth or a round of a roll may take minutes: meanwhile plans can be cancelled, and brokers demoted.
    """
    if operation.tenant is not None:
        return operation.tenant
    return operation.subject if operation.action in LONG else ""


def _failure(operation: Operation, error: PenstockError, now_ms: int) -> tuple[Change, ...]:
    change = operations.failed(operation, error, now_ms)
    assert isinstance(change.entity, Operation)
    return (change, *resizing.after_failure(change.entity, now_ms))


def _as_error(failed: Exception, operation: Operation) -> PenstockError:
    if isinstance(failed, PenstockError):
        return failed
    log.error("step raised", operation=operation.id, exc_info=failed)
    reason = f"{type(failed).__name__}: {failed}"
    return StepDefect(step=operation.step, operation=operation.id, reason=reason)


def _audit_body(entity: object) -> dict[str, object] | None:
    """An entity for the audit log, without secrets' hashes."""
    if not isinstance(entity, Entity):
        return None
    body = dict(entity.to_record().body)
    return {key: value for key, value in body.items() if key != "secret_sha256"}
