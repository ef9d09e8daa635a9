"""A control plane: follows the registry always, and reigns while it owns the group.

Several may run. All of them read the registry from its topic and answer questions; one of them, the
owner of the single partition of `_penstock.control`, decides. Where the two disagree for a moment,
the transactional id says who may write.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from penstock.balance.relief import PACE
from penstock.control.checker import Declared, Difference, declared, differences, undeclared_rules
from penstock.control.decisions import Ask, Decided, decided_before
from penstock.control.feeder import COMPACTED
from penstock.control.observing import Averages, Observer, found
from penstock.control.placing import load_key
from penstock.control.registry import Change, Put, Registry
from penstock.control.reign import Reign
from penstock.control.relieving import Reliever
from penstock.control.rights import TENANT_USER, rules_of
from penstock.control.rules import own_rules
from penstock.control.steps import registered
from penstock.control.units import TABLES
from penstock.fleet.passwords import SCRAM_ITERATIONS
from penstock.gateway.states_topic import GATEWAY_USER, gateway_rules
from penstock.kafka import acls, users
from penstock.kafka.following import Follower
from penstock.kafka.log import ensure_topic
from penstock.kafka.membership import SESSION_SECONDS
from penstock.kafka.ownership import Ownership
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.security import Mechanism
from penstock.kafka.topics import NewTopic
from penstock.kafka.users import Credential
from penstock.model.entities import (
    ApiKey,
    ClusterState,
    Entity,
    Holder,
    LogicalCluster,
    Operation,
    OperatorRole,
    OperatorToken,
    PhysicalCluster,
    ServiceAccount,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NotActive, NotCaughtUp, ProvisionerMissing
from penstock.model.events import RegistryRecord, entity_of
from penstock.model.ids import kafka_user
from penstock.model.keys import AUDIT_TOPIC, CONTROL_GROUP, REGISTRY_TOPIC
from penstock.model.schema import EVENT_BYTES_MAX
from penstock.quota.reports import GONE_SECONDS
from penstock.quota.told import Told
from penstock.quota.topics import ensure_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.balance.relief import Pace
    from penstock.control.observing import Observing
    from penstock.control.reach import Clusters, Provisioner, Reach
    from penstock.control.rules import OwnRule
    from penstock.kafka.client import Client
    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.wire.records import Record

LOAD_SECONDS: Final = 10.0  # between two looks at the brokers' load
PAUSE_SECONDS: Final = 0.5  # after a stay in office ended by an error
REGISTRY: Final = TopicPartition(REGISTRY_TOPIC, 0)
AUDIT: Final = TopicPartition(AUDIT_TOPIC, 0)
AUDIT_RETENTION_MS: Final = 365 * 24 * 3600 * 1000
ROOT_TOKEN: Final = "root"  # noqa: S105 - the name of the token that is made at the first start

log = structlog.get_logger("penstock.control")


class Role(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Home:
    """The cluster that holds the registry, and what is written when somebody takes office."""

    cluster: str
    url: str
    reaches: tuple[Reach, ...]
    root_sha256: str = field(repr=False, default="")
    audit: TopicPartition = AUDIT

    def opening(self, incarnation: str) -> Callable[[Registry], Decided]:
        """Who is active, which clusters there are, and the operator that is always there."""

        def decide(registry: Registry) -> Decided:
            now = int(time.time() * 1000)
            before = registry.get(Holder, "active")
            holder = Holder(
                id="active",
                version=1 if before is None else before.version + 1,
                changed_ms=now,
                url=self.url,
                incarnation=incarnation,
                since_ms=now,
            )
            changes: list[Change] = [Put(holder)]
            changes += [change for r in self.reaches if (change := _registration(registry, r, now))]
            changes += self._root(registry, now)
            return Decided(Operation(id="op-", action="", subject=""), tuple(changes), None)

        return decide

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

    async def prepare(self, client: Client, reach: Reach) -> None:
        """What every physical cluster needs besides its tenants: the gateways' own user, and the topics
        that quotas go over."""
        password = reach.key.password(GATEWAY_USER)
        credential = Credential(GATEWAY_USER, password, Mechanism.SCRAM_SHA_512, SCRAM_ITERATIONS)
        made = await users.alter(client, upsert=[credential])
        ruled = await acls.create(client, gateway_rules())
        for answer in (*made.values(), *ruled.values()):
            if answer is not None:
                raise answer
        await ensure_topics(client)


def _registration(registry: Registry, reach: Reach, now: int) -> Change | None:
    before = registry.get(PhysicalCluster, reach.id)
    if before is None:
        before = PhysicalCluster(id=reach.id, name=reach.name, provider=reach.provider)
    after = registered(before, reach, now)
    same = before.version and before.changed(now, state=ClusterState.READY) == after
    return None if same else Put(after)


@dataclass(frozen=True, slots=True)
class Watch:
    """How cells are watched, and whether full ones are relieved."""

    relieves: bool = True
    seconds: float = LOAD_SECONDS
    observer: Observing | None = None  # none: brokers' metrics
    pace: Pace = PACE


class ControlPlane:
    def __init__(
        self,
        home: Home,
        clusters: Clusters,
        *,
        provisioner: Provisioner | None = None,
        session_seconds: float = SESSION_SECONDS,
        watch: Watch | None = None,
    ) -> None:
        self._home = home
        self.clusters = clusters
        self._provisioner = provisioner
        self._session_seconds = session_seconds
        self._registry = Registry()
        self._building = self._registry
        self._dirty: set[str] = set()
        self._watch = watch or Watch()
        self._averages = Averages()
        self._reliever = Reliever(self.decide, provisioner, self._watch.pace)
        self.loads: dict[str, float] = {}
        self.shares: dict[LogicalClusterId, QuotaShares] = {}
        self.role = Role.STARTING
        self._owns = asyncio.Event()
        self._owned_not = asyncio.Event()
        self._reign: Reign | None = None  # decides
        self._taking_office: Reign | None = None  # hears what is committed, from its first moment
        self._follower: Follower | None = None

    # Life

    async def run(self, stop: asyncio.Event) -> None:
        client = self.clusters.client(self._home.cluster)
        await self._prepare(client)
        self._follower = Follower(client, REGISTRY, take=self._take, reset=self._reset, moved=self._moved)
        ownership = Ownership(
            client,
            CONTROL_GROUP,
            REGISTRY_TOPIC,
            changed=self._owner_changed,
            session_seconds=self._session_seconds,
        )
        self._owned_not.set()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._follower.run()),
                group.create_task(ownership.run()),
                group.create_task(self._reign_whenever(ownership)),
                group.create_task(self._observe()),
                group.create_task(self._listen()),
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def _prepare(self, client: Client) -> None:
        await ensure_topic(client, NewTopic(REGISTRY_TOPIC, 1, configs=COMPACTED))
        audit = {"retention.ms": str(AUDIT_RETENTION_MS), "max.message.bytes": str(2 * EVENT_BYTES_MAX)}
        await ensure_topic(client, NewTopic(AUDIT_TOPIC, 1, configs=audit))
        for reach in self.clusters.known:
            try:
                await self._home.prepare(self.clusters.client(reach.id), reach)
            except PenstockError as failure:
                if reach.id == self._home.cluster:
                    raise
                log.warning("cluster not reached", cluster=reach.id, error=str(failure))

    def _owner_changed(self, owns: bool) -> None:
        if owns:
            self._owned_not.clear()
            self._owns.set()
        else:
            self._owns.clear()
            self._owned_not.set()

    async def _reign_whenever(self, ownership: Ownership) -> None:
        assert self._follower is not None
        await self._follower.until_caught_up()
        while True:
            self.role = Role.STANDBY
            await self._owns.wait()
            await self._known_again()
            reign = Reign(
                self._home,
                self.clusters,
                self._follower,
                lambda: self._registry,
                self._provisioner,
                ownership.holds,
            )
            self._taking_office = reign
            try:
                await self._stay(reign)
            except* PenstockError as failures:
                log.warning("no longer active", error=str(_first(failures)))
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                self._reign = self._taking_office = None

    async def _stay(self, reign: Reign) -> None:
        async with asyncio.TaskGroup() as group:
            staying = group.create_task(reign.run())
            ready = group.create_task(reign.ready())
            lost = group.create_task(self._owned_not.wait())
            await asyncio.wait({staying, ready, lost}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self._reign, self.role = reign, Role.ACTIVE
                await asyncio.wait({staying, lost}, return_when=asyncio.FIRST_COMPLETED)
            for task in (staying, ready, lost):
                task.cancel()

    async def _known_again(self) -> None:
        """Clusters that a predecessor made: their provider says how they are reached."""
        if self._provisioner is None:
            return
        for physical in self._registry.all(PhysicalCluster):
            if self.clusters.has(physical.id) or physical.state is not ClusterState.READY:
                continue
            if self._reign is not None and physical.id in self._reign.effects.released:
                continue  # to ask how it is reached could start it again
            try:
                reach = await self._provisioner.reach(physical)
                if reach is not None:
                    self.clusters.add(reach)
                    if self._reign is not None:
                        await self._reign.take_in(reach)
            except PenstockError as failure:  # its own tenants wait; it is asked again in a while
                log.warning("cluster not reached", cluster=physical.id, error=str(failure))

    async def _observe(self) -> None:
        observer = self._watch.observer or Observer(self.clusters)
        while True:
            if self._reign is not None:
                await self._known_again()
            for reach in self.clusters.known:
                try:
                    await self._observe_one(observer, reach)
                except PenstockError as failure:
                    log.warning("cluster not observed", cluster=reach.id, error=str(failure))
            await asyncio.sleep(self._watch.seconds)

    async def _observe_one(self, observer: Observing, reach: Reach) -> None:
        """Everybody measures, since everybody tells loads; who is active acts on them."""
        physical = self._registry.get(PhysicalCluster, reach.id)
        if physical is not None:
            reach = replace(reach, cells=physical.cells)  # its provider does not know how they came to be
        seen = await observer.look(reach, TABLES[physical.capacity if physical is not None else "laptop"])
        self._averages.take(seen)
        self.loads = {cell: load.highest for cell, load in self._averages.cells.items()}
        if self._reign is None:
            self._reliever.forget()
        elif self._watch.relieves and all(load_key(reach.id, cell.id) in seen.cells for cell in reach.cells):
            await self._reliever.look(self._registry, reach.id, self._averages)

    async def _listen(self) -> None:
        """What coordinators tell gateways, of every cluster that is known."""
        following: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                known = {reach.id for reach in self.clusters.known}
                for cluster in following.keys() - known:
                    following.pop(cluster).cancel()
                for cluster in known - following.keys():
                    told = Told(self.clusters.client(cluster), news=self._news)
                    following[cluster] = asyncio.create_task(told.follower.run())
                await asyncio.sleep(LOAD_SECONDS)
                oldest = int((time.time() - GONE_SECONDS) * 1000)
                self.shares = {t: told for t, told in self.shares.items() if told.time_ms >= oldest}
        finally:
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)

    def _news(self, told: QuotaShares) -> None:
        self.shares[told.tenant] = told

    # Following

    def _reset(self) -> None:
        """The serving registry stays until another has been built from the start."""
        self._building = Registry()

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            self._dirty |= _tenants_of(record.key, record.value, self._building)
            self._building.apply(record.key, record.value)

    def _moved(self) -> None:
        assert self._follower is not None
        if not self._follower.caught_up:
            return
        if self._registry is not self._building:
            self._registry = self._building
            self._dirty |= {cluster.id for cluster in self._registry.all(LogicalCluster)}
        dirty, self._dirty = self._dirty, set()
        if self._taking_office is not None:
            self._taking_office.moved(dirty)

    @property
    def position(self) -> tuple[int, int]:
        """How far the registry is read, and how far it goes."""
        follower = self._follower
        return (0, -1) if follower is None else (follower.position, follower.end)

    # What is asked

    @property
    def registry(self) -> Registry:
        """To be read. What it says is committed, and it has no gap."""
        if self._follower is None or self._registry is not self._building or self.position[1] < 0:
            position, end = self.position
            raise NotCaughtUp(position=position, end=end)
        return self._registry

    @property
    def active_url(self) -> str:
        holder = self._registry.get(Holder, "active")
        return holder.url if holder is not None else "not known"

    async def decide(
        self,
        decision: Callable[[Registry, Ask], Decided],
        kind: type[Entity],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decided:
        """Have something decided and committed; the same request again gets the same answer."""
        reign = self._reign
        if reign is None:
            raise NotActive(url=self.active_url)

        def decide(registry: Registry) -> Decided:
            now = int(time.time() * 1000)
            provisions = self._provisioner is not None
            ask = Ask(actor, now, secrets.choice, request, fingerprint, self.loads, provisions)
            return decided_before(registry, ask, kind) or decision(registry, ask)

        return await reign.propose(decide)

    async def admit(self, adopted: str) -> None:
        """Whether the cluster that was adopted under this name can be given to a tenant; else why not."""
        if self._provisioner is None:
            raise ProvisionerMissing(reason="it was started without one")
        await self._provisioner.admit(adopted)

    async def rules(self, account: ServiceAccount) -> tuple[OwnRule, ...]:
        """What an account may do, with the rules that its tenant made through Kafka."""
        physical = self.registry.need(LogicalCluster, account.tenant).cluster
        user = kafka_user(account.tenant, account.account)
        found = await rules_of(self.clusters.client(physical), user)
        return own_rules(account, found)

    async def check(self) -> tuple[Difference, ...]:
        """Everything that Kafka has otherwise than declared, on every cluster that is reached."""
        everything: list[Difference] = []
        for reach in self.clusters.known:
            everything += await check_cluster(self.registry, reach, self.clusters.client(reach.id))
        return tuple(everything)

    async def repair(self) -> tuple[Difference, ...]:
        """Give what is missing, take what nobody declared; what is left."""
        reign = self._reign
        if reign is None:
            raise NotActive(url=self.active_url)
        for reach in self.clusters.known:
            client = self.clusters.client(reach.id)
            seen = await found(client, fused=reach.fused)
            wanted = _declared(self.registry, reach)
            granter = reign.effects.granter(reach.id)
            had = {*seen.rights.users, *seen.rights.rates, *(rule.user for rule in seen.rights.rules)}
            strangers = {user for user in had - {*wanted.rights.users} if TENANT_USER.fullmatch(user)}
            await granter.take(sorted(strangers))
            await granter.give(wanted.rights)
            extra = undeclared_rules(wanted, seen)
            await granter.take_rules([rule for rule in extra if rule.user not in strangers])
            feeder = reign.feeders.get(reach.id)
            if feeder is not None:
                for tenant in {*wanted.states, *seen.states}:
                    await feeder.tell(tenant)
        return await self.check()


async def check_cluster(registry: Registry, reach: Reach, client: Client) -> tuple[Difference, ...]:
    return differences(_declared(registry, reach), await found(client, fused=reach.fused))


def _declared(registry: Registry, reach: Reach) -> Declared:
    return declared(registry, registry.need(PhysicalCluster, reach.id), fused=reach.fused)


def _tenants_of(key: bytes, value: bytes | None, registry: Registry) -> set[str]:
    """Which tenants' state a record may change."""
    kind, entity_id = entity_of(key)
    if kind == LogicalCluster.kind:
        return {entity_id}
    if kind == PhysicalCluster.kind:
        return {c.id for c in registry.all(LogicalCluster) if c.cluster == entity_id}
    if kind not in (ServiceAccount.kind, ApiKey.kind):
        return set()
    if value is not None:
        return {str(RegistryRecord.from_bytes(value).body["tenant"])}
    gone = registry.get(ServiceAccount, entity_id) or registry.get(ApiKey, entity_id)
    return set() if gone is None else {str(gone.tenant)}


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
