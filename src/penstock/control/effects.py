"""The effects of operation steps outside the registry. Each is idempotent, also across control planes.

A step returns the registry changes of its outcome, which are committed together with its progress, or
`Pending` if it must be tried again later. Those that change the brokers of a cluster are in `resize_steps`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.balance.cells import Broker, Cell, CellId, plan_cells
from penstock.balance.execute import Executor
from penstock.balance.tenant_move import Target
from penstock.control.acls import revoked_acls
from penstock.control.cluster_placement import brokers_of
from penstock.control.desired_state import account_access, quota_for, tenant_access
from penstock.control.health.interventions import obstacles_to
from penstock.control.kafka_access import AccessWriter
from penstock.control.operations import CONTROLLER_CHANGES, Step, next_step
from penstock.control.registry import Change, Put, Registry
from penstock.control.rolling.roll_service import Waiting
from penstock.control.size.resize_steps import RESIZE_STEPS, ResizeSteps
from penstock.control.step_outcome import Outcome, Pending, no_changes
from penstock.kafka.admin import groups, topics
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.routing import group_coordinator
from penstock.model.entities import (
    Actor,
    ApiKey,
    CellMembers,
    ClusterState,
    Condition,
    ConditionKind,
    LogicalCluster,
    Operation,
    PhysicalCluster,
    Roll,
    ServiceAccount,
    Tenancy,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ProvisionerMissing
from penstock.model.ids import BrokerId, ServiceAccountId, Zone, kafka_user, tenant_prefix
from penstock.model.plural import counted
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any

    from penstock.balance.tenant_move import Progress
    from penstock.control.gateways.state_publisher import StatePublisher
    from penstock.control.load.plan_service import PlanService
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster, Provisioner
    from penstock.control.rolling.roll_service import RollService
    from penstock.control.size.controller_steps import ControllerSteps
    from penstock.kafka.client import Client

    ReportProgress = Callable[[str], Awaitable[None]]

TOPICS_BATCH: Final = 50
GROUP_RETRY_SECONDS: Final = 0.2
REACH_RETRY_SECONDS: Final = 1.0  # while a cluster or its publisher is not there yet
GRACE_SECONDS_MAX: Final = 5.0  # between two looks at a key that may be revoked before it expires
INTERVENTION_RETRY_SECONDS: Final = 5.0
PROGRESS_SECONDS: Final = 1.0  # between two progress reports of a move
# Steps that call the brokers. `STATE` waits for the publisher instead.
_ON_BROKERS: Final = RESIZE_STEPS | {
    Step.ACCESS, Step.GROUPS, Step.TOPICS, Step.COPY, Step.SETTINGS, Step.ROLL, Step.FEATURES, Step.LEAVE,
    Step.JOIN,
}  # fmt: skip
_BROKER_CONDITIONS: Final = (
    ConditionKind.BROKERS_LOST, ConditionKind.BROKERS_UNUSED, ConditionKind.UNUSABLE,
)  # fmt: skip
_MISSING: Final = frozenset((Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.GROUP_ID_NOT_FOUND))


class Effects:
    """Performs steps on the known clusters."""

    def __init__(
        self,
        clusters: Clusters,
        publishers: Mapping[str, StatePublisher],
        registry: Callable[[], Registry],
        provisioner: Provisioner | None,
        prepare: Callable[[ProvidedCluster], Awaitable[None]],
        *,
        hold: Callable[[str], str] = lambda cluster: "",
        slow: Callable[[str], str] = lambda cluster: "",
    ) -> None:
        """`hold` and `slow` of a physical cluster are those of its `Executor`."""
        self._clusters = clusters
        self._hold, self._slow = hold, slow
        self._publishers = publishers
        self._registry = registry
        self._provisioner = provisioner
        self._prepare = prepare
        self._access_writers: dict[str, tuple[ProvidedCluster, AccessWriter]] = {}
        self.released: set[str] = set()  # physical clusters being shut down, or already gone
        self._executors: dict[str, Executor] = {}
        self.plans: PlanService | None = None  # of the leadership term
        self.resize = ResizeSteps(clusters, registry, provisioner)
        self.rolls: RollService | None = None  # likewise
        self.controllers: ControllerSteps | None = None  # likewise

    async def perform(self, operation: Operation, report: ReportProgress) -> Outcome | Pending:
        step = next_step(operation)
        if step in _ON_BROKERS and (away := self._unreached(operation)) is not None:
            return away
        if operation.action in CONTROLLER_CHANGES:
            assert self.controllers is not None
            return await self.controllers.perform(step, operation)
        if step in RESIZE_STEPS:
            return await self.resize.perform(step, operation)
        return await self._perform(step, operation, report)

    async def _perform(
        self, step: Step | None, operation: Operation, report: ReportProgress
    ) -> Outcome | Pending:
        match step:
            case Step.BROKERS:
                return await self._brokers(operation)
            case Step.ACCESS:
                return await self._access(operation)
            case Step.STATE:
                return await self._state(operation)
            case Step.GRACE:
                return self._grace(operation)
            case Step.GROUPS:
                return await self._groups(operation)
            case Step.TOPICS:
                await self._topics(operation, report)
            case Step.RELEASE:
                await self._release(operation)
            case Step.COPY:
                return await self._copy(operation, report)
            case Step.SETTINGS:
                assert self.rolls is not None
                await self.rolls.apply_settings(operation.subject)
            case Step.FEATURES:
                assert self.rolls is not None
                await self.rolls.raise_features(operation.subject)
            case Step.ROLL:
                assert self.rolls is not None
                outcome = await self.rolls.round(operation.subject)
                return Pending(outcome.seconds, outcome.detail) if isinstance(outcome, Waiting) else outcome
            case Step.PLAN:
                assert self.plans is not None
                await self.plans.change(operation)
            case _:
                raise AssertionError(step)
        return no_changes

    def _unreached(self, operation: Operation) -> Pending | None:
        """A new leader reconnects to clusters that its predecessor provisioned while operations run."""
        physical = physical_of(self._registry(), operation)
        if physical is None or physical.state is not ClusterState.READY or self._clusters.has(physical.id):
            return None
        return Pending(REACH_RETRY_SECONDS, f"{physical.id} cannot be reached")

    def access_writer(self, cluster: str) -> AccessWriter:
        """With the cluster's capabilities as last probed."""
        provided = self._clusters.get(cluster)
        known = self._access_writers.get(cluster)
        if known is None or known[0] is not provided:
            writer = AccessWriter(
                self._clusters.client(cluster),
                provided.key,
                sets_client_quotas=provided.sets_client_quotas,
                sets_acls=provided.sets_acls,
            )
            known = self._access_writers[cluster] = (provided, writer)
        return known[1]

    def executor(self, cluster: str) -> Executor:
        """Everything that moves on a physical cluster goes through this one, and shares its budget."""
        if cluster not in self._executors:
            self._executors[cluster] = Executor(
                self._clusters.client(cluster),
                hold=partial(self._hold, cluster),
                slow=partial(self._slow, cluster),
            )
        return self._executors[cluster]

    def _cluster(self, operation: Operation) -> LogicalCluster:
        assert operation.tenant is not None
        return self._registry().need(LogicalCluster, operation.tenant)

    async def _brokers(self, operation: Operation) -> Outcome:
        cluster = self._cluster(operation)
        if cluster.tenancy is not Tenancy.DEDICATED:
            return no_changes
        physical = self._registry().need(PhysicalCluster, cluster.cluster)
        if physical.is_shareable:
            return no_changes
        if self._provisioner is None:
            raise ProvisionerMissing(reason="it was started without a provisioner")
        provided = await self._provisioner.provision(physical, cluster.units)
        self._clusters.add(provided)
        await self._prepare(provided)

        def provisioned(registry: Registry, now_ms: int) -> tuple[Change, ...]:
            before = registry.need(PhysicalCluster, physical.id)
            after = registered(before, provided, now_ms)
            placed = registry.need(LogicalCluster, cluster.id).changed(now_ms, cell=provided.cells[0].id)
            return Put(after), Put(placed)

        return provisioned

    async def _access(self, operation: Operation) -> Outcome:
        assert operation.tenant is not None
        registry = self._registry()
        cluster = registry.get(LogicalCluster, operation.tenant)
        if cluster is None:
            return no_changes  # deleted meanwhile: that operation revoked the access of all its users
        access_writer = self.access_writer(cluster.cluster)
        if operation.action == "account.delete":
            user = kafka_user(cluster.tenant, ServiceAccountId(operation.subject))
            await access_writer.revoke([user])
        elif cluster.state is ClusterState.DELETING:
            accounts = [account.account for account in registry.accounts(cluster.id)]
            await access_writer.revoke_tenant(cluster.tenant, accounts)
        elif operation.action == "account.update":
            account = registry.get(ServiceAccount, operation.subject)
            if account is None:
                return no_changes
            await access_writer.grant(account_access(account, quota_for(registry, cluster)))
            await access_writer.delete_acls(sorted(revoked_acls(account)))
            return partial(_without_revoked, account)
        else:
            await access_writer.grant(tenant_access(registry, cluster))
        return no_changes

    async def _state(self, operation: Operation) -> Outcome | Pending:
        registry = self._registry()
        if operation.tenant is not None:
            cluster = registry.get(LogicalCluster, operation.tenant)
            affected = [] if cluster is None else [cluster]
        else:  # a broker's state
            physical = operation.subject.partition("/")[0]
            affected = [one for one in registry.all(LogicalCluster) if one.cluster == physical]
        if not affected:
            return no_changes
        publisher = self._publishers.get(affected[0].cluster)
        if publisher is None:  # its gateways must learn of the change before the operation is done
            return Pending(REACH_RETRY_SECONDS, f"{affected[0].cluster} cannot be reached")
        await asyncio.gather(*(publisher.publish(one.id) for one in affected))
        return no_changes

    def _grace(self, operation: Operation) -> Outcome | Pending:
        old = self._registry().get(ApiKey, str(operation.arguments["replaces"]))
        left = 0.0 if old is None else (old.expires_ms or 0) / 1000 - time.time()
        return no_changes if left <= 0 else Pending(min(left, GRACE_SECONDS_MAX), "both keys are valid")

    async def _groups(self, operation: Operation) -> Outcome | Pending:
        cluster = self._cluster(operation)
        client = self._clusters.client(cluster.cluster)
        prefix = tenant_prefix(cluster.tenant)
        listed = await groups.list_all(client)
        owned = {g.id: g.type for g in listed.values() if g.id.startswith(prefix)}
        if not owned:
            return no_changes
        classic = [group for group, kind in owned.items() if kind is GroupType.CLASSIC]
        await asyncio.gather(*(_remove_members(client, group) for group in classic))
        responses = await groups.delete(client, sorted(owned))
        left = [g for g, r in responses.items() if isinstance(r, PenstockError) and not _is_missing(r)]
        if not left:
            return no_changes
        return Pending(GROUP_RETRY_SECONDS, f"{len(left)} of {len(owned)} groups still have members")

    async def _topics(self, operation: Operation, report: ReportProgress) -> None:
        cluster = self._cluster(operation)
        client = self._clusters.client(cluster.cluster)
        prefix = tenant_prefix(cluster.tenant)
        listed = await topics.describe(client)
        owned = {
            name: topic
            for name, topic in listed.items()
            if name.startswith(prefix) and not isinstance(topic, PenstockError)
        }
        names = sorted(owned)
        for start in range(0, len(names), TOPICS_BATCH):
            if start:
                await report(f"{start} of {len(names)} topics deleted")
            batch = names[start : start + TOPICS_BATCH]
            responses = await topics.delete(client, ids=[owned[name].id for name in batch])
            for response in responses.values():
                if isinstance(response, PenstockError) and not _is_missing(response):
                    raise response

    async def _release(self, operation: Operation) -> None:
        cluster = self._cluster(operation)
        physical = self._registry().get(PhysicalCluster, cluster.cluster)
        if cluster.tenancy is Tenancy.DEDICATED and physical is not None and not physical.is_shareable:
            self.released.add(physical.id)
            await self._clusters.drop(physical.id)
            self._access_writers.pop(physical.id, None)
            self._executors.pop(physical.id, None)
            if self._provisioner is not None:
                await self._provisioner.release(physical)

    async def _copy(self, operation: Operation, report: ReportProgress) -> Outcome | Pending:
        cluster = self._cluster(operation)
        now_ms = int(time.time() * 1000)
        if waits := obstacles_to(self._registry(), cluster.cluster, Actor.BALANCE, now_ms):
            return Pending(INTERVENTION_RETRY_SECONDS, "; ".join(waits))
        physical = self._registry().need(PhysicalCluster, cluster.cluster)
        inside = brokers_of(replace(cluster, moving_from=""), physical)
        states = self._registry().broker_states(physical.id)
        closed = {broker for broker, state in states.items() if not state.takes_replicas}
        target = Target(
            cluster.tenant,
            tuple(Broker(b.id, b.zone) for b in physical.brokers if b.id in {*inside} - closed),
            demoted=frozenset(broker for broker, state in states.items() if not state.leads),
        )
        details: list[str] = []

        def on_progress(now: Progress) -> None:
            details.append(
                f"{now.partitions_done} of {now.partitions} partitions, {now.ratio:.0%} of the data"
            )

        executor = self.executor(cluster.cluster)
        moving = asyncio.create_task(executor.move_tenant(target, report=on_progress))
        try:
            while not moving.done():
                await asyncio.wait({moving}, timeout=PROGRESS_SECONDS)
                if details:
                    await report(details[-1])
                    details.clear()
            moving.result()
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        return no_changes


