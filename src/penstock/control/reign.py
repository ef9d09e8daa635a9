"""One stay in office: from taking over to losing it. Ends by an error, and is never resumed.

It fences its predecessor, reads everything that was committed, and only then decides. Decisions are
made on a registry that is ahead of the topic; they are answered when the follower has read them
back, so that nobody is told of something that is not committed. Whatever goes wrong with a commit
ends the stay: what was ahead is thrown away, and the next stay begins from the topic.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.control import operations
from penstock.control.decisions import Decided
from penstock.control.feeder import Feeder
from penstock.control.registry import Put, Registry, records_of
from penstock.control.steps import Effects, Pending
from penstock.kafka.log import Appender, Row, bounds
from penstock.model import faults
from penstock.model.entities import Entity, Holder, Operation
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NotActive
from penstock.model.events import AuditEvent
from penstock.model.events import Outcome as Audited
from penstock.model.ids import PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.control.reach import Clusters, Provisioner, Reach
    from penstock.control.registry import Change
    from penstock.control.service import Home
    from penstock.kafka.following import Follower

TRANSACTIONAL_ID: Final = "_penstock.control"
BATCH_MAX: Final = 200  # decisions in one transaction
QUEUE_MAX: Final = 5_000
OPERATIONS_AT_ONCE: Final = 100
FORGET_SECONDS: Final = 600.0

INTENT = faults.declare("control.intent", "an intent is committed, and nothing of it was done")

log = structlog.get_logger("penstock.control")


@dataclass(slots=True)
class Proposal:
    decide: Callable[[Registry], Decided]
    answered: asyncio.Future[Decided]


class Reign:
    def __init__(
        self,
        home: Home,
        clusters: Clusters,
        follower: Follower,
        registry: Callable[[], Registry],
        provisioner: Provisioner | None,
        holds: Callable[[], bool],
    ) -> None:
        self._home = home
        self._clusters = clusters
        self._follower = follower
        self._registry = registry
        self._provisioner = provisioner
        self.holds = holds
        self._appender = Appender(clusters.client(home.cluster), TRANSACTIONAL_ID)
        self._ahead = Registry()
        self._proposals: deque[Proposal] = deque()
        self._proposed = asyncio.Event()
        self._woken = asyncio.Event()
        self.feeders: dict[str, Feeder] = {}
        self._carried: set[str] = set()
        self._at_once = asyncio.Semaphore(OPERATIONS_AT_ONCE)
        self._locks: dict[str, asyncio.Lock] = {}
        self._audited = 0
        self.incarnation = secrets.token_hex(4)
        self._group: asyncio.TaskGroup | None = None
        self._ready = asyncio.Event()
        self.effects = Effects(clusters, self.feeders, registry, provisioner, self.take_in)

    async def run(self) -> None:
        """Until cancelled, fenced, or out of luck with Kafka."""
        try:
            await self._appender.begin()
            _, end = await bounds(self._clusters.client(self._home.cluster), self._follower.partition)
            await self._follower.until(end - 1)
            self._ahead = self._registry().copy()
            log.info("active", epoch=self._appender.epoch, incarnation=self.incarnation)
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._write())
                await self.propose(self._home.opening(self.incarnation))
                for reach in self._clusters.known:
                    self._feed(reach.id)
                group.create_task(self._carry_all())
                group.create_task(self._forget())
                self._ready.set()
        finally:
            self._ready.clear()
            while self._proposals:
                answered = self._proposals.popleft().answered
                if not answered.done():
                    answered.set_exception(NotActive(url=self._url()))

    async def ready(self) -> None:
        await self._ready.wait()

    def moved(self, tenants: set[str]) -> None:
        """The follower has taken records about these tenants."""
        self._woken.set()
        for feeder in self.feeders.values():
            feeder.mark(tenants)

    async def propose(self, decide: Callable[[Registry], Decided]) -> Decided:
        """Committed, and read back, when this returns."""
        if len(self._proposals) >= QUEUE_MAX or not self.holds():
            raise NotActive(url=self._url())
        answered: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        self._proposals.append(Proposal(decide, answered))
        self._proposed.set()
        return await answered

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
                    for proposal in batch:
                        if not proposal.answered.done():
                            proposal.answered.set_exception(NotActive(url=self._url()))
                    raise

    async def _commit(self, batch: Sequence[Proposal]) -> None:
        rows: list[Row] = []
        decided: list[tuple[Proposal, Decided]] = []
        for proposal in batch:
            try:
                one = proposal.decide(self._ahead)
                self._ahead.accept(one.changes)
            except PenstockError as refused:
                if not proposal.answered.done():
                    proposal.answered.set_exception(refused)
                continue
            rows += self._rows(one)
            decided.append((proposal, one))
        if rows:
            written = await self._appender.commit(rows)
            await self._follower.until(written[self._follower.partition])
        for proposal, one in decided:
            if not proposal.answered.done():
                proposal.answered.set_result(one)

    def _rows(self, one: Decided) -> list[Row]:
        if not one.changes:
            return []
        rows = [Row(self._follower.partition, key, value) for key, value in records_of(one.changes)]
        if one.operation.steps_done == 0 and one.operation.actor:
            rows.append(Row(self._home.audit, None, self._audit(one).to_bytes()))
        return rows

    def _audit(self, one: Decided) -> AuditEvent:
        self._audited += 1
        operation = one.operation
        return AuditEvent(
            id=f"{operation.id}-{self.incarnation}",
            time_ms=operation.made_ms,
            source=f"control/{self.incarnation}",
            sequence=self._audited,
            cluster=PhysicalClusterId(self._home.cluster),
            operation=operation.action,
            subject_kind=operation.action.partition(".")[0],
            subject=operation.subject,
            actor=operation.actor,
            outcome=Audited.DONE,
            tenant=operation.tenant,
            before=_told(one.before),
            after=_told(one.subject),
        )

    # Operations

    async def _carry_all(self) -> None:
        assert self._group is not None
        while True:
            for operation in self._registry().running():
                if operation.id not in self._carried:
                    self._carried.add(operation.id)
                    self._group.create_task(self._carry(operation.id))
            await self._woken.wait()
            self._woken.clear()

    async def _carry(self, operation_id: str) -> None:
        """One operation to its end. Two of one tenant do not run at the same time."""
        first = self._registry().need(Operation, operation_id)
        lock = self._locks.setdefault(first.tenant or "", asyncio.Lock())
        faults.reach(INTENT)
        try:
            while True:
                operation = self._registry().get(Operation, operation_id)
                if operation is None or operation.ended:
                    return
                wait = await self._step_of(operation, lock)
                if wait:
                    await asyncio.sleep(wait)
        finally:
            self._carried.discard(operation_id)
            self._woken.set()

    async def _step_of(self, operation: Operation, lock: asyncio.Lock) -> float:
        """One attempt at one step; how long to wait before the next."""

        async def tell(detail: str) -> None:
            await self._change(operation.id, lambda r, o, now: _detailed(o, detail, now))

        number = operation.steps_done
        try:
            async with self._at_once, lock:
                if not self.holds():
                    raise NotActive(url=self._url())
                done = await self.effects.perform(operation, tell)
                if isinstance(done, Pending):
                    if done.detail != operation.detail:
                        await tell(done.detail)
                    return done.seconds
                faults.reach(operations.DONE_UNWRITTEN[operation.action, number])
                await self._change(
                    operation.id,
                    lambda r, o, now: (*operations.advanced(r, o, now).changes, *done(r, now)),
                )
        except NotActive:
            raise
        except PenstockError as failed:
            error = failed
            log.warning("step failed", operation=operation.id, step=operation.step, error=str(error))
            await self._change(operation.id, lambda r, o, now: operations.failed(r, o, error, now).changes)
            return operations.backoff_seconds(operation.attempts)
        return 0.0

    async def _change(
        self,
        operation_id: str,
        change: Callable[[Registry, Operation, int], Sequence[Change]],
    ) -> None:
        def decide(registry: Registry) -> Decided:
            operation = registry.need(Operation, operation_id)
            changes = tuple(change(registry, operation, int(time.time() * 1000)))
            return Decided(_silent(operation), changes, None)

        await self.propose(decide)

    async def _forget(self) -> None:
        def decide(registry: Registry) -> Decided:
            nobody = Operation(id="op-", action="", subject="")
            return Decided(nobody, operations.forgotten(registry, int(time.time() * 1000)), None)

        while True:
            await self.propose(decide)
            await asyncio.sleep(FORGET_SECONDS)

    # Clusters

    def _feed(self, cluster: str) -> None:
        assert self._group is not None
        if cluster in self.feeders:
            return
        client = self._clusters.client(cluster)
        feeder = self.feeders[cluster] = Feeder(client, cluster, self._registry, self.holds)
        self._group.create_task(self._fed(feeder))

    async def _fed(self, feeder: Feeder) -> None:
        """A cluster that cannot be reached holds up its own tenants only; the home one ends the stay."""
        try:
            await feeder.run()
        except* PenstockError as failures:
            if feeder.cluster == self._home.cluster:
                raise
            log.warning("cannot tell gateways", cluster=feeder.cluster, error=str(failures.exceptions[0]))
            self.feeders.pop(feeder.cluster, None)
        await self._again(feeder.cluster)

    async def _again(self, cluster: str) -> None:
        await asyncio.sleep(operations.BACKOFF_SECONDS_MAX)
        if self._clusters.has(cluster):
            self._feed(cluster)

    async def take_in(self, reach: Reach) -> None:
        await self._home.prepare(self._clusters.client(reach.id), reach)
        self._feed(reach.id)

    def _url(self) -> str:
        holder = self._registry().get(Holder, "active")
        return holder.url if holder is not None else "not known"


def _told(entity: object) -> dict[str, object] | None:
    """For the audit log: everything but hashes."""
    if not isinstance(entity, Entity):
        return None
    body = dict(entity.to_record().body)
    return {key: value for key, value in body.items() if key != "secret_sha256"}


def _detailed(operation: Operation, detail: str, now_ms: int) -> tuple[Change, ...]:
    return (Put(operation.changed(now_ms, detail=detail)),)


def _silent(operation: Operation) -> Operation:
    """Progress is no act of anybody: the audit log has the beginning."""
    return replace(operation, actor="")
