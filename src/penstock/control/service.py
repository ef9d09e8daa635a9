"""A control plane: always follows the registry, and leads while it owns the group.

Several may run. All of them read the registry from its topic and serve reads; the owner of the single
partition of `_penstock.control` decides. If two believe to be the owner for a moment, the transactional id
determines which one may write.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from penstock.balance.cell_relief import PACE
from penstock.control.acls import account_acls
from penstock.control.capacity_units import TABLES
from penstock.control.checker import DeclaredState, Difference, declared_state, differences, undeclared_acls
from penstock.control.cluster_placement import load_key
from penstock.control.decisions import Decision, DecisionContext, decided_before
from penstock.control.effects import registered
from penstock.control.kafka_access import TENANT_USER, read_acls
from penstock.control.leadership import LeadershipTerm
from penstock.control.observation import LoadAverages, MetricsObserver, read_actual_state
from penstock.control.registry import Change, Put, Registry
from penstock.control.relief_service import CellReliefService
from penstock.control.state_publisher import COMPACTED
from penstock.gateway.process.tenant_source import provision_gateways
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.membership import SESSION_SECONDS
from penstock.kafka.ownership import Ownership
from penstock.kafka.partition_log import ensure_topic
from penstock.model.entities import (
    ActiveControlPlane,
    ApiKey,
    ClusterState,
    Entity,
    LogicalCluster,
    Operation,
    OperatorRole,
    OperatorToken,
    PhysicalCluster,
    ServiceAccount,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.control import (
    ConfigurationDiffers,
    NoneActive,
    NotActive,
    NotCaughtUp,
    PlatformKeyDiffers,
    ProvisionerMissing,
)
from penstock.model.events import RegistryRecord, entity_of
from penstock.model.ids import kafka_user
from penstock.model.key_names import AUDIT_TOPIC, CONTROL_GROUP, REGISTRY_TOPIC
from penstock.model.schema import EVENT_BYTES_MAX
from penstock.quota.share_follower import ShareFollower
from penstock.quota.topics import ensure_topics
from penstock.quota.usage_reports import GATEWAY_EXPIRY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.balance.cell_relief import Pace
    from penstock.control.acls import AccountAcl
    from penstock.control.checker import ActualState
    from penstock.control.observation import LoadObserver
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster, Provisioner
    from penstock.kafka.client import Client
    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.wire.records import Record

LOAD_SECONDS: Final = 10.0  # between two observations of the brokers' load
PAUSE_SECONDS: Final = 0.5  # after a leadership term that ended with an error
REGISTRY: Final = TopicPartition(REGISTRY_TOPIC, 0)
AUDIT: Final = TopicPartition(AUDIT_TOPIC, 0)
AUDIT_RETENTION_MS: Final = 365 * 24 * 3600 * 1000
ROOT_TOKEN: Final = "root"  # noqa: S105 - the name of the token created at the first start

log = structlog.get_logger("penstock.control")


class Role(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Home:
    """The cluster that holds the registry, and what a new leadership term writes first."""

    cluster: str
    url: str
    provided_clusters: tuple[ProvidedCluster, ...]
    root_sha256: str = field(repr=False, default="")
    audit: TopicPartition = AUDIT
    settings: Mapping[str, str] = field(default_factory=dict)  # digests, by setting

    def opening_changes(self, incarnation: str, registry: Registry) -> Decision:
        """Registers the active control plane, the known clusters and the root token."""
        now = int(time.time() * 1000)
        before = registry.get(ActiveControlPlane, "active")
        active = ActiveControlPlane(
            id="active",
            version=1 if before is None else before.version + 1,
            changed_ms=now,
            url=self.url,
            incarnation=incarnation,
            since_ms=now,
            settings=self.settings,
        )
        changes: list[Change] = [Put(active), *self.registrations(registry).changes]
        changes += self._root(registry, now)
        return Decision(Operation(id="op-", action="", subject=""), tuple(changes), None)

    def registrations(self, registry: Registry) -> Decision:
        """Registers the known clusters."""
        now = int(time.time() * 1000)
        changes = [change for r in self.provided_clusters if (change := _registration(registry, r, now))]
        return Decision(Operation(id="op-", action="", subject=""), tuple(changes), None)

    def _root(self, registry: Registry, now: int) -> list[Change]:
        known = registry.get(OperatorToken, ROOT_TOKEN)
        if not self.root_sha256 or (known is not None and known.secret_sha256 == self.root_sha256):
            return []
        made = OperatorToken(
            id=ROOT_TOKEN,
            version=1 if known is None else known.version + 1,
            changed_ms=now,
            name=ROOT_TOKEN,
            role=OperatorRole.ADMIN,
            secret_sha256=self.root_sha256,
        )
        return [Put(made)]

    def active_elsewhere(self, registry: Registry) -> str:
        """The URL of the active control plane; empty if this one was the last to register as active."""
        active = registry.get(ActiveControlPlane, "active")
        return active.url if active is not None and active.url != self.url else ""

    def not_active(self, registry: Registry) -> NotActive:
        """The error of a change that this control plane cannot make now."""
        url = self.active_elsewhere(registry)
        return NotActive(url=url) if url else NoneActive()

    def check_settings(self, registry: Registry) -> None:
        """Compares the settings with those of the last active control plane.

        Raises if this one has another platform key; other differences are logged, because a takeover by
        a control plane with newer settings is how they are changed.
        """
        active = registry.get(ActiveControlPlane, "active")
        if active is None or not active.settings or not self.settings:
            return
        names = sorted({*active.settings, *self.settings})
        different = [name for name in names if active.settings.get(name) != self.settings.get(name)]
        if "platform_key" in different:
            raise PlatformKeyDiffers(url=active.url)
        if different:
            error = ConfigurationDiffers(url=active.url, settings=", ".join(different))
            log.warning("settings differ", error=str(error), remedy=error.advice)

    async def prepare(self, client: Client, provided: ProvidedCluster) -> None:
        """Creates what every physical cluster needs: the gateways' user and topics."""
        await provision_gateways(client, provided.key)
        await ensure_topics(client)