def physical_of(registry: Registry, operation: Operation) -> PhysicalCluster | None:
    """The physical cluster that an operation works on; None if that is gone, or there is none."""
    if operation.tenant is not None:
        tenant = registry.get(LogicalCluster, operation.tenant)
        return None if tenant is None else registry.get(PhysicalCluster, tenant.cluster)
    roll = registry.get(Roll, operation.subject)
    return registry.get(PhysicalCluster, operation.subject if roll is None else roll.cluster)


def registered(before: PhysicalCluster, provided: ProvidedCluster, now_ms: int) -> PhysicalCluster:
    """The entity of a physical cluster, updated from its provider.

    A broker that an adopted cluster does not list may only be down: it stays, and so do the cells.
    """
    present = {broker.id for broker in provided.brokers}
    selection = provided.selection
    lost = [
        broker
        for broker in before.brokers
        if broker.id not in present and selection is not None and selection.includes(broker)
    ]
    everything = replace(
        provided, brokers=tuple(sorted((*provided.brokers, *lost), key=lambda broker: broker.id))
    )
    cells = cells_after(before.cells, everything)
    placed = {broker for cell in cells for broker in cell.brokers}
    unused = [broker.id for broker in everything.brokers if broker.id not in placed]
    return before.changed(
        now_ms,
        provider=provided.provider,
        kafka_id=provided.kafka_id,
        brokers=everything.brokers,
        cells=cells,
        bootstrap=provided.tenants_bootstrap,
        state=ClusterState.READY,
        capacity=provided.capacity,
        missing=provided.missing,
        conditions=_broker_conditions(before, [broker.id for broker in lost], unused, now_ms),
    )


