"""The effects of an operation's steps. Each can be done twice, and by a successor.

A step returns what its outcome changes in the registry, to be committed together with the progress;
`Pending` says that it has to be looked at again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.balance.cells import Broker, Cell, CellId, plan_cells
from penstock.balance.move import move_tenant
from penstock.balance.moving import Target
from penstock.control.operations import Step, next_step
from penstock.control.placing import brokers_of
from penstock.control.registry import Change, Put, Registry
from penstock.control.rights import Granter
from penstock.control.rules import revoked_rules
from penstock.control.wanted import account_rights, quota_for, tenant_rights
from penstock.kafka import groups, topics
from penstock.kafka.groups import GroupType
from penstock.kafka.routing import group_coordinator
from penstock.model.entities import (
    ApiKey,
    CellPlace,
    ClusterState,
    LogicalCluster,
    Operation,
    PhysicalCluster,
    ServiceAccount,
    Tenancy,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ProvisionerMissing
from penstock.model.ids import BrokerId, ServiceAccountId, Zone, kafka_user, tenant_prefix
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from typing import Any

    from penstock.balance.moving import Progress
    from penstock.control.feeder import Feeder
    from penstock.control.reach import Clusters, Provisioner, Reach
    from penstock.kafka.client import Client

    Tell = Callable[[str], Awaitable[None]]

Outcome = Callable[[Registry, int], tuple[Change, ...]]
TOPICS_AT_ONCE: Final = 50
GROUP_SECONDS_BETWEEN: Final = 0.2
PROGRESS_SECONDS: Final = 1.0  # between two words about a move
_MISSING: Final = frozenset((Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.GROUP_ID_NOT_FOUND))


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: look again after so long."""

    seconds: float
    detail: str


def nothing(registry: Registry, now_ms: int) -> tuple[Change, ...]:
    del registry, now_ms
    return ()


class Effects:
    """Carries out steps on the clusters that are known."""

    def __init__(
        self,
        clusters: Clusters,
        feeders: Mapping[str, Feeder],
        registry: Callable[[], Registry],
        provisioner: Provisioner | None,
        settle: Callable[[Reach], Awaitable[None]],
    ) -> None:
        self._clusters = clusters
        self._feeders = feeders
        self._registry = registry
        self._provisioner = provisioner
        self._settle = settle
        self._granters: dict[str, Granter] = {}
        self.released: set[str] = set()  # physical clusters that are being ended, or are gone
        self._moves: dict[str, asyncio.Lock] = {}

    async def perform(self, operation: Operation, tell: Tell) -> Outcome | Pending:
        step = next_step(operation)
        match step:
            case Step.BROKERS:
                return await self._brokers(operation)
            case Step.RIGHTS:
                return await self._rights(operation)
            case Step.STATE:
                await self._state(operation)
            case Step.GRACE:
                return self._grace(operation)
            case Step.GROUPS:
                return await self._groups(operation)
            case Step.TOPICS:
                await self._topics(operation, tell)
            case Step.RELEASE:
                await self._release(operation)
            case Step.COPY:
                await self._copy(operation, tell)
            case _:
                raise AssertionError(step)
        return nothing

    def granter(self, cluster: str) -> Granter:
        if cluster not in self._granters:
            client = self._clusters.client(cluster)
            reach = self._clusters.reach(cluster)
            self._granters[cluster] = Granter(client, reach.key, fused=reach.fused)
        return self._granters[cluster]

    def _cluster(self, operation: Operation) -> LogicalCluster:
        assert operation.tenant is not None
        return self._registry().need(LogicalCluster, operation.tenant)

    async def _brokers(self, operation: Operation) -> Outcome:
        cluster = self._cluster(operation)
        if cluster.tenancy is not Tenancy.DEDICATED:
            return nothing
        if self._provisioner is None:
            raise ProvisionerMissing(reason="it was started without one")
        physical = self._registry().need(PhysicalCluster, cluster.cluster)
        reach = await self._provisioner.provision(physical, cluster.units)
        self._clusters.add(reach)
        await self._settle(reach)

        def made(registry: Registry, now_ms: int) -> tuple[Change, ...]:
            before = registry.need(PhysicalCluster, physical.id)
            after = registered(before, reach, now_ms)
            placed = registry.need(LogicalCluster, cluster.id).changed(now_ms, cell=reach.cells[0].id)
            return Put(after), Put(placed)

        return made

    async def _rights(self, operation: Operation) -> Outcome:
        assert operation.tenant is not None
        registry = self._registry()
        cluster = registry.get(LogicalCluster, operation.tenant)
        if cluster is None:
            return nothing  # deleted since: that operation took its rights
        granter = self.granter(cluster.cluster)
        if operation.action == "account.delete":
            user = kafka_user(cluster.tenant, ServiceAccountId(operation.subject))
            await granter.take([user])
        elif cluster.state is ClusterState.DELETING:
            await granter.take([kafka_user(a.tenant, a.account) for a in registry.accounts(cluster.id)])
        elif operation.action == "account.update":
            account = registry.get(ServiceAccount, operation.subject)
            if account is None:
                return nothing
            wanted = account_rights(account, quota_for(registry, cluster))
            await granter.give(wanted)
            await granter.take_rules(sorted(revoked_rules(account)))
            return partial(_taken, account)
        else:
            await granter.give(tenant_rights(registry, cluster))
        return nothing

    async def _state(self, operation: Operation) -> None:
        assert operation.tenant is not None
        cluster = self._registry().get(LogicalCluster, operation.tenant)
        if cluster is not None and cluster.cluster in self._feeders:
            await self._feeders[cluster.cluster].tell(operation.tenant)

    def _grace(self, operation: Operation) -> Outcome | Pending:
        old = self._registry().get(ApiKey, str(operation.given["replaces"]))
        left = 0.0 if old is None else (old.ends_ms or 0) / 1000 - time.time()
        return nothing if left <= 0 else Pending(left, "both keys are valid")

    async def _groups(self, operation: Operation) -> Outcome | Pending:
        cluster = self._cluster(operation)
        client = self._clusters.client(cluster.cluster)
        prefix = tenant_prefix(cluster.tenant)
        listed = await groups.list_all(client)
        mine = {g.id: g.type for g in listed.values() if g.id.startswith(prefix)}
        if not mine:
            return nothing
        classic = [group for group, kind in mine.items() if kind is GroupType.CLASSIC]
        await asyncio.gather(*(_evict(client, group) for group in classic))
        answers = await groups.delete(client, sorted(mine))
        left = [g for g, a in answers.items() if isinstance(a, PenstockError) and not _is_missing(a)]
        if not left:
            return nothing
        return Pending(GROUP_SECONDS_BETWEEN, f"{len(left)} of {len(mine)} groups still have members")

    async def _topics(self, operation: Operation, tell: Tell) -> None:
        cluster = self._cluster(operation)
        client = self._clusters.client(cluster.cluster)
        prefix = tenant_prefix(cluster.tenant)
        listed = await topics.describe(client)
        mine = {
            name: topic
            for name, topic in listed.items()
            if name.startswith(prefix) and not isinstance(topic, PenstockError)
        }
        names = sorted(mine)
        for start in range(0, len(names), TOPICS_AT_ONCE):
            if start:
                await tell(f"{start} of {len(names)} topics deleted")
            some = names[start : start + TOPICS_AT_ONCE]
            answers = await topics.delete(client, ids=[mine[name].id for name in some])
            for answer in answers.values():
                if isinstance(answer, PenstockError) and not _is_missing(answer):
                    raise answer

    async def _release(self, operation: Operation) -> None:
        cluster = self._cluster(operation)
        physical = self._registry().get(PhysicalCluster, cluster.cluster)
        if cluster.tenancy is Tenancy.DEDICATED and physical is not None:
            self.released.add(physical.id)
            await self._clusters.drop(physical.id)
            self._granters.pop(physical.id, None)
            if self._provisioner is not None:
                await self._provisioner.release(physical)

    async def _copy(self, operation: Operation, tell: Tell) -> None:
        """One move at a time on a physical cluster: two would take away each other's throttles."""
        cluster = self._cluster(operation)
        physical = self._registry().need(PhysicalCluster, cluster.cluster)
        inside = brokers_of(replace(cluster, moving_from=""), physical)
        target = Target(
            cluster.tenant, tuple(Broker(b.id, b.zone) for b in physical.brokers if b.id in inside)
        )
        said: list[str] = []

        def report(now: Progress) -> None:
            said.append(f"{now.partitions_done} of {now.partitions} partitions, {now.ratio:.0%} of the data")

        async with self._moves.setdefault(physical.id, asyncio.Lock()):
            client = self._clusters.client(cluster.cluster)
            moving = asyncio.create_task(move_tenant(client, target, report=report))
            try:
                while not moving.done():
                    await asyncio.wait({moving}, timeout=PROGRESS_SECONDS)
                    if said:
                        await tell(said[-1])
                        said.clear()
                moving.result()
            finally:
                moving.cancel()
                await asyncio.gather(moving, return_exceptions=True)