def _registration(registry: Registry, provided: ProvidedCluster, now: int) -> Change | None:
    before = registry.get(PhysicalCluster, provided.id)
    if before is None:
        before = PhysicalCluster(id=provided.id, name=provided.name, provider=provided.provider)
    after = registered(before, provided, now)
    same = before.version and before.changed(now, state=ClusterState.READY) == after
    return None if same else Put(after)


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
    ) -> None:
        self._home = home
        self.clusters = clusters
        self._provisioner = provisioner
        self._session_seconds = session_seconds
        self._registry = Registry()
        self._building = self._registry
        self._changed_tenants: set[str] = set()
        self._watch = watch or CellWatch()
        self._averages = LoadAverages()
        self._reliever = CellReliefService(self.decide, provisioner, self._watch.pace)
        self.loads: dict[str, float] = {}
        self.shares: dict[LogicalClusterId, QuotaShares] = {}
        self.role = Role.STARTING
        self._ownership_gained = asyncio.Event()
        self._ownership_lost = asyncio.Event()
        self._term: LeadershipTerm | None = None  # decides
        self._starting_term: LeadershipTerm | None = None  # follows commits from its start
        self._follower: CompactedTopicReader | None = None

    # Running

    async def run(self, stop: asyncio.Event) -> None:
        client = self.clusters.client(self._home.cluster)
        await self._create_topics(client)
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
            await self._prepare_clusters()
            tasks = [
                following,
                group.create_task(ownership.run()),
                group.create_task(self._lead_while_owner(ownership)),
                group.create_task(self._observe()),
                group.create_task(self._follow_shares()),
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def _create_topics(self, client: Client) -> None:
        await ensure_topic(client, NewTopic(REGISTRY_TOPIC, 1, configs=COMPACTED))
        audit = {"retention.ms": str(AUDIT_RETENTION_MS), "max.message.bytes": str(2 * EVENT_BYTES_MAX)}
        await ensure_topic(client, NewTopic(AUDIT_TOPIC, 1, configs=audit))

    async def _prepare_clusters(self) -> None:
        for provided in self.clusters.known:
            try:
                await self._home.prepare(self.clusters.client(provided.id), provided)
            except PenstockError as failure:
                if provided.id == self._home.cluster:
                    raise
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
            await self._reconnect_clusters()
            term = LeadershipTerm(
                self._home,
                self.clusters,
                self._follower,
                lambda: self._registry,
                self._provisioner,
                ownership.is_owner,
            )
            self._starting_term = term
            try:
                await self._run_term(term)
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

    async def _reconnect_clusters(self) -> None:
        """Connects to clusters that a predecessor provisioned."""
        if self._provisioner is None:
            return
        for physical in self._registry.all(PhysicalCluster):
            if self.clusters.has(physical.id) or physical.state is not ClusterState.READY:
                continue
            if self._term is not None and physical.id in self._term.effects.released:
                continue  # resuming it could start it again
            try:
                provided = await self._provisioner.resume(physical)
                if provided is not None:
                    self.clusters.add(provided)
                    if self._term is not None:
                        await self._term.add_cluster(provided)
            except PenstockError as failure:  # only its own tenants wait; retried in the next round
                log.warning("cluster not reached", cluster=physical.id, error=str(failure))

    async def add_cluster(self, provided: ProvidedCluster) -> None:
        """Adds a cluster that the settings name and that has become reachable. Idempotent."""
        self.clusters.add(provided)
        await self._home.prepare(self.clusters.client(provided.id), provided)
        others = (known for known in self._home.provided_clusters if known.id != provided.id)
        self._home = replace(self._home, provided_clusters=(*others, provided))
        if self._term is not None:
            await self._term.propose(self._home.registrations)
            await self._term.add_cluster(provided)

    async def _observe(self) -> None:
        observer = self._watch.observer or MetricsObserver(self.clusters)
        while True:
            if self._term is not None:
                await self._reconnect_clusters()
            for provided in self.clusters.known:
                try:
                    await self._observe_one(observer, provided)
                except PenstockError as failure:
                    log.warning("cluster not observed", cluster=provided.id, error=str(failure))
            await asyncio.sleep(self._watch.seconds)

    async def _observe_one(self, observer: LoadObserver, provided: ProvidedCluster) -> None:
        """Every control plane measures, because each reports loads; only the active one acts on them."""
        physical = self._registry.get(PhysicalCluster, provided.id)
        if physical is not None:
            # Cells grow over time, and only the registry knows them all.
            provided = replace(provided, cells=physical.cells)
        unit = TABLES[physical.capacity if physical is not None else "laptop"]
        observation = await observer.observe(provided, unit)
        self._averages.add(observation)
        self.loads = {cell: load.highest for cell, load in self._averages.cells.items()}
        if self._term is None:
            self._reliever.forget()
        elif self._watch.relieves and all(
            load_key(provided.id, cell.id) in observation.cells for cell in provided.cells
        ):
            await self._reliever.run_round(self._registry, provided.id, self._averages)

    async def _follow_shares(self) -> None:
        """Follows the shares that coordinators publish, on every known cluster."""
        following: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                known = {provided.id for provided in self.clusters.known}
                for cluster in following.keys() - known:
                    following.pop(cluster).cancel()
                for cluster in known - following.keys():
                    shares = ShareFollower(self.clusters.client(cluster), on_shares=self._on_shares)
                    following[cluster] = asyncio.create_task(shares.follower.run())
                await asyncio.sleep(LOAD_SECONDS)
                oldest = int((time.time() - GATEWAY_EXPIRY_SECONDS) * 1000)
                self.shares = {t: shares for t, shares in self.shares.items() if shares.time_ms >= oldest}
        finally:
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)

    def _on_shares(self, shares: QuotaShares) -> None:
        self.shares[shares.tenant] = shares

    # Following

    def _rebuild(self) -> None:
        """The serving registry stays until another has been built from the start of the topic."""
        self._building = Registry()

    def _apply_records(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            self._changed_tenants |= _tenants_of(record.key, record.value, self._building)
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
                actor, now, secrets.choice, request, fingerprint, self.loads, provisions
            )
            return decided_before(registry, context, kind) or decision(registry, context)

        return await term.propose(decide)

    async def admit(self, adopted: str) -> None:
        """Raises an error if the adopted cluster of this name cannot be given to a tenant."""
        if self._provisioner is None:
            raise ProvisionerMissing(reason="it was started without a provisioner")
        await self._provisioner.admit(adopted)

    async def acls(self, account: ServiceAccount) -> tuple[AccountAcl, ...]:
        """All ACLs of an account, including those that its tenant created through Kafka."""
        physical = self.registry.need(LogicalCluster, account.tenant).cluster
        user = kafka_user(account.tenant, account.account)
        return account_acls(account, await read_acls(self.clusters.client(physical), user))

    async def check(self) -> tuple[Difference, ...]:
        """All differences between Kafka and the declared state, on every known cluster."""
        everything: list[Difference] = []
        for provided in self.clusters.known:
            everything += differences(*await self._states(provided))
        return tuple(everything)

    async def _states(self, provided: ProvidedCluster) -> tuple[DeclaredState, ActualState]:
        quotas = provided.sets_client_quotas
        actual = await read_actual_state(self.clusters.client(provided.id), sets_client_quotas=quotas)
        physical = self.registry.need(PhysicalCluster, provided.id)
        return declared_state(self.registry, physical, sets_client_quotas=quotas), actual

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


def _tenants_of(key: bytes, value: bytes | None, registry: Registry) -> set[str]:
    """The tenants whose state a record may change."""
    kind, entity_id = entity_of(key)
    if kind == LogicalCluster.kind:
        return {entity_id}
    if kind == PhysicalCluster.kind:
        return {c.id for c in registry.all(LogicalCluster) if c.cluster == entity_id}
    if kind not in (ServiceAccount.kind, ApiKey.kind):
        return set()
    if value is not None:
        return {str(RegistryRecord.from_bytes(value).body["tenant"])}
    deleted = registry.get(ServiceAccount, entity_id) or registry.get(ApiKey, entity_id)
    return set() if deleted is None else {str(deleted.tenant)}


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_cause(inner) if isinstance(inner, BaseExceptionGroup) else inner