def _broker_conditions(
    before: PhysicalCluster, lost: Sequence[int], unused: Sequence[int], now_ms: int
) -> tuple[Condition, ...]:
    """The conditions that follow from the list of brokers, and those of other kinds."""
    kept = [c for c in before.conditions if c.kind not in _BROKER_CONDITIONS]
    for kind, brokers, detail, remedy in (
        (
            ConditionKind.BROKERS_LOST,
            lost,
            "the cluster does not list",
            "start them, or leave them out of `brokers` of that cluster",
        ),
        (
            ConditionKind.BROKERS_UNUSED,
            unused,
            "in no cell:",
            "add brokers until they fill a cell, evenly over the zones, or change `cell_brokers`",
        ),
    ):
        if brokers:
            text = f"{detail} {counted(len(brokers), 'broker')}: {', '.join(map(str, brokers))}"
            known = before.condition(kind)
            since = known.since_ms if known is not None and known.detail == text else now_ms
            kept.append(Condition(kind, since, text, remedy, brokers=len(brokers)))
    return tuple(kept)


def _without_revoked(account: ServiceAccount, registry: Registry, now_ms: int) -> tuple[Change, ...]:
    """Drops the revoked grants whose ACLs have been deleted from Kafka."""
    now = registry.get(ServiceAccount, account.id)
    if now is None or not account.revoked:
        return ()
    left = tuple(grant for grant in now.revoked if grant not in account.revoked)
    return (Put(now.changed(now_ms, revoked=left)),)