def registered(before: PhysicalCluster, reach: Reach, now_ms: int) -> PhysicalCluster:
    """A physical cluster as its provider sees it now."""
    return before.changed(
        now_ms,
        provider=reach.provider,
        kafka_id=reach.kafka_id,
        brokers=reach.brokers,
        cells=cells_after(before.cells, reach),
        bootstrap=reach.tenants_bootstrap,
        state=ClusterState.READY,
    )


def _taken(account: ServiceAccount, registry: Registry, now_ms: int) -> tuple[Change, ...]:
    """What was revoked when this was read is gone from Kafka."""
    now = registry.get(ServiceAccount, account.id)
    if now is None or not account.revoked:
        return ()
    left = tuple(grant for grant in now.revoked if grant not in account.revoked)
    return (Put(now.changed(now_ms, revoked=left)),)


def cells_after(before: Sequence[CellPlace], reach: Reach) -> tuple[CellPlace, ...]:
    """Cells that there are stay, since tenants live in them; brokers that are in none form further ones.

    Brokers that do not make up a whole cell, evenly over the zones, wait for others.
    """
    there = {broker.id for broker in reach.brokers}
    if not before or any(broker not in there for cell in before for broker in cell.brokers):
        return reach.cells
    zones: dict[Zone, list[BrokerId]] = {}
    for broker in reach.brokers:
        zones.setdefault(broker.zone, []).append(broker.id)
    existing = [Cell(CellId(cell.id), cell.brokers) for cell in before]
    size = max(len(cell.brokers) for cell in before)
    if size % len(zones):  # made when there were other zones: nothing to go by
        return reach.cells
    return tuple(CellPlace(cell.id, cell.brokers) for cell in plan_cells(zones, size, existing))


async def _evict(client: Client, group: str) -> None:
    """A classic group's members leave: their connections are closed, their sessions are not over yet."""
    described = (await groups.describe(client, [group], type_=GroupType.CLASSIC))[group]
    if isinstance(described, PenstockError) or not described.members:
        return
    leaving = [{"MemberId": m.id, "GroupInstanceId": m.instance_id} for m in described.members]
    body: dict[str, Any] = {"GroupId": group, "Members": leaving}
    await client.call("LeaveGroup", body, to=group_coordinator(group))


def _is_missing(error: PenstockError) -> bool:
    return error.facts.get("error_code") in _MISSING
