"""A control plane: always follows the registry, and leads while it owns the group.

Several may run. All of them read the registry from its topic and serve reads; the owner of the single
partition of `_penstock.control` decides. If two believe to be the owner for a moment, the transactional id
determines which one may write.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from penstock.backup.restore_store import running_restore
from penstock.balance.broker_load import Profile
from penstock.balance.cell_relief import PACE
from penstock.balance.cluster_observation import observe
from penstock.cancellation import run_separately
from penstock.control.acls import account_acls
from penstock.control.audit_log import read_audit
from penstock.control.backups import Backups
from penstock.control.capacity_units import TABLES
from penstock.control.checker import (
    DeclaredState,
    Difference,
    declared_state,
    differences,
    known_tenants_only,
    undeclared_acls,
)
from penstock.control.cluster_placement import load_key
from penstock.control.decisions import Decision, DecisionContext, decided_before
from penstock.control.gateways.gateway_calls import GatewayCalls
from penstock.control.gateways.gateway_directory import GatewayDirectory
from penstock.control.gateways.gateway_follower import GatewayFollower
from penstock.control.gateways.state_publisher import COMPACTED
from penstock.control.health.findings import Findings
from penstock.control.health.healing_service import HealingService
from penstock.control.health.health_service import HealthService
from penstock.control.health.mitigating import Mitigating
from penstock.control.health.notification import Notifier
from penstock.control.home import until_reached
from penstock.control.kafka_access import TENANT_USER, read_acls
from penstock.control.leadership import LeadershipTerm
from penstock.control.links import Links
from penstock.control.load.balancing import Balancing, health_of_clusters
from penstock.control.load.load_history import publish, read_recent
from penstock.control.load.load_hours import HourHistory
from penstock.control.load.load_observation import MetricsObserver, log_unknown
from penstock.control.load.plan_store import PlanStore
from penstock.control.load.planning import PlanMaker, reader
from penstock.control.load.relief_service import CellReliefService
from penstock.control.observation import read_actual_state
from penstock.control.reconnecting import reconnect
from penstock.control.registration import gains_access, unusable
from penstock.control.registry import Registry, tenants_of
from penstock.control.rolling.roll_planning import RollPlanner
from penstock.control.rolling.roll_service import RollSupport
from penstock.control.size.controller_changes import ControllerChanges
from penstock.control.size.resizer import Resizer
from penstock.control.size.sizing import Sizing, SizingFiles
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.membership import SESSION_SECONDS
from penstock.kafka.ownership import Ownership
from penstock.kafka.partition_log import ensure_topic
from penstock.model.entities import (
    Entity,
    LogicalCluster,
    PhysicalCluster,
    ServiceAccount,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.control import (
    EntityMissing,
    NotCaughtUp,
)
from penstock.model.ids import kafka_user
from penstock.model.key_names import AUDIT_TOPIC, CONTROL_GROUP, REGISTRY_TOPIC
from penstock.model.schema import EVENT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.balance.cell_relief import Pace
    from penstock.balance.executing import Observation as ClusterObservation
    from penstock.control.acls import AccountAcl
    from penstock.control.audit_log import AuditPage, AuditQuery
    from penstock.control.checker import ActualState
    from penstock.control.home import Home
    from penstock.control.load.load_observation import LoadObserver, Observation
    from penstock.control.load.plan_service import PlanService
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster, Provisioner
    from penstock.control.physical.local_nodes import Nodes
    from penstock.fleet.layout import Layout
    from penstock.kafka.client import Client
    from penstock.model.events import BrokerLoad, QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.wire.records import Record

LOAD_SECONDS: Final = 10.0  # between two observations of the brokers' load
FOLLOW_SECONDS: Final = 2.0  # between two looks at which clusters there are
PAUSE_SECONDS: Final = 0.5  # after a leadership term that ended with an error
REGISTRY: Final = TopicPartition(REGISTRY_TOPIC, 0)
AUDIT_RETENTION_MS: Final = 365 * 24 * 3600 * 1000

log = structlog.get_logger("penstock.control")


class Role(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class CellWatch:
    """How cells are observed, and whether full ones are relieved."""

    relieves: bool = True
    seconds: float = LOAD_SECONDS
    observer: LoadObserver | None = None  # none: brokers' metrics
    pace: Pace = PACE


class ControlPlane:
    def __init__(
        self,
        home: Home,
        clusters: Clusters,
        *,
        provisioner: Provisioner | None = None,
        session_seconds: float = SESSION_SECONDS,
        watch: CellWatch | None = None,
        nodes: Nodes | None = None,
        notifier: Notifier | None = None,
        sizing_files: SizingFiles | None = None,
        layout: Layout | None = None,
    ) -> None:
        self._home = home
        self.clusters = clusters
        self._provisioner = provisioner
        self._session_seconds = session_seconds
        self._registry = self._building = Registry()
        self._changed_tenants: set[str] = set()
        self._watch = watch or CellWatch()
        self._observations: dict[str, Observation] = {}
        self._reliever = CellReliefService(self.decide, provisioner, self._watch.pace)
        self.loads: dict[str, float] = {}
        self.shares: dict[LogicalClusterId, QuotaShares] = {}
        self.gateways = GatewayDirectory()
        self.gateway_calls = GatewayCalls(clusters)
        self.links = Links(clusters)
        self.role = Role.STARTING
        self._ownership_gained = asyncio.Event()
        self._ownership_lost = asyncio.Event()
        self._term: LeadershipTerm | None = None  # decides
        self._starting_term: LeadershipTerm | None = None  # follows commits from its start
        self._follower: CompactedTopicReader | None = None
        self.plans = PlanStore(clusters.client(home.cluster))
        self.plan_maker = PlanMaker(
            lambda: self.registry, lambda: self.broker_loads, reader(clusters), self._plan_service
        )
        self.resizer = Resizer(self, provisioner)
        self.controllers = ControllerChanges(self, clusters, layout)
        self.balancing = Balancing(
            self,
            health_of_clusters(clusters),
            is_active=lambda: self._term is not None,
            restoring=lambda cluster: running_restore(clusters.client(cluster)),
        )
        self._notifier = notifier or Notifier()
        self.health = HealthService(
            self,
            clusters,
            Mitigating(self, clusters, self._plan_service, nodes),
            lambda: self._term is not None,
            self._notifier.notify,
        )
        self._roll_support = RollSupport(
            layout,
            self._loads_of,
            sick=self.health.sick,
            burning=lambda roll: self.health.burning(roll.cluster, roll.created_ms),
            slow=lambda roll: self.health.slower(roll.cluster, roll.created_ms),
        )
        self.roll_planner = RollPlanner(lambda: self.registry, clusters, self._roll_support)
        self.findings = Findings(clusters)
        self.healing = HealingService(
            self, clusters, self.findings, self._plan_service, lambda: self._term is not None
        )
        self.backups = Backups(clusters, lambda: self._term is not None and self._term.is_owner())
        self._load_hours = HourHistory(clusters)
        self.sizing = Sizing(
            self,
            self._load_hours,
            is_active=lambda: self._term is not None,
            files=sizing_files or SizingFiles(),
        )

    # Running

    async def run(self, stop: asyncio.Event) -> None:
        client = self.clusters.client(self._home.cluster)
        if not await until_reached(partial(self._create_topics, client), stop):
            return
        self._follower = CompactedTopicReader(
            client, REGISTRY, apply=self._apply_records, reset=self._rebuild, progressed=self._on_progress
        )
        ownership = Ownership(
            client,
            CONTROL_GROUP,
            REGISTRY_TOPIC,
            changed=self._owner_changed,
            session_seconds=self._session_seconds,
        )
        self._ownership_lost.set()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follower.run())
            await self._follower.wait_until_caught_up()
            self._home.check_settings(self._registry)
            if not await until_reached(self._prepare_clusters, stop):
                following.cancel()
                return
            tasks = [
                following,
                group.create_task(ownership.run()),
                group.create_task(self._lead_while_owner(ownership)),
                group.create_task(self._reconnect()),
                group.create_task(self._observe()),
                group.create_task(GatewayFollower(self.clusters, self.gateways, self.shares).run()),
                group.create_task(self.plans.run()),
                group.create_task(self.balancing.run()),
                group.create_task(self.health.run()),
                group.create_task(self.healing.run()),
                group.create_task(self._notifier.run()),
                group.create_task(self.sizing.run()),
                group.create_task(self.backups.run()),
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def _create_topics(self, client: Client) -> None:
        await ensure_topic(client, NewTopic(REGISTRY_TOPIC, 1, configs=COMPACTED))
        audit = {"retention.ms": str(AUDIT_RETENTION_MS), "max.message.bytes": str(2 * EVENT_BYTES_MAX)}
        await ensure_topic(client, NewTopic(AUDIT_TOPIC, 1, configs=audit))

    async def _prepare_clusters(self) -> None:
        """The home cluster must respond. The others are prepared at once: each may take a time limit."""
        home = self.clusters.get(self._home.cluster)
        await self._home.prepare(self.clusters.client(home.id), home)
        others = (provided for provided in self.clusters.known if provided.id != home.id)
        await asyncio.gather(*map(self._prepare, others))

    async def _prepare(self, provided: ProvidedCluster) -> None:
        try:
            await self._home.prepare(self.clusters.client(provided.id), provided)
        except PenstockError as failure:
            log.warning("cluster not reached", cluster=provided.id, error=str(failure))

    def _owner_changed(self, owns: bool) -> None:
        if owns:
            self._ownership_lost.clear()
            self._ownership_gained.set()
        else:
            self._ownership_gained.clear()
            self._ownership_lost.set()

    async def _lead_while_owner(self, ownership: Ownership) -> None:
        assert self._follower is not None
        await self._follower.wait_until_caught_up()
        self.role = Role.STANDBY
        while True:
            await self._ownership_gained.wait()
            self._home.check_settings(self._registry)
            self._follow_fleet()
            term = LeadershipTerm(
                self._home,
                self.clusters,
                self._follower,
                lambda: self._registry,
                self._provisioner,
                ownership.is_owner,
                self.plans,
                self._roll_support,
                self.health.pressure,
            )
            term.effects.resize.maker = self.plan_maker
            self._starting_term = term
            try:
                await run_separately(self._run_term(term))
            except* PenstockError as failures:
                log.warning("no longer active", error=str(_first_cause(failures)))
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                self._starting_term = None

    async def _run_term(self, term: LeadershipTerm) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(term.run())
                ready = group.create_task(term.ready.wait())
                lost = group.create_task(self._ownership_lost.wait())
                await asyncio.wait({running, ready, lost}, return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    self._term, self.role = term, Role.ACTIVE
                    await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
                if lost.done():
                    log.warning("no longer active", error="ownership lost")
                for task in (running, ready, lost):
                    task.cancel()
        finally:
            self._term, self.role = None, Role.STANDBY

    async def _reconnect(self) -> None:
        """Leadership does not wait for what a predecessor provisioned; operations on it do."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            if self._term is not None and self._provisioner is not None:
                await reconnect(self._term, self.clusters, self._registry, self._provisioner)

    def _follow_fleet(self) -> None:
        """What the fleet of this home consists of now: another control plane may have changed it."""
        if self._provisioner is None:
            return
        try:
            provided = {each.id: each for each in self._provisioner.fleet()}
        except PenstockError as failure:
            log.warning("fleet file not read", error=str(failure))
            return
        known = {each.id: each for each in self._home.provided_clusters}
        changed = {id_: each for id_, each in provided.items() if id_ in known and _differs(known[id_], each)}
        if changed:
            for each in changed.values():
                self.clusters.add(each)
            self._home = replace(self._home, provided_clusters=tuple((known | changed).values()))

    def has_current(self, provided: ProvidedCluster) -> bool:
        """Whether the cluster is known as it was probed just now, and the registry has it so."""
        if not self.clusters.has(provided.id) or self.clusters.get(provided.id) != provided:
            return False
        home = replace(self._home, provided_clusters=(provided,))
        return self._term is None or not home.registrations(self._registry).changes

    async def add_cluster(self, provided: ProvidedCluster) -> None:
        """Adds a cluster that the settings name, or what a probe has found changed. Idempotent."""
        before = self.clusters.get(provided.id) if self.clusters.has(provided.id) else None
        self.clusters.add(provided)
        await self._home.prepare(self.clusters.client(provided.id), provided)
        others = (known for known in self._home.provided_clusters if known.id != provided.id)
        self._home = replace(self._home, provided_clusters=(*others, provided))
        if self._term is not None:
            await self._term.propose(self._home.registrations)
            await self._term.add_cluster(provided)
            if before is not None and gains_access(before, provided):
                declared, _ = await self._states(provided)
                await self._term.effects.access_writer(provided.id).grant(declared.access)

    async def report_unusable(self, name: str, failure: PenstockError, *, replaced: bool) -> None:
        """Records why a cluster of this name cannot be used now; nothing is written to a replaced one."""
        for physical in self._registry.all(PhysicalCluster):
            if physical.name != name or not physical.is_shareable:
                continue
            if replaced and physical.id != self._home.cluster and self.clusters.has(physical.id):
                if self._term is not None:
                    self._term.remove_cluster(physical.id)
                await self.clusters.drop(physical.id)
            if self._term is not None:
                await self._term.propose(partial(unusable, physical.id, failure))

    async def _observe(self) -> None:
        observer = self._watch.observer or MetricsObserver(self.clusters)
        restored: set[str] = set()
        while True:
            self._follow_fleet()
            for provided in self.clusters.known:
                try:
                    if isinstance(observer, MetricsObserver) and provided.id not in restored:
                        await self._restore_loads(observer, provided.id)
                        restored.add(provided.id)
                    await self._observe_one(observer, provided)
                except PenstockError as failure:
                    log.warning("cluster not observed", cluster=provided.id, error=str(failure))
                except Exception:  # it belongs to this cluster, not to the control plane
                    log.exception("observation raised", cluster=provided.id)
            await asyncio.sleep(self._watch.seconds)

    async def _restore_loads(self, observer: MetricsObserver, cluster: str) -> None:
        try:
            recent = await read_recent(self.clusters.client(cluster))
        except PenstockError as failure:  # loads are known after two scrapes then
            log.warning("load history not read", cluster=cluster, error=str(failure))
        else:
            observer.restore(cluster, recent, int(time.time() * 1000))

    async def _observe_one(self, observer: LoadObserver, provided: ProvidedCluster) -> None:
        """Every control plane measures, because each reports loads; only the active one acts on them."""
        physical = self._registry.get(PhysicalCluster, provided.id)
        if physical is not None:
            # Cells grow over time, and only the registry knows them all.
            profile = Profile.of(physical.load_profile)
            provided = replace(provided, cells=physical.cells, profile=profile)
        unit = TABLES[physical.capacity if physical is not None else "laptop"]
        observation = await observer.observe(provided, unit)
        log_unknown(self._observations.get(provided.id), observation)
        known = {each.id for each in self.clusters.known}
        self._observations = {c: each for c, each in self._observations.items() if c in known}
        self._observations[provided.id] = observation
        self.loads = {
            cell: load.highest for each in self._observations.values() for cell, load in each.cells.items()
        }
        if self._term is None:
            self._reliever.forget()
            return
        try:
            await publish(self.clusters.client(provided.id), [*observation.brokers, *observation.topic_rates])
            await self._load_hours.observe(provided.id, observation.brokers)
        except PenstockError as failure:
            log.warning("load history not written", cluster=provided.id, error=str(failure))
        if self._watch.relieves and all(
            load_key(provided.id, cell.id) in observation.cells for cell in provided.cells
        ):
            await self._reliever.run_round(self._registry, provided.id, observation)

    @property
    def broker_loads(self) -> dict[str, tuple[BrokerLoad, ...]]:
        """By physical cluster."""
        return {cluster: observation.brokers for cluster, observation in self._observations.items()}

    def _loads_of(self, cluster: str) -> dict[int, float]:
        loads = self.broker_loads.get(cluster, ())
        return {int(each.broker): each.load for each in loads if each.load is not None}

    # Following

    def _rebuild(self) -> None:
        """The serving registry stays until another has been built from the start of the topic."""
        self._building = Registry()

    def _apply_records(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            self._changed_tenants |= tenants_of(record.key, record.value, self._building)
            self._building.apply(record.key, record.value)

    def _on_progress(self) -> None:
        assert self._follower is not None
        if not self._follower.caught_up:
            return
        if self._registry is not self._building:
            self._registry = self._building
            self._changed_tenants |= {cluster.id for cluster in self._registry.all(LogicalCluster)}
        changed, self._changed_tenants = self._changed_tenants, set()
        if self._starting_term is not None:
            self._starting_term.registry_changed(changed)

    @property
    def position(self) -> tuple[int, int]:
        """Offset up to which the registry is read, and its end offset."""
        follower = self._follower
        return (0, -1) if follower is None else (follower.position, follower.end)

    # Requests

    @property
    def registry(self) -> Registry:
        """The registry to read from: committed state without gaps."""
        if self._follower is None or self._registry is not self._building or self.position[1] < 0:
            position, end = self.position
            raise NotCaughtUp(position=position, end=end)
        return self._registry

    @property
    def active_url(self) -> str:
        """Where the active control plane is; empty if none is."""
        return self._home.url if self._term is not None else self._home.active_elsewhere(self._registry)

    async def decide(
        self,
        decision: Callable[[Registry, DecisionContext], Decision],
        kind: type[Entity],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decision:
        """Decides and commits; a repeated request gets the same decision."""
        term = self._term
        if term is None:
            raise self._home.not_active(self._registry)

        def decide(registry: Registry) -> Decision:
            now = int(time.time() * 1000)
            provisions = self._provisioner is not None
            context = DecisionContext(
                actor,
                now,
                secrets.choice,
                request,
                fingerprint,
                self.loads,
                provisions,
                self.clusters.has,
            )
            return decided_before(registry, context, kind) or decision(registry, context)

        return await term.propose(decide)

    async def admit(self, adopted: str) -> None:
        """Raises an error if the adopted cluster of this name cannot be given to a tenant."""
        named = [p for p in self.registry.all(PhysicalCluster) if p.name == adopted and p.is_shareable]
        if any(self.clusters.has(p.id) for p in named):
            return  # known to the registry: decisions check it
        if self._provisioner is None:
            raise EntityMissing(kind="adopted cluster", id=adopted)
        await self._provisioner.admit(adopted)

    async def acls(self, account: ServiceAccount) -> tuple[AccountAcl, ...]:
        """All ACLs of an account, including those that its tenant created through Kafka."""
        physical = self.registry.need(LogicalCluster, account.tenant).cluster
        user = kafka_user(account.tenant, account.account)
        return account_acls(account, await read_acls(self.clusters.client(physical), user))

    async def audit(self, query: AuditQuery) -> AuditPage:
        """A page of what operators changed."""
        return await read_audit(self.clusters.client(self._home.cluster), self._home.audit, query)

    def _plan_service(self) -> PlanService:
        if self._term is None:
            raise self._home.not_active(self._registry)
        return self._term.plans

    async def observe_topics(self, cluster: str, names: Collection[str]) -> ClusterObservation:
        """These topics of a physical cluster as they are now."""
        return await observe(self.clusters.client(cluster), names)

    async def check(self) -> tuple[Difference, ...]:
        """All differences between Kafka and the declared state, on every known cluster."""
        everything: list[Difference] = []
        for provided in self.clusters.known:
            everything += differences(*await self._states(provided))
        return tuple(everything)

    async def _states(self, provided: ProvidedCluster) -> tuple[DeclaredState, ActualState]:
        quotas, acls = provided.sets_client_quotas, provided.sets_acls
        actual = await read_actual_state(
            self.clusters.client(provided.id), sets_client_quotas=quotas, sets_acls=acls
        )
        physical = self.registry.need(PhysicalCluster, provided.id)
        declared = declared_state(self.registry, physical, sets_client_quotas=quotas, sets_acls=acls)
        return declared, known_tenants_only(actual, declared) if physical.is_shareable else actual

    async def repair(self) -> tuple[Difference, ...]:
        """Creates what is missing and deletes what is undeclared; returns the remaining differences."""
        term = self._term
        if term is None:
            raise self._home.not_active(self._registry)
        for provided in self.clusters.known:
            declared, actual = await self._states(provided)
            writer = term.effects.access_writer(provided.id)
            users = {*actual.access.users, *actual.access.client_quotas}
            users |= {acl.user for acl in actual.access.acls}
            unknown = {user for user in users - {*declared.access.users} if TENANT_USER.fullmatch(user)}
            await writer.revoke(sorted(unknown))
            await writer.grant(declared.access)
            extra = undeclared_acls(declared, actual)
            await writer.delete_acls([acl for acl in extra if acl.user not in unknown])
            publisher = term.publishers.get(provided.id)
            if publisher is not None:
                for tenant in {*declared.states, *actual.states}:
                    await publisher.publish(tenant)
        return await self.check()


def _differs(before: ProvidedCluster, after: ProvidedCluster) -> bool:
    """Whether a cluster has other brokers, or other addresses."""
    return any(
        getattr(before, name) != getattr(after, name)
        for name in ("brokers", "metrics", "bootstrap", "tenants_bootstrap")
    )


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_cause(inner) if isinstance(inner, BaseExceptionGroup) else inner