def cells_after(before: Sequence[CellMembers], provided: ProvidedCluster) -> tuple[CellMembers, ...]:
    """Existing cells stay, because tenants live in them; brokers in no cell form new ones.

    Brokers that do not fill a whole cell, evenly over the zones, wait for others.
    """
    present = {broker.id for broker in provided.brokers}
    if len(before) == 1 and provided.selection is not None and provided.selection.one_cell:
        return (CellMembers(before[0].id, tuple(sorted(present))),)
    if not before or any(broker not in present for cell in before for broker in cell.brokers):
        return provided.cells
    zones: dict[Zone, list[BrokerId]] = {}
    for broker in provided.brokers:
        zones.setdefault(broker.zone, []).append(broker.id)
    existing = [Cell(CellId(cell.id), cell.brokers) for cell in before]
    size = max(len(cell.brokers) for cell in before)
    if size % len(zones):  # formed when there were other zones
        return provided.cells
    return tuple(CellMembers(cell.id, cell.brokers) for cell in plan_cells(zones, size, existing))


async def _remove_members(client: Client, group: str) -> None:
    """Removes a classic group's members: their connections are closed, but their sessions still last."""
    described = (await groups.describe(client, [group], type_=GroupType.CLASSIC))[group]
    if isinstance(described, PenstockError) or not described.members:
        return
    leaving = [{"MemberId": m.id, "GroupInstanceId": m.instance_id} for m in described.members]
    body: dict[str, Any] = {"GroupId": group, "Members": leaving}
    await client.call("LeaveGroup", body, to=group_coordinator(group))


def _is_missing(error: PenstockError) -> bool:
    return error.facts.get("error_code") in _MISSING
